"""What one seed means: the sources, the policy, who runs, and what goes wrong how often."""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import pairwise
from typing import Literal

from tests.ingest.fakes import AMPLE
from tests.ingest.fakes import CONTRACT as FAKES_CONTRACT
from tests.simulation import traffic
from tests.simulation.payloads import Payloads, with_payloads
from tests.watermark.builders import START, START_US
from tidemark.local.emulator.faults import Faults
from tidemark.pipeline.clock import MICROSECOND
from tidemark.pipeline.contract.heartbeat import MessageContract
from tidemark.pipeline.ingest.take import Budget
from tidemark.pipeline.pubsub.schemas import AFTER_FAILURE_US
from tidemark.pipeline.settings import UNDECIDED
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.windows import Windowing

CONTRACT: MessageContract = replace(FAKES_CONTRACT, fields={}, max_future_skew=timedelta(hours=12))
"""Clocks that run fast are let through: what they do to the watermark is the point."""

WINDOWING = Windowing(length=timedelta(minutes=1), first=START)
LOOKBACK = timedelta(minutes=2)

ASKS_AGAIN = timedelta(microseconds=AFTER_FAILURE_US)
"""How long after a failure a process asks for schemas again."""

SLOW_STEPS = (0, 50_000, 300_000, traffic.SECOND)
"""How long a step takes, in microseconds, where a tick takes seconds: others do much in between."""

Kind = Literal["any lag", "just in time", "shrinking lag", "growing lag", "beyond the band"]
SOURCES = {
    "any lag": traffic.any_lag,
    "just in time": traffic.just_in_time,
    "shrinking lag": traffic.shrinking_lag,
    "growing lag": traffic.growing_lag,
    "beyond the band": traffic.beyond,
}
KINDS: tuple[Kind, ...] = (*SOURCES, "any lag", "any lag", "just in time", "beyond the band")  # type: ignore[arg-type]
TO_ADVANCE: tuple[Kind, ...] = ("shrinking lag", "growing lag")
"""These keep what the idle rule assumes."""


@dataclass(frozen=True, slots=True)
class Incident:
    """What somebody does to a subscription at a moment: seek it back by so much, at most to what it still holds."""

    at_us: int
    subscription: str
    back_us: int


CALM_ROUND = timedelta(seconds=0.4)
"""How long a round takes once it is calm: a fraction of a tick."""


@dataclass(frozen=True, slots=True)
class RoundsPlan:
    """`drivers` that each play runs of rounds with so many `readers`. `beside` says what ticks do meanwhile: the same
    as ever, nothing but deciding, or pulling while no round is under way.

    A run takes `run_for`, unless it stops before because it is `until_young`, below `stop_below`. In a round a reader
    takes so many `messages` at most, within the time `round_takes`. Chances are of a task: that its answer is lost and
    it is tried again, and that two attempts run at once, of which one is used.
    """

    drivers: int
    readers: int
    beside: Literal["ticks", "deciders", "ticks in between"]
    run_for: timedelta
    until_young: bool
    stop_below: timedelta
    round_takes: timedelta
    messages: int
    batch_messages: int
    answer_lost: float
    twice: float

    @property
    def calm_run(self) -> timedelta:
        """How long a run takes once it is calm. A single reader reads tracking in every other round."""
        return CALM_ROUND * (1.5 if self.readers == 1 else 0.5)


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is drawn before the run begins. Chances are of a step, unless said otherwise.

    `tracking_at_us` is when the tracking subscription is created, just before a second begins, so that no message has
    the publish time of one from before; base is there from the start. `outages` are spans
    in which workers of a kind do not tick. `scales_us` is the mean time between their ticks, `step_us` how long a step
    takes. Some `starts_at_once`: their first ticks are close together. `hole_until_us` is when the tracking
    subscription is created anew, if a moment comes before at which it can be deleted and nothing but a hole is lost.
    `operators` let go what base holds, now and then, and not where there is a hole: what was let go hides it.
    `clock_apart` is how far the trackers' clock is ahead of Pub/Sub's. `snapshot_budget` is what trackers may spend on
    readings in a day, until all is calm; None: what they like. What happened more than `max_age_us` before its
    publish time is rejected. Packers drop archives that are older than `drops_after`; None: they keep all.
    """

    seed: int
    kind: Kind
    policy: Policy
    messages: tuple[traffic.Planned, ...]
    faults: Faults
    budgets: Mapping[str, Budget]
    ack_deadline: timedelta
    trackers: int
    landers: int
    runners: int
    packers: int
    packs_after: timedelta
    operators: int
    tracking_at_us: int
    ends_us: int
    scales_us: Mapping[str, int]
    starts_at_once: bool
    step_us: tuple[int, ...]
    outages: tuple[tuple[str, int, int], ...]
    incidents: tuple[Incident, ...]
    hole_until_us: int | None
    crash: float
    lake_fails: float
    slow: float
    keeps_leases: bool
    real_codec: bool
    checkpoint_every: int
    calm_tick_us: int
    copies_remembered: tuple[timedelta, int]
    clock_apart: timedelta
    max_age_us: int | None = None
    snapshot_budget: int | None = None
    rounds: RoundsPlan | None = None
    drops_after: timedelta | None = None
    payloads: Payloads | None = None

    @property
    def is_kept(self) -> bool:
        """Whether the sources keep what the policy assumes: then nothing may be late or missed."""
        return self.kind != "beyond the band"

    def holds(self, message: traffic.Planned) -> bool:
        """Whether a message holds the watermark: it lags no more than it may, and nobody loses patience with it."""
        max_lag = self.policy.max_lag
        return not message.is_doubtful and (max_lag is None or message.lag_us <= max_lag // MICROSECOND)

    @property
    def waits_us(self) -> int:
        """How long a message may wait for its revision, with a failure to ask for it."""
        waits = self.payloads is not None and self.payloads.written == "avro"
        return (UNDECIDED + ASKS_AGAIN) // MICROSECOND if waits else 0

    @property
    def has_no_hole(self) -> bool:
        """Whether tracking is there before the first message, and stays; a stale reading of nothing is taken for that
        of a message, which may never have been."""
        return self.hole_until_us is None and self.tracking_at_us < START_US and not self.faults.stale_reading

    @property
    def sees_all_at_once(self) -> bool:
        """Whether each subscription sees each message from its publish time on: then none is seen after its time. One
        that is delivered again may be, where it was rejected before its revision appeared."""
        is_doubtful = any(one.is_doubtful for one in self.messages)
        return self.slack_us == 0 and self.hole_until_us is None and not is_doubtful

    @property
    def slack_us(self) -> int:
        """How long after its publish time a message becomes visible, at most."""
        return self.policy.base_slack // MICROSECOND

    @property
    def calm_ticks(self) -> int:
        """Within so many ticks after the last fault, with traffic that goes on, the watermark is near real time.

        What a worker that crashed had leased comes again after an ack deadline; a step that began before may take
        two more; then what was published until now must leave the band. Two ticks for it to be seen, one for a
        seek that is found only now.
        """
        span = (
            4 * (self.ack_deadline // MICROSECOND)
            + self.policy.band // MICROSECOND
            + 2 * self.slack_us
            + 5 * traffic.SECOND
        )
        span += self.waits_us
        return -(-span // self.calm_tick_us) + 3

    @property
    def near_us(self) -> int:
        """How old, in publish time, what holds the watermark may be then: the band, or a tick that base is behind,
        the slack, and four seconds for the buckets and for the gaps between messages. Where rounds pull, tracking is
        behind when a tick decides, by a round and the pause after it, and that comes on top of the band."""
        band_us, ticks_us = self.policy.band // MICROSECOND, 2 * self.calm_tick_us
        behind = max(band_us, ticks_us) if self.rounds is None else band_us + ticks_us
        return behind + self.slack_us + 4 * traffic.SECOND


EXTRAS = frozenset({"ages", "rounds", "drops", "payloads", "budgets"})
"""What may be in play besides: messages that are too old, rounds, dropped archives, event times in payloads, and a
budget of readings."""


def plan_of(seed: int, extras: Collection[str] = EXTRAS) -> Plan:
    """The plan of a seed: always the same, and the same but for the `extras` that are not in play."""
    plan, rng = _plan_of(seed), random.Random(f"{seed} ages")
    if "rounds" in extras:
        plan = _with_rounds(plan, random.Random(f"{seed} rounds"))
    if "ages" in extras and rng.random() >= 0.7:
        messages, max_age_us = traffic.with_old_messages(rng, plan.messages, above_all=plan.kind == "growing lag")
        plan = replace(plan, messages=messages, max_age_us=max_age_us)
    if "drops" in extras:
        plan = _with_drops(plan, random.Random(f"{seed} drops"))
    return _with_payloads(plan, random.Random(f"{seed} payloads")) if "payloads" in extras else plan


def _plan_of(seed: int) -> Plan:
    rng, apart, others = random.Random(seed), random.Random(f"{seed} packs"), random.Random(f"{seed} operates")
    clocks = random.Random(f"{seed} clocks")
    whole = rng.random() < 0.35
    band_s = rng.choice([1, 2, 5, 10, 10, 20] if whole else [0, 1, 2.5, 5, 10, 10, 20])
    kind: Kind = rng.choice(KINDS)
    is_live = kind == "just in time"
    if is_live:
        band_s = rng.choice([2, 5, 10])
    band_us = round(band_s * traffic.SECOND)
    delayed = whole and not is_live and rng.random() < 0.3
    planned = SOURCES[kind](rng, band_us, whole)
    if kind not in TO_ADVANCE and clocks.random() < 0.85:
        planned = traffic.by_their_clocks(clocks, planned, band_us)
    max_lag: timedelta | None = None
    if clocks.random() < 0.35:
        planned, bound_us = traffic.with_stragglers(
            clocks, planned, above_all=kind in TO_ADVANCE, keeps_recent_lag=kind == "growing lag"
        )
        max_lag = timedelta(microseconds=bound_us)
    # Where the lag grows by a band over each silence, it may not grow by two: what is rejected tells no lag, and a
    # later copy of a message that lagged less would be the newest.
    named = traffic.with_names(
        rng,
        planned,
        copies_within_us={"beyond the band": 200 * traffic.SECOND, "growing lag": 0}.get(kind),
        are_flawless=kind == "growing lag",
        later=None if kind in TO_ADVANCE else clocks,
    )
    messages = traffic.arriving(rng, named, whole=whole, delayed=delayed)
    if kind != "beyond the band":
        holding = [
            one for one in traffic.first_copies(messages) if max_lag is None or one.lag_us <= max_lag // MICROSECOND
        ]
        assert traffic.disorder_of(holding) <= band_us, f"seed {seed}: the sources break their own assumption"
    visible_after = timedelta(seconds=rng.choice([0, 0, 0, 2] if is_live else [0, 0, 0.7, 2, 5]))
    slack = visible_after + timedelta(seconds=1 if delayed else 0)
    first, last = messages[0].arrives_us, messages[-1].arrives_us
    span = last - first + 10 * traffic.SECOND
    troubled = rng.random() < (0.2 if is_live else 0.85)
    deadline = timedelta(seconds=rng.choice([10, 10, 30]))
    hole_until_us = _hole(rng, messages, slack // MICROSECOND) if rng.random() < 0.2 else None
    if kind == "growing lag":
        hole_until_us = None  # one that base has landed before anybody looks would hide how far the lag has grown
    policy = replace(_policy(rng, kind, timedelta(seconds=band_s), slack), max_lag=max_lag)
    faults = _faults(rng) if troubled else Faults()
    faults = replace(faults, whole_seconds=whole, visible_after=visible_after)
    if hole_until_us is not None:
        # What base holds again of before a hole, by a seek or an acknowledgement undone, hides it from who looks first.
        faults = replace(faults, redelivered=0.0)
    return Plan(
        seed=seed,
        kind=kind,
        policy=policy,
        messages=tuple(messages),
        faults=faults,
        budgets={worker: AMPLE if is_live else _budget(rng) for worker in ("tracker", "lander")},
        ack_deadline=deadline,
        trackers=rng.choice([1, 2]),
        landers=rng.choice([1, 2, 3]),
        runners=rng.choice([1, 2]),
        packers=apart.choice([0, 1, 2]),
        packs_after=timedelta(seconds=apart.choice([0, 5, 60])),
        operators=1 if hole_until_us is None and others.random() < 0.25 else 0,
        tracking_at_us=(START_US if rng.random() < 0.8 else rng.randint(first, last) // traffic.SECOND * traffic.SECOND)
        - 1,
        ends_us=last + rng.choice([0, 5, 60]) * traffic.SECOND,
        scales_us={
            "tracker": band_us // 4 if is_live else _scale(rng, span),
            "lander": band_us // rng.choice([1, 2]) if is_live else _scale(rng, span),
            "runner": band_us if is_live else _scale(rng, span),
            "packer": _scale(apart, span),
            "operator": span // 10,
        },
        starts_at_once=is_live or rng.random() < 0.5,
        step_us=SLOW_STEPS if is_live else rng.choice([(0, 1, 1000, 50_000), SLOW_STEPS]),
        outages=() if is_live else _outages(rng, first, span),
        incidents=_incidents(rng, first, span) if troubled and hole_until_us is None else (),
        hole_until_us=hole_until_us,
        crash=rng.choice([0, 0.01, 0.04]) if troubled else 0.0,
        lake_fails=rng.choice([0, 0.02, 0.08]) if troubled else 0.0,
        slow=rng.choice([0, 0.02, 0.1]) if troubled else 0.0,
        keeps_leases=rng.random() < 0.6,
        real_codec=rng.random() < 0.05,
        checkpoint_every=rng.choice([3, 10, 1000]),
        calm_tick_us=round(max(2, band_s / 2) * traffic.SECOND),
        copies_remembered=(timedelta(seconds=clocks.choice([0, 5, 600, 600])), clocks.choice([3, 1000, 1000])),
        clock_apart=_clock_apart(random.Random(f"{seed} apart"), policy),
        snapshot_budget=_snapshot_budget(random.Random(f"{seed} costs")) if hole_until_us is None else None,
    )


def _with_rounds(plan: Plan, rng: random.Random) -> Plan:
    """Not where there is a hole: tracking is deleted there while nobody is at work."""
    if plan.hole_until_us is not None or rng.random() < 0.7:
        return plan
    rounds = rounds_of(rng, troubled=plan.faults.shuffled or plan.crash > 0 or plan.slow > 0)
    # Tracking is a round and a pause behind when a tick decides: less than this counts as without a backlog.
    at_least = timedelta(microseconds=plan.calm_tick_us + plan.slack_us) + timedelta(seconds=3)
    policy = replace(plan.policy, near_real_time=max(plan.policy.near_real_time, at_least))
    scales_us = {**plan.scales_us, "driver": rng.choice([traffic.SECOND, plan.scales_us["lander"]])}
    return replace(plan, policy=policy, rounds=rounds, scales_us=scales_us)


def _with_drops(plan: Plan, rng: random.Random) -> Plan:
    return plan if rng.random() < 0.6 else replace(plan, drops_after=timedelta(seconds=rng.choice([3, 15, 60])))


def _with_payloads(plan: Plan, rng: random.Random) -> Plan:
    """Not where there is a hole: what is rejected late would hide it. The trackers' clock is right, so that nobody has
    more patience than is stated."""
    if plan.hole_until_us is not None or rng.random() < 0.75:
        return plan
    payloads, messages = with_payloads(
        rng, plan.messages, soon=plan.kind in TO_ADVANCE, troubled=plan.crash > 0 or plan.slow > 0
    )
    if payloads.written == "json":
        return replace(plan, payloads=payloads, messages=messages)
    policy = replace(plan.policy, undecided=UNDECIDED)
    return replace(plan, payloads=payloads, messages=messages, policy=policy, clock_apart=timedelta(0))


def _clock_apart(rng: random.Random, policy: Policy) -> timedelta:
    """How far the trackers' clock is ahead of Pub/Sub's, or behind it.

    Ahead by a second, a reading of nothing seems to name a message, and with two trackers may seem to show a hole.
    Ahead by more than `near_real_time`, the watermark holds.
    """
    if rng.random() < 0.75:
        return timedelta(0)
    behind = [timedelta(seconds=-each) for each in (2, 30, 3600)]
    return rng.choice([*behind, min(policy.near_real_time / 2, timedelta(seconds=0.9))])


def _snapshot_budget(rng: random.Random) -> int | None:
    """Nothing, so that base is read once in an hour, or so much that it is read every few minutes or ticks. A hole is
    left out: it shows to whoever reads base first, which is not put off there."""
    return rng.choice([0, 10_000, 300_000, 10_000_000]) if rng.random() < 0.25 else None


def _scale(rng: random.Random, span_us: int) -> int:
    return max(traffic.SECOND // 2, span_us // rng.choice([5, 15, 50]))


def _policy(rng: random.Random, kind: Kind, band: timedelta, slack: timedelta) -> Policy:
    return Policy(
        rule=rng.choice(["band", "frontier"]),
        band=band,
        near_real_time=timedelta(seconds=rng.choice([1, 10])) + slack,
        idle_timeout=timedelta(seconds=rng.choice([15, 40])),
        idle="advance" if kind in TO_ADVANCE or (kind == "beyond the band" and rng.random() < 0.3) else "hold",
        max_reading_age=timedelta(seconds=rng.choice([30, 300])),
        seek_tolerance=timedelta(seconds=rng.choice([5, 30])),
        # Within the band a quantile lets go of nothing, unless a second holds 1/quantile messages.
        quantile=0.1 if rng.random() < 0.25 else 0.0,
        reading_slack=slack,
        base_slack=slack,
    )


def _faults(rng: random.Random) -> Faults:
    def chance(*of: float) -> float:
        return rng.choice([0.0, *of])

    return Faults(
        shuffled=rng.random() < 0.7,
        redelivered=chance(0.1, 0.3),
        acknowledgement_lost=chance(0.05, 0.2),
        late_acknowledgement_lost=chance(0.5, 1.0),
        acknowledgement_answer_lost=chance(0.1),
        duplicate_delivery=chance(0.1, 0.3),
        stale_reading=chance(0.1, 0.3),
        reading_unavailable=chance(0.1, 0.3),
        unavailable=chance(0.02),
        answer_lost=chance(0.02, 0.1),
        deadline_exceeded=chance(0.02),
        throttled=chance(0.01),
    )


def _budget(rng: random.Random) -> Budget:
    batch = rng.choice([1, 3, 10, 100])
    return Budget(
        max_messages=rng.choice([batch, 3 * batch, 1000]),
        max_bytes=rng.choice([200, 1 << 20]),
        max_time=timedelta(seconds=rng.choice([2, 50])),
        batch_messages=batch,
    )


def _outages(rng: random.Random, first_us: int, span_us: int) -> tuple[tuple[str, int, int], ...]:
    outages = []
    for kind in ("tracker", "lander", "runner"):
        while rng.random() < 0.35:
            begins = first_us + rng.randrange(span_us)
            outages.append((kind, begins, begins + rng.randrange(span_us)))
    return tuple(outages)


def _hole(rng: random.Random, messages: Sequence[traffic.Planned], slack_us: int) -> int | None:
    """The beginning of a second, with no message in the second before it, nor one that is visible only later."""
    quiet_us = traffic.SECOND + slack_us
    after_gaps = [
        later.publish_us // traffic.SECOND * traffic.SECOND
        for earlier, later in pairwise(messages)
        if later.publish_us // traffic.SECOND * traffic.SECOND - earlier.arrives_us > quiet_us
    ]
    return rng.choice(after_gaps) if after_gaps else None


def _incidents(rng: random.Random, first_us: int, span_us: int) -> tuple[Incident, ...]:
    incidents = []
    while rng.random() < 0.25:
        back = rng.choice([2, 20, 60, 200]) * traffic.SECOND
        incidents.append(Incident(first_us + rng.randrange(span_us), rng.choice(["base", "tracking"]), back))
    return tuple(incidents)


def rounds_of(rng: random.Random, *, troubled: bool) -> RoundsPlan:
    """Drawn by these random numbers; without trouble each task is tried once."""
    batch = rng.choice([3, 10, 100])
    round_takes = timedelta(seconds=rng.choice([1, 2, 5]))
    return RoundsPlan(
        drivers=rng.choice([1, 1, 2]),
        readers=rng.choice([1, 2, 3, 4, 5, 8]),
        beside=rng.choice(["ticks", "deciders", "deciders", "ticks in between"]),
        run_for=rng.choice([1, 10, 60]) * round_takes,
        until_young=rng.random() < 0.3,
        stop_below=timedelta(seconds=rng.choice([1, 5, 30])),
        round_takes=round_takes,
        messages=rng.choice([batch, 1000]),
        batch_messages=batch,
        answer_lost=rng.choice([0, 0.1, 0.3]) if troubled else 0.0,
        twice=rng.choice([0, 0.1, 0.3]) if troubled else 0.0,
    )
