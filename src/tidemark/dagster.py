"""tidemark in a Dagster project of one's own: the public API.

    import tidemark.dagster as td

    heartbeats = td.pipeline("heartbeats.toml")
    orders = td.pipeline("orders.toml", name="orders")
    defs = dg.Definitions.merge(dg.Definitions(assets=[...]), heartbeats.definitions(), orders.definitions())

Importing this reads nothing. It keeps its names from release to release; the packages below `tidemark` may change.
"""

from tidemark.assets.embedded import Pipeline, pipeline

__all__ = ["Pipeline", "pipeline"]
