r"""Figure 3: what a diagonal S costs, for four distributions of the inputs.

N = 1000 inputs, f drawn from a process with RBF kernel, and bounds over the number of features with
kernel, noise and the features' parameter learned: by L-BFGS on the collapsed bound, and for
Trig features also by Adam on the Monte Carlo bound with the paper's settings.

The best dense S has a larger bound than the best diagonal one, and more features have a larger one
than fewer. A search may miss it, as the paper's did; here searches begin from several places, the
best of the simpler model among them, and the file holds the bound that each of them led to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from orthogp.exact.process import ExactObjective
from orthogp.features import MeanPrior, Trig
from orthogp.kernels import RBF
from orthogp.learning.optimise import Budget, search
from orthogp.paper.run import (
    BLACK,
    COVARIANCE_COLOURS,
    MARKERS,
    PURPLE,
    VERMILLION,
    CollapsedObjective,
    Hyperparameters,
    Learned,
    Ledger,
    Row,
    Schedule,
    Value,
    Write,
    column,
    draw_targets,
    drawn,
    number,
    traced_family,
    train,
)
from orthogp.rows import Rows
from orthogp.stochastic.bound import StochasticModel
from orthogp.stochastic.normals import COVARIANCES, Covariance

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KERNEL = RBF(variance=0.5, lengthscale=0.5)
NOISE_VARIANCE = 0.01**2
FAMILIES = ("trig", "hermite")
#: What searches begin from: ones, the true values, the best of a grid for several scales, the best
#: with fewer features, and the best of the other kind of covariance.
STARTS = ("defaults", "truth", "scan", "fewer_features", "other_covariance")

# Variance, lengthscale and noise variance of a search that knows nothing: the defaults of GPflow,
# in which the paper's experiments were written.
_DEFAULTS = (1.0, 1.0, 1.0)
# The true ones.
_TRUTH = (float(KERNEL.variance), float(KERNEL.lengthscale), NOISE_VARIANCE)
# The variances of the grid on which the bound is scanned.
_VARIANCES = (0.05, 0.15, 0.5)
# Its lengthscales.
_LENGTHSCALES = (0.5, 0.8)
# Its noise variances.
_NOISES = np.geomspace(1e-4, 0.3, 7)
# Its scales, relative to the first one.
_SCALE_FACTORS = np.geomspace(0.4, 2.5, 9)
# The number of scales from which a search begins.
_NUM_SCANNED = 5
# The accuracy of a search, in nats, up to which bounds are compared.
_TOLERANCE = 1e-3
# The smallest gap, in nats, that is drawn: smaller ones are rounding.
_LEAST_GAP = 1e-2
_NAMES = {"trig": "Trig", "hermite": "Hermite"}
_COVARIANCE_MARKERS = {"dense": "o", "diagonal": "s"}


# ---------------------------------------------------------------------- rows


def bimodal(rng: np.random.Generator, size: int) -> NDArray[np.float64]:
    """Return draws of two Gaussians of variance 1 (weight 0.7) and 0.5 (weight 0.3).

    The mixture has mean 0 and standard deviation 3.
    """
    within = 0.7 * 1.0 + 0.3 * 0.5
    right = np.sqrt((9 - within) / (0.7 * (3 / 7) ** 2 + 0.3))
    is_left = rng.random(size) < 0.7
    noise = rng.standard_normal(size)
    return np.where(is_left, -3 / 7 * right + noise, right + np.sqrt(0.5) * noise)


#: The paper prints U[−√108, √108], whose standard deviation is 6; that of the others is 3.
INPUTS: dict[str, Callable[[np.random.Generator, int], NDArray[np.float64]]] = {
    "Gaussian, sd 3": lambda rng, size: rng.normal(0.0, 3.0, size),
    "uniform, sd 3": lambda rng, size: rng.uniform(-(27**0.5), 27**0.5, size),
    "uniform, sd 6": lambda rng, size: rng.uniform(-(108**0.5), 108**0.5, size),
    "bimodal, sd 3": bimodal,
}


class Data(NamedTuple):
    """Sorted inputs (n,) and targets (n,)."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]


def draw_data(name: str, num_rows: int, seed: int) -> Data:
    """Return rows whose inputs have one of the distributions."""
    rng = np.random.default_rng([seed, list(INPUTS).index(name)])
    x = np.sort(INPUTS[name](rng, num_rows))
    return Data(x, draw_targets(KERNEL, NOISE_VARIANCE, x[:, None], rng))


# ---------------------------------------------------------------------- the experiment


class Figure3(NamedTuple):
    """How many rows and features there are, and how the stochastic fits train."""

    num_rows: int = 1000
    num_features: tuple[int, ...] = (11, 15, 21, 25, 31, 35, 41, 45, 51, 55, 61, 65, 71)
    inputs: tuple[str, ...] = tuple(INPUTS)
    schedule: Schedule = Schedule()
    stochastic_features: tuple[int, ...] = (11, 21, 31, 41, 51, 61, 71)
    seed: int = 0

    @classmethod
    def quick(cls) -> Self:
        """Return smaller settings."""
        return cls(
            num_rows=200,
            num_features=(11, 31),
            inputs=("Gaussian, sd 3", "bimodal, sd 3"),
            schedule=Schedule(max_steps=800, learning_rate=5e-2, repeats=100),
            stochastic_features=(31,),
        )

    def reproduce(self, out: Path, write: Write) -> list[Path]:
        """Return the paths of figure 3 and of its bounds."""
        known = ["inputs", "num_rows", "seed"]
        learned, checks = Hyperparameters._fields, ["below_exact", "above_fewer_features"]
        exact = Ledger(
            out / "figure3_exact.csv",
            known,
            ["log_marginal_likelihood", *learned[:-1], "seconds"],
            write,
        )
        starts = [f"elbo_from_{start}" for start in STARTS]
        collapsed = Ledger(
            out / "figure3.csv",
            [*known, "family", "covariance", "num_features"],
            ["elbo", *starts, *learned, "at_limit", *checks, "above_diagonal", "seconds"],
            write,
        )
        stochastic = Ledger(
            out / "figure3_stochastic.csv",
            [*known, "covariance", "num_features", *Schedule._fields],
            ["average_elbo", "standard_error", "elbo", "collapsed_elbo", *learned, "seconds"],
            write,
        )
        columns = []
        for name in self.inputs:
            data = draw_data(name, self.num_rows, self.seed)
            task = _Task(data, {"inputs": name, "num_rows": self.num_rows, "seed": self.seed})
            row = exact.run(task.settings, partial(learn_exact, data))
            limit = number(row, "log_marginal_likelihood")
            curves = {
                family: _sweep(collapsed, task, family, self.num_features, limit)
                for family in FAMILIES
            }
            points: dict[Covariance, list[Row]] = {
                covariance: [
                    _train(stochastic, task, covariance, count, self.schedule)
                    for count in self.stochastic_features
                ]
                for covariance in COVARIANCES
            }
            columns.append(_Column(name, limit, curves, points))
        path = out / "figure3.png"
        _draw(path, columns, self.num_rows)
        return [collapsed.path, exact.path, stochastic.path, path]


class _Task(NamedTuple):
    """Rows, and the settings by which the ledgers know them."""

    data: Data
    settings: dict[str, Value]


def learn_exact(data: Data) -> dict[str, Value]:
    """Return the largest log marginal likelihood, and where it is."""
    objective = ExactObjective(KERNEL, MeanPrior(), Rows(data.x[:, None], data.y))
    start = np.log(_TRUTH)
    found = search(
        objective.value_and_gradient,
        start,
        (start - 3.0, start + 3.0),
        Budget(max_iterations=60),
    )
    learned = dict(zip(Hyperparameters._fields, np.exp(found.x).tolist(), strict=False))
    return {"log_marginal_likelihood": found.value, **learned}


def _sweep(
    ledger: Ledger, task: _Task, family: str, num_features: Sequence[int], limit: float
) -> dict[Covariance, list[Row]]:
    """Return the rows of one family for all numbers of features, each learned from the last."""
    rows: dict[Covariance, list[Row]] = {covariance: [] for covariance in COVARIANCES}
    x, y = task.data
    for count in num_features:
        traced = traced_family(family, count, x)
        objectives = [CollapsedObjective(traced, covariance, x, y) for covariance in COVARIANCES]
        fewer = [found[-1] for found in rows.values() if found]
        settings = [
            {**task.settings, "family": family, "covariance": covariance, "num_features": count}
            for covariance in COVARIANCES
        ]
        pair = ledger.run_together(settings, partial(learn_pair, objectives, fewer, limit))
        for covariance, row in zip(COVARIANCES, pair, strict=True):
            rows[covariance].append(row)
    return rows


def _train(
    ledger: Ledger, task: _Task, covariance: Covariance, num_features: int, schedule: Schedule
) -> Row:
    """Return the row of a fit of Trig features by Adam, from the true hyperparameters."""
    x, y = task.data
    family = traced_family("trig", num_features, x)

    def compute() -> dict[str, Value]:
        features = Trig(num_features, a=float(family.first_scale), centre=0.0)
        model = StochasticModel(features, KERNEL, NOISE_VARIANCE, covariance)
        q, average, error = train(x[:, None], y, model, schedule)
        kernel = {name: float(value) for name, value in q.kernel.parameters().items()}
        a = float(np.max(np.asarray(q.features.dilation)))
        learned = Hyperparameters(**kernel, noise_variance=q.noise_variance, scale=a)
        return {
            "average_elbo": average,
            "standard_error": error,
            "elbo": q.elbo(x[:, None], y),
            "collapsed_elbo": CollapsedObjective(family, covariance, x, y).value(learned),
            **learned._asdict(),
        }

    settings = {**task.settings, "covariance": covariance, "num_features": num_features}
    return ledger.run({**settings, **schedule._asdict()}, compute)


# ---------------------------------------------------------------------- searches


def learn_pair(
    objectives: Sequence[CollapsedObjective], fewer: Sequence[Row], limit: float
) -> list[dict[str, Value]]:
    """Return the results for a dense and for a diagonal S, each also begun from the other's best.

    Parameters
    ----------
    objectives : pair of CollapsedObjective
        That of a dense S first.
    fewer : pair of Row, or empty
        The results with fewer features.
    limit : float
        The largest log marginal likelihood, which no bound may exceed.
    """
    ends = []
    for index, objective in enumerate(objectives):
        scale = float(objective.family.first_scale)
        starts = {
            "defaults": Hyperparameters(*_DEFAULTS, scale),
            "truth": Hyperparameters(*_TRUTH, scale),
        }
        if fewer:
            learned = (number(fewer[index], name) for name in Hyperparameters._fields)
            starts["fewer_features"] = Hyperparameters(*learned)
        by_start = {name: objective.learn(start) for name, start in starts.items()}
        scanned = [objective.learn(start) for start in _scan(objective)]
        ends.append({**by_start, "scan": max(scanned, key=lambda end: end.value)})
    best = [_best(by_start).hyperparameters for by_start in ends]
    for by_start, objective, other in zip(ends, objectives, reversed(best), strict=True):
        by_start["other_covariance"] = objective.learn(other)
    floor = _best(ends[1]).value
    results = []
    for index, by_start in enumerate(ends):
        found = _best(by_start)
        least = number(fewer[index], "elbo") if fewer else -np.inf
        results.append(
            {
                "elbo": found.value,
                **{f"elbo_from_{name}": float("nan") for name in STARTS},
                **{f"elbo_from_{name}": end.value for name, end in by_start.items()},
                **found.hyperparameters._asdict(),
                "at_limit": found.at_limit,
                "below_exact": found.value <= limit + _TOLERANCE,
                "above_fewer_features": found.value >= least - _TOLERANCE,
                "above_diagonal": found.value >= floor - _TOLERANCE,
            }
        )
    return results


def _best(ends: Mapping[str, Learned]) -> Learned:
    return max(ends.values(), key=lambda end: end.value)


def _scan(objective: CollapsedObjective) -> list[Hyperparameters]:
    """Return the best points of a grid, each of another scale.

    Few features can see all of the spectrum over part of the inputs, or the other way round: the
    scale is what maxima differ in.
    """
    first = float(objective.family.first_scale)
    best: list[tuple[float, Hyperparameters]] = []
    for factor in _SCALE_FACTORS:
        candidates = [
            Hyperparameters(variance, lengthscale, float(noise), first * float(factor))
            for variance, lengthscale, noise in product(_VARIANCES, _LENGTHSCALES, _NOISES)
        ]
        values = [objective.value(candidate) for candidate in candidates]
        chosen = int(np.argmax(values))
        best.append((values[chosen], candidates[chosen]))
    best.sort(key=lambda pair: pair[0], reverse=True)
    return [candidate for _, candidate in best[:_NUM_SCANNED]]


# ---------------------------------------------------------------------- drawing


class _Column(NamedTuple):
    """The largest likelihood for some inputs, the collapsed bounds, and the stochastic fits."""

    title: str
    limit: float
    curves: Mapping[str, Mapping[Covariance, Sequence[Row]]]
    points: Mapping[Covariance, Sequence[Row]]


def _draw(path: Path, columns: Sequence[_Column], num_rows: int) -> None:
    """Draw bounds over the number of features, one column for each distribution of inputs."""
    families, limits = list(columns[0].curves), _limits(columns)
    title = f"Dense and diagonal covariances of q(u), N = {num_rows}, RBF kernel"
    shape = len(families) + 1, len(columns)
    size = 3.2 * shape[1] + 0.6, 2.7 * shape[0]
    with drawn(path, shape, size=size, title=title, sharex=True, sharey="row") as grid:
        for axes_column, inputs in zip(grid.T, columns, strict=True):
            for axes, family in zip(axes_column, families):
                _draw_bounds(axes, inputs, family)
                if family == "trig":
                    _draw_points(axes, inputs, limits[0])
                axes.set_title(f"{_NAMES[family]}, inputs: {inputs.title}")
            _draw_gaps(axes_column[-1], inputs)
            axes_column[-1].set(title="What a diagonal S costs", xlabel="number of features M")
        for axes in grid[:-1, 0]:
            axes.set(ylabel="ELBO / nats", ylim=limits)
        grid[-1, 0].set_ylabel("dense − diagonal / nats")


def _limits(columns: Sequence[_Column]) -> tuple[float, float]:
    """Return an axis for all collapsed bounds."""
    values = [inputs.limit for inputs in columns]
    for inputs in columns:
        for curves in inputs.curves.values():
            values += [value for rows in curves.values() for value in column(rows, "elbo")]
    margin = 0.08 * (max(values) - min(values))
    return min(values) - margin, max(values) + margin


def _draw_bounds(axes: Axes, inputs: _Column, family: str) -> None:
    label = "exact log marginal likelihood"
    axes.axhline(inputs.limit, color=BLACK, linestyle="-.", linewidth=1.1, label=label)
    for covariance in COVARIANCES:
        rows = inputs.curves[family][covariance]
        axes.plot(
            column(rows, "num_features"),
            column(rows, "elbo"),
            color=COVARIANCE_COLOURS[covariance],
            linestyle="-" if covariance == "dense" else "--",
            label=f"{covariance} S, collapsed bound",
        )


def _draw_points(axes: Axes, inputs: _Column, low: float) -> None:
    """Draw the stochastic fits, those that end below the axis as triangles at its foot."""
    for covariance in COVARIANCES:
        for row in inputs.points[covariance]:
            elbo = number(row, "average_elbo")
            axes.plot(
                number(row, "num_features"),
                max(elbo, low),
                _COVARIANCE_MARKERS[covariance] if elbo > low else "v",
                color=COVARIANCE_COLOURS[covariance],
                markersize=6,
                markeredgecolor="white",
                markeredgewidth=0.5,
                clip_on=False,
                zorder=3,
                label=f"{covariance} S, stochastic training" + ("" if elbo > low else " (below)"),
            )


def _draw_gaps(axes: Axes, inputs: _Column) -> None:
    for index, (family, curves) in enumerate(inputs.curves.items()):
        dense, diagonal = (column(curves[covariance], "elbo") for covariance in COVARIANCES)
        axes.plot(
            column(curves["dense"], "num_features"),
            np.maximum(np.subtract(dense, diagonal), _LEAST_GAP),
            color=(VERMILLION, PURPLE)[index],
            marker=MARKERS[index],
            markersize=4,
            label=f"{_NAMES[family]}: dense − diagonal",
        )
    axes.set_yscale("log")
