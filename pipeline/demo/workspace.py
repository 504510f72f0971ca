"""The demonstration's folder: its settings, its lake, Dagster's storage and the truth."""

import shutil
import socket
from datetime import datetime
from pathlib import Path

from pipeline.clock import iso

TEMPLATE = """\
# Written by the demonstration. `make up` opens its lake in the Dagster UI.

[pubsub]
emulator_host = "127.0.0.1:{emulator}"

[message.fields]
temperature = "number"
status = "text"

[windows]
length = "1m"
first = "{first}"

[lake]
uri = "file:lake"

[spark]
remote = "sc://localhost:{spark}"

[dagster]
storage = "dagster"
web_port = {web}
code_port = {code}
"""

USUAL_PORTS = {"emulator": 8085, "spark": 15002, "web": 3000, "code": 4266}


class DemoFolder:
    """The paths of one demonstration."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = root / "tidemark.toml"
        self.lake = root / "lake"
        self.truth = root / "truth.parquet"
        self.summary = root / "summary.json"

    def make_anew(self, first_window: datetime) -> None:
        """Empty the folder and write the settings, with free ports: the usual ones where possible."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)
        ports = {name: free_port(usual) for name, usual in USUAL_PORTS.items()}
        self.config.write_text(TEMPLATE.format(first=iso(first_window), **ports))


def free_port(wanted: int) -> int:
    """The wanted port of the loopback interface if it is free, else any free one."""
    for port in (wanted, 0):
        with socket.socket() as candidate:
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(candidate.getsockname()[1])
    raise OSError("no port is free on the loopback interface")
