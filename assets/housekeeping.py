"""The job `housekeeping`, which keeps the lake and Dagster's own storage small, and its schedule."""

from collections import Counter
from collections.abc import Iterator

import dagster as dg

from assets.dagster_events import prune_events, prune_runs
from pipeline.clock import SystemClock
from pipeline.settings import Settings
from pipeline.upkeep.housekeeping import Chore, Housekeeper

HOUSEKEEPING = "housekeeping"

KEEPS_SMALL = "Keeps the lake and Dagster's own storage from growing without end."


class HousekeepingConfig(dg.Config):
    """With `dry_run` the job says what it would do, and changes nothing."""

    dry_run: bool = False


def housekeeping_job(settings: Settings) -> dg.JobDefinition:
    @dg.op(out=dg.Out(dg.Nothing))
    def keep_house(context: dg.OpExecutionContext, config: HousekeepingConfig) -> Iterator[dg.Output[None]]:
        """Removes what is no longer kept, archives old entries of the tracking log, rewrites small files as sorted
        larger ones, deletes earlier versions and orphans, and prunes Dagster's own events. It can be killed at any
        point, and runs beside everything else."""
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

    @dg.job(name=HOUSEKEEPING, description=KEEPS_SMALL)
    def housekeeping() -> None:
        keep_house()

    return housekeeping


def housekeeping_schedule(job: dg.JobDefinition) -> dg.ScheduleDefinition:
    """Every hour, from the start."""
    return dg.ScheduleDefinition(
        name="hourly_housekeeping",
        job=job,
        cron_schedule="7 * * * *",
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=KEEPS_SMALL,
    )


def _chores(settings: Settings, context: dg.OpExecutionContext, *, dry_run: bool) -> Iterator[Chore]:
    clock, keep = SystemClock(), settings.housekeeping
    yield from Housekeeper(settings, clock, dry_run=dry_run).chores()
    if keep.dagster_events is not None and not dry_run:
        figures = prune_events(context.instance, clock.now() - keep.dagster_events)
        says = "this event log storage is of a kind that is not pruned"
        if figures:
            says = f"deleted {figures['events']} events of ticks and {figures['evaluations']} evaluations of checks"
        yield Chore("Dagster", "events", says, figures, is_idle=not any(figures.values()))
    if keep.dagster_runs is not None and not dry_run:
        runs = prune_runs(context.instance, clock.now() - keep.dagster_runs, but=context.run_id)
        yield Chore("Dagster", "runs", f"deleted {runs} runs", {"runs": runs}, is_idle=not runs)
