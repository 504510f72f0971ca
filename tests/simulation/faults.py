"""Faults planted on purpose, each a few lines: what the simulation must find, or it proves nothing.

`first_shown` is the seed in which it showed first when it was measured. Where a change of the product deals that seed
other cards, `search.py` looks through others, and leaves out those that `where` says cannot show it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from unittest.mock import patch

from tests.simulation.broken_estimates import (
    advance_or_go_back,
    anchor_by_what_is_rejected,
    anchor_with_ties,
    band_with_an_anchor_that_does_not_hold,
    band_without_need_of_an_anchor,
    complete_whatever_is_known,
    complete_with_holes_in_what_was_pruned,
    complete_without_a_look_for_holes,
    follow_from_before_the_epoch,
    follow_in_order_of_arrival,
    follow_the_newest,
    follow_without_looking_again,
    follow_without_seeks,
    frontier_alone,
    frontier_at_the_end_of_its_cell,
    frontier_with_ties,
    frontier_without_need_of_one,
    frontier_without_what_was_passed,
    instead_of,
    least_lag,
    occupied_by_heartbeats_alone,
    passed_over_by_the_least_event_time,
    passed_over_by_the_start_of_the_bucket,
    quantile_of_the_whole_band,
    reachable_a_bucket_less,
    reachable_by_an_anchor_that_does_not_hold,
    reachable_without_slack,
    reachable_without_the_anchor,
    silence_whatever_base_holds,
    silence_without_the_lag,
    since_without_the_oldest,
)
from tests.simulation.broken_parts import (
    Ahead,
    AnyCopy,
    CopiesByMessage,
    CopiesKept,
    NeverRemembered,
    NotLoadedAgain,
    RememberedTooSoon,
    Unfenced,
    append_once,
    append_where_it_was_archived,
    begun_anew_where_all_was_archived,
    compact_what_was_known,
    compact_without_the_frontier,
    decide_on_what_is_known,
    decode_without_the_frontier,
    judge_whatever_the_age,
    land_acknowledging_first,
    land_reporting_nothing_late,
    land_without_looking_again,
    land_without_quarantine,
    move_deleting_first,
    move_from_the_newest_on,
    move_without_an_archive,
    never_overtaken,
    numbers_by_archives_first,
    oldest_decision,
    restored_without_cells,
    taken_if_it_is_archived,
    taken_if_the_one_before_has_moved,
    track_acknowledging_first,
    track_reading_before_acknowledging,
    track_reading_before_pulling,
    track_taking_postponed_for_empty,
    track_taking_unknown_for_empty,
)
from tests.simulation.broken_payloads import (
    asking_without_patience,
    inflated_within_a_batch,
    tracking_with_the_patience_of_base,
    wait_as_long_as_before,
)
from tests.simulation.broken_rounds import (
    HoldsNothing,
    RememberedUnsettled,
    WithoutOneFile,
    WithoutOneHistogram,
    settling_acknowledging_base_first,
    settling_acknowledging_tracking_first,
    settling_adding_twice,
    take_acknowledging_base,
    told_no_watermark,
    tracking_without_laggards,
    unbounded,
)
from tests.simulation.micro_batch import MicroBatch
from tests.simulation.plan import Plan
from tests.simulation.where import (
    aged,
    any_lag,
    anyway,
    both,
    bounded,
    budgeted,
    by_band,
    by_frontier,
    dropped,
    hole,
    idle,
    in_avro,
    in_json,
    in_rounds,
    just_in_time,
    kept,
    often_compacted,
    operated,
    packed,
    quantiles,
    real_codec,
    slack,
    soon,
    sought,
    two_runners,
    two_trackers,
)
from tidemark.pipeline.ingest.copies import RememberedCopies, keys_of
from tidemark.pipeline.ingest.outcome import Taken
from tidemark.pipeline.ingest.readers import Share, taken_of
from tidemark.pipeline.ingest.settle import Settling
from tidemark.pipeline.ingest.ticks import land, track
from tidemark.pipeline.lake.log.packing import LogPacking
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.replay.replay import RULES_WITHOUT_ANCHOR
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.rules import RULES, Rule, bound, complete, silence


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
    ages: bool = False
    """Whether what is too old is in play."""
    rounds: bool = False
    """Whether rounds are in play."""
    files_are_durable: bool = False
    """Whether the oracle lets messages be acknowledged whose files no version lists: what follows from that shows."""
    share: Callable[[Share], Share] = lambda share: share
    take: Callable[..., Taken] = taken_of
    settling: Callable[..., Settling] = Settling
    drops: bool = False
    """Whether archives are dropped."""
    payloads: bool = False
    """Whether event times are in payloads."""
    budgets: bool = False
    """Whether readings have a budget."""
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


ESTIMATOR = "tidemark.pipeline.watermark.estimator"
ZERO = timedelta(0)
STATE = "tidemark.pipeline.watermark.state"
DECODER = "tidemark.pipeline.contract.payloads.decoder"
TAKE, TICKS = "tidemark.pipeline.ingest.take", "tidemark.pipeline.ingest.ticks"
READERS = "tidemark.pipeline.ingest.readers"
PASSED_OVER = "tidemark.pipeline.watermark.histogram._is_passed_over"
HISTOGRAM = "tidemark.pipeline.watermark.histogram.Histogram"


def _patched(name: str, first_shown: int, where: Callable[[Plan], bool], target: str, replacement: Any) -> Planted:
    return Planted(name, first_shown, where, patches=((target, replacement),))


def _ruled(
    name: str,
    first_shown: int,
    where: Callable[[Plan], bool],
    rule: Rule,
    broken: Rule,
    judged_by: Sequence[Rule] | None = None,
) -> Planted:
    return Planted(name, first_shown, where, rules=instead_of(rule, broken), judged_by=judged_by)


def _logged(name: str, first_shown: int, where: Callable[[Plan], bool], **broken: Any) -> Planted:
    return Planted(name, first_shown, where, log=type("BrokenLog", (TrackingLog,), broken))


def _packed(name: str, first_shown: int, where: Callable[[Plan], bool], **broken: Any) -> Planted:
    return Planted(name, first_shown, where, packing=type("BrokenPacking", (LogPacking,), broken))


def _dropped(name: str, first_shown: int, where: Callable[[Plan], bool], **broken: Any) -> Planted:
    return replace(_logged(name, first_shown, where, **broken), drops=True)


def _read(name: str, first_shown: int, where: Callable[[Plan], bool], *patches: tuple[str, Any]) -> Planted:
    return Planted(name, first_shown, where, payloads=True, patches=patches)


def _of_rounds(name: str, first_shown: int, **broken: Any) -> Planted:
    return Planted(name, first_shown, in_rounds, rounds=True, **broken)


_ALL = (
    Planted("tracking is acknowledged before it is persisted", 0, track=track_acknowledging_first),
    Planted("base is acknowledged before it has landed", 0, land=land_acknowledging_first),
    Planted("what is rejected is not kept", 0, land=land_without_quarantine),
    Planted("a tick reports nothing late", 9, land=land_reporting_nothing_late),
    Planted("T is read before what was persisted is acknowledged", 3, track=track_reading_before_acknowledging),
    Planted("T and B are read before anything is pulled", 3, track=track_reading_before_pulling),
    _logged("the log is not listed again", 1, two_trackers, decide=decide_on_what_is_known),
    Planted("late is judged by what was known before", 1, land=land_without_looking_again),
    _logged("who loses a number loses its entry", 4, two_trackers, _append=append_once),
    _logged("a restart forgets the histogram", 0, anyway, _restored=restored_without_cells),
    _logged(
        "a checkpoint forgets the frontier",
        224,
        both(by_frontier, often_compacted),
        compact_if_due=compact_without_the_frontier,
    ),
    _patched(
        "a checkpoint is read without the frontier",
        475,
        both(by_frontier, real_codec),
        "tests.simulation.lake.log_codec.decode",
        decode_without_the_frontier,
    ),
    _logged("a checkpoint of what was known before", 5, two_trackers, compact_if_due=compact_what_was_known),
    _logged("an empty log is a new one", 135, packed, _is_overtaken=begun_anew_where_all_was_archived),
    _packed("what was archived is deleted from the newest on", 1014, packed, _move=move_from_the_newest_on),
    _logged("an archived number is taken", 284, both(two_trackers, packed), _append=append_where_it_was_archived),
    _logged("a run reads the oldest decision", 0, anyway, newest_decision=oldest_decision),
    _logged("archives are listed before the log", 1722, packed, numbers=numbers_by_archives_first),
    _packed("old entries are deleted and then archived", 19, packed, _move=move_deleting_first),
    _packed("old entries are deleted and not archived", 5, packed, _move=move_without_an_archive),
    _logged("who was overtaken does not notice", 5, packed, _is_overtaken=never_overtaken),
    Planted("no anchor", 11, by_band, rules=RULES_WITHOUT_ANCHOR),
    _ruled("decided without an anchor", 301, both(by_band, soon), bound, band_without_need_of_an_anchor),
    _ruled("decided without a frontier", 178, both(by_frontier, soon), bound, frontier_without_need_of_one),
    _ruled("the frontier alone", 50, by_frontier, bound, frontier_alone),
    _patched("the newest reading, not the largest", 5, anyway, f"{STATE}.follow", follow_the_newest),
    _patched("a seek is a reading like any other", 3, anyway, f"{STATE}.follow", follow_without_seeks),
    _patched("a reading from before a seek counts", 468, sought, f"{STATE}.follow", follow_from_before_the_epoch),
    _patched("a reading that comes late is a seek", 5, anyway, f"{STATE}.follow", follow_in_order_of_arrival),
    _patched("seen again is not noticed", 0, anyway, f"{STATE}.follow", follow_without_looking_again),
    _patched(
        "a release outlives a seek",
        297,
        both(operated, sought),
        f"{STATE}.was_sought",
        lambda *_: False,
    ),
    _patched("pruned a bucket too far", 2, anyway, f"{STATE}.reachable_from", reachable_a_bucket_less),
    _patched("pruned without slack", 5, slack, f"{STATE}.reachable_from", reachable_without_slack),
    _patched("pruned without an anchor", 4, anyway, f"{STATE}.reachable_from", reachable_without_the_anchor),
    _patched(
        "a rejected message is an anchor",
        49,
        by_band,
        f"{HISTOGRAM}.newest_valid_before",
        anchor_by_what_is_rejected,
    ),
    _patched(
        "a clock that runs fast counts as it says",
        18,
        by_frontier,
        "tidemark.pipeline.watermark.histogram.clamped",
        lambda event_us, _publish_us: event_us,
    ),
    _ruled("what is passed over is an anchor", 2, bounded, bound, band_with_an_anchor_that_does_not_hold),
    _patched(
        "pruned by an anchor that is passed over",
        80,
        bounded,
        f"{STATE}.reachable_from",
        reachable_by_an_anchor_that_does_not_hold,
    ),
    _patched("max_lag by a cell's least event time", 56, bounded, PASSED_OVER, passed_over_by_the_least_event_time),
    _patched("max_lag by a cell's first edge", 11, bounded, PASSED_OVER, passed_over_by_the_start_of_the_bucket),
    _patched("> for >= at base's oldest", 2, kept, f"{HISTOGRAM}.since", since_without_the_oldest),
    _patched(
        "the frontier is the end of its cell",
        67,
        by_frontier,
        f"{HISTOGRAM}.frontier_before",
        frontier_at_the_end_of_its_cell,
    ),
    _patched("a rejected message is a hole", 109, anyway, f"{HISTOGRAM}.is_occupied", occupied_by_heartbeats_alone),
    _ruled("what was pruned is a hole", 152, sought, complete, complete_with_holes_in_what_was_pruned),
    _ruled("idle without the lag", 20, idle, silence, silence_without_the_lag),
    _patched("idle by the least lag", 1187, idle, f"{HISTOGRAM}.greatest_lag_us", least_lag),
    _patched(
        "<= for < in the frontier",
        343,
        both(just_in_time, by_frontier),
        f"{HISTOGRAM}.frontier_before",
        frontier_with_ties,
    ),
    _patched(
        "<= for < in the anchor",
        1244,
        both(just_in_time, by_band),
        f"{HISTOGRAM}.newest_valid_before",
        anchor_with_ties,
    ),
    _patched(
        "what was passed before is forgotten",
        115,
        by_frontier,
        f"{STATE}.frontier_of",
        frontier_without_what_was_passed,
    ),
    _patched("the running frontier is forgotten", 115, by_frontier, f"{STATE}.frontier_of", lambda *_: None),
    _patched(
        "a quantile of the whole band", 64, quantiles, f"{HISTOGRAM}.quantile_between", quantile_of_the_whole_band
    ),
    _ruled("complete_from is ignored", 3, kept, complete, complete_whatever_is_known, judged_by=RULES),
    _ruled("no look for holes", 611, hole, complete, complete_without_a_look_for_holes),
    Planted("unknown is nothing outstanding", 7, kept, track=track_taking_unknown_for_empty),
    Planted(
        "a reading put off is nothing outstanding", 158, budgeted, budgets=True, track=track_taking_postponed_for_empty
    ),
    _patched("the watermark follows the candidate back", 19, anyway, f"{ESTIMATOR}.advance", advance_or_go_back),
    Planted("no slack", 32, slack, policy=lambda policy: replace(policy, base_slack=ZERO, reading_slack=ZERO)),
    Planted("no slack for base", 5, slack, policy=lambda policy: replace(policy, base_slack=ZERO)),
    Planted(
        "no slack for tracking",
        5,
        both(any_lag, slack),
        policy=lambda policy: replace(policy, reading_slack=ZERO),
    ),
    _ruled("idle whatever base holds", 203, idle, silence, silence_whatever_base_holds),
    Planted("remembered before it is persisted", 160, kept, copies=RememberedTooSoon),
    _patched(
        "copies are told by their id alone",
        3,
        kept,
        "tidemark.pipeline.ingest.count.keys_of",
        lambda _streams, ids, _event_us, _data: keys_of(ids, ids, [0] * len(ids)),
    ),
    Planted(
        "tracking counts what is too old",
        0,
        aged,
        ages=True,
        patches=(("tidemark.pipeline.ingest.count.judge", judge_whatever_the_age),),
    ),
    _dropped("a dropped number is taken", 989, both(two_trackers, dropped), _was_taken=taken_if_it_is_archived),
    _logged("an entry is taken back", 1082, packed, _was_taken=taken_if_the_one_before_has_moved),
    _dropped("who was away for long takes the log for damaged", 9, dropped, _is_before_all=lambda *_: False),
    _read("a verdict depends on the batch", 20, in_json, (f"{DECODER}._Room.inflated", inflated_within_a_batch)),
    _read("nobody waits for a revision", 34, in_avro, (f"{TAKE}.Asking", asking_without_patience)),
    _read("tracking loses patience with base", 34, in_avro, (f"{TICKS}.Tracking", tracking_with_the_patience_of_base)),
    _read("who waits goes on waiting", 34, in_avro, (f"{TAKE}.seconds_of", wait_as_long_as_before)),
    _of_rounds("readers acknowledge what they have written", 3, take=take_acknowledging_base),
    _of_rounds(
        "readers acknowledge files, which count as durable", 3, take=take_acknowledging_base, files_are_durable=True
    ),
    _of_rounds("readers are told no watermark", 4, share=told_no_watermark),
    _of_rounds("readers remember no copy", 56, copies=NeverRemembered),
    _of_rounds("readers look into no late payload", 5, patches=((f"{READERS}.Tracking", tracking_without_laggards),)),
    _of_rounds("readers have no bounds", 3, patches=((f"{READERS}.Share.budget", unbounded),)),
    _of_rounds("a driver keeps no leases", 438, settling=HoldsNothing),
    _of_rounds("a driver acknowledges tracking before its entry", 3, settling=settling_acknowledging_tracking_first),
    _of_rounds("a driver acknowledges base before its commit", 3, settling=settling_acknowledging_base_first),
    _of_rounds("a round loses the histogram of a tracker", 5, settling=WithoutOneHistogram),
    _of_rounds("a round loses the files of a lander", 3, settling=WithoutOneFile),
    _of_rounds("copies of what was not settled are remembered", 19, copies=RememberedUnsettled),
    Planted("copies are kept", 0, micro_batch=CopiesKept),
    Planted("copies of one publisher are kept", 0, micro_batch=CopiesByMessage),
    Planted("of copies the one that landed first", 0, micro_batch=AnyCopy),
    Planted("windows above the watermark", 0, micro_batch=Ahead),
    Planted("a run reads the version that it knew", 0, micro_batch=NotLoadedAgain),
    Planted("no fence", 32, two_runners, micro_batch=Unfenced),
    _patched("missed messages are not counted", 9, anyway, "tests.simulation.oracle.missed", lambda *_: {}),
)

ADDED_TWICE = Planted("a round is added twice", where=in_rounds, rounds=True, settling=settling_adding_twice)
"""No fault, although it looks like one: it breaks no invariant."""

PLANTED = {planted.name: planted for planted in _ALL}
