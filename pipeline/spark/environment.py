"""tidemark for executors whose Python lacks it: an archive, which Spark unpacks beside each of them, and whose
program `bin/python` starts their own Python with what is in it.

On a Spark Connect server there are two places. A session's Python workers start in a folder of the session, where Spark
unpacks what the session brings. Those of a streaming query start in the executor's own folder, where Spark unpacks what
the server was started with. So a server that brings the archive serves both: its sessions get a link to it.
"""

import gzip
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from pyspark.sql import SparkSession

from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.settings_types import is_address
from tidemark.pipeline.spark.connector import naming_what_lacks
from tidemark.pipeline.spark.executor_archive import PROGRAM, add_content, manifest_of, own_manifest
from tidemark.pipeline.spark.executors import PYTHON

FOLDER = "tidemark_environment"
"""The name under which Spark unpacks the archive, in the folder that an executor's Python workers start in."""

ARCHIVE = "spark.tidemark.executor_environment"
"""The archive, in a session's configuration."""

CARRIED = "spark.tidemark.executor_environment.carried"
"""The archive that a session has, as `identity` names it: a setting of the session."""

MUST_AGREE = ("python", "machine")

ARCHIVES = "spark.archives"
"""Spark's setting with what each executor unpacks when it starts, in its own folder."""

LINK = """\
#!/bin/sh
# The archive that this executor unpacked when it started.
exec "$(dirname "$0")/../../../{folder}/{program}" "$@"
"""
"""The program of an archive that a session brings instead: its folder is in the executor's own."""


def environment_config(archive: str | None) -> dict[str, str]:
    """The settings of a session whose executors run what is in the archive."""
    return {} if archive is None else {ARCHIVE: archive, PYTHON: f"{FOLDER}/{PROGRAM}"}


def check_environment(config: Mapping[str, str]) -> None:
    """Raise InvalidSettings if the configuration names an archive on this machine that does not exist, that `tidemark
    provision --executors` did not make, or that is for another Python than this."""
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
    """The setting by which executors unpack the archive when they start, beside others that `spark.archives` names.
    None for an address: there Spark reads it before it has any JAR, so that gs:// would need one on each machine."""
    return {} if is_address(archive) else {ARCHIVES: ",".join(filter(None, [f"{archive}#{FOLDER}", others]))}


def carry_environment(session: SparkSession, archive: str) -> None:
    """Have the session's executors run what is in the archive, from the next task on, those that start later too.

    A Spark Connect server that was started with such an archive keeps it. To any other server a file on this machine is
    sent once a session. An address is one that Spark's machines read. Assumption: the session has no other such archive
    yet. Raises InvalidSettings, or ToolMissing where Spark cannot read gs://.
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
    """Tell whether the session's Spark was started with an archive for executors."""
    named = (session.conf.get(ARCHIVES, "") or "").split(",")
    return any(name.strip().endswith(f"#{FOLDER}") for name in named)


def is_out_of_reach_of_streams(session: SparkSession) -> bool:
    """Tell whether a streaming query of this session would look for its Python where no executor has it."""
    return is_connected(session) and bool(session.conf.get(CARRIED, "")) and not is_brought(session)


def _link(session: SparkSession) -> None:
    """Send the session an archive that only leads to the executor's own. It is the same for whoever sends it: a server
    refuses another of the same name."""
    program = LINK.format(folder=FOLDER, program=PROGRAM).encode()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{FOLDER}_link.tar.gz"
        with gzip.GzipFile(file, "wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as archive:
            add_content(archive, PROGRAM, program, mode=0o755)
        session.addArtifacts(f"{file}#{FOLDER}", archive=True)


def identity(archive: str) -> str:
    """A name of the archive's content, as far as the file's size and time tell. An address stands for itself."""
    if is_address(archive):
        return archive
    state = Path(archive).stat()
    return f"{archive} {state.st_size} {state.st_mtime_ns}"


def is_connected(session: SparkSession) -> bool:
    """Tell whether the session is on a Spark Connect server."""
    return ".connect." in type(session).__module__
