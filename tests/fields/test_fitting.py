"""Where learning with very many features begins."""

from __future__ import annotations

import time

import numpy as np
import pytest

from orthogp.features import MeanPrior
from orthogp.fields.fitting import IterativeFitter
from orthogp.kernels import Matern12
from orthogp.learning.problem import FitSettings, Progress, Start
from orthogp.rows import Domain
from orthogp.statistics import FourierStatistics

GOOD, BAD = Start(Matern12(1.0, 0.5), 4e-3), Start(Matern12(1.0, 0.4), 10.0)


@pytest.mark.parametrize(("start", "rival"), [(BAD, GOOD), (GOOD, BAD), (GOOD, None)])
def test_learning_begins_where_the_evidence_is_larger(start, rival):
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (3000, 1))
    y = np.sin(3 * X[:, 0]) + 0.1 * np.sin(90 * X[:, 0]) + 0.02 * rng.standard_normal(3000)
    fitter = IterativeFitter(
        lambda lattice: FourierStatistics.from_data(lattice, X, y),
        3000.0,
        Domain(np.zeros(1), np.full(1, 10.0)),
        np.full(1, 10.0),
        MeanPrior(),
        # No time to learn: where it begins it ends, but for the variances' common factor.
        FitSettings(solver="iterative", deadline=time.monotonic()),
        1,
        Progress(),
    )
    fit = fitter.fit(start, rival=rival)
    assert float(fit.kernel.parameters()["lengthscale"]) == pytest.approx(0.5)
    assert fit.num_evaluations == (1 if rival is None else 2)
