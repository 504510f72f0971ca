"""The wheels of both distributions, built once."""

from pathlib import Path

import pytest

from tests.programs import build_wheel

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def small_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(ROOT / "packages" / "watermark", tmp_path_factory.mktemp("small"))
