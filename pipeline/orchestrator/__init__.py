"""Names shared by tidemark's commands and its Dagster definitions, and a client of Dagster's GraphQL API.

Nothing here imports Dagster.
"""
