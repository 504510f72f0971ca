"""`tidemark repair` as a person and a script use it, on a lake without a Dagster."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_cli import Place, Said
from tests.lake.builders import append_rejected
from tests.official_emulator import free_port
from tests.quality.staleness_history import WINDOWS
from tests.upkeep.test_integrity import House, cut, noted
from tests.watermark.builders import START
from tidemark.pipeline.watermark.state import Lost

CONFIG = """\
[windows]
length = "1m"
lookback = "90s"

[lake]
uri = "file:{folder}/lake"

[dagster]
web_port = {port}
"""


class Repairing(House):
    """The lake, and the command run with its settings."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "tidemark.toml").write_text(CONFIG.format(folder=folder, port=free_port()))
        self.place = Place(folder)

    def repair(self, *arguments: str) -> Said:
        return self.place.tidemark("repair", "--from", WINDOWS[0].key, "--to", WINDOWS[4].key, *arguments)

    def facts(self, *arguments: str) -> dict[str, Any]:
        return json.loads(self.repair("--json", *arguments).out)


@pytest.fixture
def house(tmp_path: Path) -> Repairing:
    return Repairing(tmp_path)


def test_a_dry_run_names_each_harm_says_what_it_would_do_and_does_nothing(house: Repairing) -> None:
    (gone,), (cut_short,) = house.files(0), house.files(2)
    gone.unlink()
    cut_short.write_bytes(cut_short.read_bytes()[:-1])
    orphan = house.folder / "heartbeat_diffs" / "runs" / "dead" / "part-0.parquet"
    orphan.parent.mkdir()
    orphan.write_bytes(b"PAR1")
    append_rejected(house.lake.quarantine(), {"landed_at": START - timedelta(days=9)})
    (rejected,) = house.folder.glob("quarantine/*/*.parquet")
    rejected.write_bytes(b"PAR1")
    before = house.everything()
    assert f"damaged   {rejected}: it has 4 bytes, but" in house.place.tidemark("repair", "--dry-run").out
    said = house.repair("--dry-run", "--remove-orphans", "--grace", "0")
    assert said.code == 1
    lines = said.out.splitlines()
    assert lines[0] == f"damaged   {WINDOWS[0].key}: {gone}: it is gone"
    assert lines[1].startswith(f"damaged   {WINDOWS[2].key}: {cut_short}: it has ")
    assert lines[2].startswith(f"orphaned  {orphan}: left by run dead (4 bytes")
    key = WINDOWS[0].key, WINDOWS[2].key
    assert lines[-1] == f"would recompute: {key[0]}, {key[1]}"
    assert house.everything() == before
    facts = house.facts("--dry-run")
    assert [(one["window"], one["fault"]) for one in facts["broken"]] == [(key[0], "damaged"), (key[1], "damaged")]
    assert facts["orphans"] == []  # it is younger than a day
    facts = house.facts("--dry-run", "--remove-orphans", "--grace", "0")
    assert [(one["file"], one["removed"]) for one in facts["orphans"]] == [(str(orphan), False)]


def test_without_dagster_the_command_says_so_after_naming_and_removing_what_it_can(house: Repairing) -> None:
    house.files(0)[0].unlink()
    for shows in (("diffs", "--window", WINDOWS[0].key), ("streams",)):
        shown = house.place.tidemark(*shows)
        assert (shown.code, "tidemark repair" in shown.err, "Traceback" in shown.err) == (1, True, False)
    orphan = house.folder / "heartbeats" / "stray.parquet"
    orphan.write_bytes(b"PAR1")
    assert "orphan" not in house.repair("--remove-orphans").out
    assert orphan.exists()
    said = house.repair("--remove-orphans", "--grace", "0s")
    assert said.code == 1
    assert f"damaged   {WINDOWS[0].key}: " in said.out
    assert "removed 1 orphaned file, 4 bytes" in said.out
    assert "no Dagster answers at http://127.0.0.1:" in said.err
    assert "Start it with `tidemark up`" in said.err
    assert not orphan.exists()
    for file in (house.folder / "heartbeats").rglob("*.parquet"):
        file.unlink(missing_ok=True)
    assert "`tidemark repair` says what depends on" in house.place.tidemark("tune", "--since", "2026-11-21T05:00Z").err


def test_the_lost_end_of_the_log_is_reported_and_forgetting_accepts_it(house: Repairing) -> None:
    newest = noted(house, 20)
    cut(house, newest.number - 2)
    said = house.repair()
    assert said.code == 1
    assert f"once had entry {newest.number}, when the watermark was at 2026-11-21T05:30:00Z: its end" in said.out
    slip = house.place.tidemark("repair", "--forget", str(newest.number - 2))
    assert (slip.code, f"entry {newest.number - 2} is intact" in slip.err) == (1, True)
    forgotten = house.place.tidemark("repair", "--forget", str(newest.number - 1))
    assert forgotten.code == 0, forgotten.err
    house.lake.tracking_log().append(Lost("judged by another contract", contract="other"))
    last = house.repair()
    assert (last.code, last.out.count(" was lost"), f"entry {newest.number - 1} was lost" in last.out) == (0, 1, True)
    assert house.lake.tracking_log().catch_up().watermark == newest.watermark


def test_the_loss_of_the_whole_log_is_not_taken_for_a_pipeline_that_has_not_begun(house: Repairing) -> None:
    newest = noted(house, 20)
    cut(house, 0)
    for command in ("status", "explain", "repair", "watermark"):
        said = house.place.tidemark(command)
        assert (said.code, f"once had entry {newest.number}" in said.err) == (1, True), (command, said)


def test_a_damaged_newest_entry_is_named_where_it_hides_which_windows_are_closed(house: Repairing) -> None:
    newest = max((house.folder / "tracking" / "log").iterdir())
    newest.write_bytes(newest.read_bytes()[:100])
    said = house.place.tidemark("repair", "--dry-run")
    assert (said.code, f"tracking/log/{newest.name} cannot be read" in said.err) == (1, True), said.err
    assert "To survey earlier windows, name them with --from and --to" in said.err
    ranged = house.repair("--dry-run")
    assert (ranged.code, f"tracking/log/{newest.name} cannot be read" in ranged.out) == (1, True), ranged.out
    assert [lost["entry"] for lost in house.facts("--dry-run")["log"]["damaged"]] == [int(newest.stem)]


def test_a_time_names_the_window_that_it_is_in_and_a_range_that_is_none_is_refused(house: Repairing) -> None:
    house.files(3)[0].unlink()
    moment = "2026-11-21T05:23:10Z"
    facts = json.loads(house.place.tidemark("repair", "--from", moment, "--to", moment, "--dry-run", "--json").out)
    assert (facts["from"], facts["to"]) == ("2026-11-21T05:23:00Z", "2026-11-21T05:24:00Z")
    assert [one["window"] for one in facts["broken"]] == [WINDOWS[3].key]
    for last in ("2026-11-21T05-20Z", "soon"):
        said = house.place.tidemark("repair", "--from", moment, "--to", last)
        assert said.code == 2
        assert "Traceback" not in said.err
