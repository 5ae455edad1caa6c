"""The best q(u) of Trig features: its predictions, and its bound."""

import numpy as np
import pytest

from orthogp.features.bands import Trig
from orthogp.kernels import RBF
from orthogp.paper.run import Approximation
from orthogp.stochastic import StochasticModel
from orthogp.stochastic.normals import Covariance

TRIG_KERNEL = RBF(1.3, 0.6)
TRIG_NOISE = 0.2
X = np.random.default_rng(0).uniform(-1, 1.5, (12, 1))
Y = np.sin(3 * X[:, 0])
FEATURES = Trig(5, a=4.0, centre=0.0)


def best(covariance: Covariance) -> Approximation:
    model = StochasticModel(FEATURES, TRIG_KERNEL, TRIG_NOISE, covariance)
    return Approximation.collapsed(model, X, Y)


def test_best_dense_bound_is_that_of_titsias() -> None:
    Phi = FEATURES.evaluate(TRIG_KERNEL, X)
    covariance = Phi @ Phi.T + TRIG_NOISE * np.eye(len(X))
    fit = Y @ np.linalg.solve(covariance, Y) + np.linalg.slogdet(2 * np.pi * covariance)[1]
    left_out = np.sum(1.3 - np.sum(Phi**2, axis=1))
    expected = -0.5 * fit - left_out / (2 * TRIG_NOISE)
    assert best("dense").elbo(X, Y) == pytest.approx(expected, rel=1e-10)


def test_best_diagonal_bound_lacks_the_gap_of_hadamard() -> None:
    Phi = FEATURES.evaluate(TRIG_KERNEL, X)
    B = np.eye(5) + Phi.T @ Phi / TRIG_NOISE
    gap = 0.5 * (np.sum(np.log(np.diag(B))) - np.linalg.slogdet(B)[1])
    assert gap > 0.1
    found = best("dense").elbo(X, Y) - best("diagonal").elbo(X, Y)
    assert found == pytest.approx(gap, rel=1e-9)


@pytest.mark.parametrize("covariance", ["dense", "diagonal"])
def test_no_other_covariance_of_its_kind_has_a_larger_bound(covariance: Covariance) -> None:
    q = best(covariance)
    rng = np.random.default_rng(1)
    for _ in range(10):
        noise = 0.05 * rng.standard_normal((5, 5))
        factor = np.eye(5) + (noise if covariance == "dense" else np.diag(np.diag(noise)))
        other = q._replace(covariance=factor @ q.covariance @ factor.T)
        assert other.elbo(X, Y) < q.elbo(X, Y)
        assert q._replace(mean=q.mean + noise[0]).elbo(X, Y) < q.elbo(X, Y)


def test_prediction_is_that_of_the_joint_distribution() -> None:
    # f(x) given u is N(φᵀu, k(0) − φᵀφ): the moments of φᵀu + what is left out, by sampling u.
    q = best("dense")
    x = np.array([[0.3], [2.0]])
    mean, variance = q.predict(x)
    Phi = FEATURES.evaluate(TRIG_KERNEL, x)
    u = np.random.default_rng(2).multivariate_normal(q.mean, q.covariance, 200_000)
    # Standard errors are 1/√200000 = 0.22% of a deviation: 5 of them.
    spread = np.std(u @ Phi.T, axis=0)
    np.testing.assert_allclose(mean, np.mean(u @ Phi.T, axis=0), atol=0.011 * spread.max())
    left_out = 1.3 - np.sum(Phi**2, axis=1)
    np.testing.assert_allclose(variance, left_out + spread**2, rtol=0.02)
    assert left_out[1] > 0.5
