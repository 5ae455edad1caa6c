r"""How noisy the Monte Carlo bound is: the paper's open question of how T must grow with M.

At the collapsed optimum for the rows of figure 2, with the best a for each M, the bound is
estimated many times from two sets of T frequencies. All rows are in every batch, so that the
standard deviation is that of the estimator alone. What it must be small against is the slack of the
bound, log p(y) − ELBO, which says how much there is to gain by more features. From the T at which
it falls to a hundredth of that, by interpolation for each M, follows the rule

    T = c M^p      (least squares in the logarithms)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from orthogp.exact.process import ExactPosterior
from orthogp.features import MeanPrior, SpectralFeatures
from orthogp.inference.frequency_samples import Sampler
from orthogp.inference.stochastic import estimate_elbo
from orthogp.inference.variational import DenseNormal
from orthogp.kernels import Kernel
from orthogp.paper import drawing
from orthogp.paper.closed_form import Approximation
from orthogp.paper.figure2 import (
    KERNEL,
    NOISE_VARIANCE,
    Data,
    best_a,
    collapsed,
    draw_data,
)
from orthogp.paper.runs import Ledger, Row, Value, Write, number
from orthogp.precision import AnyArray, in_double
from orthogp.tables import write_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SAMPLERS: tuple[Sampler, ...] = get_args(Sampler)
#: The standard deviation that the rule asks for, relative to the slack of the bound.
TARGET = 0.01


class Plan(NamedTuple):
    """Which M and T are tried, T relative to M, and how often each is repeated."""

    num_features: tuple[int, ...] = (11, 21, 31, 41, 61, 81, 121)
    ratios: tuple[float, ...] = (0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 8.0)
    most_independent: int = 250
    repeats: int = 300
    seed: int = 0


FULL = Plan()
QUICK = Plan(num_features=(11, 31), ratios=(0.8, 2.0, 4.0), most_independent=10, repeats=100)


def reproduce(out: Path, plan: Plan, write: Write) -> list[Path]:
    """Return the paths of the figure, of the standard deviations, and of the rule they follow."""
    ledger = Ledger(
        out / "noise.csv",
        ["sampler", "num_features", "num_samples", "repeats", "seed"],
        ["a", "elbo", "slack", "mean", "standard_deviation", "standard_errors_off", "seconds"],
    )
    data = draw_data()
    limit = ExactPosterior(KERNEL, NOISE_VARIANCE, MeanPrior(), *data).log_marginal_likelihood
    curves: Curves = {}
    for count in plan.num_features:
        q = collapsed(data, count, best_a(data, count, "dense"), "dense")
        for sampler in SAMPLERS:
            curves[sampler, count] = [
                _measure(ledger, q, data, limit, sampler, num_samples, plan, write)
                for num_samples in dict.fromkeys(round(ratio * count) for ratio in plan.ratios)
                # Independent samples cost O(N T²), and many of them teach nothing new.
                if sampler == "stratified" or num_samples <= plan.most_independent
            ]
    rule = fit_rule(curves)
    path = out / "noise_rule.csv"
    write_rows(path, ["num_features", "num_samples"], rule.points)
    write(f"noise: {rule}")
    return [ledger.path, path, drawing.save(_draw(curves, rule), out / "noise.png")]


def _measure(
    ledger: Ledger,
    q: Approximation,
    data: Data,
    limit: float,
    sampler: Sampler,
    num_samples: int,
    plan: Plan,
    write: Write,
) -> Row:
    """Return the row of repeated estimates with one number of samples."""

    def compute() -> dict[str, Value]:
        values = estimates(q, data, sampler, num_samples, plan.repeats, plan.seed)
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

    settings: dict[str, Value] = {
        "sampler": sampler,
        "num_features": len(q.mean),
        "num_samples": num_samples,
        "repeats": plan.repeats,
        "seed": plan.seed,
    }
    return ledger.run(settings, compute, write)


def estimates(
    q: Approximation, data: Data, sampler: Sampler, num_samples: int, repeats: int, seed: int
) -> NDArray[np.float64]:
    """Return independent estimates of the bound of a dense q(u), (repeats,)."""
    lower, upper = data.X.min(axis=0), data.X.max(axis=0)
    return np.asarray(
        _estimates(
            q.features.placed(q.kernel, lower, upper),
            q.kernel,
            np.asarray(q.noise_variance),
            DenseNormal.of(q.mean, q.covariance),
            data,
            seed,
            num_samples,
            repeats,
            sampler,
        )
    )


@in_double
@eqx.filter_jit
def _estimates(
    features: SpectralFeatures,
    kernel: Kernel,
    noise_variance: NDArray,
    q: DenseNormal,
    data: Data,
    seed: int,
    num_samples: int,
    repeats: int,
    sampler: Sampler,
) -> AnyArray:
    def estimate(key: jax.Array) -> AnyArray:
        return estimate_elbo(
            features,
            kernel,
            jnp.asarray(noise_variance),
            q,
            *data,
            key,
            num_samples=num_samples,
            num_rows=len(data.y),
            sampler=sampler,
        )

    # Other draws for each T: else all would be off by chance in the same way.
    key = jax.random.fold_in(jax.random.key(seed), num_samples)
    return jax.lax.map(estimate, jax.random.split(key, repeats))


# ---------------------------------------------------------------------- the rule

Curves = dict[tuple[Sampler, int], list[Row]]


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
        relative = [number(row, "standard_deviation") / number(row, "slack") for row in rows]
        too_noisy = np.flatnonzero(np.array(relative) > TARGET)
        if sampler == "independent" or len(too_noisy) == 0 or too_noisy[-1] == len(rows) - 1:
            continue
        # Between the last that is too noisy and the next; with fewer samples than features the
        # deviation may also rise.
        pair = slice(too_noisy[-1], too_noisy[-1] + 2)
        num_samples = [number(row, "num_samples") for row in rows[pair]]
        needed = np.interp(-np.log(TARGET), -np.log(relative[pair]), np.log(num_samples))
        points.append((count, float(np.exp(needed))))
    if len(points) < 2:
        return Rule(points, float("nan"), float("nan"))
    exponent, factor = drawing.power_law(*zip(*points, strict=True))
    return Rule(points, factor, exponent)


# ---------------------------------------------------------------------- drawing


def _draw(curves: Curves, rule: Rule) -> Figure:
    counts = list(dict.fromkeys(count for _, count in curves))
    with drawing.style():
        figure, grid = drawing.panels(1, 3, size=(13.0, 4.0))
        drawing.set_title(figure, "Noise of the Monte Carlo ELBO at its optimum, rows of figure 2")
        absolute, relative, needed = grid[0]
        for index, count in enumerate(counts):
            _draw_deviations(absolute, curves, count, index)
            rows = curves["stratified", count]
            drawing.draw_points(
                relative,
                [number(row, "num_samples") / count for row in rows],
                [number(row, "standard_deviation") / number(row, "slack") for row in rows],
                index,
                f"M = {count}",
            )
        absolute.set(
            title="Solid: stratified samples; dotted: independent",
            xlabel="samples in each set, T",
            ylabel="standard deviation of the ELBO / nats",
            xscale="log",
            yscale="log",
        )
        relative.axhline(TARGET, color=drawing.GREY, linestyle="--", linewidth=1.0)
        relative.set(
            title="Relative to the slack, log p(y) − ELBO; stratified",
            xlabel="T / M",
            ylabel="standard deviation / slack",
            yscale="log",
        )
        drawing.set_log_ticks(relative, [1, 2, 4, 8])
        _draw_rule(needed, rule)
        drawing.add_legend(figure)
    return figure


def _draw_deviations(axes: Axes, curves: Curves, count: int, index: int) -> None:
    for sampler in SAMPLERS:
        rows = curves[sampler, count]
        axes.plot(
            [number(row, "num_samples") for row in rows],
            [number(row, "standard_deviation") for row in rows],
            color=drawing.CURVES[index % len(drawing.CURVES)],
            linestyle="-" if sampler == "stratified" else ":",
        )


def _draw_rule(axes: Axes, rule: Rule) -> None:
    if rule.points:
        counts, needed = map(np.array, zip(*rule.points, strict=True))
        axes.plot(counts, needed, "o", color=drawing.BLACK)
        axes.plot(counts, rule.factor * counts**rule.exponent, color=drawing.BLACK)
    axes.set(
        title=f"T for {TARGET:.0%} of the slack: {rule.factor:.2g} M^{rule.exponent:.2g}",
        xlabel="number of features M",
        ylabel="T",
    )
