"""The demonstration: the backlog of an outage, live traffic, a silence, and a comparison with what was published."""
