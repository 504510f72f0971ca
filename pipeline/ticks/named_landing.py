"""Landing under a name, for `format("pubsub")`, whose readers may be started again or twice.

A reader whose name has a manifest is served what that lists, and pulls nothing. The order is the guarantee: pull, make
durable, create the manifest, acknowledge.
"""

import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime

import orjson

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

    landed: Landed
    pieces: tuple[str, ...] = ()
    is_served: bool = False


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
    pieces: list[str] = []
    attempt = uuid.uuid4().hex[:12]
    with ExitStack() as leases:

        def keep_batch(batch: PulledBatch) -> Landed:
            leases.enter_context(subscription.leased(batch.ack_ids))
            ack_ids.extend(batch.ack_ids)
            judged = JudgedBatch.of(batch.messages, reader, watermark, clock.now())
            if len(judged.rejected):
                quarantine.append(judged.rejected)
            if len(judged.heartbeats):
                piece = piece_name(name, attempt, len(pieces))
                objects.create(piece, encode_piece(judged.heartbeats))
                pieces.append(piece)
            return Landed.of(judged, Acknowledged())

        landed = sum(for_each_batch(subscription, budget, clock, keep_batch), Landed())
        try:
            objects.create(manifest_name(name), _encode(landed, pieces))
        except ObjectExists:
            return _served_instead(name, pieces, objects)
        _refuse(is_over, name)
        acknowledged = subscription.acknowledge(ack_ids)
    return NamedLanding(replace(landed, acknowledged=acknowledged), tuple(pieces))


def landed_under(name: str, objects: ObjectStore) -> NamedLanding | None:
    """The landing under a name, or None. Raises CorruptObject, LakeUnreachable."""
    try:
        content = objects.read(manifest_name(name))
    except ObjectMissing:
        return None
    try:
        return _decode(content)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise CorruptObject(
            f"{objects.uri}/{manifest_name(name)} is no manifest ({error!r}); put back a copy: what it lists is "
            "acknowledged already"
        ) from error


def _served_instead(name: str, pieces: Sequence[str], objects: ObjectStore) -> NamedLanding:
    """The landing of the reader that was first. Our messages come again; no manifest lists our pieces."""
    winner = landed_under(name, objects)
    for piece in pieces:
        objects.delete(piece)
    if winner is None:
        raise _over(name)
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


def _encode(landed: Landed, pieces: Sequence[str]) -> bytes:
    return orjson.dumps(
        {
            "pieces": pieces,
            "heartbeats": landed.heartbeats,
            "rejected": {reason.value: count for reason, count in landed.rejected.items()},
            "late": landed.late,
            "of_another_kind": dict(landed.of_another_kind),
            "oldest_event_time_us": _us(landed.oldest_event_time),
            "newest_event_time_us": _us(landed.newest_event_time),
            "oldest_publish_time_us": _us(landed.oldest_publish_time),
        }
    )


def _decode(content: bytes) -> NamedLanding:
    said = orjson.loads(content)
    return NamedLanding(
        Landed(
            heartbeats=said["heartbeats"],
            rejected=Counter({RejectionReason(reason): count for reason, count in said["rejected"].items()}),
            late=said["late"],
            of_another_kind=Counter(said["of_another_kind"]),
            oldest_event_time=_moment(said["oldest_event_time_us"]),
            newest_event_time=_moment(said["newest_event_time_us"]),
            oldest_publish_time=_moment(said["oldest_publish_time_us"]),
        ),
        pieces=tuple(said["pieces"]),
        is_served=True,
    )


def _us(moment: datetime | None) -> int | None:
    return None if moment is None else to_us(moment)


def _moment(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else from_us(microseconds)
