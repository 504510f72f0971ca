"""Findings, and the checks that produce them. Checks run concurrently and independently of each other."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from threading import Thread

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.doctor.identity import RUNNING, Component
from tidemark.pipeline.errors import TidemarkError
from tidemark.pipeline.settings import Settings

RESOURCE_MANAGER = "https://cloudresourcemanager.googleapis.com"


class Level(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """One sentence about a subject, such as Spark. If the user can fix a problem, the sentence says how."""

    subject: str
    level: Level
    said: str


@dataclass(frozen=True, slots=True)
class Setup:
    """The scope of a check: the settings, and the parts of tidemark that will run with the credentials of this process.

    `resource_manager` is the address of the API that returns a project's permissions. An emulator has no such API, so
    with an emulator the API is called only if this address was changed, as in tests.
    """

    settings: Settings
    clock: Clock
    components: Sequence[Component] = RUNNING
    resource_manager: str = RESOURCE_MANAGER


Statement = tuple[Level, str]
Look = Callable[[Setup], Iterable[Statement]]


def ok(sentence: str) -> Statement:
    """Give a sentence the level OK: nothing has to be done."""
    return Level.OK, sentence


def warning(sentence: str) -> Statement:
    """Give a sentence the level WARNING: something is unknown, or may go wrong."""
    return Level.WARNING, sentence


def broken(sentence: str) -> Statement:
    """Give a sentence the level BROKEN: the pipeline would not run correctly."""
    return Level.BROKEN, sentence


@dataclass(frozen=True, slots=True)
class Check:
    """A check of one subject, and its time limit in seconds. `tidemark up` also runs the quick checks."""

    subject: str
    look: Look
    is_quick: bool = False
    seconds: float = 30.0
    overdue: Level = Level.BROKEN
    """The level of the finding if the check exceeds its time limit."""

    reported_elsewhere: tuple[type[TidemarkError], ...] = ()
    """Errors that another check reports. If one of them occurs, this check reports nothing more."""


def examine(setup: Setup, checks: Sequence[Check], within: float | None = None) -> list[CheckFinding]:
    """Run the checks concurrently, and return all findings in the order of the checks.

    - Without `within`, a check that exceeds its own time limit gets a finding that says so.
    - With `within`, each check has at most that many seconds, and no finding says that a check exceeded its limit.
    - A TidemarkError becomes a BROKEN finding, unless another check reports it. Any other error becomes a WARNING.

    The thread of an overdue check is abandoned, and ends with the process.
    """
    began = setup.clock.monotonic()
    found: list[list[Statement]] = [[] for _ in checks]
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


def _collect(check: Check, setup: Setup, into: list[Statement]) -> None:
    try:
        into.extend(check.look(setup))
    except check.reported_elsewhere:
        return
    except TidemarkError as error:
        into.append((Level.BROKEN, str(error)))
    except Exception as error:
        into.append((Level.WARNING, f"could not be checked ({type(error).__name__}: {error})"))
