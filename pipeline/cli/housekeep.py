"""`tidemark housekeep`: the lake's part of the hourly job, by hand."""

from dataclasses import asdict
from typing import Annotated

import typer

from pipeline.cli.options import AsJson
from pipeline.cli.output import console, print_json, printable
from pipeline.clock import SystemClock
from pipeline.settings import load_settings
from pipeline.upkeep.housekeeping import Housekeeper


def housekeep(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing, and say what would be done.")] = False,
    as_json: AsJson = False,
) -> None:
    """Do the lake's housekeeping: retention, log archives, compaction, earlier versions, orphans.

    Safe while everything runs. The hourly job also prunes Dagster's own events. Exit code 1: something was not done.
    """
    out, chores = console(), []
    for chore in Housekeeper(load_settings(), SystemClock(), dry_run=dry_run).chores():
        chores.append(chore)
        if not as_json:
            colour = "red" if chore.failed else "dim" if chore.is_idle else "green"
            out.print(f"[{colour}]{chore.name:<17}{chore.about:<16}[/]", end="")
            out.print(printable(chore.failed or chore.says), markup=False, soft_wrap=True)
    if as_json:
        print_json({"dry_run": dry_run, "chores": [asdict(chore) for chore in chores]})
    if any(chore.failed for chore in chores):
        raise typer.Exit(code=1)
