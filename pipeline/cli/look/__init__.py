"""Commands that show the content of a lake. They read only the lake. Only `quarantine --requeue` changes
anything."""
