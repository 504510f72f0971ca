"""`tidemark doctor`: check everything that the pipeline needs, and say what to do; or measure how Pub/Sub behaves."""

from collections.abc import Sequence
from itertools import groupby
from typing import Annotated

import typer

from tidemark.local.services.stack import emulator_is_absent
from tidemark.pipeline.cli.options import AsJson, apart_from, only_with, option
from tidemark.pipeline.cli.output import columns, console, print_json, printed, progress_bar, safe, warn
from tidemark.pipeline.clock import Clock, SystemClock, iso, rough
from tidemark.pipeline.doctor.checks import SETTINGS, diagnose, running
from tidemark.pipeline.doctor.finding import CheckFinding, Level, Setup
from tidemark.pipeline.doctor.identity import Component
from tidemark.pipeline.doctor.measure.experiments import measure
from tidemark.pipeline.doctor.measure.facts import Facts, Row, Setting, Verdict, Written, follows, rows, write_settings
from tidemark.pipeline.errors import InvalidSettings, PubSubUnreachable
from tidemark.pipeline.figures import counted
from tidemark.pipeline.settings import Settings, config_file, load_settings

LEVEL_MARKS = {Level.OK: "[green]ok[/]     ", Level.WARNING: "[yellow]warning[/]", Level.BROKEN: "[bold red]broken[/] "}


def doctor(
    parts: Annotated[
        list[Component] | None, option("Check this part's permissions; repeat for more.", "--part")
    ] = None,
    measures: Annotated[bool, option("Only measure how Pub/Sub behaves.", "--measure")] = False,
    writes: Annotated[bool, option("With --measure: write the derived settings to the file.", "--write")] = False,
    as_json: AsJson = False,
) -> None:
    """Check everything that the pipeline needs, and say what to do.

    Exit code 1: something would break. Permissions are checked for all parts that run, unless --part names parts.
    --measure takes a minute, or six with Cloud Monitoring, and uses a temporary topic. Only --write changes settings.
    """
    if measures:
        apart_from("--measure", part=parts)
        measured(load_settings(), SystemClock(), writes=writes, as_json=as_json)
        return
    only_with("--measure", write=writes)
    try:
        settings = load_settings()
    except InvalidSettings as error:
        findings = [CheckFinding(SETTINGS, Level.BROKEN, str(error))]
    else:
        valid = CheckFinding(SETTINGS, Level.OK, f"{config_file()} has no mistakes")
        findings = [valid, *diagnose(Setup(settings, SystemClock(), parts or running(settings)))]
    broken, warnings = (sum(one.level is level for one in findings) for level in (Level.BROKEN, Level.WARNING))
    terminal = printed({"findings": findings, "broken": broken, "warnings": warnings}, as_json=as_json)
    for subject, group in groupby(findings, key=lambda finding: finding.subject):
        terminal.print(f"[bold]{safe(subject)}[/]")
        for finding in group:
            terminal.print(f"  {LEVEL_MARKS[finding.level]} {safe(finding.said)}", soft_wrap=True)
    verdict = f"[bold red]{broken} broken[/]" if broken else "[green]nothing would break[/]"
    terminal.print(f"{verdict}, {counted(warnings, 'warning')}")
    if broken:
        raise typer.Exit(1)


VERDICT_STYLES = {Verdict.AS_EXPECTED: "green", Verdict.DIFFERS: "bold red", Verdict.NOT_MEASURED: "yellow"}


def measured(settings: Settings, clock: Clock, *, writes: bool, as_json: bool) -> None:
    """Measure Pub/Sub, and print the results and the settings derived from them. With `writes`, also write these
    settings to the settings file. Exit with code 1 if a result differs from what the watermark relies on."""
    if emulator_is_absent(settings):
        raise PubSubUnreachable(
            f"nothing answers at {settings.pubsub.emulator_host}, so there is nothing to measure: start an emulator "
            "there with `tidemark pubsub`, or leave pubsub.emulator_host empty for Google's service"
        )
    with progress_bar(quiet=as_json) as progress:
        task = progress.add_task("measuring", total=None)
        facts = measure(settings.pubsub, clock, tell=lambda step: progress.update(task, description=step))
    table, found = rows(facts, settings), follows(facts, settings)
    if not as_json:
        show_measured(facts, table, found)
    written = write_settings(config_file(), found) if writes and not settings.emulated else []
    if as_json:
        print_json({"facts": facts, "rows": table, "settings": found, "written": written, "dollars": facts.dollars})
    elif writes:
        show_written(settings, written)
    if any(one.verdict is Verdict.DIFFERS for one in table):
        raise typer.Exit(1)


def show_measured(facts: Facts, table_rows: Sequence[Row], found: Sequence[Setting]) -> None:
    """Print the measured facts, the durations of calls, and the settings derived from the facts."""
    terminal = console()
    terminal.print(f"measured at {safe(facts.server)}, {iso(facts.at)}, in {rough(facts.took)}")
    table = columns("fact", "expected", "found", "", folds=True)
    for row in table_rows:
        verdict = f"[{VERDICT_STYLES[row.verdict]}]{row.verdict}[/]"
        table.add_row(safe(row.fact), safe(row.expected), safe(row.found), verdict)
    terminal.print(table)
    terminal.print()
    called = ((name, one.count, one.p50, one.largest) for name, one in facts.calls.items())
    terminal.print(columns("call", right=("count", "p50", "largest"), rows=called))
    charged = counted(facts.charged_bytes, "byte")
    terminal.print(f"Pub/Sub charges {charged} for publishing and pulling: {facts.dollars:.6f} dollars at list price")
    warn(terminal, *(f"{row.fact}: {row.then}" for row in table_rows if row.then))
    for name in facts.swept:
        terminal.print(f"removed a leftover of a killed measurement: {safe(name)}", soft_wrap=True)
    aside = " (on a busy topic, delays may be larger than measured here):" if found else ": none"
    terminal.print(f"\nderived settings{aside}")
    for section, settings in groupby(found, key=lambda one: one.section):
        terminal.print(safe(f"[{section}]"))
        for one in settings:
            terminal.print(safe(f'{one.key} = "{one.value}"  # {one.why}'), soft_wrap=True)


def show_written(settings: Settings, written: Sequence[Written]) -> None:
    """Print which settings were written to the settings file, with their previous values."""
    terminal, file = console(), safe(config_file())
    if settings.emulated:
        warn(
            terminal,
            f"nothing was written: {settings.pubsub.emulator_host} is an emulator, so the results do not apply to "
            "Google's service. Measure with an empty pubsub.emulator_host",
        )
    elif not written:
        terminal.print(f"nothing was written to {file}", soft_wrap=True)
    for one in written:
        name, value = f"{one.setting.section}.{one.setting.key}", one.setting.value
        before = "not set" if one.before is None else safe(f'"{one.before}"')
        terminal.print(f'wrote {name} = "{value}" to {file}; it was {before}', soft_wrap=True)
        if one.overridden_by:
            warn(terminal, f"the variable {one.overridden_by} overrides this setting")
    if written:
        terminal.print("running processes keep the old settings until they are restarted")
