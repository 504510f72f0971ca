"""Spark itself: sessions, and the Java, the connector and the executors that they need."""
