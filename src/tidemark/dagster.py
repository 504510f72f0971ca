"""tidemark in your Dagster project: the public API.

    import tidemark.dagster as td

    heartbeats = td.pipeline("heartbeats.toml")
    orders = td.pipeline("orders.toml", name="orders")
    defs = dg.Definitions.merge(dg.Definitions(assets=[...]), heartbeats.definitions(), orders.definitions())

Importing this module reads no settings. Its names are stable across releases; the packages below `tidemark` may change.
"""

from tidemark.assets.embedded import Pipeline, pipeline

__all__ = ["Pipeline", "pipeline"]
