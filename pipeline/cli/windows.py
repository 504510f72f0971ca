"""The command that has windows computed again, by the Dagster that runs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.run import config_file
from pipeline.errors import ServiceFailed
from pipeline.services.dagster_names import CODE_LOCATION, COMPUTE_WINDOWS, RANGE_END, RANGE_START
from pipeline.services.processes import listens
from pipeline.services.stack import dagster_environment, project_root
from pipeline.settings import Settings, load_settings
from pipeline.windows import Window

LAUNCH_WITHIN_SECONDS = 120


def recompute(
    first: Annotated[str, typer.Option("--from", help="The first window's key, such as 2026-11-21T05-20Z.")],
    last: Annotated[str, typer.Option("--to", help="The last window's key; the same for one window.")],
) -> None:
    """Have a range of windows computed again, in one run of the Dagster that `tidemark up` started.

    The same input gives the same rows. A window above the watermark makes the run fail, and writes nothing.
    """
    settings = load_settings()
    windows = [_window(settings, "--from", first), _window(settings, "--to", last)]
    if windows[1] < windows[0]:
        raise typer.BadParameter(f"--to {last} is before --from {first}")
    print(f"requested {windows[0].key} to {windows[1].key}; {launch(settings, windows[0], windows[1])}")


def launch(settings: Settings, first: Window, last: Window) -> str:
    """Have the Dagster that runs compute a range of windows in one run; where the run can be watched.

    Raises ServiceFailed where no code server answers, or Dagster does not take the run.
    """
    if not listens("127.0.0.1", settings.dagster.code_port):
        raise ServiceFailed(
            f"no Dagster code server answers at port {settings.dagster.code_port}; start it with `tidemark up`, and "
            "try again"
        )
    root = project_root()
    tags = json.dumps({RANGE_START: first.key, RANGE_END: last.key})
    command = [str(Path(sys.executable).parent / "dagster"), "job", "launch", "-w", str(root / "workspace.yaml")]
    launched = subprocess.run(
        [*command, "-l", CODE_LOCATION, "-j", COMPUTE_WINDOWS, "--tags", tags],
        cwd=root,
        env={**os.environ, **dagster_environment(settings, config_file(), root)},
        capture_output=True,
        text=True,
        timeout=LAUNCH_WITHIN_SECONDS,
        check=False,
    )
    if launched.returncode:
        raise ServiceFailed(f"Dagster did not take the run: {launched.stderr.strip()[-2000:]}")
    return f"the run is at http://127.0.0.1:{settings.dagster.web_port}/runs"


def _window(settings: Settings, option: str, key: str) -> Window:
    try:
        return settings.windowing.named(key)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}; `tidemark status` names the first and the last") from error


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(recompute)
