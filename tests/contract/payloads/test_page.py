"""The examples of docs/how-to/encodings.md are settings, schemas and messages that fit each other."""

import re
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.contract.payloads.schemas import decoded, definition
from tidemark.pipeline.contract.heartbeat import Heartbeat, HeartbeatReader
from tidemark.pipeline.contract.payloads.schemas import Encoding, codec_of
from tidemark.pipeline.settings_message import MessageSettings

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "how-to" / "encodings.md").read_text()
SECTIONS = {section.partition("\n")[0]: section for section in PAGE.split("\n## ")}
FIRST, NOW_US = datetime(2026, 1, 1, tzinfo=UTC), 1_795_238_401_000_000
BEAT_US = 1_795_238_400_000_000


def settings_of(section: str) -> MessageSettings:
    (block,) = re.findall(r"```toml\n(.*?)```", SECTIONS[section], re.DOTALL)
    return MessageSettings(**tomllib.loads(block)["message"])


@pytest.mark.parametrize("section", [name for name, text in SECTIONS.items() if "```toml" in text])
def test_the_settings_of_each_example_are_valid(section: str) -> None:
    settings_of(section).contract_from(FIRST)


@pytest.mark.parametrize("section", [name for name, text in SECTIONS.items() if "--definition=" in text])
def test_the_published_message_of_a_schema_s_example_is_a_heartbeat(section: str) -> None:
    text, settings = SECTIONS[section], settings_of(section)
    (schema,) = re.findall(r"--definition='(.*?)'\n", text, re.DOTALL)
    (message,) = re.findall(r"--message='(.*?)'\n", text, re.DOTALL)
    value = codec_of(definition(schema, settings.payload), Encoding(settings.payload)).text(message.encode())
    assert value["temp"] == 21.5
    assert HeartbeatReader(settings.contract_from(FIRST)).read({}, value, NOW_US) == Heartbeat("d1", BEAT_US)


def test_the_event_and_the_attributes_of_the_examples_are_heartbeats() -> None:
    (event,) = re.findall(r"--message='(.*?)'\n", SECTIONS["CloudEvents"], re.DOTALL)
    reader = HeartbeatReader(settings_of("CloudEvents").contract_from(FIRST))
    attributes, payloads = decoded(
        reader._decoder, [{"content-type": "application/cloudevents+json"}], [event.encode()]
    )
    assert reader.read(attributes.of(0), payloads[0], NOW_US) == Heartbeat("/rack/7", BEAT_US)
    (written,) = re.findall(r"--attribute='(.*?)'\n", SECTIONS["All values in attributes"])
    pairs = dict(pair.split("=") for pair in written.split(","))
    reader = HeartbeatReader(settings_of("All values in attributes").contract_from(FIRST))
    assert reader.read(pairs, None, NOW_US) == Heartbeat("d1", BEAT_US)
