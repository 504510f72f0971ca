"""The demonstration: the backlog of an outage, live traffic, a silence, and at the end a comparison with the truth."""
