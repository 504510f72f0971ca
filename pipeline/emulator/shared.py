"""The parts that both services use: the model behind one lock, the time, lists by page, updates by mask."""

import logging
import re
from datetime import datetime
from threading import Condition
from typing import Any

from google.protobuf.field_mask_pb2 import FieldMask

from pipeline.clock import Clock
from pipeline.emulator.model import PubSubModel
from pipeline.emulator.refusals import Invalid

logger = logging.getLogger(__name__)


class Shared:
    """The model, and `changed`: the lock that every call holds, and the condition that waiting pulls wait for."""

    def __init__(self, model: PubSubModel, clock: Clock) -> None:
        self.model = model
        self.clock = clock
        self.changed = Condition()
        self.closed = False
        self._latest = clock.now()

    def now(self) -> datetime:
        """The model's time, under the lock. It stands still while the clock goes back."""
        self._latest = max(self._latest, self.clock.now())
        return self._latest

    def close(self) -> None:
        """End all waiting."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()


class Service:
    """Base of both services. Each of their methods is one of the API's: it takes a plain protobuf request and the
    call's context, and returns the answer. The caller holds the lock. Raises ModelErrors."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._model = shared.model


def page(answer: Any, field: str, found: list[Any], request: Any) -> Any:
    """The answer with the part of a list that a request asks for. A page size below 1 asks for all."""
    if not re.fullmatch("[0-9]{0,9}", request.page_token):
        raise Invalid(f"page_token = {request.page_token!r} was not issued here")
    start = int(request.page_token or 0)
    end = start + request.page_size if request.page_size > 0 else len(found)
    return answer(**{field: found[start:end], "next_page_token": str(end) if end < len(found) else ""})


def merged(old: Any, new: Any, mask: FieldMask, allowed: frozenset[str]) -> Any:
    """A copy of `old` with the mask's fields taken from `new`. Raises Invalid for a field that cannot change."""
    if not mask.paths:
        raise Invalid("update_mask names no field")
    for path in mask.paths:
        if path not in allowed:
            raise Invalid(f"update_mask: {path} cannot be changed")
    changed = type(old)()
    changed.CopyFrom(old)
    mask.MergeMessage(new, changed, replace_message_field=True, replace_repeated_field=True)
    return changed


def warn_of_ignored(config: Any, ignored: frozenset[str]) -> None:
    """Warn of the settings that are stored and returned but have no effect here."""
    if named := sorted(field.name for field, _ in config.ListFields() if field.name in ignored):
        logger.warning("%s: %s has no effect here", config.name, ", ".join(named))
