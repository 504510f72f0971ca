"""Metrics, health and the page: the instruments, the recorder, and the outlets. With the default settings, this package
imports no extra library, starts no thread and opens no port."""
