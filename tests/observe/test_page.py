"""The page in a real browser, on a pipeline that ticks on `tidemark pubsub`; and how it is served."""

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.dagster.house import publish
from tests.fixtures_emulator import unique_pubsub
from tests.observe.hour import get, settings_with
from tests.observe.pipeline import Pipeline, beats
from tests.official_emulator import HOST, free_port, running_own_pubsub
from tests.pubsub.builders import subscription_of
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.errors import LakeError
from tidemark.pipeline.lake.layout import OpenLake
from tidemark.pipeline.observe import page as page_module
from tidemark.pipeline.observe.page import Page
from tidemark.pipeline.pubsub.backlog import SnapshotBacklog
from tidemark.pipeline.pubsub.connection import publisher_client, subscriber_client
from tidemark.pipeline.pubsub.provision import provision
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import MetricsSettings, WatermarkSettings

SECOND = timedelta(seconds=1)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
HOSTILE = '<script>window.ran = 1</script>"\'><img src=x onerror="window.ran = 2">&lt;'
WITHIN_MS = 30_000

WATERMARK = WatermarkSettings(tick=SECOND, band=SECOND, idle_timeout=SECOND, max_idle_lag=timedelta(0))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@contextmanager
def live(folder: Path, address: str) -> Iterator[tuple[Pipeline, Any]]:
    """A pipeline on this server, and its publisher."""
    settings, clock = page_settings(folder), SystemClock()
    settings = settings.model_copy(update={"pubsub": unique_pubsub(address)})
    subscriber, publisher = subscriber_client(address), publisher_client(address)
    provision(subscriber, publisher, settings.pubsub, settings.contract, clock)
    pipeline = Pipeline(
        settings,
        clock,
        lambda path: subscription_of(subscriber, settings.pubsub, path),
        lambda path: SnapshotBacklog(subscriber, path, clock, 10 * SECOND),
    )
    try:
        yield pipeline, publisher
    finally:
        pipeline.close()
        for client in (subscriber, publisher):
            client.transport.close()


def page_settings(folder: Path) -> Settings:
    return settings_with(folder, MetricsSettings(page=True, port=free_port()), watermark=WATERMARK)


def url_of(settings: Settings) -> str:
    return f"http://{HOST}:{settings.metrics.port}/"


@contextmanager
def opened(browser: Any, url: str, **more: Any) -> Iterator[tuple[Any, list[str], list[str]]]:
    """The page in a tab of its own, what its console says, and the addresses that it asks."""
    context = browser.new_context(**more)
    tab, said, asked = context.new_page(), list[str](), list[str]()
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    try:
        tab.goto(url)
        yield tab, said, asked
    finally:
        context.close()


def test_the_page_follows_a_pipeline_and_says_that_it_holds_when_pubsub_stops(browser: Any, tmp_path: Path) -> None:
    with running_own_pubsub(tmp_path / "pubsub.log") as address, live(tmp_path, address) as (pipeline, publisher):
        settings, clock = pipeline.settings, pipeline.clock
        with opened(browser, url_of(settings)) as (tab, said, asked):
            tab.get_by_role("heading", name="No decision yet").wait_for(timeout=WITHIN_MS)
            streams = [(HOSTILE, clock.now() - SECOND), *beats(clock.now(), [0.5, 1.0, 2.0])]
            publish(publisher, settings, streams)
            pipeline.tick(["tracking", "landing", "tracking"])
            tab.locator("svg.plane .heat").first.wait_for(timeout=WITHIN_MS)
            point_at_a_cell(tab)
            tab.wait_for_function("document.getElementById('cell').textContent.includes('Landed: ')", timeout=WITHIN_MS)
            # A hostile name is text, where it is pointed at and where it is late.
            publish(publisher, settings, [(HOSTILE, clock.now() - timedelta(hours=1))])
            pipeline.tick(["tracking", "landing", "tracking"])
            tab.wait_for_function("document.querySelector('.meta').textContent.includes('entry')", timeout=WITHIN_MS)
            entry = tab.locator(".meta").inner_text()
            publish(publisher, settings, beats(clock.now(), [0.5]))
            pipeline.tick()
            tab.wait_for_function("old => document.querySelector('.meta').textContent !== old", arg=entry)
            assert tab.locator("h1").inner_text() != "Something is wrong"
            assert tab.evaluate("window.ran") is None
            stop(address, tmp_path)
            pipeline.tick()
            assert pipeline.errors
            tab.get_by_text("ticks of the sensor tracking failed").first.wait_for(timeout=WITHIN_MS)
            tab.get_by_role("heading", name="Nobody has decided for").wait_for(timeout=WITHIN_MS)
            assert said == []
            assert {url.split("?")[0] for url in asked if not url.startswith("data:")} <= {
                url_of(settings) + path for path in ("", "live", "cell")
            }


def stop(address: str, folder: Path) -> None:
    """Stop the server at the address, as its owner does."""
    import psutil

    (server,) = (
        process
        for process in psutil.Process().children(recursive=True)
        if address.rpartition(":")[2] in " ".join(process.cmdline())
    )
    server.terminate()
    server.wait(10)


def point_at_a_cell(tab: Any) -> None:
    """Move the pointer onto the first cell of the plane."""
    x, y = tab.locator("svg.plane .heat").first.get_attribute("d").removeprefix("M").split("h")[0].split()
    box = tab.locator("svg.plane").bounding_box()
    unit = box["width"] / 620
    tab.mouse.click(box["x"] + (float(x) + 1) * unit, box["y"] + (float(y) + 1) * unit)
