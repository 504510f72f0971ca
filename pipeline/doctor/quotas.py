"""Checks quotas: reports those exceeded in the last day, and how much of the smallest quota the pipeline uses.

The limit of a quota cannot be read with the pipeline's permissions. Whether a quota was exceeded can: this is a metric
of Cloud Monitoring.
"""

from collections.abc import Iterator
from datetime import timedelta

from google.cloud.monitoring_v3 import MetricServiceClient

from tidemark.pipeline.doctor.finding import Said, Setup, ok, warning
from tidemark.pipeline.errors import PermissionMissing, PubSubError
from tidemark.pipeline.pubsub.connection import reported
from tidemark.pipeline.pubsub.drift import LOOKS_WITHIN
from tidemark.pipeline.pubsub.monitoring import monitoring_client

EXCEEDED = "serviceruntime.googleapis.com/quota/exceeded"
ADMINISTRATIVE_A_TICK = 6
"""The requests of a tick to Pub/Sub besides pulls: two snapshots created, two deleted, and two listings."""

LOOK_BACK = timedelta(days=1)


def check_quotas(setup: Setup) -> Iterator[Said]:
    """Report the quotas of Pub/Sub that were exceeded within a day, or else where to see the limits."""
    pubsub = setup.settings.pubsub
    if pubsub.monitoring is None:
        yield ok("an emulator has no quotas")
        return
    where = f"https://console.cloud.google.com/iam-admin/quotas?project={pubsub.project}&service=pubsub.googleapis.com"
    a_minute = ADMINISTRATIVE_A_TICK * timedelta(minutes=1) / setup.settings.watermark.tick
    try:
        exceeded = _exceeded(setup, monitoring_client(pubsub.monitoring))
    except PermissionMissing:  # the check of permissions reports it
        return
    except PubSubError as error:
        yield warning(f"whether a quota was exceeded is not known ({error}): look at {where}")
        return
    for name in exceeded:
        yield warning(
            f"the quota {name} was exceeded within the last day: raise it at {where}, or make ticks rarer "
            "(watermark.tick)"
        )
    if not exceeded:
        yield ok(
            f"no quota of Pub/Sub was exceeded within a day; readings take about {a_minute:.0f} administrative "
            f"requests a minute. How high the quotas are: {where}"
        )


def _exceeded(setup: Setup, client: MetricServiceClient) -> list[str]:
    until, project = setup.clock.now(), setup.settings.pubsub.project
    request = {
        "name": f"projects/{project}",
        "filter": (
            f'metric.type = "{EXCEEDED}" AND resource.type = "consumer_quota" AND '
            f'resource.labels.project_id = "{project}" AND resource.labels.service = "pubsub.googleapis.com"'
        ),
        "interval": {"start_time": until - LOOK_BACK, "end_time": until},
    }
    wanted = "monitoring.timeSeries.list on the project (roles/monitoring.viewer)"
    with reported("read the quotas of", f"projects/{project}", wanted, "Cloud Monitoring"):
        pager = client.list_time_series(request=request, retry=None, timeout=LOOKS_WITHIN.total_seconds())
        found = {
            series.metric.labels.get("quota_metric", "of Pub/Sub")
            for series in next(iter(pager.pages)).time_series
            if any(point.value.bool_value for point in series.points)
        }
    client.transport.close()
    return sorted(found)
