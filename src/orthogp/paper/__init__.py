"""The experiments of "Variational Orthogonal Features", run from the command line."""

#: The names of the experiments, each a module of this package.
EXPERIMENTS = ("figure1", "figure2", "figure3", "complexity", "noise")
