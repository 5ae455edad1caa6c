r"""Figure 3: what a diagonal S costs, for four distributions of the inputs.

N = 1000 inputs, f drawn from a process with RBF kernel, and bounds over the number of features with
kernel, noise and the features' own parameter learned: by L-BFGS on the collapsed bound, and for
Trig features also by Adam on the Monte Carlo bound with the paper's settings.

A dense S can do all that a diagonal one can, and more features all that fewer can. A search may
miss this, as the paper saw; here it begins from several places, the best of the simpler model among
them, and the file says what each of them led to.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.exact.process import ExactObjective
from orthogp.features import MeanPrior
from orthogp.features.trig import Trig
from orthogp.learning.optimise import search
from orthogp.paper import drawing, figure3_plot
from orthogp.paper.closed_form import COVARIANCES, Covariance
from orthogp.paper.figure3_data import INPUTS, KERNEL, NOISE_VARIANCE, draw_data
from orthogp.paper.learning import CollapsedObjective, Hyperparameters, TracedTrig, traced_family
from orthogp.paper.runs import Ledger, Row, Value, Write, number
from orthogp.paper.searches import STARTS, learn_pair
from orthogp.paper.training import Schedule, train

FAMILIES = ("trig", "hermite")


class Plan(NamedTuple):
    """How many rows and features there are, and how the stochastic fits train."""

    num_rows: int = 1000
    num_features: tuple[int, ...] = (11, 15, 21, 25, 31, 35, 41, 45, 51, 55, 61, 65, 71)
    inputs: tuple[str, ...] = tuple(INPUTS)
    schedule: Schedule = Schedule()
    stochastic_features: tuple[int, ...] = (11, 21, 31, 41, 51, 61, 71)
    seed: int = 0


FULL = Plan()
QUICK = Plan(
    num_rows=200,
    num_features=(11, 31),
    inputs=("Gaussian, sd 3", "bimodal, sd 3"),
    schedule=Schedule(max_steps=800, learning_rate=5e-2, repeats=100),
    stochastic_features=(31,),
)


def reproduce(out: Path, plan: Plan, write: Write) -> list[Path]:
    """Return the paths of figure 3 and of its bounds."""
    ledgers = Ledgers.within(out)
    panels = []
    for name in plan.inputs:
        x, y = draw_data(name, plan.num_rows, plan.seed)
        data: dict[str, Value] = {"inputs": name, "num_rows": plan.num_rows, "seed": plan.seed}
        exact = ledgers.exact.run(data, partial(learn_exact, x, y), write)
        limit = number(exact, "log_marginal_likelihood")
        curves = {
            family: _sweep(ledgers.collapsed, data, family, plan, x, y, limit, write)
            for family in FAMILIES
        }
        points: dict[Covariance, list[Row]] = {
            covariance: [
                _train(ledgers.stochastic, data, covariance, count, plan.schedule, x, y, write)
                for count in plan.stochastic_features
            ]
            for covariance in COVARIANCES
        }
        panels.append(figure3_plot.Column(name, limit, curves, points))
    figure = figure3_plot.draw(panels, plan.num_rows)
    return [*ledgers.paths, drawing.save(figure, out / "figure3.png")]


class Ledgers(NamedTuple):
    """The files of the experiment."""

    exact: Ledger
    collapsed: Ledger
    stochastic: Ledger

    @classmethod
    def within(cls, out: Path) -> Ledgers:
        """Return the files in a directory."""
        data = ["inputs", "num_rows", "seed"]
        learned = ["variance", "lengthscale", "noise_variance", "scale"]
        return cls(
            Ledger(
                out / "figure3_exact.csv",
                data,
                ["log_marginal_likelihood", *learned[:-1], "seconds"],
            ),
            Ledger(
                out / "figure3.csv",
                [*data, "family", "covariance", "num_features"],
                [
                    "elbo",
                    *(f"elbo_from_{start}" for start in STARTS),
                    *learned,
                    "at_limit",
                    "below_exact",
                    "above_fewer_features",
                    "above_diagonal",
                    "seconds",
                ],
            ),
            Ledger(
                out / "figure3_stochastic.csv",
                [*data, "covariance", "num_features", *Schedule._fields],
                [
                    "average_elbo",
                    "standard_error",
                    "elbo",
                    "collapsed_elbo",
                    *learned,
                    "seconds",
                ],
            ),
        )

    @property
    def paths(self) -> list[Path]:
        """Where they are."""
        return [self.collapsed.path, self.exact.path, self.stochastic.path]


# ---------------------------------------------------------------------- the exact likelihood


def learn_exact(x: NDArray[np.float64], y: NDArray[np.float64]) -> dict[str, Value]:
    """Return the largest log marginal likelihood, and where it is."""
    objective = ExactObjective(KERNEL, MeanPrior(), x[:, None], y)
    start = np.log([float(KERNEL.variance), float(KERNEL.lengthscale), NOISE_VARIANCE])
    found = search(
        objective.value_and_gradient,
        start,
        start - 3.0,
        start + 3.0,
        max_iterations=60,
        out_of_time=lambda: False,
    )
    variance, lengthscale, noise_variance = np.exp(found.x).tolist()
    return {
        "log_marginal_likelihood": found.value,
        "variance": variance,
        "lengthscale": lengthscale,
        "noise_variance": noise_variance,
    }


# ---------------------------------------------------------------------- collapsed bounds


def _sweep(
    ledger: Ledger,
    data: dict[str, Value],
    family: str,
    plan: Plan,
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    limit: float,
    write: Write,
) -> dict[Covariance, list[Row]]:
    """Return the rows of one family for all numbers of features, each learned from the last."""
    rows: dict[Covariance, list[Row]] = {covariance: [] for covariance in COVARIANCES}
    for count in plan.num_features:
        traced = traced_family(family, count, x)
        objectives = [CollapsedObjective(traced, covariance, x, y) for covariance in COVARIANCES]
        fewer = [own[-1] for own in rows.values() if own]
        settings = [
            {**data, "family": family, "covariance": covariance, "num_features": count}
            for covariance in COVARIANCES
        ]
        pair = ledger.run_together(
            settings, partial(learn_pair, objectives, x, fewer, limit), write
        )
        for covariance, row in zip(COVARIANCES, pair, strict=True):
            rows[covariance].append(row)
    return rows


# ---------------------------------------------------------------------- stochastic training


def _train(
    ledger: Ledger,
    data: dict[str, Value],
    covariance: Covariance,
    num_features: int,
    schedule: Schedule,
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    write: Write,
) -> Row:
    """Return the row of a fit of Trig features by Adam, from the true hyperparameters."""
    family = TracedTrig.for_inputs(num_features, x)

    def compute() -> dict[str, Value]:
        features = Trig(num_features, a=family.first_scale(x), centre=0.0)
        q, average, error = train(
            x[:, None],
            y,
            features,
            KERNEL,
            NOISE_VARIANCE,
            covariance,
            ("kernel", "noise", "dilation"),
            schedule,
        )
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

    settings = {**data, "covariance": covariance, "num_features": num_features}
    return ledger.run({**settings, **schedule._asdict()}, compute, write)
