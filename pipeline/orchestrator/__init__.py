"""The part of Dagster that commands need: names that its definitions share with them, and a client of its GraphQL API.

Nothing here imports Dagster.
"""
