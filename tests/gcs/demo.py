"""`make demo LAKE=gs`: the demonstration with its lake in a bucket of the Cloud Storage server on loopback, and a table
of the calls that it made there.

The server is started for it, in a process of its own, and ends with it.
"""

import argparse
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path

from tests.gcs.apart import fresh_lake, server_apart
from tests.gcs.fault_proxy import fault_proxy, place_of
from tidemark.local.demo.script import FULL, QUICK, run_demo
from tidemark.local.demo.synthetic_beats import SyntheticSource
from tidemark.pipeline.cli.output import columns, console
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.errors import TidemarkError
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.watermark.state import DecisionRecord


def main() -> int:
    options = argparse.ArgumentParser(prog="make demo LAKE=gs", description=__doc__)
    options.add_argument("--folder", type=Path, default=Path("build/demo"))
    options.add_argument("--full", action="store_true", help="as large as `make demo FULL=1`")
    asked, terminal = options.parse_args(), console()
    source, scale = SyntheticSource(jitter=timedelta(seconds=8)), FULL if asked.full else QUICK
    try:
        with server_apart() as endpoint, fault_proxy(endpoint) as proxy:
            lake = fresh_lake(proxy.endpoint)
            summary = run_demo(asked.folder.resolve(), source, terminal, SystemClock(), scale=scale, lake=lake)
            start, end = (moment.timestamp() for moment in summary.live)
            calls = [call for call in proxy.calls() if start <= call.at < end]
            log = Lake(lake, {}, SystemClock()).tracking_log()
            entries = [log.entry(number) for number in log.numbers()]
    except TidemarkError as error:
        print(f"tidemark: {error}", file=sys.stderr)
        return 1
    decided = [entry.decision.at.timestamp() for entry in entries if isinstance(entry, DecisionRecord)]
    ticks = max(1, sum(start <= at < end for at in decided))
    found = Counter((place_of(call.name), call.price_class) for call in calls)
    table = columns("folder", right=["class A", "class B", "free"], gap=2, title=f"calls a tick, of {ticks}")
    for place in [*sorted({place for place, _ in found}), "in all"]:
        figures = (
            sum(count for (of, price), count in found.items() if price == one and place in (of, "in all")) / ticks
            for one in ("A", "B", "free")
        )
        table.add_row(place or "the bucket", *(f"{figure:.1f}" for figure in figures))
    terminal.print(f"\nIn {end - start:.0f} s of live traffic {ticks} ticks of tracking decided.")
    terminal.print(table)
    return 0 if summary.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
