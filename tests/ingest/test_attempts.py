"""What a process remembers of its attempts to track: only what was settled, whatever attempts there were."""

from dataclasses import dataclass
from datetime import timedelta

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.watermark.builders import ints
from tidemark.pipeline.ingest.copies import ATTEMPTS_NOTED, RememberedCopies

TEN_MINUTES = timedelta(minutes=10)
Message = tuple[int, int]
"""A key and a publish time in microseconds."""

messages = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), max_size=4)


def note(copies: RememberedCopies, these: list[Message]) -> str:
    return copies.note(ints(key for key, _ in these), ints(publish_us for _, publish_us in these))


def are_copies(remembered: RememberedCopies, one: Message) -> bool:
    keys, publish_us = np.array([one], dtype=np.int64).T
    return bool(remembered.are_copies(keys, publish_us)[0])


@dataclass
class Attempt:
    """An attempt that a process has made. One without messages is not noted."""

    name: str
    messages: list[Message]


class Process(RuleBasedStateMachine):
    """A process that makes attempts, some of which are settled, with others of other processes, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.copies = RememberedCopies(TEN_MINUTES)
        self.pending: list[Attempt] = []
        self.durable: dict[int, int] = {}
        self.names: set[str] = set()

    @rule(these=messages)
    def count(self, these: list[Message]) -> None:
        name = note(self.copies, these)
        assert name not in self.names, "two attempts of one name"
        self.names.add(name)
        self.pending += [Attempt(name, these)] if these else []

    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        """Some of the latest attempts are in the log, and it may be said again of older ones."""
        settled = [one for one in self.pending if data.draw(st.booleans())]
        others = data.draw(st.frozensets(st.sampled_from(["of another process", "of nobody", *self.names])))
        told_again = others - {one.name for one in self.pending}
        self.copies.settle(told_again | {one.name for one in settled})
        for one in settled:
            self.pending.remove(one)
            for key, publish_us in one.messages:
                self.durable[key] = min(publish_us, self.durable.get(key, publish_us))
        self.pending = self.pending[-ATTEMPTS_NOTED:]

    @invariant()
    def remembers_what_was_settled_and_nothing_else(self) -> None:
        for key in range(10):
            for publish_us in range(6):
                is_known = key in self.durable and self.durable[key] <= publish_us
                assert are_copies(self.copies, (key, publish_us)) == is_known


TestProcess = Process.TestCase


@given(attempts=st.integers(1, 50))
def test_attempts_that_are_never_settled_do_not_add_up(attempts: int) -> None:
    copies = RememberedCopies(TEN_MINUTES)
    for key in range(attempts):
        note(copies, [(key, 0)])
        copies.settle(frozenset())
    assert len(copies._noted) <= ATTEMPTS_NOTED
    assert not len(copies._keys)


def test_where_copies_are_not_remembered_nothing_is_noted() -> None:
    copies = RememberedCopies()
    assert note(copies, [(1, 0)])
    assert not copies._noted
