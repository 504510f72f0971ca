"""Runs the ticks of base and tracking. A tick is a series of rounds by one local reader. Each round is settled before
the next one starts.

A tick of tracking then decides the watermark. The guarantee follows from the order of steps: pull, persist,
acknowledge, read the backlogs, apply the log's new entries, decide.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from tidemark.pipeline.clock import Clock, rough
from tidemark.pipeline.contract.heartbeat import HeartbeatReader
from tidemark.pipeline.errors import ReadingPostponed, ReadingUnavailable, SnapshotRefused
from tidemark.pipeline.ingest.outcome import Ingested, Side
from tidemark.pipeline.ingest.pace import LOOK
from tidemark.pipeline.ingest.settle import Settling
from tidemark.pipeline.ingest.take import BATCH_MESSAGES, Batches, Budget, Keeper, Landing, Tracking, take
from tidemark.pipeline.lake.log.notes import WatermarkObject
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.pubsub.backlog import LIFETIME, REFUSED_WITHIN, Backlog
from tidemark.pipeline.pubsub.spending import Spending
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import ZERO
from tidemark.pipeline.watermark.decision import Decision
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.readings import Reading
from tidemark.pipeline.watermark.rules import RULES, Rules
from tidemark.pipeline.watermark.state import Beginning, WatermarkState

TICK_MESSAGES, TICK_BYTES = 250_000, 256 << 20
"""Maximum number of messages, and of bytes, that a tick pulls. Later ticks or readers on Spark pull what is left."""

PULL_SHARE, LONGEST_PULL = 0.7, timedelta(seconds=40)
"""Fraction of a tick's interval for pulling, and maximum duration of pulling. The rest of the interval is for the last
batch, so that the next tick is on time. Dagster allows a tick 60 s in total."""

TOLERATED = timedelta(seconds=2)
"""Ticks report a problem if this machine's clock is more than this behind Pub/Sub's."""


def tick_budget(settings: Settings, side: Side) -> Budget:
    """Return the limits for the pulling of one tick."""
    pulls = min(PULL_SHARE * max(settings.watermark.tick, LOOK), LONGEST_PULL)
    return Budget(TICK_MESSAGES, TICK_BYTES, pulls, BATCH_MESSAGES[side])


@dataclass(frozen=True, slots=True)
class Tracked:
    """The result of a tick of tracking. `problems` are sentences about a wrong clock, and about failed or unfinished
    steps, which later ticks retry."""

    decision: Decision
    state: WatermarkState
    persisted: Ingested
    problems: tuple[str, ...]


def land(
    settling: Settling,
    reader: HeartbeatReader,
    budget: Budget,
    backlog: Backlog | None = None,
    spending: Spending | None = None,
) -> Ingested:
    """Run one tick of base: pull messages, make them durable, make them visible, acknowledge them. Return a summary.

    Guarantee: each message acknowledged on base is in `heartbeats` or `quarantine`, also after an error. Several
    readers may run at the same time. Raises PubSubError or LakeError.

    `settling` has base as its only subscription. With `backlog`, the tick pulls until a reading shows that base has no
    backlog; without it, until a batch is small. `spending` is updated with the usage and the oldest publish time of the
    tick.
    """
    log, (heartbeats, quarantine) = settling.log, settling.tables
    watermarks = [log.newest().watermark]  # read before any pull, because nothing can be judged if the log is damaged

    def watermark() -> datetime | None:
        return watermarks.pop() if watermarks else log.newest().watermark

    keeper = partial(Landing, heartbeats, quarantine, reader, watermark, settling.clock)
    return _rounds(settling, keeper, budget, backlog, spending)


def track(
    settling: Settling,
    backlogs: Mapping[Side, Backlog],
    reader: HeartbeatReader,
    policy: Policy,
    budget: Budget,
    until_gone: Backlog | None = None,
    spending: Spending | None = None,
    signals: Sequence[WatermarkObject] = (),
    rules: Rules = RULES,
) -> Tracked:
    """Run one tick of tracking: pull, persist, acknowledge, then read both backlogs, apply the log's new entries,
    decide the watermark, and make the decision durable.

    Guarantee: each message acknowledged on tracking is in the log, also after an error; the next tick resumes from the
    log. Several trackers may run at the same time. Raises PubSubError or LakeError.

    - `settling` has tracking as its only subscription. Its `copies` are the messages that the process remembers across
      ticks. Without them, copies are not recognized.
    - `until_gone`: the tick pulls until a reading of this backlog shows that it is empty. If None, the tick pulls until
      a batch is small.
    - `spending` is updated from the log and the tick, and the decision records the usage.
    - `signals` publish the decision at the end. If one fails, `problems` says so.
    - `reader.judged_by` identifies the contract. The first tick of a process records it in the log, which then refuses
      messages that were judged by a different contract.
    """
    log, clock = settling.log, settling.clock
    state = begin_where_new(log, backlogs[Side.TRACKING], clock)
    log.judge_by(reader.judged_by)
    if spending is not None:
        spending.learn(state)
    keeper = partial(Tracking, reader, settling.copies, policy.band, clock)
    persisted = _rounds(settling, keeper, budget, until_gone, spending)
    # Tracking first, so that an unacknowledged message of base published before T is in the histogram.
    tracking, tracking_problem = _reading(backlogs[Side.TRACKING])
    base, base_problem = _reading(backlogs[Side.BASE])
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
    """Read the single subscription of `settling`, in rounds of one batch each. Stop when the budget is spent, the
    backlog is gone, or few messages arrive."""
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
    """If the log is empty, write its first entry. Return the state of the log. Call this function before any message of
    tracking is acknowledged.

    The entry has the publish time from which the histogram will be complete. This is the publish time of tracking's
    oldest message, or an upper bound of it if the reading is not exact. If Pub/Sub refuses the reading because that
    message is too old, the entry has the oldest publish time that a reading can return. Assumption: no message is
    acknowledged between the reading and the entry.
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
    behind = max((reading.clock_is_behind_by for reading in readings if reading is not None), default=ZERO)
    if behind <= TOLERATED:
        return None
    return (
        f"this machine's clock is at least {rough(behind)} behind Pub/Sub's; synchronize it (chrony, "
        "systemd-timesyncd): windows are computed only when this clock has passed their end"
    )


def _reading(backlog: Backlog) -> tuple[Reading | None, str | None]:
    """Return a reading of a backlog, or a sentence that says why no reading is possible now. If no reading is due,
    return neither. Raises PubSubError for problems that a retry does not fix, such as a missing permission."""
    try:
        return backlog.read(), None
    except ReadingPostponed as error:
        return None, None if error.__cause__ is None else str(error)
    except ReadingUnavailable as error:
        return None, str(error)
