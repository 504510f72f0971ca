"""Packs tidemark and its dependencies into an archive, and ships it to executors whose Python lacks them.

The archive contains packages, but no Python. An executor's Python of the same minor version imports them. Spark unpacks
the archive on each executor. The archive's program `bin/python` starts the executor's Python with the packages.

A Spark Connect server has two working folders:
- A session's Python workers start in the session's folder, where Spark unpacks the archives of the session.
- The Python workers of a streaming query start in the executor's folder, where Spark unpacks the archives of the
  server.

If a server was started with the archive, each executor has already unpacked it in the executor's folder. A session then
gets only a small archive, whose program starts `bin/python` of the unpacked one.
"""

import gzip
import io
import os
import platform
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.resources import files
from pathlib import Path, PurePosixPath

import orjson
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pyspark.sql import SparkSession

from tidemark.pipeline.errors import InvalidSettings, ToolMissing
from tidemark.pipeline.machine import replacing
from tidemark.pipeline.settings_sections import is_address
from tidemark.pipeline.spark.connector import explaining_missing_connector
from tidemark.pipeline.spark.executors import CONTRACT, PYTHON
from tidemark.pipeline.version import DISTRIBUTION, own_version

ENDINGS = (".tar.gz", ".tgz")
"""Allowed endings of the archive's file name. Spark recognizes an archive's format by its ending."""

LEFT_OUT = frozenset({"dagster", "dagster-pyspark", "dagster-webserver", "pyspark", "py4j"})
"""Distributions that are not packed, because executors have their own PySpark and do not run Dagster. Their
dependencies are packed only if another packed distribution needs them."""

NOT_PACKED = frozenset({"direct_url.json", "RECORD", "INSTALLER", "REQUESTED", "uv_cache.json"})
"""Files of an installed package that are not packed. They reveal the package's location or its source URL, which may
contain credentials."""

OF_OURS = frozenset({".py", ".typed", ".html", ".css", ".js", ".svg", ".sh"})
"""Suffixes of tidemark's own files that are packed. A checkout also has settings files, which are not packed."""

COMPRESSION = 3
"""gzip's level, from 1 to 9. A higher level takes several times as long, and makes the archive only 10 % smaller."""

MANIFEST, PACKAGES, PROGRAM = "manifest.json", "site-packages", "bin/python"

LAUNCHER = files("tidemark.pipeline.spark").joinpath("launcher.sh").read_text()
"""The script at PROGRAM in the archive. `{python}` stands for the Python version, `{packages}` for PACKAGES."""

FOLDER = "tidemark_environment"
"""The folder to which Spark unpacks the archive, relative to the folder in which Python workers start."""

ARCHIVE = "spark.tidemark.executor_environment"
"""The session setting that names the archive."""

CARRIED = "spark.tidemark.executor_environment.carried"
"""The session setting that records which archive was sent to the session. Its value is a result of `identity`."""

MUST_AGREE = ("python", "machine")

ARCHIVES = "spark.archives"
"""Spark's setting for the archives that each executor unpacks when it starts."""

LINK = """\
#!/bin/sh
# The archive that this executor unpacked when it started.
exec "$(dirname "$0")/../../../{folder}/{program}" "$@"
"""
"""The only file of the link archive: a program that starts `bin/python` of the full archive. If a server was started
with the full archive, its executors have already unpacked it, so its sessions get only the link archive."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of an archive: the Python version of its packages (such as `3.11`), the machine type, the version of
    tidemark, and the CONTRACT of tidemark's tasks."""

    python: str
    machine: str
    tidemark: str
    contract: int


def own_manifest() -> Manifest:
    """Return the manifest for an archive that this process packs."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    machine = f"{platform.system().lower()}-{platform.machine()}"
    return Manifest(python, machine, own_version(), CONTRACT)


def pack(file: Path) -> list[str]:
    """Write the archive to `file`, and return the names of the packed distributions. An existing file is replaced.

    Raises InvalidSettings if the file's name does not end in one of ENDINGS, or if the file cannot be written. Raises
    ToolMissing if a package is missing or cannot be packed. After an error, an existing file is unchanged.
    """
    if not file.name.endswith(ENDINGS):
        raise InvalidSettings(
            f"{file}: the archive's name must end in .tar.gz or .tgz, because Spark recognizes the format by it"
        )
    manifest, packed = own_manifest(), distributions()
    launcher = LAUNCHER.replace("{python}", manifest.python).replace("{packages}", PACKAGES)
    try:
        with (
            replacing(file) as made,
            tarfile.open(made, "w:gz", compresslevel=COMPRESSION, dereference=True) as archive,
        ):
            add_content(archive, MANIFEST, orjson.dumps(manifest))
            add_content(archive, PROGRAM, launcher.encode(), mode=0o755)
            for name, source in _files(packed):
                archive.add(source, f"{PACKAGES}/{name}", recursive=False, filter=_without_owner)
    except OSError as error:
        raise InvalidSettings(f"{file} cannot be written: {error}; name a file in another folder") from error
    return sorted(packed)


def manifest_of(file: Path) -> Manifest:
    """Read an archive's manifest. Raises InvalidSettings if the archive is missing or was not created by `pack`."""
    try:
        with tarfile.open(file, "r:gz") as archive:
            first = archive.next()
            content = archive.extractfile(first) if first is not None and first.name == MANIFEST else None
            if content is None:
                raise InvalidSettings(
                    f"{file} was not made by `tidemark provision --executors`: it does not begin with {MANIFEST}"
                )
            return Manifest(**orjson.loads(content.read()))
    except (OSError, tarfile.TarError, EOFError, TypeError, ValueError) as error:
        raise InvalidSettings(
            f"{file} cannot be read ({error}); make it with `tidemark provision --executors {file}`"
        ) from error


def distributions() -> dict[str, metadata.Distribution]:
    """Return the distributions that executors need for tidemark, including tidemark itself, keyed by name. Raises
    ToolMissing if a distribution is not installed."""
    found: dict[str, metadata.Distribution] = {}
    seen, wanted = set[tuple[str, str]](), [(DISTRIBUTION, "")]
    while wanted:
        name, extra = wanted.pop()
        key = canonicalize_name(name)
        if key in LEFT_OUT or (key, extra) in seen:
            continue
        seen.add((key, extra))
        try:
            found[key] = metadata.distribution(key)
        except metadata.PackageNotFoundError as error:
            raise ToolMissing(f"{name} is not installed here, and tidemark needs it: reinstall tidemark") from error
        for needed in map(Requirement, found[key].requires or ()):
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                wanted += [(needed.name, one) for one in ("", *needed.extras)]
    return found


def _files(packed: dict[str, metadata.Distribution]) -> Iterator[tuple[str, Path]]:
    """Yield the files to pack, each as its path below `site-packages` and its source file."""
    for name, distribution in sorted(packed.items()):
        is_ours = name == canonicalize_name(DISTRIBUTION)
        if is_ours:
            yield from _own_files()
        elif (distribution.read_text("direct_url.json") or "").replace(" ", "").find('"editable":true') >= 0:
            raise ToolMissing(
                f"{name} is installed from a folder (editable), and only the location of its files is known: install "
                "it from a wheel to pack it"
            )
        for file in distribution.files or ():
            place = Path(str(file.locate()))
            is_metadata = ".dist-info" in file.parts[0]
            if file.parts[0] == ".." or file.name in NOT_PACKED or not place.is_file() or (is_ours and not is_metadata):
                continue
            if file.suffix not in (".pyc", ".pth"):
                yield str(PurePosixPath(file)), place


def _own_files() -> Iterator[tuple[str, Path]]:
    """Yield tidemark's own files, each as its path below `site-packages` and its source file."""
    root = Path(__file__).parent.parent.parent  # not resolved: in a checkout the folders are links
    for folder, _, names in os.walk(root, followlinks=True):
        for file in (Path(folder) / name for name in sorted(names)):
            if file.suffix in OF_OURS:
                yield str(PurePosixPath("tidemark", *file.relative_to(root).parts)), file


def add_content(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    """Add a file with this content to the archive, without owner and time, so that the entry is reproducible."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def _without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove the owner's name and ids from an archive's file, and make the file readable for every user."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.mode & 0o100 else 0o644
    return entry


def environment_config(archive: str) -> dict[str, str]:
    """Return the session settings that make executors use the archive's packages."""
    return {ARCHIVE: archive, PYTHON: f"{FOLDER}/{PROGRAM}"}


def check_archive(config: Mapping[str, str]) -> None:
    """Raise InvalidSettings if the configuration names a local archive that is missing, that was not made by `tidemark
    provision --executors`, or that is for another Python version or machine type."""
    if (archive := config.get(ARCHIVE)) is None or is_address(archive):
        return
    theirs, ours = asdict(manifest_of(Path(archive))), asdict(own_manifest())
    for name in MUST_AGREE:
        if theirs[name] != ours[name]:
            raise InvalidSettings(
                f"spark.executor_environment = {archive!r} was packed for {name} {theirs[name]}, but this is {name} "
                f"{ours[name]}, and driver and executors must agree: pack it again here, with `tidemark provision "
                f"--executors {archive}`"
            )


def archives_config(archive: str, others: str = "") -> dict[str, str]:
    """Return the setting `spark.archives` with this archive and the `others`. Executors unpack these archives when they
    start.

    If `archive` is an address such as gs://, return no setting, because Spark would read the address before it loads
    the connector.
    """
    return {} if is_address(archive) else {ARCHIVES: ",".join(filter(None, [f"{archive}#{FOLDER}", others]))}


def carry_environment(session: SparkSession, archive: str) -> None:
    """Make the session's executors use the archive's packages from the next task on. This includes executors that start
    later.

    - If the session's Spark Connect server was started with an archive for executors, the executors keep using that
      archive.
    - On any other Spark Connect server, a local archive is sent once per session.
    - In a classic session, or if `archive` is an address such as gs://, Spark itself reads the archive.

    Assumes that no other archive was sent to the session before. Raises InvalidSettings if the archive is unusable, and
    ToolMissing if Spark cannot read gs://.
    """
    if session.conf.get(CARRIED, "") == (named := identity(archive)):
        return
    if is_connected(session) and is_started_with_archive(session):
        _link(session)
    elif is_connected(session) and not is_address(archive):
        session.addArtifacts(f"{archive}#{FOLDER}", archive=True)
    else:
        quoted = archive.replace("\\", "\\\\").replace("'", "\\'")
        with explaining_missing_connector():
            session.sql(f"ADD ARCHIVE '{quoted}#{FOLDER}'").collect()
    session.conf.set(PYTHON, environment_config(archive)[PYTHON])
    session.conf.set(CARRIED, named)


def is_started_with_archive(session: SparkSession) -> bool:
    """Return True if the session's Spark was started with an archive for executors."""
    named = (session.conf.get(ARCHIVES, "") or "").split(",")
    return any(name.strip().endswith(f"#{FOLDER}") for name in named)


def is_out_of_reach_of_streams(session: SparkSession) -> bool:
    """Return True if streaming queries of this session cannot use its archive, because the archive is only in the
    session's folder. The Python workers of streaming queries start in the executor's folder."""
    return is_connected(session) and bool(session.conf.get(CARRIED, "")) and not is_started_with_archive(session)


def _link(session: SparkSession) -> None:
    """Send the session an archive with only the program LINK. The archive's content is always the same, because a
    server refuses a different archive of the same name."""
    program = LINK.format(folder=FOLDER, program=PROGRAM).encode()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{FOLDER}_link.tar.gz"
        with gzip.GzipFile(file, "wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as archive:
            add_content(archive, PROGRAM, program, mode=0o755)
        session.addArtifacts(f"{file}#{FOLDER}", archive=True)


def identity(archive: str) -> str:
    """Return a string that identifies the archive's content: its address, or its path, size and modification time.
    Raises InvalidSettings if the archive is unusable."""
    check_archive({ARCHIVE: archive})
    if is_address(archive):
        return archive
    state = Path(archive).stat()
    return f"{archive} {state.st_size} {state.st_mtime_ns}"


def is_connected(session: SparkSession) -> bool:
    """Return True if the session is on a Spark Connect server."""
    return ".connect." in type(session).__module__
