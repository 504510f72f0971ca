"""The instruments on OpenTelemetry. Importing this imports its SDK: only an outlet that exports does."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
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
"""The longest that sending may take. The receiver may be gone; what was counted meanwhile is sent later, since sums are
cumulative."""


class Telemetry:
    """A meter provider with all instruments. `recorders` are asked for values when they are collected."""

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
        """Add to a counter, or to a histogram."""
        self._add[measured.instrument](measured.value, dict(measured.attributes))

    def send(self) -> None:
        """Collect everything and send it; a failure is logged by the exporter."""
        try:
            self._collected(lambda: self._reader.collect(SEND_WITHIN_MS))
        except Exception:
            logger.exception("metrics were not sent")

    def close(self) -> None:
        """Send what is left, for a moment, and end."""
        self._collected(lambda: self._provider.shutdown(timeout_millis=1000))

    def _collected(self, collect: Callable[[], T]) -> T:
        """Look at the recorders once, and collect: OpenTelemetry asks for each gauge by itself."""
        moment: dict[Instrument, list[Observation]] = {}
        try:
            for measured in (measured for recorder in self._recorders() for measured in recorder.values()):
                observed = Observation(measured.value, dict(measured.attributes))
                moment.setdefault(measured.instrument, []).append(observed)
        except Exception:
            logger.exception("values of the moment are lost")
        self._moment = moment
        return collect()

    def _observing(self, one: Instrument) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_options: CallbackOptions) -> Sequence[Observation]:
            return self._moment.get(one, ())

        return observe


def _bucket_calls(_options: CallbackOptions) -> Iterator[Observation]:
    """The process' calls, of all its pipelines together."""
    for call, times in counted_calls().items():
        yield Observation(times, {"class": CLASSES[call], "call": call})


def _reader(chosen: MetricsSettings) -> tuple[MetricReader, Callable[[], bytes] | None]:
    """The provider's reader, and what gives everything in Prometheus' text format, if that is the export."""
    if chosen.export == "prometheus":
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        reader = PrometheusMetricReader(scope_info_enabled=False, registry=registry)
        return reader, lambda: generate_latest(registry)
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    # The exporter reads the standard variables OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_EXPORTER_OTLP_HEADERS. An endless
    # interval leaves the thread to us: see `outlet.py`.
    exporter = OTLPMetricExporter(timeout=SEND_WITHIN_MS / 1000)
    return PeriodicExportingMetricReader(exporter, export_interval_millis=math.inf), None
