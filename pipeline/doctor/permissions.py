"""Checks that the credentials of this process have the permissions that each part of tidemark needs, and reports
exceeded quotas.

`testIamPermissions` returns which permissions are granted, and needs no permission itself. A server without this call,
such as an emulator, checks no permissions. The pipeline has no permission to read the limit of a quota, so only
exceeded quotas are reported, from a metric of Cloud Monitoring.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

from google.api_core import exceptions as api
from google.cloud.monitoring_v3 import MetricServiceClient

from tidemark.local.services.stack import emulator_is_absent
from tidemark.pipeline.doctor.finding import RESOURCE_MANAGER, Level, Setup, Statement, ok, warning
from tidemark.pipeline.doctor.identity import BY_HAND, ON_PURPOSE, Component, On, Permission, needs_of, permissions_of
from tidemark.pipeline.doctor.rest import Silent, ask, ask_bucket, bucket_of, reason_of
from tidemark.pipeline.errors import PermissionMissing, PubSubError
from tidemark.pipeline.pubsub.backlog import monitoring_client, request_of
from tidemark.pipeline.pubsub.connection import ONE_TRY, publisher_client, reported, subscriber_client

READ_METRICS = "monitoring.timeSeries.list"

NOT_FATAL = {
    READ_METRICS: "backlogs are read only by snapshots, so base's size is unknown before the first one",
    "pubsub.subscriptions.delete": "`tidemark try --sample` leaves its subscription behind for a day",
    "pubsub.subscriptions.get": "changes to a subscription go unnoticed",
}
"""Permissions that the pipeline can do without, each with the effect of lacking it. `pubsub.reading = "monitoring"`
requires READ_METRICS."""


def check_pubsub_permissions(setup: Setup) -> Iterator[Statement]:
    """Check the permissions on the topic, the signal's topic and both subscriptions."""
    pubsub = setup.settings.pubsub
    if emulator_is_absent(setup.settings):
        return
    paths = {
        On.TOPIC: [pubsub.topic_path],
        On.SUBSCRIPTION: [pubsub.tracking_path, pubsub.base_path],
        On.TRACKING: [pubsub.tracking_path],
        On.BASE: [pubsub.base_path],
    }
    if (signal := setup.settings.signal_topic) is not None:
        paths[On.SIGNAL] = [signal]
    for on, resources in paths.items():
        if not (wanted := _wanted(setup, on)):
            continue
        maker: Any = publisher_client if on in (On.TOPIC, On.SIGNAL) else subscriber_client
        with maker(*pubsub.server) as client:
            for path in resources:
                if (had := _pubsub_has(client, path, wanted)) is None:
                    yield ok(f"{pubsub.emulator_host or 'Pub/Sub'} checks no permissions")
                    return
                yield from _compared(setup, on, path, had)


def check_project_permissions(setup: Setup) -> Iterator[Statement]:
    """Check the permissions on the project: for snapshots and metrics, and for creating topics and subscriptions."""
    pubsub, project = setup.settings.pubsub, setup.settings.pubsub.project
    if not (wanted := _wanted(setup, On.PROJECT)):
        return
    if setup.settings.emulated and setup.resource_manager == RESOURCE_MANAGER:
        yield ok("an emulator's project has no permissions")
        return
    names = [permission.name for permission in wanted]
    unknown = f"it is unknown whether the project {project} grants {', '.join(names)}"
    try:
        response = ask(
            "POST",
            f"{setup.resource_manager}/v1/projects/{project}:testIamPermissions",
            json={"permissions": names},
            with_credentials=not setup.settings.emulated,
            impersonate=pubsub.impersonate,
        )
    except Silent as error:
        yield warning(f"{error}; {unknown}")
        return
    if response.status_code != 200:
        enable = f"gcloud services enable cloudresourcemanager.googleapis.com --project={project}"
        look = f"gcloud projects get-iam-policy {project}"
        yield warning(f"{unknown} ({reason_of(response)}): enable the API with `{enable}`, or check it with `{look}`")
        return
    yield from _compared(setup, On.PROJECT, f"projects/{project}", response.json().get("permissions", ()))


def check_bucket_permissions(setup: Setup) -> Iterator[Statement]:
    """Check the permissions on the lake's bucket."""
    lake = setup.settings.lake
    if lake.folder is not None:
        return
    wanted = [("permissions", permission.name) for permission in _wanted(setup, On.BUCKET)]
    try:
        response = ask_bucket(lake, "/iam/testPermissions", wanted)
    except Silent:  # the check of the bucket reports it
        return
    if response.status_code == 200:
        yield from _compared(setup, On.BUCKET, f"gs://{bucket_of(lake)}", response.json().get("permissions", ()))
    elif lake.endpoint is not None:
        yield ok(f"{lake.endpoint} checks no permissions")
    elif response.status_code != 404:  # the check of the bucket reports it
        yield warning(f"the permissions on gs://{bucket_of(lake)} are unknown: {reason_of(response)}")


def _wanted(setup: Setup, on: On) -> dict[Permission, list[Component]]:
    """Return the permissions needed on a resource of the kind `on`, each with the parts of tidemark that need it. The
    topic and the subscriptions may not exist yet, so the permissions for provisioning are checked on the project."""
    found: dict[Permission, list[Component]] = {}
    settings, publishes = setup.settings, setup.settings.signal_topic is not None
    schemas = settings.contract.payload.asks_for_schemas
    needed = permissions_of(setup.components, settings.pubsub.reading, asks_for_schemas=schemas, publishes=publishes)
    for permission, parts in needed.items():
        for part in parts:
            if on is (On.PROJECT if part is Component.PROVISION else permission.on):
                found.setdefault(permission, []).append(part)
    return found


def _pubsub_has(client: Any, path: str, wanted: Iterable[Permission]) -> Sequence[str] | None:
    request = {"resource": path, "permissions": [permission.name for permission in wanted]}
    with reported("test permissions on", path, "nothing"):
        try:
            answer = client.test_iam_permissions(request=request, **ONE_TRY)
        except api.GoogleAPICallError as error:
            if isinstance(error, api.MethodNotImplemented) or "UNIMPLEMENTED" in str(error):
                return None
            raise
    granted: Sequence[str] = answer.permissions
    return granted


def _compared(setup: Setup, on: On, resource: str, granted: Iterable[str]) -> Iterator[Statement]:
    had, reading = set(granted), setup.settings.pubsub.reading
    lacking = {permission: parts for permission, parts in _wanted(setup, on).items() if permission.name not in had}
    nothing = " (it grants no permission, or does not exist)" if not had and on not in (On.PROJECT, On.BUCKET) else ""
    for permission, parts in lacking.items():
        why = next(need.why for need in needs_of(parts[0], reading) if need.permission == permission)
        spared = None if Component.ATTACH in parts else NOT_FATAL.get(permission.name)
        is_read_from = reading == "monitoring" and permission.name == READ_METRICS
        is_fatal = spared is None or is_read_from or any(part in BY_HAND for part in setup.components)
        yield (
            Level.BROKEN if is_fatal else Level.WARNING,
            f"these credentials lack {permission.name} on {resource}{nothing}, for {', '.join(parts)}: {why}. "
            f"{'' if is_fatal else f'Without this permission, {spared}. '}{_remedy(parts, permission)}",
        )
    if not lacking:
        yield ok(f"these credentials have every permission on {resource} for {', '.join(setup.components)}")


def _remedy(parts: Sequence[Component], permission: Permission) -> str:
    if permission == ON_PURPOSE.permission:
        return 'Grant roles/pubsub.subscriber on base, or read base from Cloud Monitoring with pubsub.reading = "auto"'
    roles = ", ".join(f"tidemark.{part}.{permission.on}" for part in parts)
    return f"Grant {roles} with deploy/roles/grant.sh (docs/how-to/identity.md)"


EXCEEDED = "serviceruntime.googleapis.com/quota/exceeded"
ADMINISTRATIVE_A_TICK = 6
"""Number of requests per tick to Pub/Sub, apart from pulls: two each to create, delete and list snapshots."""

LOOK_BACK = timedelta(days=1)


def check_quotas(setup: Setup) -> Iterator[Statement]:
    """Report the quotas of Pub/Sub that were exceeded in the last day. If no quota was exceeded, say where to see the
    limits."""
    pubsub = setup.settings.pubsub
    if pubsub.monitoring is None:
        yield ok("an emulator has no quotas")
        return
    where = f"https://console.cloud.google.com/iam-admin/quotas?project={pubsub.project}&service=pubsub.googleapis.com"
    a_minute = ADMINISTRATIVE_A_TICK * timedelta(minutes=1) / setup.settings.watermark.tick
    try:
        with monitoring_client(pubsub.monitoring) as client:
            exceeded = _exceeded(setup, client)
    except PermissionMissing:  # the check of permissions reports it
        return
    except PubSubError as error:
        yield warning(f"it is unknown whether a quota was exceeded ({error}): look at {where}")
        return
    for name in exceeded:
        yield warning(f"the quota {name} was exceeded in the last day: raise it at {where}, or raise watermark.tick")
    if not exceeded:
        taken = f"readings take about {a_minute:.0f} administrative requests a minute"
        yield ok(f"no quota of Pub/Sub was exceeded in the last day; {taken}, and the limits are at {where}")


def _exceeded(setup: Setup, client: MetricServiceClient) -> list[str]:
    until, project = setup.clock.now(), setup.settings.pubsub.project
    request = request_of(project, EXCEEDED, "consumer_quota", until - LOOK_BACK, until, service="pubsub.googleapis.com")
    wanted = f"{READ_METRICS} on the project (roles/monitoring.viewer)"
    with reported("read the quotas of", f"projects/{project}", wanted, "Cloud Monitoring"):
        return sorted({
            series.metric.labels.get("quota_metric", "of Pub/Sub")
            for series in next(iter(client.list_time_series(request=request, **ONE_TRY).pages)).time_series
            if any(point.value.bool_value for point in series.points)
        })  # fmt: skip
