"""The seeded simulation: the real ticks on one thread, over a model of Pub/Sub and a lake in memory that both fail.

One seed is one run: `Simulation(seed).run()` plays it again, to the microsecond.
"""
