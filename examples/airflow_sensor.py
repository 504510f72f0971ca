"""An Airflow sensor that waits until tidemark's watermark has passed a data interval.

    wait = WatermarkSensor(task_id="complete", lake="gs://my-bucket/lake", mode="reschedule")

It needs `tidemark-watermark` in Airflow's environment and the right to read `watermark.json` in the lake. It can be
imported with Airflow 3 or 2. Without Airflow, the sensor is a plain class whose `poke` can be called.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from tidemark_watermark import read_watermark

BaseSensorOperator: Any = object
try:
    from airflow.sdk import BaseSensorOperator  # Airflow 3, which warns of Airflow 2's name
except ImportError:
    with suppress(ImportError):
        from airflow.sensors.base import BaseSensorOperator  # Airflow 2

logger = logging.getLogger(__name__)


class WatermarkSensor(BaseSensorOperator):  # type: ignore[misc]
    """Succeeds when the watermark has reached `event_time`, a template. The default is the end of the data interval.

    `lake` is the lake's address or folder. If `watermark.json` cannot be read, the task fails, so give it retries.
    """

    template_fields: Sequence[str] = ("lake", "event_time")

    def __init__(self, *, lake: str, event_time: str = "{{ data_interval_end | ts }}", **more: Any) -> None:
        super().__init__(**more)
        self.lake = lake
        self.event_time = event_time

    def poke(self, context: Mapping[str, Any]) -> bool:  # noqa: ARG002 (Airflow passes it)
        """Read the watermark once, and return True if it has reached `event_time`."""
        watermark = read_watermark(self.lake)
        logger.info("waiting for %s; %s", self.event_time, watermark.sentence)
        return watermark.has_reached(datetime.fromisoformat(self.event_time))
