"""Parallel layouts: what fits, what is possible, what is expected, and the fewest devices that meet the targets."""
