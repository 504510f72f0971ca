"""What the commands need of Dagster: the names that its definitions share with them, and a client of its GraphQL API.

Nothing here imports Dagster.
"""
