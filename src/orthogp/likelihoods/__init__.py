"""Counts, classes and positive amounts from Fourier sums: no row is needed to learn from them."""
