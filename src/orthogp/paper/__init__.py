"""The experiments of "Variational Orthogonal Features", run from the command line."""
