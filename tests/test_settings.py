"""The settings: what is shipped is what is built in, and an error says which, what, where and why."""

import os
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tidemark.pipeline import settings
from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.settings import Settings, load_settings
from tidemark.pipeline.settings_sections import WindowSettings

SHIPPED = Path(__file__).parents[1] / "tidemark.toml"
SET_ON_PURPOSE = {("pubsub", "emulator_host"), ("message", "fields")}
"""What the shipped file sets to something else than the default, so that a first run needs no edit."""

Written = Callable[[str], Path]


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("TIDEMARK_") or name == "PUBSUB_EMULATOR_HOST":
            monkeypatch.delenv(name)


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """A settings file with this text."""

    def write(text: str) -> Path:
        file = tmp_path / "tidemark.toml"
        file.write_text(text, encoding="utf-8")
        return file

    return write


def keys_of(section: type[BaseModel]) -> set[str]:
    return {field.alias or name for name, field in section.model_fields.items()}


def sections() -> dict[str, type[BaseModel]]:
    found = {name: field.annotation for name, field in Settings.model_fields.items()}
    return {name: kind for name, kind in found.items() if isinstance(kind, type) and issubclass(kind, BaseModel)}


def shipped() -> dict[str, dict[str, Any]]:
    return tomllib.loads(SHIPPED.read_text(encoding="utf-8"))


def refusal(file: Path) -> str:
    with pytest.raises(InvalidSettings) as refused:
        load_settings(file)
    return str(refused.value)


# ------------------------------------------------------------------------------------------- the shipped file


def test_every_setting_of_the_tree_is_in_the_shipped_file_and_nothing_else_is() -> None:
    assert set(sections()) == set(Settings.model_fields) - {"tables"}, "tables of one's own have names of one's own"
    assert {name: set(keys) for name, keys in shipped().items()} == {
        name: keys_of(section) for name, section in sections().items()
    }


def test_every_setting_of_the_shipped_file_is_its_default() -> None:
    from_file, built_in = Settings(**shipped()), Settings()
    different = {
        (section, key)
        for section, kind in sections().items()
        for key in keys_of(kind)
        if getattr(getattr(from_file, section), key) != getattr(getattr(built_in, section), key)
    }
    assert different == SET_ON_PURPOSE


@pytest.mark.parametrize(
    ("written_as", "within"),
    [("never", timedelta(0)), ("automatic", timedelta.max), ("within 90m", timedelta(minutes=90))],
)
def test_which_stale_windows_are_computed_again_is_a_word_or_a_duration(written_as: str, within: timedelta) -> None:
    assert WindowSettings(recompute_missed=written_as).recompute_within == within


# ------------------------------------------------------------------------------------------------- unknown keys


def test_an_unknown_key_or_section_is_refused_with_a_suggestion_or_with_those_that_there_are(written: Written) -> None:
    file = written('[watermark]\nbandd = "10s"\n')
    assert refusal(file) == f"watermark.bandd = '10s' (from {file}): there is no such setting; did you mean band?"
    message = refusal(written('[watermrk]\nband = "10s"\n'))
    assert message.startswith("watermrk (from ")
    assert message.endswith("there is no such setting; did you mean watermark?")
    known = "name, url, location, web_port, allowed_hosts, code_port, storage, owners"
    assert refusal(written("[dagster]\nxyz = 1\n")).endswith(f"there is no such setting; the known names are {known}")


@pytest.mark.parametrize(
    "name",
    [
        "TIDEMARK_BAND",
        "TIDEMARK_WATERMARK",
        "TIDEMARK_WATERMARK_BAND",
        "TIDEMARK_WATERMRK__BAND",
        "tidemark_watermrk__band",
        "TIDEMARK_DAGSTER_WEB_PORT",
    ],
)
def test_a_variable_without_a_setting_is_refused(name: str, written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "10s")
    message = refusal(written(""))
    assert message.startswith(f"the variable {name} is not a setting; ")
    assert "TIDEMARK_WATERMARK__<KEY>" in message


def test_variables_that_name_folders_are_no_settings(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_CONFIG", str(written("\ufeff" + '[watermark]\nband = "7s"\n')))
    monkeypatch.setenv("TIDEMARK_DAGSTER_STORAGE", "/somewhere")
    assert load_settings().watermark.band == timedelta(seconds=7)


# ------------------------------------------------------------------------------------------------- who wins


def test_a_variable_wins_over_the_file_but_not_the_section(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written('[watermark]\nband = "7s"\ntick = "20s"\n')
    monkeypatch.setenv("TIDEMARK_WATERMARK__BAND", "1m30s")
    watermark = load_settings(file).watermark
    assert (watermark.band, watermark.tick) == (timedelta(seconds=90), timedelta(seconds=20))
    monkeypatch.setenv("ORDERS_TIDEMARK_DAGSTER__NAME", "others")
    with pytest.raises(InvalidSettings, match="ORDERS_TIDEMARK_DAGSTER__NAME differs from the name orders; unset it"):
        load_settings(file, name="orders")


def test_an_unreadable_table_in_a_variable_is_refused(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_DAGSTER__OWNERS", "team:x")
    assert refusal(written("")).startswith("the variable TIDEMARK_DAGSTER__OWNERS cannot be read: ")
    assert "write a list or a table as JSON" in refusal(written(""))


def test_the_emulator_s_own_variable_wins_over_the_file(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written('[pubsub]\nemulator_host = "127.0.0.1:1"\n')
    assert load_settings(file).emulated
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "localhost:8432")
    assert load_settings(file).pubsub.emulator_host == "localhost:8432"
    assert load_settings(written("")).pubsub.emulator_host == "localhost:8432"


# ----------------------------------------------------------------------------------------------------- errors


def test_an_error_names_setting_value_source_and_rule(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written('[watermark]\nband = "10"\n')
    rule = "write a duration with its unit, such as 500ms, 10s, 5m, 1h30m or 7d"
    assert refusal(file) == f"watermark.band = '10' (from {file}): {rule}"
    monkeypatch.setenv("TIDEMARK_WATERMARK__BAND", "30")
    assert refusal(file) == f"watermark.band = '30' (from $TIDEMARK_WATERMARK__BAND): {rule}"


def test_an_error_shows_no_login_and_no_token(written: Written) -> None:
    said = refusal(written('[dagster]\nurl = "http://me:secret@a"\n[spark]\nremote = "sc://a:99999/;token=secret"\n'))
    assert "url = 'http://***@a'" in said
    assert "secret" not in said


def test_every_wrong_setting_is_named_at_once(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_DAGSTER__WEB_PORT", "70000")
    message = refusal(written('[watermark]\nquantile = 1.0\nidle = "stop"\n[ingest]\nreaders = 0\n'))
    for part in (
        "watermark.quantile = 1.0 ",
        "watermark.idle = 'stop' ",
        "ingest.readers = 0 ",
        "dagster.web_port = '70000' (from $TIDEMARK_DAGSTER__WEB_PORT): ",
    ):
        assert part in message


def test_a_wrong_emulator_host_is_blamed_on_its_variable(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "nowhere")
    assert refusal(written('[pubsub]\nemulator_host = "127.0.0.1:1"\n')).startswith(
        "pubsub.emulator_host = 'nowhere' (from $PUBSUB_EMULATOR_HOST): write the address as host:port"
    )


def test_a_rule_over_several_settings_names_each_source(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written("[windows]\nfirst = 2026-01-01T00:05:00Z\n")
    assert load_settings(file).windows.first == datetime(2026, 1, 1, 0, 5, tzinfo=UTC)
    monkeypatch.setenv("TIDEMARK_WINDOWS__LENGTH", "1h")
    message = refusal(file)
    assert f"(from {file} and $TIDEMARK_WINDOWS__LENGTH): windows.first must be in 1970 or later" in message


def test_an_error_about_several_sections_shows_no_value_of_them(written: Written) -> None:
    message = refusal(file := written("[signal]\npublish_to='heartbeats'\n[spark.config]\n'fs.s3a.key'='hush'\n"))
    assert "hush" not in message
    assert message.startswith(f"{file}: signal.publish_to is heartbeats")


RECOMPUTES = 'write "never", "automatic", or "within" and a duration, such as "within 1h"'
TWICE = "give one of the fields another name"
WRONG = [
    ("[windows]\nrecompute_missed = 'always'", RECOMPUTES),
    ("[windows]\nrecompute_missed = 'within 1'", RECOMPUTES),
    ("[windows]\nrecompute_missed = 'within 0s'", RECOMPUTES),
    ('[lake]\nuri = "file:///\\u0000"', "the value has a control character"),
    ('[spark.config]\n"a\\u001bb" = "c"', "the value has a control character"),
    ("[dagster]\nallowed_hosts = ['http://ui.lan']", "is not a host name"),
    ("[dagster]\nallowed_hosts = ['']", "is not a host name"),
    ("[dagster]\nowners = ['data']", 'write "team:" and a name'),
    ("[pubsub]\nretention = '5m'", "greater than or equal to 10m"),
    ("[watermark]\ntick = '20m'", "less than or equal to 10m"),
    ("[watermark]\nidle_timeout = '0s'", "greater than 0s"),
    ("[message.fields]\nt = 'number'\nt_delta = 'text'", TWICE),
    ("[windows]\nlength = '7m'", "the window length must be one of 1m, 2m, 3m"),
    ("[windows]\nfirst = 2026-01-01T00:00:00", "first must be a time in UTC"),
    ("[windows]\nfirst = 2026-01-01T00:01:00Z", "at midnight UTC plus a multiple of windows.length"),
    ("[dagster]\nweb_port = 4266", "web_port and code_port must be two different ports"),
    ("[windows]\nfirst = 1969-12-31T00:00:00Z", "in 1970 or later, at midnight"),
    ("[pubsub]\nbase_subscription = 'same'\ntracking_subscription = 'same'", "two different subscriptions"),
    ("[pubsub]\nemulator_host = '8085'", "host:port"),
    (f"[pubsub]\nfilter = '{'é' * 129}'", "the filter is 258 bytes long; Pub/Sub allows at most 256 bytes"),
    ("[pubsub]\nemulator_host = 'localhost:80850'", "host:port"),
    ("[pubsub]\nreading = 'metrics'", "'auto', 'snapshot' or 'monitoring'"),
    ("[pubsub]\nsnapshot_budget = -1", "greater than or equal to 0"),
    ("[pubsub]\nreading = 'monitoring'\nemulator_host = '127.0.0.1:8085'", "the emulator has no metrics"),
    ("[pubsub]\ntopic = '1st'", "write 3 to 255 letters"),
    ("[message.fields]\nWindow = 'text'", "'Window' cannot be a field's name: the tables already have a column"),
    ("[message.fields]\ntemp = 'text'\nTemp = 'text'", "two columns would be named 'previous_temp'"),
    ("[message.fields]\n'a b' = 'text'", "'a b' cannot be a column"),
    ("[message.fields]\ntemperature = 'float'", "'number', 'text', 'boolean' or 'json'"),
    ("[message]\nevent_time = ''", "write attribute:NAME, payload:PATH, each:PATH or publish_time, such as attribute"),
    ("[message]\nevent_time = 'ts'", "publish_time, such as attribute:ts or payload:ts"),
    ("[message]\nstream_id = 'id'", "write attribute:NAME, payload:PATH or each:PATH, such as attribute:id"),
    ("[message]\nfields = {a = {path = 'each:', kind = 'text'}}", "write PATH, attribute:NAME, payload:PATH or each:"),
    ("[message]\neach = 'readings[]'", "write payload:PATH, such as payload:readings[]; PATH is the path of the array"),
    ("[message]\nevent_time = 'payload:a.'", "a. is not a valid JMESPath expression: Expecting: "),
    ("[message]\nevent_time = 'payload:device-id'", "Unknown token '-' (put names with characters"),
    ("[message]\nevent_time = 'payload:size(@)'", "there is no function size"),
    (f"[message]\nevent_time = 'payload:{'(' * 201}'", "at most 200 characters"),
    ("[message]\nevent_time_unit = 'h'", "'auto', 's', 'ms', 'us', 'ns' or 'rfc3339'"),
    ("[message]\ntimezone = 'Berlin'", "IANA name"),
    ("[message]\nstream_id = []", "write one path, or a list of at most 10 paths"),
    ("[message]\nstream_id = ['publish_time']", "the publish time cannot be an id"),
    ("[message]\npayload = 'none'\nevent_time = 'payload:at'", "event_time takes values from the payload"),
    ("[message]\npayload = 'bytes'\nstream_id = ['payload:at']", "stream_id takes values from the payload"),
    ("[message]\npayload = 'bytes'\nfields = { t = 'text' }", "fields.t takes values from the payload"),
    ("[message]\nevent_time = 'each:ts'", "event_time is in the elements of an array; set message.each to the array's"),
    ("[message]\nstream_id = 'each:id'\neach = ''", "message.each = '' (from "),
    ("[message]\nfields = { t = { path = 'each:t', kind = 'text' } }", "fields.t is in the elements of an array"),
    ("[message]\neach = 'payload:readings[]'\npayload = 'bytes'", "so `payload` must be json"),
    ("[message.fields]\nt = { path = 'payload:a.', kind = 'text' }", "is not a valid JMESPath expression"),
    ("[message.fields]\nt = { path = 'a' }", "write a kind"),
    ("[watermark]\nquantile = nan", "less than 1"),
    ("[watermark]\nband = '-1s'", "a duration must not be negative; write a duration with its unit"),
    ("[watermark]\ntick = '1500ms'", "in whole seconds"),
    ("[lake]\nuri = '.tidemark/lake'", "write a folder as file:path"),
    ("[lake]\nuri = 'file://host/path'", "write a folder as file:path"),
    ("[lake]\nuri = 'file:~/lake'", "without ~"),
    ("[metrics]\nlisten = '9464'", "host:port"),
    ("[spark]\nremote = 'localhost:15002'", "sc://host:port"),
    ("[spark]\nremote = 'sc://localhost:99999'", "sc://host:port"),
    ("[tables.t]\nfile = 't.txt'", "name the file, such as file ="),
    ("[tables.t]\nfile = 't.py'\nkey = ['a']", "pass them to the function's decorator"),
    ("watermark = 5", "write a table, such as [watermark]"),
]
"""Settings files, and what is said of a value in them."""


def test_a_value_that_breaks_its_rule_is_refused(written: Written) -> None:
    for text, rule in WRONG:
        assert rule in refusal(written(text)), text


def test_a_missing_settings_file_is_reported_as_it_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = refusal(tmp_path / "absent.toml")
    assert message == f"there is no settings file {tmp_path / 'absent.toml'}; name an existing one"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIDEMARK_CONFIG", "")
    with pytest.raises(InvalidSettings, match=r"tidemark\.toml; name one with --config or \$TIDEMARK_CONFIG, or have"):
        load_settings()
    monkeypatch.setenv("TIDEMARK_CONFIG", "gone.toml")
    with pytest.raises(InvalidSettings, match=r"gone\.toml; fix --config or \$TIDEMARK_CONFIG"):
        load_settings()


def test_a_file_that_is_no_toml_is_reported_as_unreadable(written: Written, tmp_path: Path) -> None:
    file = written("[watermark\n")
    assert refusal(file).startswith(f"the settings file {file} cannot be read: ")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    assert "cannot be read" in refusal(tmp_path / "bytes.toml")
    assert "cannot be read" in refusal(tmp_path)


# ------------------------------------------------------------------------------------------------------ paths


def test_relative_paths_start_at_the_file(tmp_path: Path, written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written('[lake]\nuri = "file:data/../lake"\n[dagster]\nstorage = "dag"\n')
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    settings = load_settings(file)
    assert settings.lake.folder == tmp_path / "lake"
    assert settings.lake.uri == f"file:{tmp_path}/lake"
    assert settings.dagster.storage == str(tmp_path / "dag")


def test_an_absolute_folder_stays_where_it_is_and_is_taken_to_the_letter(tmp_path: Path, written: Written) -> None:
    for form in ("file:{}", "file://{}"):
        for name in ("far", "c# project", "really?", "50%20", "ö"):
            settings = load_settings(written(f"[lake]\nuri = '{form.format(tmp_path / name)}'\n"))
            assert settings.lake.folder == tmp_path / name


# ----------------------------------------------------------------------------------------- what is made of them


def test_an_empty_slack_is_zero_on_the_emulator_and_a_second_and_the_band_on_the_service(written: Written) -> None:
    def slacks(text: str) -> tuple[float, float]:
        policy = load_settings(written(text)).policy
        return policy.reading_slack.total_seconds(), policy.base_slack.total_seconds()

    assert slacks('[watermark]\nband = "20s"\n') == (1.0, 20.0)
    assert slacks('[pubsub]\nemulator_host = "127.0.0.1:1"\n') == (0.0, 0.0)
    assert slacks('[watermark]\nslack = "3s"\n') == (3.0, 3.0)


def test_the_digest_changes_with_what_decides_a_verdict_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = tmp_path / "beat.avsc"
    schema.write_text("{}")

    def digest(**sections: Any) -> str:
        return Settings.model_validate(sections).judged_by

    same = [{}, {"ingest": {"readers": 7}}, {"message": {"fields": {"load": "number"}}}, {"windows": {"length": "1h"}}]
    assert {digest(**each) for each in same} == {digest()}
    by_file = {"message": {"payload": "avro", "schema": str(schema)}}
    others: list[dict[str, Any]] = [
        {"message": {"max_age": "1d"}},
        {"message": {"stream_id": "payload:id"}},
        {"message": {"publisher_id": "attribute:id"}},
        {"message": {"payload": "avro"}},
        {"message": {"payload": "avro", "schema": "projects/p/schemas/one"}},
        {"message": {"payload": "avro", "schema": ["projects/p/schemas/one", "projects/p/schemas/two"]}},
        {"message": {"payload": "avro", "schema": str(tmp_path)}},
        {"windows": {"first": "2026-02-01T00:00:00Z"}},
        by_file,
    ]
    found = [digest(), *(digest(**each) for each in others)]
    schema.write_text('{"type": "long"}')
    found.append(digest(**by_file))
    assert digest(**by_file) == found[-1]
    monkeypatch.setattr(settings, "RULES", settings.RULES + 1)
    found.append(digest())
    assert len(set(found)) == len(found)
