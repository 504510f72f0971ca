"""Attach beside Google's own clients in Java and in Go, and the checker that judges it."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.attach.checking import A_CELL, Acknowledged, Checked, check
from tests.attach.foreign import BAND, built, missing, play
from tests.watermark.builders import at
from tidemark.pipeline.watermark.decision import Decision, Reason
from tidemark.pipeline.watermark.readings import Reading, follow

pytestmark = pytest.mark.timeout(900)
SECOND = timedelta(seconds=1)


@pytest.mark.slow
@pytest.mark.parametrize(("client", "server"), [("java", "emulator_host"), ("go", "own_pubsub")])
def test_nothing_below_the_watermark_is_still_to_be_acknowledged_by_a_foreign_reader(
    client: str, server: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if why := missing(client):
        pytest.skip(why)
    folder = tmp_path / "play"
    folder.mkdir()
    found = play(folder, built(client, tmp_path), request.getfixturevalue(server), print)
    assert found.disorder <= BAND, "the premise: the machine was too slow to publish in order"
    assert (found.violations, found.falls) == ([], 0)
    assert found.short_of_the_end <= BAND + A_CELL
    late = {i: replace(one, sending=one.sending + timedelta(minutes=1)) for i, one in found.record.items()}
    assert check(found.event_times, late, found.made).violations


@pytest.mark.slow
def test_an_attach_that_does_not_look_at_base_is_found(own_pubsub: str, tmp_path: Path) -> None:
    if why := missing("go"):
        pytest.skip(why)
    folder = tmp_path / "play"
    folder.mkdir()
    found = play(folder, built("go", tmp_path), own_pubsub, print, module="tests.attach.blind")
    assert found.violations


def decided(watermark: int, asked: int, answered: int) -> Decision:
    reading = Reading(at(asked), at(asked), names_a_message=False, answered_at=at(answered))
    return Decision(at(answered + 1), at(watermark), Reason.ADVANCED, base=follow(None, reading, SECOND))


def judged(sending: int | None, *decisions: Decision, event: int | None = 10) -> Checked:
    record = {} if sending is None else {"m": Acknowledged(at(sending), at(11))}
    return check({"m": None if event is None else at(event)}, record, decisions)


@pytest.mark.parametrize(
    ("sending", "event", "is_violated"),
    [
        pytest.param(21, 10, True, id="sent after base was read"),
        pytest.param(20, 10, False, id="sent while base was read"),
        pytest.param(None, 10, True, id="never sent"),
        pytest.param(21, 15, False, id="at the watermark"),
        pytest.param(None, None, False, id="rejected by the contract"),
    ],
)
def test_a_message_below_the_watermark_must_have_been_sent_before_base_was_read(
    sending: int | None, event: int | None, *, is_violated: bool
) -> None:
    assert bool(judged(sending, decided(15, 18, 20), event=event).violations) == is_violated
