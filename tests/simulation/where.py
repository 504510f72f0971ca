"""In which seeds a fault could show: what plans have in common."""

from collections.abc import Callable

from tests.simulation.plan import TO_ADVANCE, Plan


def anyway(_plan: Plan) -> bool:
    return True


def real_codec(plan: Plan) -> bool:
    return plan.real_codec


def operated(plan: Plan) -> bool:
    return plan.operators > 0


def sought(plan: Plan) -> bool:
    return bool(plan.incidents)


def two_trackers(plan: Plan) -> bool:
    return plan.trackers > 1


def packed(plan: Plan) -> bool:
    return plan.packers > 0 and plan.checkpoint_every < 1000


def two_runners(plan: Plan) -> bool:
    return plan.runners > 1


def kept(plan: Plan) -> bool:
    return plan.is_kept


def by_band(plan: Plan) -> bool:
    return plan.is_kept and plan.policy.rule == "band" and plan.policy.idle == "hold"


def by_frontier(plan: Plan) -> bool:
    return plan.is_kept and plan.policy.rule == "frontier" and plan.policy.idle == "hold"


def bounded(plan: Plan) -> bool:
    return plan.is_kept and plan.policy.max_lag is not None


def aged(plan: Plan) -> bool:
    return plan.max_age_us is not None


def budgeted(plan: Plan) -> bool:
    return plan.is_kept and plan.snapshot_budget is not None


def just_in_time(plan: Plan) -> bool:
    return plan.kind == "just in time"


def any_lag(plan: Plan) -> bool:
    return plan.kind == "any lag"


def slack(plan: Plan) -> bool:
    return plan.is_kept and plan.slack_us > 0


def often_compacted(plan: Plan) -> bool:
    return plan.checkpoint_every == 3


def soon(plan: Plan) -> bool:
    return plan.starts_at_once


def quantiles(plan: Plan) -> bool:
    return plan.is_kept and plan.policy.quantile > 0


def in_rounds(plan: Plan) -> bool:
    return plan.rounds is not None


def hole(plan: Plan) -> bool:
    return plan.is_kept and plan.hole_until_us is not None


def idle(plan: Plan) -> bool:
    return plan.kind in TO_ADVANCE


def dropped(plan: Plan) -> bool:
    return packed(plan) and plan.drops_after is not None


def in_json(plan: Plan) -> bool:
    return plan.payloads is not None and plan.payloads.written == "json"


def in_avro(plan: Plan) -> bool:
    return plan.payloads is not None and plan.payloads.written == "avro"


def both(one: Callable[[Plan], bool], other: Callable[[Plan], bool]) -> Callable[[Plan], bool]:
    return lambda plan: one(plan) and other(plan)
