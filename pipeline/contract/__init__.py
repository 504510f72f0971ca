"""The message contract: where a message carries its values, how it is encoded, and whether it is a valid heartbeat.
Pure, except for reading schemas."""
