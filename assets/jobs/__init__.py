"""Jobs that compute assets, jobs that users or a schedule start, and the code that all jobs share."""
