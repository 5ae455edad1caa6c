"""The figure of docs/hyperparameters.md, from docs/tutorials/co2.csv.

python docs/plot_hyperparameters.py
"""

from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from orthogp import GPRegressor
from orthogp.kernels import LogNormal, Matern32, Noise

HERE = Path(__file__).parent


def growth() -> tuple[np.ndarray, np.ndarray]:
    """Return years (n, 1), and the growth of the yearly mean of CO2 in ppm (n,)."""
    year, co2 = np.loadtxt(HERE / "tutorials" / "co2.csv", delimiter=",", skiprows=1).T
    years = np.unique(year.astype(int))
    # Years of which a month or more is missing would mix the season into their mean.
    whole = [own for own in years if np.sum(year.astype(int) == own) >= 48]
    means = {own: co2[year.astype(int) == own].mean() for own in whole}
    pairs = [(own, means[own] - means[own - 1]) for own in whole if own - 1 in means]
    return np.array(pairs)[:, :1], np.array(pairs)[:, 1]


def main() -> None:
    """Fit, print what the pages show, and draw."""
    X, y = growth()
    kernel = Matern32(0.25, 5.0).prior("lengthscale", LogNormal(5.0, 1.0))
    kernel = kernel.prior("variance", LogNormal(0.25, 1.0))
    noise = Noise(0.1).prior(LogNormal(0.1, 1.0))
    settings = {"noise_variance": noise, "domain": (1959, 2012)}
    best = GPRegressor(kernel, **settings).fit(X, y)
    mixed = GPRegressor(kernel, hyperparameters="integrate", **settings).fit(X, y)
    found = best.hyperparameter_posterior(draws=512)
    print(found)
    print(found.correlations.round(2))
    at = np.linspace(1959, 2012, 300)[:, None]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 3.8), constrained_layout=True)
    length, noises = (
        found.draws[:, found.names.index(n)] for n in ("lengthscale", "noise_variance")
    )
    left.scatter(length, noises, s=6000 * found.weights, alpha=0.35, color="#0072b2", linewidths=0)
    learned = float(best.kernel_.parameters()["lengthscale"]), best.noise_variance_
    left.plot(*learned, "+", color="#d55e00", markersize=12, markeredgewidth=2, label="best")
    left.set(xscale="log", yscale="log", xlabel="lengthscale / years")
    left.set(ylabel="noise variance / ppm²", title="Draws, as large as their weights")
    left.legend()
    right.plot(X[:, 0], y, ".", color="black", label="growth of the yearly mean")
    for model, colour, label in (
        (mixed, "#0072b2", "integrated"),
        (best, "#d55e00", "best hyperparameters"),
    ):
        mean, sd = model.predict(at, return_std=True)
        right.plot(at, mean, color=colour, label=label)
        for sign in (-1, 1):
            right.plot(at, mean + sign * 1.96 * sd, color=colour, linewidth=0.9, linestyle="--")
    right.set(xlabel="year", ylabel="CO₂ growth / ppm", title="f and its 95 % band")
    right.legend(loc="upper left")
    figure.savefig(HERE / "images" / "hyperparameters.png", dpi=110)


if __name__ == "__main__":
    main()
