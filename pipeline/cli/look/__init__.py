"""Commands that show what a lake holds. They read only the lake, and change nothing, except `quarantine --requeue`."""
