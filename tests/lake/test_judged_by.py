"""The contract that messages are judged by is in the log, and only those who judge by the newest settle."""

from datetime import datetime
from functools import partial
from pathlib import Path

import pytest

from tests.lake.test_tracking_log import deciding, log_on, snapshot
from tests.watermark.builders import at, reading
from tidemark.pipeline.errors import ContractReplaced
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.settings_sections import LakeSettings
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.readings import Reading
from tidemark.pipeline.watermark.state import Beginning, DecisionRecord, Lost, WatermarkState

OLD, NEW = "old", "new"


@pytest.fixture
def settings(tmp_path: Path) -> LakeSettings:
    return LakeSettings(uri=f"file:{tmp_path}/lake")


def tracker(settings: LakeSettings, contract: str) -> TrackingLog:
    """A process that begins to track by a contract."""
    log = log_on(settings)
    log.begin(Beginning(at(0)))
    log.judge_by(contract)
    return log


def tick(log: TrackingLog, second: float, contract: str) -> datetime | None:
    """A tick of a process, and the watermark after it."""
    log.judge_by(contract)
    log.append(snapshot(second), judged_by=contract)
    return log.decide(deciding(second + 1)).decision.watermark


def decided(state: WatermarkState, base: Reading, second: float) -> DecisionRecord:
    """A decision while tracking has no backlog."""
    return state.decide(base, reading(second), Policy(), at(second))


def test_once_a_process_begins_with_another_contract_the_old_one_settles_nothing(settings: LakeSettings) -> None:
    old, lander = tracker(settings, OLD), log_on(settings)
    tick(old, 100, OLD)
    lander.refuse_other(OLD)
    new = tracker(settings, NEW)
    entries = new.numbers()
    assert isinstance(new.entry(entries[-1]), Lost)
    for settles in (
        lambda: old.append(snapshot(120), judged_by=OLD),
        lambda: old.decide(deciding(121)),
        lambda: old.judge_by(OLD),
        lambda: lander.refuse_other(OLD),
        lambda: log_on(settings).refuse_other(OLD),
    ):
        with pytest.raises(ContractReplaced, match="Restart this process"):
            settles()
    assert new.numbers() == entries
    lander.refuse_other(NEW)
    assert log_on(settings).newest().contract == NEW


@pytest.mark.parametrize("contract", [OLD, NEW])
def test_under_another_contract_the_watermark_stands_until_base_has_passed_the_old_one(
    settings: LakeSettings, contract: str
) -> None:
    marks = [tick(tracker(settings, OLD), second, OLD) for second in (100, 120, 140)]
    log = tracker(settings, contract)
    assert log.catch_up().is_missing_entries == (contract == NEW)
    log.append(snapshot(160), judged_by=contract)
    behind = log.decide(partial(decided, base=reading(161, 139), second=161)).decision.watermark
    passed = tick(log, 200, contract)
    assert marks[-1] is not None
    assert behind is not None
    assert passed is not None
    assert (behind > marks[-1]) == (contract == OLD), "base has a message that was published while the old one judged"
    assert passed > behind
