"""The closest Gaussian to the posterior of rows, and its bound."""

import numpy as np
import pytest
from scipy.optimize import minimize

from orthogp import GPRegressor
from orthogp.exact.nongaussian import POLISHED, SiteObjective, SiteRows
from orthogp.features import MeanPrior
from orthogp.inference.likelihoods import resolve_likelihood
from orthogp.inference.parameters import learned_slots, pack
from orthogp.kernels import RBF, Matern32
from orthogp.rows import Rows

NAMES = ["poisson", "binomial", "negative-binomial", "gamma"]
NO_MEAN = MeanPrior(0.0, 0.0, np.zeros(1), np.ones(1))


def problem(name, n=6, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 3, (n, 1))
    f = np.sin(2 * X[:, 0])
    sizes = rng.integers(1, 4, n).astype(float)
    drawn = {
        "poisson": lambda: [rng.poisson(sizes * np.exp(f)), sizes],
        "binomial": lambda: [rng.binomial(sizes.astype(int), 1 / (1 + np.exp(-f))), sizes],
        "negative-binomial": lambda: [rng.negative_binomial(2, 2 / (2 + np.exp(f)))],
        "gamma": lambda: [rng.gamma(2.0, sizes * np.exp(f) / 2), sizes],
    }
    return Rows(X, np.column_stack(drawn[name]()).astype(float))


def objective(name, rows, kernel, mean=NO_MEAN, offset=0.2):
    likelihood = resolve_likelihood(name)
    if likelihood.dispersed:
        likelihood = likelihood.with_dispersion(1.7)
    return SiteObjective(kernel, mean, SiteRows(rows, likelihood, offset), likelihood)


def vector_of(own):
    return np.append(pack(own.kernel, own.slots), own.likelihood.shape)


def log_density(likelihood, rows):
    """Return log p(y_n | f_n) as a function of f (n,), from the likelihood's rows one by one."""
    parts = [likelihood.summands(rows.part(np.array([n]))) for n in range(len(rows.X))]

    def of(f):
        total = np.empty_like(f)
        for n, (own, constants) in enumerate(parts):
            zero = np.zeros_like(f[n])
            found = likelihood.local(own.y[0, 0], own.weights[0], f[n], zero)
            total[n] = found.value + likelihood.normaliser(constants, float(own.weights[0]))
        return total

    return of


@pytest.mark.parametrize("name", NAMES)
def test_the_bound_is_the_largest_of_all_gaussians(name):
    """Against a search over means and triangular factors, with quadrature, on four rows."""
    rows, kernel = problem(name, 4), RBF(1.3, 0.8)
    own = objective(name, rows, kernel)
    found = own.ascend(vector_of(own), tolerance=POLISHED)
    K = 1.3 * np.exp(-0.5 * ((rows.X - rows.X.T) / 0.8) ** 2)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    density = log_density(own.likelihood, rows)
    lower = np.tril_indices(4)

    def minus_bound(free):
        m, L = free[:4], np.zeros((4, 4))
        L[lower] = free[4:]
        S = L @ L.T
        f = 0.2 + m[:, None] + np.sqrt(np.diag(S))[:, None] * nodes
        solved = np.linalg.solve(K, S)
        divergence = 0.5 * (
            np.trace(solved) + m @ np.linalg.solve(K, m) - 4 - np.linalg.slogdet(solved)[1]
        )
        return divergence - np.sum(density(f) @ weights)

    start = np.append(np.zeros(4), np.linalg.cholesky(K)[lower])
    best = minimize(minus_bound, start, method="BFGS", options={"gtol": 1e-7, "maxiter": 2000})
    assert found.value == pytest.approx(-best.fun, abs=1e-7)
    np.testing.assert_allclose(found.mean, best.x[:4], atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_finite_differences(name):
    own = objective(name, problem(name, 8), Matern32(0.9, 0.7))
    vector = vector_of(own)
    # The next ascent goes on from there: of q's error the gradient is of the first order.
    own.ascend(vector, tolerance=1e-13)
    found = own.evaluate(vector)
    for i, step in enumerate(1e-4 * np.eye(len(vector))):
        ends = [own.ascend(vector + s, tolerance=1e-13).value for s in (step, -step)]
        assert found.gradient[i] == pytest.approx((ends[0] - ends[1]) / 2e-4, abs=1e-5)
        # The regression's information stands for the curvature: it is positive.
        assert found.information[i, i] > 0


@pytest.mark.parametrize("name", NAMES)
def test_a_smooth_kernel_has_the_bound_and_the_predictions_of_its_lattice(name):
    rows = problem(name, 60)
    y = rows.y[:, 0]
    sizes = {} if rows.y.shape[1] == 1 else {resolve_likelihood(name).size_is: rows.y[:, 1]}
    settings = {"likelihood": name, "learn": False, "wrap_tolerance": 1e-9}
    kernel = RBF(1.0, 1.0)
    exact = GPRegressor(kernel, solver="exact", **settings).fit(rows.X, y, **sizes)
    dense = GPRegressor(kernel, solver="dense", **settings).fit(rows.X, y, **sizes)
    assert (exact.engine_, dense.engine_) == ("exact", "dense")
    assert exact.elbo_ == pytest.approx(dense.elbo_, abs=1e-6)
    grid = np.linspace(0, 3, 9)[:, None]
    for one, other in zip(
        exact.predict(grid, return_std=True), dense.predict(grid, return_std=True), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_rows_of_equal_inputs_are_one_row_of_all_they_say():
    rows = problem("poisson", 6)
    twice = Rows(np.repeat(rows.X, 2, axis=0), np.repeat(rows.y, 2, axis=0))
    weighted = rows._replace(weights=np.full(6, 2.0))
    kernel = RBF(1.0, 1.0)
    found = [objective("poisson", own, kernel) for own in (twice, weighted)]
    assert found[0].size == 6
    one, other = (own.ascend(vector_of(own), tolerance=POLISHED) for own in found)
    assert one.value == pytest.approx(other.value, abs=1e-9)
    np.testing.assert_allclose(one.mean, other.mean, atol=1e-8)


def test_slots_are_those_of_the_kernel():
    own = objective("gamma", problem("gamma"), RBF(1.0, 1.0))
    assert own.slots == learned_slots(own.kernel)
    assert len(vector_of(own)) == 3
