"""Commands that show the content of a lake. They read only the lake, and change nothing, except `quarantine
--requeue`."""
