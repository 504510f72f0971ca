"""What runs do: the jobs, and the assets that a run computes."""
