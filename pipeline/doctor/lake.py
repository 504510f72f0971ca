"""Checks the lake's owner, its version and its tables, and the running pipeline that writes it."""

import platform
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version

from tidemark.local.services.ownership import Life, Ownership
from tidemark.pipeline.clock import rough
from tidemark.pipeline.compute.table_definition import own_tables
from tidemark.pipeline.doctor.finding import Level, Said, Setup, broken, ok, warning
from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.lake.layout import HEARTBEAT_DIFFS, OWN_TABLES, Lake
from tidemark.pipeline.lake.owner import NAME
from tidemark.pipeline.lake.tables.windowed import refuse_other_length
from tidemark.pipeline.quality.failing import read_ticks
from tidemark.pipeline.version import own_version

LIBRARIES = ("dagster", "pyspark", "deltalake", "google-cloud-pubsub", "google-cloud-storage")


def lake_of(setup: Setup) -> Lake:
    return Lake(setup.settings.lake, setup.settings.message.kinds, setup.clock)


def check_owner(setup: Setup) -> Iterator[Said]:
    """Check that no other pipeline writes to the lake."""
    ownership = Ownership(setup.settings, setup.clock)
    there, life, is_damaged = ownership.look()
    if is_damaged:
        yield warning(
            f"{NAME} in the lake is damaged, so the pipeline that writes the lake is not known; its next start writes "
            "it again"
        )
    elif there is None:
        yield ok("no pipeline has written the lake yet")
    elif not ownership.is_other(there):
        yield ok(f"the lake is this pipeline's: {ownership.sentence(there)}")
    elif life is Life.DEAD:
        yield warning(
            f"another pipeline wrote the lake, and has ended: {ownership.sentence(there)}. The next start of this one "
            "takes the lake over; if that is not meant, set lake.uri"
        )
    else:
        yield broken(ownership.refusal(there))


def check_running(setup: Setup) -> Iterator[Said]:
    """Check that a running pipeline makes decisions and uses the current settings file. Failures are broken if its
    process is alive; otherwise they are warnings, since it may have been stopped."""
    settings, now, lake = setup.settings, setup.clock.now(), lake_of(setup)
    record = lake.tracking_log().newest_decision()
    ticks = read_ticks(lake, settings, None if record is None else record.decision, now)
    yield from (warning(one.sentence()) for one in ticks.failing if one.waits)
    level = Level.BROKEN if ticks.is_alive else Level.WARNING
    yield from ((level, said) for said in ticks.failures)
    if ticks.settings:
        yield warning(ticks.settings)
    if record is not None and not ticks.failures:
        yield ok(f"the newest decision is {rough(now - record.decision.at)} old")


def check_lake_version(setup: Setup) -> Iterator[Said]:
    """Check that this program can read the newest entries of the tracking log. Raises NewerFormat, CorruptObject."""
    state = lake_of(setup).tracking_log().catch_up()
    if state.number < 0:
        yield ok(f"the lake has no tracking log yet; this is tidemark {own_version()}")
    else:
        yield ok(f"tidemark {own_version()} reads the lake up to its log entry {state.number}")


def check_libraries(setup: Setup) -> Iterator[Said]:  # noqa: ARG001 (every check is given it)
    """Report the versions of Python and of the main libraries."""
    yield ok(f"Python {platform.python_version()}, " + ", ".join(f"{name} {version(name)}" for name in LIBRARIES))


def check_own_tables(setup: Setup) -> Iterator[Said]:
    """Check that the file of each custom table defines a valid table for this pipeline. Raises InvalidSettings."""
    if setup.settings.tables:
        yield ok(f"custom tables: {', '.join(own_tables(setup.settings))}")


def check_window_lengths(setup: Setup) -> Iterator[Said]:
    """Check that computed windows have the configured length. Silent if they do."""
    settings, lake = setup.settings, lake_of(setup)
    lengths = {HEARTBEAT_DIFFS: settings.windows.length}
    with suppress(InvalidSettings):  # `check_own_tables` reports it
        for name, definition in own_tables(settings).items():
            lengths[f"{OWN_TABLES}/{name}"] = definition.windowing(settings.windows).length
    for name, length in lengths.items():
        table = lake.table(name)
        try:
            refuse_other_length(table, table.current(), length)
        except InvalidSettings as error:
            yield broken(str(error))
