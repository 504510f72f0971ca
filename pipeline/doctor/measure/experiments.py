"""The measurement: a few experiments on one throw-away topic, each of which finds one of the facts."""

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from threading import Event
from typing import Any

from google.pubsub_v1 import PublishRequest

from tidemark.pipeline.clock import Clock, from_us, to_us
from tidemark.pipeline.doctor.measure.facts import (
    ClockFacts,
    DelayFacts,
    Facts,
    FilterFacts,
    MonitoringFacts,
    NotMeasured,
    RedeliveryFacts,
    SnapshotFacts,
    TransformFacts,
)
from tidemark.pipeline.doctor.measure.place import LEASE, Place, Timed, call_facts, swept, throw_away
from tidemark.pipeline.errors import (
    PermissionMissing,
    PubSubError,
    PubSubUnreachable,
    ReadingUnavailable,
    SubscriptionMissing,
)
from tidemark.pipeline.pubsub.backlog import SnapshotBacklog
from tidemark.pipeline.pubsub.connection import ONCE_MORE, publisher_client, reported, subscriber_client
from tidemark.pipeline.pubsub.monitoring import SAMPLE_PERIOD, MonitoringBacklog, monitoring_client
from tidemark.pipeline.pubsub.pulls import GIVEN_BACK_SECONDS, Pulls
from tidemark.pipeline.pubsub.received import ACK_ID
from tidemark.pipeline.pubsub.requirements import TRANSFORM_CODE
from tidemark.pipeline.pubsub.subscription import CONSUME
from tidemark.pipeline.quantiles import quantile
from tidemark.pipeline.settings_sections import PubSubSettings

KIND, KEPT = "kind", "kept"
"""The attribute that the filter asks for, and the value that passes."""

REQUEST_COUNTS_AS = 1000
"""Bytes that a request to publish or to pull is charged for at least."""

PUBLISH = "pubsub.topics.publish on the project"
ASK_MONITORING_EVERY = 5.0
LOOK_AGAIN = 0.1
TRIES = 5
"""How often a reading or a pull without an answer is tried."""

Tell = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured, and how long at most. `patience` is how long anything that should happen is waited for."""

    messages: int = 3000
    over: timedelta = timedelta(seconds=20)
    rounds: int = 20
    snapshots_within: timedelta = timedelta(seconds=45)
    patience: timedelta = timedelta(seconds=20)
    quiet: timedelta = timedelta(seconds=2)
    monitoring_within: timedelta = timedelta(minutes=6)


def measure(
    settings: PubSubSettings,
    clock: Clock,
    plan: Plan = Plan(),
    tell: Tell = lambda _: None,
) -> Facts:
    """Measure with the clients of these settings, and `tell` what is under way. Everything that was made is removed,
    however this ends, unless the process is killed. The settings' own topic and subscriptions are not touched.

    Raises PermissionMissing, which names the permission, PubSubUnreachable, and PubSubError.
    """
    began, seconds = clock.monotonic(), dict[str, list[float]]()
    with ExitStack() as stack:
        publisher, subscriber = (
            Timed(stack.enter_context(closing(maker(*settings.server))), clock, seconds)
            for maker in (publisher_client, subscriber_client)
        )
        place = Place(publisher, subscriber, settings, clock)
        tell("looking for what a killed measurement left behind")
        left = swept(place)
        stack.enter_context(throw_away(place))
        bench = stack.enter_context(closing(Bench(place, plan, seconds)))
        tell("making a throw-away topic and four subscriptions")
        held, seen = place.subscribe("held"), place.subscribe("seen")
        filtered = bench.optional("filtered", filter=f'attributes.{KIND} = "{KEPT}"')
        function = {"function_name": "keepMetadata", "code": TRANSFORM_CODE}
        bare = bench.optional("bare", message_transforms=[{"javascript_udf": function}])
        clock.sleep(plan.quiet.total_seconds())  # until every server of Pub/Sub knows them
        tell("redelivery: a message that is given back")
        redelivery, oldest = bench.redelivered(held)
        tell("filter and transform")
        filter_found, transform = bench.filtered(filtered), bench.transformed(bare, seen)
        tell("snapshots against publish times")
        snapshot = bench.snapshots(seen, held, oldest)
        delay, clocks = bench.delays(seen, tell)
        monitoring = bench.monitored(held, oldest, began, tell)
        tell("removing the topic and its subscriptions")
    return Facts(
        server=settings.emulator_host or settings.endpoint or "Google Pub/Sub",
        at=clock.now(),
        snapshot=snapshot,
        delay=delay,
        redelivery=redelivery,
        filter=filter_found,
        transform=transform,
        monitoring=monitoring,
        clock=clocks,
        calls=call_facts(seconds),
        charged_bytes=bench.charged_bytes,
        took=timedelta(seconds=clock.monotonic() - began),
        swept=left,
    )


@contextmanager
def closing(of: Any) -> Iterator[Any]:
    """A client, or what pulls, until the block is left."""
    try:
        yield of
    finally:
        getattr(of, "transport", of).close()


@dataclass(frozen=True, slots=True)
class Received:
    """One delivery of a message, and the monotonic clock then."""

    message_id: str
    published: datetime
    attributes: dict[str, str]
    data: bytes
    ack_id: str
    at: float


class Bench:
    """The experiments on a place. `charged_bytes` is what publishing and pulling count for, by the price list."""

    def __init__(self, place: Place, plan: Plan, seconds: dict[str, list[float]]) -> None:
        self._place, self._plan, self._seconds, self._clock = place, plan, seconds, place.clock
        self._pulls: dict[str, Pulls] = {}
        self._unanswered = 0  # pulls in a row
        self._sent: set[str] = set()
        self._acknowledged: dict[str, set[str]] = {}
        self.charged_bytes = 0

    def close(self) -> None:
        """Pull no more."""
        for pulls in self._pulls.values():
            pulls.close()

    def optional(self, role: str, **options: Any) -> str | NotMeasured:
        """A subscription with options that the service may refuse."""
        try:
            return self._place.subscribe(role, **options)
        except (PermissionMissing, PubSubUnreachable, SubscriptionMissing):
            raise
        except PubSubError as error:
            return NotMeasured(f"the subscription was refused: {error}")

    def redelivered(self, path: str) -> tuple[RedeliveryFacts | NotMeasured, datetime | None]:
        """Pulls a message, gives it back, and pulls it again. It stays unacknowledged; its publish time as well."""
        (first,) = self._publish([{"data": b"held"}])
        found = self._take(path, [first])
        if first not in found:
            return NotMeasured(f"no message came within {self._plan.patience.total_seconds():g} s"), None
        self._give_back(path, found[first])
        again = self._take(path, [first])
        change = abs(again[first].published - found[first].published) if first in again else timedelta()
        if first in again:
            self._give_back(path, again[first])
        return RedeliveryFacts(1, int(first in again), change), found[first].published

    def filtered(self, path: str | NotMeasured) -> FilterFacts | NotMeasured:
        """Publishes messages that pass the filter, and as many that do not."""
        if isinstance(path, NotMeasured):
            return path
        kinds = [KEPT, "other"] * 10
        ids = self._publish([{"data": b"f", "attributes": {KIND: kind}} for kind in kinds])
        passing, others = set(ids[::2]), set(ids[1::2])
        came = {*self._take(path, passing), *self._take(path, ids, self._plan.quiet)}
        return FilterFacts(len(passing), len(came & passing), len(came & others))

    def transformed(self, path: str | NotMeasured, plain: str) -> TransformFacts | NotMeasured:
        """Publishes messages with a payload, and compares what comes behind the transform with what comes without."""
        if isinstance(path, NotMeasured):
            return path
        ids = self._publish([{"data": b"payload", "attributes": {"number": str(number)}} for number in range(10)])
        bare, whole = self._take(path, ids), self._take(plain, ids)
        pairs = [(bare[one], whole[one]) for one in ids if one in bare and one in whole]
        changed = sum((one.attributes, one.published) != (other.attributes, other.published) for one, other in pairs)
        self._acknowledge(plain, whole.values())
        return TransformFacts(len(ids), len(pairs), sum(bool(one.data) for one, _ in pairs), changed)

    def snapshots(self, path: str, held: str, oldest: datetime | None) -> SnapshotFacts | NotMeasured:
        """Two messages a round: a reading as soon as the first is published, when both are pulled, and after each
        acknowledgement. At last one of a message that was held since the beginning."""
        if not self._drain(path):
            return NotMeasured("messages did not come")
        backlog = self._backlog(path)
        until = self._clock.monotonic() + self._plan.snapshots_within.total_seconds()
        shown: list[tuple[datetime, datetime]] = []
        passed, acknowledged, empty = list[timedelta](), list[timedelta](), list[timedelta]()
        is_stuck = False
        for _ in range(self._plan.rounds):
            if is_stuck or self._clock.monotonic() >= until:
                break
            (sent,) = self._publish([{"data": b"1"}])
            early = self._read(backlog)
            first = self._take(path, [sent]).get(sent)
            (sent,) = self._publish([{"data": b"2"}])
            second = self._take(path, [sent]).get(sent)
            if first is None or second is None:
                return NotMeasured("messages did not come")
            passed.append(max(early - first.published, timedelta()))
            reading = self._read(backlog)
            shown.append((reading, first.published))
            waits = reading == first.published or to_us(reading) % 1_000_000 > 0  # otherwise it is rounded
            for one in (first, second):
                self._acknowledge(path, [one])
                since, looks, came_again = self._clock.monotonic(), 0, 0
                asked, reading = self._clock.now(), self._read(backlog)
                while waits and reading <= one.published and self._clock.monotonic() < until:
                    came_again += self._acknowledge_again(path)
                    asked, reading, looks = self._clock.now(), self._read(backlog), looks + 1
                has_moved = reading > one.published
                is_stuck |= waits and not (has_moved or acknowledged or came_again)
                if waits and (has_moved or is_stuck) and not came_again:
                    acknowledged.append(timedelta(seconds=self._clock.monotonic() - since if looks else 0))
            empty.append(asked - reading)
        if oldest is not None:
            shown.append((self._read(self._backlog(held)), oldest))
        return SnapshotFacts(shown, passed, acknowledged, empty, is_stuck)

    def delays(self, path: str, tell: Tell) -> tuple[DelayFacts | NotMeasured, ClockFacts | NotMeasured]:
        """Publishes messages at a steady rate while they are pulled."""
        self._drain(path)
        plan, clock = self._plan, self._clock
        a_batch = max(1, plan.messages // 200)
        asked: dict[int, tuple[float, datetime, datetime]] = {}
        stop = Event()

        def publish() -> None:
            pause = plan.over.total_seconds() * a_batch / plan.messages
            for start in range(0, plan.messages, a_batch):
                if stop.is_set():
                    return
                numbers = range(start, min(start + a_batch, plan.messages))
                since, at = clock.monotonic(), clock.now()
                self._publish([{"attributes": {"number": f"d{number}"}} for number in numbers])
                asked.update(dict.fromkeys(numbers, (since, at, clock.now())))
                clock.sleep(max(0.0, since + pause - clock.monotonic()))

        came: dict[int, Received] = {}
        acknowledging = []
        with ThreadPoolExecutor(2) as pool:
            try:
                sending = pool.submit(publish)
                quiet_since = clock.monotonic()
                while len(came) < plan.messages:
                    if is_sent := sending.done():
                        sending.result()
                    found = self._received(path, 0.2)
                    acknowledging.append(pool.submit(self._acknowledge, path, found))
                    for one in found:
                        number = one.attributes.get("number", "")
                        if number.startswith("d"):
                            came.setdefault(int(number[1:]), one)
                    tell(f"delays: {len(came):,} of {plan.messages:,} messages came")
                    if found or not is_sent:
                        quiet_since = clock.monotonic()
                    elif clock.monotonic() - quiet_since > plan.patience.total_seconds():
                        break
            finally:
                stop.set()
        for acknowledged in acknowledging:
            acknowledged.result()
        if not came:
            why = NotMeasured("no message came")
            return why, why
        took = [came[number].at - asked[number][0] for number in came]
        p50, p99 = (timedelta(seconds=quantile(took, share)) for share in (0.5, 0.99))
        delay = DelayFacts(
            plan.messages, plan.messages - len(came), plan.patience, p50, p99, timedelta(seconds=max(took))
        )
        ahead = ClockFacts(
            max(came[number].published - asked[number][2] for number in came),
            min(came[number].published - asked[number][1] for number in came),
        )
        return delay, ahead

    def monitored(self, path: str, oldest: datetime | None, began: float, tell: Tell) -> MonitoringFacts | NotMeasured:
        """Waits for the first point that was sampled after the held message was published. Ctrl-C ends the waiting, and
        the other facts stay."""
        settings, plan, clock = self._place.settings, self._plan, self._clock
        if not settings.has_metrics:
            return NotMeasured("not measured here: an emulator has no Cloud Monitoring")
        if oldest is None:
            return NotMeasured("no message came")
        until = began + plan.monitoring_within.total_seconds()
        why = f"Cloud Monitoring showed no point within {plan.monitoring_within.total_seconds() / 60:g} minutes"
        with closing(monitoring_client(settings.monitoring_endpoint, settings.impersonate)) as client:
            timed = Timed(client, clock, self._seconds)
            backlog = MonitoringBacklog(timed, path, clock, settings.call_timeout)
            try:
                while clock.monotonic() < until:
                    tell(f"waiting for Cloud Monitoring, {until - clock.monotonic():.0f} s at most; Ctrl-C skips it")
                    try:
                        reading = backlog.read()
                    except ReadingUnavailable:
                        clock.sleep(ASK_MONITORING_EVERY)
                        continue
                    if reading.observed_at >= oldest:
                        end = reading.observed_at + SAMPLE_PERIOD
                        age = round((reading.observed_at - reading.oldest_unacked).total_seconds()) - 1
                        late = clock.now() - end
                        return MonitoringFacts(oldest, age, reading.oldest_unacked, reading.no_later_than, late)
                    clock.sleep(ASK_MONITORING_EVERY)
            except PermissionMissing as error:
                why = str(error)
            except KeyboardInterrupt:
                why = "not waited for"
        return NotMeasured(why)

    # Calls

    def _publish(self, messages: Sequence[dict[str, Any]]) -> list[str]:
        request = PublishRequest(topic=self._place.topic, messages=messages)
        self.charged_bytes += max(REQUEST_COUNTS_AS, PublishRequest.pb(request).ByteSize())
        with reported("publish to", self._place.topic, PUBLISH, then=ONCE_MORE):
            ids = list(self._place.publisher.publish(request=request, **self._place.bounds).message_ids)
        self._sent.update(ids)
        return ids

    def _received(self, path: str, seconds: float) -> list[Received]:
        """What one answer brings within so many seconds."""
        if path not in self._pulls:
            settings = self._place.settings.model_copy(update={"ack_deadline": LEASE})
            make = partial(Pulls, keeps=True, on_call=lambda: None)
            self._pulls[path] = make(self._place.subscriber, path, self._clock, settings)
        try:
            with reported("pull from", path, CONSUME, then=ONCE_MORE):
                table, size = self._pulls[path].take(1000, seconds)
            self._unanswered = 0
        except PubSubUnreachable:
            self._unanswered += 1
            if self._unanswered == TRIES:
                raise
            self._clock.sleep(LOOK_AGAIN)
            return []
        at = self._clock.monotonic()
        self.charged_bytes += max(REQUEST_COUNTS_AS, size) if len(table) else 0
        return [
            Received(
                row["message_id"], from_us(to_us(row["publish_time"])), dict(row["attributes"]), row["payload"],
                row[ACK_ID], at,
            )
            for row in table.to_pylist()
        ]  # fmt: skip

    def _take(self, path: str, wanted: Collection[str], within: timedelta | None = None) -> dict[str, Received]:
        """What comes until all of the wanted messages have, or the time is over."""
        until = self._clock.monotonic() + (within or self._plan.patience).total_seconds()
        found: dict[str, Received] = {}
        while not found.keys() >= set(wanted) and (left := until - self._clock.monotonic()) > 0:
            found |= {one.message_id: one for one in self._received(path, min(left, 1.0))}
        return found

    def _drain(self, path: str) -> bool:
        """Acknowledge everything that was published; False if some of it has not come."""
        wanted = self._sent - self._acknowledged.get(path, set())
        found = self._take(path, wanted)
        self._acknowledge(path, found.values())
        return found.keys() >= wanted

    def _acknowledge(self, path: str, received: Collection[Received]) -> None:
        if received:
            with reported("acknowledge on", path, CONSUME, then=ONCE_MORE):
                ack_ids = [one.ack_id for one in received]
                self._place.subscriber.acknowledge(subscription=path, ack_ids=ack_ids, **self._place.bounds)
            self._acknowledged.setdefault(path, set()).update(one.message_id for one in received)

    def _acknowledge_again(self, path: str) -> int:
        """Wait a moment, and acknowledge what came although it was acknowledged; how much did. Pub/Sub may deliver such
        a message again, which a snapshot then rightly shows."""
        again = [one for one in self._received(path, LOOK_AGAIN) if one.message_id in self._acknowledged[path]]
        self._acknowledge(path, again)
        return len(again)

    def _give_back(self, path: str, one: Received) -> None:
        request = {"subscription": path, "ack_ids": [one.ack_id], "ack_deadline_seconds": GIVEN_BACK_SECONDS}
        with reported("give back a message of", path, CONSUME, then=ONCE_MORE):
            self._place.subscriber.modify_ack_deadline(request=request, **self._place.bounds)

    def _backlog(self, path: str) -> SnapshotBacklog:
        """The reading as the pipeline takes it, under the measurement's label."""
        place = self._place
        return SnapshotBacklog(place.subscriber, path, self._clock, place.settings.call_timeout, labels=place.labels)

    def _read(self, backlog: SnapshotBacklog) -> datetime:
        for _ in range(TRIES - 1):
            try:
                return backlog.read().oldest_unacked
            except PubSubUnreachable:
                self._clock.sleep(LOOK_AGAIN)
        return backlog.read().oldest_unacked
