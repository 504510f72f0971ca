"""The ways out: a real scrape of the port, a real receiver of OTLP, health, logs as JSON, and nothing at all where
nobody asks."""

import gzip
import json
import socket
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import dagster as dg
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tests.http_server import Quiet, ask, serving
from tests.observe.hour import OLD_AFTER, STREAMS, TARGET, an_hour, get, in_prometheus, labels_of
from tests.official_emulator import HOST, free_port
from tests.programs import ended
from tidemark.assets.catalog import HEARTBEATS, key_of
from tidemark.assets.events import histogram_events, landing_events
from tidemark.pipeline.contract.heartbeat import RejectionReason
from tidemark.pipeline.errors import ToolMissing
from tidemark.pipeline.ingest.outcome import Ingested
from tidemark.pipeline.observe import outlet
from tidemark.pipeline.observe.instruments import INSTRUMENTS
from tidemark.pipeline.observe.outlet import check_libraries, outlet_of
from tidemark.pipeline.orchestrator.names import INGEST
from tidemark.pipeline.settings_sections import IngestSettings, MetricsSettings
from tidemark.resources.lake import LakeResource

pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning")

ROOT = Path(__file__).parents[2]
ONLY_IF_RECORDED = {"tidemark_bucket_calls_total", "tidemark_sensor_failing_seconds"}
"""Not there with a lake in a folder, or while no tick fails."""

OFF = """
import sys, threading
import dagster as dg
from pathlib import Path
from tests.dagster.house import ModelWorld, Ticking
from tests.observe.hour import Hour, settings_with
from tidemark.pipeline.settings_sections import MetricsSettings

settings = settings_with(Path(sys.argv[1]), MetricsSettings())
world = ModelWorld(settings.pubsub)
with dg.DagsterInstance.ephemeral() as instance:
    hour = Hour(Ticking(settings, instance, world.clock, world), world, is_scraped=False)
    hour.play(2)
wanted = ("opentelemetry.sdk", "opentelemetry.metrics", "opentelemetry.exporter", "prometheus_client",
          "tidemark.pipeline.observe.telemetry")
print("imported:", [name for name in sys.modules if name.startswith(wanted)])
print("threads:", [one.name for one in threading.enumerate() if one.name in ("metrics", "health")])
"""


def test_off_means_that_nothing_is_imported_started_opened_or_logged(tmp_path: Path) -> None:
    done = ended([sys.executable, "-W", "ignore", "-c", OFF, tmp_path], ROOT)
    assert done.stdout.splitlines()[-2:] == ["imported: []", "threads: []"]
    assert "metric" not in done.stderr


def test_a_scrape_has_all_instruments_by_bounded_attributes_and_counts_rejections_and_failures(tmp_path: Path) -> None:
    with an_hour(tmp_path) as hour:
        hour.sensors.remove("ingest")  # runs are counted without it
        hour.play(6)
        hour.ticking.run("repair", dg.DagsterRunStatus.STARTED)
        hour.play(1)
        text, few = get(hour.ticking.settings.metrics, "/metrics"), len(hour.series)
        succeeded = [dg.DagsterRunStatus.SUCCESS]
        runs = hour.ticking.instance.get_runs(dg.RunsFilter(job_name="compute_windows", statuses=succeeded))
        for subscription in ("base", "tracking"):
            assert hour.value("messaging_client_consumed_messages_total", subscription=subscription) == 7 * STREAMS
        assert hour.value("tidemark_tick_duration_seconds_count", sensor="landing", result="ok") == 7
        assert hour.value("tidemark_runs_total", job_name="compute_windows", result="success") == len(runs) > 0
        hour.broken, hour.beats = 3, 40 * STREAMS
        hour.play(2)
        entries = hour.ticking.lake().objects()
        (newest, *_) = sorted(entries.names("tracking/log/"), reverse=True)
        Path(entries.uri.removeprefix("file:"), newest).write_bytes(b"damaged")
        hour.ticking.restart()  # another code server, which shares the port
        with pytest.raises(Exception, match=newest):
            hour.ticking.track()
        hour.scrape()
    for one in INSTRUMENTS:
        if in_prometheus(one) not in ONLY_IF_RECORDED:
            assert f"# TYPE {in_prometheus(one).removesuffix('_total')}" in text, one.name
    names = {"messaging_system": "gcp_pubsub", "messaging_destination_subscription_name": "heartbeats-base"}
    assert hour.value("messaging_client_consumed_messages_total", subscription="base", **names)
    assert hour.value("tidemark_runs_total", job_name="compute_windows", result="failure") == 0
    assert hour.value("tidemark_sensor_interval_seconds", sensor="tracking") == 60
    assert hour.value("tidemark_messages_quarantined_total", reason="NO_EVENT_TIME") == 6
    assert hour.value("tidemark_tick_duration_seconds_count", sensor="tracking", result="error") == 1
    assert hour.value("tidemark_sensor_failing_seconds", sensor="tracking", error="CorruptObject") is not None
    known = {name for one in INSTRUMENTS for name in labels_of(one)} | {"pipeline", "le", *TARGET}
    at_times = {"class", "call"}  # there if another test has called a bucket
    assert {name for _, labels in hour.series for name, _ in labels} - at_times == known - at_times
    assert not any("stream-" in value for _, labels in hour.series for _, value in labels)
    assert len(hour.series) - few <= 40  # what first happened later, such as a failure, but nothing by stream


def test_a_scrape_counts_what_a_run_reports_and_pulls_only_what_base_gave(tmp_path: Path) -> None:
    """Some messages hold several heartbeats, and one is rejected for one of its elements; a requeue pulls nothing."""
    rejected = Counter({RejectionReason.NO_STREAM_ID: 3})
    landed, tracked = Ingested(heartbeats=40, late=2, rejected=rejected, messages=10), Ingested(messages=11)
    with an_hour(tmp_path, ingest=IngestSettings(mode="continuous")) as hour:
        settings = hour.ticking.settings
        hour.play(2)
        hour.ticking.report_by_a_run([*landing_events(settings, landed), *histogram_events(settings, tracked)])
        requeued = {"rows": 6, "late": 6}
        hour.ticking.report_by_a_run([dg.AssetMaterialization(key_of(settings, HEARTBEATS), metadata=requeued)])
        hour.play(2)
    by_ticks = 4 * STREAMS
    assert hour.value("messaging_client_consumed_messages_total", subscription="base") == by_ticks + 10
    assert hour.value("messaging_client_consumed_messages_total", subscription="tracking") == by_ticks + 11
    assert hour.value("tidemark_heartbeats_landed_total") == by_ticks + 40 + 6
    assert hour.value("tidemark_heartbeats_late_total") == 2 + 6
    assert hour.value("tidemark_messages_quarantined_total", reason="NO_STREAM_ID") == 3
    assert hour.value("tidemark_sensor_interval_seconds", sensor=INGEST) == 60


@dataclass
class Received:
    """The requests that a receiver of OTLP over HTTP has got, each with its path and headers."""

    address: str = ""
    requests: list[tuple[str, Mapping[str, str], Any]] = field(default_factory=list)
    came: Event = field(default_factory=Event)

    def metrics(self) -> dict[str, Any]:
        """The instruments of the newest request, by name."""
        scopes = (scope for resource in self.requests[-1][2].resource_metrics for scope in resource.scope_metrics)
        return {metric.name: metric for scope in scopes for metric in scope.metrics}


@contextmanager
def receiving() -> Iterator[Received]:
    """A receiver on loopback, until the block is left."""
    received = Received()

    class Handler(Quiet):
        def do_POST(self) -> None:  # noqa: N802 (the name that the server calls)
            content = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                content = gzip.decompress(content)
            received.requests.append((self.path, self.headers, ExportMetricsServiceRequest.FromString(content)))
            self.reply(b"", "application/x-protobuf")
            received.came.set()

    with serving(Handler) as received.address:
        yield received


def test_otlp_receives_all_until_the_end_with_a_taken_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=secret")
    with receiving() as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.address)
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "1000")
        with an_hour(tmp_path, export="otlp") as hour, socket.create_server(hour.ticking.settings.metrics.address):
            hour.is_scraped = False
            hour.play(6)
            received.came.clear()
            assert received.came.wait(30)
            monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "3600000")
            hour.play(1)  # sent at the end
        path, headers, request = received.requests[-1]
        metrics = received.metrics()
    assert (path, headers["authorization"]) == ("/v1/metrics", "secret")
    (resource,) = request.resource_metrics
    said = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert said["service.name"] == "tidemark"
    if_any = ("tidemark.bucket.calls", "tidemark.run.age", "tidemark.sensor.failing")  # of other tests, or at times
    expected = {one.name: one.unit for one in INSTRUMENTS if one.name not in if_any}
    assert {name: metric.unit for name, metric in metrics.items() if name not in if_any} == expected
    (landed,) = metrics["tidemark.heartbeats.landed"].sum.data_points
    assert [(one.key, one.value.string_value) for one in landed.attributes] == [("pipeline", "tidemark")]
    assert (landed.as_double or landed.as_int) == 7 * STREAMS
    ticks = metrics["tidemark.tick.duration"].histogram.data_points
    (of_landing,) = [one for one in ticks if "landing" in {said.value.string_value for said in one.attributes}]
    assert of_landing.count == 7


def test_health_names_a_silent_sensor_and_an_old_watermark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with an_hour(tmp_path, export="") as hour:
        hour.is_scraped, metrics = False, hour.ticking.settings.metrics
        with monkeypatch.context() as without:
            without.delattr(LakeResource, "of")
            with pytest.raises(Exception, match="of"):
                hour.ticking.land()
        assert json.loads(get(metrics, "/livez")) == {"alive": True}, "also if the lake cannot be opened"
        hour.play(3)
        assert json.loads(get(metrics, "/healthz")) == {"healthy": True, "problems": []}
        hour.sensors.remove("landing")
        hour.play(OLD_AFTER)
        status, content = asked(metrics.address[1], HOST, path="/healthz")
        silent, old = json.loads(content)["problems"]
        assert status == 503
        assert silent.startswith("tidemark: sensor landing: no successful tick for ")
        assert "checks.max_watermark_age is 10m" in old
        assert asked(metrics.address[1], HOST)[0] == 404


def test_a_taken_port_fails_no_tick_and_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with an_hour(tmp_path) as hour:
        hour.is_scraped = False
        with socket.create_server(hour.ticking.settings.metrics.address):
            hour.play(1)
        assert caplog.text.count("metrics, health and the page cannot be served") == 1
        hour.play(2)
        assert "tidemark_watermark" in get(hour.ticking.settings.metrics, "/metrics")


def test_a_missing_library_is_named_when_definitions_are_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlet.importlib.util, "find_spec", lambda _: None)
    check_libraries(MetricsSettings(listen=f"{HOST}:9464"))
    for export in ("prometheus", "otlp"):
        with pytest.raises(ToolMissing, match=r"pip install \"tidemark-pubsub\[metrics\]\""):
            check_libraries(MetricsSettings(export=export))


def asked(port: int, *hosts: str, path: str = "/metrics", method: str = "GET") -> tuple[int, bytes]:
    return ask(port, method, path, [("Host", host) for host in hosts])[:2]


def test_an_address_of_ipv6_is_served() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no loopback address of IPv6")
    metrics = MetricsSettings(listen=f"[::1]:{free_port()}")
    (outlet := outlet_of(metrics)).listen()
    socket.create_connection(metrics.address, 5).close()
    outlet.close()


def test_only_names_of_this_machine_and_those_of_the_settings_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = MetricsSettings(export="prometheus", listen=f"{HOST}:{free_port()}")
    outlet, port = outlet_of(metrics, ["metrics.example"]), metrics.address[1]
    monkeypatch.setattr("tidemark.pipeline.settings_sections.LISTEN", metrics.listen)
    assert outlet_of(MetricsSettings(export="prometheus")) is outlet, (
        "the default address, and the same one written out"
    )
    outlet.listen()
    for host in ("127.0.0.1:9464", "localhost", "[::1]:9464", "10.0.0.7:9464", "metrics.example:80"):
        assert asked(port, host, path="/healthz") == (200, b'{"healthy": true, "problems": []}\n'), host
        assert asked(port, host, path="/healthz", method="HEAD") == (200, b""), host
    for path in ("/metrics", "/healthz", "/livez"):
        for hosts in (("rebound.example:9464",), ("127.0.0.1", "rebound.example")):
            status, content = asked(port, *hosts, path=path)
            assert (status, b"dagster.allowed_hosts" in content) == (403, True), (path, hosts)
    outlet.close()


PROGRAM = """
import logging, threading, warnings, dagster as dg
from tidemark.assets.jobs.job import working
from tidemark.pipeline.orchestrator.names import TICK
from tidemark.pipeline.settings_sections import LogSettings
from structlog.contextvars import bound_contextvars
from tidemark.resources.json_logs import log_as

log_as(LogSettings(format="json"))
log_as(LogSettings(format="json"))
logger = logging.getLogger("tidemark.somewhere")
with bound_contextvars(pipeline="orders", sensor="landing"), bound_contextvars(tick="17"):
    logger.warning("two lines\\nand %s", "words")
    threading.Thread(target=lambda: logger.warning("elsewhere")).start()
    logging.getLogger("dagster_of_a_guest").error("theirs", extra={"tick": "1", "level": "high", "event": "e", "x": 1})
try:
    1 / 0
except ZeroDivisionError:
    logger.exception("it failed")
warnings.warn("old")

@dg.op
def work(context):
    with working(context):
        context.log.debug("in detail")
        context.log.info("from Dagster")
        logging.getLogger("tidemark.inside").warning("from within")

@dg.job(tags={TICK: "18"})
def job():
    work()

with dg.DagsterInstance.ephemeral() as instance:
    detailed = {"loggers": {"console": {"config": {"log_level": "DEBUG"}}}}
    job.execute_in_process(instance=instance, run_config=detailed)
    with dg.build_sensor_context(instance=instance) as context:
        context.log.info("from a sensor")
"""


def test_each_line_is_an_object_with_the_ids_of_its_tick_or_run_and_of_no_other_thread() -> None:
    done = ended([sys.executable, "-c", PROGRAM])
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    lines = list(map(json.loads, done.stderr.splitlines()))
    assert not any(name.startswith("dagster_") for line in lines for name in line)
    inside, elsewhere, theirs, failed, old = lines[:5]
    assert [theirs[name] for name in ("event", "level", "tick", "x")] == ["theirs", "error", "17", 1]
    assert (inside["event"], inside["level"]) == ("two lines\nand words", "warning")
    assert inside["logger"] == "tidemark.somewhere"
    assert (inside["pipeline"], inside["sensor"], inside["tick"]) == ("orders", "landing", "17")
    assert elsewhere["event"] == "elsewhere"
    assert "tick" not in elsewhere
    assert "tick" not in failed
    assert "ZeroDivisionError" in failed["exception"]
    assert "old" in old["event"]
    events = [line["event"] for line in lines]
    ours, theirs = (lines[events.index(said)] for said in ("from within", "from Dagster"))
    assert ours["run_id"] == theirs["run_id"]
    assert (ours["tick"], theirs["tick"], theirs["job_name"], theirs["step_key"]) == ("18", "18", "job", "work")
    assert {"from a sensor", "in detail"} <= set(events)
