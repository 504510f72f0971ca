"""Spark: sessions, and the Java, connector and executors that they need."""
