"""The wheel of `tidemark-watermark`, in an environment that has nothing else."""

import json
import subprocess
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.programs import install

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(300)]

MOST_PACKAGES, MOST_BYTES = 15, 60_000_000
SAID = {"watermark": "2026-11-21T05:25:00Z", "decided_at": "2026-11-21T05:25:10Z", "reason": "ADVANCED"}


def test_the_two_distributions_share_no_file(small_wheel: Path, wheel: Path) -> None:
    names = [
        {name for name in zipfile.ZipFile(built).namelist() if ".dist-info/" not in name}
        for built in (small_wheel, wheel)
    ]
    assert {name.partition("/")[0] for name in names[0]} == {"tidemark_watermark"}
    assert not names[0] & names[1]


def test_it_brings_few_packages_and_gates_by_a_folder(small_wheel: Path, tmp_path: Path) -> None:
    environment, lake = tmp_path / "environment", tmp_path / "lake"
    venv.create(environment)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    python = environment / "bin" / "python"
    install(python, small_wheel)
    assert len(list(site.glob("*.dist-info"))) <= MOST_PACKAGES
    assert sum(file.stat().st_size for file in site.rglob("*") if file.is_file()) <= MOST_BYTES

    lake.mkdir()
    (lake / "watermark.json").write_text(json.dumps({**SAID, "window_seconds": 300}))
    for key, code in (("2026-11-21T05-20Z", 0), ("2026-11-21T05-25Z", 1)):
        asked = [python, "-I", "-m", "tidemark_watermark", lake, "--wait-for", key, "--timeout=0s"]
        assert subprocess.run(asked, cwd=tmp_path, check=False, timeout=60).returncode == code
