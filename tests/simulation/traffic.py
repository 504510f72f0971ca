"""What sources publish: messages whose disorder is at most the band by construction, and others."""

import gzip
import io
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fastavro import parse_schema, schemaless_writer
from google.pubsub_v1 import PubsubMessage

from tests.watermark.builders import START_US, disorder
from tidemark.pipeline.clock import duration_us
from tidemark.pipeline.contract.heartbeat import PATIENCE
from tidemark.pipeline.contract.payloads.decoder import CONTENT_ENCODING, GZIP
from tidemark.pipeline.contract.payloads.schemas import SCHEMA_NAME, SCHEMA_REVISION

SECOND = 1_000_000
MINUTE = 60 * SECOND
MOST = 30
"""Messages of one run, before copies: few, so that many runs are tried, and each thing that goes wrong matters."""

LAG_AT_MOST = 250 * SECOND
"""A growing lag stays below what the idle rule allows for by more than a band."""

EXTREMES, ALL_SHARES = (0.0, 1.0), (0.0, 1.0, None)
"""Where in the band the key of a message is; None: anywhere. At its ends the disorder is the whole band."""

UNTIMED = ("no event time", "unreadable event time", "no stream", "before the first window", "in the future")
"""What is wrong with messages that have no part in the disorder; those with a payload that is no JSON have."""

PATIENCE_US = duration_us(PATIENCE)

SCHEMA = "projects/p/schemas/beats"
BEAT = {"type": "record", "name": "Beat", "fields": [{"name": "event_time", "type": ["null", "long", "string"]}]}
PARSED = parse_schema(BEAT)


@dataclass(frozen=True, slots=True)
class Planned:
    """A message that will be published. Times in microseconds; `key` is between its publish time and a band later,
    and event times follow the order of the keys. `arrives_us` is when it is published, of which `publish_us` is the
    whole second where Pub/Sub rounds.

    Its event time is in an attribute, or in the payload if that is `written` in a format. `appears_us` is when its
    schema's revision appears. It is doubtful whether it lands if that is later than base has patience, for it or for
    one of its copies.
    """

    publish_us: int
    event_us: int
    key_us: int
    stream: str = "a"
    publisher_id: str | None = None
    flaw: str | None = None
    arrives_us: int = 0
    written: str = ""
    revision: str = ""
    appears_us: int | None = 0
    is_compressed: bool = False
    is_doubtful: bool = False

    @property
    def appears_late(self) -> bool:
        """Whether base may have lost patience when its revision appears."""
        return self.appears_us is None or self.appears_us > self.publish_us + PATIENCE_US

    @property
    def is_timed(self) -> bool:
        """Whether tracking sees an event time."""
        return self.flaw in (None, "payload")

    @property
    def counted_us(self) -> int:
        """The time that it counts with for the watermark."""
        return min(self.event_us, self.publish_us)

    @property
    def lag_us(self) -> int:
        """How long before it was published it happened, as it counts."""
        return self.publish_us - self.counted_us

    @property
    def heartbeat(self) -> tuple[str, int, str | None]:
        """What makes two messages copies of one heartbeat; without a publisher's id there are no copies."""
        return self.stream, self.event_us, self.publisher_id

    def as_message(self) -> PubsubMessage:
        """The message as it is published, a plain protobuf."""
        event_time: int | str | None = self.event_us // 1000
        attributes = {"stream_id": "" if self.flaw == "no stream" else self.stream}
        if self.publisher_id is not None:
            attributes["heartbeat_id"] = self.publisher_id
        match self.flaw:
            case "no event time":
                event_time = None
            case "unreadable event time":
                event_time = "yesterday"
            case "before the first window":
                event_time = 0
            case "in the future":
                event_time = self.event_us // 1000 + 10**9
        data = b"{}"
        if self.written:
            data = self._as_payload(event_time)
            if self.written == "avro":
                attributes |= {SCHEMA_NAME: SCHEMA, SCHEMA_REVISION: self.revision}
                attributes |= {CONTENT_ENCODING: GZIP} if self.is_compressed else {}
        elif event_time is not None:
            attributes["event_time"] = str(event_time)
        if self.flaw in ("payload", "unreadable payload"):
            data = data[:-1]
        return PubsubMessage(data=data, attributes=attributes)._pb

    def _as_payload(self, event_time: int | str | None) -> bytes:
        if self.written == "json":
            data = json.dumps({} if event_time is None else {"event_time": event_time}).encode()
        else:
            record = io.BytesIO()
            schemaless_writer(record, PARSED, {"event_time": event_time})
            data = record.getvalue()
        return gzip.compress(data, mtime=0) if self.is_compressed else data


def any_lag(rng: random.Random, band_us: int, whole: bool) -> list[Planned]:
    """Bursts and gaps, any distance between event and publish time, and disorder at most the band.

    `et_a < et_b` implies `pt_a <= key_a <= key_b <= pt_b + band`.
    """
    times = rng.choice([_bursts, _grid])(rng, band_us, whole)
    shares = rng.choice([EXTREMES, ALL_SHARES])
    keyed = sorted((time + _within(rng, band_us, shares), rng.random(), time) for time in times)
    event, planned = times[0] - rng.randrange(100 * SECOND), []
    steps = rng.choice([(0, 0.2, 2, 2, 30), (0, 1, 1), (0.1, 0.1, 0.1, 60), (10, 20), (10, 20)])
    for key, _, time in keyed:
        event += round(rng.choice(steps) * rng.random() * SECOND)
        planned.append(Planned(time, event // 1000 * 1000, key))
    return planned


def just_in_time(rng: random.Random, band_us: int, whole: bool) -> list[Planned]:
    """Few messages, about a band apart, each with the least or the most disorder that it can have: what is published
    when tracking has read up to now, a band after the message that the watermark rests on."""
    publish, keyed = _rounded(START_US + rng.randrange(SECOND), whole), []
    steps = (0, 1, 1, 1, 2) if whole else rng.choice([(0, 1, 1, 1, 2), (0, 1, 1, 1, 2), (0.9,), (0.5, 0.5, 1)])
    for _ in range(rng.randint(4, MOST // 3)):
        publish += round(rng.choice(steps) * band_us)
        keyed.append((publish + _within(rng, band_us, EXTREMES), rng.random(), publish))
    event, planned = publish - rng.randrange(100 * SECOND), []
    for key, _, time in sorted(keyed):
        event += rng.randint(1, 20) * SECOND
        planned.append(Planned(time, event // 1000 * 1000, key))
    return planned


def _bursts(rng: random.Random, band_us: int, whole: bool) -> list[int]:
    publish, times = START_US + rng.randrange(SECOND), []
    gaps = rng.choice([(0, 1), (0, 1, 3, 12), (0.2, 0.2, 0.2, 30), (1, 1, 5)])
    for _ in range(rng.randint(4, MOST)):
        if rng.random() < 0.25:
            publish += round(rng.choice([1, 2, 6]) * band_us * rng.random())
        else:
            publish += round(rng.choice(gaps) * SECOND * rng.random())
        times.append(_rounded(publish, whole))
    return times


def _grid(rng: random.Random, band_us: int, whole: bool) -> list[int]:
    """Publish times that are exactly a band apart, and between."""
    publish, times = _rounded(START_US + rng.randrange(SECOND), whole), []
    for _ in range(rng.randint(4, MOST)):
        publish += rng.choice([0, 1, 1, 1, 2]) * max(_rounded(band_us // rng.choice([1, 2]), whole), SECOND)
        times.append(publish)
    return times


def shrinking_lag(rng: random.Random, band_us: int, whole: bool) -> list[Planned]:
    """Bursts between long silences; the lag between event and publish time never grows by more than the band, and
    falls where a source catches up: after a silence, `pt - et <= recent lag + band`. In whole milliseconds, so that no
    rounding of an event time adds to its lag."""
    publish, times = START_US + rng.randrange(SECOND), []
    for _ in range(rng.randint(3, MOST // 2)):
        publish += round(rng.choice([0.5, 3, 3, 60, 200]) * rng.random() * SECOND)
        times.append(_rounded(publish, whole) // 1000 * 1000)
    lag, planned = rng.randint(-60, 280) * SECOND, []
    catches_up = rng.choice([0, 0.3, 0.3])
    for key, _, time in sorted((time + _within(rng, band_us) // 1000 * 1000, rng.random(), time) for time in times):
        if rng.random() < catches_up:
            lag -= rng.randrange(100 * SECOND) // 1000 * 1000
        planned.append(Planned(time, (key - lag) // 1000 * 1000, key))
    return planned


def growing_lag(rng: random.Random, band_us: int, whole: bool) -> list[Planned]:
    """Bursts between silences, and after each the lag is as much greater as it may be: a band more than the greatest
    in the newest second before."""
    publish, lag, planned = START_US + rng.randrange(SECOND), rng.randint(-60, 60) * SECOND, list[Planned]()
    for _ in range(rng.randint(2, MOST // 6)):
        times = sorted(_rounded(publish + rng.randrange(2 * SECOND), whole) for _ in range(rng.randint(1, 4)))
        keyed = [(time, time + _within(rng, band_us)) for time in times]
        planned += [Planned(time, -(-(key - lag) // 1000) * 1000, key) for time, key in keyed]
        newest = times[-1] // SECOND
        recent = max(one.publish_us - one.event_us for one in planned if one.publish_us // SECOND == newest)
        lag = min(recent, LAG_AT_MOST) + band_us
        publish = times[-1] + 2 * band_us + round(rng.choice([20, 60, 200]) * rng.uniform(0.5, 1) * SECOND)
    return planned


def beyond(rng: random.Random, band_us: int, whole: bool) -> list[Planned]:
    """Sources outside of the band: more disorder, clocks that run fast or slow, stragglers."""
    planned = any_lag(rng, round(rng.choice([1.5, 4]) * band_us) + 5 * SECOND, whole)
    off = rng.choice([0.0, 0.1, 0.3])
    return [
        replace(one, event_us=one.event_us + rng.randint(-300, 300) * SECOND) if rng.random() < off else one
        for one in planned
    ]


def by_their_clocks(rng: random.Random, planned: Sequence[Planned], band_us: int) -> list[Planned]:
    """The same sources with clocks that do not run fast, but for a few messages: these happen after they are published.
    What counts keeps the order as well as before, or a band."""
    ahead = max(one.event_us - one.publish_us for one in planned)
    behind = [replace(one, event_us=one.event_us - max(0, -(-ahead // 1000) * 1000)) for one in planned]
    at_most = max(_with_copies(behind), band_us)
    for number in rng.sample(range(len(behind)), k=rng.choice([0, 0, 1, 3])):
        event_us = (behind[number].publish_us + rng.randint(0, 300) * SECOND) // 1000 * 1000
        one = replace(behind[number], event_us=event_us, key_us=behind[number].publish_us)
        fast = [*behind[:number], one, *behind[number + 1 :]]
        if _with_copies(fast) <= at_most:
            behind = fast
    return behind


def with_stragglers(
    rng: random.Random, planned: Sequence[Planned], *, above_all: bool, keeps_recent_lag: bool
) -> tuple[list[Planned], int]:
    """Some messages happened long before the others of their time, and a bound on lag that passes over all of these:
    the lag of one of the others, or (`above_all`) more than that of each. In microseconds.

    With `keeps_recent_lag` the message that lags most in its second stays as it is: the lag after a silence follows
    from it, and what is passed over tells no lag.
    """
    lags = sorted(one.lag_us for one in planned)
    most_us: dict[int, int] = {}
    for one in planned:
        second = one.publish_us // SECOND
        most_us[second] = max(most_us.get(second, one.lag_us), one.lag_us)
    bound_us = max(lags[-1] + 3 * SECOND if above_all else rng.choice([*lags, lags[-1] + SECOND]), SECOND)
    share, beyond = rng.choice([0, 0.1, 0.3]), (1000, SECOND // 2, 3 * SECOND // 2, 2 * SECOND, 100 * SECOND)
    return [
        replace(one, event_us=(one.publish_us - bound_us - rng.choice(beyond)) // 1000 * 1000)
        if rng.random() < share and not (keeps_recent_lag and one.lag_us == most_us[one.publish_us // SECOND])
        else one
        for one in planned
    ], bound_us


def _with_copies(planned: Sequence[Planned]) -> int:
    """The disorder, also where each is published again as late as its key."""
    return disorder_of([*planned, *(replace(one, publish_us=max(one.publish_us, one.key_us)) for one in planned)])


def with_names(
    rng: random.Random,
    planned: Iterable[Planned],
    *,
    copies_within_us: int | None,
    are_flawless: bool,
    later: random.Random | None = None,
) -> list[Planned]:
    """Streams and publishers' ids; some are flawed, and some published again later with the same id.

    `copies_within_us` is how long after the first publication; None: as far as the band allows, or by `later` as much
    later as one likes.
    """
    streams = rng.randint(1, 3)
    has_ids, copied = rng.random() < 0.7, rng.choice([0, 0.1, 0.4])
    flawed, unreadable = rng.choice([0, 0, 0.2]), rng.choice([0, 0, 0.1])
    # Two: a publisher numbers its messages, and begins again and again.
    ids = MOST if later is None else later.choice([2, MOST, MOST])
    if are_flawless:
        flawed = unreadable = 0
    named: list[Planned] = []
    for number, plain in enumerate(planned):
        one = replace(
            plain,
            stream=f"s{rng.randrange(streams)}",
            publisher_id=f"p{number % ids}" if has_ids else None,
            flaw=rng.choice(UNTIMED) if rng.random() < flawed else "payload" if rng.random() < unreadable else None,
        )
        named.append(one)
        if has_ids and rng.random() < copied:
            latest = one.key_us if copies_within_us is None else one.publish_us + copies_within_us
            publish_us = rng.randint(one.publish_us, max(latest, one.publish_us))
            if later is not None and later.random() < 0.5:
                publish_us = one.publish_us + later.randrange(MINUTE)
            named.append(replace(one, publish_us=publish_us))
    return named


def arriving(rng: random.Random, planned: Iterable[Planned], *, whole: bool, delayed: bool) -> list[Planned]:
    """In the order of arrival. Where Pub/Sub rounds publish times down to the second, a message may arrive later
    within it (`delayed`), and is visible only then."""
    arrived = []
    for one in planned:
        publish = _rounded(one.publish_us, whole)
        later = rng.randrange(SECOND) if delayed else 0
        arrived.append(replace(one, publish_us=publish, arrives_us=publish + later))
    return sorted(arrived, key=lambda one: one.arrives_us)


def first_copies(planned: Iterable[Planned]) -> list[Planned]:
    """Each heartbeat once, as it was first published."""
    firsts: dict[object, Planned] = {}
    for number, one in enumerate(sorted(planned, key=lambda one: one.publish_us)):
        firsts.setdefault(number if one.publisher_id is None else one.heartbeat, one)
    return list(firsts.values())


def disorder_of(planned: Iterable[Planned]) -> int:
    """The disorder of all that have times, as they count, in microseconds."""
    return disorder([(one.publish_us, one.counted_us) for one in planned if one.is_timed])


def _rounded(moment_us: int, whole: bool) -> int:
    return moment_us - moment_us % SECOND if whole else moment_us


def _within(rng: random.Random, band_us: int, shares: tuple[float | None, ...] = ALL_SHARES) -> int:
    share = rng.choice(shares)
    return round((rng.random() if share is None else share) * band_us)


# What is too old

TOO_OLD = "too old"


def by_age(one: Planned, max_age_us: int | None) -> Planned:
    """The message as it is judged: one that lags more than this is flawed."""
    if max_age_us is None or one.flaw not in (None, "payload") or one.publish_us - one.event_us <= max_age_us:
        return one
    return replace(one, flaw=TOO_OLD)


def with_old_messages(
    rng: random.Random, messages: Sequence[Planned], *, above_all: bool
) -> tuple[tuple[Planned, ...], int]:
    """A bound on age, in microseconds, and the messages by it. The bound is the lag of one of them, or (`above_all`)
    more than that of each; besides, some heartbeats with all their copies are made older than it. (Where a first copy
    was rejected alone, a later one would be the first, with more disorder.)"""
    lags = sorted(one.lag_us for one in messages)
    bound_us = max(lags[-1] + SECOND if above_all else rng.choice(lags[len(lags) // 2 :]), SECOND)
    share, beyond = rng.choice([0, 0.1, 0.3]), (1000, SECOND, 100 * SECOND)
    older: dict[object, int] = {}
    made = []
    for number, one in enumerate(sorted(messages, key=lambda one: one.publish_us)):
        heartbeat = number if one.publisher_id is None else one.heartbeat
        if heartbeat not in older:
            too_old_us = (one.publish_us - bound_us - rng.choice(beyond)) // 1000 * 1000
            older[heartbeat] = too_old_us if not above_all and rng.random() < share else one.event_us
        made.append(replace(one, event_us=older[heartbeat]))
    return _in_order(by_age(one, bound_us) for one in made), bound_us


def _in_order(messages: Iterable[Planned]) -> tuple[Planned, ...]:
    return tuple(sorted(messages, key=lambda one: one.arrives_us))
