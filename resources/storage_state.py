"""Prints which revisions the tables of Dagster's storage have, and which this Dagster expects, as one line of JSON.

Run as a module, with `$DAGSTER_HOME` and what `dagster.yaml` takes from the environment. It fails where the storage
does not answer.
"""

import json
from typing import Any

import dagster as dg


def revisions(instance: dg.DagsterInstance) -> dict[str, list[str | None]]:
    """The existing and the expected revision, by storage. A storage without revisions is left out."""
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
