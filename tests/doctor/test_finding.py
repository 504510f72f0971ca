"""Checks side by side: each has its say, whatever the others do."""

from collections.abc import Iterator
from threading import Event

import pytest

from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.doctor.finding import Check, CheckFinding, Level, Said, Setup, examine
from tidemark.pipeline.errors import LakeUnreachable
from tidemark.pipeline.settings import Settings

SETUP = Setup(Settings(), SystemClock())


def check_that_is_well(_: Setup) -> Iterator[Said]:
    yield Level.OK, "well"


def check_that_raises(_: Setup) -> Iterator[Said]:
    yield Level.WARNING, "before"
    raise LakeUnreachable("no lake")


def check_that_has_a_defect(_: Setup) -> Iterator[Said]:
    yield Level.OK, "begun"
    raise ZeroDivisionError("by nought")


@pytest.fixture
def never() -> Iterator[Event]:
    event = Event()
    yield event
    event.set()


def test_a_check_that_fails_keeps_what_it_found_and_hides_no_other() -> None:
    checks = [Check("a", check_that_raises), Check("b", check_that_has_a_defect), Check("c", check_that_is_well)]
    assert examine(SETUP, checks) == [
        CheckFinding("a", Level.WARNING, "before"),
        CheckFinding("a", Level.BROKEN, "no lake"),
        CheckFinding("b", Level.OK, "begun"),
        CheckFinding("b", Level.WARNING, "could not be checked (ZeroDivisionError: by nought)"),
        CheckFinding("c", Level.OK, "well"),
    ]


def test_a_check_that_hangs_is_overdue_and_the_others_are_told(never: Event) -> None:
    def check_that_hangs(_: Setup) -> Iterator[Said]:
        yield Level.OK, "begun"
        never.wait()

    checks = [Check("slow", check_that_hangs, seconds=0.2, overdue=Level.WARNING), Check("c", check_that_is_well)]
    first, *others = examine(SETUP, checks)
    assert (first.level, first.said) == (Level.WARNING, "that hangs: no answer within 0.2 s")
    assert [one.said for one in others] == ["begun", "well"]


def test_with_little_time_only_what_is_known_counts(never: Event) -> None:
    def check_that_hangs(_: Setup) -> Iterator[Said]:
        never.wait()
        yield Level.BROKEN, "too late"

    checks = [Check("slow", check_that_hangs), Check("c", check_that_is_well)]
    assert [one.said for one in examine(SETUP, checks, within=0.2)] == ["well"]
