"""Readings of a subscription's oldest outstanding publish time, and the effective reading derived from them.

A reading stays valid for ever: every message that was unacknowledged at the time, or was published later, has a publish
time not below it. So the effective reading is the largest of its epoch. If a later reading is lower, the subscription
was sought back, and a new epoch begins.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Reading:
    """The publish time of the oldest unacknowledged message, as the service reported it.

    `observed_at` is a moment before the request was sent. If nothing is outstanding, `oldest_unacked` is a moment not
    after the answer. `names_a_message` is True if `oldest_unacked` is the publish time of a message, to the second.
    Otherwise `oldest_unacked` is a lower bound, at most `uncertainty` below the true publish time. `source` is the
    method of the reading, for display.

    `answered_at` is this machine's time after the answer; None if the server's clock cannot be compared with it.
    `next_within` is the intended time to the next reading, as readings cost money; zero means a reading at each tick.
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
        """Lower bound of the time by which this machine's clock is behind the server's; positive only if a moment of
        the reading is after `answered_at`."""
        server = max(self.oldest_unacked, self.observed_at)
        return max(server - (self.answered_at or server), timedelta(0))

    @property
    def no_later_than(self) -> datetime:
        """Latest possible publish time of the oldest outstanding message, or a moment at which nothing was
        outstanding."""
        return self.oldest_unacked + self.uncertainty

    @property
    def age(self) -> timedelta:
        """Age of the oldest outstanding message at the observation; about zero if nothing was outstanding."""
        return max(self.observed_at - self.oldest_unacked, timedelta(0))


@dataclass(frozen=True, slots=True)
class EffectiveReading:
    """The largest reading of the current epoch, when it was last observed, and the newest observation."""

    oldest_unacked: datetime
    names_a_message: bool
    observed_at: datetime
    epoch: int
    epoch_began: datetime
    newest: Reading

    @property
    def is_read_rarely(self) -> bool:
        """True if the snapshot budget delays the next reading by more than a tick."""
        return self.newest.source == "snapshot" and self.newest.next_within > timedelta(0)

    @property
    def next_by(self) -> datetime:
        """Latest moment at which the next reading is due."""
        return self.newest.observed_at + self.newest.next_within


def follow(previous: EffectiveReading | None, reading: Reading | None, tolerance: timedelta) -> EffectiveReading | None:
    """Return the effective reading after one more observation. `reading` is None if none could be taken.

    Observations may arrive in any order, because two trackers may write into one log. An observation from before the
    current epoch began is ignored. A fall counts as a seek only if it is larger than the reading's uncertainty and
    `tolerance` together.
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
    """Return the effective reading of an epoch of which only this reading is known."""
    named = (reading.oldest_unacked, reading.names_a_message, reading.observed_at)
    return EffectiveReading(*named, epoch, epoch_began, newest=reading)
