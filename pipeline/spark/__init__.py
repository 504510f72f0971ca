"""Spark sessions, and what they need: Java, the Cloud Storage connector, and executors that can run tidemark."""
