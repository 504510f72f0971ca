"""The contract that makes a message a heartbeat: where it carries its values, how it is written, and its verdict.
Pure."""
