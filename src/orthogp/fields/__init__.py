"""Lattices of thousands to millions of modes, by an iterative solver."""
