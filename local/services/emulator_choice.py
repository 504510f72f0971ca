"""Chooses the Pub/Sub emulator: by default, the official one if it can run, otherwise tidemark's own."""

import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from tidemark.pipeline.errors import InvalidSettings, ToolMissing
from tidemark.pipeline.machine import is_loopback
from tidemark.pipeline.settings_sections import EmulatorKind
from tidemark.pipeline.spark.java import find_java

SDK_PLACES = (
    "/usr/lib/google-cloud-sdk",  # the Debian and RPM packages
    "/usr/share/google-cloud-sdk",
    "/usr/local/google-cloud-sdk",
    "/opt/google-cloud-sdk",
    "/opt/homebrew/share/google-cloud-sdk",
    "/usr/local/share/google-cloud-sdk",
    "/snap/google-cloud-cli/current",
    "~/google-cloud-sdk",
)
"""Folders to search for the Google Cloud SDK, after the folder of the `gcloud` on the PATH."""

JAR = "platform/pubsub-emulator/lib/cloud-pubsub-emulator-*-all.jar"
HOW_TO_GET_IT = (
    "run `gcloud components install pubsub-emulator`, or, with Google's Debian packages, "
    "`sudo apt-get install google-cloud-cli-pubsub-emulator`"
)


def find_emulator_jar() -> Path:
    """Return the newest emulator jar of the first SDK that has one. Raises ToolMissing, saying how to install one."""
    places = [Path(place).expanduser() for place in SDK_PLACES]
    if gcloud := shutil.which("gcloud"):
        places.insert(0, Path(gcloud).resolve().parents[1])
    for place in places:
        if jars := list(place.glob(JAR)):
            return max(jars, key=lambda jar: [int(part) for part in re.findall(r"\d+", jar.name)])
    raise ToolMissing(f"the official Pub/Sub emulator is not on this machine: {HOW_TO_GET_IT}")


@dataclass(frozen=True, slots=True)
class Emulator:
    """An emulator: its human-readable name, and its program with flags."""

    name: str
    program: tuple[str, ...]

    def command(self, host: str, port: int) -> list[str]:
        """Return the command that starts the emulator. Raises InvalidSettings if the host is not loopback."""
        if not is_loopback(host):
            raise InvalidSettings(
                f"pubsub.emulator_host = {host}:{port}: an emulator has no authentication, so it only starts on "
                "loopback: name an address such as 127.0.0.1"
            )
        return [*self.program, f"--host={host}", f"--port={port}"]


def choose_emulator(wanted: EmulatorKind = "auto") -> Emulator:
    """Choose an emulator. With "auto", it is the official one if the emulator and a suitable Java are installed,
    otherwise tidemark's own. Raises ToolMissing if the official one is wanted but cannot run."""
    own = (sys.executable, "-m", "tidemark.pipeline.cli", "pubsub")
    if wanted == "local":
        return Emulator("tidemark's own Pub/Sub", own)
    why = "the official emulator is not on this machine"
    try:
        jar = find_emulator_jar()
        why = "no Java on this machine can run the official emulator"
        official = (str(find_java()), *heap_flags(), "-jar", str(jar))
    except ToolMissing:
        if wanted == "official":
            raise
        return Emulator(f"tidemark's own Pub/Sub ({why})", own)
    return Emulator("the official Pub/Sub emulator", official)


def heap_flags() -> list[str]:
    """Return memory flags for the official emulator's JVM: a heap of a quarter of the machine's memory, at most 6 GiB,
    and half of it for new objects. At every pull, the emulator copies its undelivered messages to new objects. With the
    JVM's defaults, a backlog of 400,000 messages therefore drains at a third of the speed."""
    heap_mb = min(6144, psutil.virtual_memory().total // 4 >> 20)
    huge = ["-XX:+IgnoreUnrecognizedVMOptions", "-XX:+UseTransparentHugePages"]  # only Linux has the second flag
    return ["-XX:+UseSerialGC", *huge, f"-Xmx{heap_mb}m", f"-Xmn{heap_mb // 2}m"]
