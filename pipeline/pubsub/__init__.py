"""tidemark's use of Pub/Sub: pulls and acknowledges messages, reads backlogs, and provisions subscriptions."""
