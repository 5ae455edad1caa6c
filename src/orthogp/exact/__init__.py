"""Exact Gaussian process regression for small data."""
