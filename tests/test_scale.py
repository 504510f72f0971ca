"""What the page about growth says: the same as the model."""

from pathlib import Path

import pytest

from benchmarks import scale
from tidemark.pipeline.ingest.outcome import Side
from tidemark.pipeline.ingest.readers import BATCH_MESSAGES, ROUND_MESSAGES
from tidemark.pipeline.ingest.rounds import PLAN
from tidemark.pipeline.settings import Settings

PAGE = (Path(__file__).parents[1] / "docs" / "concepts" / "scale.md").read_text()


@pytest.mark.parametrize("table", scale.tables(), ids=["limits", "asked for", "dollars"])
def test_the_page_has_the_model_s_tables(table: str) -> None:
    assert f"\n{table}\n" in PAGE


def test_the_model_has_the_settings_defaults_and_what_a_tick_settles_together() -> None:
    settings = Settings()
    assert settings.watermark.tick.total_seconds() == scale.TICK_SECONDS
    assert PLAN.round.total_seconds() == scale.ROUND_SECONDS
    assert {Side.BASE: scale.LAND_BATCH, Side.TRACKING: scale.TRACK_BATCH} == BATCH_MESSAGES


def test_the_page_says_what_a_round_holds_at_most_and_from_which_traffic_on_rounds_are_shorter() -> None:
    page, both = " ".join(PAGE.split()), 2 * scale.ROUND_SECONDS
    assert f"its readers end when they have {ROUND_MESSAGES:,} messages together" in page
    assert f"from {ROUND_MESSAGES // both:,} messages a second on rounds are shorter" in page


def test_a_limit_is_the_least_traffic_that_is_beyond_it() -> None:
    assert scale.limit_of("continuous", lambda load: load.rate, 1234) == "1,200/s"
    assert scale.limit_of("ticks", lambda load: load.rate, 5000) == "5,000/s"
    assert scale.limit_of("ticks", lambda load: load.rate, 1e9) == "beyond what ticks land"


def test_by_rounds_only_files_ids_and_bytes_grow_with_the_traffic() -> None:
    low, high = (scale.Load("continuous", rate) for rate in (333, 333_000))
    assert (low.commits_a_minute, low.entries_a_minute, low.cells) == (
        high.commits_a_minute,
        high.entries_a_minute,
        high.cells,
    )
    assert high.class_a_a_minute - low.class_a_a_minute == 60 / scale.ROUND_SECONDS * (high.landers - low.landers)
