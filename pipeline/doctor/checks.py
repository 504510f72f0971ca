"""The list of all checks, in the order of their subjects, and which of them make sense without credentials."""

from collections.abc import Sequence

from tidemark.pipeline.doctor.bucket import check_lake
from tidemark.pipeline.doctor.clocks import check_clock_if_answered
from tidemark.pipeline.doctor.cluster import check_executors, check_python
from tidemark.pipeline.doctor.credentials import check_credentials
from tidemark.pipeline.doctor.dagster_storage import check_dagster_storage
from tidemark.pipeline.doctor.finding import Check, Finding, Level, Setup, examine
from tidemark.pipeline.doctor.permissions import (
    check_bucket_permissions,
    check_project_permissions,
    check_pubsub_permissions,
)
from tidemark.pipeline.doctor.quotas import check_quotas
from tidemark.pipeline.doctor.spark import (
    check_connector,
    check_environment,
    check_java,
    check_places,
    check_spark,
    check_token,
)
from tidemark.pipeline.doctor.subscriptions import check_subscriptions, check_topic
from tidemark.pipeline.doctor.tables import check_own_tables
from tidemark.pipeline.doctor.versions import check_lake_version, check_libraries

SETTINGS, CREDENTIALS = "settings", "credentials"
PUBSUB, PERMISSIONS, QUOTAS = "Pub/Sub", "permissions", "quotas"
CLOCK, LAKE, VERSIONS, SPARK, DAGSTER = "clock", "lake", "versions", "Spark", "Dagster"

CHECKS = (
    Check(SETTINGS, check_own_tables, seconds=60.0),
    Check(PUBSUB, check_topic),
    Check(PUBSUB, check_subscriptions),
    Check(PERMISSIONS, check_pubsub_permissions, seconds=40.0),
    Check(PERMISSIONS, check_project_permissions),
    Check(PERMISSIONS, check_bucket_permissions),
    Check(QUOTAS, check_quotas, overdue=Level.WARNING),
    Check(CLOCK, check_clock_if_answered, is_quick=True, overdue=Level.WARNING),
    Check(LAKE, check_lake, is_quick=True),
    Check(VERSIONS, check_lake_version, is_quick=True, seconds=60.0),
    Check(VERSIONS, check_libraries),
    Check(SPARK, check_java, is_quick=True, seconds=60.0),
    Check(SPARK, check_python, is_quick=True),
    Check(SPARK, check_spark),
    Check(SPARK, check_places, is_quick=True),
    Check(SPARK, check_token, is_quick=True),
    Check(SPARK, check_environment, is_quick=True),
    Check(SPARK, check_connector, is_quick=True),
    Check(SPARK, check_executors, seconds=90.0, overdue=Level.WARNING),
    Check(DAGSTER, check_dagster_storage, seconds=120.0),
)

ON_THE_SERVICE = (Check(PUBSUB, check_topic), Check(PUBSUB, check_subscriptions))
"""`tidemark up` takes these as well where it does not provision."""


def diagnose(setup: Setup, checks: Sequence[Check] = CHECKS, within: float | None = None) -> list[Finding]:
    """What the checks find. Where Google's services are used and there are no credentials for them, that is said once,
    and what would ask them is left out."""
    settings = setup.settings
    on_pubsub, in_a_bucket = not settings.emulated, settings.lake.folder is None and settings.lake.endpoint is None
    if not (on_pubsub or in_a_bucket):
        return examine(setup, checks, within)
    found = examine(setup, [Check(CREDENTIALS, check_credentials)], within)
    if any(finding.level is Level.BROKEN for finding in found):
        asking = {PUBSUB, PERMISSIONS, QUOTAS} if on_pubsub else set()
        asking |= {LAKE, VERSIONS} if in_a_bucket else set()
        checks = [check for check in checks if check.subject not in asking]
    return [*found, *examine(setup, checks, within)]
