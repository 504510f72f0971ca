"""`tidemark housekeep`: what the hourly job does in the lake, by hand, or only what it would do."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from pipeline.cli.options import AsJson
from pipeline.cli.output import console as wide_console
from pipeline.clock import SystemClock
from pipeline.settings import load_settings
from pipeline.upkeep.housekeeping import Housekeeper


def housekeep(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing, and say what would be done.")] = False,
    as_json: AsJson = False,
) -> None:
    """Do the lake's housekeeping: retention, log archives, compaction, earlier versions, orphans.

    Safe while everything runs. Dagster's own events are the hourly job's. Exit code 1: something could not be done.
    """
    console, chores = wide_console(), []
    for chore in Housekeeper(load_settings(), SystemClock(), dry_run=dry_run).chores():
        chores.append(chore)
        if not as_json:
            colour = "red" if chore.failed else "dim" if chore.is_idle else "green"
            console.print(f"[{colour}]{chore.name:<17}{chore.about:<16}[/]", end="")
            console.print(chore.failed or chore.says, highlight=False, markup=False, soft_wrap=True)
    if as_json:
        print(json.dumps({"dry_run": dry_run, "chores": [asdict(chore) for chore in chores]}))
    if any(chore.failed for chore in chores):
        raise typer.Exit(code=1)


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(housekeep)
