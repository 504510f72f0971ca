"""The program's version against that of what the lake holds."""

import platform
from collections.abc import Iterator
from importlib.metadata import version

from tidemark.pipeline.doctor.finding import Said, Setup, broken, ok
from tidemark.pipeline.errors import CorruptObject, LakeError, NewerFormat
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.version import own_version

LIBRARIES = ("dagster", "pyspark", "deltalake", "google-cloud-pubsub", "google-cloud-storage")


def check_lake_version(setup: Setup) -> Iterator[Said]:
    """This program can read the newest entries of the tracking log."""
    settings = setup.settings
    try:
        state = Lake(settings.lake, settings.message.kinds, setup.clock).tracking_log().catch_up()
    except (NewerFormat, CorruptObject) as error:
        yield broken(str(error))
        return
    except LakeError:  # the check of the lake says it
        return
    if state.number < 0:
        yield ok(f"the lake has no tracking log yet; this is tidemark {own_version()}")
    else:
        yield ok(f"tidemark {own_version()} reads the lake up to its log entry {state.number}")


def check_libraries(setup: Setup) -> Iterator[Said]:  # noqa: ARG001 (every check is given it)
    """Which Python and which libraries run."""
    yield ok(f"Python {platform.python_version()}, " + ", ".join(f"{name} {version(name)}" for name in LIBRARIES))
