"""What the readers of rounds remember: only what was settled, whatever attempts there were."""

from dataclasses import dataclass
from datetime import timedelta

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tidemark.pipeline.ingest.copies import RememberedCopies
from tidemark.pipeline.ingest.rounds import ATTEMPTS_NOTED, Provisional
from tidemark.pipeline.ingest.tracking import Counted
from tidemark.pipeline.watermark.histogram import Histogram

TEN_MINUTES = timedelta(minutes=10)
Message = tuple[int, int]
"""A key and a publish time in microseconds."""

messages = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), max_size=4)


def counted(these: list[Message]) -> Counted:
    keys, publish_us = (np.array([one[place] for one in these], dtype=np.int64) for place in (0, 1))
    return Counted(Histogram.empty(), keys, publish_us)


def are_copies(remembered: RememberedCopies, one: Message) -> bool:
    keys, publish_us = np.array([one], dtype=np.int64).T
    return bool(remembered.are_copies(keys, publish_us)[0])


@dataclass
class Attempt:
    """An attempt that a process has made. One without batches is not noted."""

    name: str
    messages: list[Message]
    batches: int


class Process(RuleBasedStateMachine):
    """A process that makes attempts, some of which are settled, with others of other processes, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.provisional = Provisional(RememberedCopies(TEN_MINUTES))
        self.pending: list[Attempt] = []
        self.durable: dict[int, int] = {}
        self.names: set[str] = set()

    @rule(batches=st.lists(messages, max_size=3))
    def count(self, batches: list[list[Message]]) -> None:
        name = self.provisional.note([counted(batch) for batch in batches])
        assert name not in self.names, "two attempts of one name"
        self.names.add(name)
        self.pending.append(Attempt(name, [one for batch in batches for one in batch], len(batches)))

    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        """Some of the latest attempts are in the log, and it may be said again of older ones."""
        noted = [one for one in self.pending if one.batches]
        settled = [one for one in noted if data.draw(st.booleans())]
        others = data.draw(st.frozensets(st.sampled_from(["of another process", "of nobody", *self.names])))
        told_again = others - {one.name for one in noted}
        self.provisional.settle(told_again | {one.name for one in settled})
        for one in settled:
            self.pending.remove(one)
            for key, publish_us in one.messages:
                self.durable[key] = min(publish_us, self.durable.get(key, publish_us))
        dropped = [one for one in self.pending if one.batches][:-ATTEMPTS_NOTED]
        self.pending = [one for one in self.pending if one not in dropped]

    @invariant()
    def remembers_what_was_settled_and_nothing_else(self) -> None:
        for key in range(10):
            for publish_us in range(6):
                is_known = key in self.durable and self.durable[key] <= publish_us
                assert are_copies(self.provisional.copies, (key, publish_us)) == is_known


TestProcess = Process.TestCase


@given(attempts=st.integers(1, 50))
def test_attempts_that_are_never_settled_do_not_add_up(attempts: int) -> None:
    provisional = Provisional(RememberedCopies(TEN_MINUTES))
    for key in range(attempts):
        provisional.note([counted([(key, 0)])])
        provisional.settle(frozenset())
    assert len(provisional._noted) <= ATTEMPTS_NOTED
    assert not len(provisional.copies)


def test_where_copies_are_not_remembered_nothing_is_noted() -> None:
    provisional = Provisional(RememberedCopies())
    assert provisional.note([counted([(1, 0)])])
    assert not provisional._noted
