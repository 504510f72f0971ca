"""What the two services share: the model behind one lock, and the time."""

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
    """The model and the lock under which alone it is touched; whoever waits for messages waits on `changed`."""

    def __init__(self, model: PubSubModel, clock: Clock) -> None:
        self.model = model
        self.clock = clock
        self.changed = Condition()
        self.closed = False
        self._latest = clock.now()

    def now(self) -> datetime:
        """The time for the model, under the lock: it stands still while the clock goes back."""
        self._latest = max(self._latest, self.clock.now())
        return self._latest

    def close(self) -> None:
        """End all waiting."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()


def page(found: list[Any], request: Any) -> tuple[list[Any], str]:
    """The part of a list that a request asks for, and the token of the next one. A size below 1 asks for all."""
    if not re.fullmatch("[0-9]{0,9}", request.page_token):
        raise Invalid(f"page_token = {request.page_token!r} is none of ours")
    start = int(request.page_token or 0)
    end = start + request.page_size if request.page_size > 0 else len(found)
    return found[start:end], str(end) if end < len(found) else ""


def merged(old: Any, new: Any, mask: FieldMask, allowed: frozenset[str]) -> Any:
    """A copy of `old` with the fields of the mask taken from `new`."""
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
    """Say which settings of a resource are kept and given back, and have no effect here."""
    if named := sorted(field.name for field, _ in config.ListFields() if field.name in ignored):
        logger.warning("%s: %s has no effect here", config.name, ", ".join(named))
