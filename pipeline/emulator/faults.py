"""The faults of the model and their chances, drawn from the model's own random numbers."""

from dataclasses import dataclass, fields
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Faults:
    """No faults by default. A number is a chance: of each message in the first group, of each call in the second.

    Raises ValueError for a chance outside 0 to 1, and for a negative duration.
    """

    shuffled: bool = False  # messages are delivered in random order instead of the order of publication
    redelivered: float = 0.0  # its acknowledgement counts at first, and is undone within an ack deadline, once
    acknowledgement_lost: float = 0.0  # its acknowledgement has no effect, although the call succeeds
    late_acknowledgement_lost: float = 0.0  # its acknowledgement has no effect once its lease has ended
    duplicate_delivery: float = 0.0  # it is delivered a second time although it is leased
    visible_after: timedelta = timedelta(0)  # each subscription sees it at most so much later, in pulls and in readings
    whole_seconds: bool = False  # its publish time is rounded down to the second, so that there are ties

    acknowledgement_answer_lost: float = 0.0  # an acknowledgement takes effect, and the caller gets UNAVAILABLE
    stale_reading: float = 0.0  # a snapshot has the expiry of an earlier one, so its reading is an earlier reading
    reading_unavailable: float = 0.0  # a snapshot is refused, FAILED_PRECONDITION
    unavailable: float = 0.0  # nothing is done, UNAVAILABLE
    answer_lost: float = 0.0  # it takes effect, UNAVAILABLE; pulled messages are then leased to nobody
    deadline_exceeded: float = 0.0  # nothing is done, DEADLINE_EXCEEDED
    throttled: float = 0.0  # nothing is done, RESOURCE_EXHAUSTED

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, timedelta):
                if value < timedelta(0):
                    raise ValueError(f"{field.name} = {value}: a duration is not negative")
            elif not 0 <= value <= 1:
                raise ValueError(f"{field.name} = {value}: a chance is between 0 and 1")
