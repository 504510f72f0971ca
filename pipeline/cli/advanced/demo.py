"""`tidemark demo`: play an outage and live traffic on a real pipeline, and compare its rows with what was published."""

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from tidemark.local.demo.shapes.shape import ShapeName
from tidemark.local.demo.synthetic_beats import MOST_STREAMS, SyntheticSource
from tidemark.pipeline.cli.options import duration_option, option, positive
from tidemark.pipeline.cli.output import console
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.errors import ToolMissing
from tidemark.pipeline.settings_sections import LakeSettings, rule_of


def demo(
    folder: Annotated[
        Path, option("The folder for all files: new, empty, or from an earlier demonstration, which is deleted.")
    ] = Path("build/demo"),
    full: Annotated[bool, option("Play 10,000 streams, 20 minutes of outage and 3 minutes live.", "--full")] = False,
    streams: Annotated[
        int | None, option("The number of streams, each with a heartbeat every 30s.", min=1, max=MOST_STREAMS)
    ] = None,
    backlog: Annotated[
        timedelta | None, duration_option("The outage: how long to publish before the pipeline starts.")
    ] = None,
    live: Annotated[timedelta | None, duration_option("Minimum live time after the backlog has landed.")] = None,
    idle_timeout: Annotated[
        timedelta | None, duration_option("The silence after which the last windows close.", parser=positive)
    ] = None,
    shape: Annotated[ShapeName, option("The format of messages.")] = ShapeName.JSON,
    lake: Annotated[str, option("The lake: in the folder, or at an empty gs://bucket/prefix.")] = "file:lake",
    lake_endpoint: Annotated[str | None, option("The address of a Cloud Storage server other than Google's.")] = None,
) -> None:
    """Play an outage end to end, and compare every row with what was published."""
    asked = {"streams": streams, "backlog": backlog, "live": live, "idle_timeout": idle_timeout}
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    try:
        from tidemark.local.demo import script  # imports DuckDB, which only the demonstration needs
    except ModuleNotFoundError as error:
        raise ToolMissing(
            f"the demonstration needs {error.name}, which is not installed: run "
            "`pip install 'tidemark-pubsub[demo]'`, and try again"
        ) from error
    from tidemark.local.demo.shapes.all_shapes import SHAPES  # imports fastavro

    source = SyntheticSource(jitter=timedelta(seconds=8), shape=SHAPES[shape])
    where = script.IN_THE_FOLDER
    if lake != where.uri or lake_endpoint:
        if not re.match("gs://[^/]", lake):
            raise typer.BadParameter(f"--lake {lake}: write gs://bucket/prefix; for a lake on disk, use --folder")
        try:
            where = LakeSettings(uri=lake, endpoint=lake_endpoint)
        except ValidationError as error:
            raise typer.BadParameter(f"--lake {lake}: {rule_of(error.errors()[0])}") from error
    scale = replace(script.FULL if full else script.QUICK, **given)
    summary = script.run_demo(folder.resolve(), source, console(), SystemClock(), scale=scale, lake=where)
    if not summary.is_right:
        raise typer.Exit(code=1)
