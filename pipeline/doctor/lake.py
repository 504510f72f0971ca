"""Checks the lake: its folder or bucket, its owner, its version, its tables, and the running pipeline that writes to
it. Also checks Dagster's storage."""

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tidemark.local.services.own_files import INSTANCE, PACKAGE, dagster_home, given_home
from tidemark.local.services.ownership import Life, Ownership
from tidemark.local.services.stack import dagster_environment
from tidemark.pipeline.clock import rough
from tidemark.pipeline.compute.table_definition import own_tables
from tidemark.pipeline.doctor.finding import Setup, Statement, broken, ok, warning
from tidemark.pipeline.doctor.rest import Silent, ask_bucket, bucket_of, reason_of
from tidemark.pipeline.errors import BucketMissing, InvalidSettings, LakeError, LakeUnreachable
from tidemark.pipeline.lake.layout import CORRECTIONS, HEARTBEAT_DIFFS, HEARTBEATS, OWN_TABLES, QUARANTINE, Lake
from tidemark.pipeline.lake.owner import NAME
from tidemark.pipeline.lake.store.disk import why_unwritable
from tidemark.pipeline.lake.tables.windowed import refuse_other_length
from tidemark.pipeline.quality.failing import read_ticks
from tidemark.pipeline.settings import config_file
from tidemark.pipeline.settings_sections import LakeSettings
from tidemark.pipeline.version import own_version

LITTLE_BYTES = 1 << 30
"""Free disk space below which a check warns. A busy tick writes a few hundred megabytes."""

LEAST_BYTES = 32 << 20
"""Free disk space below which a check reports BROKEN, and `tidemark up` starts nothing. With less space, one tick would
fill the disk."""


def check_lake(setup: Setup) -> Iterator[Statement]:
    """Check that the lake's folder is writable and its disk has free space, or that the lake's bucket exists and
    neither deletes objects nor forbids deleting them."""
    lake = setup.settings.lake
    yield from _bucket(lake) if lake.folder is None else _folder(lake.folder, "the lake", "lake.uri")


def check_state(setup: Setup) -> Iterator[Statement]:
    """Check that the folder of Dagster's storage is writable, and that its disk has free space."""
    yield from _folder(Path(setup.settings.dagster.storage), "`tidemark up`'s storage", "dagster.storage")


def _folder(folder: Path, what: str, setting: str) -> Iterator[Statement]:
    misread = unquote(str(folder)) != str(folder) or "\\" in str(folder)
    if misread or ("?" in str(folder) and setting == "dagster.storage"):
        yield broken(f"{what} is the folder {folder}, but libraries misread %, \\ and ? in its path: set {setting}")
        return
    if problem := why_unwritable(folder, LEAST_BYTES):
        yield broken(f"{what} is the folder {folder}, but {problem}: allow writing, free some space, or set {setting}")
        return
    if problem := why_unwritable(folder, LITTLE_BYTES):
        yield warning(f"{what} is the folder {folder}, but {problem}: free some space")
    yield ok(f"{what} is the folder {folder}")


def _bucket(lake: LakeSettings) -> Iterator[Statement]:
    name = bucket_of(lake)
    try:
        response = ask_bucket(lake)
    except Silent as error:
        yield broken(f"{error}; check the network{' and lake.endpoint' if lake.endpoint else ''}")
        return
    if response.status_code == 404:
        yield broken(
            f"there is no bucket gs://{name}: create it (`gcloud storage buckets create gs://{name} "
            "--uniform-bucket-level-access --public-access-prevention --location=<the pipeline's>`), or set lake.uri"
        )
    elif response.status_code in (401, 403):
        yield warning(
            f"the configuration of gs://{name} was not checked: this requires storage.buckets.get, which the pipeline "
            f"does not need ({reason_of(response)}). See `gcloud storage buckets describe gs://{name}`"
        )
    elif response.status_code != 200:
        yield broken(f"Cloud Storage refused to show gs://{name}: {reason_of(response)}")
    else:
        yield from configured(name, response.json(), lake.uri.removeprefix(f"gs://{name}").strip("/"))


def configured(name: str, bucket: Mapping[str, Any], lake: str = "") -> Iterator[Statement]:
    """Report settings of a bucket that harm a lake, such as a rule that deletes objects. `bucket` is the bucket's
    resource in Cloud Storage's JSON API, and `lake` the prefix of the lake's objects."""
    update = f"gcloud storage buckets update gs://{name}"
    yield from _forbids_deletion(name, bucket, update)
    for rule in bucket.get("lifecycle", {}).get("rule", ()):
        condition = rule.get("condition", {})
        if rule.get("action", {}).get("type") == "Delete" and _takes_live_objects(condition, lake):
            level = broken if condition.keys() <= OF_ANY_OBJECT else warning  # other conditions may exclude the lake
            yield level(
                f"a lifecycle rule of gs://{name} deletes objects ({condition}), but log and tables need old "
                f"objects: remove the rule (`{update} --clear-lifecycle`), or make it match another prefix"
            )
    if bucket.get("versioning", {}).get("enabled"):
        yield warning(
            f"gs://{name} keeps and bills each deleted or replaced object forever (object versioning): run "
            f"`{update} --no-versioning`, or add a lifecycle rule for noncurrent versions"
        )
    if soft := int(bucket.get("softDeletePolicy", {}).get("retentionDurationSeconds", 0)):
        yield warning(
            f"gs://{name} keeps and bills deleted objects for {rough(timedelta(seconds=soft))} (soft delete), "
            f"including files that compaction replaces: run `{update} --clear-soft-delete`, unless you need them"
        )
    access = bucket.get("iamConfiguration", {})
    if access.get("publicAccessPrevention") != "enforced":
        yield warning(f"gs://{name} could be made public: run `{update} --public-access-prevention`")
    if not access.get("uniformBucketLevelAccess", {}).get("enabled"):
        yield warning(f"gs://{name} allows per-object ACLs: run `{update} --uniform-bucket-level-access`")
    yield ok(f"the lake is in gs://{name} in {bucket.get('location', 'an unknown location')}: run the pipeline there")


def _forbids_deletion(name: str, bucket: Mapping[str, Any], update: str) -> Iterator[Statement]:
    if seconds := int(bucket.get("retentionPolicy", {}).get("retentionPeriod", 0)):
        locked = " The policy is locked, so use another bucket" if bucket["retentionPolicy"].get("isLocked") else ""
        yield broken(
            f"the retention policy of gs://{name} forbids deleting or replacing an object for {seconds} s, but "
            f"commits and housekeeping do so: run `{update} --clear-retention-period`.{locked}"
        )
    if bucket.get("defaultEventBasedHold"):
        yield broken(
            f"gs://{name} holds each new object (default event-based hold), so objects can be neither deleted nor "
            f"replaced: run `{update} --no-default-event-based-hold`"
        )


OF_ANY_OBJECT = {"age", "createdBefore", "isLive", "matchesPrefix"}
"""Conditions of a lifecycle rule that every object of the lake meets sooner or later, if the rule's prefix matches."""


def _takes_live_objects(condition: Mapping[str, Any], lake: str) -> bool:
    objects = f"{lake}/" if lake else ""
    if not any(objects.startswith(one) or one.startswith(objects) for one in condition.get("matchesPrefix") or [""]):
        return False
    of_old_versions = ("numNewerVersions", "daysSinceNoncurrentTime", "noncurrentTimeBefore")
    return condition.get("isLive") is not False and condition.keys().isdisjoint(of_old_versions)


LIBRARIES = ("dagster", "pyspark", "deltalake", "google-cloud-pubsub", "google-cloud-storage")


def lake_of(setup: Setup) -> Lake:
    return Lake(setup.settings.lake, setup.settings.message.kinds, setup.clock)


def check_owner(setup: Setup) -> Iterator[Statement]:
    """Check that no other pipeline writes to the lake."""
    ownership = Ownership(setup.settings, setup.clock)
    there, life, is_damaged = ownership.look()
    if is_damaged:
        yield warning(f"{NAME} is damaged, so the lake's owner is unknown; the owner rewrites it at its next start")
    elif there is None:
        yield ok("no pipeline has written to the lake yet")
    elif not ownership.is_other(there):
        yield ok(f"this pipeline owns the lake: {ownership.sentence(there)}")
    elif life is Life.DEAD and not ownership.is_of_another_topic(there):
        yield warning(
            f"another pipeline wrote to the lake, and has ended: {ownership.sentence(there)}. The next start of this "
            "pipeline takes over the lake; to prevent this, set lake.uri to a different lake"
        )
    else:
        yield broken(ownership.refusal(there))


def check_running(setup: Setup) -> Iterator[Statement]:
    """Check that the pipeline still decides the watermark, and uses the current settings file. If decisions are missing
    while the pipeline's process is alive, the finding is BROKEN. If no process is alive, the finding is only a WARNING,
    because the pipeline may have been stopped on purpose."""
    settings, now, lake = setup.settings, setup.clock.now(), lake_of(setup)
    record = lake.tracking_log().newest().record
    ticks = read_ticks(lake, settings, None if record is None else record.decision, now)
    yield from (warning(one.sentence()) for one in ticks.failing if one.waits)
    yield from map(broken if ticks.is_alive else warning, ticks.failures)
    if ticks.settings:
        yield warning(ticks.settings)
    if record is not None and not ticks.failures:
        yield ok(f"the newest decision is {rough(max(now - record.decision.at, timedelta(0)))} old")


def check_lake_version(setup: Setup) -> Iterator[Statement]:
    """Check that this version of tidemark can read the newest entries of the tracking log, and that no entries are
    missing at the end of the log. Raises NewerFormat if it cannot read them, and CorruptObject if some are missing."""
    state = lake_of(setup).tracking_log().catch_up_to_append()
    if state.number < 0:
        yield ok(f"the lake has no tracking log yet; this is tidemark {own_version()}")
    else:
        yield ok(f"tidemark {own_version()} reads the lake up to its log entry {state.number}")


def check_libraries(setup: Setup) -> Iterator[Statement]:  # noqa: ARG001 (every check is given it)
    """Report the versions of Python and of the main libraries."""
    yield ok(f"Python {platform.python_version()}, " + ", ".join(f"{name} {version(name)}" for name in LIBRARIES))


def check_own_tables(setup: Setup) -> Iterator[Statement]:
    """Check that each custom table's file defines a valid table for this pipeline. Raises InvalidSettings if not."""
    if setup.settings.tables:
        yield ok(f"custom tables: {', '.join(own_tables(setup.settings))}")


def check_tables(setup: Setup) -> Iterator[Statement]:
    """Check that each table of the lake can be opened. Yields nothing if all can. Raises BucketMissing, and
    LakeUnreachable if the lake does not answer."""
    lake = lake_of(setup)
    names = (HEARTBEATS, QUARANTINE, CORRECTIONS, *lake.by_window())
    for open_table in (lake.streams().current, *(lake.table(name).current for name in names)):
        try:
            open_table()
        except (BucketMissing, LakeUnreachable):
            raise
        except LakeError as error:
            yield broken(f"{error} (docs/how-to/repair.md#what-is-found)")


MANY_WINDOWS = 200_000
"""A check warns that a table is slow if the table has at least this many windows. With 100,000 windows, opening a table
takes 0.3 s of processor time, and a commit takes 0.6 s. Both grow with the number of windows. With 500,000 windows, a
process needs a gigabyte of memory."""


def check_windowed_tables(setup: Setup) -> Iterator[Statement]:
    """Check that the compared fields have the types of their columns, that no custom table's code names a column of a
    field that was removed, and that each table's computed windows have the configured length and are not too many for
    a Delta table. Yields nothing if all of this holds."""
    settings, lake = setup.settings, lake_of(setup)
    heartbeats = lake.heartbeats()
    landed = heartbeats.current()
    removed = {field.name for field in landed.schema().fields} - {*heartbeats.schema.names} if landed else ()
    try:
        heartbeats.check()
    except InvalidSettings as error:
        yield broken(str(error))
    lengths = {HEARTBEAT_DIFFS: settings.windows.length}
    with suppress(InvalidSettings):  # `check_own_tables` reports it
        for name, definition in own_tables(settings).items():
            lengths[f"{OWN_TABLES}/{name}"] = definition.windowing(settings.windows).length
            if named := sorted({*re.findall(r"\w+", definition.source)}.intersection(removed)):
                yield warning(
                    f"the table {name} seems to read {', '.join(named)}, which [message.fields] no longer names, so "
                    "that its runs fail: name it there again, or change the definition"
                )
    for name, length in lengths.items():
        table = lake.table(name)
        current = table.current()
        try:
            refuse_other_length(table, current, length)
        except InvalidSettings as error:
            yield broken(str(error))
        if current is not None and (count := len(current.partitions())) >= MANY_WINDOWS:
            yield warning(
                f"{table.uri} has {count:,} windows, each with a file that every run lists: runs take seconds longer "
                "and need more memory. Keep fewer (housekeeping.windows), or use a longer windows.length in a new lake"
            )


PROGRAM = "tidemark.resources.storage_state"
ENDS_WITHIN_SECONDS = 110.0


def check_dagster_storage(setup: Setup) -> Iterator[Statement]:
    """Check, in a separate process with Dagster's environment, that Dagster's storage can be opened and that its tables
    fit the installed Dagster. If `tidemark up` has not created the storage yet, nothing is opened or created."""
    settings, home = setup.settings, _home()
    instance = (home or PACKAGE) / INSTANCE
    text = instance.read_text() if instance.exists() else ""
    storage = Path(settings.dagster.storage)
    is_ours = "sqlite" in text and "TIDEMARK_DAGSTER_STORAGE" in text
    if is_ours and not storage.exists():
        yield ok(
            f"Dagster's storage {storage} does not exist yet: `tidemark up` creates it. If another Dagster runs this "
            "pipeline, set DAGSTER_HOME to its folder and run `tidemark doctor` again"
        )
        return
    if is_ours and why_unwritable(storage):  # `check_state` reports it, more clearly than Dagster
        return
    done = subprocess.run(
        [sys.executable, "-m", PROGRAM],
        env={**os.environ, **dagster_environment(settings, config_file(), home or dagster_home(settings))},
        capture_output=True,
        text=True,
        timeout=ENDS_WITHIN_SECONDS,
        check=False,
    )
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no message"])[-1]
        yield broken(
            f"Dagster's storage, set in {instance}, cannot be opened ({why}): check `storage` there, dagster.storage "
            "in the settings, and that the database answers"
        )
        return
    yield from judged(json.loads(done.stdout.splitlines()[-1]))


def _home() -> Path | None:
    """Return the folder of the Dagster that runs the pipeline: the current folder if it has tidemark's `workspace.yaml`
    and a `dagster.yaml`, otherwise $DAGSTER_HOME if it has a `dagster.yaml` or Dagster's own storage, otherwise
    None."""
    named = os.environ.get("DAGSTER_HOME", "")
    is_home = bool(named) and any((Path(named) / one).exists() for one in (INSTANCE, "history"))
    return given_home() or (Path(named) if is_home else None)


def judged(state: dict[str, list[str | None]]) -> Iterator[Statement]:
    """Report whether the tables of Dagster's storage are those that the installed Dagster expects. `state` contains the
    current and the expected revision of each storage."""
    if old := [name for name, (there, expected) in state.items() if there != expected]:
        yield broken(
            f"the tables of Dagster's storage do not have the installed Dagster's version ({', '.join(old)}): stop "
            "Dagster, copy the storage, and run `dagster instance migrate` with Dagster's DAGSTER_HOME and environment"
        )
    else:
        yield ok("Dagster's storage answers, and its tables have the version of the installed Dagster")
