"""The Pub/Sub client code: pulling and acknowledging, reading backlogs, provisioning."""
