"""The command's frame: the settings option, errors for people, and which module has which command."""

import logging
import os
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli import housekeep, local, look, release, repair, replay, run, streams, tune, windows
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
housekeep.register(app)
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
    # Either way what was started is stopped; a shell's background command would not hear the first one otherwise.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        app()
        code = 0
    except SystemExit as leaving:  # how the command line ends: help, a refused option, or after the command
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except TidemarkError as error:
        print(f"tidemark: {error}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        code = 130
    except Exception:
        traceback.print_exc()
        code = 1
    # Not by the interpreter's own end, which aborts if a thread of Arrow's that still reads ahead calls into Python.
    logging.shutdown()
    with suppress(BrokenPipeError):  # whoever read has read enough
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
