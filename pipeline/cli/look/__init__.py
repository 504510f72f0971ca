"""Commands that show what a lake holds. They read the lake alone and change nothing, except `quarantine --requeue`."""
