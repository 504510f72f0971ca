"""`tidemark forget`: a note in the place of a lost entry of the tracking log."""

from typing import Annotated

import typer

from pipeline.cli.options import lake_of
from pipeline.clock import iso
from pipeline.settings import load_settings
from pipeline.upkeep.log_check import forget_entry


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
