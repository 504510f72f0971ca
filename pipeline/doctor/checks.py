"""The list of all checks, ordered by subject. Without credentials, checks that need them are left out."""

from collections.abc import Sequence

from tidemark.pipeline.doctor import (
    bucket,
    clocks,
    dagster_storage,
    lake,
    permissions,
    quotas,
    rest,
    spark,
    subscriptions,
)
from tidemark.pipeline.doctor.finding import Check, CheckFinding, Level, Setup, examine
from tidemark.pipeline.errors import (
    BucketMissing,
    LakeError,
    LakeUnreachable,
    LakeUnwritable,
    PubSubUnreachable,
    SparkUnreachable,
    SubscriptionMissing,
)

SETTINGS, CREDENTIALS = "settings", "credentials"
PUBSUB, PERMISSIONS, QUOTAS = "Pub/Sub", "permissions", "quotas"
CLOCK, LAKE, VERSIONS, SPARK, DAGSTER = "clock", "lake", "versions", "Spark", "Dagster"

NO_LAKE = (BucketMissing, LakeUnreachable, LakeUnwritable)
"""The errors of the lake that `check_lake` reports."""

CHECKS = (
    Check(SETTINGS, lake.check_own_tables, seconds=60.0),
    Check(PUBSUB, subscriptions.check_topic, reported_elsewhere=(PubSubUnreachable,)),
    Check(PUBSUB, subscriptions.check_subscriptions),
    Check(
        PERMISSIONS,
        permissions.check_pubsub_permissions,
        seconds=40.0,
        reported_elsewhere=(PubSubUnreachable, SubscriptionMissing),
    ),
    Check(PERMISSIONS, permissions.check_project_permissions),
    Check(PERMISSIONS, permissions.check_bucket_permissions),
    Check(QUOTAS, quotas.check_quotas, overdue=Level.WARNING),
    Check(CLOCK, clocks.check_clock, is_quick=True, overdue=Level.WARNING),
    Check(LAKE, bucket.check_lake, is_quick=True),
    Check(LAKE, lake.check_window_lengths, is_quick=True, seconds=60.0, reported_elsewhere=(LakeError,)),
    Check(LAKE, lake.check_owner, overdue=Level.WARNING, reported_elsewhere=NO_LAKE),
    Check(LAKE, lake.check_running, seconds=60.0, reported_elsewhere=(LakeError,)),
    Check(VERSIONS, lake.check_lake_version, is_quick=True, seconds=60.0, reported_elsewhere=NO_LAKE),
    Check(VERSIONS, lake.check_libraries),
    Check(SPARK, spark.check_java, is_quick=True, seconds=60.0),
    Check(SPARK, spark.check_python, is_quick=True),
    Check(SPARK, spark.check_spark),
    Check(SPARK, spark.check_task_slots, is_quick=True),
    Check(SPARK, spark.check_token, is_quick=True),
    Check(SPARK, spark.check_environment, is_quick=True),
    Check(SPARK, spark.check_connector, is_quick=True),
    Check(
        SPARK,
        spark.check_executors,
        seconds=90.0,
        overdue=Level.WARNING,
        reported_elsewhere=(SparkUnreachable,),
    ),
    Check(DAGSTER, bucket.check_state, is_quick=True),
    Check(DAGSTER, dagster_storage.check_dagster_storage, seconds=120.0),
)


def diagnose(setup: Setup, checks: Sequence[Check] = CHECKS, within: float | None = None) -> list[CheckFinding]:
    """Run the checks. Missing credentials for Google's services are reported once, and checks that need them are left
    out. With `pubsub.attach`, checks of custom tables and of Spark are left out."""
    settings = setup.settings
    if settings.pubsub.attach:
        checks = [check for check in checks if check.subject not in (SETTINGS, SPARK)]
    on_pubsub, in_a_bucket = not settings.emulated, settings.lake.folder is None and settings.lake.endpoint is None
    if not (on_pubsub or in_a_bucket):
        return examine(setup, checks, within)
    found = examine(setup, [Check(CREDENTIALS, rest.check_credentials)], within)
    if any(finding.level is Level.BROKEN for finding in found):
        asking = {PUBSUB, PERMISSIONS, QUOTAS} if on_pubsub else set()
        asking |= {LAKE, VERSIONS} if in_a_bucket else set()
        checks = [check for check in checks if check.subject not in asking]
    return [*found, *examine(setup, checks, within)]
