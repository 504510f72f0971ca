"""Everything that talks to Pub/Sub: pulling and acknowledging, reading what is outstanding, provisioning, publishing."""
