"""Run one tick of each subscription. A tick is a series of rounds by one local reader; each round is settled before the
next starts.

A tick of tracking then decides the watermark. The order is the guarantee: pull, persist, acknowledge, and only then
read the backlogs, fold the log and decide.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from tidemark.pipeline.clock import Clock, rough
from tidemark.pipeline.contract.heartbeat import HeartbeatReader
from tidemark.pipeline.errors import ReadingPostponed, ReadingUnavailable, SnapshotRefused
from tidemark.pipeline.ingest.counting import RememberedCopies
from tidemark.pipeline.ingest.outcome import Ingested, Side
from tidemark.pipeline.ingest.pace import LOOK
from tidemark.pipeline.ingest.settle import Settling
from tidemark.pipeline.ingest.take import BATCH_MESSAGES, Batches, Budget, Keeper, Landing, Tracking, take
from tidemark.pipeline.lake.log.notes import WatermarkObject
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.lake.tables.new_files import NewFiles
from tidemark.pipeline.pubsub.backlog import LIFETIME, REFUSED_WITHIN, Backlog
from tidemark.pipeline.pubsub.spending import Spending
from tidemark.pipeline.pubsub.subscription import PubSubSubscription
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.watermark.decision import Decision
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.readings import Reading
from tidemark.pipeline.watermark.rules import RULES, Rule
from tidemark.pipeline.watermark.state import Beginning, WatermarkState

TICK_MESSAGES, TICK_BYTES = 250_000, 256 << 20
"""Maximum messages and bytes of one tick."""

PULL_SHARE, LONGEST_PULL = 0.7, timedelta(seconds=40)
"""The part of a tick spent pulling, and its maximum. The remaining time is for writing and acknowledging the last
batch, so that the next tick is on time. Dagster allows a tick 60 s in total."""

NO_TIME, TOLERATED = timedelta(0), timedelta(seconds=2)
"""`TOLERATED` is how far this machine's clock may be behind the server's before a tick reports a problem."""


def tick_budget(settings: Settings, side: Side) -> Budget:
    """Return the limits of one tick's pulling."""
    pulls = min(PULL_SHARE * max(settings.watermark.tick, LOOK), LONGEST_PULL)
    return Budget(TICK_MESSAGES, TICK_BYTES, pulls, BATCH_MESSAGES[side])


@dataclass(frozen=True, slots=True)
class Tracked:
    """The result of a tracking tick. `problems` are sentences about steps that the next tick retries."""

    decision: Decision
    state: WatermarkState
    persisted: Ingested
    problems: tuple[str, ...]


def land(
    subscription: PubSubSubscription,
    *,
    tables: tuple[NewFiles, NewFiles],
    log: TrackingLog,
    reader: HeartbeatReader,
    budget: Budget,
    clock: Clock,
    backlog: Backlog | None = None,
    spending: Spending | None = None,
) -> Ingested:
    """Run one tick of base: pull, make durable, make visible, acknowledge. Return a summary of what landed.

    `tables` are the writers of `heartbeats` and `quarantine`.

    Guarantee: each message acknowledged on base is in one of these tables, also after an error. Any number
    of readers may run at once. With base's `backlog`, the tick pulls until a reading shows no backlog; without it,
    until a batch is nearly empty. `spending` is updated with the tick's usage and its oldest message. Raises
    PubSubError or LakeError.
    """
    watermarks = [log.newest().watermark]  # before anything is pulled: with a damaged log nothing could be judged
    settling = Settling(log, clock, {Side.BASE: subscription}, tables)

    def watermark() -> datetime | None:
        return watermarks.pop() if watermarks else log.newest().watermark

    keeper = partial(Landing, *tables, reader, watermark, clock)
    return _rounds(settling, keeper, budget, backlog, spending)


def track(
    subscription: PubSubSubscription,
    *,
    tracking_backlog: Backlog,
    base_backlog: Backlog,
    log: TrackingLog,
    reader: HeartbeatReader,
    policy: Policy,
    budget: Budget,
    clock: Clock,
    copies: RememberedCopies | None = None,
    rules: Sequence[Rule] = RULES,
    until_gone: Backlog | None = None,
    spending: Spending | None = None,
    signals: Sequence[WatermarkObject] = (),
) -> Tracked:
    """Run one tick of tracking: pull, persist, acknowledge, then read both backlogs, fold the log, decide, and make the
    decision durable. Pulls within the budget until a batch is nearly empty or, if `until_gone` is given, until a
    reading of that backlog shows that it is empty.

    Guarantee: each message acknowledged on tracking is in the log, also after an error; the next tick resumes from the
    log. Any number of trackers may run at once. Raises PubSubError or LakeError.

    `copies` are the messages that the process remembers across ticks; without them, every copy counts in full.
    `spending` is updated from the log and the tick, and the decision records the usage. At the end, the `signals`
    publish the decision; if one fails, `problems` says so. The first tick of a process records `reader.judged_by` in
    the log, which then refuses messages judged by another.
    """
    state = begin_where_new(log, tracking_backlog, clock)
    log.judge_by(reader.judged_by)
    if spending is not None:
        spending.learn(state)
    settling = Settling(log, clock, {Side.TRACKING: subscription}, copies=copies or RememberedCopies())
    keeper = partial(Tracking, reader, settling.copies, policy.band, clock)
    persisted = _rounds(settling, keeper, budget, until_gone, spending)
    # Tracking first: a message seen outstanding on base and older than T must then be in the histogram.
    tracking, tracking_problem = _reading(tracking_backlog)
    base, base_problem = _reading(base_backlog)
    with spending.noted() if spending is not None else nullcontext() as usage:
        decided = log.decide(
            lambda state: replace(state.decide(base, tracking, policy, clock.now(), rules), usage=usage)
        )
    state = log.compact_if_due()
    untold = [signal.tell(state) for signal in signals]
    waits, clock_problem = persisted.waiting.sentence(), _clock_problem(tracking, base)
    problems = filter(None, (waits, tracking_problem, base_problem, *untold, clock_problem))
    return Tracked(decided.decision, state, persisted, (*persisted.acknowledged.problems, *problems))


def _rounds(
    settling: Settling, keeper: Callable[[], Keeper], budget: Budget, backlog: Backlog | None, spending: Spending | None
) -> Ingested:
    """Run rounds of one batch each, from the only subscription of `settling`. They end when the budget is spent, the
    backlog is gone, or hardly anything arrives."""
    ((side, subscription),), ingested, clock = settling.subscriptions.items(), Ingested(), settling.clock
    until = clock.monotonic() + budget.max_time.total_seconds()
    batches = Batches(subscription, budget, clock, backlog)
    try:
        for batch in batches:
            taken = take([batch], subscription, keeper(), until)
            ingested += settling.settle([taken]).sides[side]
            batches.waits = ingested.waiting.messages > 0
            if spending is not None:
                spending.count(taken.used)
            del batch, taken  # before the next one is pulled
    finally:
        subscription.pause()
    if spending is not None:
        spending.reached(subscription.path, ingested.oldest_publish_time)
    return replace(ingested, leaves_more=budget.max_messages > 0 and not batches.is_gone)


def begin_where_new(log: TrackingLog, tracking_backlog: Backlog, clock: Clock) -> WatermarkState:
    """Write the first entry of an empty log, and return the log's state. Call it before anything is acknowledged on
    tracking.

    The entry names the publish time from which the histogram will be complete: the publish time of tracking's oldest
    message, or an upper bound of it. If that message is too old for a reading, the entry names the oldest publish time
    that a reading could have. Assumption: no message was acknowledged after the reading.
    """
    state = log.catch_up_to_append()
    if state.complete_from is not None:
        return state
    try:
        known_from = tracking_backlog.read().no_later_than
    except SnapshotRefused:
        known_from = clock.now() - (LIFETIME - REFUSED_WITHIN)
    return log.begin(Beginning(known_from))


def _clock_problem(*readings: Reading | None) -> str | None:
    """Return a sentence about a clock that is provably behind the server's; None if it is not."""
    behind = max((reading.clock_is_behind_by for reading in readings if reading is not None), default=NO_TIME)
    if behind <= TOLERATED:
        return None
    return (
        f"this machine's clock is at least {rough(behind)} behind Pub/Sub's; synchronize it (chrony, "
        "systemd-timesyncd): windows are computed only after their end by this clock"
    )


def _reading(backlog: Backlog) -> tuple[Reading | None, str | None]:
    """Return a reading of a backlog, or the reason why there is none now. Returns neither if no reading is due. Raises
    PubSubError for lasting problems (a permission, the network)."""
    try:
        return backlog.read(), None
    except ReadingPostponed as error:
        return None, None if error.__cause__ is None else str(error)
    except ReadingUnavailable as error:
        return None, str(error)
