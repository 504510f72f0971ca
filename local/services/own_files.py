"""The installed files that a user may copy and change: the settings, and Dagster's `workspace.yaml` and
`dagster.yaml`."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import tomlkit
from tomlkit.items import Item

from tidemark.pipeline.errors import InvalidSettings, ServiceFailed
from tidemark.pipeline.machine import replacing
from tidemark.pipeline.settings import Settings

SETTINGS, WORKSPACE, INSTANCE = "tidemark.toml", "workspace.yaml", "dagster.yaml"
PACKAGE = Path(__file__).parent.parent.parent
"""The folder of the installed files. Symbolic links are not resolved, because in a checkout they lead out of this
folder."""

PORT = re.compile(
    r'^((?:(?:emulator_host|listen) = "127\.0\.0\.1:|remote = "sc://localhost:|web_port = |code_port = ))(\d+)', re.M
)
"""Matches the ports in a settings file."""

FIRST_SENTENCE = "Every setting of tidemark."
"""The first sentence of the installed settings file. `with_message` replaces it."""

SECOND_SENTENCE = " Two differ from the defaults, and say so: pubsub.emulator_host and [message.fields]."
"""The sentence after FIRST_SENTENCE. `with_values` removes it, because new values make it untrue."""

COMMENT_AT_LEAST = 2
"""Minimum number of spaces between a value and the comment after it."""

MOST_PORTS = 100
"""Maximum number of ports in a project of several pipelines."""

SPARK_CONNECT = "Spark Connect"

CODE_PORT = "TIDEMARK_DAGSTER__CODE_PORT"
"""The environment variable with the code server's port. A `workspace.yaml` is tidemark's if it uses this variable."""


def installed_text(name: str) -> str:
    """Return the content of an installed file."""
    return (PACKAGE / name).read_text(encoding="utf-8")


def with_ports(files: Mapping[str, str], new_port: Callable[[int], int]) -> dict[str, str]:
    """Replace each port in the files with the result of `new_port` for it. A port that occurs several times gets the
    same new port everywhere."""
    another = cache(new_port)
    return {
        name: PORT.sub(lambda found: f"{found[1]}{another(int(found[2]))}", content) for name, content in files.items()
    }


def with_values(settings: str, values: Mapping[str, str]) -> str:
    """Set the values of keys such as `lake.uri` in a settings file. A missing key is added. Everything else stays, and
    comments stay in their column if there is room. Raises ValueError and TOMLKitError if the text is not TOML."""
    document = tomlkit.parse(settings)
    for name, value in values.items():
        section, _, key = name.partition(".")
        table = document.setdefault(section, tomlkit.table())
        before = table.get(key)
        table[key] = value
        item = table[key]
        if isinstance(before, Item) and item.trivia.comment:
            longer = len(item.as_string()) - len(before.as_string())
            item.trivia.comment_ws = " " * max(COMMENT_AT_LEAST, len(item.trivia.comment_ws) - longer)
    written = tomlkit.dumps(document)
    return written.replace(SECOND_SENTENCE, "", 1) if values else written


def with_message(settings: str, message: str) -> str:
    """Replace the sections `[message]` and `[message.fields]` in a settings file."""
    settings = settings.replace(
        FIRST_SENTENCE, "The settings of tidemark. [message] has only the settings for one shape of messages.", 1
    )
    before, _, rest = settings.partition("[message]\n")
    _, following, after = rest.partition("\n[windows]\n")
    return f"{before}{message.strip()}\n{following}{after}"


def write_new_files(files: Mapping[str, str], folder: Path) -> list[Path]:
    """Write new files, creating their folders, and return their paths. If one exists already or cannot be written,
    delete the files written so far, and raise InvalidSettings."""
    path, written = folder, list[Path]()
    try:
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                written.append(path)
                file.write(content)
    except OSError as error:
        for one in written:
            one.unlink(missing_ok=True)
        said = f"{path} cannot be written: {error}"
        if isinstance(error, FileExistsError) and path.exists():  # else a file is in the place of the folder
            said = f"the file {path} already exists; it was not overwritten. Move it away, or name another folder"
        raise InvalidSettings(said) from error
    return written


def log_file(folder: Path, name: str) -> Path:
    """Return the log file of a service, in the folder of a `tidemark up`."""
    return folder / "logs" / f"{name.lower().replace(' ', '-')}.log"


def spark_log(settings: Settings) -> Path:
    """Return the log file of the Spark Connect server that `tidemark up` starts."""
    return log_file(settings.dagster.state_folder, SPARK_CONNECT)


def given_home() -> Path | None:
    """Return the current folder if it has `dagster.yaml` and tidemark's `workspace.yaml`, otherwise None."""
    here = Path.cwd()
    workspace = here / WORKSPACE
    is_ours = workspace.is_file() and CODE_PORT.encode() in workspace.read_bytes()
    return here if is_ours and (here / INSTANCE).is_file() else None


def dagster_home(settings: Settings) -> Path:
    """Return the folder for DAGSTER_HOME: the current folder if it has `dagster.yaml` and tidemark's `workspace.yaml`.
    Otherwise copy the installed files to a folder next to Dagster's storage, and return that folder. Raises
    ServiceFailed if they cannot be written."""
    if (given := given_home()) is not None:
        return given
    home = settings.dagster.state_folder / "dagster_home"
    with usable(settings.dagster.state_folder):
        for name in (WORKSPACE, INSTANCE):
            file, content = home / name, (PACKAGE / name).read_bytes()
            if not file.exists() or file.read_bytes() != content:
                with replacing(file) as made:
                    made.write_bytes(content)
    return home


@contextmanager
def usable(folder: Path) -> Iterator[None]:
    """Within this block, turn an OSError in the folder of `tidemark up` into ServiceFailed, which says what to do."""
    try:
        yield
    except OSError as error:
        raise ServiceFailed(
            f"{error.filename or folder}: {error.strerror}. `tidemark up` records its processes in {folder}, beside "
            "dagster.storage. Free some space, make the folder writable for this user, or set another dagster.storage"
        ) from error
