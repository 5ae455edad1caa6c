"""From sums or rows to a fitted model: stages, limits, starting values, status."""
