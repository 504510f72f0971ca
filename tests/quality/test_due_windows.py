"""Which windows of a table of one's own are due, beside a plain count of it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.pipeline.lake.tables.windowed import Made, MadeWindows, digest_of
from tidemark.pipeline.quality.due_windows import ComputedWindows, Followed
from tidemark.pipeline.windows import Windowing

START = datetime(2026, 11, 21, tzinfo=UTC)
BASE = Windowing(timedelta(minutes=5), START, lookback=timedelta(minutes=10))
FIRST = BASE.number_of(START)
NOTHING = MadeWindows({}, lambda _: {})


def inputs_of_window(own: Windowing, number: int, lookback: timedelta, runs: Mapping[str, str]) -> dict[str, str]:
    """The runs of the windows of the base that overlap a window's input."""
    window = own.numbered(number)
    return {
        key: run
        for key, run in runs.items()
        if BASE.named(key).end > window.start - lookback and BASE.named(key).start < window.end
    }


@settings(max_examples=60, deadline=None)
@given(
    ratio=st.sampled_from([1, 2, 12]),
    lookback=st.sampled_from([0, 1, 5, 7, 70]),
    before=st.dictionaries(st.integers(0, 40), st.sampled_from("ab"), max_size=30),
    after=st.dictionaries(st.integers(0, 40), st.sampled_from("abc"), max_size=30),
    waiting=st.sets(st.integers(0, 40), max_size=3),
    closed=st.integers(0, 45),
    by_run=st.lists(st.sampled_from("xyz"), min_size=50, max_size=50),
    taken=st.sets(st.integers(0, 49), max_size=3),
)
def test_a_window_is_due_just_if_its_input_was_computed_again_and_nothing_of_it_waits(
    ratio: int,
    lookback: int,
    before: dict[int, str],
    after: dict[int, str],
    waiting: set[int],
    closed: int,
    by_run: list[str],
    taken: set[int],
) -> None:
    back = timedelta(minutes=lookback)
    own = Windowing(ratio * BASE.length, START, back)
    runs_before, runs = (
        {BASE.numbered(FIRST + number).key: run for number, run in found.items()} for found in (before, after)
    )
    inputs = ComputedWindows.of(runs_before, BASE).inputs(own)
    made = made_by({own.numbered(number).key: digest for number, digest in inputs.items()}, by_run, taken)
    spans = [range(FIRST + number, FIRST + number + 1) for number in sorted(waiting)]
    computed_now = ComputedWindows.of(runs, BASE)
    followed = Followed(computed_now, range(FIRST, FIRST + closed), spans)

    waits = {BASE.numbered(span.start).key: "" for span in spans}
    expected = []
    for number in range(own.number_of(START), own.number_of(START) + 60):
        now = inputs_of_window(own, number, back, runs)
        is_whole = own.numbered(number).end <= START + closed * BASE.length
        if now and is_whole and not inputs_of_window(own, number, back, waits):
            is_computed = own.numbered(number).key in made
            if not is_computed or now != inputs_of_window(own, number, back, runs_before):
                expected.append(number)
    assert followed.due(own, made) == expected


def made_by(inputs: Mapping[str, str], by_run: Sequence[str], taken: set[int]) -> MadeWindows:
    """Windows made by several runs, of which "taken" has taken some from the run that computed them first."""
    noted: dict[str, dict[str, str]] = {}
    for (key, digest), run in zip(inputs.items(), by_run, strict=False):
        noted.setdefault(run, {})[key] = digest
    noted["taken"] = {key: digest for at, (key, digest) in enumerate(inputs.items()) if at in taken}
    holders = {key: "taken" if key in noted["taken"] else run for key, run in zip(inputs, by_run, strict=False)}
    return MadeWindows({key: Made("v", digest_of(noted[run]), run) for key, run in holders.items()}, noted.__getitem__)


def looking_back(minutes: int) -> Windowing:
    return replace(BASE, lookback=timedelta(minutes=minutes))


def test_where_heartbeats_expire_a_longer_lookback_has_its_first_window_later() -> None:
    runs = {BASE.numbered(FIRST + number).key: "run" for number in range(6)}
    for is_expiring, first in ((False, FIRST), (True, FIRST + 3)):
        computed = ComputedWindows.of(runs, BASE)
        followed = Followed(computed, range(FIRST, FIRST + 6), (), is_expiring)
        assert followed.due(looking_back(22), NOTHING)[0] == first
        assert followed.due(BASE, NOTHING)[0] == FIRST


def test_every_window_is_due_after_a_change_of_the_lookback_however_many_windows_it_reaches() -> None:
    computed = ComputedWindows.of({BASE.numbered(FIRST + number).key: "a" for number in range(9)}, BASE)
    digests = [computed.digests([BASE.numbered(FIRST + 5)], looking_back(each)) for each in (0, 1, 4, 5)]
    assert len({digest for each in digests for digest in each.values()}) == len(digests)
