"""The command's frame: the settings option, errors for people, and which module has which command."""

import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli import local, look, release, repair, replay, run, streams, tune, windows
from pipeline.errors import TidemarkError

app = typer.Typer(
    help="An open, explained event-time watermark for Google Pub/Sub.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
run.register(app)
look.register(app)
streams.register(app)
windows.register(app)
repair.register(app)
release.register(app)
replay.register(app)
tune.register(app)
local.register(app)


@app.callback()
def settings_file(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="The settings file; else $TIDEMARK_CONFIG, else tidemark.toml."),
    ] = None,
) -> None:
    """Every command reads its settings from one file and the TIDEMARK_ variables."""
    if config is not None:
        os.environ["TIDEMARK_CONFIG"] = str(config.resolve())


def main() -> None:
    """Run the command; what tidemark reports on purpose is one message and exit code 1, without a trace."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end as on Ctrl-C: what was started is stopped
    try:
        app()
    except TidemarkError as error:
        print(f"tidemark: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
