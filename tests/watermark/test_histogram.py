"""The sparse histogram: a commutative monoid with exact minima, against plain dictionaries."""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.watermark.builders import (
    START_US,
    Times,
    at,
    bounded,
    buckets,
    histogram_of,
    message_lists,
    near_times,
    published,
    rejected_lists,
)
from tidemark.pipeline.clock import to_us
from tidemark.pipeline.watermark.histogram import BUCKET_US, NO_EVENT, SLOT_US, Histogram

Cells = dict[tuple[int, int], tuple[int, int | None]]
"""(publish bucket, event bucket) -> (count, earliest event time), the independent counterpart of a histogram."""

histograms = st.builds(histogram_of, message_lists, rejected_lists)


def brute(messages: Sequence[Times], rejected: Sequence[int]) -> Cells:
    cells: Cells = {}
    for publish, event in messages:
        key = (publish // BUCKET_US, event // BUCKET_US)
        count, least = cells.get(key, (0, event))
        cells[key] = (count + 1, min(least, event))
    for publish in rejected:
        key = (publish // BUCKET_US, NO_EVENT)
        cells[key] = (cells.get(key, (0, None))[0] + 1, None)
    return cells


def cells_of(histogram: Histogram) -> Cells:
    rows = zip(
        histogram.publish_bucket.tolist(),
        histogram.event_bucket.tolist(),
        histogram.count.tolist(),
        histogram.min_event_us.tolist(),
        strict=True,
    )
    return {(p, e): (n, None if e == NO_EVENT else least) for p, e, n, least in rows}


# ---------------------------------------------------------------------------------------------- the monoid


@bounded
@given(st.lists(st.tuples(message_lists, rejected_lists), max_size=5), st.randoms(use_true_random=False))
def test_merging_is_counting_in_any_order(parts: list[tuple[list[Times], list[int]]], shuffler: random.Random) -> None:
    everything = [m for messages, _ in parts for m in messages], [r for _, rejected in parts for r in rejected]
    expected = brute(*everything)
    shuffler.shuffle(parts)
    merged = sum((histogram_of(messages, rejected) for messages, rejected in parts), Histogram.empty())
    assert cells_of(merged) == expected
    assert list(zip(merged.publish_bucket.tolist(), merged.event_bucket.tolist(), strict=True)) == sorted(expected)
    assert merged.messages == sum(count for count, _ in expected.values())
    assert merged == histogram_of(*everything)


@bounded
@given(st.lists(st.tuples(near_times, near_times), max_size=30), rejected_lists)
def test_a_message_counts_with_the_lesser_of_event_and_publish_time(messages: list[Times], rejected: list[int]) -> None:
    counted = [(publish, min(publish, event)) for publish, event in messages]
    assert histogram_of(messages, rejected) == histogram_of(counted, rejected)


# ------------------------------------------------------------------------------------------- within a bucket


@bounded
@given(message_lists, rejected_lists, buckets, st.integers(0, 999_999), buckets)
def test_a_range_covers_cells(messages: list[Times], rejected: list[int], bucket: int, within: int, high: int) -> None:
    histogram, start = histogram_of(messages, rejected), bucket * BUCKET_US + within
    cells: dict[tuple[int, int], list[Times]] = {}
    for publish, event in messages:
        cells.setdefault((publish // BUCKET_US, event // BUCKET_US), []).append((publish, event))
    held = [
        times
        for (publish_bucket, _), cell in cells.items()
        if publish_bucket <= high and max(cell)[0] >= start
        for times in cell
    ]
    positions = histogram.since(start, high)
    cell = histogram.minimum_at(positions)
    assert histogram.messages_at(positions) == len(held)
    assert (None if cell is None else to_us(cell.min_event_time)) == min((event for _, event in held), default=None)


@bounded
@given(message_lists, rejected_lists, buckets, st.integers(0, 999_999))
def test_the_newest_before_is_exact(messages: list[Times], rejected: list[int], bucket: int, within: int) -> None:
    limit = bucket * BUCKET_US + within
    before = [publish for publish, _ in messages if publish < limit]
    newest = histogram_of(messages, rejected).newest_valid_before(limit)
    if newest is None or not before:
        assert (newest, before) == (None, [])
        return
    assert newest <= max(before)
    # In the limit's own slot only a cell's first and last are known.
    known = [publish for publish in before if publish // SLOT_US != limit // SLOT_US]
    assert not known or max(known) - newest < SLOT_US
    assert newest == max(before) or max(before) // BUCKET_US == limit // BUCKET_US


def test_messages_between_the_first_and_the_last_of_a_cell_move_the_anchor() -> None:
    cut_through = [(50.1, 49.3), (50.4, 49.4), (50.9, 49.5)]
    histogram = published([*cut_through, (50.3, 40.0)])
    assert histogram.newest_valid_before(to_us(at(50.5))) == to_us(at(50.4))
    assert histogram.newest_valid_before(to_us(at(50.4))) == to_us(at(50.3))
    unknown = replace(histogram, published_in=np.zeros_like(histogram.published_in))
    assert unknown.newest_valid_before(to_us(at(50.5))) == to_us(at(50.3))


# ------------------------------------------------------------------------------------------------- pruning


@bounded
@given(message_lists, rejected_lists, buckets)
def test_newest_and_oldest_times_survive_pruning(messages: list[Times], rejected: list[int], from_bucket: int) -> None:
    pruned = histogram_of(messages, rejected).pruned(from_bucket)
    assert pruned.newest_publish_us == max((publish for publish, _ in messages), default=None)
    assert pruned.oldest_event_us == min((event for _, event in messages), default=None)
    later = pruned + histogram_of([(START_US, START_US)])
    assert later.newest_publish_us == max([START_US, *(publish for publish, _ in messages)])
    assert later.oldest_event_us == min([START_US, *(event for _, event in messages)])


@bounded
@given(histograms, histograms, buckets)
def test_pruning_a_sum_is_the_sum_of_the_pruned(a: Histogram, b: Histogram, from_bucket: int) -> None:
    assert (a + b).pruned(from_bucket) == a.pruned(from_bucket) + b.pruned(from_bucket)
    assert a.pruned(from_bucket).pruned(from_bucket) == a.pruned(from_bucket)


@bounded
@given(message_lists, rejected_lists, message_lists, rejected_lists, buckets, buckets)
def test_new_below_counts_the_messages_of_cells_that_were_not_there(
    known: list[Times],
    known_rejected: list[int],
    arrived: list[Times],
    arrived_rejected: list[int],
    before: int,
    not_before: int,
) -> None:
    here, delta = brute(known, known_rejected), brute(arrived, arrived_rejected)
    expected = sum(count for cell, (count, _) in delta.items() if cell not in here and not_before <= cell[0] < before)
    histogram = histogram_of(known, known_rejected)
    assert histogram.new_below(histogram_of(arrived, arrived_rejected), before, not_before) == expected
