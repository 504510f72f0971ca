"""The page in a real browser, on a pipeline that ticks on `tidemark pubsub`; and how it is served."""

import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import dagster as dg
import psutil
import pytest

from tests.dagster.house import ModelWorld, Ticking, publish
from tests.fixtures_emulator import unique_pubsub
from tests.observe.hour import get, settings_with
from tests.official_emulator import HOST, free_port, running_own_pubsub
from tests.pubsub.builders import raising
from tests.quick import with_policy
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.errors import LakeError
from tidemark.pipeline.observe import page as page_module
from tidemark.pipeline.observe.outlet import outlet_of
from tidemark.pipeline.pubsub.connection import publisher_client, subscriber_client
from tidemark.pipeline.pubsub.provision import provision
from tidemark.pipeline.quality import failing
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import MetricsSettings, PubSubSettings, WatermarkSettings

SECOND = timedelta(seconds=1)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
HOSTILE = '<script>window.ran = 1</script>"\'><img src=x onerror="window.ran = 2">&lt;'
WITHIN_MS = 30_000

WATERMARK = WatermarkSettings(tick=SECOND, band=SECOND, idle_timeout=SECOND)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield launched
        launched.close()


@contextmanager
def live(folder: Path, address: str) -> Iterator[tuple[Ticking, Any]]:
    """A pipeline on this server, and its publisher."""
    settings = page_settings(folder).model_copy(update={"pubsub": unique_pubsub(address)})
    with (
        subscriber_client(address) as subscriber,
        publisher_client(address) as publisher,
        dg.DagsterInstance.ephemeral() as instance,
    ):
        provision(subscriber, publisher, settings.pubsub, settings.contract, SystemClock())
        try:
            yield Ticking(settings, instance), publisher
        finally:
            outlet_of(settings.metrics).close()


def tick(ticking: Ticking, *sensors: str) -> None:
    for sensor in sensors:
        ticking.tick(sensor)


def beats(now: datetime, *lags: float) -> list[tuple[str, datetime]]:
    """Heartbeats of as many streams, which happened so many seconds before now."""
    return [(f"sensor-{number:03d}", now - lag * SECOND) for number, lag in enumerate(lags)]


def page_settings(folder: Path) -> Settings:
    settings = settings_with(folder, MetricsSettings(listen=f"{HOST}:{free_port()}"), watermark=WATERMARK)
    return with_policy(settings, max_idle_lag=timedelta(0))


def url_of(settings: Settings) -> str:
    return f"http://{HOST}:{settings.metrics.address[1]}/"


@contextmanager
def opened(browser: Any, url: str) -> Iterator[tuple[Any, list[str], list[str]]]:
    """The page in a tab of its own, what its console says, and the addresses that it asks."""
    context = browser.new_context()
    tab, said, asked = context.new_page(), list[str](), list[str]()
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    try:
        tab.goto(url)
        yield tab, said, asked
    finally:
        context.close()


class LooksAtEachRequest(page_module.Looker[Any]):
    """Reuses no result: how long one is good for, and how long a read took, is no matter."""

    def begin(self, now: datetime) -> None:
        self._next_at = 0.0
        super().begin(now)


def test_the_page_follows_a_pipeline_to_its_stop(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "Looker", LooksAtEachRequest)
    with running_own_pubsub(tmp_path / "pubsub.log") as address, live(tmp_path, address) as (ticking, publisher):
        settings, clock = ticking.settings, ticking.clock
        tick(ticking, "landing")  # which opens the port
        with opened(browser, url_of(settings)) as (tab, said, asked):
            tab.get_by_role("heading", name="No decision yet").wait_for(timeout=WITHIN_MS)
            publish(publisher, settings, [(HOSTILE, clock.now() - SECOND), *beats(clock.now(), 0.5, 1.0, 2.0)])
            tick(ticking, "tracking", "landing", "tracking")
            tab.locator("svg.plane .heat").first.wait_for(timeout=WITHIN_MS)
            point_until_landed_is_told(tab)
            # A name is text wherever it is told: of what has landed in a cell, and of what is late.
            publish(publisher, settings, [(HOSTILE, clock.now() - timedelta(hours=1))])
            tick(ticking, "tracking", "landing", "tracking")
            tab.get_by_text(HOSTILE).first.wait_for(timeout=WITHIN_MS)
            entry = re.search(r"entry \d+ ", tab.locator(".meta").inner_text())
            publish(publisher, settings, beats(clock.now(), 0.5))
            tick(ticking, "landing", "tracking")
            tab.locator(".meta", has_not_text=entry.group()).wait_for(timeout=WITHIN_MS)
            assert tab.locator("h1").inner_text() != "Something is wrong"
            assert tab.locator("main > section").last.evaluate("box => getComputedStyle(box).borderTopWidth") == "1px"
            assert tab.evaluate("window.ran") is None
            stop(address)
            monkeypatch.setattr(failing, "LOOKS_EVERY", SECOND)  # so that a decision is overdue after seconds
            with pytest.raises(Exception, match="Pub/Sub"):
                tick(ticking, "tracking")
            tab.get_by_text("ticks of the sensor tracking failed").first.wait_for(timeout=WITHIN_MS)
            tab.get_by_role("heading", name="No decision for").wait_for(timeout=WITHIN_MS)
            assert tab.locator("header").inner_text().count("sensor tracking") == 1
            assert said == []
            assert {url.split("?")[0] for url in asked if not url.startswith("data:")} <= {
                url_of(settings) + path for path in ("", "live", "cell")
            }


@contextmanager
def modelled(folder: Path, *, attach: bool = False) -> Iterator[Ticking]:
    """A pipeline on the model of Pub/Sub whose watermark has advanced, with a page on the model's clock."""
    pubsub = PubSubSettings(base_subscription="theirs", attach=attach)
    settings = page_settings(folder).model_copy(update={"pubsub": pubsub})
    world = ModelWorld(pubsub)
    with dg.DagsterInstance.ephemeral() as instance:
        ticking = Ticking(settings, instance, world.clock, world)
        for _ in range(8):
            publish(world, settings, [(HOSTILE, world.clock.now()), *beats(world.clock.now(), 0.2, 0.4)])
            world.clock.advance(SECOND)
            if attach:  # others read base
                taken = world.model.pull(pubsub.base_path, 100, world.clock.now())
                world.model.acknowledge(pubsub.base_path, [one.ack_id for one in taken], world.clock.now())
            tick(ticking, *([] if attach else ["landing"]), "tracking")
        try:
            yield ticking
        finally:
            outlet_of(settings.metrics).close()


def test_every_answer_forbids_what_a_hostile_page_or_name_would_need(tmp_path: Path) -> None:
    with modelled(tmp_path) as pipeline:
        text = get(pipeline.settings.metrics, "/")
        with urllib.request.urlopen(url_of(pipeline.settings), timeout=10) as answer:  # noqa: S310
            headers = dict(answer.headers)
        cell = get(pipeline.settings.metrics, "/cell?x=1&y=2e5&at=%3Cscript%3E&x=nan")
        with pytest.raises(urllib.error.HTTPError, match="501") as refused:
            urllib.request.urlopen(url_of(pipeline.settings), b"x", timeout=10)  # noqa: S310 (with content: a POST)
        refused.value.close()
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'sha256-")
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert (headers["X-Content-Type-Options"], headers["Referrer-Policy"]) == ("nosniff", "no-referrer")
    assert not [name for name in headers if name.startswith("Access-Control")]
    assert "<noscript><meta http-equiv" in text
    assert HOSTILE not in text
    assert 'onerror="' not in text
    assert cell == ""


def test_the_page_says_why_it_lacks_the_lake_and_answers_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unreachable = raising(LakeError("the bucket <b>lake</b> does not answer; look at the network"))
    for read in ("read_decided", "read_status"):
        monkeypatch.setattr(page_module, read, unreachable)
    with modelled(tmp_path) as pipeline:
        text = get(pipeline.settings.metrics, "/")
        assert "Something is wrong" in text
        assert "the bucket &lt;b&gt;lake&lt;/b&gt; does not answer; look at the network" in text
        release = Event()
        monkeypatch.setattr(page_module, "read_decided", lambda _: release.wait(60))
        pipeline.clock.advance(40 * SECOND)
        assert "Something is wrong" in get(pipeline.settings.metrics, "/")
        pipeline.clock.advance(40 * SECOND)
        assert "the lake has not answered for 40s" in get(pipeline.settings.metrics, "/")
        release.set()


def test_where_nothing_lands_the_page_has_nothing_about_tables(tmp_path: Path) -> None:
    with modelled(tmp_path, attach=True) as pipeline:
        text = get(pipeline.settings.metrics, "/")
    assert "<h1><i></i>All is well</h1>" in text
    assert "What the decision is based on" in text
    assert "in quarantine" not in text
    assert "<h2>Windows</h2>" not in text


def stop(address: str) -> None:
    """Stop the server at the address, as its owner does."""
    (server,) = (
        process
        for process in psutil.Process().children(recursive=True)
        if process.status() != psutil.STATUS_ZOMBIE and address.rpartition(":")[2] in " ".join(process.cmdline())
    )
    server.terminate()
    server.wait(10)


CORNER_OF_A_CELL = """() => {
    const plane = document.querySelector("svg.plane");
    plane.scrollIntoView();
    const [, x, y] = plane.querySelector(".heat").getAttribute("d").match(/^M(\\d+) (\\d+)/).map(Number);
    const box = plane.getBoundingClientRect(), unit = box.width / plane.viewBox.baseVal.width;
    return [box.left + (x + 1) * unit, box.top + (y + 1) * unit];
}"""


def point_until_landed_is_told(tab: Any) -> None:
    """Click the first cell of the plane, again if the plane was drawn anew before the click was answered."""
    for _ in range(WITHIN_MS // 300):
        tab.mouse.click(*tab.evaluate(CORNER_OF_A_CELL))
        tab.wait_for_timeout(300)
        if "Landed: " in tab.locator("#cell").inner_text():
            return
    raise AssertionError(tab.locator("#cell").inner_text())
