"""The job that computes older windows in parts: any windows, each as it would have been alone."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from tests.dagster.test_diffs_asset import CLASSIC, START, WINDOWS, Materializing, failure_of
from tests.dagster.test_repair import materialized
from tests.watermark.builders import at
from tidemark.assets.attempts import attempts_of, stretch_named, stretch_texts
from tidemark.assets.catalog import STREAM_STATUS
from tidemark.assets.definitions import build_definitions
from tidemark.assets.live_first import Parts
from tidemark.assets.requests import BACKLOG_OP
from tidemark.assets.runs import Runs
from tidemark.pipeline.services.dagster_names import COMPUTE_BACKLOG, TRIED
from tidemark.pipeline.windows import Windowing

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # sockets that py4j leaves to the collector

MINUTES = Windowing(timedelta(minutes=1), START)


def computed(house: Materializing, instance: dg.DagsterInstance, *windows: str) -> dg.ExecuteInProcessResult:
    job = build_definitions(house.settings).resolve_job_def(COMPUTE_BACKLOG)
    config = {"ops": {BACKLOG_OP: {"config": {"windows": list(windows)}}}}
    return job.execute_in_process(instance=instance, run_config=config, raise_on_error=False)


def test_stretches_are_written_as_their_first_and_last_window() -> None:
    first = MINUTES.number_of(START)
    numbers = [first + 9, first + 5, first + 4, first + 3]
    texts = list(stretch_texts(map(MINUTES.numbered, numbers)))
    assert texts == ["2026-11-21T05-29Z", "2026-11-21T05-23Z..2026-11-21T05-25Z"]
    assert [number for text in texts for number in reversed(stretch_named(text, MINUTES))] == numbers
    with pytest.raises(ValueError, match="not the start of a window"):
        stretch_named("2026-11-21T05-23Z", Windowing(timedelta(minutes=5), START))


def test_windows_with_a_gap_between_them_are_computed_in_one_run_each_as_it_would_have_been_alone(
    tmp_path: Path,
) -> None:
    whole = Materializing(tmp_path / "whole", CLASSIC)
    parts = Materializing(tmp_path / "parts", CLASSIC)
    with dg.DagsterInstance.ephemeral() as instance:
        assert whole.run(WINDOWS[0], WINDOWS[-1], instance).success
        result = computed(parts, instance, WINDOWS[2], WINDOWS[0])
        assert result.success
        assert materialized(result) == materialized(result, STREAM_STATUS) == [WINDOWS[0], WINDOWS[2]]
        assert parts.lake.diffs().computed() == {WINDOWS[0], WINDOWS[2]}
        run = instance.get_run_by_id(result.run_id)
        assert run is not None
        assert run.tags[TRIED] == f"{WINDOWS[0]}..{WINDOWS[2]}", "the part that it has reached"
        assert computed(parts, instance, WINDOWS[1]).success
    assert parts.rows().equals(whole.rows())


def test_a_run_that_makes_way_leaves_the_rest_and_one_that_fails_blames_the_part_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = Materializing(tmp_path, CLASSIC)
    windowing = house.settings.windowing
    with dg.DagsterInstance.ephemeral() as instance:
        with monkeypatch.context() as patched:
            patched.setattr(Parts, "size", lambda _: 1)
            patched.setattr(Parts, "ends", lambda parts, *_: parts.seconds_per_window is not None)
            assert computed(house, instance, WINDOWS[2], WINDOWS[0]).success
        assert house.lake.diffs().computed() == {WINDOWS[2]}
        runs = Runs(instance, house.settings)
        (attempt,) = attempts_of(runs, windowing)
        assert [attempt.windows.least, len(attempt.windows), attempt.failed] == [_number(2, windowing), 1, False]

        monkeypatch.setattr(Parts, "size", lambda _: 1)
        monkeypatch.setattr(Parts, "ends", lambda *_: False)
        result = computed(house, instance, WINDOWS[2], "2026-11-21T05-23Z", WINDOWS[0])
        assert "cannot be trusted yet" in failure_of(result)
        attempt = attempts_of(runs, windowing)[0]
        assert [attempt.windows.least, len(attempt.windows), attempt.failed] == [_number(3, windowing), 1, True]


def test_what_is_no_window_is_refused(tmp_path: Path) -> None:
    house = Materializing(tmp_path, CLASSIC)
    with dg.DagsterInstance.ephemeral() as instance:
        assert not computed(house, instance, "yesterday").success


def _number(minute: int, windowing: Windowing) -> Any:
    return windowing.number_of(at(minute * 60))
