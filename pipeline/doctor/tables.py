"""The tables of your own that the settings name, and the windows of all tables."""

from collections.abc import Iterator

from tidemark.pipeline.compute.table_definition import own_tables
from tidemark.pipeline.doctor.finding import Said, Setup, broken, ok
from tidemark.pipeline.errors import InvalidSettings, LakeError
from tidemark.pipeline.lake.layout import HEARTBEAT_DIFFS, OWN_TABLES, Lake
from tidemark.pipeline.lake.tables.windowed import refuse_other_length


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


def check_window_lengths(setup: Setup) -> Iterator[Said]:
    """The windows that were computed have the length that the settings ask for. Nothing is said if they do."""
    settings = setup.settings
    lengths = {HEARTBEAT_DIFFS: settings.windows.length}
    try:
        for name, definition in own_tables(settings).items():
            lengths[f"{OWN_TABLES}/{name}"] = definition.windowing(settings.windows).length
    except InvalidSettings:  # the check of these tables says it
        pass
    lake = Lake(settings.lake, settings.message.kinds, setup.clock)
    for name, length in lengths.items():
        table = lake.table(name)
        try:
            refuse_other_length(table, table.current(), length)
        except InvalidSettings as error:
            yield broken(str(error))
        except LakeError:  # the check of the lake says it
            return
