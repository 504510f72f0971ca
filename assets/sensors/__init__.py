"""The sensors, and the wrapper of their ticks."""
