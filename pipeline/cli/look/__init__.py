"""Commands that show the content of a lake. `status` and `explain` also read what this machine's processes have
recorded. Only `quarantine --requeue` changes the lake."""
