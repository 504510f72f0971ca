"""`promtool`, by which the alerts and the dashboard's queries are tested.

`python -m tests.observe.tools` takes it from Debian's package of Prometheus, without installing that, where the machine
is one of Debian's. Elsewhere install Prometheus.
"""

import os
import shutil
import sys
from pathlib import Path

from tests.cache import cache, made_once, run_in
from tidemark.pipeline.errors import ServiceFailed

PROMTOOL = "promtool"


def promtool() -> Path | None:
    """The program: of the path, or the cache's."""
    found = shutil.which(PROMTOOL)
    if found is not None:
        return Path(found)
    cached = cache() / PROMTOOL
    return cached if cached.exists() else None


def fetch_promtool() -> Path:
    """The program, from Debian's package if it is not there. Raises ServiceFailed."""
    found = promtool()
    if found is not None:
        return found
    program = cache() / PROMTOOL
    with made_once(program) as folder:
        if folder is not None:
            if os.geteuid() == 0:
                run_in(folder, ["apt-get", "update"])
            run_in(folder, ["apt-get", "download", "prometheus"])
            (package,) = folder.glob("*.deb")
            run_in(folder, ["dpkg-deb", "-x", str(package), str(folder)])
            (folder / "usr" / "bin" / PROMTOOL).rename(program)
    return program


if __name__ == "__main__":
    try:
        print(fetch_promtool())
    except (ServiceFailed, FileNotFoundError) as error:
        print(f"the tests of alerts will be skipped, since there is no {PROMTOOL}: {error}", file=sys.stderr)
