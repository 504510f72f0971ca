"""What may go wrong in the model, each with its chance. All of it is drawn from the model's own random numbers."""

from dataclasses import dataclass, fields
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Faults:
    """Nothing goes wrong by default. Chances are between 0 and 1: of a message where it says so, else of a call.

    Raises ValueError for a chance outside of 0 and 1, and for a negative duration.
    """

    shuffled: bool = False
    """Messages are delivered in any order, not in the order in which they were published."""

    redelivered: float = 0.0
    """Of a message: its acknowledgement is undone within an ack deadline, once. Until then it counts."""

    acknowledgement_lost: float = 0.0
    """Of a message: its acknowledgement does not take effect, although the call succeeds."""

    late_acknowledgement_lost: float = 0.0
    """Of a message: its acknowledgement does not take effect where its lease has ended. Otherwise it still does."""

    acknowledgement_answer_lost: float = 0.0
    """An acknowledgement takes effect, and the caller gets UNAVAILABLE."""

    duplicate_delivery: float = 0.0
    """Of a message: it is delivered a second time although it is leased."""

    visible_after: timedelta = timedelta(0)
    """Each subscription sees a message up to this long after its publish time, in pulls and in readings."""

    whole_seconds: bool = False
    """Publish times are rounded down to the second, so that there are ties."""

    stale_reading: float = 0.0
    """A snapshot expires as one that was taken before would have: its reading is an earlier one."""

    reading_unavailable: float = 0.0
    """A snapshot is refused (FAILED_PRECONDITION)."""

    unavailable: float = 0.0
    """Any call: nothing is done, UNAVAILABLE."""

    answer_lost: float = 0.0
    """Any call: it takes effect, and the caller gets UNAVAILABLE. What was pulled is leased, and nobody has it."""

    deadline_exceeded: float = 0.0
    """Any call: nothing is done, DEADLINE_EXCEEDED."""

    throttled: float = 0.0
    """Any call: nothing is done, RESOURCE_EXHAUSTED."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, timedelta):
                if value < timedelta(0):
                    raise ValueError(f"{field.name} = {value}: a duration is not negative")
            elif not 0 <= value <= 1:
                raise ValueError(f"{field.name} = {value}: a chance is between 0 and 1")
