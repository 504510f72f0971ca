"""Faults planted on purpose, each a few lines: what the simulation must find, or it proves nothing.

`broken_estimates.py`, `broken_parts.py` and `broken_rounds.py` plant them, each by its name, where it stands.

`first_shown` is the seed in which it showed first when it was measured. Where a change of the product deals that seed
other cards, the test fails with the next such seed: a search in each run would take minutes. `search.py` leaves out
those that `where` says cannot show it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from unittest.mock import patch

from tests.simulation.micro_batch import MicroBatch
from tests.simulation.plan import TO_ADVANCE, Plan
from tidemark.pipeline.ingest.counting import RememberedCopies
from tidemark.pipeline.ingest.outcome import Taken
from tidemark.pipeline.ingest.rounds import Share, taken_of
from tidemark.pipeline.ingest.settle import Settling
from tidemark.pipeline.ingest.ticks import land, track
from tidemark.pipeline.lake.log.packing import LogPacking
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.rules import RULES, Rule

Broken = TypeVar("Broken", bound=Callable[..., Any] | Sequence[Rule])


@dataclass(frozen=True)
class Planted:
    """What is put in place of what, and where it could show."""

    name: str
    first_shown: int = 0
    where: Callable[[Plan], bool] = lambda _plan: True
    policy: Callable[[Policy], Policy] = lambda policy: policy
    track: Callable[..., Any] = track
    copies: type[RememberedCopies] = RememberedCopies
    land: Callable[..., Any] = land
    log: type[TrackingLog] = TrackingLog
    packing: type[LogPacking] = LogPacking
    rules: Sequence[Rule] = RULES
    judged_by: Sequence[Rule] | None = None
    """The rules by which the oracle decides; None: the broken ones, so that only what follows from them shows."""
    about: str = ""
    """The one of EXTRAS that is in play."""
    files_are_durable: bool = False
    """Whether the oracle lets messages be acknowledged whose files no version lists: what follows from that shows."""
    share: Callable[[Share], Share] = lambda share: share
    take: Callable[..., Taken] = taken_of
    settling: Callable[..., Settling] = Settling
    micro_batch: Callable[..., MicroBatch] = MicroBatch
    patches: tuple[tuple[str, Any], ...] = ()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The patches, for as long as the block runs."""
        with ExitStack() as stack:
            for target, replacement in self.patches:
                stack.enter_context(patch(target, replacement))
            yield


AS_IT_IS = Planted("as it is")
PLANTED: dict[str, Planted] = {}


def plant(
    name: str,
    instead_of: str | Rule,
    first_shown: int = 0,
    where: Callable[[Plan], bool] = lambda _plan: True,
    **more: Any,
) -> Callable[[Broken], Broken]:
    """Plant what is decorated: in place of one of the rules, a method of the `log.` or of its `packing.`, a dotted
    name, or as this part of Planted. `more` are further parts of that."""

    def planted(broken: Broken) -> Broken:
        parts = dict[str, Any](more)
        if callable(instead_of):
            parts["rules"] = tuple(broken if each is instead_of else each for each in RULES)
        elif instead_of.startswith(("log.", "packing.")):
            part, method = instead_of.split(".")
            parts[part] = type("Broken", (TrackingLog if part == "log" else LogPacking,), {method: broken})
        elif "." in instead_of:
            parts["patches"] = ((instead_of, broken),)
        else:
            parts[instead_of] = broken
        PLANTED[name] = Planted(name, first_shown, where, **parts)
        return broken

    return planted


# In which seeds a fault could show: what plans have in common


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
