"""`tidemark housekeep`: run the hourly job's chores for the lake by hand."""

import typer

from tidemark.pipeline.cli.options import AsJson, DryRun
from tidemark.pipeline.cli.output import console, print_json, safe
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.settings import load_settings
from tidemark.pipeline.upkeep.housekeeping import Housekeeper


def housekeep(dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Apply retention, compact tables, and remove orphaned files.

    Safe while the pipeline runs. The hourly job also prunes Dagster's own events. Exit code 1: a chore failed.
    """
    out, chores = console(quiet=as_json), []
    for chore in Housekeeper(load_settings(), SystemClock(), dry_run=dry_run).chores():
        chores.append(chore)
        colour = "red" if chore.failed else "dim" if chore.is_idle else "green"
        about = f"[{colour}]{chore.name:<17}{chore.about:<16}[/]"
        out.print(about + safe(chore.failed or chore.says), soft_wrap=True)
    if as_json:
        print_json({"dry_run": dry_run, "chores": chores})
    if any(chore.failed for chore in chores):
        raise typer.Exit(code=1)
