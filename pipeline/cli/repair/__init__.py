"""Commands that an operator runs when something is wrong, or in place of the hourly job."""
