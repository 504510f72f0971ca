"""The `tidemark` command: the list of its commands, the settings option, and how errors reach a person."""

import ast
import gc
import logging
import os
import pkgutil
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from typer._click import ClickException, Command, Context, HelpFormatter
from typer.core import TyperGroup

from tidemark.pipeline.errors import TidemarkError
from tidemark.pipeline.printable import printable

COMMANDS = (
    *("running:init", "running:provision", "running:connector", "running:pack", "doctor:doctor", "trying:try_"),
    *(
        "synthetic:publish",
        "running:up",
        "attach:attach",
        "synthetic:demo",
        "lake:status",
        "watermark:watermark",
        "explain:explain",
    ),
    *("lake:diffs", "streams:streams", "corrections:corrections", "tables:tables", "quarantine:quarantine"),
    *("quarantine:requeue", "running:recompute", "repair:repair", "upkeep:housekeep", "upkeep:forget"),
    *("release:release", "replay:replay", "tune:tune", "pubsub:pubsub"),
)
"""The commands in the order of `--help`: module and function. Only the module of the command that runs is imported."""


class Commands(TyperGroup):
    """The commands. A refused option or argument is repeated in the error without control characters."""

    def make_context(self, *given: Any, **more: Any) -> Context:
        with _repeated_harmlessly():
            return super().make_context(*given, **more)

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        name, known, rest = super().resolve_command(ctx, args)
        return name, known and loaded(known.name or ""), rest

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        for name, place in PLACES.items():
            self.commands[name].help = help_of(place)
        super().format_help(ctx, formatter)

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
PLACES = {place.partition(":")[2].rstrip("_"): place for place in COMMANDS}
for command in PLACES:
    app.command(command)(lambda: None)  # stands for the command until it is called


def loaded(name: str) -> Command:
    """Import a command."""
    gc.disable()  # modules are no garbage, and looking for it takes a fifth of the command's start
    try:
        without_pandas()
        function = pkgutil.resolve_name(f"tidemark.pipeline.cli.{PLACES[name]}")
    finally:
        gc.enable()
    alone = typer.Typer(add_completion=False)
    alone.command(name)(function)
    return typer.main.get_command(alone)


def without_pandas() -> None:
    """Have Arrow find no pandas. It looks for it at the first value that it converts, which takes longer than `status`
    itself. It looks again when somebody asks for `to_pandas`."""
    import pyarrow as pa  # not for --help

    places, sys.path[:] = sys.path[:], []
    pa.scalar(True)
    sys.path[:] = places


def help_of(place: str) -> str | None:
    """The docstring of a command, from its source: nothing is imported."""
    module, _, function = place.partition(":")
    body = ast.parse(Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8")).body
    return next(ast.get_docstring(node) for node in body if isinstance(node, ast.FunctionDef) and node.name == function)


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
