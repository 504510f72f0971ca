"""Prints the current and the expected schema revisions of Dagster's storage, as one line of JSON.

Run this file as a module, with `$DAGSTER_HOME` and the variables that `dagster.yaml` uses. It fails if the storage is
unreachable.
"""

import json
from typing import Any

import dagster as dg


def revisions(instance: dg.DagsterInstance) -> dict[str, list[str | None]]:
    """Return the current and the expected schema revision per storage. A storage without revisions is left out."""
    storages: dict[str, Any] = {
        "runs": instance.run_storage,
        "events": instance.event_log_storage,
        "schedules": instance.schedule_storage,
    }
    instance.get_runs(limit=1)
    return {name: list(found) for name, storage in storages.items() if storage and (found := storage.alembic_version())}


if __name__ == "__main__":
    with dg.DagsterInstance.get() as opened:
        print(json.dumps(revisions(opened)))
