"""`python -m tests.versions [CELL ...]`: run each cell's tests in an environment of its own, and print a table.

The environments stay in build/versions; one is made anew when what it is made of has changed. This fails if a cell
fails, cannot be made or ran no test. A cell whose Python is not on this machine is left out, unless it was named.
"""

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

from packaging.utils import canonicalize_name

from tests.versions.cells import CELLS, Cell

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "versions"
EXTRAS = "dev"
NOT_THEIRS = {"PYTHONPATH", "PYTHONHOME", "SPARK_HOME", "VIRTUAL_ENV"}
"""Variables by which a cell would find another environment's packages."""

FOUND = """
import json, platform
from importlib.metadata import version
import pyspark
told = {name: version(name) for name in ("dagster", "pyarrow", "pandas", "numpy")}
print(json.dumps({"Python": platform.python_version(), "PySpark": pyspark.__version__, **told}))
"""
"""Run by the cell's Python: what is there, not what was asked for."""

ROW = "| {:12} | {:88} | {:>6} | {:>6} | {:>7} | {:>7} |"


def python_of(minor: str) -> str | None:
    """A Python of this minor version: the one that runs this, one on the path, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = [sys.executable, shutil.which(f"python{minor}"), *map(str, sorted(pyenv.glob(f"{minor}.*/bin/python")))]
    for python in filter(None, found):
        asked = [python, "-c", "import sys, venv; print('{}.{}'.format(*sys.version_info))"]
        if subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() == minor:
            return python
    return None


def constraints_of(cell: Cell) -> str:
    """The text of constraints.txt with the cell's versions in place of its own."""
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    overridden = {_name(requirement) for requirement in cell.overrides}
    return "\n".join([*(pin for pin in pins if _name(pin) not in overridden), *cell.overrides, ""])


def _name(requirement: str) -> str:
    return canonicalize_name(re.split("[=<>~!]", requirement)[0])


def environment_of(cell: Cell, python: str) -> Path:
    """The Python of the cell's environment, which has tidemark. Raises CalledProcessError."""
    folder, constraints = FOLDER / cell.name, constraints_of(cell)
    made_of = (constraints, python, (ROOT / "pyproject.toml").read_text())
    mark, digest = folder / "made", hashlib.sha256("\n".join(made_of).encode()).hexdigest()
    if not mark.exists() or mark.read_text() != digest:
        subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)
        (folder / "constraints.txt").write_text(constraints)
        chosen = {**os.environ, "CONSTRAINTS": str(folder / "constraints.txt")}
        install = ["sh", "tools/install.sh", str(folder / "bin" / "python"), EXTRAS]
        subprocess.run(install, cwd=ROOT, env=chosen, check=True)
        mark.write_text(digest)
    return folder / "bin" / "python"


def play(cell: Cell, python: str) -> bool:
    """Run the cell's tests and print its row. Whether all of them passed, and there were some."""
    began = time.monotonic()
    theirs = {name: value for name, value in os.environ.items() if name not in NOT_THEIRS}
    try:
        own = environment_of(cell, python)
        asked = subprocess.run([own, "-c", FOUND], env=theirs, stdout=subprocess.PIPE, text=True, check=True)
    except subprocess.CalledProcessError as error:
        print(ROW.format(cell.name, f"cannot be made: {error}", "", "", "", _seconds(began)), flush=True)
        return False
    found = ", ".join(f"{name} {version}" for name, version in json.loads(asked.stdout).items())
    report = FOLDER / f"{cell.name}.xml"
    report.unlink(missing_ok=True)
    command = [own, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *cell.tests]
    with (log := FOLDER / f"{cell.name}.txt").open("w") as output:
        ended = subprocess.run(command, cwd=ROOT, env=theirs, stdout=output, stderr=output, check=False).returncode
    passed, failed, skipped = _counts(report)
    print(ROW.format(cell.name, found, passed, failed, skipped, _seconds(began)), flush=True)
    is_good = ended == 0 and passed > 0 and failed == 0
    if not is_good:
        print(f"{cell.name} failed: {log}", file=sys.stderr)
    return is_good


def _counts(report: Path) -> tuple[int, int, int]:
    """How many tests passed, failed and were skipped; none where pytest did not come to write a report."""
    suite = ElementTree.parse(report).find("testsuite") if report.exists() else None  # noqa: S314 (pytest's own)
    if suite is None:
        return 0, 0, 0
    tests, failures, errors, skipped = (int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped"))
    return tests - failures - errors - skipped, failures + errors, skipped


def _seconds(began: float) -> str:
    return f"{time.monotonic() - began:.0f} s"


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cells", nargs="*", metavar="CELL", help=", ".join(cell.name for cell in CELLS))
    named = set(parser.parse_args().cells)
    if unknown := named - {cell.name for cell in CELLS}:
        parser.error(f"no such cell: {', '.join(sorted(unknown))}; there are {', '.join(cell.name for cell in CELLS)}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    lock = (FOLDER / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        parser.error(f"another run has the environments in {FOLDER}: wait until it has ended")
    print(ROW.format("cell", "found", "passed", "failed", "skipped", "time"))
    print(ROW.format("---", "---", "---:", "---:", "---:", "---:"), flush=True)
    results = []
    for cell in CELLS:
        if named and cell.name not in named:
            continue
        python = python_of(cell.python)
        if python is not None:
            results.append(play(cell, python))
        elif named:
            parser.error(f"{cell.name} needs a Python {cell.python}, and there is none on the path or among pyenv's")
        else:
            print(f"{cell.name} is left out: there is no Python {cell.python} here", file=sys.stderr)
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
