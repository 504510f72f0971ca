"""Landing: messages of the base subscription become rows of `heartbeats`, or of `quarantine` with a reason.

`land` is one tick. `land_named` lands under a name, for `format("pubsub")`, whose readers may be started again or
twice: a reader whose name has a manifest is served what that lists, and pulls nothing. The order is the guarantee:
pull, make durable, create the manifest, acknowledge.
"""

import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import orjson
import pyarrow.compute as pc

from tidemark.pipeline.clock import Clock, from_us, to_us
from tidemark.pipeline.contract.heartbeat import HeartbeatReader, RejectionReason
from tidemark.pipeline.errors import CorruptObject, LandingOver, ObjectExists, ObjectMissing
from tidemark.pipeline.ingest.budget import Budget, for_each_batch
from tidemark.pipeline.ingest.judging import JudgedBatch
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.lake.tables.heartbeats import Heartbeats
from tidemark.pipeline.lake.tables.landings import encode_piece, manifest_name, piece_name
from tidemark.pipeline.lake.tables.quarantine import Quarantine
from tidemark.pipeline.pubsub.backlog import Backlog
from tidemark.pipeline.pubsub.subscription import Acknowledged, PulledBatch, Subscription
from tidemark.pipeline.version import marks, refuse_newer


@dataclass(frozen=True, slots=True)
class Landed:
    """The result of a landing tick.

    `messages` are those made durable, rejected ones included. `late` counts landings below the watermark of their
    moment, copies included. `of_another_kind` counts by field the values of another kind than configured, which are
    landed as null. `oldest_publish_time` is of rejected ones as well.
    """

    heartbeats: int = 0
    rejected: Counter[RejectionReason] = field(default_factory=Counter)
    late: int = 0
    of_another_kind: Counter[str] = field(default_factory=Counter)
    oldest_event_time: datetime | None = None
    newest_event_time: datetime | None = None
    oldest_publish_time: datetime | None = None
    acknowledged: Acknowledged = field(default_factory=Acknowledged)
    messages: int = 0

    @classmethod
    def of(cls, judged: JudgedBatch) -> "Landed":
        """What was judged, once it is durable. It is not acknowledged yet."""
        events = pc.min_max(judged.heartbeats["event_time"]).as_py()
        published = (pc.min(rows["publish_time"]).as_py() for rows in (judged.heartbeats, judged.rejected))
        return cls(
            heartbeats=len(judged.heartbeats),
            rejected=Counter(RejectionReason(reason) for reason in judged.rejected["reason"].to_pylist()),
            late=pc.sum(judged.heartbeats["late"]).as_py() or 0,
            of_another_kind=judged.of_another_kind,
            oldest_event_time=events["min"],
            newest_event_time=events["max"],
            oldest_publish_time=_oldest(*published),
            messages=judged.messages,
        )

    def __add__(self, other: "Landed") -> "Landed":
        newest = (self.newest_event_time, other.newest_event_time)
        return Landed(
            heartbeats=self.heartbeats + other.heartbeats,
            rejected=self.rejected + other.rejected,
            late=self.late + other.late,
            of_another_kind=self.of_another_kind + other.of_another_kind,
            oldest_event_time=_oldest(self.oldest_event_time, other.oldest_event_time),
            newest_event_time=max((moment for moment in newest if moment is not None), default=None),
            oldest_publish_time=_oldest(self.oldest_publish_time, other.oldest_publish_time),
            acknowledged=self.acknowledged + other.acknowledged,
            messages=self.messages + other.messages,
        )


def _oldest(*moments: datetime | None) -> datetime | None:
    return min((moment for moment in moments if moment is not None), default=None)


def land(
    subscription: Subscription,
    *,
    heartbeats: Heartbeats,
    quarantine: Quarantine,
    log: TrackingLog,
    reader: HeartbeatReader,
    budget: Budget,
    clock: Clock,
    backlog: Backlog | None = None,
) -> Landed:
    """Pull, make durable, acknowledge, and report what landed.

    Guarantee: what is acknowledged on base is in `heartbeats` or in `quarantine`. Any number of readers may run
    at once. With base's `backlog` it goes on until that is gone; without, until a batch is nearly empty. Raises
    PubSubError or LakeError; then nothing that is not durable was acknowledged.
    """
    log.newest_watermark()  # before anything is pulled: with a damaged log nothing could be judged

    def land_batch(batch: PulledBatch) -> Landed:
        with subscription.leased(batch.ack_ids):
            landed = Landed()
            for judged in JudgedBatch.parts_of(batch.messages, reader, log.newest_watermark(), clock.now()):
                if len(judged.heartbeats):
                    heartbeats.append(judged.heartbeats)
                if len(judged.rejected):
                    quarantine.append(judged.rejected)
                landed += Landed.of(judged)
            return replace(landed, acknowledged=subscription.acknowledge(batch.ack_ids))

    return sum(for_each_batch(subscription, budget, clock, land_batch, backlog), Landed())


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
    if is_over():
        raise _over(name)
    ack_ids: list[str] = []
    pieces: list[str] = []
    attempt = uuid.uuid4().hex[:12]
    with ExitStack() as leases:

        def keep_batch(batch: PulledBatch) -> Landed:
            leases.enter_context(subscription.leased(batch.ack_ids))
            ack_ids.extend(batch.ack_ids)
            landed = Landed()
            for judged in JudgedBatch.parts_of(batch.messages, reader, watermark, clock.now()):
                if len(judged.rejected):
                    quarantine.append(judged.rejected)
                if len(judged.heartbeats):
                    piece = piece_name(name, attempt, len(pieces))
                    objects.create(piece, encode_piece(judged.heartbeats))
                    pieces.append(piece)
                landed += Landed.of(judged)
            return landed

        landed = sum(for_each_batch(subscription, budget, clock, keep_batch), Landed())
        try:
            objects.create(manifest_name(name), _encode(landed, pieces))
        except ObjectExists:
            return _served_instead(name, pieces, objects)
        if is_over():
            raise _over(name)
        acknowledged = subscription.acknowledge(ack_ids)
    return NamedLanding(replace(landed, acknowledged=acknowledged), tuple(pieces))


def landed_under(name: str, objects: ObjectStore) -> NamedLanding | None:
    """The landing under a name, or None. Raises CorruptObject, NewerFormat, LakeUnreachable."""
    try:
        content = objects.read(manifest_name(name))
    except ObjectMissing:
        return None
    try:
        said = orjson.loads(content)
        refuse_newer(f"{objects.uri}/{manifest_name(name)}", said)
        return _decoded(said)
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
            "messages": landed.messages,
            "heartbeats": landed.heartbeats,
            "rejected": {reason.value: count for reason, count in landed.rejected.items()},
            "late": landed.late,
            "of_another_kind": dict(landed.of_another_kind),
            "oldest_event_time_us": _us(landed.oldest_event_time),
            "newest_event_time_us": _us(landed.newest_event_time),
            "oldest_publish_time_us": _us(landed.oldest_publish_time),
            **marks(),
        }
    )


def _decoded(said: Mapping[str, Any]) -> NamedLanding:
    rejected = Counter({RejectionReason(reason): count for reason, count in said["rejected"].items()})
    return NamedLanding(
        Landed(
            messages=said.get("messages", said["heartbeats"] + rejected.total()),
            heartbeats=said["heartbeats"],
            rejected=rejected,
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
