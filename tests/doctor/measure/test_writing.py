"""The settings that follow, in the user's own file."""

import os
import shutil
from pathlib import Path

import pytest

from tidemark.pipeline.doctor.measure.facts import Setting, write_settings
from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.settings import load_settings

BROUGHT = Path(__file__).parents[3] / "tidemark.toml"
FOUND = [
    Setting("watermark", "max_lag", "1s", ""),
    Setting("watermark", "slack", "2.1s", ""),
]
BY_HAND = """\
# ours
[watermark]
  band="5s"
# why nine: ask Kim
  slack = '9s'# nine

[pubsub] # no emulator
project = "of-ours"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tidemark.toml"


def values_in(file: Path) -> tuple[float, float]:
    policy = load_settings(file).policy
    assert policy.max_lag is not None
    return policy.max_lag.total_seconds(), policy.base_slack.total_seconds()


def test_in_the_brought_file_two_values_change_and_no_comment_moves(file: Path) -> None:
    shutil.copy(BROUGHT, file)
    written = write_settings(file, FOUND)
    assert [(one.setting.key, one.before) for one in written] == [("max_lag", ""), ("slack", "")]
    before, after = BROUGHT.read_text().splitlines(), file.read_text().splitlines()
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert [new.split("#")[0].rstrip() for _, new in changed] == ['slack = "2.1s"', 'max_lag = "1s"']
    assert all(old[old.index("#") :] == new[new.index("#") :] for old, new in changed)
    assert all(old.index("#") == new.index("#") for old, new in changed)
    assert values_in(file) == (1.0, 2.1)
    assert write_settings(file, FOUND) == []


def test_a_file_written_by_hand_keeps_what_its_writer_wrote(file: Path) -> None:
    file.write_text(BY_HAND)
    file.chmod(0o640)
    written = write_settings(file, FOUND)
    assert [(one.setting.key, one.before) for one in written] == [("max_lag", None), ("slack", "9s")]
    text = file.read_text()
    assert [line for line in BY_HAND.splitlines() if "slack" not in line and line not in text] == []
    assert "# nine" in text
    assert values_in(file) == (1.0, 2.1)
    assert file.stat().st_mode & 0o777 == 0o640
    assert os.listdir(file.parent) == [file.name]


@pytest.mark.parametrize(
    "text", ["", "watermark = { band = '5s' } # short", "watermark.band = '5s'", "[watermark]\r\n"]
)
def test_a_file_of_another_form_means_the_same_and_the_settings(file: Path, text: str) -> None:
    file.write_bytes(text.encode())
    write_settings(file, FOUND)
    assert values_in(file) == (1.0, 2.1)
    assert file.read_bytes().decode().startswith(text[:9])


def test_a_link_stays_a_link_and_a_variable_that_overrides_is_named(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = file.with_name("target.toml")
    target.write_text(BY_HAND)
    file.symlink_to(target)
    monkeypatch.setenv("TIDEMARK_WATERMARK__SLACK", "4s")
    written = write_settings(file, FOUND)
    assert [one.overridden_by for one in written] == [None, "TIDEMARK_WATERMARK__SLACK"]
    assert file.is_symlink()
    assert 'slack = "2.1s"' in target.read_text()


@pytest.mark.parametrize("content", [b"[watermark", b"\xff"])
def test_a_file_that_cannot_be_changed_stays_as_it_is(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(InvalidSettings, match=r"could not be written: .*nothing in it was changed"):
        write_settings(file, FOUND)
    assert file.read_bytes() == content
    assert os.listdir(file.parent) == [file.name]
