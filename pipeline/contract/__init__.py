"""The message contract: where a message carries its values, how it is encoded, and whether it is a valid heartbeat.
The code is pure, except that it reads schemas."""
