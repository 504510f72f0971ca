"""The files that come with tidemark and that a user may change: the settings, and Dagster's two."""

import os
import re
from pathlib import Path

from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.settings import Settings

SETTINGS, WORKSPACE, INSTANCE = "tidemark.toml", "workspace.yaml", "dagster.yaml"
PACKAGE = Path(__file__).parent.parent.parent
"""Where they are installed: not resolved, because in a checkout the package's folders are links."""

PORT = re.compile(
    r'^((?:emulator_host = "127\.0\.0\.1:|remote = "sc://localhost:|web_port = |code_port = |port = ))(\d+)', re.M
)
"""The ports of the settings file: the emulator's, Spark's, the UI's, the code server's and the metrics'."""

EVERY = "Every setting of tidemark."
"""Begins the settings file."""

SPARK_CONNECT = "Spark Connect"
"""The name of the service."""

CODE_PORT = "TIDEMARK_DAGSTER__CODE_PORT"
"""The variable with the code server's port, which our workspace.yaml names and nobody else's does."""


def brought(name: str) -> str:
    """One of the files as tidemark brings it."""
    return (PACKAGE / name).read_text(encoding="utf-8")


def with_other_ports(settings: str, by: int) -> str:
    """The settings file with every port that it names increased, for a second pipeline on one machine."""
    return PORT.sub(lambda found: f"{found[1]}{int(found[2]) + by}", settings)


def with_message(settings: str, message: str) -> str:
    """The settings file with other lines for `[message]` and `[message.fields]`."""
    settings = settings.replace(
        EVERY, "The settings of tidemark; [message] has those of one shape of messages alone.", 1
    )
    before, _, rest = settings.partition("[message]\n")
    _, following, after = rest.partition("\n[windows]\n")
    return f"{before}{message.strip()}\n{following}{after}"


def put_down(name: str, folder: Path, content: str) -> Path:
    """Write a file into a folder, which is made. Raises InvalidSettings where there is one already."""
    path = folder / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(content)
    except FileExistsError as error:
        raise InvalidSettings(f"there is a file {path} already; nothing was written over it") from error
    except OSError as error:
        raise InvalidSettings(f"{path} cannot be written: {error}") from error
    return path


def log_file(folder: Path, name: str) -> Path:
    """The file of a service's output, for a supervisor with this folder."""
    return folder / "logs" / f"{name.lower().replace(' ', '-')}.log"


def spark_log(settings: Settings) -> Path:
    """The log of the Spark Connect server that `tidemark up` starts."""
    return log_file(Path(settings.dagster.storage).parent, SPARK_CONNECT)


def given_home() -> Path | None:
    """The current folder, if it has `workspace.yaml` and `dagster.yaml` and the workspace is tidemark's."""
    here = Path.cwd()
    workspace = here / WORKSPACE
    is_ours = workspace.is_file() and CODE_PORT in workspace.read_text(encoding="utf-8")
    return here if is_ours and (here / INSTANCE).is_file() else None


def dagster_home(settings: Settings) -> Path:
    """The folder for DAGSTER_HOME: the given one, else one beside Dagster's storage, where the files that tidemark
    brings are written."""
    if (given := given_home()) is not None:
        return given
    home = Path(settings.dagster.storage).parent / "dagster_home"
    home.mkdir(parents=True, exist_ok=True)
    for name in (WORKSPACE, INSTANCE):
        unfinished = home / f".{name}.{os.getpid()}"
        unfinished.write_bytes((PACKAGE / name).read_bytes())
        unfinished.replace(home / name)
    return home
