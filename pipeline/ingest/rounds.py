"""Rounds: many readers take, then one process settles what all of them have taken, while they take again.

What a message costs is spread over the readers, and what a round costs is the same at any traffic. Catching up with a
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

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.durations import rough
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
"""Settled rounds whose attempts the readers are told: a worker may have no task in one of them."""

NEW = timedelta(minutes=1)
"""An older decision says nothing of the backlogs: no sensor ticks."""

A_TRACKER_IN = 4
"""One reader of so many reads tracking, which costs less than base: all of them while tracking is behind."""

DRY_ROUNDS, YOUNG_ROUNDS = 2, 2
"""Rounds in a row that found little, or only young messages, and so end a run. One is not enough: an empty pull proves
nothing."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The times at which readers on Spark begin to help, a round is settled, and a run ends. Tests and benchmarks hurry
    it."""

    round: timedelta = timedelta(seconds=5)
    """Readers pull for so long before their work is settled. Longer rounds make fewer commits and larger files, and a
    watermark that is as much further behind: two of them are within the 10 s for which tracking counts as current."""
    run_for: timedelta = timedelta(hours=1)
    """The length of a run: well below the time after which a run counts as dead."""
    start_after: timedelta = timedelta(hours=1)
    """A run starts when base or tracking holds a message as old as this, which ticks alone land within minutes."""
    start_size: int = 1_000_000
    """Or when this many messages wait: four ticks of the most that one takes."""
    stop_below: timedelta = timedelta(minutes=1)
    """The run is done when the oldest message of both is younger than this: ticks keep up with that."""


PLAN = RunPlan()


class Ended(StrEnum):
    """Why a run ended."""

    CAUGHT_UP = "caught up"
    RAN_DRY = "ran dry"
    TIME_IS_UP = "time is up"


Ages = Mapping[Side, timedelta]
"""The age of the oldest unread message of each side, as far as it is known."""


@dataclass(frozen=True, slots=True)
class RoundDone:
    """A round that is settled. `oldest` is how old the oldest message was that it took from each side, and `ages` what
    is known of their backlogs since."""

    number: int
    share: Share
    settled: Settled
    readers_seconds: float
    settle_seconds: float
    oldest: Ages = field(default_factory=dict)
    ages: Ages = field(default_factory=dict)

    @property
    def messages(self) -> int:
        """All that were landed, quarantined or tracked."""
        return sum(one.messages for one in self.settled.sides.values())

    @property
    def is_dry(self) -> bool:
        """True if the readers found hardly anything."""
        return self.messages < SMALL_SHARE * min(BATCH_MESSAGES.values()) * self.share.readers


Beside = Callable[[Callable[[], RoundDone]], "Future[RoundDone]"]
"""Starts a function beside the caller."""


@dataclass(slots=True)
class Rounds:
    """One run of rounds. `run` is a name that no other run has. `read` has the readers of a round take, in whatever
    processes; `newest` reads the log, beside the settling, which has its own log for itself. `backlogs` are read where
    no tick decides. `beside` settles a round while the next is read.
    """

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
        """Rounds until the time is over, or `until_young`: until both backlogs are young, or nothing is found. Each is
        given once it is settled.

        Guarantee: what is acknowledged is visible and in the log, whatever is killed, and however many runs and ticks
        read the same subscriptions. Raises PubSubError, LakeError, and what `read` raises. What was settled until then
        stays, and what was not comes again.
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
                except BaseException:  # otherwise it would come again only after minutes: its readers have leased it
                    self.settling.give_back(taken[1])
                    raise
                under_way = beside(lambda number=number, taken=taken: self._settled(number, *taken))  # type: ignore[misc]
            if under_way is not None:
                yield under_way.result()

    def _taken(self, number: int) -> tuple[Share, Sequence[Taken], datetime, float]:
        """The work of the readers of one round, whose leases are kept from now on."""
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
        """The newest decision, if it is new."""
        record, now = self.newest().record, self.clock.now()
        is_new = record is not None and now - record.decision.at <= max(NEW, 3 * self.settings.watermark.tick)
        return record.decision if record is not None and is_new else None

    def _aged(self, done: RoundDone) -> RoundDone:
        """Add the ages of both backlogs, by the newest decision, or by readings where no tick decides. A backlog whose
        messages wait for a schema is left out."""
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
    """Return the number of readers of tracking: all while it is behind base and now, by the newest decision, since the
    watermark moves only when tracking is ahead. Otherwise a few, or one every other round."""
    if decision is not None and decision.base is not None and decision.tracking is not None:
        is_ahead = decision.tracking.oldest_unacked - decision.base.oldest_unacked >= policy.band
        if not is_ahead and not has_no_backlog(decision.tracking, policy, policy.undecided):
            return readers
    return number % 2 if readers == 1 else max(1, readers // A_TRACKER_IN)


@dataclass
class _Stopping:
    """Ends a run that has caught up, or that finds nothing on either side though a backlog is old, since another
    consumer holds it."""

    stop_below: timedelta
    dry: int = 0
    young: int = 0
    looked: frozenset[Side] = frozenset()

    def after(self, done: RoundDone) -> Ended | None:
        """Why the run ends after a round; None: it goes on."""
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
    """Say what these consecutive rounds have done."""
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
