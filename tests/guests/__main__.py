"""`python -m tests.guests --folder F [--python P] [--postgres URL]`: play it, and print what was seen."""

import argparse
import sys
from pathlib import Path

from tests.guests.play import play


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.guests", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="an empty folder for the project")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="the Python with tidemark installed")
    parser.add_argument(
        "--postgres",
        help="storage for Dagster, as postgresql+psycopg2://user@host:port/database (extra: postgres); else SQLite",
    )
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    seen = play(asked.folder.resolve(), asked.python, asked.postgres, print)
    for name, found in seen.compared.items():
        print(f"{name}: {found.rows} rows, {found.differences} differences, {found.missed} missed, {found.late} late")
    print(
        f"their sensor reported {seen.reported}; there are {seen.materializations} materializations of theirs and "
        f"{seen.evaluations} evaluations; their run of ingest is {', '.join(seen.ingests)}; "
        f"{seen.downstream} partitions downstream of orders"
    )


if __name__ == "__main__":
    main()
