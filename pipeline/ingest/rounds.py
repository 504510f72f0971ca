"""Rounds: many readers take, then one process settles what they took while they take again.

The cost per message is spread over the readers; the cost per round does not depend on traffic. Catching up with a
backlog and landing continuously are both rounds. They differ in when they stop.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import count

from tidemark.pipeline.clock import Clock, rough
from tidemark.pipeline.errors import ReadingUnavailable
from tidemark.pipeline.ingest.outcome import Settled, Side, Taken
from tidemark.pipeline.ingest.readers import BATCH_MESSAGES, Share
from tidemark.pipeline.ingest.settle import Settling
from tidemark.pipeline.ingest.take import SMALL_SHARE
from tidemark.pipeline.ingest.ticks import begin_where_new
from tidemark.pipeline.lake.log.tracking_log import Newest
from tidemark.pipeline.lake.tables.delta_log import says_of
from tidemark.pipeline.pubsub.backlog import Backlog
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.watermark.decision import Decision
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.situation import has_no_backlog
from tidemark.pipeline.watermark.usage import Usage

ROUNDS_TOLD = 3
"""Number of settled rounds whose attempts are sent to the readers: a worker may have no task in some round."""

NEW = timedelta(minutes=1)
"""An older decision is not used for the backlogs: no sensor is ticking."""

A_TRACKER_IN = 4
"""One reader in this many reads tracking, which costs less than base. While tracking is behind, all of them do."""

DRY_ROUNDS, YOUNG_ROUNDS = 2, 2
"""Number of consecutive rounds with few messages, or only young ones, that end a run. One is not enough: an empty pull
proves nothing."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """When readers on Spark start to help, when a round is settled, and when a run ends. Tests and benchmarks shorten
    the times."""

    round: timedelta = timedelta(seconds=5)
    """Duration of a round's pulling. Longer rounds make fewer commits and larger files, but the watermark lags by as
    much more. Two rounds fit into the 10 s for which tracking counts as current."""
    run_for: timedelta = timedelta(hours=1)
    """Maximum duration of a run: well below the time after which a run counts as dead."""
    start_after: timedelta = timedelta(hours=1)
    """A run starts when base or tracking holds a message this old; ticks alone land messages within minutes."""
    start_size: int = 1_000_000
    """A run also starts when this many messages wait: four times a tick's maximum."""
    stop_below: timedelta = timedelta(minutes=1)
    """The run ends when the oldest message of both sides is younger than this: ticks keep up with that."""


PLAN = RunPlan()


class Ended(StrEnum):
    """The reason why a run ended."""

    CAUGHT_UP = "caught up"
    RAN_DRY = "ran dry"
    TIME_IS_UP = "time is up"


Ages = Mapping[Side, timedelta]
"""Age of the oldest unread message, keyed by side; an unknown age is left out."""


@dataclass(frozen=True, slots=True)
class RoundDone:
    """A settled round. `oldest` is the age of the oldest message taken from each side; `ages` are the ages of the
    backlogs since, as far as known."""

    number: int
    share: Share
    settled: Settled
    readers_seconds: float
    settle_seconds: float
    oldest: Ages = field(default_factory=dict)
    ages: Ages = field(default_factory=dict)

    @property
    def messages(self) -> int:
        """The number of messages that were landed, quarantined or tracked."""
        return sum(one.messages for one in self.settled.sides.values())

    @property
    def is_dry(self) -> bool:
        """True if the readers found hardly anything."""
        return self.messages < SMALL_SHARE * min(BATCH_MESSAGES.values()) * self.share.readers


Beside = Callable[[Callable[[], RoundDone]], "Future[RoundDone]"]
"""Runs a function concurrently with the caller."""


@dataclass(slots=True)
class Rounds:
    """One run of rounds. `run` is a unique name. `read` has the readers of a round take, in any processes. `newest`
    reads the log concurrently with the settling, which has its own log object. `backlogs` are read if no tick decides.
    `beside` settles a round while the next is read."""

    settings: Settings
    run: str
    readers: int
    settling: Settling
    read: Callable[[Share], Sequence[Taken]]
    newest: Callable[[], Newest]
    backlogs: Mapping[Side, Backlog]
    clock: Clock
    beside: Beside | None = None
    plan: RunPlan = PLAN
    ended: Ended = Ended.TIME_IS_UP
    _used: Usage = field(default_factory=Usage)
    _attempts: deque[frozenset[str]] = field(default_factory=lambda: deque(maxlen=ROUNDS_TOLD))
    _tracking_is_dry: bool = False

    def rounds(self, run_for: timedelta, *, until_young: bool) -> Iterator[RoundDone]:
        """Run rounds until the time is over, or with `until_young` until both backlogs are young or nothing is found.
        Yields each round once it is settled.

        Guarantee: what is acknowledged is visible and in the log, whatever process is killed, and however many runs and
        ticks read the same subscriptions. Raises PubSubError, LakeError, and any error of `read`. What was settled by
        then stays; the rest is redelivered.
        """
        begin_where_new(self.settling.log, self.backlogs[Side.TRACKING], self.clock)
        with ThreadPoolExecutor(1, thread_name_prefix="settle") as pool:
            beside: Beside = self.beside or (lambda work: pool.submit(work))
            until, done = self.clock.monotonic() + run_for.total_seconds(), _Stopping(self.plan.stop_below)
            under_way: Future[RoundDone] | None = None
            for number in count():
                if self.clock.monotonic() >= until:
                    break
                taken = self._taken(number)
                try:
                    if under_way is not None:
                        settled, under_way = self._aged(under_way.result()), None
                        ended = done.after(settled) if until_young else None
                        if ended is not None:
                            self.ended = ended
                            yield from (settled, self._settled(number, *taken))
                            return
                        yield settled
                except BaseException:  # otherwise redelivered only after minutes: its readers have leased it
                    self.settling.give_back(taken[1])
                    raise
                under_way = beside(lambda number=number, taken=taken: self._settled(number, *taken))  # type: ignore[misc]
            if under_way is not None:
                yield under_way.result()

    def _taken(self, number: int) -> tuple[Share, Sequence[Taken], datetime, float]:
        """Have the readers take one round, and hold its leases from then on."""
        watermark, began, since = self.newest().watermark, self.clock.now(), self.clock.monotonic()
        decision = None if self._tracking_is_dry else self._decision()
        trackers = trackers_of(self.readers, decision, self.settings.policy, number)
        attempts = frozenset[str]().union(*self._attempts)
        share = Share(self.settings, self.plan.round, self.readers - trackers, trackers, watermark, attempts)
        taken = self.read(share)
        self.settling.hold(taken)
        return share, taken, began, self.clock.monotonic() - since

    def _settled(
        self, number: int, share: Share, taken: Sequence[Taken], began: datetime, readers_seconds: float
    ) -> RoundDone:
        since = self.clock.monotonic()
        settled = self.settling.settle(taken, says_of(self.run, number), self._used)
        self._attempts.append(frozenset(one.attempt for one in taken if one.side is Side.TRACKING))
        self._used = settled.unsaid
        oldest = ((side, one.oldest_publish_time) for side, one in settled.sides.items())
        ages = {side: began - moment for side, moment in oldest if moment is not None}
        done = RoundDone(number, share, settled, readers_seconds, self.clock.monotonic() - since, ages)
        self._tracking_is_dry = done.is_dry and not share.landers  # whatever an older decision says
        return done

    def _decision(self) -> Decision | None:
        """Return the newest decision, or None if it is too old."""
        record, now = self.newest().record, self.clock.now()
        is_new = record is not None and now - record.decision.at <= max(NEW, 3 * self.settings.watermark.tick)
        return record.decision if record is not None and is_new else None

    def _aged(self, done: RoundDone) -> RoundDone:
        """Add the ages of both backlogs, from the newest decision, or from readings if no tick decides. A side with
        undecided messages is left out."""
        decision, ages = self._decision(), dict[Side, timedelta]()
        for side in (side for side in Side if not done.settled.sides[side].waiting.messages):
            effective = None if decision is None else getattr(decision, str(side))
            if effective is not None and effective.newest.observed_at >= self.clock.now() - NEW:
                ages[side] = effective.newest.age
            elif decision is None:
                with suppress(ReadingUnavailable):
                    ages[side] = self.backlogs[side].read().age
        return replace(done, ages=ages)


def trackers_of(readers: int, decision: Decision | None, policy: Policy, number: int) -> int:
    """Return the number of readers of tracking. It is all of them while the newest decision shows tracking behind both
    base and the present: the watermark moves only when tracking is ahead. Otherwise a few, or one every other round."""
    if decision is not None and decision.base is not None and decision.tracking is not None:
        is_ahead = decision.tracking.oldest_unacked - decision.base.oldest_unacked >= policy.band
        if not is_ahead and not has_no_backlog(decision.tracking, policy, policy.undecided):
            return readers
    return number % 2 if readers == 1 else max(1, readers // A_TRACKER_IN)


@dataclass
class _Stopping:
    """Decides when a run ends: it has caught up, or it finds nothing on either side although a backlog is old, because
    another consumer holds the messages."""

    stop_below: timedelta
    dry: int = 0
    young: int = 0
    looked: frozenset[Side] = frozenset()

    def after(self, done: RoundDone) -> Ended | None:
        """Return why the run ends after this round, or None if it goes on."""
        young = self.stop_below
        self.dry = self.dry + 1 if done.is_dry else 0
        self.looked = done.share.sides | (self.looked if done.is_dry else frozenset())
        self.young = self.young + 1 if all(age < young for age in done.oldest.values()) else 0
        if len(done.ages) == len(Side) and max(done.ages.values()) < young:
            return Ended.CAUGHT_UP
        if self.dry >= DRY_ROUNDS and len(self.looked) == len(Side):
            return Ended.RAN_DRY if done.ages and max(done.ages.values()) >= young else Ended.CAUGHT_UP
        known = [age for age in done.ages.values() if age >= young]
        return Ended.CAUGHT_UP if not known and self.young >= YOUNG_ROUNDS and len(done.ages) < len(Side) else None


def sentence_of(rounds: Sequence[RoundDone]) -> str:
    """Describe what these consecutive rounds did, in a sentence."""
    first, last, settled = rounds[0], rounds[-1], sum((one.settled for one in rounds), Settled())
    share, landed, seconds = last.share, settled.landed, sum(one.readers_seconds for one in rounds)
    rate = f"{sum(one.messages for one in rounds) / seconds:,.0f} messages/s; " if seconds else ""
    ages = ", ".join(f"{side} {rough(age)}" for side, age in last.ages.items())
    return (
        f"{f'round {last.number}' if first is last else f'rounds {first.number} to {last.number}'}: landed "
        f"{landed.heartbeats} heartbeats ({landed.late} late), quarantined {landed.rejected.total()}, tracked "
        f"{settled.persisted.messages} messages; {rate}the {share.landers} readers of base and {share.trackers} of "
        f"tracking took {last.readers_seconds:.1f} s, settling {max(one.settle_seconds for one in rounds):.1f} s at "
        f"most{f'; age of the backlog: {ages}' if ages else ''}"
    )
