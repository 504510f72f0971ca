"""Ships tidemark to executors whose Python lacks it: Spark unpacks an archive on each executor, and its program
`bin/python` starts the executor's Python with the archive's packages.

A Spark Connect server has two working folders. A session's Python workers start in the session's folder, where Spark
unpacks the session's archives. Those of a streaming query start in the executor's folder, where Spark unpacks the
archives with which the server was started. So a server started with the archive serves both: its sessions get a link to
it.
"""

import gzip
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from pyspark.sql import SparkSession

from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.settings_sections import is_address
from tidemark.pipeline.spark.connector import naming_what_lacks
from tidemark.pipeline.spark.executor_archive import PROGRAM, add_content, manifest_of, own_manifest
from tidemark.pipeline.spark.executors import PYTHON

FOLDER = "tidemark_environment"
"""The name under which Spark unpacks the archive, in the folder where an executor's Python workers start."""

ARCHIVE = "spark.tidemark.executor_environment"
"""The setting with the archive, in a session's configuration."""

CARRIED = "spark.tidemark.executor_environment.carried"
"""The session's setting with the archive it carries, as named by `identity`."""

MUST_AGREE = ("python", "machine")

ARCHIVES = "spark.archives"
"""Spark's setting for the archives that each executor unpacks in its own folder when it starts."""

LINK = """\
#!/bin/sh
# The archive that this executor unpacked when it started.
exec "$(dirname "$0")/../../../{folder}/{program}" "$@"
"""
"""The program of the link archive that a session carries instead: its folder is within the executor's folder."""


def environment_config(archive: str | None) -> dict[str, str]:
    """Return the settings of a session whose executors run the archive's packages."""
    return {} if archive is None else {ARCHIVE: archive, PYTHON: f"{FOLDER}/{PROGRAM}"}


def check_environment(config: Mapping[str, str]) -> None:
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
    """Return the setting with which executors unpack the archive when they start, in addition to the `others` in
    `spark.archives`. Empty for an address: Spark would read it before it loads any JAR, so gs:// would need the
    connector on each machine."""
    return {} if is_address(archive) else {ARCHIVES: ",".join(filter(None, [f"{archive}#{FOLDER}", others]))}


def carry_environment(session: SparkSession, archive: str) -> None:
    """Make the session's executors run the archive's packages from the next task, including executors that start later.

    A Spark Connect server that was started with such an archive keeps using it. To any other server, a file on this
    machine is sent once per session. An address is read by Spark's machines. Assumption: the session has no other such
    archive yet. Raises InvalidSettings, or ToolMissing if Spark cannot read gs://.
    """
    config = environment_config(archive)
    check_environment(config)
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
    """True if a streaming query of this session would look for its Python where no executor has it."""
    return is_connected(session) and bool(session.conf.get(CARRIED, "")) and not is_brought(session)


def _link(session: SparkSession) -> None:
    """Send the session an archive that only links to the executor's archive. Its content is always the same: a server
    refuses a different archive of the same name."""
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
