"""Messages whose event time is in the payload: compressed JSON, or Avro by revisions that appear at random moments."""

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from google.api_core import exceptions as api
from google.pubsub_v1 import types

from tests.simulation.traffic import BEAT, SECOND, Planned
from tidemark.pipeline.contract.heartbeat import HeartbeatReader, MessageContract
from tidemark.pipeline.contract.payloads.schemas import Encoding, PayloadFormat
from tidemark.pipeline.contract.places import Place
from tidemark.pipeline.pubsub.schemas import PubSubSchemas

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

Written = Literal["json", "avro"]


OLD = "r0"
"""The revision that is there from the beginning."""

SOON_S: Sequence[float] = (0.5, 3, 10, 25)
DELAYS_S: Sequence[float | None] = (*SOON_S, 29.5, 31, 45, 59, 61, 90, 200, None)
"""How long after its first message a revision appears. None: never."""

NO_REVISION, UNREADABLE = "no such revision", "unreadable payload"
"""What is wrong with a message whose revision never appears, and with one whose payload cannot be read. Tracking sees
no event time in either."""


@dataclass(frozen=True, slots=True)
class Payloads:
    """How payloads are written, when each revision appears, and the chance that asking for them fails."""

    written: Written
    appears_us: Mapping[str, int | None]
    fails: float = 0.0

    def contract(self, contract: MessageContract) -> MessageContract:
        """The contract by which these are judged."""
        encoding = Encoding.JSON if self.written == "json" else Encoding.AVRO
        return replace(contract, event_time=Place.of("payload:event_time"), payload=PayloadFormat(encoding=encoding))

    def of_old(self, one: Planned) -> Planned:
        """A message of the revision that is there."""
        return replace(one, written=self.written, revision=OLD)


def with_payloads(
    rng: random.Random, messages: Sequence[Planned], *, soon: bool, troubled: bool
) -> tuple[Payloads, tuple[Planned, ...]]:
    """The same messages, written so. Copies of one heartbeat are equal, and of one revision. With `soon`, all
    revisions appear long before anybody loses patience."""
    written: Written = rng.choice(["json", "avro", "avro"])
    late, compressed = rng.choice([0, 0.2, 0.5]), rng.choice([0, 0.3, 1])
    heartbeats = dict[object, list[int]]()
    for number, one in enumerate(messages):
        heartbeats.setdefault(number if one.publisher_id is None else one.heartbeat, []).append(number)
    appears_us: dict[str, int | None] = {OLD: 0}
    made = [replace(one, written=written, revision=OLD) for one in messages]
    for numbers in heartbeats.values():
        is_compressed, revision, delay_s = rng.random() < compressed, OLD, rng.choice(SOON_S if soon else DELAYS_S)
        if written == "avro" and rng.random() < late:
            revision = f"r{len(appears_us)}"
            first_us = min(made[number].publish_us for number in numbers)
            appears_us[revision] = None if delay_s is None else first_us + round(delay_s * SECOND)
        for number in numbers:
            made[number] = _of_revision(made[number], revision, appears_us[revision], is_compressed=is_compressed)
        if any(made[number].appears_late for number in numbers):
            for number in numbers:
                made[number] = replace(made[number], is_doubtful=True)
    return Payloads(written, appears_us, rng.choice([0, 0.05]) if troubled else 0.0), tuple(made)


def _of_revision(one: Planned, revision: str, appears_us: int | None, *, is_compressed: bool) -> Planned:
    flaw = UNREADABLE if one.flaw == "payload" else one.flaw
    if appears_us is None:
        flaw = flaw or NO_REVISION
    return replace(one, revision=revision, appears_us=appears_us, flaw=flaw, is_compressed=is_compressed)


class Listed:
    """Answers what revisions a schema has at this moment."""

    def __init__(self, world: "Simulation", payloads: Payloads) -> None:
        self._world = world
        self._payloads = payloads

    def list_schema_revisions(self, **_names: object) -> Iterable[Any]:
        """As the client of Pub/Sub. Raises what that raises."""
        if not self._world.is_calm and self._world.rng.random() < self._payloads.fails:
            raise api.ServiceUnavailable("schemas are not listed now")
        return [
            types.Schema(type_=types.Schema.Type.AVRO, revision_id=revision, definition=json.dumps(BEAT))
            for revision, appears_us in self._payloads.appears_us.items()
            if appears_us is not None and appears_us <= self._world.schedule.now_us
        ]


def reader_of(world: "Simulation", contract: MessageContract, payloads: Payloads) -> HeartbeatReader:
    """What one process judges by: it knows no schema yet."""
    schemas = PubSubSchemas(("", None))  # type: ignore[arg-type]
    schemas._client = Listed(world, payloads)  # type: ignore[assignment]
    return HeartbeatReader(contract, schemas)
