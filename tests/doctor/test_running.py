"""What doctor says of a pipeline that runs already."""

from pathlib import Path

from tests.ingest.fakes import World
from tests.quality.test_gate import live
from tests.quality.test_running import Home, ended
from tidemark.pipeline.doctor.finding import Check, Level, Setup, examine
from tidemark.pipeline.doctor.lake import check_running
from tidemark.pipeline.errors import LakeFull


def test_a_failure_is_broken_while_its_process_lives_and_a_warning_if_it_may_have_stopped(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    home = Home(tmp_path, lake=world.lake_settings.uri, clock=world.clock)

    def found() -> list[tuple[Level, str]]:
        findings = examine(Setup(home.settings, world.clock), [Check("lake", check_running)])
        return [(finding.level, finding.said[:40]) for finding in findings]

    assert found() == []
    live(world)
    assert found() == [(Level.OK, "the newest decision is 0s old")]
    notes = home.notes()
    notes.failed("landing", LakeFull("no space"), None)
    assert found() == [(Level.BROKEN, "ticks of the sensor landing failed once,")]
    world.wait(31)
    nobody, landing = found()
    assert nobody == (Level.BROKEN, "no decision for 31s, since 2026-11-21T05")
    assert landing[0] is Level.BROKEN
    said = home.said()
    home.file.write(ended(said))
    assert {level for level, _ in found()} == {Level.WARNING}
    notes.good("landing", home.in_lake)
    world.track()
    home.toml.write_text(home.toml.read_text() + "# more\n")
    assert [level for level, _ in found()] == [Level.WARNING, Level.OK]
