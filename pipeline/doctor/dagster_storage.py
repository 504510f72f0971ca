"""Checks that Dagster's storage is reachable and that its tables match the installed Dagster."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tidemark.local.services.own_files import INSTANCE, PACKAGE, dagster_home, given_home
from tidemark.local.services.stack import dagster_environment
from tidemark.pipeline.doctor.finding import Said, Setup, broken, ok
from tidemark.pipeline.lake.store.disk import why_unwritable

PROGRAM = "tidemark.resources.storage_state"
ENDS_WITHIN_SECONDS = 110.0


def check_dagster_storage(setup: Setup) -> Iterator[Said]:
    """Open the storage as Dagster does, in a separate process. A folder that `tidemark up` will create is not
    created."""
    settings, home = setup.settings, _home()
    instance = (home or PACKAGE) / INSTANCE
    config = Path(os.environ.get("TIDEMARK_CONFIG", "tidemark.toml")).resolve()
    text = instance.read_text()
    storage = Path(settings.dagster.storage)
    is_ours = "sqlite" in text and "TIDEMARK_DAGSTER_STORAGE" in text
    if is_ours and not storage.exists():
        yield ok(
            f"Dagster's storage {storage} does not exist yet: `tidemark up` makes it. If your own Dagster runs this "
            "pipeline, set DAGSTER_HOME to its folder and ask again"
        )
        return
    if is_ours and why_unwritable(storage):  # `check_state` reports it, more clearly than Dagster
        return
    done = subprocess.run(
        [sys.executable, "-m", PROGRAM],
        env={**os.environ, **dagster_environment(settings, config, home or dagster_home(settings))},
        capture_output=True,
        text=True,
        timeout=ENDS_WITHIN_SECONDS,
        check=False,
    )
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no message"])[-1]
        yield broken(
            f"Dagster's storage, that of {instance}, cannot be opened ({why}): check its `storage`, dagster.storage "
            "in the settings, and that the database answers"
        )
        return
    yield from judged(json.loads(done.stdout.splitlines()[-1]))


def _home() -> Path | None:
    """Return the folder of the Dagster that runs the pipeline: the current folder if it is tidemark's, or
    $DAGSTER_HOME."""
    named = os.environ.get("DAGSTER_HOME", "")
    return given_home() or (Path(named) if named and (Path(named) / INSTANCE).is_file() else None)


def judged(state: dict[str, list[str | None]]) -> Iterator[Said]:
    """Compare the revisions of the storage's tables with those that Dagster expects."""
    old = [name for name, (there, expected) in state.items() if there != expected]
    if old:
        yield broken(
            f"the tables of Dagster's storage are of another version ({', '.join(old)}): stop everything, make a copy, "
            "and run `dagster instance migrate` with the DAGSTER_HOME and the environment of that Dagster"
        )
    else:
        yield ok("Dagster's storage answers, and its tables are of the Dagster that runs")
