"""Findings, and the checks that make them, run side by side: none waits for another, and none hides another."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from threading import Thread

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.errors import TidemarkError
from tidemark.pipeline.identity import RUNNING, Component
from tidemark.pipeline.settings import Settings

RESOURCE_MANAGER = "https://cloudresourcemanager.googleapis.com"


class Level(StrEnum):
    """The weight of a finding."""

    OK = "ok"
    WARNING = "warning"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """A sentence about a subject. If it is not ok, it says what to do."""

    subject: str
    level: Level
    said: str


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings to check, and the parts that are to run with these credentials.

    `resource_manager` is where a project's permissions are asked for; on an emulator a project has none, and it is not
    asked unless another address is given.
    """

    settings: Settings
    clock: Clock
    components: Sequence[Component] = RUNNING
    resource_manager: str = RESOURCE_MANAGER


Said = tuple[Level, str]
Look = Callable[[Setup], Iterable[Said]]


def ok(sentence: str) -> Said:
    """Make a finding that all is well."""
    return Level.OK, sentence


def warning(sentence: str) -> Said:
    """Make a finding that something may go wrong, or is not known."""
    return Level.WARNING, sentence


def broken(sentence: str) -> Said:
    """Make a finding that the pipeline would not run."""
    return Level.BROKEN, sentence


@dataclass(frozen=True, slots=True)
class Check:
    """One check of a subject, and its time limit in seconds. `tidemark up` runs the quick ones as well."""

    subject: str
    look: Look
    is_quick: bool = False
    seconds: float = 30.0
    overdue: Level = Level.BROKEN
    """The level of a finding that it takes longer."""

    reported_elsewhere: tuple[type[TidemarkError], ...] = ()
    """Errors that another check reports, so that this one says nothing."""


def examine(setup: Setup, checks: Sequence[Check], within: float | None = None) -> list[CheckFinding]:
    """Run the checks and return all findings in their order. A check beyond its time limit is a finding; with `within`,
    the shorter limit applies to all, and an overdue check is left out.

    An error that tidemark raises on purpose is a broken finding with its message; any other error is a warning. An
    overdue thread is left behind, and ends with the process.
    """
    began = setup.clock.monotonic()
    found: list[list[Said]] = [[] for _ in checks]
    threads = [
        Thread(target=_collect, args=(check, setup, said), name=f"check of {check.subject}", daemon=True)
        for check, said in zip(checks, found, strict=True)
    ]
    for thread in threads:
        thread.start()
    findings = []
    for check, thread, said in zip(checks, threads, found, strict=True):
        seconds = check.seconds if within is None else min(within, check.seconds)
        thread.join(max(0.0, began + seconds - setup.clock.monotonic()))
        if within is None and thread.is_alive():
            name = str(getattr(check.look, "__name__", "a check")).removeprefix("check_").replace("_", " ")
            findings.append(CheckFinding(check.subject, check.overdue, f"{name}: no answer within {seconds:g} s"))
        findings += [CheckFinding(check.subject, level, sentence) for level, sentence in tuple(said)]
    return findings


def _collect(check: Check, setup: Setup, into: list[Said]) -> None:
    try:
        into.extend(check.look(setup))
    except check.reported_elsewhere:
        return
    except TidemarkError as error:
        into.append((Level.BROKEN, str(error)))
    except Exception as error:
        into.append((Level.WARNING, f"could not be checked ({type(error).__name__}: {error})"))
