"""The assets that runs compute, their jobs, the jobs that users or a schedule start, and the code that all jobs
share."""
