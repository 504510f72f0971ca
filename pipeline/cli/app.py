"""The `tidemark` command: its list of commands, the settings option, and how errors are printed."""

import ast
import errno
import gc
import inspect
import logging
import os
import pkgutil
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from typer._click import ClickException, Command, Context
from typer.core import TyperGroup

from tidemark.pipeline.errors import TidemarkError
from tidemark.pipeline.phrases import printable
from tidemark.pipeline.version import own_version

PANELS = {
    "Start": ("init", "provision", "doctor", "try", "publish", "up"),
    "Look": ("status", "explain", "watermark", "diffs", "streams", "quarantine"),
    "Repair": ("repair", "release", "housekeep"),
    "Tune": ("tune", "replay"),
    "Advanced": ("attach", "pubsub", "demo"),
}
"""The commands by panel, in the order of `--help`. A panel's name, in lower case, is also a folder's name. The folder
has a module for each command. The module and its function have the command's name, except for `try`, which is a Python
keyword."""

TRY = {"try": "trying:try_"}
PLACES = {
    name: f"{panel.lower()}.{TRY.get(name, f'{name}:{name}')}" for panel, names in PANELS.items() for name in names
}
"""Maps the name of each command to `folder.module:function`. Only the module of the command that runs is imported."""


class Commands(TyperGroup):
    """The group of all commands. A command's module is imported only when the command is called."""

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        name, known, rest = super().resolve_command(ctx, args)
        return name, known and loaded(known.name or ""), rest

    def list_commands(self, ctx: Context) -> list[str]:
        for name, place in PLACES.items():
            self.commands[name].help = help_of(place)
        return super().list_commands(ctx)


app = typer.Typer(
    cls=Commands,
    help="An event-time watermark for Google Pub/Sub that explains itself.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for _name, _place in PLACES.items():
    _panel = _place.partition(".")[0].capitalize()
    app.command(_name, rich_help_panel=_panel)(lambda: None)  # stands for the command until it is called


def loaded(name: str) -> Command:
    """Import the module of a command, and return the command."""
    gc.disable()  # imports create no garbage, and collections would take a fifth of the command's start
    try:
        without_pandas()
        function = pkgutil.resolve_name(f"tidemark.pipeline.cli.{PLACES[name]}")
    finally:
        gc.enable()
    alone = typer.Typer(add_completion=False)
    alone.command(name, help=unbroken(inspect.getdoc(function)))(function)
    return typer.main.get_command(alone)


def without_pandas() -> None:
    """Prevent Arrow from importing pandas when it converts its first value, because the import is slow. Calls of
    `to_pandas` still import pandas."""
    import pyarrow as pa  # not for --help

    places, sys.path[:] = sys.path[:], []
    pa.scalar(True)
    sys.path[:] = places


def unbroken(text: str | None) -> str:
    """Join the lines of each paragraph, because the terminal wraps them."""
    return "\n\n".join(paragraph.replace("\n", " ") for paragraph in (text or "").split("\n\n"))


def help_of(place: str) -> str:
    module, _, function = place.partition(":")
    source = Path(__file__).parent.joinpath(*module.split(".")).with_suffix(".py")
    body = ast.parse(source.read_text(encoding="utf-8")).body
    named = (node for node in body if isinstance(node, ast.FunctionDef) and node.name == function)
    return unbroken(ast.get_docstring(next(named)))


def print_version(asked: bool) -> None:
    if asked:
        print(own_version())
        raise typer.Exit


@app.callback()
def settings_file(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="The settings file; default: $TIDEMARK_CONFIG or tidemark.toml."),
    ] = None,
    version: Annotated[  # noqa: ARG001 its callback does it
        bool, typer.Option("--version", help="Print the version.", callback=print_version, is_eager=True)
    ] = False,
) -> None:
    """Make the file of `--config` the settings file of the command that runs."""
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise TidemarkError("the current folder was deleted: change to an existing one") from error
    if config is not None:
        os.environ["TIDEMARK_CONFIG"] = str(config.resolve())
    adapt_environment()


LOOPBACK = "localhost,127.0.0.1,::1"


def adapt_environment() -> None:
    """Set environment variables for this process and its children. gRPC then reaches servers on this machine directly,
    not through the proxy in `$http_proxy`. A JVM then opens paths with non-ASCII letters even in the locale C."""
    if (direct := os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or "") != "*":
        os.environ["no_proxy"] = f"{direct},{LOOPBACK}".lstrip(",")
    if os.environ.get("LC_ALL") in ("C", "POSIX"):
        os.environ["LC_ALL"] = "C.UTF-8"


PRIVATE = 0o077
"""The umask of the command and of all processes that it starts. Only the current user can read their files."""


def main() -> None:
    """Run the command with the shell's arguments, and exit with the command's exit code."""
    os.umask(PRIVATE)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the caller closed it
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 for as long as the process lives
        getattr(sys, name).reconfigure(errors="backslashreplace")  # for characters outside the terminal's encoding
    when_stopped(signal.default_int_handler)
    code = run_command(sys.argv[1:])
    # The interpreter's own shutdown aborts if one of Arrow's read-ahead threads still calls into Python.
    logging.shutdown()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:  # the reader closed the pipe
        pass
    except OSError as error:
        os.write(2, f"tidemark: the output could not be written: {error}\n".encode())
        code = 1
    os._exit(code)


def when_stopped(handler: Callable[[int, FrameType | None], Any]) -> None:
    """Call `handler` when this process is asked to end: by Ctrl-C, by SIGTERM, or because its terminal closes. Handles
    SIGINT even in a background command, which shells start with SIGINT ignored. Under `nohup`, SIGHUP stays ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def run_command(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code. A TidemarkError is printed as one message, and gives exit code 1."""
    try:
        return int(app(list(arguments), standalone_mode=False) or 0)
    except SystemExit as leaving:  # how typer and Rich end if the reader closes the pipe
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except ClickException as error:  # a refused option or argument, which the message quotes
        from typer.rich_utils import rich_format_error  # loads Rich

        error.message = printable(error.message)
        rich_format_error(error)
        return error.exit_code
    except typer.Abort:  # the input ended before an answer
        print("Aborted.", file=sys.stderr)
    except TidemarkError as error:
        print("tidemark:", printable(str(error), keep="\n"), file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            print("tidemark: a disk is full:", printable(str(error)), file=sys.stderr)
        else:
            print(printable(traceback.format_exc(), keep="\n"), end="", file=sys.stderr)
    return 1
