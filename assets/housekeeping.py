"""The job that brings lake and Dagster down to what somebody may still ask for, and its schedule."""

from collections import Counter
from collections.abc import Iterator

import dagster as dg

from assets.dagster_events import prune_events, prune_runs
from pipeline.clock import SystemClock
from pipeline.settings import Settings
from pipeline.upkeep.housekeeping import Chore, Housekeeper

HOUSEKEEPING = "housekeeping"

EVERY_HOUR = "7 * * * *"


class HousekeepingConfig(dg.Config):
    """Whether it is only to be said what would be done."""

    dry_run: bool = False


def housekeeping_job(settings: Settings) -> dg.JobDefinition:
    """The job for these settings."""

    @dg.op(
        name="keep_house",
        out=dg.Out(dg.Nothing),
        description=(
            "Removes what is no longer kept, moves old entries of the tracking log to archives, writes small files as "
            "sorted larger ones, deletes earlier versions and orphans, and prunes Dagster's own events. Each can be "
            "killed anywhere, and runs beside everything else."
        ),
    )
    def keep_house(context: dg.OpExecutionContext, config: HousekeepingConfig) -> Iterator[dg.Output[None]]:
        figures, failed = Counter[str](), []
        for chore in _chores(settings, context, dry_run=config.dry_run):
            if chore.failed is not None:
                context.log.error(chore.sentence)
                failed.append(chore.sentence)
            elif chore.is_idle:
                context.log.debug(chore.sentence)
            else:
                context.log.info(f"would have: {chore.sentence}" if config.dry_run else chore.sentence)
            figures.update({f"{chore.name}/{chore.about}/{name}": count for name, count in chore.figures.items()})
        if failed:
            raise dg.Failure(description="; ".join(failed), metadata=dict(figures), allow_retries=False)
        yield dg.Output(None, metadata=dict(figures))

    @dg.job(name=HOUSEKEEPING, description="Keeps the lake and Dagster's own storage from growing without end.")
    def housekeeping() -> None:
        keep_house()

    return housekeeping


def housekeeping_schedule(job: dg.JobDefinition) -> dg.ScheduleDefinition:
    """Every hour, from the start."""
    return dg.ScheduleDefinition(
        name="hourly_housekeeping",
        job=job,
        cron_schedule=EVERY_HOUR,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Keeps the lake and Dagster's own storage from growing without end.",
    )


def _chores(settings: Settings, context: dg.OpExecutionContext, *, dry_run: bool) -> Iterator[Chore]:
    yield from Housekeeper(settings, SystemClock(), dry_run=dry_run).chores()
    if dry_run:
        return
    now, keep = SystemClock().now(), settings.housekeeping
    if keep.dagster_events is not None:
        pruned = prune_events(context.instance, now - keep.dagster_events)
        if pruned.events is None:
            yield Chore("Dagster", "events", "this event log storage is of a kind that is not pruned", is_idle=True)
        else:
            yield Chore(
                "Dagster",
                "events",
                f"deleted {pruned.events} events of ticks and {pruned.evaluations} evaluations of checks",
                {"events": pruned.events, "evaluations": pruned.evaluations},
                is_idle=not pruned.events and not pruned.evaluations,
            )
    if keep.dagster_runs is not None:
        runs = prune_runs(context.instance, now - keep.dagster_runs, but=context.run_id)
        yield Chore("Dagster", "runs", f"deleted {runs} runs", {"runs": runs}, is_idle=not runs)
