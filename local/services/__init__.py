"""The processes that tidemark starts and supervises on loopback: an emulator, Spark Connect, and Dagster's services."""
