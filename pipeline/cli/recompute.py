"""`tidemark recompute`: windows computed again, by the Dagster that is running."""

import json
from typing import Annotated

import typer

from pipeline.cli.options import config_file, window_named
from pipeline.errors import ServiceFailed
from pipeline.services.dagster_names import CODE_LOCATION, COMPUTE_WINDOWS, RANGE_END, RANGE_START
from pipeline.services.processes import listens
from pipeline.services.stack import dagster_environment, project_root, run_dagster
from pipeline.settings import Settings, load_settings
from pipeline.windows import Window


def recompute(
    first: Annotated[
        str, typer.Option("--from", help="The first window: its key (2026-11-21T05-20Z), or any time within it.")
    ],
    last: Annotated[str, typer.Option("--to", help="The last window, in the same way; may be the first.")],
) -> None:
    """Compute a range of windows again, in one run of the Dagster that `tidemark up` started.

    The same input gives the same rows. If a window is above the watermark, the run fails and writes nothing.
    """
    settings = load_settings()
    begin, end = window_named(settings, first), window_named(settings, last)
    if end < begin:
        raise typer.BadParameter(f"--to {last} is before --from {first}")
    where = launch(settings, begin, end)
    print(f"requested {begin.key} to {end.key}; {where}")


def launch(settings: Settings, first: Window, last: Window) -> str:
    """Have the running Dagster compute a range of windows in one run, and say where the run can be watched.

    Raises ServiceFailed if no code server answers, or Dagster does not take the run.
    """
    if not listens("127.0.0.1", settings.dagster.code_port):
        raise ServiceFailed(
            f"no Dagster code server answers at port {settings.dagster.code_port}; start it with `tidemark up`, "
            "and try again"
        )
    root = project_root()
    tags = json.dumps({RANGE_START: first.key, RANGE_END: last.key})
    job = ["-w", str(root / "workspace.yaml"), "-l", CODE_LOCATION, "-j", COMPUTE_WINDOWS, "--tags", tags]
    environment = dagster_environment(settings, config_file(), root)
    run_dagster(["job", "launch", *job], environment, root, otherwise="Dagster did not take the run")
    return f"the run is at http://127.0.0.1:{settings.dagster.web_port}/runs"
