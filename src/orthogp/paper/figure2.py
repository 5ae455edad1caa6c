r"""Figure 2: one-dimensional regression with a band that is too narrow, too wide, and just right.

N = 80 inputs uniform on [−3, 3], f drawn from a Matérn-5/2 process, M = 31 Trig features on
[−a, a], all hyperparameters at their true values. q(u) is either the best there is, in closed
form, or what Adam makes of the Monte Carlo bound with the paper's settings. The caption of the
paper's figure speaks of a dense S, its appendix of a diagonal one: both are here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from orthogp.exact.process import ExactPosterior
from orthogp.features import MeanPrior
from orthogp.features.bands import Trig
from orthogp.features.inducing import covariance_matrix
from orthogp.inference.moments import moments_from_rows
from orthogp.inference.predictive import Gaussian
from orthogp.kernels import Matern52
from orthogp.paper.closed_form import Approximation, factorised_bound
from orthogp.paper.hyperparameters import Schedule, train
from orthogp.paper.run import (
    BLUE,
    VERMILLION,
    Ledger,
    Value,
    Write,
    add_legend,
    figure_style,
    make_panels,
    number,
    save_figure,
    set_title,
)
from orthogp.rows import Rows
from orthogp.stochastic.bound import StochasticModel
from orthogp.stochastic.variational import COVARIANCES, Covariance

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KERNEL = Matern52(variance=1.0, lengthscale=0.2)
NOISE_VARIANCE = 0.03**2
NUM_ROWS = 80
#: The inputs lie within this distance of zero.
HALF_WIDTH = 3.0
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


class Data(NamedTuple):
    """Inputs (n, 1), sorted, and targets (n,)."""

    X: NDArray[np.float64]
    y: NDArray[np.float64]


class Plan(NamedTuple):
    """The number of features, which fits are trained and how, and how many points are drawn."""

    num_features: int = 31
    trained: tuple[str, ...] = (SMALL, LARGE, BEST)
    schedule: Schedule = Schedule()
    num_shown: int = 401


FULL = Plan()
QUICK = Plan(
    trained=(BEST,),
    schedule=Schedule(max_steps=1000, learning_rate=2e-2, repeats=200),
    num_shown=201,
)


def reproduce(out: Path, plan: Plan, write: Write) -> list[Path]:
    """Return the paths of figure 2, of its bounds and of its curves."""
    data = draw_data()
    fits = _Fits(out, plan, data, write)
    panels = [
        [
            _Panel(
                title,
                covariance,
                a,
                fits.fit(covariance, a, "collapsed"),
                fits.fit(covariance, a, "stochastic") if title in plan.trained else None,
            )
            for title, a in (
                (SMALL, TOO_SMALL),
                (LARGE, TOO_LARGE),
                (BEST, best_a(data, plan.num_features, covariance)),
            )
        ]
        for covariance in COVARIANCES
    ]
    figure = _draw(data, fits, panels)
    return [*fits.paths, save_figure(figure, out / "figure2.png")]


def draw_data(seed: int = 1) -> Data:
    """Return the rows of the experiment."""
    rng = np.random.default_rng(seed)
    X = np.sort(rng.uniform(-HALF_WIDTH, HALF_WIDTH, NUM_ROWS))[:, None]
    K = np.asarray(covariance_matrix(KERNEL, X, X))
    f = np.linalg.cholesky(K + 1e-10 * np.eye(NUM_ROWS)) @ rng.standard_normal(NUM_ROWS)
    return Data(X, f + np.sqrt(NOISE_VARIANCE) * rng.standard_normal(NUM_ROWS))


def trig(num_features: int, a: float) -> Trig:
    """Return features centred on the interval of the inputs."""
    return Trig(num_features, a=a, centre=0.0)


def collapsed(data: Data, num_features: int, a: float, covariance: Covariance) -> Approximation:
    """Return the best q(u)."""
    features = trig(num_features, a)
    return Approximation.collapsed(features, KERNEL, NOISE_VARIANCE, data.X, data.y, covariance)


def best_a(data: Data, num_features: int, covariance: Covariance) -> float:
    """Return the a whose best q(u) has the largest bound, to four digits."""

    def loss(log_a: float) -> float:
        features = trig(num_features, float(np.exp(log_a)))
        moments = moments_from_rows(features, KERNEL, *data)
        size = num_features if covariance == "dense" else 1
        return -factorised_bound(moments, NOISE_VARIANCE, size).total

    grid = np.log(_A_GRID)
    best = grid[np.argmin([loss(log_a) for log_a in grid])]
    step = grid[1] - grid[0]
    found = minimize_scalar(
        loss, bounds=(best - step, best + step), method="bounded", options={"xatol": 1e-5}
    )
    return float(f"{np.exp(found.x):.4g}")


class _Fit(NamedTuple):
    """The bound of a fit, and its posterior over the x that are shown."""

    elbo: float
    shown: Gaussian


class _Fits:
    """The fits of the figure, kept in two files: their bounds, and their curves."""

    def __init__(self, out: Path, plan: Plan, data: Data, write: Write) -> None:
        settings = ["covariance", "a", "training", "num_features", *Schedule._fields]
        results = ["elbo", "average_elbo", "standard_error", "rmse_to_exact", "mean_sd", "seconds"]
        self._bounds = Ledger(out / "figure2.csv", settings, results, write)
        self._curves = Ledger(
            out / "figure2_curves.csv", [*settings, "x"], ["mean", "variance"], write
        )
        self.paths = [self._bounds.path, self._curves.path]
        self.num_features = plan.num_features
        self._plan, self._data = plan, data
        self.x = np.linspace(-HALF_WIDTH, HALF_WIDTH, plan.num_shown)
        posterior = ExactPosterior(KERNEL, NOISE_VARIANCE, MeanPrior(), Rows(*data))
        mean, variance = posterior.predict(self.x[:, None])
        self.exact = _Fit(posterior.log_marginal_likelihood, Gaussian(mean[:, 0], variance))

    def fit(self, covariance: Covariance, a: float, training: str) -> _Fit:
        """Return a fit, computed unless both files hold it."""
        schedule = self._plan.schedule if training == "stochastic" else _NO_SCHEDULE
        settings: dict[str, Value] = {
            "covariance": covariance,
            "a": a,
            "training": training,
            "num_features": self._plan.num_features,
            **schedule._asdict(),
        }
        compute = partial(self._compute, settings, covariance, a, schedule)
        row = self._bounds.run(settings, compute)
        curve = self._curve(settings)
        if curve is None:
            # The bound of a fit was kept, but its curve is not there, or not on these points.
            compute()
            curve = self._curve(settings)
        assert curve is not None
        return _Fit(number(row, "elbo"), curve)

    def _compute(
        self, settings: dict[str, Value], covariance: Covariance, a: float, schedule: Schedule
    ) -> dict[str, Value]:
        plan, (X, y) = self._plan, self._data
        average, error = float("nan"), float("nan")
        if schedule is _NO_SCHEDULE:
            q = collapsed(self._data, plan.num_features, a, covariance)
        else:
            features = trig(plan.num_features, a)
            model = StochasticModel(features, KERNEL, NOISE_VARIANCE, covariance, learn=())
            q, average, error = train(X, y, model, schedule)
        mean, variance = q.predict(self.x[:, None])
        self._curves.add(
            *(
                {**settings, "x": x, "mean": m, "variance": v}
                for x, m, v in zip(self.x.tolist(), mean.tolist(), variance.tolist(), strict=True)
            )
        )
        return {
            "elbo": q.elbo(X, y),
            "average_elbo": average,
            "standard_error": error,
            "rmse_to_exact": float(np.sqrt(np.mean((mean - self.exact.shown.mean) ** 2))),
            "mean_sd": float(np.mean(np.sqrt(variance))),
        }

    def _curve(self, settings: dict[str, Value]) -> Gaussian | None:
        points = [self._curves.find({**settings, "x": x}) for x in self.x.tolist()]
        found = [point for point in points if point is not None]
        if len(found) < len(points):
            return None
        return Gaussian(
            *(np.array([number(point, name) for point in found]) for name in ("mean", "variance"))
        )


# ---------------------------------------------------------------------- drawing


class _Panel(NamedTuple):
    title: str
    covariance: Covariance
    a: float
    collapsed: _Fit
    stochastic: _Fit | None


def _draw(data: Data, fits: _Fits, rows: Sequence[Sequence[_Panel]]) -> Figure:
    """Return a row of panels for each covariance, with the exact posterior at its end."""
    with figure_style():
        num_columns = len(rows[0]) + 1
        figure, grid = make_panels(
            len(rows), num_columns, size=(13.5, 3.1 * len(rows)), sharex=True, sharey=True
        )
        set_title(
            figure,
            f"Regression with Trig features on [−a, a]: N = {NUM_ROWS}, M = "
            f"{fits.num_features}, fixed Matérn-5/2 kernel; mean ± 2 standard deviations",
        )
        for axes_row, panels in zip(grid, rows, strict=True):
            for axes, panel in zip(axes_row, panels):
                _draw_band(axes, fits.x, panel.collapsed.shown, "best q(u), closed form")
                title = f"{panel.title} ({panel.a:.3g}), {panel.covariance} S\nELBO "
                title += f"{panel.collapsed.elbo:,.0f}"
                if panel.stochastic is not None:
                    _draw_edges(axes, fits.x, panel.stochastic.shown)
                    title += f", by training {panel.stochastic.elbo:,.0f}"
                axes.set_title(title)
            _draw_band(axes_row[-1], fits.x, fits.exact.shown, "best q(u), closed form")
            axes_row[-1].set_title(
                f"exact posterior\nlog marginal likelihood {fits.exact.elbo:,.1f}"
            )
            for axes in axes_row:
                axes.plot(*data, "k.", markersize=3, label="data")
                # Wide bands of a bad fit must not flatten the others.
                spread = np.ptp(data.y)
                axes.set_ylim(data.y.min() - 0.25 * spread, data.y.max() + 0.25 * spread)
                axes.margins(x=0)
        for axes in grid[-1]:
            axes.set_xlabel("x")
        for axes in grid[:, 0]:
            axes.set_ylabel("y")
        add_legend(figure)
    return figure


def _draw_band(axes: Axes, x: NDArray[np.float64], shown: Gaussian, label: str) -> None:
    sd = np.sqrt(shown.variance)
    axes.fill_between(
        x, shown.mean - 2 * sd, shown.mean + 2 * sd, color=BLUE, alpha=0.25, linewidth=0
    )
    axes.plot(x, shown.mean, color=BLUE, label=label)


def _draw_edges(axes: Axes, x: NDArray[np.float64], shown: Gaussian) -> None:
    sd = np.sqrt(shown.variance)
    axes.plot(
        x,
        shown.mean,
        color=VERMILLION,
        linestyle="--",
        linewidth=1.0,
        label="q(u) by stochastic training",
    )
    for edge in (shown.mean - 2 * sd, shown.mean + 2 * sd):
        axes.plot(x, edge, color=VERMILLION, linestyle=":", linewidth=0.8)
