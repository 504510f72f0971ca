"""Landing under a name, for `format("pubsub")`, whose readers may be started again or twice.

A reader whose name has a manifest is served what that lists, and pulls nothing. The order is the guarantee: pull, make
durable, create the manifest, acknowledge.
"""

import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime

import orjson
import pyarrow as pa

from pipeline.clock import Clock, from_us, to_us
from pipeline.errors import CorruptObject, LandingOver, ObjectExists, ObjectMissing
from pipeline.heartbeat import HeartbeatReader, RejectionReason
from pipeline.lake.store.objects import ObjectStore
from pipeline.lake.tables.landings import encode_piece, manifest_name, piece_name
from pipeline.lake.tables.quarantine import Quarantine
from pipeline.pubsub.subscription import Acknowledged, PulledBatch, Subscription
from pipeline.ticks.budget import Budget, for_each_batch
from pipeline.ticks.judging import JudgedBatch
from pipeline.ticks.landing import Landed


@dataclass(frozen=True, slots=True)
class NamedLanding:
    """What landed under a name. `pieces` are the objects that hold its heartbeats.

    `is_served` says that it had landed before, or that another reader was first. Nothing was acknowledged for it then.
    """

    name: str
    landed: Landed
    pieces: tuple[str, ...] = ()
    oldest_publish_time: datetime | None = None
    is_served: bool = False

    def __add__(self, other: "NamedLanding") -> "NamedLanding":
        return replace(
            self,
            landed=self.landed + other.landed,
            pieces=(*self.pieces, *other.pieces),
            oldest_publish_time=_earlier(self.oldest_publish_time, other.oldest_publish_time),
        )


def land_named(
    name: str,
    subscription: Subscription,
    *,
    objects: ObjectStore,
    quarantine: Quarantine,
    watermark: datetime | None,
    reader: HeartbeatReader,
    budget: Budget,
    clock: Clock,
    is_over: Callable[[], bool],
) -> NamedLanding:
    """Serve what has landed under `name`; else pull, make durable, create the manifest, acknowledge, and report.

    Guarantee: what is acknowledged is durable and listed by the one manifest that `name` will ever have, however many
    readers try, die or are started again. A reader that is not first acknowledges nothing: its messages come again. An
    empty pull leaves an empty manifest. Unlike `land`, it acknowledges nothing before everything is durable: all of
    the budget is outstanding at once, with its leases extended.

    A heartbeat below `watermark` is late. `is_over` says that nobody will ask for the name again, so that its manifest
    may be gone: raises LandingOver then, with nothing acknowledged. Raises PubSubError or LakeError; then nothing was
    acknowledged that is not durable, and the same name may be tried again.
    """
    there = landed_under(name, objects)
    if there is not None:
        return there
    _refuse(is_over, name)
    ack_ids: list[str] = []
    pieces = PieceSink(name, objects)
    with ExitStack() as leases:

        def keep_batch(batch: PulledBatch) -> NamedLanding:
            leases.enter_context(subscription.leased(batch.ack_ids))
            ack_ids.extend(batch.ack_ids)
            judged = JudgedBatch.of(batch.messages, reader, watermark, clock.now())
            if len(judged.rejected):
                quarantine.append(judged.rejected)
            written = (pieces.write(judged.heartbeats),) if len(judged.heartbeats) else ()
            return NamedLanding(name, Landed.of(judged, Acknowledged()), written, judged.oldest_publish_time)

        landing = sum(for_each_batch(subscription, budget, clock, keep_batch), NamedLanding(name, Landed()))
        try:
            objects.create(manifest_name(name), _encode(landing))
        except ObjectExists:
            return _served_instead(landing, objects)
        _refuse(is_over, name)
        acknowledged = subscription.acknowledge(ack_ids)
    return replace(landing, landed=replace(landing.landed, acknowledged=acknowledged))


def landed_under(name: str, objects: ObjectStore) -> NamedLanding | None:
    """The landing under a name, or None. Raises CorruptObject, LakeUnreachable."""
    try:
        content = objects.read(manifest_name(name))
    except ObjectMissing:
        return None
    try:
        return _decode(name, content)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise CorruptObject(
            f"{objects.uri}/{manifest_name(name)} is no manifest ({error!r}); put back a copy: what it lists is "
            "acknowledged already"
        ) from error


class PieceSink:
    """Writes batches of heartbeats as Parquet objects of one attempt to land under a name."""

    def __init__(self, name: str, objects: ObjectStore) -> None:
        self._name = name
        self._objects = objects
        self._attempt = uuid.uuid4().hex[:12]
        self._written = 0

    def write(self, rows: pa.Table) -> str:
        """Write a batch as one object, durable on return, and return its name. Raises LakeError."""
        piece = piece_name(self._name, self._attempt, self._written)
        self._objects.create(piece, encode_piece(rows))
        self._written += 1
        return piece


def _served_instead(lost: NamedLanding, objects: ObjectStore) -> NamedLanding:
    """The landing of the reader that was first. Our messages come again; no manifest lists our objects."""
    winner = landed_under(lost.name, objects)
    for piece in lost.pieces:
        objects.delete(piece)
    if winner is None:
        raise _over(lost.name)
    return winner


def _refuse(is_over: Callable[[], bool], name: str) -> None:
    if is_over():
        raise _over(name)


def _over(name: str) -> LandingOver:
    return LandingOver(
        f"the landing {name} is over: what landed under it was processed, and may be deleted. Nothing was acknowledged "
        "now. A task that was left behind may end like this; a stream whose checkpoint was put back further than what "
        "is kept needs a new checkpoint"
    )


def _earlier(one: datetime | None, other: datetime | None) -> datetime | None:
    return min((moment for moment in (one, other) if moment is not None), default=None)


def _encode(landing: NamedLanding) -> bytes:
    landed = landing.landed
    return orjson.dumps(
        {
            "pieces": landing.pieces,
            "heartbeats": landed.heartbeats,
            "rejected": {reason.value: count for reason, count in landed.rejected.items()},
            "late": landed.late,
            "of_another_kind": dict(landed.of_another_kind),
            "oldest_event_time_us": _us(landed.oldest_event_time),
            "newest_event_time_us": _us(landed.newest_event_time),
            "oldest_publish_time_us": _us(landing.oldest_publish_time),
        }
    )


def _decode(name: str, content: bytes) -> NamedLanding:
    said = orjson.loads(content)
    return NamedLanding(
        name,
        Landed(
            heartbeats=said["heartbeats"],
            rejected=Counter({RejectionReason(reason): count for reason, count in said["rejected"].items()}),
            late=said["late"],
            of_another_kind=Counter(said["of_another_kind"]),
            oldest_event_time=_moment(said["oldest_event_time_us"]),
            newest_event_time=_moment(said["newest_event_time_us"]),
        ),
        pieces=tuple(said["pieces"]),
        oldest_publish_time=_moment(said["oldest_publish_time_us"]),
        is_served=True,
    )


def _us(moment: datetime | None) -> int | None:
    return None if moment is None else to_us(moment)


def _moment(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else from_us(microseconds)
