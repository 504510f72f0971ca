"""The cost of tidemark by list prices: `python -m tools.costs` prints the tables of `docs/concepts/costs-and-scale.md`.

It computes costs from list prices of one date, from calls that `python -m benchmarks.calls` measured, and from traffic.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidemark.pipeline.settings_sections import SNAPSHOT_BUDGET

AS_OF = "2026-09-20"
"""Date of the list prices on the services' own pages, in US dollars, for one region."""

DAY_SECONDS, MONTH_DAYS = 86_400, 30
GIB, TIB = 2.0**30, 2.0**40

PUBSUB_TIB = 40.0
"""Price per TiB published, and per TiB delivered. The free 10 GiB per month are ignored."""

TRANSFORM_TIB = 40.0
"""Price per TiB of a message transform in JavaScript, such as the transform of `metadata_only`."""

KEPT_GIB_MONTH = 0.27
"""Price per GiB-month of messages that snapshots and subscriptions keep."""

REQUEST_BYTES = 1000
"""Least bytes that Pub/Sub counts for a publish or a pull."""

CLASS_A_1000, CLASS_B_1000, STORED_GIB_MONTH = 0.005, 0.0004, 0.02
"""Prices of Cloud Storage, class Standard: a thousand writes or listings, a thousand reads, a GiB-month stored."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """The traffic of independent sources: their number, their period, and the size of a pulled message."""

    sources: int = 10_000
    period_seconds: float = 30.0
    message_bytes: float = 182.0
    tick_seconds: float = 10.0

    @property
    def messages(self) -> float:
        """Messages per day."""
        return self.sources / self.period_seconds * DAY_SECONDS

    @property
    def ticks(self) -> float:
        """Ticks per day."""
        return DAY_SECONDS / self.tick_seconds

    @property
    def bytes(self) -> float:
        """Delivered bytes per day."""
        return self.messages * self.message_bytes


MISSION = Traffic()

CALLS: dict[str, tuple[float, float]] = {
    "Pull": (31.9, 55.2),
    "Acknowledge": (4.3, 3.8),
    "ModifyAckDeadline": (0.5, 0.0),
    "CreateSnapshot": (4.5, 5.2),
    "DeleteSnapshot": (4.5, 5.2),
    "ListSnapshots": (1.0, 1.0),
}
"""Calls to Pub/Sub per tick: if it answers at once, and if it answers as slowly as the service may."""

SNAPSHOT_BYTES_A_TICK = 607_000
"""Bytes that the snapshots of a tick keep at this traffic, measured with prompt answers on a busy machine."""

CLASS_A_A_TICK, CLASS_B_A_TICK = 9, 12
"""The most calls to Cloud Storage that a tick may make in steady state."""

BUDGET = SNAPSHOT_BUDGET
"""The default of `pubsub.snapshot_budget` on the service, in bytes per day."""

READINGS_BEYOND = 6
"""Readings of a subscription per day that the budget does not postpone."""


def publishing(traffic: Traffic) -> float:
    """Return dollars per day for publishing, with one request per message."""
    return traffic.messages * max(traffic.message_bytes, REQUEST_BYTES) / TIB * PUBSUB_TIB


def delivery(traffic: Traffic) -> float:
    """Return dollars per day for delivery to one subscription. Each pull brings many messages."""
    return traffic.bytes / TIB * PUBSUB_TIB


def snapshots(kept_bytes: float) -> float:
    """Return dollars for snapshots that keep this many bytes. Assumption: creating a snapshot costs one month."""
    return kept_bytes / GIB * KEPT_GIB_MONTH


def storage_calls(traffic: Traffic) -> float:
    """Return dollars per day for calls to Cloud Storage."""
    return traffic.ticks * (CLASS_A_A_TICK * CLASS_A_1000 + CLASS_B_A_TICK * CLASS_B_1000) / 1000


def a_day(traffic: Traffic = MISSION) -> Iterator[tuple[str, str, float]]:
    """Yield each item of the costs, with its computation in words and its dollars per day."""
    each = f"{traffic.messages / 1e6:.1f} million messages"
    yield "publishing", f"{each} × 1,000 bytes, the least that a request counts", publishing(traffic)
    yield "delivery on base", f"{each} × {traffic.message_bytes:.0f} bytes", delivery(traffic)
    yield "delivery on tracking", "the same: the price of the second subscription", delivery(traffic)
    kept_bytes = SNAPSHOT_BYTES_A_TICK * traffic.ticks
    yield "snapshots", f"{kept_bytes / GIB:.1f} GiB, without a backlog", snapshots(kept_bytes)
    calls = f"{traffic.ticks:,.0f} ticks × ({CLASS_A_A_TICK} class A + {CLASS_B_A_TICK} class B), at most"
    yield "calls to Cloud Storage", calls, storage_calls(traffic)


def an_outage(traffic: Traffic = MISSION, hours: float = 24.0) -> Iterator[tuple[str, float, float]]:
    """Yield each way to read base while its backlog grows for `hours`, with the GiB that snapshots keep and dollars."""
    backlog = traffic.bytes * hours / 24
    ticks = traffic.ticks * hours / 24
    yield "one reading at the end", backlog / GIB, snapshots(backlog)
    at_each_tick = ticks * backlog / 2
    yield "a reading at each tick, without a budget", at_each_tick / GIB, snapshots(at_each_tick)
    beyond = BUDGET + READINGS_BEYOND * backlog
    yield "with the default budget, at most", beyond / GIB, snapshots(beyond)


def prices() -> Iterator[tuple[str, str, str]]:
    """Yield service, item and price."""
    yield "Pub/Sub", "publishing, and delivering, each", f"${PUBSUB_TIB:g} a TiB"
    yield "", "a message transform in JavaScript", f"${TRANSFORM_TIB:g} a TiB"
    yield "", "keeping messages: snapshots, and what subscriptions retain", f"${KEPT_GIB_MONTH:g} a GiB-month"
    yield "Cloud Storage", "class A: writes, listings", f"${CLASS_A_1000:g} a thousand"
    yield "", "class B: reads", f"${CLASS_B_1000:g} a thousand"
    yield "", "keeping objects, class Standard", f"${STORED_GIB_MONTH:g} a GiB-month"


def table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    """Format a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def tables() -> list[str]:
    """Return the tables of the page, in order."""
    day = list(a_day())
    total = ("**together**", "", sum(dollars for _, _, dollars in day))
    return [
        table(["service", "what", "list price"], prices()),
        table(["what", "how", "dollars a day"], ((what, how, f"{each:.2f}") for what, how, each in [*day, total])),
        table(
            ["readings of base", "GiB that they keep", "dollars"],
            ((what, f"{kept:,.1f}", f"{dollars:,.2f}") for what, kept, dollars in an_outage()),
        ),
    ]


if __name__ == "__main__":
    print("\n\n".join(tables()))
