"""`tidemark provision`: the topic and the two subscriptions."""

from dataclasses import asdict

from pipeline.cli.options import AsJson
from pipeline.cli.output import console, print_json, safe
from pipeline.clock import SystemClock
from pipeline.services.stack import provision_here
from pipeline.settings import load_settings

MARKS = {
    "created": "[green]created[/]  ",
    "found": "[dim]found[/]    ",
    "differences": "[yellow]differs[/]  ",
    "warnings": "[bold yellow]warning[/]  ",
}


def provision(as_json: AsJson = False) -> None:
    """Create the topic, the tracking subscription, then the base subscription; report what differs."""
    report = asdict(provision_here(load_settings(), SystemClock()))
    if as_json:
        print_json({name: report[name] for name in MARKS})
        return
    terminal = console()
    for name, mark in MARKS.items():
        for line in report[name]:
            terminal.print(mark + safe(line))
