"""The faults that tidemark's own Pub/Sub can simulate, and how likely each is."""

from dataclasses import dataclass, fields
from datetime import timedelta

FEW = 20
"""Maximum number of messages in an answer with the fault `small_answer`."""


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults that a PubSubModel simulates. By default, there are none. A number is the chance of a fault: per
    message in the first group of fields, per call in the second.

    Raises ValueError if a chance is outside 0 to 1, or a duration is negative.
    """

    shuffled: bool = False  # messages are delivered in random order instead of the order of publication
    redelivered: float = 0.0  # its acknowledgement takes effect, but is undone once, within an ack deadline
    acknowledgement_lost: float = 0.0  # its acknowledgement has no effect, although the call succeeds
    late_acknowledgement_lost: float = 0.0  # its acknowledgement has no effect once its lease has ended
    duplicate_delivery: float = 0.0  # it is delivered a second time although it is leased
    visible_after: timedelta = timedelta(0)  # each subscription sees it up to this much later, in pulls and readings
    whole_seconds: bool = False  # its publish time is rounded down to the second, to create ties

    acknowledgement_answer_lost: float = 0.0  # an acknowledgement takes effect, and the caller gets UNAVAILABLE
    stale_reading: float = 0.0  # a snapshot has the expiry of an earlier one, so the reading is old
    reading_unavailable: float = 0.0  # a snapshot is refused, FAILED_PRECONDITION
    unavailable: float = 0.0  # nothing is done, UNAVAILABLE
    answer_lost: float = 0.0  # the call takes effect, UNAVAILABLE; pulled messages stay leased
    deadline_exceeded: float = 0.0  # nothing is done, DEADLINE_EXCEEDED
    throttled: float = 0.0  # nothing is done, RESOURCE_EXHAUSTED
    empty_answer: float = 0.0  # a pull is answered at once with nothing, although messages wait
    small_answer: float = 0.0  # a pull brings at most `FEW` messages, although more wait

    answered_after: timedelta = timedelta(0)  # over gRPC a call takes between a third of this and all of it
    answers_the_gone: bool = False  # over gRPC a pull is still answered for a second after its caller has gone

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, timedelta):
                if value < timedelta(0):
                    raise ValueError(f"{field.name} = {value}: a duration must not be negative")
            elif not 0 <= value <= 1:
                raise ValueError(f"{field.name} = {value}: a chance must be between 0 and 1")


LIKE_THE_SERVICE = Faults(
    shuffled=True,
    redelivered=0.00001,
    duplicate_delivery=0.01,
    throttled=0.005,
    empty_answer=0.1,
    small_answer=0.7,
    answered_after=timedelta(milliseconds=60),
    answers_the_gone=True,
)
"""The normal faults of Google's service, at a higher rate. Calls take 20 to 60 ms, answers are small or empty despite a
backlog, messages are redelivered, quota runs out, and messages are leased to a caller that has gone."""
