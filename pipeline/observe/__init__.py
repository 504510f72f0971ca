"""Metrics, health and the page: the instruments, the recorder, and the outlets. With the default settings nothing here
imports a library, starts a thread or opens a port."""
