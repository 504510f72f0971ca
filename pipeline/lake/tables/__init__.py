"""The lake's Delta tables. In some of them, a run replaces whole windows."""
