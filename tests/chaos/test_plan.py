"""A chaos run plays every fault, and its summary calls wrong what is wrong."""

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.chaos.__main__ import TROUBLES
from tests.chaos.faults import Incident
from tests.chaos.house import House, is_alive
from tests.chaos.plan import SPELL_GAP_SECONDS, Plan, Target, plan_of
from tests.chaos.summary import Summary
from tidemark.local.demo.synthetic import Published
from tidemark.local.demo.verification import TruthComparison


def test_every_target_has_its_turn_and_what_lasts_does_not_overlap() -> None:
    for plan in (plan_of(seed, 20, TROUBLES) for seed in range(50)):
        assert Counter(kill.target for kill in plan.kills) == dict.fromkeys(Target, 4)
        assert Counter(spell.trouble for spell in plan.spells) == Counter(TROUBLES)
        assert all(kill.target is not Target.READER for kill in plan.kills[14:])  # by then there may be no backlog
        ends = [spell.at + spell.seconds for spell in plan.spells]
        gaps = [spell.at - end for end, spell in zip(ends, plan.spells[1:], strict=False)]
        assert min(gaps) > SPELL_GAP_SECONDS - 0.2  # moments are rounded to a tenth


RIGHT = Summary(
    plan=Plan(1, plan_of(1, 1, (), (Target.DAEMON,)).kills, ()),
    incidents=[Incident(8.0, f"kill -9 {Target.DAEMON}", 12, back_after=3.0)],
    restarts={Target.DAEMON: 1},
    ticks={},
    runs={},
    drains=[],
    published=Published(3, 2, 1, {"NO_EVENT_TIME": 1, "NO_STREAM_ID": 0}, None, None, 1.0),
    comparison=TruthComparison(
        rows=2,
        expected_rows=2,
        windows=1,
        differences=0,
        by_what={},
        examples=[],
        late=0,
        missed=0,
        landed=3,
        quarantined={"NO_EVENT_TIME": 1},
        quarantine_differences=0,
    ),
    missed_and_mended=0,
    disorder_seconds=3.0,
    band_seconds=20.0,
    not_played=[],
    left_over=[],
    exit_code=0,
    seconds=60.0,
)


def test_a_right_summary_has_no_problems() -> None:
    assert RIGHT.problems == []
    beyond_the_band = replace(RIGHT, disorder_seconds=21.0, comparison=replace(RIGHT.comparison, late=1))
    assert beyond_the_band.problems == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"comparison": replace(RIGHT.comparison, rows=1)}, "1 rows instead of 2"),
        ({"comparison": replace(RIGHT.comparison, differences=1)}, "1 rows differ"),
        ({"comparison": replace(RIGHT.comparison, missed=1)}, "1 heartbeats landed and are in no window"),
        ({"comparison": replace(RIGHT.comparison, late=1)}, "1 heartbeats are late"),
        ({"comparison": replace(RIGHT.comparison, quarantined={})}, "quarantined are"),
        ({"comparison": replace(RIGHT.comparison, quarantine_differences=1)}, "1 quarantined messages differ"),
        ({"incidents": []}, "0 kills instead of 1"),
        ({"restarts": {}}, "Dagster daemon: killed 1 times, started again 0 times"),
        ({"restarts": {Target.DAEMON: 1, "PubSub emulator": 1}}, "PubSub emulator ended by itself"),
        ({"left_over": ["12 java"]}, "processes were left over"),
        ({"exit_code": 1}, "ended with code 1"),
        ({"incidents": [Incident(8.0, f"kill -9 {Target.DAEMON}", 12)]}, "it did not come back"),
    ],
)
def test_each_problem_of_a_summary_is_named(wrong: dict[str, object], said: str) -> None:
    assert any(said in problem for problem in replace(RIGHT, **wrong).problems)  # type: ignore[arg-type]


def test_processes_of_a_house_are_known_by_their_mark_even_without_their_parent(tmp_path: Path) -> None:
    ours, others = House(tmp_path / "ours", None), House(tmp_path / "others", None)  # type: ignore[arg-type]
    # The orphan says that it runs: a program that has just been started may not show its environment yet.
    runs = "import time; print(flush=True); time.sleep(60)"
    start = (
        "import subprocess as s, sys; "
        f"child = s.Popen([sys.executable, '-c', {runs!r}], start_new_session=True, stdout=s.PIPE, stderr=s.DEVNULL); "
        "child.stdout.readline(); print(child.pid)"
    )
    parent = subprocess.run(
        [sys.executable, "-c", start], env=ours.environment(), capture_output=True, text=True, check=True
    )
    orphan = psutil.Process(int(parent.stdout))
    try:
        assert ours.processes() == [orphan]
        assert others.processes() == []
    finally:
        orphan.kill()
        psutil.wait_procs([orphan], timeout=5)
    assert not is_alive(orphan)
