"""Runs, backfills, repair and retention beside each other: what must hold does, and a planted fault is found."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from tests.upkeep.play import KEPT_HOURS, Wrong, play
from tidemark.pipeline.compute import micro_batch
from tidemark.pipeline.lake.tables.window_index import KeptWindows
from tidemark.pipeline.windows import Window

ATTEMPT = micro_batch._attempt


def _unchecked(batch: micro_batch.WindowBatch, windows: Sequence[Window], **more: bool) -> micro_batch.ReplacedWindows:
    return ATTEMPT(replace(batch, refuse_expired=lambda _: None), windows, **more)


FAULTS: dict[str, AbstractContextManager[Any]] = {
    "retention drops rows and raises no boundary": patch.object(KeptWindows, "raise_to", lambda *_: None),
    "an attempt does not look at the boundary again": patch.object(micro_batch, "_attempt", _unchecked),
}


SEEDS, SHORT = range(8), 6
"""Those that are played, and one of few activities."""


def _played(seeds: Iterable[int]) -> Iterator[int]:
    for seed in seeds:
        played = play(seed)
        assert played.died
        assert played.started > len(played.landed)
        yield seed


def test_whatever_the_order_a_computed_window_is_right_or_gone_by_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """In fewer hours, which still find that retention raises no boundary."""
    monkeypatch.setattr("tests.upkeep.play.HOURS", KEPT_HOURS + 5)
    assert len(list(_played([SHORT]))) == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_seeds() -> None:
    assert len(list(_played(set(SEEDS) - {SHORT}))) == len(SEEDS) - 1


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    with FAULTS[fault], pytest.raises(Wrong):
        list(_played(SEEDS))  # more than half of the seeds find it
