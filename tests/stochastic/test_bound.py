"""The Monte Carlo bound: written out, unbiased in value and gradient, and as noisy as stated."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from scipy.special import expit

from orthogp import InputError
from orthogp.features.bands import Box, Polynomial, Trig
from orthogp.features.hermite import Hermite
from orthogp.features.spectral import SpectralFeatures
from orthogp.inference.parameters import unpack
from orthogp.kernels import RBF, Kernel, Matern32, Matern52
from orthogp.stochastic import StochasticModel
from orthogp.stochastic.bound import Parameters, logistic_terms
from orthogp.stochastic.frequencies import (
    check_samples,
    draw_pair,
    draw_samples,
    estimate_marginals,
)
from orthogp.stochastic.normals import DenseNormal, DiagonalNormal, Normal, prior_normal
from orthogp.stochastic.training import Batch

pytestmark = pytest.mark.usefixtures("double")

slow = pytest.mark.slow

FAMILIES = [
    Trig(11, a=8.0),
    Hermite(9, r=0.5),
    Polynomial(9, "chebyshev", a=6.0),
    pytest.param(Trig(10, a=8.0), marks=slow),
    pytest.param(Trig(1, a=8.0), marks=slow),
    pytest.param(Polynomial(9, "legendre", a=6.0), marks=slow),
    pytest.param(Polynomial(8, "laguerre", a=2.0), marks=slow),
    pytest.param(Box(9, width=1.5), marks=slow),
]


class Wavelets(Trig):
    """A family defined here: Trig's members without its formulas in JAX."""

    traced_basis = SpectralFeatures.traced_basis


def some_normals(size: int, rng: np.random.Generator) -> list[Normal]:
    mean = rng.standard_normal(size)
    root = rng.standard_normal((size, size)) / np.sqrt(size)
    return [
        DenseNormal.of(mean, root @ root.T + 0.1 * np.eye(size)),
        DiagonalNormal(mean, rng.standard_normal(size)),
    ]


def written_out(
    family: SpectralFeatures, kernel: Kernel, X: np.ndarray, u: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Σ_i w_i √(S(ω_i) ∏c) ∏ basis(u_i) trig(ω_i·x), (n, m)."""
    orders = np.array(family.orders)
    c = np.broadcast_to(np.asarray(family.dilation, dtype=float), (X.shape[1],))
    omegas = c * u
    densities = np.asarray(jax.vmap(kernel.spectral_density)(jnp.asarray(omegas)))
    psi = np.ones((len(orders), len(u)))
    for d in range(X.shape[1]):
        psi *= family.basis(u[:, d], int(orders[:, d].max()) + 1)[orders[:, d]]
    psi *= weights * np.sqrt(densities * np.prod(c))
    phases = (X - np.asarray(family.centre)) @ omegas.T
    return np.where(family.odd(orders), np.sin(phases) @ psi.T, np.cos(phases) @ psi.T)


@pytest.mark.slow
@pytest.mark.parametrize("num_samples", [5, pytest.param(16, marks=slow)])
@pytest.mark.parametrize("sampler", [pytest.param("stratified", marks=slow), "independent"])
@pytest.mark.parametrize(
    "family", [*FAMILIES, pytest.param(Wavelets(7, a=8.0), marks=slow)], ids=repr
)
def test_estimates_are_those_written_out(
    family: SpectralFeatures, sampler: Any, num_samples: int
) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 1, (7, 1))
    kernel = Matern52(variance=1.3, lengthscale=0.4)
    family = family.placed(kernel, X.min(axis=0), X.max(axis=0))
    pair = draw_pair(family, num_samples, sampler, jax.random.key(num_samples))
    Phi, other = (
        written_out(family, kernel, X, np.asarray(s.u), np.asarray(s.weights)) for s in pair
    )
    for q in some_normals(family.num_features, rng):
        found = estimate_marginals(family, kernel, q, X, pair)
        np.testing.assert_allclose(found.first, Phi @ q.mean, rtol=0, atol=1e-10)
        np.testing.assert_allclose(found.second, other @ q.mean, rtol=0, atol=1e-10)
        D = np.asarray(q.covariance()) - np.eye(family.num_features)
        form = 1.3 + np.einsum("nm,mk,nk->n", Phi, D, other)
        np.testing.assert_allclose(found.variance, form, rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["independent", "stratified"])
def test_two_columns_are_those_written_out(sampler: Any) -> None:
    rng = np.random.default_rng(1)
    X = rng.uniform(-1, 1, (5, 2))
    kernel = RBF(variance=0.8, lengthscale=np.array([0.5, 0.9]))
    family = Trig(15, a=(6.0, 4.0)).placed(kernel, X.min(axis=0), X.max(axis=0))
    pair = draw_pair(family, 40, sampler, jax.random.key(0))
    assert len(pair[0].u) == (36 if sampler == "stratified" else 40)
    Phi, other = (
        written_out(family, kernel, X, np.asarray(s.u), np.asarray(s.weights)) for s in pair
    )
    for q in some_normals(family.num_features, rng):
        found = estimate_marginals(family, kernel, q, X, pair)
        D = np.asarray(q.covariance()) - np.eye(family.num_features)
        form = 0.8 + np.einsum("nm,mk,nk->n", Phi, D, other)
        np.testing.assert_allclose(found.first, Phi @ q.mean, rtol=0, atol=1e-11)
        np.testing.assert_allclose(found.variance, form, rtol=0, atol=1e-11)


# ---------------------------------------------------------------------- unbiased


TRIG, HERMITE = Trig(7, a=6.0), Hermite(6, r=0.6)
MATERN, SMOOTH = Matern32(variance=1.2, lengthscale=0.5), RBF(lengthscale=0.4)


def exact_elbo(
    parameters: Parameters, model: StochasticModel, X: np.ndarray, y: np.ndarray
) -> jax.Array:
    """The bound by Gauss–Legendre quadrature of every φ_m, dense throughout."""
    family = model.features
    kernel = unpack(model.kernel, model.slots, parameters.log_kernel)
    size = family.num_features
    reach = family.reach(size)
    nodes, weights = np.polynomial.legendre.leggauss(120)
    c = jnp.exp(parameters.log_dilation)[0]
    omegas = c * reach * nodes
    S = jax.vmap(kernel.spectral_density)(omegas[:, None])
    psi = family.basis(reach * nodes, size) * (reach * weights * jnp.sqrt(c * S))
    phases = jnp.outer(X[:, 0] - np.asarray(family.centre)[0], omegas)
    odd = family.odd(np.array(family.orders))
    Phi = jnp.where(odd, jnp.sin(phases) @ psi.T, jnp.cos(phases) @ psi.T)
    q, noise = parameters.q, jnp.exp(parameters.log_noise_variance)
    mean = Phi @ q.mean
    covariance = q.covariance()
    variance = kernel.k(jnp.zeros(1)) + jnp.sum((Phi @ covariance - Phi) * Phi, axis=1)
    fit = -0.5 * jnp.sum(jnp.log(2 * np.pi * noise) + ((y - mean) ** 2 + variance) / noise)
    excess = jnp.trace(covariance) + q.mean @ q.mean - size
    return fit - 0.5 * (excess - jnp.linalg.slogdet(covariance)[1])


def z_scores(estimate: Callable, exact: Callable, parameters: Any, draws: int) -> tuple[float, int]:
    """The largest |z| of value and gradient entries over independent draws, and their number."""

    @jax.jit
    def all_of(parameters):
        keys = jax.random.split(jax.random.key(7), draws)
        return lax.map(lambda key: jax.value_and_grad(estimate)(parameters, key), keys)

    found = [np.asarray(leaf).reshape(draws, -1) for leaf in jax.tree.leaves(all_of(parameters))]
    truth = jax.tree.leaves(jax.value_and_grad(exact)(parameters))
    found = np.concatenate(found, axis=1)
    truth = np.concatenate([np.ravel(leaf) for leaf in truth])
    error = found.mean(axis=0) - truth
    # Entries that no estimate depends on (above L's diagonal) are zero, not nearly zero.
    moving = found.std(axis=0) > 0
    assert np.all(error[~moving] == 0)
    z = error[moving] / (found.std(axis=0)[moving] / np.sqrt(draws))
    return float(np.max(np.abs(z))), int(moving.sum())


@pytest.mark.parametrize(
    ("family", "kernel", "covariance"),
    [
        (TRIG, SMOOTH, "diagonal"),
        pytest.param(TRIG, MATERN, "dense", marks=slow),
        pytest.param(HERMITE, MATERN, "diagonal", marks=slow),
        pytest.param(HERMITE, SMOOTH, "dense", marks=slow),
        pytest.param(TRIG, SMOOTH, "dense", marks=slow),
        pytest.param(TRIG, MATERN, "diagonal", marks=slow),
        pytest.param(HERMITE, MATERN, "dense", marks=slow),
        pytest.param(HERMITE, SMOOTH, "diagonal", marks=slow),
    ],
)
def test_value_and_gradients_are_unbiased(
    family: SpectralFeatures, kernel: Kernel, covariance: str
) -> None:
    """Batches of 6 of 24 rows, T below the number of features; gradient in m, S, kernel, σ², a.

    Some 500 z-scores in all eight cases: none exceeds 5.5 but with probability 2e-5, were they
    normal; averages over 4,000 draws are nearly so.
    """
    rng = np.random.default_rng(3)
    X, y = rng.uniform(-1.5, 1.5, (24, 1)), rng.standard_normal(24)
    family = family.placed(kernel, X.min(axis=0), X.max(axis=0))
    size = family.num_features
    dense, diagonal = some_normals(size, rng)
    model = StochasticModel(family, kernel, 0.3)
    parameters = jax.tree.map(
        jnp.asarray, model.start(dense if covariance == "dense" else diagonal)
    )

    def estimate(parameters: Parameters, key: jax.Array) -> jax.Array:
        batch, frequencies = jax.random.split(key)
        chosen = jax.random.choice(batch, 24, (6,), replace=False)
        rows = Batch(jnp.asarray(X)[chosen], jnp.asarray(y)[chosen])
        return model.estimate(parameters, rows, frequencies, num_samples=5, num_rows=24)

    exact = partial(exact_elbo, model=model, X=X, y=y)
    worst, _ = z_scores(estimate, exact, parameters, draws=4000)
    assert worst < 5.5


# ---------------------------------------------------------------------- noise


def figure_two_at_the_optimum() -> tuple[Any, ...]:
    rng = np.random.default_rng(1)
    x = np.sort(rng.uniform(-3, 3, 80))
    z = np.sqrt(5) * np.abs(x[:, None] - x) / 0.2
    K = (1 + z + z**2 / 3) * np.exp(-z)
    root = np.linalg.cholesky(K + 1e-10 * np.eye(80))
    y = root @ rng.standard_normal(80) + 0.03 * rng.standard_normal(80)
    kernel = Matern52(variance=1.0, lengthscale=0.2)
    family = replace(Trig(31, a=16.0), centre=np.zeros(1)).placed(
        kernel, np.full(1, -3.0), np.full(1, 3.0)
    )
    Phi = family.evaluate(kernel, x[:, None])
    covariance = np.linalg.inv(np.eye(31) + Phi.T @ Phi / 9e-4)
    q = DenseNormal.of(covariance @ Phi.T @ y / 9e-4, covariance)
    return family, kernel, q, x[:, None], y


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampler", "num_samples", "stated"),
    [
        ("stratified", 62, 5.7),
        ("stratified", 200, 0.54),
        ("independent", 100, 5000.0),
        ("stratified", 31, 53.0),
        ("stratified", 100, 2.4),
        ("stratified", 400, 0.14),
        ("stratified", 800, 0.034),
        ("independent", 31, 9100.0),
        ("independent", 62, 6900.0),
        ("independent", 200, 3500.0),
    ],
)
def test_noise_is_that_of_the_table(sampler: Any, num_samples: int, stated: float) -> None:
    """docs/mathematics.md; a standard deviation from 800 draws is itself known to 2.5 %."""
    family, kernel, q, X, y = figure_two_at_the_optimum()

    model = StochasticModel(family, kernel, 9e-4, sampler=sampler)
    keys = jax.random.split(jax.random.key(0), 800)
    found = model.estimates(model.start(q), Batch(X, y), keys, num_samples)
    assert float(np.std(found)) == pytest.approx(stated, rel=0.2)


# ---------------------------------------------------------------------- parts


def test_stratified_samples_are_an_even_grid_with_one_offset() -> None:
    family = Trig(9, a=3.0).placed(RBF(), np.zeros(1), np.ones(1))
    samples = draw_samples(family, 10, "stratified", jax.random.key(2))
    steps = np.diff(np.asarray(samples.u)[:, 0])
    np.testing.assert_allclose(steps, 0.2, atol=1e-14)
    assert -1 <= float(samples.u[0, 0]) < -0.8
    np.testing.assert_allclose(samples.weights, 0.2)


def test_polya_gamma_terms_bound_the_log_likelihood_and_touch_it() -> None:
    f = np.linspace(-6, 6, 41)
    for y in (0.0, 1.0):
        truth = np.log(expit((2 * y - 1) * f))
        for c in (0.0, 1e-5, 0.5, 3.0, 40.0):
            terms = logistic_terms(jnp.full(41, y), jnp.full(41, c**2))
            bound = terms.constant + terms.slope * f - 0.5 * terms.precision * f**2
            assert np.all(np.asarray(bound) <= truth + 1e-9)
        touching = logistic_terms(jnp.full(41, y), jnp.asarray(f**2))
        value = touching.constant + touching.slope * f - 0.5 * touching.precision * f**2
        np.testing.assert_allclose(value, truth, atol=1e-9)


@pytest.mark.parametrize("covariance", ["dense", "diagonal"])
def test_normals_agree_with_their_covariance(covariance: str) -> None:
    rng = np.random.default_rng(5)
    q = prior_normal(covariance, 6)
    q = jax.tree.map(lambda leaf: leaf + 0.3 * rng.standard_normal(leaf.shape), q)
    S = np.asarray(q.covariance())
    B = rng.standard_normal((6, 4))
    np.testing.assert_allclose(q.times(B), S @ B, atol=1e-13)
    assert float(q.trace()) == pytest.approx(np.trace(S))
    assert float(q.log_determinant()) == pytest.approx(np.linalg.slogdet(S)[1])
    excess = np.trace(S) + q.mean @ q.mean - 6 - np.linalg.slogdet(S)[1]
    assert float(q.divergence()) == pytest.approx(0.5 * excess)


@pytest.mark.parametrize("covariance", ["full", 2, True])
def test_unknown_covariances_are_refused(covariance: Any) -> None:
    with pytest.raises(InputError, match="'dense', 'diagonal', got"):
        prior_normal(covariance, 6)


@pytest.mark.parametrize("num_samples", [1, 0, 2.5, True])
def test_fewer_than_two_samples_are_refused(num_samples: Any) -> None:
    with pytest.raises(InputError, match="≥ 2"):
        check_samples(num_samples, "stratified")


def test_unknown_samplers_are_refused() -> None:
    with pytest.raises(InputError, match="'independent'"):
        check_samples(10, "sobol")
