"""Landing under a name, for readers that may be started again or twice: whoever asks for a name that something has
landed under is served that, and pulls nothing.

The order is the guarantee: pull, make durable, create the manifest, acknowledge.
"""

import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime

import orjson

from pipeline.clock import Clock, from_us, to_us
from pipeline.errors import CorruptObject, LandingOver, ObjectExists, ObjectMissing
from pipeline.heartbeat import FieldKind, HeartbeatReader, RejectionReason
from pipeline.lake.store.objects import ObjectStore
from pipeline.lake.tables.landings import encode_piece, manifest_name, piece_name
from pipeline.lake.tables.quarantine import Quarantine
from pipeline.pubsub.subscription import Acknowledged, Subscription
from pipeline.ticks.budget import Budget, batches
from pipeline.ticks.landing import Keeper, Landed, SortedOut


@dataclass(frozen=True, slots=True)
class NamedLanding:
    """What landed under a name. `pieces` are the objects that hold the heartbeats, where the keeper makes objects.
    One that `is_served` had landed before, or somebody else was first: then nothing was acknowledged for it now."""

    name: str
    landed: Landed
    pieces: tuple[str, ...] = ()
    oldest_publish_time: datetime | None = None
    is_served: bool = False


def never() -> bool:
    """For names that are never over: their manifests stay."""
    return False


def land_named(
    name: str,
    subscription: Subscription,
    *,
    objects: ObjectStore,
    keeper: Keeper,
    watermark: Callable[[], datetime | None],
    reader: HeartbeatReader,
    budget: Budget,
    clock: Clock,
    is_over: Callable[[], bool] = never,
) -> NamedLanding:
    """Serve what has landed under `name`; else pull, make durable, create the manifest, acknowledge, and report.

    Guarantee: what is acknowledged is durable and listed by the one manifest that `name` will ever have, however many
    readers try, die or are started again. A reader that loses acknowledges nothing: its messages come again, and what
    it kept in tables stands there twice. An empty pull leaves an empty manifest. All of the budget is outstanding at
    once, with its leases kept: unlike `land`, nothing is acknowledged before everything is durable.

    `watermark` is asked for each batch: what is below it is late. `is_over` says that nobody will ask for the name any
    more, so that its manifest may be gone: raises LandingOver then, with nothing acknowledged. Raises PubSubError or
    LakeError; then nothing was acknowledged that is not durable, and the same name may be tried again.
    """
    there = landed_under(name, objects)
    if there is not None:
        return there
    _refuse(is_over, name)
    landing = NamedLanding(name, Landed())
    ack_ids: list[str] = []
    with ExitStack() as leases:
        for batch in batches(subscription, budget, clock):
            leases.enter_context(subscription.leased(batch.ack_ids))
            sorted_out = SortedOut.of(batch.messages, reader, watermark(), clock.now())
            pieces = keeper.keep(sorted_out)
            landing = replace(
                landing,
                landed=landing.landed + sorted_out.report(Acknowledged()),
                pieces=(*landing.pieces, *pieces),
                oldest_publish_time=_earlier(landing.oldest_publish_time, sorted_out.oldest_publish_time),
            )
            ack_ids += batch.ack_ids
            del batch, sorted_out
        try:
            objects.create(manifest_name(name), _encode(landing))
        except ObjectExists:
            return _served_instead(landing, objects)
        _refuse(is_over, name)
        acknowledged = subscription.acknowledge(ack_ids)
    return replace(landing, landed=replace(landing.landed, acknowledged=acknowledged))


def landed_under(name: str, objects: ObjectStore) -> NamedLanding | None:
    """What has landed under a name, or None. Raises CorruptObject, LakeUnreachable."""
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


class Pieces:
    """Keeps heartbeats as Parquet objects of one attempt to land under a name, and the rejected in quarantine."""

    def __init__(
        self, name: str, objects: ObjectStore, fields: Mapping[str, FieldKind], quarantine: Quarantine
    ) -> None:
        self._name = name
        self._attempt = uuid.uuid4().hex[:12]
        self._objects = objects
        self._fields = fields
        self._quarantine = quarantine
        self._written = 0

    def keep(self, sorted_out: SortedOut) -> tuple[str, ...]:
        """One object for a batch; none where nothing in it is a heartbeat."""
        if sorted_out.refused["message_id"]:
            self._quarantine.append(sorted_out.refused)
        if not sorted_out.accepted["message_id"]:
            return ()
        piece = piece_name(self._name, self._attempt, self._written)
        self._objects.create(piece, encode_piece(sorted_out.accepted, self._fields))
        self._written += 1
        return (piece,)


def _served_instead(lost: NamedLanding, objects: ObjectStore) -> NamedLanding:
    """The winner's landing; ours will come again, and its objects are listed nowhere."""
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
