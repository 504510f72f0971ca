"""The `tidemark` command: the list of its commands, the settings option, and how errors reach a person."""

import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from typer._click import ClickException, Context
from typer.core import TyperGroup

from tidemark.pipeline.cli.attach import attach
from tidemark.pipeline.cli.corrections import corrections
from tidemark.pipeline.cli.doctor import doctor
from tidemark.pipeline.cli.explain import explain
from tidemark.pipeline.cli.lake import diffs, status
from tidemark.pipeline.cli.options import landing_only
from tidemark.pipeline.cli.pubsub import pubsub
from tidemark.pipeline.cli.quarantine import quarantine, requeue
from tidemark.pipeline.cli.release import release
from tidemark.pipeline.cli.repair import repair
from tidemark.pipeline.cli.replay import replay
from tidemark.pipeline.cli.running import connector, init, pack, provision, recompute, up
from tidemark.pipeline.cli.streams import streams
from tidemark.pipeline.cli.synthetic import demo, publish
from tidemark.pipeline.cli.tables import tables
from tidemark.pipeline.cli.trying import try_
from tidemark.pipeline.cli.tune import tune
from tidemark.pipeline.cli.upkeep import forget, housekeep
from tidemark.pipeline.cli.watermark import watermark
from tidemark.pipeline.errors import TidemarkError
from tidemark.pipeline.printable import printable


class Commands(TyperGroup):
    """The commands. A refused option or argument is repeated in the error without control characters."""

    def make_context(self, *given: Any, **more: Any) -> Context:
        with _repeated_harmlessly():
            return super().make_context(*given, **more)

    def invoke(self, ctx: Context) -> Any:
        with _repeated_harmlessly():
            return super().invoke(ctx)


@contextmanager
def _repeated_harmlessly() -> Iterator[None]:
    try:
        yield
    except ClickException as error:
        error.message = printable(error.message)
        raise


app = typer.Typer(
    cls=Commands,
    help="An open, explained event-time watermark for Google Pub/Sub.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
COMMANDS: tuple[Callable[..., None], ...] = (
    *(init, provision, connector, pack, doctor, try_, publish, up, attach, demo, status, watermark, explain),
    *(landing_only(each) for each in (diffs, streams, corrections, tables, quarantine, requeue, recompute, repair)),
    *(housekeep, forget, landing_only(release), replay, tune, pubsub),
)
for command in COMMANDS:
    app.command("try" if command is try_ else None)(command)


@app.callback()
def settings_file(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="The settings file. Without it: $TIDEMARK_CONFIG, else tidemark.toml."),
    ] = None,
) -> None:
    """Every command reads its settings from one file and the TIDEMARK_ variables."""
    if config is not None:
        os.environ["TIDEMARK_CONFIG"] = str(config.resolve())


PRIVATE = 0o077
"""The umask of the command and of all that it starts: only this user reads what they write."""


def main() -> None:
    """Run the command as a program: with what the shell passed, ended by its exit code."""
    os.umask(PRIVATE)
    # Both signals stop what was started. A shell starts background commands with SIGINT ignored: take it back.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    code = run_command(sys.argv[1:])
    # The interpreter's own shutdown aborts if one of Arrow's read-ahead threads still calls into Python.
    logging.shutdown()
    with suppress(BrokenPipeError):  # the reader closed the pipe
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def run_command(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code. An error that tidemark raises on purpose is printed as one message,
    with exit code 1."""
    try:
        app(list(arguments))
        code = 0
    except SystemExit as leaving:  # how typer ends: after help, a refused option, or the command
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except TidemarkError as error:
        print("tidemark:", printable(str(error), keep="\n"), file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        code = 130
    except Exception:
        print(printable(traceback.format_exc(), keep="\n"), end="", file=sys.stderr)
        code = 1
    return code
