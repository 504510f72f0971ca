"""The measurement: experiments on one throw-away topic. Each experiment determines one or two facts."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
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
    Took,
    TransformFacts,
)
from tidemark.pipeline.doctor.measure.traffic import PLAN, Plan, Received, ThrowAwayTopic
from tidemark.pipeline.errors import PubSubError, ReadingUnavailable
from tidemark.pipeline.pubsub.backlog import SAMPLE_PERIOD, MonitoringBacklog, monitoring_client
from tidemark.pipeline.pubsub.connection import publisher_client, subscriber_client
from tidemark.pipeline.pubsub.requirements import KEEP_METADATA
from tidemark.pipeline.settings_sections import ZERO, PubSubSettings

KIND, KEPT = "kind", "kept"
"""The attribute that a subscription's filter tests, and the attribute's value that passes the filter."""

ASK_MONITORING_EVERY = 5.0
NOTHING_CAME = NotMeasured("messages were not received")
Tell = Callable[[str], object]


def measure(settings: PubSubSettings, clock: Clock, plan: Plan = PLAN, tell: Tell = lambda _: None) -> Facts:
    """Run all experiments with clients for these settings, and report progress to `tell`. All resources that were
    created are removed at the end, even after an error, unless the process is killed. The configured topic and
    subscriptions are not touched.

    Raises PermissionMissing (naming the permission), PubSubUnreachable and PubSubError.
    """
    began = clock.monotonic()
    with ExitStack() as stack:
        publisher = stack.enter_context(publisher_client(*settings.server))
        bench = Bench(publisher, stack.enter_context(subscriber_client(*settings.server)), settings, clock, plan)
        tell("looking for leftovers of killed measurements")
        swept = bench.sweep()
        stack.enter_context(closing(bench))
        bench.make_topic()
        tell("creating a throw-away topic and four subscriptions")
        held, seen = bench.subscribe("held"), bench.subscribe("seen")
        filtered = bench.optional("filtered", filter=f'attributes.{KIND} = "{KEPT}"')
        bare = bench.optional("bare", message_transforms=KEEP_METADATA)
        clock.sleep(plan.quiet.total_seconds())  # until all servers of Pub/Sub know the subscriptions
        tell("redelivery: giving a message back")
        redelivery, oldest = bench.redelivered(held)
        tell("filter and transform")
        filter_found, transform = bench.filtered(filtered), bench.transformed(bare, seen)
        tell("comparing snapshots with publish times")
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
        calls={name: Took.of(seconds) for name, seconds in sorted(bench.seconds.items())},
        charged_bytes=bench.charged_bytes,
        took=timedelta(seconds=clock.monotonic() - began),
        swept=swept,
    )


class Bench(ThrowAwayTopic):
    """Runs the experiments of a measurement on its throw-away topic. Each experiment is a method."""

    def optional(self, role: str, **options: Any) -> str | NotMeasured:
        """Create a subscription with options that the service may refuse. Returns the subscription's path, or
        NotMeasured if the options are refused."""
        try:
            return self.subscribe(role, **options)
        except PubSubError as error:
            if type(error) is not PubSubError:  # no answer, or no permission: the options were not refused
                raise
            return NotMeasured(f"the subscription was refused: {error}")

    def redelivered(self, path: str) -> tuple[RedeliveryFacts | NotMeasured, datetime | None]:
        """Publish and pull a message, end its lease, and pull it again when Pub/Sub redelivers it. Leave it
        unacknowledged. Returns the change of its publish time, and its first publish time (None if never received)."""
        (sent,) = self._publish({"data": b"held"})
        if (first := self._take(path, [sent]).get(sent)) is None:
            return NotMeasured(f"no message was received within {self._plan.patience.total_seconds():g} s"), None
        self._give_back(path, first)
        if (again := self._take(path, [sent]).get(sent)) is None:
            return NotMeasured("the message was not redelivered in time"), first.publish_time
        self._give_back(path, again)
        return RedeliveryFacts(abs(again.publish_time - first.publish_time)), first.publish_time

    def filtered(self, path: str | NotMeasured) -> FilterFacts | NotMeasured:
        """Publish messages that pass the filter, and as many that do not. Count how many of each kind are received."""
        if isinstance(path, NotMeasured):
            return path
        ids = self._publish(*({"data": b"f", "attributes": {KIND: kind}} for kind in (KEPT, "other") * 10))
        passing, others = set(ids[::2]), set(ids[1::2])
        came = {*self._take(path, passing), *self._take(path, ids, self._plan.quiet)}
        return FilterFacts(len(passing), len(came & passing), len(came & others))

    def transformed(self, path: str | NotMeasured, plain: str) -> TransformFacts | NotMeasured:
        """Publish messages with a payload. Receive each message twice: from a subscription with the transform, and from
        one without it. Compare the two."""
        if isinstance(path, NotMeasured):
            return path
        ids = self._publish(*({"data": b"payload", "attributes": {"number": str(number)}} for number in range(10)))
        bare, whole = self._take(path, ids), self._take(plain, ids)
        pairs = [(bare[one], whole[one]) for one in ids if one in bare and one in whole]
        changed = sum(
            (one.attributes, one.publish_time) != (other.attributes, other.publish_time) for one, other in pairs
        )
        self._acknowledge(plain, whole.values())
        return TransformFacts(len(ids), len(pairs), sum(bool(one.payload) for one, _ in pairs), changed)

    def snapshots(self, path: str, held: str, oldest: datetime | None) -> SnapshotFacts | NotMeasured:
        """Compare the times that snapshots show with the publish times of messages. Each round publishes and pulls two
        messages, and takes a reading after the first is published, after both are pulled, and after each is
        acknowledged. After all rounds, the subscription `held` is read once. Its oldest message was published at
        `oldest`, and has never been acknowledged."""
        if not self._drain(path):
            return NOTHING_CAME
        clock, until = self._clock, self._clock.monotonic() + self._plan.snapshots_within.total_seconds()
        shown: list[tuple[datetime, datetime]] = []
        passed, acknowledged, empty = list[timedelta](), list[timedelta](), list[timedelta]()
        is_stuck = False
        for _ in range(self._plan.rounds):
            if is_stuck or clock.monotonic() >= until:
                break
            (sent,) = self._publish({"data": b"1"})
            early = self._oldest(path)
            first = self._take(path, [sent]).get(sent)
            (sent,) = self._publish({"data": b"2"})
            second = self._take(path, [sent]).get(sent)
            if first is None or second is None:
                return NOTHING_CAME
            passed.append(max(early - first.publish_time, ZERO))
            reading = self._oldest(path)
            shown.append((reading, first.publish_time))
            waits = reading == first.publish_time or to_us(reading) % 1_000_000 > 0  # otherwise it is rounded
            for one in (first, second):
                self._acknowledge(path, [one])
                since, looks, came_again = clock.monotonic(), 0, 0
                asked, reading = clock.now(), self._oldest(path)
                while waits and reading <= one.publish_time and clock.monotonic() < until:
                    came_again += self._acknowledge_again(path)
                    asked, reading, looks = clock.now(), self._oldest(path), looks + 1
                has_moved = reading > one.publish_time
                is_stuck |= waits and not (has_moved or acknowledged or came_again)
                if waits and (has_moved or is_stuck) and not came_again:
                    acknowledged.append(timedelta(seconds=clock.monotonic() - since if looks else 0))
            empty.append(asked - reading)
        if oldest is not None:
            shown.append((self._oldest(held), oldest))
        return SnapshotFacts(shown, passed, acknowledged, empty, is_stuck)

    def delays(self, path: str, tell: Tell) -> tuple[DelayFacts | NotMeasured, ClockFacts | NotMeasured]:
        """Publish messages at a steady rate while pulling them. Measure each message's delay, and the difference
        between Pub/Sub's clock and this machine's."""
        self._drain(path)
        plan, clock = self._plan, self._clock
        asked: dict[int, tuple[float, datetime, datetime]] = {}
        came: dict[int, Received] = {}
        acknowledging: list[Future[None]] = []
        stop = Event()

        def publish() -> None:
            a_batch = max(1, plan.messages // 200)
            pause = plan.over.total_seconds() * a_batch / plan.messages
            for start in range(0, plan.messages, a_batch):
                if stop.is_set():
                    return
                numbers = range(start, min(start + a_batch, plan.messages))
                since, at = clock.monotonic(), clock.now()
                self._publish(*({"attributes": {"delayed": str(number)}} for number in numbers))
                asked.update(dict.fromkeys(numbers, (since, at, clock.now())))
                clock.sleep(max(0.0, since + pause - clock.monotonic()))

        with ThreadPoolExecutor(2) as pool:
            try:
                sending = pool.submit(publish)
                quiet_since = clock.monotonic()
                while len(came) < plan.messages and clock.monotonic() - quiet_since <= plan.patience.total_seconds():
                    if is_sent := sending.done():
                        sending.result()
                    found = self._received(path, 0.2)
                    acknowledging.append(pool.submit(self._acknowledge, path, found))
                    for one in found:
                        if "delayed" in one.attributes:
                            came.setdefault(int(one.attributes["delayed"]), one)
                    tell(f"delays: {len(came):,} of {plan.messages:,} messages received")
                    if found or not is_sent:
                        quiet_since = clock.monotonic()
            finally:
                stop.set()
        for acknowledged in acknowledging:
            acknowledged.result()
        if not came:
            why = NotMeasured("no message was received")
            return why, why
        took = Took.of([one.at - asked[number][0] for number, one in came.items()])
        ahead = ClockFacts(
            at_least=max(one.publish_time - asked[number][2] for number, one in came.items()),
            at_most=min(one.publish_time - asked[number][1] for number, one in came.items()),
        )
        return DelayFacts(plan.messages, plan.messages - len(came), plan.patience, took), ahead

    def monitored(self, path: str, oldest: datetime | None, began: float, tell: Tell) -> MonitoringFacts | NotMeasured:
        """Wait for Cloud Monitoring's first data point that was sampled after the message on `path` was published.
        Ctrl-C ends the wait, and the other facts are kept."""
        server, clock = self._settings.monitoring, self._clock
        within = self._plan.monitoring_within.total_seconds()
        if server is None:
            return NotMeasured("not measured here: an emulator has no Cloud Monitoring")
        if oldest is None:
            return NotMeasured("no message was received")
        with monitoring_client(server) as client:
            backlog = MonitoringBacklog(self._timed(client), path, clock)
            try:
                while (left := began + within - clock.monotonic()) > 0:
                    tell(f"waiting for Cloud Monitoring, {left:.0f} s at most; Ctrl-C skips it")
                    with suppress(ReadingUnavailable):
                        reading = backlog.read()
                        if reading.observed_at >= oldest:
                            age = round((reading.observed_at - reading.oldest_unacked).total_seconds()) - 1
                            late = clock.now() - (reading.observed_at + SAMPLE_PERIOD)
                            return MonitoringFacts(oldest, age, reading.oldest_unacked, reading.no_later_than, late)
                    clock.sleep(ASK_MONITORING_EVERY)
            except PubSubError as error:
                return NotMeasured(str(error))
            except KeyboardInterrupt:
                return NotMeasured("skipped by Ctrl-C")
        return NotMeasured(f"Cloud Monitoring showed no point within {within / 60:g} minutes")
