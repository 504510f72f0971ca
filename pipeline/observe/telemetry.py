"""Exports the instruments with OpenTelemetry. An outlet imports this module only if `metrics.export` is set, because
the module imports OpenTelemetry's SDK."""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from threading import Thread

from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.resources import Resource

from tidemark.pipeline.lake.store.objects import CLASSES, counted_calls
from tidemark.pipeline.observe.instruments import BUCKET_CALLS, INSTRUMENTS, SECONDS, Instrument, Kind
from tidemark.pipeline.observe.recorder import Measured, Recorder
from tidemark.pipeline.settings_sections import MetricsSettings
from tidemark.pipeline.version import own_version

logger = logging.getLogger(__name__)

SEND_WITHIN_MS = 10_000
"""Time limit for one export, in milliseconds. If an export fails, no count is lost, because sums are cumulative."""

LAST_SEND_SECONDS = 3.0
"""Time limit for the export at the end of the process, in seconds. A process must end soon after SIGTERM."""


class Telemetry:
    """Sends or serves the values of all instruments with OpenTelemetry. `recorders` returns the recorders from which
    the current values are read. `scrape` returns all values as text; it is None if they are sent over OTLP."""

    def __init__(self, chosen: MetricsSettings, recorders: Callable[[], Sequence[Recorder]]) -> None:
        self._recorders = recorders
        self._reader, self.scrape = _reader(chosen)
        resource = Resource.create({"service.name": "tidemark", "service.version": own_version()})
        self._provider = MeterProvider([self._reader], resource, shutdown_on_exit=False)
        meter = self._provider.get_meter("tidemark", own_version())
        self._add: dict[Instrument, Callable[[float, dict[str, str]], None]] = {}
        for one in INSTRUMENTS:
            words = {"unit": one.unit, "description": one.description}
            if one.kind is Kind.GAUGE:
                meter.create_observable_gauge(one.name, [partial(self._values, one)], **words)
            elif one is BUCKET_CALLS:
                meter.create_observable_counter(one.name, [_bucket_calls], **words)
            elif one.kind is Kind.COUNTER:
                self._add[one] = meter.create_counter(one.name, **words).add
            else:
                histogram = meter.create_histogram(one.name, explicit_bucket_boundaries_advisory=SECONDS, **words)
                self._add[one] = histogram.record

    def add(self, measured: Measured) -> None:
        self._add[measured.instrument](measured.value, dict(measured.attributes))

    def send(self) -> None:
        """Collect and send all values. Errors are logged."""
        try:
            self._reader.collect(SEND_WITHIN_MS)
        except Exception:
            logger.exception("metrics were not sent")

    def close(self) -> None:
        """Send the newest values over OTLP, and shut down. Waits at most LAST_SEND_SECONDS for the receiver."""
        if self.scrape is None:
            sending = Thread(target=self.send, name="last metrics", daemon=True)
            sending.start()
            sending.join(LAST_SEND_SECONDS)
        self._provider.shutdown(timeout_millis=1000)

    def _values(self, one: Instrument, _options: CallbackOptions) -> Iterator[Observation]:
        for recorder in self._recorders():
            for measured in recorder.values():
                if measured.instrument is one:
                    yield Observation(measured.value, dict(measured.attributes))


def _bucket_calls(_options: CallbackOptions) -> Iterator[Observation]:
    for call, times in counted_calls().items():
        yield Observation(times, {"class": CLASSES[call], "call": call})


def _reader(chosen: MetricsSettings) -> tuple[MetricReader, Callable[[], bytes] | None]:
    if chosen.export == "prometheus":
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        return PrometheusMetricReader(scope_info_enabled=False, registry=registry), lambda: generate_latest(registry)
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    # The exporter reads the standard variables OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_EXPORTER_OTLP_HEADERS. With an
    # infinite interval the SDK starts no thread: `outlet.py` sends from its own.
    exporter = OTLPMetricExporter(timeout=SEND_WITHIN_MS / 1000)
    return PeriodicExportingMetricReader(exporter, export_interval_millis=math.inf), None
