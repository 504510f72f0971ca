"""The plane, the lag and the windows as facts; and the drawing of these, whose texts may be anything."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np

from tests.observe.test_page import HOSTILE
from tests.watermark.builders import at
from tidemark.pipeline.charts import Area, Axis, Bar, Chart, Heat, Line, Mark, picture, shares
from tidemark.pipeline.clock import to_us
from tidemark.pipeline.observe.explained import MOST_CELLS, history_facts, lag_chart, plane_facts
from tidemark.pipeline.observe.facts import LakeStatus
from tidemark.pipeline.observe.page import PageVerdict, verdict_of
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.watermark.decision import Decision, Reason
from tidemark.pipeline.watermark.histogram import Histogram
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.readings import Reading
from tidemark.pipeline.watermark.state import Beginning, Snapshot, WatermarkState

TICK = timedelta(seconds=10)


def test_ten_thousand_cells_are_merged_and_no_message_is_dropped() -> None:
    rng = np.random.default_rng(2)
    publish = np.sort(rng.uniform(0, 2000, 60_000))
    event = publish - rng.uniform(0, 9, 60_000)
    histogram = Histogram.of(*(to_us(at(0)) + (column * 1e6).astype(np.int64) for column in (publish, event)))
    assert len(histogram) > 10_000
    state = WatermarkState().after(0, Beginning(at(-10_000))).after(1, Snapshot(histogram))
    base, tracking = (Reading(at(2000), at(moment), names_a_message=False) for moment in (0, 2000))
    plane = plane_facts(histogram, state.decide(base, tracking, Policy(), at(2000)))
    assert 100 < len(plane["cells"]) <= MOST_CELLS
    assert sum(count for _, _, count in plane["cells"]) == plane["messages"] == histogram.messages == 60_000


def decisions(*steps: tuple[float, float, Reason]) -> list[Decision]:
    return [Decision(at(moment), at(watermark), reason) for moment, watermark, reason in steps]


def test_a_hold_is_a_stretch_without_a_move_and_a_gap_is_when_nobody_decided() -> None:
    moving = [(10.0 * n, 10.0 * n - 15, Reason.ADVANCED) for n in range(10)]
    held = [(100.0 + 10 * n, 75.0, Reason.HELD_TRACKING_BEHIND) for n in range(6)]
    after = [(400.0 + 10 * n, 380.0 + 10 * n, Reason.ADVANCED) for n in range(3)]
    facts = history_facts(decisions(*moving, *held, *after), TICK, at(425))
    assert [(hold["reason"], hold["since"], hold["until"]) for hold in facts["holds"]] == [
        ("NOBODY_DECIDED", at(150), at(400)),
        ("HELD_TRACKING_BEHIND", at(90), at(150)),
    ]
    assert "tracking has read up to" in facts["holds"][1]["text"]
    assert facts["lag"][-1] == (at(420), 20.0)
    assert history_facts(decisions(*moving), TICK, at(95))["holds"] == []
    for now in (200, 40_000):
        facts = history_facts(decisions(*moving), TICK, at(now))
        assert [(hold["until"], hold["lasted"]) for hold in facts["holds"]] == [(None, timedelta(seconds=now - 90))]
        assert lag_chart(facts).title.startswith("The watermark was 15s behind")
    facts = history_facts(
        decisions(*((3600.0 * n, 0.0, Reason.HELD_TRACKING_BEHIND) for n in range(6))), TICK, at(18_000)
    )
    assert facts["holds"][-1]["since"] == at(0)
    assert lag_chart(history_facts(decisions((0.0, 50.0, Reason.ADVANCED)), TICK, at(0))).y.place(0.0) == 1.0
    set_back = [(20.0 + 10 * n, 75.0, Reason.HELD_CLOCK_SKEW) for n in range(6)]
    facts = history_facts(decisions(*moving, *set_back), TICK, at(75))
    assert [(hold["since"], hold["until"]) for hold in facts["holds"]] == [(at(20), None)]
    assert [moment for moment, _ in facts["lag"]] == [at(10 * n) for n in range(8)]


def test_every_text_of_a_picture_is_escaped_and_it_is_well_formed() -> None:
    axis = Axis(HOSTILE, lambda value: value, [(0.5, HOSTILE)])
    chart = Chart(
        HOSTILE + "\x1b\u202e",
        "",
        axis,
        axis,
        lines=[
            Line(HOSTILE, "band", [(0, 0, HOSTILE), (1, 1, HOSTILE)]),
            Line(HOSTILE, "now", [(0, 0, HOSTILE)], is_joined=False, shape="h3"),
        ],
        bars=[Bar(0, 0.5, 1, HOSTILE)],
        marks=[Mark(HOSTILE, "now", x=0.2), Mark(HOSTILE, "aim", y=0.7)],
        areas=[Area(0.1, 0.3, "hold", HOSTILE)],
        heat=[Heat("c1", 0.1, [(0.2, 0.3)], HOSTILE)],
    )
    text = picture([replace(chart, height=200), chart, chart], HOSTILE, columns=2)
    assert HOSTILE not in text
    assert not {"\x1b", "\u202e"} & set(text)
    tops = [float(element.get("y")) for element in ET.fromstring(text).iterfind("{*}svg")]  # noqa: S314 (our own)
    assert len(tops) == 3
    assert tops[0] == tops[1]
    assert tops[2] - tops[0] >= chart.height
    tags = {element.tag.rpartition("}")[2] for element in ET.fromstring(text).iter()}  # noqa: S314 (our own)
    assert tags == {"svg", "style", "rect", "text", "path", "circle", "title", "g"}


def test_a_backlog_that_is_being_read_is_the_headline() -> None:
    reading, now = "catching up: 8,200 messages/s, about 4m left; the oldest message of base is 12m old", at(0)
    why = {"at": now, "explanation": ["ADVANCED"], "holds": [], "reason": Reason.ADVANCED, "watermark": now}

    def verdict(facts: dict[str, Any]) -> PageVerdict:
        return verdict_of(Settings(), why, LakeStatus({"": facts}, {}), [], now)

    assert (verdict({}).level, verdict({}).headline) == ("good", "All is well")
    behind = verdict({"reading": reading})
    assert (behind.level, behind.headline, behind.sentences[0]) == ("hold", "Catching up", reading)
    lacking, unknown = verdict({"untracked": 6}), verdict({"lost_unknown": "not counted"})
    assert (lacking.level, lacking.sentences[0][:33]) == ("bad", "tracking never received 6 message")
    assert (unknown.level, unknown.sentences[0]) == ("hold", "not counted")


def test_the_axis_of_shares_begins_well_above_the_smallest_number() -> None:
    axis = shares(5e-324, "")
    assert len(axis.ticks) == 14
    assert [axis.place(value) for value in (0.0, 1.0)] == [0.0, 1.0]
