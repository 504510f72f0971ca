"""The tracking log looked at for a repair, and the note that takes the place of an entry beyond repair."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from pipeline.errors import CorruptObject, ObjectMissing
from pipeline.lake.layout import Lake
from pipeline.lake.log.tracking_log import TrackingLog, entry_name
from pipeline.lake.store.read_ahead import read_ahead
from pipeline.watermark.state import Compacted, DecisionRecord, Entry, Lost
from pipeline.windows import Windowing


@dataclass(frozen=True, slots=True)
class LogHealth:
    """How many entries were read; which are damaged, missing or forgotten, and why; and whether the end is lost."""

    read: int = 0
    damaged: Sequence[tuple[int, str]] = ()
    forgotten: Sequence[tuple[int, str]] = ()
    lost: Sequence[str] = ()

    @property
    def is_whole(self) -> bool:
        """Whether nothing has to be done about it."""
        return not self.damaged and not self.lost


def check_log(log: TrackingLog, since: datetime, tell: Callable[[int, int], None] | None = None) -> LogHealth:
    """Read back to a compacted entry before the decision in force at `since`: all that a restart needs, and all that
    explains that time. Returns damage, and raises LakeUnreachable."""
    numbers = log.numbers()
    damaged: list[tuple[int, str]] = []
    forgotten: list[tuple[int, str]] = []
    read, is_before, is_compacted = 0, False, False
    backwards = range(numbers[-1], numbers[0] - 1, -1) if numbers else ()
    for number, entry in read_ahead(partial(_entry_or_damage, log), backwards):
        read += 1
        is_compacted = isinstance(entry, Compacted)
        match entry:
            case str():
                damaged.append((number, entry))
            case Lost():
                forgotten.append((number, entry.what))
            case DecisionRecord():
                is_before = is_before or entry.decision.at <= since
            case Compacted() if is_before:
                break
        if tell is not None:
            tell(read, len(numbers))
    else:
        if numbers and numbers[0] and not is_compacted:  # housekeeping leaves a compacted one first
            damaged.append((numbers[0] - 1, f"{entry_name(numbers[0] - 1)}, and what is before it, is missing"))
    lost = []
    if not damaged:
        try:
            log.catch_up_to_append()
        except CorruptObject as error:
            lost.append(str(error))
    return LogHealth(read, sorted(damaged), sorted(forgotten), lost)


def forget_entry(lake: Lake, windowing: Windowing, number: int) -> datetime | None:
    """Put a note of the loss in the place of an entry of the log that is beyond repair. Assumption: no tracker runs.

    The watermark then does not go back below the one returned: the highest that the witness's note and the newest
    computed window tell of, None if neither does. Raises LakeError.
    """
    log, computed = lake.tracking_log(), lake.diffs().computed()
    known = [log.watermark_noted()]
    if computed:
        with suppress(ValueError):  # windows had another length then
            known.append(windowing.named(max(computed)).end)
    floor = max((watermark for watermark in known if watermark is not None), default=None)
    log.forget(number, "an operator called it lost", floor)
    return floor


def _entry_or_damage(log: TrackingLog, number: int) -> Entry | str:
    """The entry, or what is wrong with it."""
    try:
        return log.entry(number)
    except ObjectMissing:
        return f"{entry_name(number)} is missing"
    except CorruptObject as error:
        return str(error)
