"""`tidemark tune` as a person and a script use it: on a trace, and on a lake that a run has left."""

import json
import os
import shutil
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.cli.command import Said, said_here
from tests.lake.builders import append_rejected
from tests.tuning.tuning_traces import MemoryTrace, Source, ending_before, record
from tidemark.pipeline.cli import output
from tidemark.pipeline.clock import SystemClock, from_us, to_us
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.settings import load_settings
from tidemark.pipeline.watermark.state import Released

CONFIG = """\
[pubsub]
emulator_host = "127.0.0.1:8085"

[lake]
uri = "file:lake"
"""

LATE = Source(seconds=600, rate=10, streams=100, jitter=8, late=0.005, late_by=60, left=0, seed=7)
"""One message in two hundred is a minute late."""


def tidemark(folder: Path, *arguments: str) -> Said:
    """What the command says, run in this process."""
    return said_here(folder, arguments, os.environ)


def figures(folder: Path, *arguments: str) -> Any:
    told = tidemark(folder, *arguments, "--json")
    assert told.code == 0, told.err
    return json.loads(told.out)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder without settings, with the late source's trace in it."""
    folder = tmp_path_factory.mktemp("tune")
    LATE.trace().write(folder / "late.parquet")
    return folder


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, MemoryTrace]:
    """A folder with settings and the lake of a run that has just ended, and what was published in it."""
    folder = tmp_path_factory.mktemp("lake")
    (folder / "tidemark.toml").write_text(CONFIG)
    settings = load_settings(folder / "tidemark.toml")
    trace = ending_before(LATE.trace(), to_us(SystemClock().now()))
    lake = Lake(settings.lake, settings.message.kinds, SystemClock())
    record(lake, trace, settings.policy)
    published = SystemClock().now() - timedelta(minutes=1)
    written = str((to_us(published) - 300_000_000) // 1000)
    append_rejected(
        lake.quarantine(),
        {
            "reason": "UNREADABLE_PAYLOAD",
            "publish_time": published,
            "attributes": [("stream_id", "broken"), ("event_time", written)],
        },
    )
    return folder, trace


def test_the_report_says_in_words_and_in_tables_what_it_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "FILE_WIDTH", 80)
    told = tidemark(folder, "tune", "late.parquet", "--target", "0.1%", "--bands", "0,5s,10s,1m,2m")
    assert told.code == 0, told.err
    said = " ".join(told.out.split())
    assert "With the present band of 10s and the rule band" in said
    many = "they are from too many streams to name a few as the cause"
    for one in ("For at most 0.1 % late: ", many, "rule frontier", "the worst of the slow streams"):
        assert one in said
    assert "fast streams" not in said
    assert max(map(len, told.out.splitlines())) <= 80
    assert "…" not in said, "nothing is cut"


def test_on_a_lake_it_reports_on_the_ticks_and_the_landings_of_the_run(lake: tuple[Path, MemoryTrace]) -> None:
    folder, trace = lake
    told = figures(folder, "tune", "--bands", "0,10s,60s")
    assert told["messages"] == len(trace.publish_us)
    assert told["source"].endswith("/lake")
    assert told["target_late_share"] == 0.0001
    trace.write(folder / "same.parquet")
    same = figures(folder, "tune", "same.parquet", "--bands", "0,10s,60s")
    here, there = ([each["late"] for each in found["outcomes"]] for found in (told, same))
    assert here == there
    assert told["disorder_seconds"] == same["disorder_seconds"]
    assert told["slowest"] == same["slowest"]
    assert (told["rejected_payloads_that_delay"], same["rejected_payloads"]) == ({"broken": 1}, {})
    assert "up to 5m: 1 of broken." in told["says"][-1]


def test_cohorts_of_a_lake_are_printed_beside_all_together(lake: tuple[Path, MemoryTrace]) -> None:
    folder, trace = lake
    told = tidemark(folder, "tune", "--bands", "10s,60s", "--by", "stream_prefix:-")
    assert told.code == 0, told.err
    assert "/lake by stream_prefix:-: each cohort alone; the target: at most 0.01 % late" in told.out
    rows = [line[len(" all together") :] for line in told.out.splitlines() if line.startswith((" all together", ' "'))]
    assert len(rows) == 4
    assert rows[::2] == rows[1::2]  # one cohort, which is all of them
    assert all(f" {len(trace.publish_us):,} " in row for row in rows)
    assert "no watermark" not in told.out
    Source(seconds=5, rate=1, streams=1, left=0).trace().write(folder / "short.parquet")
    told = tidemark(folder, "tune", "short.parquet", "--by", "stream_prefix:-")
    assert "no watermark: no decision between the cohort's first and last message gave a watermark" in told.out
    told = tidemark(folder, "tune", "--since", "1s", "--by", "attribute:region")
    assert (told.code, "since" in told.err) == (1, True)


def test_with_since_only_messages_that_landed_later_are_counted(lake: tuple[Path, MemoryTrace]) -> None:
    folder, trace = lake
    now_us = to_us(SystemClock().now())
    told = figures(folder, "tune", "--since", "6m", "--bands", "10s,30s")
    expected = int((trace.landed_us >= now_us - 360_000_000).sum())
    assert told["messages"] == pytest.approx(expected, abs=10 * 30)
    assert 0 < told["messages"] < len(trace.publish_us)
    assert told["present"]["landed"] == told["messages"]
    assert told["present"]["lag_p50_seconds"] > 10


def test_messages_landed_after_their_release_are_left_out_of_cohorts_as_well(tmp_path: Path) -> None:
    (tmp_path / "tidemark.toml").write_text(CONFIG)
    settings, now = load_settings(tmp_path / "tidemark.toml"), SystemClock().now()
    trace = ending_before(Source(seconds=60, rate=10, left=0).trace(), to_us(now))
    lake = Lake(settings.lake, settings.message.kinds, SystemClock())
    record(lake, trace, settings.policy)
    log = lake.tracking_log()
    log.append(Released(now, from_us(int(median(trace.landed_us.tolist()))), by="a test"))
    log.decide(lambda state: state.decide(None, None, settings.policy, now))
    whole, apart = (figures(tmp_path, "tune", "--bands", "10s", *by) for by in ([], ["--by", "stream_prefix:-"]))
    assert whole["messages"] == apart["together"]["messages"] < 2 / 3 * len(trace.publish_us)
    shutil.rmtree(tmp_path / "lake" / "tracking")
    assert "no decision has been made in file:" in tidemark(tmp_path, "tune").err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["late.parquet", "--target", "one"], "one is not a share"),
        (["late.parquet", "--bands", "10s,20"], "write a duration with its unit"),
        (["late.parquet", "--since", "1h"], "a trace is read whole"),
        (["--since", "2100-01-01T00:00:00Z"], "is in the future"),
        (["late.parquet", "--by", "region"], "region: write attribute:NAME or stream_prefix:SEPARATOR"),
        (["late.parquet", "--by", "attribute:region", "--html", "page.html"], "the page shows all messages together"),
        (["late.parquet", "--html", "late.parquet"], "is the trace itself"),
        (["late.parquet", "--html", "."], "is a folder"),
        (["late.parquet", "--html", "nowhere/page.html"], "would be in nowhere, which is not a folder"),
    ],
)
def test_impossible_options_are_refused_before_the_work(folder: Path, arguments: list[str], says: str) -> None:
    before = (folder / "late.parquet").read_bytes()
    told = tidemark(folder, "tune", *arguments)
    assert told.code == 2
    assert says in " ".join(told.err.replace("│", " ").split())
    assert (folder / "late.parquet").read_bytes() == before


def test_settings_that_are_here_are_used_for_a_trace_as_well(tmp_path: Path) -> None:
    Source(seconds=300).trace().write(tmp_path / "trace.parquet")
    (tmp_path / "tidemark.toml").write_text('[watermark]\nrule = "frontier"\nband = "4s"\nquantile = 0.02\n')
    told = figures(tmp_path, "tune", "trace.parquet", "--bands", "4s")
    assert (told["present"]["rule"], told["present"]["band_seconds"]) == ("frontier", 4.0)
    assert {(each["rule"], each["quantile"]) for each in told["outcomes"]} == {("band", 0.02), ("frontier", 0.02)}
