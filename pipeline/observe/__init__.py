"""What a monitoring system is told: the instruments, what is recorded on them, whether the pipeline is healthy, and the
ways out. With the settings' defaults nothing here imports a library, starts a thread or opens a port."""
