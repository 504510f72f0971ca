"""The permissions that each part of tidemark needs on each resource. The roles in `deploy/roles` grant them.
`tests/identity/` records the calls of each part, and compares the calls with the table NEEDS."""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple


class On(StrEnum):
    """The resource on which a permission is granted. `SUBSCRIPTION` stands for both subscriptions; with
    `pubsub.attach`, `TRACKING` and `BASE` take its place. `SIGNAL` is the topic of `signal.publish_to`."""

    TOPIC = "topic"
    SIGNAL = "signal"
    SUBSCRIPTION = "subscription"
    TRACKING = "tracking"
    BASE = "base"
    PROJECT = "project"
    BUCKET = "bucket"


class Permission(NamedTuple):
    """An IAM permission, and the kind of resource on which it is checked. Permissions on snapshots are checked on the
    project."""

    name: str
    on: On


LOOK = Permission("pubsub.subscriptions.get", On.SUBSCRIPTION)
REMOVE = Permission("pubsub.subscriptions.delete", On.SUBSCRIPTION)
CONSUME = Permission("pubsub.subscriptions.consume", On.SUBSCRIPTION)
GET = Permission("storage.objects.get", On.BUCKET)
LIST = Permission("storage.objects.list", On.BUCKET)
CREATE = Permission("storage.objects.create", On.BUCKET)
DELETE = Permission("storage.objects.delete", On.BUCKET)
IN_PARTS = Permission("storage.multipartUploads.create", On.BUCKET)
BREAK_OFF = Permission("storage.multipartUploads.abort", On.BUCKET)


class Component(StrEnum):
    """A part of tidemark that may have its own identity."""

    TRACKER = "tracker"
    LANDER = "lander"
    CHECKS = "checks"
    RUNS = "runs"
    WEB = "web"
    PROVISION = "provision"
    ATTACH = "attach"
    MEASURE = "measure"


BY_HAND = (Component.PROVISION, Component.MEASURE)
"""Commands that a person runs occasionally. They need all their permissions, whatever the value of `pubsub.reading`."""

RUNNING = (Component.TRACKER, Component.LANDER, Component.CHECKS, Component.RUNS, Component.WEB)
"""The parts that `tidemark up` runs. The first three are sensors. They run in the code server's process and have its
identity."""


class Need(NamedTuple):
    """A permission, and its purpose."""

    permission: Permission
    why: str


def on_project(name: str, why: str) -> Need:
    return Need(Permission(name, On.PROJECT), why)


SNAPSHOTS = (
    on_project("pubsub.snapshots.create", "read a backlog by a snapshot's expiry time"),
    on_project("pubsub.snapshots.delete", "delete the snapshot of a reading"),
)
METRICS = on_project("monitoring.timeSeries.list", "read backlogs from Cloud Monitoring")
SCHEMA = on_project(
    "pubsub.schemas.listRevisions", "read the revisions of the topic's schema, if payloads have a schema"
)
PUBLISH = Need(Permission("pubsub.topics.publish", On.SIGNAL), "send the watermark, with signal.publish_to")
OBJECTS = (
    Need(GET, "read the log and the tables"),
    Need(LIST, "find their newest entries"),
    Need(CREATE, "write entries, commits and files"),
)
LARGE_FILES = (Need(IN_PARTS, "write a large file in parts"), Need(BREAK_OFF, "remove the parts of an unfinished file"))

LEASES = Need(LOOK, "read how long a message is leased; without it, one minute is assumed")
LEFT_BEHIND = on_project("pubsub.snapshots.list", "find snapshots that a crash during a reading left behind")
READING = (*SNAPSHOTS, METRICS, SCHEMA, *OBJECTS)
PULLING = (LEASES, *READING)
"""READING lists the needs of a component that reads backlogs and writes to the lake. PULLING adds those of pulling."""

NEEDS: dict[Component, tuple[Need, ...]] = {
    Component.TRACKER: (
        Need(CONSUME, "pull and acknowledge on tracking, and read the backlogs of both subscriptions"),
        *PULLING,
        LEFT_BEHIND,
        PUBLISH,
        Need(DELETE, "replace the object that records the log's newest entry"),
    ),
    Component.LANDER: (
        Need(CONSUME, "pull and acknowledge on base, and read its backlog"),
        *PULLING,
        Need(DELETE, "replace a table's pointer to its newest checkpoint"),
        *LARGE_FILES,
    ),
    Component.CHECKS: (
        Need(LOOK, "notice that a subscription no longer meets the watermark's requirements"),
        *OBJECTS,
        Need(DELETE, "replace the checkpoint of the check for missed heartbeats, and the recorded message contract"),
    ),
    Component.RUNS: (
        Need(CONSUME, "pull and acknowledge on both subscriptions, and read their backlogs"),
        *PULLING,
        Need(DELETE, "housekeeping, repair, and the temporary files that Spark writes"),
        *LARGE_FILES,
    ),
    Component.WEB: (),
    Component.PROVISION: (
        Need(Permission("pubsub.topics.get", On.TOPIC), "check whether the topic exists"),
        on_project("pubsub.topics.create", "create the topic if it is missing"),
        Need(Permission("pubsub.topics.attachSubscription", On.TOPIC), "create a subscription if it is missing"),
        Need(LOOK, "compare both subscriptions with the settings"),
        on_project("pubsub.subscriptions.create", "create a subscription if it is missing"),
        Need(REMOVE, "delete the subscription that `tidemark try --sample` created"),
        Need(CONSUME, "read base's backlog when tracking is new, and pull a sample"),
        *SNAPSHOTS,
    ),
    Component.ATTACH: (
        Need(CONSUME._replace(on=On.TRACKING), "pull and acknowledge on tracking, and read its backlog"),
        Need(LOOK._replace(on=On.TRACKING), "notice that tracking no longer meets the watermark's requirements"),
        Need(LOOK._replace(on=On.BASE), "look up base's kind of subscription, and its filter"),
        *READING,
        LEFT_BEHIND,
        Need(DELETE, "replace the object with the current watermark"),
        PUBLISH,
    ),
    Component.MEASURE: (
        on_project("pubsub.topics.create", "create a throw-away topic"),
        on_project("pubsub.topics.attachSubscription", "create subscriptions of that topic"),
        on_project("pubsub.topics.publish", "publish messages to that topic"),
        on_project("pubsub.topics.delete", "delete that topic again"),
        on_project("pubsub.topics.list", "find topics that a killed measurement left behind"),
        on_project("pubsub.subscriptions.create", "create at most four subscriptions of that topic"),
        on_project("pubsub.subscriptions.consume", "pull, acknowledge, and read backlogs"),
        on_project("pubsub.subscriptions.delete", "delete those subscriptions again"),
        on_project("pubsub.subscriptions.list", "find subscriptions that a killed measurement left behind"),
        *SNAPSHOTS,
        on_project("pubsub.snapshots.list", "find snapshots that a killed measurement left behind"),
        METRICS,
    ),
}

ON_PURPOSE = Need(
    CONSUME._replace(on=On.BASE),
    'read base by a snapshot, with `pubsub.reading = "snapshot"`. The permission also allows pulling',
)
"""The permission to take snapshots of the base subscription. `tidemark attach` needs it only with
`pubsub.reading = "snapshot"`. No role file grants this permission, because its holder could also pull messages."""

BY_CHOICE = frozenset({"pubsub.snapshots.create", "pubsub.snapshots.delete", "pubsub.snapshots.list"})
"""Permissions that no running part needs with `pubsub.reading = "monitoring"`."""


def permissions_of(
    components: Iterable[Component], reading: str = "auto", *, asks_for_schemas: bool = False, publishes: bool = False
) -> dict[Permission, list[Component]]:
    """Return the permissions that these components need, each with the components that need it, in the given order.
    `reading` is the setting `pubsub.reading`. `asks_for_schemas` is true if payloads are read with the topic's schema,
    and `publishes` if the watermark is sent to a topic."""
    spared = {SCHEMA.permission: not asks_for_schemas, PUBLISH.permission: not publishes}
    by_reading = {"snapshot": {METRICS.permission.name}, "monitoring": BY_CHOICE}.get(reading, frozenset())
    found: dict[Permission, list[Component]] = {}
    for component in components:
        for permission, _ in needs_of(component, reading):
            is_spared = permission.name in by_reading and component not in BY_HAND
            if not is_spared and not spared.get(permission):
                found.setdefault(permission, []).append(component)
    return found


def needs_of(component: Component, reading: str) -> tuple[Need, ...]:
    """Return all needs of a component, including those that apply only with some settings. ON_PURPOSE is included only
    if it applies with `reading`, a value of `pubsub.reading`."""
    return NEEDS[component] + ((ON_PURPOSE,) if component is Component.ATTACH and reading == "snapshot" else ())
