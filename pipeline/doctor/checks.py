"""The list of all checks, in the order of their subjects, and which of them make sense without credentials."""

from collections.abc import Sequence

from tidemark.pipeline.doctor import (
    bucket,
    clocks,
    cluster,
    credentials,
    dagster_storage,
    owner,
    permissions,
    quotas,
    running,
    spark,
    subscriptions,
    tables,
    versions,
)
from tidemark.pipeline.doctor.finding import Check, Finding, Level, Setup, examine

SETTINGS, CREDENTIALS = "settings", "credentials"
PUBSUB, PERMISSIONS, QUOTAS = "Pub/Sub", "permissions", "quotas"
CLOCK, LAKE, VERSIONS, SPARK, DAGSTER = "clock", "lake", "versions", "Spark", "Dagster"

CHECKS = (
    Check(SETTINGS, tables.check_own_tables, seconds=60.0),
    Check(PUBSUB, subscriptions.check_topic),
    Check(PUBSUB, subscriptions.check_subscriptions),
    Check(PERMISSIONS, permissions.check_pubsub_permissions, seconds=40.0),
    Check(PERMISSIONS, permissions.check_project_permissions),
    Check(PERMISSIONS, permissions.check_bucket_permissions),
    Check(QUOTAS, quotas.check_quotas, overdue=Level.WARNING),
    Check(CLOCK, clocks.check_clock, is_quick=True, overdue=Level.WARNING),
    Check(LAKE, bucket.check_lake, is_quick=True),
    Check(LAKE, tables.check_window_lengths, is_quick=True, seconds=60.0),
    Check(LAKE, owner.check_owner, overdue=Level.WARNING),
    Check(LAKE, running.check_running, seconds=60.0),
    Check(VERSIONS, versions.check_lake_version, is_quick=True, seconds=60.0),
    Check(VERSIONS, versions.check_libraries),
    Check(SPARK, spark.check_java, is_quick=True, seconds=60.0),
    Check(SPARK, cluster.check_python, is_quick=True),
    Check(SPARK, spark.check_spark),
    Check(SPARK, spark.check_places, is_quick=True),
    Check(SPARK, spark.check_token, is_quick=True),
    Check(SPARK, spark.check_environment, is_quick=True),
    Check(SPARK, spark.check_connector, is_quick=True),
    Check(SPARK, cluster.check_executors, seconds=90.0, overdue=Level.WARNING),
    Check(DAGSTER, bucket.check_state, is_quick=True),
    Check(DAGSTER, dagster_storage.check_dagster_storage, seconds=120.0),
)


def diagnose(setup: Setup, checks: Sequence[Check] = CHECKS, within: float | None = None) -> list[Finding]:
    """What the checks find. Where Google's services are used and there are no credentials for them, that is said once,
    and what would ask them is left out; with `pubsub.attach`, what looks at tables of one's own and at Spark."""
    settings = setup.settings
    if settings.pubsub.attach:
        checks = [check for check in checks if check.subject not in (SETTINGS, SPARK)]
    on_pubsub, in_a_bucket = not settings.emulated, settings.lake.folder is None and settings.lake.endpoint is None
    if not (on_pubsub or in_a_bucket):
        return examine(setup, checks, within)
    found = examine(setup, [Check(CREDENTIALS, credentials.check_credentials)], within)
    if any(finding.level is Level.BROKEN for finding in found):
        asking = {PUBSUB, PERMISSIONS, QUOTAS} if on_pubsub else set()
        asking |= {LAKE, VERSIONS} if in_a_bucket else set()
        checks = [check for check in checks if check.subject not in asking]
    return [*found, *examine(setup, checks, within)]
