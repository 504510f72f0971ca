"""The tables of one's own that the settings name."""

from collections.abc import Iterator

from tidemark.pipeline.doctor.finding import Said, Setup, broken, ok
from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.spark.table_definition import own_tables


def check_own_tables(setup: Setup) -> Iterator[Said]:
    """Each file can be read or imported, and defines a table that fits the pipeline."""
    if not setup.settings.tables:
        return
    try:
        found = own_tables(setup.settings)
    except InvalidSettings as error:
        yield broken(str(error))
    else:
        yield ok(f"tables of your own: {', '.join(found)}")
