"""The wheels of both distributions, built once."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def small_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT / "packages" / "watermark", tmp_path_factory.mktemp("small"))


def built(source: Path, folder: Path) -> Path:
    """The wheel of a project, in an empty folder."""
    command = [sys.executable, "-m", "uv", "build", "--quiet", "--wheel", "--out-dir", str(folder), str(source)]
    subprocess.run(command, check=True, timeout=300)
    (found,) = folder.glob("*.whl")
    return found
