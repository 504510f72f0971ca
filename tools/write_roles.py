"""Write deploy/roles/*.yaml from the table of permissions: `python -m tools.write_roles`. A test compares the two.

Each file is a custom role for one part and one kind of resource, for `gcloud iam roles create`. `grant.sh` beside the
files creates and grants the roles.
"""

from pathlib import Path

from tidemark.pipeline.doctor.identity import NEEDS, Component, On

FOLDER = Path(__file__).resolve().parent.parent / "deploy" / "roles"

IS = {
    Component.TRACKER: "the sensors `tracking`, `ingest` and `tables`: the watermark, and what follows it",
    Component.LANDER: "the sensor `landing`",
    Component.CHECKS: "the sensors `staleness` and `requeue`: what is late, missed or lost, and changes",
    Component.RUNS: "runs, on Spark and beside it: windows, rounds of readers, housekeeping, repair, the tuning report",
    Component.WEB: "Dagster's daemon and web server, which ask nothing of Google",
    Component.PROVISION: "`tidemark provision`, once, under an account of its own",
    Component.ATTACH: "`tidemark attach`, or a code server with pubsub.attach: somebody else reads base",
    Component.MEASURE: "`tidemark doctor --measure`, now and then, which makes and removes a topic of its own",
}
"""A description of each part, for the comment at the top of its roles."""


def role_files() -> dict[str, str]:
    """Return the role files by name, such as `tracker.bucket.yaml`."""
    return {
        f"{component}.{on}.yaml": role_file(component, on)
        for component in Component
        for on in On
        if any(need.permission.on is on for need in NEEDS[component])
    }


def role_file(component: Component, on: On) -> str:
    """Return a role in the form that `gcloud iam roles create --file` reads."""
    a = "" if on in (On.TRACKING, On.BASE) else "a "
    lines = [
        f"# {IS[component]}",
        f'title: "tidemark {component}, {on}"',
        f'description: "What the part {component} of tidemark needs on {a}{on}"',
        "stage: GA",
        "includedPermissions:",
        *(f"  - {need.permission.name} # {need.why}" for need in NEEDS[component] if need.permission.on is on),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for old in FOLDER.glob("*.yaml"):
        old.unlink()
    for name, content in role_files().items():
        (FOLDER / name).write_text(content)
