"""Searches for plans by corrected costs, in a process beside training."""
