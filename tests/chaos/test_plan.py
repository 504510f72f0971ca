"""A chaos run can be repeated from its seed, and its summary calls wrong what is wrong."""

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.chaos.faults import Incident
from tests.chaos.house import House, is_alive
from tests.chaos.plan import SPELL_GAP_SECONDS, Plan, Target, Trouble, plan_of, without
from tests.chaos.play import restarts_in
from tests.chaos.summary import Summary
from tidemark.local.demo.synthetic import Published
from tidemark.local.demo.verification import TruthComparison

TROUBLES = (Trouble.PAUSED, Trouble.PAUSED, Trouble.DISK_FULL, Trouble.SECOND_DAEMON, Trouble.SECOND_PIPELINE)


def test_the_same_seed_plans_the_same_faults_at_the_same_moments() -> None:
    assert plan_of(7, 20, TROUBLES) == plan_of(7, 20, TROUBLES)
    assert plan_of(7, 20, TROUBLES) != plan_of(8, 20, TROUBLES)


@pytest.mark.parametrize("seed", range(50))
def test_every_target_has_its_turn_and_what_lasts_does_not_overlap(seed: int) -> None:
    plan = plan_of(seed, 20, TROUBLES)
    assert Counter(kill.target for kill in plan.kills) == dict.fromkeys(Target, 4)
    assert Counter(spell.trouble for spell in plan.spells) == Counter(TROUBLES)
    assert all(kill.target is not Target.READER for kill in plan.kills[14:])  # by then there may be no backlog
    assert list(plan.kills) == sorted(plan.kills, key=lambda kill: kill.at)
    ends = [spell.at + spell.seconds for spell in plan.spells]
    gaps = [spell.at - end for end, spell in zip(ends, plan.spells[1:], strict=False)]
    assert min(gaps) > SPELL_GAP_SECONDS - 0.2  # moments are rounded to a tenth


@pytest.mark.parametrize("kills", [0, 1, 2, 3, 7])
def test_a_plan_has_as_many_kills_as_are_asked_for(kills: int) -> None:
    for seed in range(20):
        plan = plan_of(seed, kills, TROUBLES)
        assert (len(plan.kills), len(plan.spells)) == (kills, len(TROUBLES))


def test_faults_that_cannot_be_played_are_left_out_and_nothing_else_is_moved() -> None:
    plan = plan_of(1, 20, TROUBLES)
    left = without(plan, Trouble.DISK_FULL)
    assert left.kills == plan.kills
    assert left.spells == tuple(spell for spell in plan.spells if spell.trouble is not Trouble.DISK_FULL)


def test_restarts_are_counted_by_what_the_supervisor_said() -> None:
    said = "tidemark Dagster daemon ended with code -9: starting it again\ntidemark running: http://127.0.0.1:1\n"
    assert restarts_in(said * 2) == {"Dagster daemon": 2}


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
