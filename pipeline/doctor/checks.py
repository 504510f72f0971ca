"""The list of all checks, in the order of their subjects."""

from tidemark.pipeline.doctor.bucket import check_lake
from tidemark.pipeline.doctor.clocks import check_clock_if_answered
from tidemark.pipeline.doctor.cluster import check_executors
from tidemark.pipeline.doctor.dagster_storage import check_dagster_storage
from tidemark.pipeline.doctor.finding import Check, Level
from tidemark.pipeline.doctor.permissions import (
    check_bucket_permissions,
    check_project_permissions,
    check_pubsub_permissions,
)
from tidemark.pipeline.doctor.quotas import check_quotas
from tidemark.pipeline.doctor.spark import check_connector, check_java, check_python, check_spark
from tidemark.pipeline.doctor.subscriptions import check_subscriptions, check_topic
from tidemark.pipeline.doctor.versions import check_lake_version, check_libraries

SETTINGS, PUBSUB, PERMISSIONS, QUOTAS = "settings", "Pub/Sub", "permissions", "quotas"
CLOCK, LAKE, VERSIONS, SPARK, DAGSTER = "clock", "lake", "versions", "Spark", "Dagster"

CHECKS = (
    Check(PUBSUB, check_topic),
    Check(PUBSUB, check_subscriptions),
    Check(PERMISSIONS, check_pubsub_permissions),
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
    Check(SPARK, check_connector, is_quick=True),
    Check(SPARK, check_executors, seconds=90.0, overdue=Level.WARNING),
    Check(DAGSTER, check_dagster_storage, seconds=60.0),
)

ON_THE_SERVICE = (Check(PUBSUB, check_topic), Check(PUBSUB, check_subscriptions))
"""`tidemark up` takes these as well where it does not provision."""
