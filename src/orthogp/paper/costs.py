r"""What a step of stochastic training costs, and how noisy the bound is that it estimates.

The paper claims O(ÑT + M²T) for a dense S and O(ÑT + MT) for a diagonal one, against O(ÑM² + M³) of
inducing points. Seconds and the temporary memory of the compiled value and gradient are measured
over M, over the batch size Ñ and over T, each with the others held fixed, and over M with T = 2M,
which the noise of the estimate asks for. Exponents are slopes of log seconds over all points alike;
where costs add up they lie between those of the terms.

How T must grow with M is the paper's open question. At the collapsed optimum for the rows of
figure 2, with the best a for each M, the bound is estimated many times from two sets of T
frequencies. All rows are in every batch, so that the standard deviation is due to the estimator
alone. It must be small against the slack of the bound, log p(y) − ELBO, which says how much there
is to gain by more features. From the T at which it falls to a hundredth of the slack, by
interpolation for each M, follows the rule

    T = c M^p      (least squares in the logarithms)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, get_args

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from orthogp.exact.process import ExactPosterior
from orthogp.features import InducingPoints, MeanPrior, Trig
from orthogp.files.text import write_rows
from orthogp.kernels import Matern52
from orthogp.paper import band
from orthogp.paper.run import (
    BLACK,
    CURVES,
    GREY,
    Approximation,
    Ledger,
    Row,
    Value,
    Write,
    column,
    draw_points,
    drawn,
    number,
    power_law,
    set_log_ticks,
)
from orthogp.precision import in_double
from orthogp.rows import Domain, Rows
from orthogp.stochastic.baselines import SparseVariational, svgp_objective
from orthogp.stochastic.bound import StochasticModel
from orthogp.stochastic.frequencies import SAMPLERS, Sampler
from orthogp.stochastic.normals import DenseNormal, Gaussian
from orthogp.stochastic.training import Batch

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# ---------------------------------------------------------------------- complexity

#: Trig features with either covariance, and inducing points with a dense one.
Method = Literal["dense", "diagonal", "inducing points"]
METHODS: tuple[Method, ...] = get_args(Method)
_KERNEL = Matern52(1.0, 0.2)
_NOISE_VARIANCE = 0.01
# The number of rows in the data for each row of a mini-batch.
_ROWS_PER_BATCH = 1000
# The least time for which a step is repeated; the fastest counts, for others share the machine.
_LEAST_SECONDS = 0.3
# The least number of times that a step is repeated.
_LEAST_CALLS = 5


class Size(NamedTuple):
    """M, Ñ and T."""

    num_features: int
    batch_size: int
    num_samples: int


class Complexity(NamedTuple):
    """The sizes that are timed: one that stays, and what each of its numbers is replaced by."""

    held: Size = Size(128, 1024, 256)
    num_features: tuple[int, ...] = (32, 64, 128, 256, 512, 1024)
    batch_sizes: tuple[int, ...] = (256, 1024, 4096, 16384)
    num_samples: tuple[int, ...] = (64, 128, 256, 512, 1024)

    @classmethod
    def quick(cls) -> Self:
        """Return smaller settings."""
        return cls(Size(32, 256, 64), (32, 128), (256, 2048), (64, 256))

    @property
    def sweeps(self) -> dict[str, list[Size]]:
        """The sizes of each sweep, by its name."""
        return {
            "M": [self.held._replace(num_features=m) for m in self.num_features],
            "M, T = 2M": [
                self.held._replace(num_features=m, num_samples=2 * m) for m in self.num_features
            ],
            "batch size": [self.held._replace(batch_size=n) for n in self.batch_sizes],
            "T": [self.held._replace(num_samples=t) for t in self.num_samples],
        }

    def reproduce(self, out: Path, write: Write) -> list[Path]:
        """Return the paths of the figure, of the timings, and of the exponents."""
        ledger = Ledger(
            out / "complexity.csv",
            ["method", *Size._fields],
            ["seconds_per_step", "temporary_bytes", "seconds"],
            write,
        )
        sweeps: dict[tuple[str, str], list[Row]] = {}
        exponents = []
        for name, sizes in self.sweeps.items():
            for method in METHODS:
                if method == "inducing points" and "T" in name:
                    # They have no T: the sweep over M serves.
                    continue
                rows = [_measure(ledger, method, size) for size in sizes]
                sweeps[name, method] = rows
                over = [_size_along(name, row) for row in rows]
                quantities = ("seconds_per_step", "temporary_bytes")
                slopes = (power_law(over, column(rows, measured))[0] for measured in quantities)
                exponents.append((name, method, *slopes))
        path, figure = out / "complexity_exponents.csv", out / "complexity.png"
        write_rows(path, ["over", "method", "time_exponent", "memory_exponent"], exponents)
        for name, method, of_time, of_memory in exponents:
            write(f"complexity: {method} over {name}: time^{of_time:.2f}, memory^{of_memory:.2f}")
        self._draw(figure, sweeps)
        return [ledger.path, path, figure]

    def _draw(self, path: Path, sweeps: Mapping[tuple[str, str], Sequence[Row]]) -> None:
        names, (m, n, t) = list(self.sweeps), self.held
        title = f"One step, value and gradient; unless varied M = {m}, Ñ = {n:,}, T = {t}"
        size, shape = (3.3 * len(names), 5.6), (2, len(names))
        quantities = (
            ("seconds_per_step", 1.0, "seconds"),
            ("temporary_bytes", 1e-6, "temporary memory / MB"),
        )
        with drawn(path, shape, size=size, title=title, sharex="col", sharey="row") as grid:
            for axes_row, (quantity, unit, label) in zip(grid, quantities, strict=True):
                for axes, name in zip(axes_row, names, strict=True):
                    for index, method in enumerate(METHODS):
                        inducing = method == "inducing points"
                        # What has no T does not depend on it.
                        key = "M" if name == "M, T = 2M" and inducing else name
                        rows = sweeps.get((key, method), [])
                        if rows:
                            x = [_size_along(name, row) for row in rows]
                            y = [unit * value for value in column(rows, quantity)]
                            shown = f"{method}, dense S" if inducing else f"Trig, {method} S"
                            draw_points(axes, x, y, index, shown)
                    axes.set_yscale("log")
                axes_row[0].set_ylabel(label)
            for axes, (name, sizes) in zip(grid[1], self.sweeps.items(), strict=True):
                axes.set_xlabel(name)
                set_log_ticks(axes, [int(_size_along(name, size._asdict())) for size in sizes])


def _size_along(name: str, row: Mapping[str, Value]) -> float:
    """Return the number that a sweep varies."""
    varied = {"batch size": "batch_size", "T": "num_samples"}.get(name, "num_features")
    return number(row, varied)


def _measure(ledger: Ledger, method: Method, size: Size) -> Row:
    # Inducing points have no T.
    known = size._replace(num_samples=0) if method == "inducing points" else size

    def compute() -> dict[str, Value]:
        step = compile_step(method, size)
        return {"seconds_per_step": step.seconds(), "temporary_bytes": step.temporary_bytes}

    return ledger.run({"method": method, **known._asdict()}, compute)


class Step(NamedTuple):
    """A compiled value and gradient."""

    call: Callable[[], Any]
    temporary_bytes: int

    def seconds(self) -> float:
        """Return the time of the fastest of several calls."""
        self.call()
        times: list[float] = []
        while len(times) < _LEAST_CALLS or sum(times) < _LEAST_SECONDS:
            began = time.perf_counter()
            self.call()
            times.append(time.perf_counter() - began)
        return min(times)


@in_double
def compile_step(method: Method, size: Size) -> Step:
    """Return the step of a method, on rows that are uniform over a range that grows with M."""
    rng = np.random.default_rng(0)
    # As many features for a lengthscale however many there are, as when they are needed.
    x = rng.uniform(-1.0, 1.0, size.batch_size) * size.num_features / 10
    batch = Batch(x[:, None], np.sin(x) + 0.1 * rng.standard_normal(size.batch_size))
    widest, num_rows = float(np.max(np.abs(x))), _ROWS_PER_BATCH * size.batch_size
    if method == "inducing points":
        points = InducingPoints(Z=np.linspace(-widest, widest, size.num_features)[:, None])
        likelihood = Gaussian(np.log(_NOISE_VARIANCE))
        parameters = SparseVariational.from_rows(*batch, _KERNEL, likelihood, points)
        objective = svgp_objective(num_rows)
    else:
        features = Trig(size.num_features, a=np.pi * (size.num_features // 2) / widest, centre=0.0)
        model = StochasticModel(features, _KERNEL, _NOISE_VARIANCE, method)
        model = model.placed(Domain.around(x[:, None]))
        parameters = model.start()
        objective = partial(model.estimate, num_samples=size.num_samples, num_rows=num_rows)
    parameters, batch = jax.tree.map(jnp.asarray, (parameters, batch))
    key = jax.random.key(0)
    compiled = jax.jit(jax.value_and_grad(objective)).lower(parameters, batch, key).compile()
    analysis = compiled.memory_analysis()
    return Step(
        lambda: jax.block_until_ready(compiled(parameters, batch, key)),
        int(analysis.temp_size_in_bytes) if analysis is not None else 0,
    )


# ---------------------------------------------------------------------- noise

#: The standard deviation that the rule asks for, relative to the slack of the bound.
TARGET = 0.01
Curves = dict[tuple[Sampler, int], list[Row]]


class Draws(NamedTuple):
    """How the bound is estimated: T frequencies in each set, again and again."""

    sampler: Sampler
    num_samples: int
    repeats: int
    seed: int


class Noise(NamedTuple):
    """Which M and T are tried, T relative to M, and how often each is repeated."""

    num_features: tuple[int, ...] = (11, 21, 31, 41, 61, 81, 121)
    ratios: tuple[float, ...] = (0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 8.0)
    most_independent: int = 250
    repeats: int = 300
    seed: int = 0

    @classmethod
    def quick(cls) -> Self:
        """Return smaller settings."""
        return cls((11, 31), (0.8, 2.0, 4.0), most_independent=10, repeats=100)

    def reproduce(self, out: Path, write: Write) -> list[Path]:
        """Return the paths of the figure, of the standard deviations, and of the rule."""
        ledger = Ledger(
            out / "noise.csv",
            ["sampler", "num_features", "num_samples", "repeats", "seed"],
            ["a", "elbo", "slack", "mean", "standard_deviation", "standard_errors_off", "seconds"],
            write,
        )
        data = band.draw_data()
        exact = ExactPosterior(band.KERNEL, band.NOISE_VARIANCE, MeanPrior(), Rows(*data))
        limit = exact.log_marginal_likelihood
        curves: Curves = {}
        for count in self.num_features:
            q = band.collapsed(data, count, band.best_a(data, count, "dense"), "dense")
            for sampler in SAMPLERS:
                curves[sampler, count] = [
                    ledger.run(
                        {"num_features": count, **draws._asdict()},
                        partial(_deviations, q, data, limit, draws),
                    )
                    for draws in self._draws(sampler, count)
                ]
        rule = fit_rule(curves)
        path, figure = out / "noise_rule.csv", out / "noise.png"
        write_rows(path, ["num_features", "num_samples"], rule.points)
        write(f"noise: {rule}")
        _draw_noise(figure, curves, rule)
        return [ledger.path, path, figure]

    def _draws(self, sampler: Sampler, num_features: int) -> list[Draws]:
        """Return the draws for each T; independent ones, which cost O(N T²), for small T only."""
        counts = dict.fromkeys(round(ratio * num_features) for ratio in self.ratios)
        return [
            Draws(sampler, count, self.repeats, self.seed)
            for count in counts
            if sampler == "stratified" or count <= self.most_independent
        ]


def _deviations(q: Approximation, data: band.Data, limit: float, draws: Draws) -> dict[str, Value]:
    """Return how repeated estimates vary around the bound of a dense q(u)."""
    values = estimates(q, data, draws)
    elbo, deviation = q.elbo(*data), float(np.std(values, ddof=1))
    error = deviation / np.sqrt(len(values))
    return {
        "a": float(np.max(np.asarray(q.features.dilation))),
        "elbo": elbo,
        "slack": limit - elbo,
        "mean": float(np.mean(values)),
        "standard_deviation": deviation,
        "standard_errors_off": float((np.mean(values) - elbo) / error),
    }


def estimates(q: Approximation, data: band.Data, draws: Draws) -> NDArray[np.float64]:
    """Return independent estimates of the bound of a dense q(u), (repeats,)."""
    model = StochasticModel(q.features, q.kernel, q.noise_variance, sampler=draws.sampler)
    model = model.placed(Domain.around(data.X))
    parameters = model.start(DenseNormal.of(q.mean, q.covariance))
    # Other draws for each T: else all would be off by chance in the same way.
    key = jax.random.fold_in(jax.random.key(draws.seed), draws.num_samples)
    keys = jax.random.split(key, draws.repeats)
    return model.estimates(parameters, Batch(*data), keys, draws.num_samples)


class Rule(NamedTuple):
    """T = c M^p, fitted to pairs of M and the T that suffices."""

    points: list[tuple[int, float]]
    factor: float
    exponent: float

    def __str__(self) -> str:
        return (
            f"the deviation is {TARGET:.0%} of the slack at T = {self.factor:.2g} M^"
            f"{self.exponent:.2g}, stratified"
        )


def fit_rule(curves: Curves) -> Rule:
    """Return the rule that stratified samples follow."""
    points = []
    for (sampler, count), rows in curves.items():
        relative = _relative(rows)
        too_noisy = np.flatnonzero(np.array(relative) > TARGET)
        if sampler == "independent" or len(too_noisy) == 0 or too_noisy[-1] == len(rows) - 1:
            continue
        # Between the last that is too noisy and the next; with fewer samples than features the
        # deviation may also rise.
        pair = slice(too_noisy[-1], too_noisy[-1] + 2)
        logs = np.log(column(rows[pair], "num_samples"))
        needed = np.interp(-np.log(TARGET), -np.log(relative[pair]), logs)
        points.append((count, float(np.exp(needed))))
    if len(points) < 2:
        return Rule(points, float("nan"), float("nan"))
    exponent, factor = power_law(*zip(*points, strict=True))
    return Rule(points, factor, exponent)


def _relative(rows: Sequence[Row]) -> list[float]:
    """Return the standard deviations relative to the slack."""
    return [number(row, "standard_deviation") / number(row, "slack") for row in rows]


def _draw_noise(path: Path, curves: Curves, rule: Rule) -> None:
    title = "Noise of the Monte Carlo ELBO at its optimum, rows of figure 2"
    with drawn(path, (1, 3), size=(13.0, 4.0), title=title) as grid:
        absolute, relative, needed = grid[0]
        for index, count in enumerate(dict.fromkeys(count for _, count in curves)):
            for sampler, style in zip(SAMPLERS, ("-", ":"), strict=True):
                rows = curves[sampler, count]
                x, y = column(rows, "num_samples"), column(rows, "standard_deviation")
                absolute.plot(x, y, style, color=CURVES[index % len(CURVES)])
            rows = curves["stratified", count]
            x = [number(row, "num_samples") / count for row in rows]
            draw_points(relative, x, _relative(rows), index, f"M = {count}")
        absolute.set(
            title="Solid: stratified samples; dotted: independent",
            xlabel="samples in each set, T",
            ylabel="standard deviation of the ELBO / nats",
            xscale="log",
            yscale="log",
        )
        relative.axhline(TARGET, color=GREY, linestyle="--", linewidth=1.0)
        relative.set(
            title="Relative to the slack, log p(y) − ELBO; stratified",
            xlabel="T / M",
            ylabel="standard deviation / slack",
            yscale="log",
        )
        set_log_ticks(relative, [1, 2, 4, 8])
        _draw_rule(needed, rule)


def _draw_rule(axes: Axes, rule: Rule) -> None:
    if rule.points:
        counts, needed = map(np.array, zip(*rule.points, strict=True))
        axes.plot(counts, needed, "o", color=BLACK)
        axes.plot(counts, rule.factor * counts**rule.exponent, color=BLACK)
    axes.set(
        title=f"T for {TARGET:.0%} of the slack: {rule.factor:.2g} M^{rule.exponent:.2g}",
        xlabel="number of features M",
        ylabel="T",
    )
