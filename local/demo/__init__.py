"""The demonstration: an outage's backlog, live traffic, silence, and a comparison with the truth at the end."""
