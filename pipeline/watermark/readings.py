"""Readings: the oldest outstanding publish time of a subscription, and the part of it that stays true.

A reading is valid for ever: what was unacknowledged then, and what was published since, has a publish time not below
it. So the effective reading is the largest of its epoch, and a lower one that was observed later means that the
subscription was sought back, which starts a new epoch.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Reading:
    """The publish time of the oldest message that was not acknowledged, as the service reported it.

    `observed_at` is a moment before the request was sent. Where nothing is outstanding, `oldest_unacked` is a
    moment not after the answer. `names_a_message` says that `oldest_unacked` is the publish time of a message,
    to the second, and not a bound. As a bound it is below the true one by at most `uncertainty`. `source` is the method
    that it was read by, for people.

    `answered_at` is this machine's clock after the answer; None where the server's clock cannot be compared with it.
    `next_within` is the intended time to the next reading, since readings cost money. Zero: at each tick.
    """

    observed_at: datetime
    oldest_unacked: datetime
    names_a_message: bool
    uncertainty: timedelta = timedelta(0)
    source: str = "snapshot"
    answered_at: datetime | None = None
    next_within: timedelta = timedelta(0)

    @property
    def clock_is_behind_by(self) -> timedelta:
        """Least time by which this machine's clock is behind the server's: only then can an answer be later than it."""
        server = max(self.oldest_unacked, self.observed_at)
        return max(server - (self.answered_at or server), timedelta(0))

    @property
    def no_later_than(self) -> datetime:
        """Latest publish time of the oldest outstanding message; or a moment at which nothing was outstanding."""
        return self.oldest_unacked + self.uncertainty

    @property
    def age(self) -> timedelta:
        """Age of the oldest outstanding message when it was observed; about zero if nothing was outstanding."""
        return max(self.observed_at - self.oldest_unacked, timedelta(0))


@dataclass(frozen=True, slots=True)
class EffectiveReading:
    """The largest reading of the present epoch, when it was last observed, and the newest observation of all."""

    oldest_unacked: datetime
    names_a_message: bool
    observed_at: datetime
    epoch: int
    epoch_began: datetime
    newest: Reading

    @property
    def is_read_rarely(self) -> bool:
        """True if the budget of snapshots puts the next reading off for longer than a tick."""
        return self.newest.source == "snapshot" and self.newest.next_within > timedelta(0)

    @property
    def next_by(self) -> datetime:
        """Latest moment at which the next reading is due."""
        return self.newest.observed_at + self.newest.next_within


def follow(previous: EffectiveReading | None, reading: Reading | None, tolerance: timedelta) -> EffectiveReading | None:
    """Return the effective reading after one more observation (None: there was none this time).

    Observations may come in any order of their moments (two trackers write into one log): one from before the
    epoch began says nothing about it and is passed over. A fall counts only beyond what the reading is uncertain by.
    """
    if reading is None:
        return previous
    if previous is None:
        return _effective(reading, 1, reading.observed_at)
    if reading.observed_at < previous.epoch_began:
        return previous
    newer = reading.observed_at > previous.newest.observed_at
    if newer and reading.no_later_than < previous.oldest_unacked - tolerance:
        return _effective(reading, previous.epoch + 1, reading.observed_at)
    is_seen_again = reading.oldest_unacked == previous.oldest_unacked and reading.observed_at > previous.observed_at
    is_largest = reading.oldest_unacked > previous.oldest_unacked or is_seen_again
    largest = _effective(reading, previous.epoch, previous.epoch_began) if is_largest else previous
    return replace(largest, newest=reading if newer else previous.newest)


def _effective(reading: Reading, epoch: int, epoch_began: datetime) -> EffectiveReading:
    """The reading as the largest and the newest of its epoch."""
    named = (reading.oldest_unacked, reading.names_a_message, reading.observed_at)
    return EffectiveReading(*named, epoch, epoch_began, newest=reading)
