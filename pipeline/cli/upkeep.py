"""The lake's upkeep by hand: `tidemark housekeep`, and `tidemark forget` for a lost entry of the log."""

from dataclasses import asdict
from typing import Annotated

import typer

from tidemark.pipeline.cli.options import AsJson, lake_of, option
from tidemark.pipeline.cli.output import console, print_json
from tidemark.pipeline.clock import SystemClock, iso
from tidemark.pipeline.printable import printable
from tidemark.pipeline.settings import load_settings
from tidemark.pipeline.upkeep.housekeeping import Housekeeper
from tidemark.pipeline.upkeep.repair import forget_entry


def housekeep(
    dry_run: Annotated[bool, option("Change nothing, and say what would be done.", "--dry-run")] = False,
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


def forget(
    number: Annotated[int, typer.Argument(min=0, help="The damaged or missing entry; the error names its number.")],
) -> None:
    """Put a note in the place of a lost entry of the tracking log. Stop the sensors first.

    The watermark then holds until base has landed everything that the entry may have known. It does not go back below
    the last watermark that was noted outside of the log, nor below the end of a computed window.
    """
    settings = load_settings()
    floor = forget_entry(lake_of(settings), settings.windowing, number)
    print(f"entry {number} is noted as lost; the watermark holds until base has caught up")
    print("nothing shows how far it had come" if floor is None else f"it does not go back below {iso(floor)}")
