"""Custom roles for each part and each kind of resource, as files for `gcloud iam roles create`. `tools/write_roles.py`
writes them to `deploy/roles/`, where `grant.sh` creates and grants them."""

from tidemark.pipeline.identity.components import IS, NEEDS, Component
from tidemark.pipeline.identity.methods import On


def role_id(component: Component, on: On) -> str:
    """The role's name in the project: `tidemark.tracker.bucket`."""
    return f"tidemark.{component}.{on}"


def role_files() -> dict[str, str]:
    """The role files, by name: `tracker.bucket.yaml`."""
    return {
        f"{component}.{on}.yaml": role_file(component, on)
        for component in Component
        for on in On
        if any(need.permission.on is on for need in NEEDS[component])
    }


def role_file(component: Component, on: On) -> str:
    """A role as `gcloud iam roles create --file` reads it."""
    lines = [
        f"# {IS[component]}",
        f'title: "tidemark {component}, {on}"',
        f'description: "What the part {component} of tidemark needs on a {on}"',
        "stage: GA",
        "includedPermissions:",
        *(f"  - {need.permission.name} # {need.why}" for need in NEEDS[component] if need.permission.on is on),
    ]
    return "\n".join(lines) + "\n"
