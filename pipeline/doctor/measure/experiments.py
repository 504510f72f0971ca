"""The measurement: a few experiments on one throw-away topic, each of which finds one of the facts."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from threading import Event
from typing import Any

from tidemark.pipeline.clock import Clock, to_us
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
from tidemark.pipeline.doctor.measure.place import Place, Timed, call_facts, swept, throw_away
from tidemark.pipeline.doctor.measure.traffic import Plan, Received, Traffic
from tidemark.pipeline.errors import (
    PermissionMissing,
    PubSubError,
    PubSubUnreachable,
    ReadingUnavailable,
    SubscriptionMissing,
)
from tidemark.pipeline.pubsub.connection import publisher_client, subscriber_client
from tidemark.pipeline.pubsub.monitoring import SAMPLE_PERIOD, MonitoringBacklog, monitoring_client
from tidemark.pipeline.pubsub.requirements import TRANSFORM_CODE
from tidemark.pipeline.quantiles import quantile
from tidemark.pipeline.settings_sections import PubSubSettings

KIND, KEPT = "kind", "kept"
"""The attribute that the filter asks for, and the value that passes."""

ASK_MONITORING_EVERY = 5.0
Tell = Callable[[str], object]


def measure(
    settings: PubSubSettings,
    clock: Clock,
    plan: Plan = Plan(),  # noqa: B008 frozen
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


class Bench(Traffic):
    """The experiments on a place."""

    def __init__(self, place: Place, plan: Plan, seconds: dict[str, list[float]]) -> None:
        super().__init__(place, plan)
        self._seconds = seconds

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
