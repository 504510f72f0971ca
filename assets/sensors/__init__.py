"""The sensors, and what surrounds each of their ticks."""
