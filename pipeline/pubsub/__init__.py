"""Everything that talks to Pub/Sub: pulling and acknowledging, reading backlogs, provisioning."""
