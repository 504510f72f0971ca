"""Commands that an operator runs when something is wrong, or instead of the hourly job."""
