"""Packs an archive of tidemark and its dependencies, and ships it to executors whose Python lacks them.

The archive holds packages, not a Python: the executor's Python, of the same minor version, imports them. So it does not
depend on where it was created, or where it is unpacked. Spark unpacks it on each executor. The archive's program
`bin/python` starts the executor's Python with the archive's packages.

A Spark Connect server has two working folders. A session's Python workers start in the session's folder, where Spark
unpacks the session's archives. The workers of a streaming query start in the executor's folder, where Spark unpacks the
archives with which the server was started. So a server started with the archive serves both: its sessions get a link to
the archive.
"""

import gzip
import io
import os
import platform
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath

import orjson
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pyspark.sql import SparkSession

from tidemark.pipeline.errors import InvalidSettings, ToolMissing
from tidemark.pipeline.settings_sections import is_address
from tidemark.pipeline.spark.connector import naming_what_lacks
from tidemark.pipeline.spark.executors import CONTRACT, PYTHON
from tidemark.pipeline.version import DISTRIBUTION, own_version

ENDINGS = (".tar.gz", ".tgz")
"""The allowed endings of the archive's name. Spark recognises the format by them."""

LEFT_OUT = frozenset({"dagster", "dagster-pyspark", "dagster-webserver", "pyspark", "py4j"})
"""Distributions that are not packed, and neither are dependencies that only they need. Executors have their own
PySpark, and do not run Dagster."""

NOT_PACKED = frozenset({"direct_url.json", "RECORD", "INSTALLER", "REQUESTED", "uv_cache.json"})
"""Files of an installation that are not packed: they reveal its location and its source, including any credentials in
the source's URL."""

OF_OURS = frozenset({".py", ".typed", ".html", ".css", ".js"})
"""Endings of tidemark's files that are packed. In a checkout, settings files are next to them, with other endings."""

COMPRESSION = 3
"""gzip's level, from 1 to 9. A higher level takes several times as long and makes the archive a tenth smaller."""

MANIFEST, PACKAGES, PROGRAM = "manifest.json", "site-packages", "bin/python"

LAUNCHER = """\
#!/bin/sh
# The Python of this machine that runs the packages beside this file, which are for Python {python}.
here=$(cd "$(dirname "$0")/.." && pwd) || exit 1
for python in "$PYSPARK_PYTHON" python{python} python3 python; do
    [ -n "$python" ] && [ "$python" != "$0" ] || continue
    found=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
    [ "$found" = "{python}" ] || continue
    PYTHONPATH="$here/{packages}${{PYTHONPATH:+:$PYTHONPATH}}" exec "$python" "$@"
done
echo "tidemark: no Python {python} on $(uname -n), neither \\$PYSPARK_PYTHON ($PYSPARK_PYTHON) nor on the path:" \\
    "install it, or run tidemark provision --executors with the installed minor version" >&2
exit 1
"""

FOLDER = "tidemark_environment"
"""The name under which Spark unpacks the archive, in the folder where an executor's Python workers start."""

ARCHIVE = "spark.tidemark.executor_environment"
"""The setting of a session that names the archive."""

CARRIED = "spark.tidemark.executor_environment.carried"
"""The setting of a session that records the archive already sent to it, in the form of `identity`."""

MUST_AGREE = ("python", "machine")

ARCHIVES = "spark.archives"
"""Spark's setting for the archives that each executor unpacks in its own folder when it starts."""

LINK = """\
#!/bin/sh
# The archive that this executor unpacked when it started.
exec "$(dirname "$0")/../../../{folder}/{program}" "$@"
"""
"""The program of the link archive, which a session gets instead of the archive. The session's folder is within the
executor's folder."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of an archive: the Python version of its packages (such as `3.11`), the machine type, the version of
    tidemark, and the CONTRACT of the tasks that it runs."""

    python: str
    machine: str
    tidemark: str
    contract: int


def own_manifest() -> Manifest:
    """Return the manifest of an archive packed by this process."""
    return Manifest(
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        machine=f"{platform.system().lower()}-{platform.machine()}",
        tidemark=own_version(),
        contract=CONTRACT,
    )


def pack(file: Path) -> list[str]:
    """Write the archive, replacing an existing file, and return the packed distributions. Raises InvalidSettings for a
    name that Spark would not unpack, ToolMissing if an installed package cannot be packed. An existing file is
    unchanged after an error."""
    if not file.name.endswith(ENDINGS):
        raise InvalidSettings(
            f"{file}: name the archive with the ending .tar.gz, by which Spark knows how to unpack it"
        )
    manifest, packed = own_manifest(), distributions()
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=f".{file.name}-") as folder:
        made = Path(folder) / file.name
        with tarfile.open(made, "w:gz", compresslevel=COMPRESSION, dereference=True) as archive:
            add_content(archive, MANIFEST, orjson.dumps(manifest))
            launcher = LAUNCHER.format(python=manifest.python, packages=PACKAGES)
            add_content(archive, PROGRAM, launcher.encode(), mode=0o755)
            for name, source in _files(packed):
                archive.add(source, f"{PACKAGES}/{name}", recursive=False, filter=_of_nobody)
        made.replace(file)
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
    """Return the distributions that tidemark needs on an executor, including itself, by name. Raises ToolMissing if any
    is not installed."""
    found: dict[str, metadata.Distribution] = {}
    extras_of: dict[str, set[str]] = {}
    wanted: list[tuple[str, set[str]]] = [(DISTRIBUTION, set())]
    while wanted:
        name, extras = wanted.pop()
        key = canonicalize_name(name)
        known = extras_of.setdefault(key, set())
        more = ({""} | extras) - known
        if key in LEFT_OUT or not more:
            continue
        known |= more
        try:
            found[key] = metadata.distribution(key)
        except metadata.PackageNotFoundError as error:
            raise ToolMissing(f"{name} is not installed here, and tidemark needs it: reinstall tidemark") from error
        needs = [Requirement(line) for line in found[key].requires or ()]
        wanted += [(one.name, one.extras) for one in needs if _is_needed(one, more)]
    return found


def _is_needed(one: Requirement, extras: Iterable[str]) -> bool:
    return one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras)


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
    """Yield tidemark's own files. They are the same from a wheel and from a checkout, where the package's folders are
    links."""
    root = Path(__file__).parent.parent.parent  # not resolved: in a checkout the folders are links
    for folder, _, names in os.walk(root, followlinks=True):
        for file in (Path(folder) / name for name in sorted(names)):
            if file.suffix in OF_OURS:
                yield str(PurePosixPath("tidemark", *file.relative_to(root).parts)), file


def add_content(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    """Add a file with this content, without user or time, so that the archive is reproducible."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def _of_nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove the packing user's name and ids, and make the file readable for every user."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.mode & 0o100 else 0o644
    return entry


def environment_config(archive: str | None) -> dict[str, str]:
    """Return the settings that make a session's executors run the archive's packages."""
    return {} if archive is None else {ARCHIVE: archive, PYTHON: f"{FOLDER}/{PROGRAM}"}


def check_archive(config: Mapping[str, str]) -> None:
    """Raise InvalidSettings if the configuration names an archive on this machine that does not exist, that `tidemark
    provision --executors` did not create, or that is for another Python or machine type."""
    archive = config.get(ARCHIVE)
    if archive is None or is_address(archive):
        return
    theirs, ours = asdict(manifest_of(Path(archive))), asdict(own_manifest())
    for name in MUST_AGREE:
        if theirs[name] != ours[name]:
            raise InvalidSettings(
                f"spark.executor_environment = {archive!r} was packed for {name} {theirs[name]}, and this is {name} "
                f"{ours[name]}: driver and executors run the same; pack it again here, with `tidemark provision "
                f"--executors {archive}`"
            )


def archives_config(archive: str, others: str = "") -> dict[str, str]:
    """Return the setting that makes executors unpack the archive when they start, in addition to the `others` in
    `spark.archives`. Returns no setting for an address: Spark would read it before it loads any JAR, so gs:// would
    need the connector on each machine."""
    return {} if is_address(archive) else {ARCHIVES: ",".join(filter(None, [f"{archive}#{FOLDER}", others]))}


def carry_environment(session: SparkSession, archive: str) -> None:
    """Make the session's executors run the archive's packages from the next task on. Executors that start later run
    them too.

    A Spark Connect server that was started with such an archive keeps using its own. To any other server, a file on
    this machine is sent once per session. An address is read by Spark's machines. Assumption: the session has no other
    such archive yet. Raises InvalidSettings, or ToolMissing if Spark cannot read gs://.
    """
    config = environment_config(archive)
    check_archive(config)
    if session.conf.get(CARRIED, "") == (named := identity(archive)):
        return
    if is_connected(session) and is_brought(session):
        _link(session)
    elif is_connected(session) and not is_address(archive):
        session.addArtifacts(f"{archive}#{FOLDER}", archive=True)
    else:
        quoted = archive.replace("\\", "\\\\").replace("'", "\\'")
        with naming_what_lacks():
            session.sql(f"ADD ARCHIVE '{quoted}#{FOLDER}'").collect()
    session.conf.set(PYTHON, config[PYTHON])
    session.conf.set(CARRIED, named)


def is_brought(session: SparkSession) -> bool:
    """True if the session's Spark was started with an archive for executors."""
    named = (session.conf.get(ARCHIVES, "") or "").split(",")
    return any(name.strip().endswith(f"#{FOLDER}") for name in named)


def is_out_of_reach_of_streams(session: SparkSession) -> bool:
    """True if this session's streaming queries cannot start Python: they would look for it in a folder without the
    archive."""
    return is_connected(session) and bool(session.conf.get(CARRIED, "")) and not is_brought(session)


def _link(session: SparkSession) -> None:
    """Send the session an archive with only a link to the archive in the executor's folder. Its content is always the
    same, because a server refuses a different archive of the same name."""
    program = LINK.format(folder=FOLDER, program=PROGRAM).encode()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{FOLDER}_link.tar.gz"
        with gzip.GzipFile(file, "wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as archive:
            add_content(archive, PROGRAM, program, mode=0o755)
        session.addArtifacts(f"{file}#{FOLDER}", archive=True)


def identity(archive: str) -> str:
    """Return a name for the archive's content: the address itself, or the file's path, size and modification time."""
    if is_address(archive):
        return archive
    state = Path(archive).stat()
    return f"{archive} {state.st_size} {state.st_mtime_ns}"


def is_connected(session: SparkSession) -> bool:
    """True if the session is on a Spark Connect server."""
    return ".connect." in type(session).__module__
