"""The assets that runs compute, their jobs, the jobs that people or a schedule start, and the code that all jobs
share."""
