"""A setting's old name: read for one release, with one warning, and never beside the new one."""

import logging
import re
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from tidemark.pipeline import settings
from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.settings import Renamed, load_settings

PLANTED = (
    Renamed("watermark.disorder", "watermark.band", "0.3.0"),
    Renamed("sources.stale_after", "watermark.idle_timeout", "0.3.0"),
)
"""One within its section, one out of a section that is no more."""


@pytest.fixture(autouse=True)
def _planted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "RENAMED", PLANTED)
    monkeypatch.setattr(settings, "TOLD", set[str]())


def file_with(folder: Path, *lines: str) -> Path:
    file = folder / "tidemark.toml"
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


def warnings_of(caplog: pytest.LogCaptureFixture) -> Sequence[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_file_may_have_old_names_and_each_is_warned_of_once_in_a_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = file_with(tmp_path, "[watermark]", "disorder = '3s'", "[sources]", "stale_after = '9m'")
    for _ in range(3):
        read = load_settings(file).watermark
        assert (read.band, read.idle_timeout) == (timedelta(seconds=3), timedelta(minutes=9))
    assert warnings_of(caplog) == [
        f"watermark.disorder (from {file}) is called watermark.band now; write that, because 0.3.0 will not know the "
        "old name",
        f"sources.stale_after (from {file}) is called watermark.idle_timeout now; write that, because 0.3.0 will not "
        "know the old name",
    ]


def test_a_variable_may_have_an_old_name_and_wins_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TIDEMARK_WATERMARK__DISORDER", "4s")
    monkeypatch.setenv("TIDEMARK_SOURCES__STALE_AFTER", "8m")
    for _ in range(2):
        read = load_settings(file_with(tmp_path, "[watermark]", "band = '3s'")).watermark
        assert (read.band, read.idle_timeout) == (timedelta(seconds=4), timedelta(minutes=8))
    assert warnings_of(caplog) == [
        "the variable TIDEMARK_WATERMARK__DISORDER is called TIDEMARK_WATERMARK__BAND now; write that, because 0.3.0 "
        "will not know the old name",
        "the variable TIDEMARK_SOURCES__STALE_AFTER is called TIDEMARK_WATERMARK__IDLE_TIMEOUT now; write that, "
        "because 0.3.0 will not know the old name",
    ]


def test_a_pipeline_s_own_variables_may_have_old_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_TIDEMARK_WATERMARK__DISORDER", "4s")
    assert load_settings(file_with(tmp_path), name="orders").watermark.band == timedelta(seconds=4)


def test_both_names_at_once_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = file_with(tmp_path, "[watermark]", "disorder = '3s'", "band = '3s'")
    said = re.escape(
        f"watermark.disorder and watermark.band are both in {both}, and are one setting; write watermark.band alone"
    )
    with pytest.raises(InvalidSettings, match=said):
        load_settings(both)
    monkeypatch.setenv("TIDEMARK_WATERMARK__DISORDER", "4s")
    monkeypatch.setenv("TIDEMARK_WATERMARK__BAND", "4s")
    with pytest.raises(
        InvalidSettings, match=r"\$TIDEMARK_WATERMARK__DISORDER and \$TIDEMARK_WATERMARK__BAND are both"
    ):
        load_settings(file_with(tmp_path))


def test_a_wrong_value_under_an_old_name_is_blamed_on_where_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMARK_WATERMARK__DISORDER", "long")
    with pytest.raises(InvalidSettings, match=r"from \$TIDEMARK_WATERMARK__DISORDER"):
        load_settings(file_with(tmp_path))


def test_an_unknown_key_beside_an_old_name_is_still_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidSettings, match=r"sources = .*there is no such setting"):
        load_settings(file_with(tmp_path, "[sources]", "stale_after = '9m'", "other = 1"))
    monkeypatch.setenv("TIDEMARK_SOURCES__OTHER", "1")
    with pytest.raises(InvalidSettings, match="TIDEMARK_SOURCES__OTHER is not a setting"):
        load_settings(file_with(tmp_path))


def test_sections_that_became_one_are_refused_with_the_new_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ("[landing]", "mode = 'continuous'", "landers = 3", "[track]", "max_messages = 5", "[drain]")
    old = file_with(tmp_path, *lines)
    with pytest.raises(InvalidSettings) as refused:
        load_settings(old)
    assert str(refused.value) == (
        f"the sections [track], [land], [landing] and [drain] are [ingest] now (from {old}); landing.mode is "
        "ingest.mode; landing.landers is ingest.readers; track.max_messages is gone: see docs/ingest.md"
    )
    with pytest.raises(InvalidSettings, match=r"are \[ingest\] now .from .*: see"):
        load_settings(file_with(tmp_path, "drain = 5"))
    monkeypatch.setenv("TIDEMARK_DRAIN__START_AFTER", "10m")
    with pytest.raises(InvalidSettings, match=r"from \$TIDEMARK_DRAIN__START_AFTER.; drain.start_after is ingest"):
        load_settings(file_with(tmp_path))
    monkeypatch.setenv("ORDERS_TIDEMARK_LAND__MAX_SECONDS", "5s")
    with pytest.raises(InvalidSettings, match=r"LAND__MAX_SECONDS.; land.max_seconds is ingest.pull_for"):
        load_settings(file_with(tmp_path), name="orders")


def test_what_is_shipped_has_no_name_that_is_old_and_every_new_name_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for renamed in settings.RENAMED:
        section, key = renamed.new.split(".")
        kind = settings.Settings.model_fields[section].annotation
        assert key in getattr(kind, "model_fields", {})
        old_section, old = renamed.old.split(".")
        there = settings.Settings.model_fields.get(old_section)
        assert there is None or old not in getattr(there.annotation, "model_fields", {})
    assert set(settings.REPLACED.values()) <= set(settings.sections.IngestSettings.model_fields)
    assert not settings.REPLACED_SECTIONS & set(settings.Settings.model_fields)
