"""Exports the instruments with OpenTelemetry. An outlet imports this module only if it exports, because the module
imports OpenTelemetry's SDK."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Thread
from typing import TypeVar

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

T = TypeVar("T")

SEND_WITHIN_MS = 10_000
"""Time limit for one export, in milliseconds. If an export fails, no count is lost, because sums are cumulative."""

LAST_SEND_SECONDS = 3.0
"""Time limit for the export at the end of the process, in seconds. A process must end soon after SIGTERM."""


class Telemetry:
    """Sends or serves the values of all instruments with OpenTelemetry. `recorders` returns the recorders to read the
    current values from."""

    def __init__(self, chosen: MetricsSettings, recorders: Callable[[], Sequence[Recorder]]) -> None:
        self._recorders = recorders
        self._moment: dict[Instrument, list[Observation]] = {}
        self._reader, text = _reader(chosen)
        self.scrape = None if text is None else lambda: self._collected(text)
        resource = Resource.create({"service.name": "tidemark", "service.version": own_version()})
        self._provider = MeterProvider([self._reader], resource, shutdown_on_exit=False)
        meter = self._provider.get_meter("tidemark", own_version())
        self._add: dict[Instrument, Callable[[float, dict[str, str]], None]] = {}
        for one in INSTRUMENTS:
            words = {"unit": one.unit, "description": one.description}
            if one.kind is Kind.GAUGE:
                meter.create_observable_gauge(one.name, [self._observing(one)], **words)
            elif one is BUCKET_CALLS:
                meter.create_observable_counter(one.name, [_bucket_calls], **words)
            elif one.kind is Kind.COUNTER:
                self._add[one] = meter.create_counter(one.name, **words).add
            else:
                bounds = list(SECONDS)
                histogram = meter.create_histogram(one.name, explicit_bucket_boundaries_advisory=bounds, **words)
                self._add[one] = histogram.record

    def add(self, measured: Measured) -> None:
        self._add[measured.instrument](measured.value, dict(measured.attributes))

    def send(self) -> None:
        """Collect and send all values. Errors are logged."""
        try:
            self._collected(lambda: self._reader.collect(SEND_WITHIN_MS))
        except Exception:
            logger.exception("metrics were not sent")

    def close(self) -> None:
        """Send the newest values over OTLP, and shut down. Waits at most LAST_SEND_SECONDS for the receiver."""
        if self.scrape is None:
            sending = Thread(target=self.send, name="last metrics", daemon=True)
            sending.start()
            sending.join(LAST_SEND_SECONDS)
        self._provider.shutdown(timeout_millis=1000)

    def _collected(self, collect: Callable[[], T]) -> T:
        """Read the values of all recorders once, then return the result of `collect`. During `collect`, OpenTelemetry's
        callbacks return these values."""
        moment: dict[Instrument, list[Observation]] = {}
        try:
            for measured in (measured for recorder in self._recorders() for measured in recorder.values()):
                observed = Observation(measured.value, dict(measured.attributes))
                moment.setdefault(measured.instrument, []).append(observed)
        except Exception:
            logger.exception("current values could not be read")
        self._moment = moment
        return collect()

    def _observing(self, one: Instrument) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_options: CallbackOptions) -> Sequence[Observation]:
            return self._moment.get(one, ())

        return observe


def _bucket_calls(_options: CallbackOptions) -> Iterator[Observation]:
    for call, times in counted_calls().items():
        yield Observation(times, {"class": CLASSES[call], "call": call})


def _reader(chosen: MetricsSettings) -> tuple[MetricReader, Callable[[], bytes] | None]:
    if chosen.export == "prometheus":
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        reader = PrometheusMetricReader(scope_info_enabled=False, registry=registry)
        return reader, lambda: generate_latest(registry)
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    # The exporter reads the standard variables OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_EXPORTER_OTLP_HEADERS. With an
    # infinite interval the SDK starts no thread: `outlet.py` sends from its own.
    exporter = OTLPMetricExporter(timeout=SEND_WITHIN_MS / 1000)
    return PeriodicExportingMetricReader(exporter, export_interval_millis=math.inf), None
