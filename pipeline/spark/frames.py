"""Converts Arrow columns and datetimes to Spark's types. The session's time zone must be UTC."""

import inspect
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from tidemark.pipeline.clock import to_us

IN_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
"""Arguments that make `to_arrow_schema` give timestamps in UTC. PySpark before 4.2 needs none: it always uses UTC."""


def spark_schema(columns: Iterable[pa.Field]) -> T.StructType:
    """Convert Arrow columns to nullable Spark columns. Spark then never assumes that a file has no null values."""
    return from_arrow_schema(pa.schema([column.with_nullable(True) for column in columns]))


def arrow_schema(rows: T.StructType) -> pa.Schema:
    """Convert Spark columns to Arrow columns, with timestamps in UTC."""
    return to_arrow_schema(rows, **IN_UTC)


def moment(at: datetime) -> Column:
    """Return a datetime as an exact Spark literal."""
    return F.timestamp_micros(F.lit(to_us(at)).cast("bigint"))
