"""All checks of `tidemark doctor`, ordered by subject, and the functions that run them."""

from collections.abc import Sequence

from tidemark.pipeline import errors
from tidemark.pipeline.clock import Clock
from tidemark.pipeline.doctor import lake, permissions, rest, spark, subscriptions
from tidemark.pipeline.doctor.finding import Check, CheckFinding, Level, Setup, examine
from tidemark.pipeline.doctor.identity import RUNNING, Component
from tidemark.pipeline.settings import Settings

SETTINGS, CREDENTIALS = "settings", "credentials"
PUBSUB, PERMISSIONS, QUOTAS = "Pub/Sub", "permissions", "quotas"
CLOCK, LAKE, VERSIONS, SPARK, DAGSTER = "clock", "lake", "versions", "Spark", "Dagster"

NO_PUBSUB = (errors.PubSubUnreachable, errors.SubscriptionMissing)
NO_LAKE = (errors.BucketMissing, errors.LakeUnreachable, errors.LakeUnwritable)
"""NO_PUBSUB lists errors that `check_subscriptions` reports. NO_LAKE lists errors that `check_lake` reports. The other
checks do not report them again."""

CHECKS = (
    Check(SETTINGS, lake.check_own_tables, seconds=60.0),
    Check(PUBSUB, subscriptions.check_topic, reported_elsewhere=(errors.PubSubUnreachable,)),
    Check(PUBSUB, subscriptions.check_subscriptions),
    Check(PERMISSIONS, permissions.check_pubsub_permissions, seconds=40.0, reported_elsewhere=NO_PUBSUB),
    Check(PERMISSIONS, permissions.check_project_permissions),
    Check(PERMISSIONS, permissions.check_bucket_permissions),
    Check(QUOTAS, permissions.check_quotas, overdue=Level.WARNING),
    Check(CLOCK, rest.check_clock, is_quick=True, overdue=Level.WARNING),
    Check(LAKE, lake.check_lake, is_quick=True),
    Check(LAKE, lake.check_windowed_tables, is_quick=True, seconds=60.0, reported_elsewhere=(errors.LakeError,)),
    Check(LAKE, lake.check_tables, seconds=60.0, reported_elsewhere=NO_LAKE),
    Check(LAKE, lake.check_owner, overdue=Level.WARNING, reported_elsewhere=NO_LAKE),
    Check(LAKE, lake.check_running, seconds=60.0, reported_elsewhere=(errors.LakeError,)),
    Check(VERSIONS, lake.check_lake_version, is_quick=True, seconds=60.0, reported_elsewhere=NO_LAKE),
    Check(VERSIONS, lake.check_libraries),
    Check(SPARK, spark.check_java, is_quick=True, seconds=60.0),
    Check(SPARK, spark.check_python, is_quick=True),
    Check(SPARK, spark.check_spark, seconds=90.0, overdue=Level.WARNING),
    Check(SPARK, spark.check_task_slots, is_quick=True),
    Check(SPARK, spark.check_token, is_quick=True),
    Check(SPARK, spark.check_environment, is_quick=True),
    Check(SPARK, spark.check_connector, is_quick=True),
    Check(DAGSTER, lake.check_state, is_quick=True),
    Check(DAGSTER, lake.check_dagster_storage, seconds=120.0),
)


UP_WAITS_SECONDS = 4.0
"""Maximum time that `tidemark up` waits for the checks of credentials and of other services together."""


def diagnose(setup: Setup, checks: Sequence[Check] = CHECKS, within: float | None = None) -> list[CheckFinding]:
    """Run the checks. If credentials for Google's services are needed but unusable, report this once, and leave out the
    checks that need them. With `pubsub.attach`, also leave out the checks of custom tables and of Spark."""
    settings = setup.settings
    if settings.pubsub.attach:
        checks = [check for check in checks if check.subject not in (SETTINGS, SPARK)]
    on_pubsub, in_a_bucket = not settings.emulated, settings.lake.folder is None and settings.lake.endpoint is None
    if not (on_pubsub or in_a_bucket):
        return examine(setup, checks, within)
    began = setup.clock.monotonic()
    found = examine(setup, [Check(CREDENTIALS, rest.check_credentials)], within)
    if any(finding.level is Level.BROKEN for finding in found):
        asking = {PUBSUB, PERMISSIONS, QUOTAS} if on_pubsub else set()
        asking |= {LAKE, VERSIONS, PERMISSIONS, CLOCK} if in_a_bucket else set()
        checks = [check for check in checks if check.subject not in asking]
    left = None if within is None else within - (setup.clock.monotonic() - began)
    return [*found, *examine(setup, checks, left)]


def running(settings: Settings) -> Sequence[Component]:
    """Return the parts of tidemark that run with these settings."""
    return (Component.ATTACH,) if settings.pubsub.attach else RUNNING


def at_once(settings: Settings, clock: Clock) -> list[CheckFinding]:
    """Run the quick checks for `tidemark up`, and return the findings that are not OK. The checks of this machine
    (disk, Java, token) run first. If none is BROKEN, the checks of other services run too, within UP_WAITS_SECONDS."""
    setup, here = Setup(settings, clock), {DAGSTER, *([LAKE] if settings.lake.folder else [])}
    here |= set() if settings.pubsub.attach else {SPARK}
    quick = [check for check in CHECKS if check.is_quick]
    found = examine(setup, [check for check in quick if check.subject in here])
    if not any(finding.level is Level.BROKEN for finding in found):
        # Pub/Sub is checked on the service only: with an emulator, `tidemark up` provisions by itself.
        asked = [check for check in CHECKS if check.subject == PUBSUB and not settings.emulated]
        rest = [*asked, *(check for check in quick if check.subject not in here)]
        found += diagnose(setup, rest, UP_WAITS_SECONDS)
    return [finding for finding in found if finding.level is not Level.OK]
