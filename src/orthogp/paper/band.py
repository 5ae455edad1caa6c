r"""Figures 1 and 2: Trig features on bands [−a, a] of different widths.

Figure 1 has the matrix of a Matérn-3/2 kernel beside Q of Trig features,

    K = k(x_i − x_j),      Q = Σ_m φ_m(x_i) φ_m(x_j)

With a held fixed Q tends, as M grows, to the kernel whose spectral density is cut off at a:

    k_a(τ) = 2 ∫₀^a S(ω) cos(ωτ) dω

With M held fixed a larger a sees more of the spectrum over less of the inputs.

Figure 2 has regression with a band that is too narrow, too wide, and just right: N = 80 inputs
uniform on [−3, 3], f drawn from a Matérn-5/2 process, all hyperparameters at their true values.
q(u) is either the best there is, in closed form, or what Adam makes of the Monte Carlo bound with
the paper's settings. The caption of the paper's figure speaks of a dense S, its appendix of a
diagonal one: both are here.
"""

from __future__ import annotations

from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from orthogp.exact.process import ExactPosterior
from orthogp.features import MeanPrior, Trig
from orthogp.features.base import gauss_panels
from orthogp.features.inducing import covariance_matrix
from orthogp.features.series import spectral_densities
from orthogp.inference.moments import moments_from_rows
from orthogp.inference.predictive import Gaussian
from orthogp.kernels import Kernel, Matern32, Matern52
from orthogp.paper.run import (
    BLUE,
    VERMILLION,
    Approximation,
    Ledger,
    Row,
    Schedule,
    Value,
    Write,
    column,
    draw_targets,
    drawn,
    number,
    train,
)
from orthogp.rows import Rows
from orthogp.stochastic.bound import StochasticModel
from orthogp.stochastic.normals import COVARIANCES, Covariance, factorised_posterior

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LENGTHSCALE = 0.2
#: The largest distance of an input from zero.
HALF_WIDTH = 3.0
# The number of nodes of the integral over the band, many for each turn of cos ωτ.
_NODES = 512

#: The model of figure 2.
KERNEL = Matern52(variance=1.0, lengthscale=LENGTHSCALE)
NOISE_VARIANCE = 0.03**2
NUM_ROWS = 80
#: An a that sees too little of the spectrum.
TOO_SMALL = 5.0
#: An a with which the features reach too little of the inputs.
TOO_LARGE = 40.0
#: The titles of the panels.
SMALL, LARGE, BEST = "a too small", "a too large", "a by the bound"
# The schedule that the file has for a fit in closed form.
_NO_SCHEDULE = Schedule(0, 0, 0.0, 0)
# The values of a at which the search begins; the bound has one maximum between neighbours.
_A_GRID = np.geomspace(2.0, 80.0, 25)


def trig(num_features: int, a: float) -> Trig:
    """Return features on [−a, a], centred on the interval of the inputs."""
    return Trig(num_features, a=a, centre=0.0)


# ---------------------------------------------------------------------- figure 1


class Figure1(NamedTuple):
    """Matrices on some points each way, in a row with one a and a row with one M."""

    num_points: int = 301
    a: float = 10.0
    growing_m: tuple[int, ...] = (11, 15, 21, 31, 61)
    num_features: int = 31
    growing_a: tuple[float, ...] = (2.0, 5.0, 10.0, 16.0, 40.0)

    @classmethod
    def quick(cls) -> Self:
        """Return smaller settings."""
        return cls(num_points=151)

    def reproduce(self, out: Path, write: Write) -> list[Path]:
        """Return the paths of figure 1 and of its errors, in a directory that exists."""
        ledger = Ledger(
            out / "figure1.csv",
            ["num_points", "a", "num_features"],
            ["max_error", "mean_error", "max_error_of_band", "mean_error_of_band"],
            write,
        )
        kernel = Matern32(1.0, LENGTHSCALE)
        x = np.linspace(-HALF_WIDTH, HALF_WIDTH, self.num_points)
        exact = np.asarray(covariance_matrix(kernel, x[:, None], x[:, None]))
        rows = (
            [(self.a, m) for m in self.growing_m],
            [(a, self.num_features) for a in self.growing_a],
        )
        images = {}
        for a, count in dict.fromkeys(chain(*rows)):
            Q, band = approximation(kernel, x, a, count), band_limited(kernel, x, a)
            settings = {"num_points": self.num_points, "a": a, "num_features": count}
            row = ledger.run(settings, partial(_errors, Q, exact, band))
            title = f"a = {a:g}, M = {count}\nmean error {number(row, 'mean_error'):.2g}"
            images[a, count] = title, Q
        path = out / "figure1.png"
        _draw_images(path, [[("exact\n", exact), *(images[case] for case in row)] for row in rows])
        return [ledger.path, path]


def approximation(
    kernel: Kernel, x: NDArray[np.float64], a: float, num_features: int
) -> NDArray[np.float64]:
    """Return Q of Trig features on [−a, a], (n, n)."""
    Phi = trig(num_features, a).evaluate(kernel, x[:, None])
    return Phi @ Phi.T


def band_limited(kernel: Kernel, x: NDArray[np.float64], a: float) -> NDArray[np.float64]:
    """Return k_a, what Q tends to as M grows, between all points, (n, n)."""
    omega, weights = gauss_panels(0.0, a, _NODES)
    densities = 2 * weights * spectral_densities(kernel, omega[:, None])
    cosines, sines = np.cos(np.outer(x, omega)), np.sin(np.outer(x, omega))
    return (densities * cosines) @ cosines.T + (densities * sines) @ sines.T


def _errors(
    Q: NDArray[np.float64], exact: NDArray[np.float64], band: NDArray[np.float64]
) -> dict[str, float]:
    error, from_band = np.abs(Q - exact), np.abs(Q - band)
    return {
        "max_error": float(error.max()),
        "mean_error": float(error.mean()),
        "max_error_of_band": float(from_band.max()),
        "mean_error_of_band": float(from_band.mean()),
    }


def _draw_images(path: Path, rows: list[list[tuple[str, NDArray[np.float64]]]]) -> None:
    """Draw rows of matrices with their titles, the one that is approximated first."""
    num_columns = max(map(len, rows))
    size = 2.1 * num_columns + 0.9, 2.45 * len(rows)
    title = f"Matérn-3/2 kernel matrix, ℓ = {LENGTHSCALE}, by Trig features on [−a, a]"
    with drawn(path, (len(rows), num_columns), size=size, title=title) as grid:
        for axes in grid.flat:
            axes.set_axis_off()
        for axes_row, images in zip(grid, rows, strict=True):
            for axes, (name, matrix) in zip(axes_row, images):
                axes.set_axis_on()
                extent = (-HALF_WIDTH, HALF_WIDTH, HALF_WIDTH, -HALF_WIDTH)
                axes.imshow(matrix, vmin=-0.1, vmax=1.0, cmap="viridis", extent=extent)
                axes.set(title=name, xticks=[-3, 0, 3], yticks=[-3, 0, 3])
                axes.grid(False)
            axes_row[0].set_ylabel("x")
        for axes in grid[-1]:
            axes.set_xlabel("x'")
        label = "covariance of f(x) and f(x')"
        image = grid[0, 0].images[0]
        bar = image.figure.colorbar(image, ax=grid, shrink=0.7, label=label)
        bar.outline.set_visible(False)
        bar.ax.grid(False)


# ---------------------------------------------------------------------- figure 2


class Data(NamedTuple):
    """Inputs (n, 1), sorted, and targets (n,)."""

    X: NDArray[np.float64]
    y: NDArray[np.float64]


class Figure2(NamedTuple):
    """The number of features, which fits are trained and how, and how many points are drawn."""

    num_features: int = 31
    trained: tuple[str, ...] = (SMALL, LARGE, BEST)
    schedule: Schedule = Schedule()
    num_shown: int = 401

    @classmethod
    def quick(cls) -> Self:
        """Return smaller settings."""
        schedule = Schedule(max_steps=1000, learning_rate=2e-2, repeats=200)
        return cls(trained=(BEST,), schedule=schedule, num_shown=201)

    def reproduce(self, out: Path, write: Write) -> list[Path]:
        """Return the paths of figure 2, of its bounds and of its curves."""
        fits = _Fits(out, self, write)
        path = out / "figure2.png"
        title = (
            f"Regression with Trig features on [−a, a]: N = {NUM_ROWS}, M = "
            f"{self.num_features}, fixed Matérn-5/2 kernel; mean ± 2 standard deviations"
        )
        size = 13.5, 3.1 * len(COVARIANCES)
        shape = len(COVARIANCES), 4
        with drawn(path, shape, size=size, title=title, sharex=True, sharey=True) as grid:
            for axes_row, covariance in zip(grid, COVARIANCES, strict=True):
                best = best_a(fits.data, self.num_features, covariance)
                cases = (SMALL, TOO_SMALL), (LARGE, TOO_LARGE), (BEST, best)
                for axes, (name, a) in zip(axes_row, cases):
                    fits.draw(axes, name, a, covariance)
                fits.draw_exact(axes_row[-1])
                axes_row[0].set_ylabel("y")
            for axes in grid[-1]:
                axes.set_xlabel("x")
        return [*fits.paths, path]


def draw_data(seed: int = 1) -> Data:
    """Return the rows of the experiment."""
    rng = np.random.default_rng(seed)
    X = np.sort(rng.uniform(-HALF_WIDTH, HALF_WIDTH, NUM_ROWS))[:, None]
    return Data(X, draw_targets(KERNEL, NOISE_VARIANCE, X, rng))


def collapsed(data: Data, num_features: int, a: float, covariance: Covariance) -> Approximation:
    """Return the best q(u)."""
    model = StochasticModel(trig(num_features, a), KERNEL, NOISE_VARIANCE, covariance)
    return Approximation.collapsed(model, *data)


def best_a(data: Data, num_features: int, covariance: Covariance) -> float:
    """Return the a whose best q(u) has the largest bound, to four digits."""
    size = num_features if covariance == "dense" else 1

    def loss(log_a: float) -> float:
        moments = moments_from_rows(trig(num_features, float(np.exp(log_a))), KERNEL, *data)
        return -factorised_posterior(moments, NOISE_VARIANCE, size).bound.total

    grid = np.log(_A_GRID)
    best = grid[np.argmin([loss(log_a) for log_a in grid])]
    step = grid[1] - grid[0]
    found = minimize_scalar(
        loss, bounds=(best - step, best + step), method="bounded", options={"xatol": 1e-5}
    )
    return float(f"{np.exp(found.x):.4g}")


class _Fits:
    """The fits of the figure, kept in two files: their bounds, and their curves."""

    def __init__(self, out: Path, plan: Figure2, write: Write) -> None:
        settings = ["covariance", "a", "training", "num_features", *Schedule._fields]
        results = ["elbo", "average_elbo", "standard_error", "rmse_to_exact", "mean_sd", "seconds"]
        curve = ["mean", "variance"]
        self._bounds = Ledger(out / "figure2.csv", settings, results, write)
        # In silence: there is a row for each point of a curve.
        self._curves = Ledger(
            out / "figure2_curves.csv", [*settings, "x"], curve, lambda line: None
        )
        self.paths = [self._bounds.path, self._curves.path]
        self._plan, self.data = plan, draw_data()
        self._x = np.linspace(-HALF_WIDTH, HALF_WIDTH, plan.num_shown)
        self._exact = ExactPosterior(KERNEL, NOISE_VARIANCE, MeanPrior(), Rows(*self.data))
        mean, variance = self._exact.predict(self._x[:, None])
        self._exact_curve = Gaussian(mean[:, 0], variance)

    def fit(self, covariance: Covariance, a: float, training: str) -> tuple[float, Gaussian]:
        """Return the bound of a fit and its curve, computed unless both files hold them."""
        schedule = self._plan.schedule if training == "stochastic" else _NO_SCHEDULE
        settings: dict[str, Value] = {
            "covariance": covariance,
            "a": a,
            "training": training,
            "num_features": self._plan.num_features,
            **schedule._asdict(),
        }

        @cache
        def fitted() -> tuple[Approximation, float, float]:
            if training == "collapsed":
                q = collapsed(self.data, self._plan.num_features, a, covariance)
                return q, float("nan"), float("nan")
            features = trig(self._plan.num_features, a)
            model = StochasticModel(features, KERNEL, NOISE_VARIANCE, covariance, learn=())
            return train(*self.data, model, schedule)

        def curve() -> list[Row]:
            found = fitted()[0].predict(self._x[:, None])
            pairs = zip(found.mean.tolist(), found.variance.tolist(), strict=True)
            return [{"mean": mean, "variance": variance} for mean, variance in pairs]

        def bounds() -> Row:
            q, average, error = fitted()
            mean, variance = q.predict(self._x[:, None])
            return {
                "elbo": q.elbo(*self.data),
                "average_elbo": average,
                "standard_error": error,
                "rmse_to_exact": float(np.sqrt(np.mean((mean - self._exact_curve.mean) ** 2))),
                "mean_sd": float(np.mean(np.sqrt(variance))),
            }

        elbo = number(self._bounds.run(settings, bounds), "elbo")
        rows = self._curves.run_together([{**settings, "x": x} for x in self._x.tolist()], curve)
        return elbo, Gaussian(np.array(column(rows, "mean")), np.array(column(rows, "variance")))

    def draw(self, axes: Axes, name: str, a: float, covariance: Covariance) -> None:
        """Draw the best q(u), and the trained one if there is one."""
        elbo, shown = self.fit(covariance, a, "collapsed")
        title = f"{name} ({a:.3g}), {covariance} S\nELBO {elbo:,.0f}"
        self._draw_band(axes, shown)
        if name in self._plan.trained:
            elbo, (mean, variance) = self.fit(covariance, a, "stochastic")
            title += f", by training {elbo:,.0f}"
            label = "q(u) by stochastic training"
            axes.plot(self._x, mean, "--", color=VERMILLION, linewidth=1.0, label=label)
            for edge in (mean - 2 * np.sqrt(variance), mean + 2 * np.sqrt(variance)):
                axes.plot(self._x, edge, ":", color=VERMILLION, linewidth=0.8)
        axes.set_title(title)

    def draw_exact(self, axes: Axes) -> None:
        """Draw the exact posterior."""
        self._draw_band(axes, self._exact_curve)
        likelihood = self._exact.log_marginal_likelihood
        axes.set_title(f"exact posterior\nlog marginal likelihood {likelihood:,.1f}")

    def _draw_band(self, axes: Axes, shown: Gaussian) -> None:
        mean, sd = shown.mean, np.sqrt(shown.variance)
        axes.fill_between(
            self._x, mean - 2 * sd, mean + 2 * sd, color=BLUE, alpha=0.25, linewidth=0
        )
        axes.plot(self._x, mean, color=BLUE, label="best q(u), closed form")
        axes.plot(*self.data, "k.", markersize=3, label="data")
        # Wide bands of a bad fit must not flatten the others.
        y, spread = self.data.y, np.ptp(self.data.y)
        axes.set_ylim(y.min() - 0.25 * spread, y.max() + 0.25 * spread)
        axes.margins(x=0)
