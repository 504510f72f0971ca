"""The snapshot budget: it limits what reading backlogs may cost, and so determines when the next reading may be made.

A snapshot retains the messages of the subscription's backlog, and Pub/Sub charges for their size. So the price of a
reading is estimated in bytes: the age of the backlog, times the publish rate, times the mean message size. Rate and
size come from the last day's pulls.

An old reading remains valid, so expensive readings can be made less often. They are spaced so that the rest of the
budget lasts for a day.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from threading import Lock

from tidemark.pipeline.clock import Clock, rough
from tidemark.pipeline.errors import PubSubError, ReadingPostponed, SnapshotRefused
from tidemark.pipeline.pubsub.backlog import LIFETIME, REFUSED_WITHIN, Backlog
from tidemark.pipeline.settings_sections import DAY, ZERO, PubSubSettings
from tidemark.pipeline.watermark.readings import EffectiveReading, Reading
from tidemark.pipeline.watermark.state import WatermarkState
from tidemark.pipeline.watermark.usage import Account, Usage

LONGEST = timedelta(hours=4)
"""Maximum delay of a reading, even if the budget is spent. Without this limit, the watermark could stand still while
one reading of the backlog costs more than the budget. This limit causes at most six readings beyond the budget, per
subscription and day."""

SHARES = 2
"""Number of equal parts into which the remaining budget is divided: one for base, one for tracking."""


class Spending:
    """Decides when the next reading of a backlog is due. It counts this process's usage of Pub/Sub, and the usage that
    other processes recorded in the tracking log. Thread-safe.

    - If `pubsub` has no budget, readings are counted but never delayed.
    - With `pubsub.attach`, tidemark does not pull from base. It assumes base's messages to be as large as tracking's.

    Guarantee: no reading is delayed for longer than `LONGEST`. Prices are estimates, so a reading of a backlog that was
    never read may cost more than estimated.
    """

    def __init__(self, clock: Clock, pubsub: PubSubSettings, tick: timedelta) -> None:
        self.clock = clock
        self._pubsub, self._budget = pubsub, pubsub.snapshot_bytes_a_day
        self._tick = tick
        self._lock = Lock()
        self._account = Account()
        self._oldest = dict[str, datetime]()  # by path: the last reading of the oldest publish time
        self._reached = dict[str, datetime]()  # by path: smallest publish time in the last tick that pulled a message
        self._taken = dict[tuple[str, str], Reading]()
        """The last reading by snapshot, per subscription and user. `answered_at` is by this machine's clock."""
        self._usage = Usage()
        self._began, self._since = clock.now(), clock.monotonic()

    # Inputs

    def learn(self, state: WatermarkState) -> None:
        """Take over the usage and the newest readings that the tracking log records, including those of other processes
        and those from before a restart."""
        decision = state.decision
        with self._lock:
            self._account = state.account
            if decision is not None:
                self._follow(self._pubsub.base_path, decision.base)
                self._follow(self._pubsub.tracking_path, decision.tracking)

    def reached(self, path: str, oldest: datetime | None) -> None:
        """Record `oldest`, the smallest publish time of the messages that a tick made durable. It shows how old the
        backlog is, on the assumption that a tick pulls some of the older messages. If the tick pulled
        nothing, `oldest` is None and has no effect, because another consumer may have leased the messages."""
        if oldest is not None:
            with self._lock:
                self._reached[path] = oldest

    def count(self, usage: Usage) -> None:
        """Add to the usage of this process."""
        with self._lock:
            self._usage += usage

    @contextmanager
    def noted(self) -> Iterator[Usage]:
        """Yield the usage since the last call. The `with` block must record it with a decision. If the block fails,
        the next call includes this usage again."""
        now = self.clock.monotonic()
        with self._lock:
            usage, self._usage = replace(self._usage, seconds=now - self._since, ticks=1), Usage()
        try:
            yield usage
        except BaseException:
            with self._lock:
                self._usage += replace(usage, seconds=0.0, ticks=0)
            raise
        with self._lock:
            self._since = now
            self._account = self._account.after(self.clock.now(), usage)  # until the log is read again

    # Queries

    def turn(self, path: str, user: str) -> tuple[datetime | None, bool]:
        """Return two values about the user's next reading of the subscription at `path`: when it is due (None: now),
        and whether it is due only because of the maximum delay LONGEST, although it exceeds the budget.

        Without a budget, or if nothing is known about the backlog, a reading is due now.
        """
        now = self.clock.now()
        with self._lock:
            taken = self._taken.get((path, user))
            age = self._age(path, now if taken is None else now + taken.clock_is_behind_by)
            if self._budget is None or age is None:
                return None, False
            interval = self._interval(self._price(path, age))
            last, wait = self._began, interval
            if taken is not None:
                last, wait = taken.answered_at or last, min(taken.next_within, interval)
            # A tick may be slightly early or late, and a clock may be set back.
            is_due = not ZERO <= now - last < wait - self._tick / 2
            return None if is_due else last + wait, interval >= LONGEST

    def took(self, path: str, user: str, reading: Reading) -> Reading:
        """Record a reading by snapshot, and return it with `next_within`, the time within which the next reading will
        be made."""
        with self._lock:
            self._oldest[path] = reading.oldest_unacked
            age = self._age(path, reading.observed_at)
            price = self._price(path, reading.age if age is None else min(age, reading.age))
            self._usage += Usage(snapshots=1, snapshot_bytes=price)
            wait = ZERO if self._budget is None else self._interval(price)
            taken = replace(reading, next_within=ZERO if wait <= self._tick else wait)
            self._taken[path, user] = replace(taken, answered_at=self.clock.now())
            return taken

    def _follow(self, path: str, reading: EffectiveReading | None) -> None:
        if reading is None:
            return
        self._oldest[path] = reading.oldest_unacked
        taken, newest = self._taken.get((path, "")), reading.newest
        is_new = taken is None or newest.observed_at > taken.observed_at
        if newest.source == "snapshot" and is_new:
            self._taken[path, ""] = replace(newest, answered_at=min(newest.observed_at, self.clock.now()))

    def _age(self, path: str, now: datetime) -> timedelta | None:
        known = [known[path] for known in (self._oldest, self._reached) if path in known]
        return max(now - max(known), ZERO) if known else None

    def _price(self, path: str, age: timedelta | None) -> int:
        """Estimate the size, in bytes, of the messages published within `age`; 0 if it is unknown."""
        known = self._account.known
        used, seconds = known + self._usage, known.seconds + self.clock.monotonic() - self._since
        is_tracking = path == self._pubsub.tracking_path or self._pubsub.attach
        messages, size = (used.tracked, used.tracked_bytes) if is_tracking else (used.landed, used.landed_bytes)
        if age is None or seconds <= 0 or not messages:
            return 0
        return round(used.tracked / seconds * age.total_seconds() * size / messages)

    def _interval(self, price: int) -> timedelta:
        left = max((self._budget or 0) - self._spent(), 0)
        if not price:
            return ZERO
        seconds = price * SHARES * DAY.total_seconds() / left if left else math.inf
        return timedelta(seconds=min(seconds, LONGEST.total_seconds()))

    def _spent(self) -> int:
        return self._account.last_day(self.clock.now()).snapshot_bytes + self._usage.snapshot_bytes


@dataclass
class BudgetedBacklog:
    """Reads a subscription's backlog from snapshots, within the snapshot budget. Keep the instance across ticks,
    because it remembers a refusal.

    With `monitoring`, the reading comes from Cloud Monitoring while Pub/Sub refuses snapshots. Such a reading is
    minutes old, so it may be below an earlier reading from a snapshot. It is then ignored, and not mistaken for a seek.

    Each `user`, such as a thread, takes snapshots at its own pace. The user "" reads for decisions, and the tracking
    log records when its next reading is due. For this user, `monitoring` is also read if no snapshot is due, or if a
    snapshot would exceed the budget. Other users only ask whether there is more to pull, and the readings of
    `monitoring` are too old to show that.
    """

    snapshot: Backlog
    spending: Spending
    path: str
    user: str = ""
    monitoring: Backlog | None = None
    _is_refused: bool = False

    def read(self) -> Reading:
        """Return a reading. `monitoring` is read instead if Pub/Sub refuses a snapshot, or if the user is "" and no
        snapshot is due. If that is impossible too, raises SnapshotRefused or ReadingPostponed. If `monitoring` failed,
        the error has both reasons. Raises other errors of the snapshot unchanged."""
        due_at, is_over_budget = self.spending.turn(self.path, self.user)
        if due_at is not None:
            postponed = ReadingPostponed(
                f"the next reading of {self.path} is due at {due_at.isoformat(timespec='seconds')} (at least one per "
                f"{rough(LONGEST)}): a snapshot now would exceed the subscription's share of pubsub.snapshot_budget"
            )
            return _instead(postponed, None if self.user else self.monitoring)
        is_over = is_over_budget and not self.user
        if self.monitoring is not None and (is_over or self._is_refused):
            with suppress(PubSubError):
                reading = self.monitoring.read()
                would_be_refused = reading.no_later_than < self.spending.clock.now() - (LIFETIME - REFUSED_WITHIN)
                if is_over or would_be_refused:
                    return reading
        try:
            reading = self.snapshot.read()
        except SnapshotRefused as refused:
            self._is_refused = True
            return _instead(refused, self.monitoring)
        self._is_refused = False
        return self.spending.took(self.path, self.user, reading)


def _instead(why: PubSubError, monitoring: Backlog | None) -> Reading:
    """Return a reading of `monitoring` in place of a snapshot. If that is impossible too, raise `why`, the reason
    why there is no snapshot."""
    if monitoring is None:
        raise why
    try:
        return monitoring.read()
    except PubSubError as error:
        raise type(why)(f"{why}. Cloud Monitoring gave no reading either: {error}") from error
