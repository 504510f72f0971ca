"""`tidemark provision`: create the topic and its subscriptions, or fetch and pack the files that Spark needs."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from rich.progress import DownloadColumn

from tidemark.pipeline.cli.options import AsJson, apart_from, only_with, option
from tidemark.pipeline.cli.output import printed, progress_bar, safe
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.phrases import printable
from tidemark.pipeline.pubsub.provision import provision_here
from tidemark.pipeline.settings import load_settings
from tidemark.pipeline.spark.connector import JAR_SIZE, connector_file, fetch
from tidemark.pipeline.spark.executor_archive import own_manifest, pack

MARKS = {
    "created": "[green]created[/]  ",
    "found": "[dim]found[/]    ",
    "differences": "[yellow]differs[/]  ",
    "warnings": "[bold yellow]warning[/]  ",
}


def provision(
    connector: Annotated[bool, option("Only fetch the JAR that Spark needs for gs://.", "--connector")] = False,
    source: Annotated[
        str | None, option("With --connector: fetch from here, not from Maven Central.", metavar="<file|url>")
    ] = None,
    executors: Annotated[
        Path | None, option("Only pack tidemark for Spark's executors into this .tar.gz file.", metavar="<file>")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create the topic and both subscriptions.

    Existing topics and subscriptions are not changed. Differences from the settings are reported.

    With --connector: fetch the JAR into the cache, unless it is already there, and verify its checksum. `tidemark up`
    does the same.

    With --executors: the archive contains the packages that are installed here, but no Python, settings or credentials.
    Executors need PySpark, `sh`, and the same minor Python version, operating system and architecture as this machine.
    Name the file in spark.executor_environment, as a path or an address that Spark's machines can read. Pack it again
    after each upgrade.
    """
    if not connector:
        only_with("--connector", source=source)
    if connector or executors is not None:
        apart_from("--connector" if connector else "--executors", json=as_json)
    if connector:
        with progress_bar(DownloadColumn()) as bar:
            task = bar.add_task("fetching", total=JAR_SIZE)
            fetched = fetch(SystemClock(), source=source, progress=lambda done, _of: bar.update(task, completed=done))
        print(f"{'fetched' if fetched else 'found'} {printable(str(connector_file()))}")
    if executors is not None:
        packed, manifest, file = pack(executors), own_manifest(), printable(str(executors))
        print(
            f"packed {len(packed)} distributions, including tidemark {manifest.tidemark}, for Python "
            f"{manifest.python} on {manifest.machine}: {file}, {executors.stat().st_size >> 20} MiB"
        )
        print(f'next: [spark] executor_environment = "{file}"')
    if connector or executors is not None:
        return
    report = asdict(provision_here(load_settings(), SystemClock()))
    terminal = printed({name: report[name] for name in MARKS}, as_json=as_json)
    for name, mark in MARKS.items():
        for line in report[name]:
            terminal.print(mark + safe(line))
