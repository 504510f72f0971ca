"""`tidemark replay` as a person and a script use it: over a trace, and over the log of a lake."""

import json
import shutil
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import Result
from typer.testing import CliRunner

from tests.clock import ManualClock
from tests.lake.builders import Beat, append_beats, columns_of
from tests.replay.traces import Held, record, steady, write_trace
from tests.watermark.builders import at, flat, seconds
from tests.watermark.exact_rule import exact_late
from tidemark.pipeline.cli.app import app
from tidemark.pipeline.clock import from_us, to_us
from tidemark.pipeline.errors import LakeError, TidemarkError
from tidemark.pipeline.lake import layout
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.replay.replay import decide_again, replayed, write_decisions
from tidemark.pipeline.replay.sources import ParquetTrace
from tidemark.pipeline.replay.trace import NEVER, NO_EVENT_TIME, Batch, ticks_of
from tidemark.pipeline.settings_sections import LakeSettings
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.state import Compacted, DecisionRecord

COLUMNS = {
    "tick_time": "timestamp[us, tz=UTC]",
    "watermark": "timestamp[us, tz=UTC]",
    "reason": "string",
    "base_oldest_unacked": "timestamp[us, tz=UTC]",
    "tracking_oldest_unacked": "timestamp[us, tz=UTC]",
    "band_start": "timestamp[us, tz=UTC]",
    "band_end": "timestamp[us, tz=UTC]",
    "messages_in_band": "int64",
    "late_total": "int64",
}


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Somewhere without settings, on a wide screen."""
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.delenv("TIDEMARK_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)


def tidemark(*words: object) -> Result:
    """The command, in this process; what it raises is in the result."""
    return CliRunner().invoke(app, [str(word) for word in words])


def done(*words: object) -> str:
    result = tidemark(*words)
    assert result.exception is None, result.output
    return str(result.stdout)


def told(*words: object) -> dict[str, Any]:
    """What `--json` prints: one object, and nothing else."""
    return json.loads(done(*words, "--json"))


def rows_of(path: Path) -> list[dict[str, Any]]:
    table = pq.read_table(path)
    assert {field.name: str(field.type) for field in table.schema} == COLUMNS
    return table.to_pylist()


def late_trace() -> Batch:
    """Two minutes of disorder, against a band of 10 s."""
    return steady(5, per_second=1, minutes=10, disorder=seconds(120))


def test_there_is_one_row_a_tick_with_what_the_sensors_would_have_decided_and_what_was_late(tmp_path: Path) -> None:
    messages = late_trace()
    trace = write_trace(messages, tmp_path / "trace.parquet")
    facts = told("replay", trace, "--out", tmp_path / "decisions.parquet")
    rows = rows_of(tmp_path / "decisions.parquet")
    ticks = ticks_of(Held(messages), seconds(10), seconds(120))
    decisions = [decided.decision for decided in decide_again(ticks, Policy())]
    assert len(rows) == len(decisions) == facts["ticks"]
    late_total = [row.pop("late_total") for row in rows]
    for row, decision in zip(rows, decisions, strict=True):
        assert row == {
            "tick_time": decision.at,
            "watermark": decision.watermark,
            "reason": str(decision.reason),
            "base_oldest_unacked": decision.base.oldest_unacked,
            "tracking_oldest_unacked": decision.tracking.oldest_unacked,
            "band_start": flat(decision).band_start,
            "band_end": flat(decision).band_end,
            "messages_in_band": flat(decision).messages_in_band,
        }
    assert rows[0]["watermark"] is None
    assert rows[0]["band_start"] is None
    tick_us = np.array([to_us(row["tick_time"]) for row in rows])
    watermarks = [None if row["watermark"] is None else to_us(row["watermark"]) for row in rows]
    expected = exact_late(messages, tick_us, watermarks)
    assert late_total == expected
    assert facts["late"] == expected[-1] > 10
    assert facts["landed"] == np.count_nonzero(messages.event_us != NO_EVENT_TIME)
    assert facts["late_share"] == expected[-1] / facts["landed"]
    assert facts["decisions"] == str(tmp_path / "decisions.parquet")
    assert sum(facts["reasons"].values()) == len(rows)
    assert told("replay", trace, "--band", "2m")["late"] == 0


def test_messages_acknowledged_before_publication_or_never_are_counted_and_reported(tmp_path: Path) -> None:
    whole = steady(1, per_second=1, minutes=5)
    landed_us, tracked_us = whole.landed_us.copy(), whole.tracked_us.copy()
    landed_us[7], landed_us[100] = whole.publish_us[7] - 1, NEVER
    tracked_us[200] = NEVER
    trace = write_trace(replace(whole, landed_us=landed_us, tracked_us=tracked_us), tmp_path / "trace.parquet")
    facts = told("replay", trace)
    assert (facts["acknowledged_early"], facts["never_landed"], facts["never_tracked"]) == (1, 1, 1)
    assert "1 message acknowledged before the publish time" in done("replay", trace)


def test_times_without_a_zone_are_taken_for_utc_and_that_is_said(tmp_path: Path) -> None:
    path = write_trace(steady(1, per_second=1, minutes=2), tmp_path / "trace.parquet")
    table = pq.read_table(path)
    zoneless = [
        pa.field(each.name, pa.timestamp("us") if pa.types.is_timestamp(each.type) else each.type)
        for each in table.schema
    ]
    pq.write_table(table.cast(pa.schema(zoneless)), tmp_path / "zoneless.parquet")
    assert "were read as UTC" in done("replay", tmp_path / "zoneless.parquet")
    with_zone, without = told("replay", path), told("replay", tmp_path / "zoneless.parquet")
    assert without["taken_for_utc"]
    assert without["watermark"] == with_zone["watermark"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "name a trace, or use --from-lake"),
        (["TRACE", "--band", "10"], "write a duration with its unit"),
        (["TRACE", "--tick", "0s"], "must be longer than zero"),
        (["TRACE", "--idle-timeout", "0"], "must be longer than zero"),
        (["TRACE", "--quantile", "1"], "at least 0 and less than 1"),
        (["TRACE", "--complete-from", "2026-11-21T05:20:00"], "no time zone"),
        (["TRACE", "--since", "2026-11-21T05:20:00Z"], "only works with --from-lake"),
        (["TRACE", "--out", "TRACE"], "is the trace itself"),
        (["TRACE", "--out", "nowhere/decisions.parquet"], "would be in nowhere, which is not a folder"),
        (["--from-lake", "--out", "."], "is a folder"),
        (["TRACE", "--out", 300 * "a"], "cannot be written: File name too long"),
        (["TRACE", "--from-lake"], "a trace cannot be combined with --from-lake"),
        (["--from-lake", "--tick", "5s"], "--tick: it cannot be combined with --from-lake"),
        (["--from-lake", "--complete-from", "2026-11-21T05:20:00Z"], "--complete-from: it cannot be combined with"),
    ],
)
def test_contradictory_options_are_refused_with_a_sentence(tmp_path: Path, options: list[str], words: str) -> None:
    trace = write_trace(steady(1, per_second=1, minutes=1), tmp_path / "trace.parquet")
    result = tidemark("replay", *(str(trace) if word == "TRACE" else word for word in options))
    assert result.exit_code == 2
    assert words in " ".join(result.output.replace("│", " ").split())


def test_a_file_that_cannot_be_written_is_reported_on_purpose(tmp_path: Path) -> None:
    trace = ParquetTrace(write_trace(steady(1, per_second=1, minutes=1), tmp_path / "trace.parquet"))
    with pytest.raises(TidemarkError, match=r"No such file .* name another file with --out"):
        write_decisions(tmp_path / "removed meanwhile" / "decisions.parquet", replayed([], trace))


ON_THE_SERVICE = Policy(reading_slack=seconds(1), base_slack=Policy().band)


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Lake, list[DecisionRecord], Batch]:
    """A lake in which a run over a trace with late messages was recorded and landed, some of it twice."""
    monkeypatch.setattr(layout, "CHECKPOINT_EVERY", 10)
    (tmp_path / "tidemark.toml").write_text('[lake]\nuri = "file:lake"\n')
    lake = Lake(LakeSettings(uri=f"file:{tmp_path}/lake"), {}, ManualClock(at(0)))
    messages = late_trace()
    decided = record(lake.tracking_log(), messages, ON_THE_SERVICE)
    valid = np.flatnonzero(messages.event_us != NO_EVENT_TIME)
    again = valid[: len(valid) // 10]
    for rows, delay in ((again, timedelta(minutes=20)), (valid, timedelta(0))):
        publish, landed = (list(map(from_us, times[rows])) for times in (messages.publish_us, messages.landed_us))
        columns = columns_of([Beat("a", 0, str(row)) for row in rows])
        columns |= {"event_time": list(map(from_us, messages.event_us[rows])), "publish_time": publish}
        append_beats(lake.heartbeats(), columns | {"landed_at": [moment + delay for moment in landed]})
    return lake, decided, messages


Recorded = tuple[Lake, list[DecisionRecord], Batch]


def test_the_decisions_of_a_lake_are_identical_until_one_that_differs_is_shown_side_by_side(lake: Recorded) -> None:
    there, decided, messages = lake
    words = done("replay", "--from-lake", "--out", "decisions.parquet")
    assert words.startswith(f"identical: {len(decided)} decisions\n")
    rows = rows_of(Path("decisions.parquet"))
    watermarks = [each.decision.watermark and to_us(each.decision.watermark) for each in decided]
    assert [row["watermark"] and to_us(row["watermark"]) for row in rows] == watermarks
    tick_us = np.array([to_us(row["tick_time"]) for row in rows])
    assert [row["late_total"] for row in rows] == exact_late(messages, tick_us, watermarks)
    since = told("replay", "--from-lake", "--since", decided[-5].decision.at.isoformat())
    assert since["identical"]
    assert 5 <= since["decisions_identical"] < len(decided)

    def wrongly(state: Any) -> DecisionRecord:
        last = decided[-1]
        right: DecisionRecord = state.decide(last.base, last.tracking, last.policy, last.decision.at + seconds(10))
        return replace(right, decision=replace(right.decision, watermark=at(17.000001)))

    there.tracking_log().decide(wrongly)
    result = tidemark("replay", "--from-lake", "--out", "decisions.parquet")
    assert result.exit_code == 1
    (marked,) = [line.split() for line in result.stdout.splitlines() if line.strip().startswith("≠")]
    assert marked[1:3] == ["decision.watermark", "2026-11-21T05:20:17.000001Z"]
    assert f"identical before it: {len(decided)} decisions" in result.stdout
    assert "policy.band" in result.stdout
    assert len(rows_of(Path("decisions.parquet"))) == len(decided) + 1
    scripted = tidemark("replay", "--from-lake", "--json")
    assert scripted.exit_code == 1
    facts = json.loads(scripted.stdout)
    assert not facts["identical"]
    assert list(facts["first_difference"]) == ["decision.watermark"]
    assert facts["first_difference"]["decision.watermark"]["recorded"] == "2026-11-21T05:20:17.000001Z"


def test_with_another_policy_replay_decides_otherwise_and_verifies_nothing(lake: Recorded, tmp_path: Path) -> None:
    _, decided, messages = lake
    words = done("replay", "--from-lake", "--band", "2m", "--out", tmp_path / "decisions.parquet")
    assert "not a verification" in words
    assert "identical" not in words
    facts = told("replay", "--from-lake", "--band", "2m")
    assert facts["recorded"]["ticks"] == facts["derived"]["ticks"] == len(decided)
    assert facts["recorded"]["late"] > 10
    assert facts["derived"]["late"] == 0
    landed = np.sort(messages.landed_us[messages.event_us != NO_EVENT_TIME])
    assert landed[0] < to_us(decided[0].decision.at)  # before the first decision, and landed all the same
    assert facts["recorded"]["landed"] == facts["derived"]["landed"] == len(landed)
    since = told("replay", "--from-lake", "--band", "2m", "--since", decided[-5].decision.at.isoformat())
    first = datetime.fromisoformat(since["derived"]["first_tick"])
    assert since["derived"]["landed"] == np.count_nonzero(landed >= to_us(first))
    ticks = ticks_of(Held(messages), seconds(10), seconds(120))
    policy = replace(ON_THE_SERVICE, band=seconds(120), base_slack=seconds(120))
    would_be = [each.decision.watermark for each in decide_again(ticks, policy)]
    assert [row["watermark"] for row in rows_of(tmp_path / "decisions.parquet")] == would_be
    (tmp_path / "tidemark.toml").write_text('[lake]\nuri = "file:lake"\n[pubsub]\nattach = true\n')
    shutil.rmtree(tmp_path / "lake" / "heartbeats")
    derived = told("replay", "--from-lake", "--band", "20s")["derived"]
    tried = told("tune", "--since", at(0).isoformat(), "--bands", "20s")["outcomes"]
    named = [(each["rule"], each["quantile"], each["band_seconds"]) for each in tried]
    outcome = tried[named.index(("band", 0.0, 20.0))]
    assert (derived["late"], derived["landed"]) == (outcome["late"], outcome["landed"])
    assert derived["late"] > 0


def test_a_lake_without_decisions_or_with_none_since_then_is_reported(lake: Recorded, tmp_path: Path) -> None:
    log = lake[0].tracking_log()
    log.append(Compacted(log.catch_up()))
    none_since = tidemark("replay", "--from-lake", "--since", "0s").exception
    assert isinstance(none_since, LakeError)
    assert "Give an earlier --since" in str(none_since)
    (tmp_path / "other.toml").write_text('[lake]\nuri = "file:other"\n')
    empty = tidemark("--config", tmp_path / "other.toml", "replay", "--from-lake").exception
    assert isinstance(empty, LakeError)
    assert "tidemark up" in str(empty)
