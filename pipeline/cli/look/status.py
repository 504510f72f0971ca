"""`tidemark status`: the state of a pipeline, from its lake alone."""

from typing import Annotated

from tidemark.pipeline.cli.here import here
from tidemark.pipeline.cli.options import AsJson, option
from tidemark.pipeline.cli.output import console, facts_table, print_json, safe, warn
from tidemark.pipeline.observe.facts import read_status


def status(
    everything: Annotated[bool, option("Every figure, and your custom tables.", "--all")] = False,
    as_json: AsJson = False,
) -> None:
    """Show whether the pipeline is live, and what is wrong."""
    at = here()
    now = at.clock.now()
    status = read_status(at.lake, at.settings, now, at.clock)
    tables = []
    if everything and not at.settings.pubsub.attach:
        from tidemark.pipeline.cli.look.custom_tables import read_custom_tables, show_custom_tables

        tables = list(read_custom_tables(at, now))
    if as_json:
        listed = {"tables": [facts for facts, _ in tables]} if everything else {}
        print_json({**status.facts, **status.details, **listed})
        return
    terminal = console()
    terminal.print(f"[dim]{safe(at.settings.lake.uri)}[/]")
    terminal.print(facts_table({name.replace("_", " "): value for name, value in status.facts.items()}))
    if tables:
        show_custom_tables(tables, terminal)
    warn(terminal, [*status.of_ticks, *status.of_runs])
