"""The processes that tidemark starts and supervises, on loopback: an emulator, Spark Connect, Dagster's own."""
