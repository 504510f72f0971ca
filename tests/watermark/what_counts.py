"""Brute force over random schedules: what counts, and as what, loses nothing. `python -m tests.watermark.what_counts`.

A schedule is a handful of messages, the moments at which they are tracked and land, and ticks in between. One process
tracks them and remembers copies; the fold and the rules are those of production. Entries of its log may be lost.
"""

import argparse
import random
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import numpy as np

from tests.watermark.builders import START_US, disorder, ints
from tidemark.pipeline.clock import from_us
from tidemark.pipeline.ingest.counting import RememberedCopies, keys_of
from tidemark.pipeline.watermark.histogram import A_COPY, Histogram, Ints
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.readings import Reading
from tidemark.pipeline.watermark.state import Beginning, Entry, Lost, Snapshot, WatermarkState

SECOND = 1_000_000
Rule = Literal["band", "frontier"]


@dataclass(frozen=True, slots=True)
class Message:
    """A message, in microseconds: copies share their number."""

    number: int
    publish_us: int
    event_us: int
    tracked_us: int
    landed_us: int

    @property
    def counted(self) -> tuple[int, int]:
        return self.publish_us, min(self.event_us, self.publish_us)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Messages whose first copies keep the policy's band, for what it waits for."""

    policy: Policy
    messages: tuple[Message, ...]
    ticks_us: tuple[int, ...]


def schedule_of(seed: int, *, copies: bool = True, clocks: bool = True, bounded: bool = True) -> Schedule:
    """A schedule with copies, clocks that run fast, and stragglers that `max_lag` passes over."""
    rng = random.Random(seed)
    band = rng.choice([1, 2, 5]) * SECOND
    whole = rng.choice([1, SECOND // 4, SECOND])
    max_lag = rng.choice([None, 20 * SECOND]) if bounded else None
    publish, messages = START_US, list[Message]()
    for number in range(rng.randint(3, 8)):
        publish += rng.choice([0, rng.randrange(2 * SECOND), band, rng.randrange(3 * band)]) // whole * whole
        event = publish - rng.randint(0, band)
        if clocks and rng.random() < 0.2:
            event = publish + rng.randint(1, 60) * SECOND
        elif max_lag is not None and rng.random() < 0.2:
            event = publish - max_lag - rng.choice([1, SECOND, 3 * SECOND, 100 * SECOND])
        times = [publish]
        while copies and rng.random() < 0.35:
            times.append(
                publish + rng.choice([0, rng.randrange(4 * band), rng.randrange(30 * SECOND)]) // whole * whole
            )
        for at in times:
            tracked, landed = (at + rng.choice([0, SECOND, rng.randrange(20 * SECOND)]) for _ in range(2))
            messages.append(Message(number, at, event, tracked, landed))
    last = max(max(one.tracked_us, one.landed_us) for one in messages)
    ticks = sorted(rng.randint(START_US, last + SECOND) for _ in range(rng.randint(2, 8)))
    policy = Policy(
        rule=rng.choice(["band", "frontier"]),
        band=timedelta(microseconds=band),
        idle="hold",
        max_lag=None if max_lag is None else timedelta(microseconds=max_lag),
    )
    return Schedule(policy, tuple(messages), tuple(ticks))


LOST = Lost("its object was damaged")


def folded(entries: Iterable[Entry]) -> WatermarkState:
    """The state of a log."""
    state = WatermarkState()
    for number, entry in enumerate(entries):
        state = state.after(number, entry)
    return state


def late_in(
    schedule: Schedule, memory: Callable[[], RememberedCopies], loses: random.Random | None = None, lost: Entry = LOST
) -> list[Message]:
    """The messages that hold the watermark, and first land below it. After a tick, `loses` draws whether a histogram is
    found to be damaged, in whose place is `lost` then; no reading tells of a hole."""
    copies, entries = memory(), list[Entry]([Beginning(from_us(START_US - SECOND))])
    state = folded(entries)
    done, landed, late = set[Message](), set[int](), list[Message]()
    messages, before = schedule.messages, START_US - SECOND
    for at in schedule.ticks_us:
        for one in sorted((m for m in messages if before < m.landed_us <= at), key=lambda m: m.landed_us):
            watermark = state.watermark
            is_below = watermark is not None and from_us(one.event_us) < watermark
            if is_below and one.number not in landed and _holds(one, schedule):
                late.append(one)
            landed.add(one.number)
        for moment in sorted({m.tracked_us for m in messages if m.tracked_us <= at} - {m.tracked_us for m in done}):
            batch = [m for m in messages if m.tracked_us == moment]
            entries.append(Snapshot(_counted(batch, copies)))
            done.update(batch)
        readings = [
            Reading(from_us(at), from_us(min([at, *outstanding])), names_a_message=bool(outstanding) and loses is None)
            for outstanding in (
                [m.publish_us for m in messages if m.publish_us <= at < m.landed_us],
                [m.publish_us for m in messages if m.publish_us <= at < m.tracked_us],
            )
        ]
        entries.append(folded(entries).decide(*readings, schedule.policy, from_us(at)))
        histograms = [number for number, entry in enumerate(entries) if isinstance(entry, Snapshot)]
        if loses is not None and histograms and loses.random() < 0.5:
            entries[loses.choice(histograms[-2:])] = lost
        state, before = folded(entries), at
    return late


def keeps_its_band(schedule: Schedule) -> bool:
    """Whether disorder of the first copies that hold is at most the band."""
    firsts: dict[int, Message] = {}
    for one in sorted(schedule.messages, key=lambda message: message.publish_us):
        firsts.setdefault(one.number, one)
    held = [one.counted for one in firsts.values() if _holds(one, schedule)]
    return disorder(held) <= schedule.policy.band // timedelta(microseconds=1)


def _holds(one: Message, schedule: Schedule) -> bool:
    publish, counted = one.counted
    max_lag = schedule.policy.max_lag
    return max_lag is None or publish - counted <= max_lag // timedelta(microseconds=1)


def _counted(batch: list[Message], copies: RememberedCopies) -> Histogram:
    publish, event = ints(m.publish_us for m in batch), ints(m.event_us for m in batch)
    keys = keys_of(["s"] * len(batch), [str(m.number) for m in batch], event.tolist())
    known = copies.are_copies(keys, publish)
    copies.settle({copies.note(keys[~known], publish[~known])})  # nothing fails here
    return Histogram.of(publish, np.where(known, A_COPY, event))


class AnyPublishTime(RememberedCopies):
    """A copy is a copy whenever the first that was tracked was published."""

    def are_copies(self, keys: Ints, publish_us: Ints) -> np.typing.NDArray[np.bool_]:
        return super().are_copies(keys, np.full_like(publish_us, np.iinfo(np.int64).max))


def remembering() -> RememberedCopies:
    return RememberedCopies(timedelta(minutes=10))


def first_late(seeds: range, lost: Entry | None = None, **more: bool) -> tuple[int | None, int]:
    """The first seed with a late message, and how many schedules that keep their band were played; entries are lost if
    `lost` says what takes their place."""
    played = 0
    for seed in seeds:
        schedule = schedule_of(seed, **more)
        if keeps_its_band(schedule):
            played += 1
            if late_in(schedule, remembering, None if lost is None else random.Random(seed), lost or LOST):
                return seed, played
    return None, played


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.watermark.what_counts", description=__doc__)
    parser.add_argument("--seeds", type=int, default=40_000, help="how many schedules")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    options = parser.parse_args()
    seed, played = first_late(range(options.first, options.first + options.seeds))
    print(f"{played:,} schedules within their band: " + ("nothing late" if seed is None else f"late in seed {seed}"))
    return 0 if seed is None else 1


if __name__ == "__main__":
    sys.exit(main())
