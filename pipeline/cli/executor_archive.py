"""`tidemark pack`: the archive for executors whose Python lacks tidemark."""

from pathlib import Path
from typing import Annotated

import typer

from tidemark.pipeline.printable import printable
from tidemark.pipeline.spark.executor_archive import own_manifest
from tidemark.pipeline.spark.executor_archive import pack as write_archive


def pack(
    file: Annotated[Path, typer.Argument(help="The archive to write, such as executors.tar.gz; it is replaced.")],
) -> None:
    """Pack tidemark and what it needs for Spark's executors, whose Python then needs neither.

    The archive holds packages, as they are installed here, and no Python. It assumes that executors have a Python of
    the same minor version, PySpark, the same kind of machine and system, and `sh`. It holds no settings and no
    credentials. Pack it again after each upgrade.

    Name it in the settings as spark.executor_environment: a path here, or an address that Spark's machines read,
    such as gs://…
    """
    packed, manifest = write_archive(file), own_manifest()
    print(
        f"packed {len(packed)} distributions, tidemark {manifest.tidemark} among them, for Python {manifest.python} on "
        f"{manifest.machine}: {printable(str(file))}, {file.stat().st_size >> 20} MB"
    )
    print(f'next: [spark] executor_environment = "{printable(str(file))}"')
