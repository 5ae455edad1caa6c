r"""How noisy the Monte Carlo bound is: the paper's open question of how T must grow with M.

At the collapsed optimum for the rows of figure 2, with the best a for each M, the bound is
estimated many times from two sets of T frequencies. All rows are in every batch, so that the
standard deviation is due to the estimator alone. It must be small against the slack of the
bound, log p(y) − ELBO, which says how much there is to gain by more features. From the T at which
it falls to a hundredth of that, by interpolation for each M, follows the rule

    T = c M^p      (least squares in the logarithms)
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from orthogp.exact.process import ExactPosterior
from orthogp.features import MeanPrior
from orthogp.files.writing import write_rows
from orthogp.paper.closed_form import Approximation
from orthogp.paper.figure2 import KERNEL, NOISE_VARIANCE, Data, best_a, collapsed, draw_data
from orthogp.paper.run import (
    BLACK,
    CURVES,
    GREY,
    Ledger,
    Row,
    Value,
    Write,
    add_legend,
    draw_points,
    figure_style,
    make_panels,
    number,
    power_law,
    save_figure,
    set_log_ticks,
    set_title,
)
from orthogp.rows import Rows
from orthogp.stochastic.bound import StochasticModel
from orthogp.stochastic.frequencies import SAMPLERS, Sampler
from orthogp.stochastic.training import Batch
from orthogp.stochastic.variational import DenseNormal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
        write,
    )
    data = draw_data()
    limit = ExactPosterior(KERNEL, NOISE_VARIANCE, MeanPrior(), Rows(*data)).log_marginal_likelihood
    curves: Curves = {}
    for count in plan.num_features:
        q = collapsed(data, count, best_a(data, count, "dense"), "dense")
        for sampler in SAMPLERS:
            curves[sampler, count] = [
                ledger.run(
                    {"num_features": count, **draws._asdict()},
                    partial(_measure, q, data, limit, draws),
                )
                for draws in _draws(sampler, count, plan)
            ]
    rule = fit_rule(curves)
    path = out / "noise_rule.csv"
    write_rows(path, ["num_features", "num_samples"], rule.points)
    write(f"noise: {rule}")
    return [ledger.path, path, save_figure(_draw(curves, rule), out / "noise.png")]


def _draws(sampler: Sampler, num_features: int, plan: Plan) -> list[Draws]:
    """Return the draws for each T, without those that teach nothing new."""
    counts = dict.fromkeys(round(ratio * num_features) for ratio in plan.ratios)
    return [
        Draws(sampler, count, plan.repeats, plan.seed)
        for count in counts
        # Independent samples cost O(N T²).
        if sampler == "stratified" or count <= plan.most_independent
    ]


class Draws(NamedTuple):
    """How the bound is estimated: T frequencies in each set, again and again."""

    sampler: Sampler
    num_samples: int
    repeats: int
    seed: int


def _measure(q: Approximation, data: Data, limit: float, draws: Draws) -> dict[str, Value]:
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


def estimates(q: Approximation, data: Data, draws: Draws) -> NDArray[np.float64]:
    """Return independent estimates of the bound of a dense q(u), (repeats,)."""
    model = StochasticModel(q.features, q.kernel, q.noise_variance, sampler=draws.sampler)
    model = model.placed(data.X)
    parameters = model.start(DenseNormal.of(q.mean, q.covariance))
    # Other draws for each T: else all would be off by chance in the same way.
    key = jax.random.fold_in(jax.random.key(draws.seed), draws.num_samples)
    keys = jax.random.split(key, draws.repeats)
    return model.estimates(parameters, Batch(*data), keys, draws.num_samples)


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
    exponent, factor = power_law(*zip(*points, strict=True))
    return Rule(points, factor, exponent)


# ---------------------------------------------------------------------- drawing


def _draw(curves: Curves, rule: Rule) -> Figure:
    counts = list(dict.fromkeys(count for _, count in curves))
    with figure_style():
        figure, grid = make_panels(1, 3, size=(13.0, 4.0))
        set_title(figure, "Noise of the Monte Carlo ELBO at its optimum, rows of figure 2")
        absolute, relative, needed = grid[0]
        for index, count in enumerate(counts):
            _draw_deviations(absolute, curves, count, index)
            rows = curves["stratified", count]
            draw_points(
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
        relative.axhline(TARGET, color=GREY, linestyle="--", linewidth=1.0)
        relative.set(
            title="Relative to the slack, log p(y) − ELBO; stratified",
            xlabel="T / M",
            ylabel="standard deviation / slack",
            yscale="log",
        )
        set_log_ticks(relative, [1, 2, 4, 8])
        _draw_rule(needed, rule)
        add_legend(figure)
    return figure


def _draw_deviations(axes: Axes, curves: Curves, count: int, index: int) -> None:
    for sampler in SAMPLERS:
        rows = curves[sampler, count]
        axes.plot(
            [number(row, "num_samples") for row in rows],
            [number(row, "standard_deviation") for row in rows],
            color=CURVES[index % len(CURVES)],
            linestyle="-" if sampler == "stratified" else ":",
        )


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
