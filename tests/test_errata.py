"""One test for each row of docs/errata.md: what is printed fails, what is written there holds."""

import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from scipy.integrate import quad
from scipy.special import eval_hermite

from orthogp.features import Trig
from orthogp.inference import moments_from_rows
from orthogp.inference.bounds import titsias_bound
from orthogp.kernels import RBF, SpectralKernel
from tests import oracles

ERRATA = Path(__file__).parents[1] / "docs" / "errata.md"


def integral(f, low: float, high: float) -> float:
    return quad(f, low, high, epsabs=1e-13, limit=200)[0]


def hermite_feature(x: float, m: int, v: float, ell: float, r: float) -> float:
    """∫ ψ_m √S trig(ωx) dω for the RBF kernel, by adaptive quadrature."""
    trig = np.sin if m % 2 else np.cos
    norm = np.sqrt(r / (np.sqrt(np.pi) * 2.0**m * float(np.prod(np.arange(1, m + 1)))))

    def integrand(omega: float) -> float:
        density = v * ell / np.sqrt(2 * np.pi) * np.exp(-0.5 * (ell * omega) ** 2)
        psi = norm * eval_hermite(m, r * omega) * np.exp(-0.5 * (r * omega) ** 2)
        return psi * np.sqrt(density) * trig(omega * x)

    return integral(integrand, -12 / r, 12 / r)


def hermite_closed_form(x: float, m: int, v: float, ell: float, r: float) -> float:
    p, q = r**2 + ell**2 / 2, r**2 - ell**2 / 2
    z = r * x / np.sqrt(p * q)
    h = eval_hermite(m, z) / np.sqrt(2.0**m * float(np.prod(np.arange(1, m + 1))))
    return 2**0.25 * np.sqrt(v * r * ell / p) * (q / p) ** (m / 2) * np.exp(-(x**2) / (2 * p)) * h


def test_every_row_of_the_table_has_its_test() -> None:
    rows = {int(n) for n in re.findall(r"^\| (\d+) \|", ERRATA.read_text("utf-8"), re.MULTILINE)}
    tests = {int(n) for name in globals() if (n := "".join(re.findall(r"^test_(\d+)_", name)))}
    assert rows == tests == set(range(1, 12))


def test_1_trig_as_printed_is_not_orthogonal() -> None:
    a = 1.7

    def inner(m: int, n: int, stretch: float) -> float:
        return integral(
            lambda w: np.cos(np.pi * m * w / (stretch * a)) * np.cos(np.pi * n * w / (stretch * a)),
            -a,
            a,
        )

    assert abs(inner(1, 2, 2.0)) > 0.3 * a
    for m in range(1, 5):
        assert abs(inner(m, m, 1.0) / a - 1) < 1e-12
        for n in range(m):
            assert abs(inner(m, n, 1.0)) < 1e-12
    # The printed sines start with sin(0).
    assert np.sin((1 - 1) * np.pi * 0.3 / (2 * a)) == 0


def test_2_hermite_features_grow_with_the_root_of_the_variance() -> None:
    for m in (0, 1, 4):
        for v in (0.5, 3.0):
            expected = hermite_feature(0.8, m, v, 0.9, 1.1)
            assert abs(hermite_closed_form(0.8, m, v, 0.9, 1.1) - expected) < 1e-11
            assert abs(hermite_closed_form(0.8, m, v, 0.9, 1.1) / v - expected) > 1e-2


def test_3_gaussian_constant() -> None:
    sigma = 0.7
    total = integral(lambda y: np.exp(-0.5 * (y / sigma) ** 2), -20, 20)
    assert abs(np.log(total) - 0.5 * np.log(2 * np.pi * sigma**2)) < 1e-12
    assert abs(np.log(total) - np.log(2 * np.pi * sigma) ** 2) > 0.1


def test_4_knowing_the_features_takes_variance_away() -> None:
    rng = np.random.default_rng(0)
    x = np.linspace(-1, 1, 6)[:, None]
    features = Trig(9, a=12.0)
    Phi = features.evaluate(RBF(1.0, 0.3), x)
    A = rng.normal(size=(9, 9))
    S = A @ A.T / 9
    # q(f) = ∫ p(f|u) q(u): the covariance of f is K − ΦΦᵀ + Φ S Φᵀ.
    K = oracles.gram_matrix(lambda lag: oracles.rbf(lag, 1.0, 0.3), x, x)
    marginal = np.diag(K - Phi @ Phi.T + Phi @ S @ Phi.T)
    form = np.einsum("nm,mk,nk->n", Phi, S - np.eye(9), Phi)
    np.testing.assert_allclose(1.0 + form, marginal, rtol=1e-12)
    assert np.max(np.abs(1.0 - form - marginal)) > 0.1
    # With S = 0 (u known) the printed form exceeds the prior variance.
    assert np.all(1.0 + np.sum(Phi**2, axis=1) > 1.0)


def test_5_the_lengthscale_is_the_root_of_the_parameter() -> None:
    kernel = RBF(1.0, 0.5)
    x = np.array([[0.0], [0.5]])
    Phi = Trig(201, a=60.0).evaluate(kernel, x)
    assert abs(Phi[0] @ Phi[1] - np.exp(-0.5)) < 1e-8


def test_6_the_first_hermite_polynomial_is_2x() -> None:
    x, weight = 0.7, lambda t: np.exp(-(t**2))
    assert abs(eval_hermite(1, x) - 2 * x) < 1e-14
    # With H_1 = x the recurrence's H_2 is not orthogonal to H_0.
    for first, orthogonal in ((2.0, True), (1.0, False)):
        product = integral(lambda t, c=first: (2 * t * c * t - 2) * weight(t), -10, 10)
        assert (abs(product) < 1e-12) == orthogonal


def test_7_features_need_no_power_of_two_pi() -> None:
    x = np.linspace(-1, 1, 5)[:, None]
    Phi = Trig(301, a=80.0).evaluate(RBF(1.3, 0.4), x)
    np.testing.assert_allclose(np.sum(Phi**2, axis=1), 1.3, rtol=1e-9)


def test_8_eigenfunction_features_grow_with_the_root_of_the_eigenvalue() -> None:
    # The eigenfunctions of the RBF kernel under N(0, s²) by a dense rule (Nyström's), no formulas.
    s, ell, noise = 1.0, 0.8, 0.1
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    root = np.sqrt(weights / weights.sum())
    K = np.exp(-0.5 * ((s * nodes)[:, None] - s * nodes) ** 2 / ell**2)
    eigenvalues, vectors = np.linalg.eigh(root[:, None] * K * root)
    lam, phi = eigenvalues[::-1][:4], (vectors[:, ::-1] / root[:, None])[:, :4]
    # E[φ_m φ_m'] = δ under the density; features √λ φ give N S* → σ² Λ⁻¹.
    features = np.sqrt(lam) * phi
    A = features.T @ (root[:, None] ** 2 * features)  # Kuf Kfu / N for infinitely many rows
    for N in (1e6, 1e8):
        S = np.linalg.inv(np.eye(4) + N * A / noise)
        off = S - np.diag(np.diag(S))
        assert np.max(np.abs(N * off)) < 1e-6 * N * S[0, 0]
        np.testing.assert_allclose(N * np.diag(S), noise / lam, rtol=20 * noise / (N * lam[-1]))
    # The features reproduce the kernel; λ^{−1/2} φ does not.
    every = vectors / root[:, None] * np.sqrt(np.maximum(eigenvalues, 0))
    middle = np.abs(nodes) < 3
    np.testing.assert_allclose(
        (every @ every.T)[np.ix_(middle, middle)], K[np.ix_(middle, middle)], atol=1e-6
    )
    assert np.min(np.sum((phi / np.sqrt(lam)) ** 2, axis=1)[middle]) > 1.0


def test_9_the_uniform_inputs_of_the_paper_are_twice_as_wide() -> None:
    def sd(half_width: float) -> float:
        return np.sqrt(integral(lambda x: x**2, -half_width, half_width) / (2 * half_width))

    assert abs(sd(np.sqrt(108)) - 6) < 1e-9
    assert abs(sd(np.sqrt(27)) - 3) < 1e-9


def test_10_the_bound_of_band_limited_features_pays_for_the_variance_outside_the_band() -> None:
    rng = np.random.default_rng(1)
    X, noise = rng.uniform(-1, 1, (30, 1)), 0.1
    y = np.sin(3 * X[:, 0]) + 0.3 * rng.normal(size=30)
    a = 10.0
    inner = RBF(1.0, 0.4)

    def with_tail(omega):
        u = jnp.abs(omega[0])
        bell = jnp.exp(-0.5 * (0.4 * u) ** 2) * 0.4 / jnp.sqrt(2 * jnp.pi)
        return (bell + jnp.where(u > a, 0.05 * jnp.exp(-(u - a)), 0.0)) / 1.1

    # The tail has variance 2 · 0.05; the kernel's own factor 1.1 undoes the division.
    outer = SpectralKernel(with_tail, None, 1.1, 1.0)
    features = Trig(31, a=a)
    bounds = {}
    for name, kernel in (("inner", inner), ("outer", outer)):
        moments = moments_from_rows(features, kernel, X, y)
        m = np.linalg.solve(np.eye(31) + moments.gram / noise, moments.projection / noise)
        bounds[name] = titsias_bound(moments, noise).total, m, moments.residual_trace
    np.testing.assert_allclose(bounds["inner"][1], bounds["outer"][1], atol=1e-8)
    extra = bounds["outer"][2] - bounds["inner"][2]
    assert extra > 1.0
    assert abs(bounds["inner"][0] - bounds["outer"][0] - extra / (2 * noise)) < 1e-6


def test_11_the_norm_of_a_matrix_is_not_bounded_by_its_diagonal() -> None:
    E = np.array([[0.0, 1.0], [1.0, 0.0]])
    assert np.linalg.norm(E) > 2 * np.max(np.diag(E))
    rng = np.random.default_rng(0)
    for _ in range(20):
        E = rng.normal(size=(5, 5))
        assert np.linalg.norm(E) <= 5 * np.max(np.abs(E))
