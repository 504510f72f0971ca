"""Snapshots of what a subscription had not seen acknowledged, taken without copying it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pipeline.emulator.unacknowledged import Outstanding


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is told of a snapshot. `config` is the caller's own."""

    name: str
    topic: str
    expire_time: datetime
    config: Any = None


class Journal:
    """A snapshot's messages: what was unacknowledged when it was taken, and what was published since.

    Nothing is copied: what the subscription forgets afterwards is kept here. Cost: a step for each message that is
    acknowledged or published while the snapshot exists.
    """

    def __init__(self, source: Outstanding, next_number: int) -> None:
        self._source = source  # if the subscription is deleted, it stands still
        self._next = next_number
        self._kept: dict[int, Any] = {}
        self._since: dict[int, Any] = {}
        self._restored: set[int] = set()  # unacknowledged again since: the snapshot's only if kept

    def published(self, numbers: range, messages: Sequence[Any]) -> None:
        """Messages of the topic were published."""
        self._since.update(zip(numbers, messages, strict=True))

    def forgotten(self, source: Outstanding, number: int, message: Any) -> None:
        """A subscription acknowledged a message."""
        if source is self._source and number < self._next and number not in self._restored:
            self._kept[number] = message

    def restored(self, source: Outstanding, number: int) -> None:
        """A subscription has an acknowledged message again."""
        if source is self._source and number < self._next:
            self._restored.add(number)

    def messages(self) -> Mapping[int, Any]:
        """All of it, by number. Costs as much as there is."""
        return self._at_its_time() | self._since

    def _at_its_time(self) -> dict[int, Any]:
        still = {
            number: message
            for number, message in self._source.messages.items()
            if number < self._next and number not in self._restored
        }
        return still | self._kept
