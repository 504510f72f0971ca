"""Snapshots of a subscription's unacknowledged messages, taken without copying them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pipeline.emulator.unacknowledged import Outstanding


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot's description. `config` is the caller's own."""

    name: str
    topic: str
    expire_time: datetime
    config: Any = None


class Journal:
    """A snapshot's messages: those unacknowledged when it was taken, and those published since.

    It keeps only messages that the subscription forgets afterwards. Cost: one step for each message acknowledged or
    published while the snapshot exists.
    """

    def __init__(self, source: Outstanding, next_number: int) -> None:
        self._source = source  # stays as it is if the subscription is deleted
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
        """All messages by number, in as many steps."""
        still_there = {
            number: message
            for number, message in self._source.messages.items()
            if number < self._next and number not in self._restored
        }
        return still_there | self._kept | self._since
