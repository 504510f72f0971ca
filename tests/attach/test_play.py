"""What attach promises, in random plays, and the faults that the play finds."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from tests.attach.play import Parts, World
from tidemark.pipeline.ingest.counting import RememberedCopies
from tidemark.pipeline.pubsub.backlog import ROUNDING, SAMPLE_PERIOD, Backlog, reading_of
from tidemark.pipeline.replay.replay import RULES_WITHOUT_ANCHOR
from tidemark.pipeline.watermark.readings import Reading

SEEDS = 10
"""Each of the faults below shows in two of them or more."""


class EverythingIsRead:
    """Takes tracking for read up to now, whatever still waits there."""

    def __init__(self, world: World) -> None:
        self._clock = world.clock

    def read(self) -> Reading:
        return Reading(self._clock.now(), self._clock.now(), names_a_message=False)


def read_up_to_now(world: World, backlog: Backlog) -> Backlog:
    return EverythingIsRead(world)


def at_face_value(end: datetime, age_seconds: int) -> Reading:
    """A point as if it were sampled at its end, to the second."""
    oldest = end - timedelta(seconds=age_seconds)
    return replace(reading_of(end + SAMPLE_PERIOD, age_seconds), oldest_unacked=oldest + ROUNDING)


def test_nothing_below_the_watermark_is_still_to_be_acknowledged() -> None:
    for seed in range(SEEDS):
        try:
            World(seed).play()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize(
    ("first", "parts"),
    [
        (0, Parts(copies=lambda: RememberedCopies(timedelta(minutes=10)))),
        (60, Parts(tracking=read_up_to_now)),
        (0, Parts(point=at_face_value)),
        (0, Parts(rules=RULES_WITHOUT_ANCHOR)),
    ],
    ids=["copies are remembered", "T is taken for now", "points are taken at face value", "no anchor"],
)
def test_a_fault_is_found(first: int, parts: Parts) -> None:
    with pytest.raises(AssertionError, match="messages below"):
        search(first, parts)


def search(first: int, parts: Parts) -> None:
    """Play some seeds with a fault."""
    for seed in range(first, first + SEEDS):
        World(seed, parts).play()
