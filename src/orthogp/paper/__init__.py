"""The experiments of "Variational Orthogonal Features", run from the command line."""

#: The experiments by name: a module of the package, and a class in it.
EXPERIMENTS = {
    "figure1": "band.Figure1",
    "figure2": "band.Figure2",
    "figure3": "figure3.Figure3",
    "complexity": "costs.Complexity",
    "noise": "costs.Noise",
}
