"""The processes that tidemark starts for itself, on loopback: the emulator, Spark Connect, Dagster's own."""
