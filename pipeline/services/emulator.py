"""The official Pub/Sub emulator: where it is on this machine, and the command that starts it."""

import ipaddress
import os
import re
import shutil
import subprocess
from pathlib import Path

import psutil

from pipeline.errors import InvalidSettings, ToolMissing

JAVA_AT_LEAST = 17
"""What Spark needs; the emulator would do with less."""

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
"""Where the Google Cloud SDK usually is, if no `gcloud` on the path says so."""

JAR = "platform/pubsub-emulator/lib/cloud-pubsub-emulator-*-all.jar"
HOW_TO_GET_IT = (
    "run `gcloud components install pubsub-emulator`, or, with Google's Debian packages, "
    "`sudo apt-get install google-cloud-cli-pubsub-emulator`"
)


def find_emulator_jar() -> Path:
    """The emulator's newest jar. Raises ToolMissing, which says how to get it."""
    places = [Path(place).expanduser() for place in SDK_PLACES]
    if gcloud := shutil.which("gcloud"):
        places.insert(0, Path(gcloud).resolve().parents[1])
    for place in places:
        if jars := sorted(place.glob(JAR), key=_version):
            return jars[-1]
    raise ToolMissing(f"the official Pub/Sub emulator is not on this machine: {HOW_TO_GET_IT}")


def find_java() -> Path:
    """A Java of at least `JAVA_AT_LEAST`: of `$JAVA_HOME`, else on the path. Raises ToolMissing."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home, "bin"))) if home else None
    java = java or shutil.which("java")
    how = f"install Java {JAVA_AT_LEAST} or newer (such as Debian's openjdk-{JAVA_AT_LEAST}-jre-headless)"
    if java is None:
        raise ToolMissing(f"there is no java on the path: {how}")
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolMissing(f"{java} does not run ({error}): {how}") from error
    said = answer.stderr + answer.stdout
    version = java_version(said)
    if version is None or version < JAVA_AT_LEAST:
        raise ToolMissing(f"{java} is {said.strip().splitlines()[0] if said.strip() else 'silent'}: {how}")
    return Path(java)


def java_version(said: str) -> int | None:
    """The feature release out of what `java -version` says: 17 of `17.0.15`, 8 of `1.8.0_392`."""
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else None


def emulator_command(host: str, port: int) -> list[str]:
    """What starts the emulator. It has no authentication: raises InvalidSettings for a host that is not loopback."""
    if not is_loopback(host):
        raise InvalidSettings(
            f"pubsub.emulator_host = {host}:{port}: the emulator has no authentication, and is started on loopback "
            "only, such as 127.0.0.1"
        )
    return [str(find_java()), *heap_flags(), "-jar", str(find_emulator_jar()), f"--host={host}", f"--port={port}"]


def heap_flags() -> list[str]:
    """How much memory the emulator's JVM gets, at most a quarter of the machine's, most of it for short-lived objects.

    While anything is outstanding, the emulator copies its set of undelivered messages at every pull: with JVM
    defaults a backlog of 400,000 drains at a third of the speed.
    """
    heap_mb = min(6144, psutil.virtual_memory().total // 4 >> 20)
    return ["-XX:+UseSerialGC", "-XX:+UseTransparentHugePages", f"-Xmx{heap_mb}m", f"-Xmn{heap_mb // 2}m"]


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine can reach the host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _version(jar: Path) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", jar.name)]
