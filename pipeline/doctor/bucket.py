"""Checks the location of the lake: a folder, or a bucket and its configuration."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tidemark.pipeline.doctor.finding import Said, Setup, broken, ok, warning
from tidemark.pipeline.doctor.rest import STORAGE, Silent, ask
from tidemark.pipeline.lake.store.disk import why_unwritable
from tidemark.pipeline.settings_sections import LakeSettings

LITTLE_BYTES = 1 << 30
"""Below this free space there is a warning: a busy tick writes some hundred megabytes."""

LEAST_BYTES = 32 << 20
"""Below this free space nothing is started: one tick would fill the disk."""


def check_lake(setup: Setup) -> Iterator[Said]:
    """Check that the folder is writable, or that the bucket exists and neither deletes objects nor forbids deletion."""
    lake = setup.settings.lake
    yield from _bucket(setup, lake) if lake.folder is None else _folder(lake.folder, "the lake", "lake.uri")


def check_state(setup: Setup) -> Iterator[Said]:
    """Check that the folder with Dagster's storage, the logs and `services.json` is writable."""
    yield from _folder(Path(setup.settings.dagster.storage), "Dagster's storage", "dagster.storage")


def bucket_url(lake: LakeSettings) -> str:
    """Return the bucket's URL in the JSON API."""
    return f"{(lake.endpoint or STORAGE).rstrip('/')}/storage/v1/b/{bucket_of(lake)}"


def bucket_of(lake: LakeSettings) -> str:
    """Return the bucket's name."""
    return urlsplit(lake.uri).netloc


def _folder(folder: Path, what: str, setting: str) -> Iterator[Said]:
    if problem := why_unwritable(folder, LEAST_BYTES):
        yield broken(f"{problem}, and {what} is {folder}: repair it, make room, or set {setting}")
        return
    if problem := why_unwritable(folder, LITTLE_BYTES):
        yield warning(f"{problem}, and {what} is {folder}: make room")
    yield ok(f"{what} is the folder {folder}")


def _bucket(setup: Setup, lake: LakeSettings) -> Iterator[Said]:
    name = bucket_of(lake)
    try:
        answer = ask(bucket_url(lake), setup.clock, with_credentials=lake.endpoint is None)
    except Silent as error:
        yield broken(f"{error}; check the network{' and lake.endpoint' if lake.endpoint else ''}")
        return
    if answer.status == 404:
        yield broken(
            f"there is no bucket gs://{name}: create it (`gcloud storage buckets create gs://{name} "
            "--uniform-bucket-level-access --public-access-prevention --location=<where the pipeline runs>`), or set "
            "lake.uri to another one"
        )
    elif answer.status in (401, 403):
        yield warning(
            f"the configuration of gs://{name} cannot be read without storage.buckets.get on it, which the pipeline "
            f"itself does not need ({answer.reason}). To check it yourself: `gcloud storage buckets describe gs://{name}`"
        )
    elif answer.status != 200:
        yield broken(f"Cloud Storage refused to show gs://{name}: {answer.reason}")
    else:
        yield from configured(name, answer.said)


def configured(name: str, bucket: Mapping[str, Any]) -> Iterator[Said]:
    """Report the effects of a bucket's configuration on a lake. `bucket` is the resource of the JSON API."""
    update = f"gcloud storage buckets update gs://{name}"
    yield from _forbids_deletion(name, bucket, update)
    for rule in bucket.get("lifecycle", {}).get("rule", ()):
        if rule.get("action", {}).get("type") == "Delete" and _takes_live_objects(rule.get("condition", {})):
            yield broken(
                f"a lifecycle rule of gs://{name} deletes objects ({rule['condition']}), and log and tables need their "
                f"old ones: remove it (`{update} --clear-lifecycle`), or have it match another prefix"
            )
    if bucket.get("versioning", {}).get("enabled"):
        yield warning(
            f"gs://{name} keeps each object that is deleted or replaced (object versioning), forever and billed: "
            f"`{update} --no-versioning`, or a lifecycle rule for noncurrent versions"
        )
    if soft := int(bucket.get("softDeletePolicy", {}).get("retentionDurationSeconds", 0)):
        yield warning(
            f"gs://{name} keeps what is deleted for {soft // 86400} more days and bills it (soft delete), also the "
            f"files that compaction replaces: `{update} --clear-soft-delete`, unless you want it"
        )
    access = bucket.get("iamConfiguration", {})
    if access.get("publicAccessPrevention") != "enforced":
        yield warning(f"gs://{name} could be made public: `{update} --public-access-prevention`")
    if not access.get("uniformBucketLevelAccess", {}).get("enabled"):
        yield warning(f"gs://{name} has access lists of single objects: `{update} --uniform-bucket-level-access`")
    yield ok(f"the lake is in gs://{name} in {bucket.get('location', 'an unknown location')}: run the pipeline there")


def _forbids_deletion(name: str, bucket: Mapping[str, Any], update: str) -> Iterator[Said]:
    if seconds := int(bucket.get("retentionPolicy", {}).get("retentionPeriod", 0)):
        locked = " It is locked, so take another bucket" if bucket["retentionPolicy"].get("isLocked") else ""
        yield broken(
            f"the retention policy of gs://{name} forbids to delete or replace an object for {seconds} s, which "
            f"commits and housekeeping do: `{update} --clear-retention-period`.{locked}"
        )
    if bucket.get("defaultEventBasedHold"):
        yield broken(
            f"gs://{name} holds each new object (default event-based hold), so that it can neither be deleted nor "
            f"replaced: `{update} --no-default-event-based-hold`"
        )


def _takes_live_objects(condition: Mapping[str, Any]) -> bool:
    """True if a rule's conditions match objects that were not replaced."""
    only_old_versions = condition.get("isLive") is False or any(
        key in condition for key in ("numNewerVersions", "daysSinceNoncurrentTime", "noncurrentTimeBefore")
    )
    return not only_old_versions
