"""Readings of a subscription's oldest unacknowledged publish time, and the effective reading derived from them.

A reading stays valid: no message that is unacknowledged now, or published later, has a publish time below it, unless
a seek moves the subscription back. So the effective reading is the largest reading since the last seek. Each seek
begins a new epoch.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Reading:
    """A reading of a subscription's backlog: the publish time of the oldest unacknowledged message, as reported by the
    service.

    - `observed_at` is a moment before the request was sent.
    - `oldest_unacked` is this publish time. If nothing is unacknowledged, it is a moment no later than the answer.
    - `names_a_message` is True if `oldest_unacked` is a message's publish time, to the second. Otherwise
      `oldest_unacked` is a lower bound, at most `uncertainty` below the true publish time.
    - `source` is the method of the reading, for display.
    - `answered_at` is this machine's time after the answer; None if the server's clock cannot be compared with it.
    - `next_within` is the planned time until the next reading, because readings cost money. Zero: a reading at each
      tick.
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
        """Lower bound of the time by which this machine's clock was behind the server's. Zero unless `oldest_unacked`
        or `observed_at` is after `answered_at`."""
        server = max(self.oldest_unacked, self.observed_at)
        return max(server - (self.answered_at or server), timedelta(0))

    @property
    def no_later_than(self) -> datetime:
        """The sum of `oldest_unacked` and its uncertainty. The oldest unacknowledged message, if any, was not published
        later than this."""
        return self.oldest_unacked + self.uncertainty

    @property
    def age(self) -> timedelta:
        """Age of the oldest unacknowledged message when the reading was observed; about zero if there was none."""
        return max(self.observed_at - self.oldest_unacked, timedelta(0))


@dataclass(frozen=True, slots=True)
class EffectiveReading:
    """The effective reading of a subscription: the largest reading since the last seek, which began the current epoch.

    `observed_at` is when this largest reading was last observed. `newest` is the newest reading, which may be smaller.
    """

    oldest_unacked: datetime
    names_a_message: bool
    observed_at: datetime
    epoch: int
    epoch_began: datetime
    newest: Reading

    @property
    def is_read_rarely(self) -> bool:
        """True if the snapshot budget delays the next reading, instead of allowing one at each tick."""
        return self.newest.source == "snapshot" and self.newest.next_within > timedelta(0)

    @property
    def next_by(self) -> datetime:
        """Time by which the next reading is due."""
        return self.newest.observed_at + self.newest.next_within


def follow(previous: EffectiveReading | None, reading: Reading | None, tolerance: timedelta) -> EffectiveReading | None:
    """Return the effective reading after one more reading. `reading` is None if none could be made.

    Readings may arrive in any order, because two processes may write to one log. A reading from before the current
    epoch began is ignored. A newer reading that is lower means a seek only if the difference is larger than the
    reading's uncertainty plus `tolerance`.
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
    named = (reading.oldest_unacked, reading.names_a_message, reading.observed_at)
    return EffectiveReading(*named, epoch, epoch_began, newest=reading)
