"""`tidemark doctor`: what would keep the pipeline from running, and what to do about it."""

from collections.abc import Sequence
from itertools import groupby
from typing import Annotated

import typer

from tidemark.pipeline.cli.here import config_file
from tidemark.pipeline.cli.options import AsJson, only_with, option
from tidemark.pipeline.cli.output import console, counted, print_json, safe
from tidemark.pipeline.clock import Clock, SystemClock
from tidemark.pipeline.doctor.checks import CHECKS, DAGSTER, LAKE, PUBSUB, SETTINGS, SPARK, diagnose
from tidemark.pipeline.doctor.finding import CheckFinding, Level, Setup, examine
from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.identity import RUNNING, Component
from tidemark.pipeline.settings import Settings, load_settings

MARKS = {Level.OK: "[green]ok[/]     ", Level.WARNING: "[yellow]warning[/]", Level.BROKEN: "[bold red]broken[/] "}

UP_WAITS_SECONDS = 4.0
"""Longest time that `tidemark up` waits for its checks."""


def doctor(
    parts: Annotated[list[Component] | None, option("Permissions for this part; repeat for more.", "--part")] = None,
    measures: Annotated[bool, option("Instead, measure what Pub/Sub does.", "--measure")] = False,
    writes: Annotated[bool, option("With --measure: write the settings that follow.", "--write")] = False,
    as_json: AsJson = False,
) -> None:
    """Check everything that the pipeline needs, and say what to do.

    Exit code 1: something would break. Permissions are checked for all parts that run, unless parts are named.
    --measure takes a minute, and six with Cloud Monitoring; it uses a topic of its own. Only --write changes anything.
    """
    if not measures:
        only_with("--measure", write=writes)
    else:
        from tidemark.pipeline.cli.start.measured import measured  # not for the checks: `tidemark up` uses them

        measured(load_settings(), SystemClock(), writes=writes, as_json=as_json)
        return
    try:
        settings = load_settings()
    except InvalidSettings as error:
        findings = [CheckFinding(SETTINGS, Level.BROKEN, str(error))]
    else:
        valid = CheckFinding(SETTINGS, Level.OK, f"{config_file()} has no mistakes")
        findings = [valid, *diagnose(Setup(settings, SystemClock(), parts or running(settings)))]
    broken, warnings = (sum(one.level is level for one in findings) for level in (Level.BROKEN, Level.WARNING))
    if as_json:
        listed = [{"subject": one.subject, "level": one.level.value, "said": one.said} for one in findings]
        print_json({"findings": listed, "broken": broken, "warnings": warnings})
    else:
        _print(findings)
        verdict = f"[bold red]{broken} broken[/]" if broken else "[green]nothing would break[/]"
        console().print(f"{verdict}, {counted(warnings, 'warning')}")
    if broken:
        raise typer.Exit(1)


def running(settings: Settings) -> Sequence[Component]:
    """Return the parts that run with these settings."""
    return (Component.ATTACH,) if settings.pubsub.attach else RUNNING


def at_once(settings: Settings, clock: Clock) -> list[CheckFinding]:
    """Run the quick checks for `tidemark up`: those of this machine (disk, Java, token) and, if nothing is broken
    there, the rest, for a few seconds. Return the findings that are not OK."""
    setup, here = Setup(settings, clock), {DAGSTER, *([LAKE] if settings.lake.folder else [])}
    here |= set() if settings.pubsub.attach else {SPARK}
    quick = [check for check in CHECKS if check.is_quick]
    found = examine(setup, [check for check in quick if check.subject in here])
    if not any(finding.level is Level.BROKEN for finding in found):
        # Pub/Sub is checked on the service only: with an emulator, `tidemark up` provisions by itself.
        asked = [check for check in CHECKS if check.subject == PUBSUB and not settings.emulated]
        rest = [*asked, *(check for check in quick if check.subject not in here)]
        found += diagnose(setup, rest, UP_WAITS_SECONDS)
    return [finding for finding in found if finding.level is not Level.OK]


def _print(findings: Sequence[CheckFinding]) -> None:
    terminal = console()
    for subject, group in groupby(findings, key=lambda finding: finding.subject):
        terminal.print(f"[bold]{safe(subject)}[/]")
        for finding in group:
            terminal.print(f"  {MARKS[finding.level]} {safe(finding.said)}", soft_wrap=True)
