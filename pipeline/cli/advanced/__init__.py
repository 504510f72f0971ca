"""Commands that replace Dagster (`attach`) or Google's Pub/Sub (`pubsub`), and the demonstration (`demo`)."""
