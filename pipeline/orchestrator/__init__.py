"""Dagster as the commands see it: the names that its definitions share with them, and its GraphQL API.

Nothing here imports Dagster.
"""
