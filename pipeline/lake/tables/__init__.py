"""The lake's Delta tables, and the fence by which a run replaces whole windows."""
