"""What every spectral family promises, whatever its basis and whatever the kernel."""

import tracemalloc
from dataclasses import replace
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.errors import FeatureError
from orthogp.features.bands import Polynomial, Trig
from orthogp.features.spectral import SpectralFeatures
from orthogp.inference.moments import moments_from_rows
from orthogp.kernels import RBF, Kernel, Matern32
from orthogp.statistics import FrequencyLattice
from tests.features.bases import BASES, BY_NAME, Basis, half_line, label, weights_at_all_nodes
from tests.oracles import Array
from tests.problems import (
    Entry,
    covariances,
    densities,
    make_rows,
    wrapped_gram,
    zoo,
)
from tests.problems import label as entry_label

NINE = 9
#: Where features are compared; their centre is not the middle of these.
POINTS = np.array([[-0.9], [0.05], [1.3]])
CENTRE = 0.2
BAND_LIMITED = [basis for basis in BASES if basis.edges[-1] == 1]


def members(basis: Basis, orders: list[int], u: Array, rest: Array) -> Array:
    return np.array([basis.member(m, u, rest) for m in orders])


# ---------------------------------------------------------------------- the paper's integrals


@pytest.mark.parametrize("basis", BASES, ids=label)
def test_members_are_the_textbook_functions(basis: Basis) -> None:
    u = np.array([-0.93, -0.4, 0.013, 0.26, 0.77]) * min(basis.edges[-1], 20)
    expected = members(basis, list(range(NINE)), u, 1 - np.abs(u))
    family = basis.make(NINE)
    np.testing.assert_allclose(family.basis(u, NINE), expected, rtol=1e-11, atol=1e-13)
    odd = [basis.odd(m) for m in range(NINE)]
    np.testing.assert_array_equal(family.is_odd(np.arange(NINE)), odd)
    assert family.reach(NINE) <= basis.edges[-1]


@pytest.mark.parametrize("basis", BASES, ids=label)
def test_members_are_orthonormal(basis: Basis) -> None:
    # Of the textbook functions, which have just been seen to be the family's.
    rule = half_line(basis.edges)
    values = members(basis, list(range(NINE)), rule.u, rule.rest)
    odd = np.array([basis.odd(m) for m in range(NINE)])
    gram = 2 * (values * rule.weights) @ values.T
    gram[odd[:, None] != odd] = 0.0  # an even function times an odd one
    np.testing.assert_allclose(gram, np.eye(NINE), atol=1e-9)


@pytest.mark.parametrize("entry", zoo(1), ids=entry_label)
@pytest.mark.parametrize("basis", BASES, ids=label)
def test_features_are_integrals_over_frequency(basis: Basis, entry: Entry) -> None:
    orders = [0, 1, 2, 5, 8]
    odd = np.array([basis.odd(m) for m in orders])
    rule = half_line(basis.edges)
    omega = basis.dilation * rule.u
    psi = members(basis, orders, rule.u, rule.rest) / np.sqrt(basis.dilation)
    weights = 2 * basis.dilation * rule.weights * np.sqrt(densities(entry.kernel, omega[:, None]))
    phases = (POINTS - CENTRE) * omega
    expected = np.where(odd, np.sin(phases) @ (weights * psi).T, np.cos(phases) @ (weights * psi).T)
    Phi = basis.placed_alike(NINE, centre=CENTRE).evaluate(entry.kernel, POINTS)
    assert Phi.shape == (len(POINTS), NINE)
    np.testing.assert_allclose(Phi[:, orders], expected, atol=1e-11)


class Travelling(Kernel):
    """k = exp(−½ |τ/ℓ|²) cos(μ·τ): its density is even in ω, but not in each of its columns."""

    mean: Any = eqx.field(default_factory=lambda: np.array([3.0, -4.0]))
    lengthscale: Any = eqx.field(default_factory=lambda: np.array([0.6, 0.8]))

    def k(self, lag: Float[jax.Array, " d"]) -> Float[jax.Array, ""]:
        bell = jnp.exp(-0.5 * jnp.sum((lag / self.lengthscale) ** 2))
        return bell * jnp.cos(jnp.dot(self.mean, lag))

    def spectral_density(self, omega: Float[jax.Array, " d"]) -> Float[jax.Array, ""]:
        def bell(centre: Float[jax.Array, " d"]) -> Float[jax.Array, ""]:
            return jnp.exp(-0.5 * jnp.sum((self.lengthscale * (omega - centre)) ** 2))

        scale = jnp.prod(self.lengthscale / jnp.sqrt(2 * jnp.pi))
        return scale * (bell(self.mean) + bell(-self.mean)) / 2

    def prior_variance(self) -> Float[jax.Array, ""]:
        return jnp.ones(())


@pytest.mark.parametrize(
    "kernel", [Travelling(), Matern32(1.3, [0.5, 0.7])], ids=lambda kernel: type(kernel).__name__
)
@pytest.mark.parametrize("name", ["trig", "chebyshev"])
def test_products_are_integrals_over_the_plane(name: str, kernel: Kernel) -> None:
    basis = BY_NAME[name]
    X = np.array([[0.3, -0.5], [-0.8, 0.9]])
    centre = np.array([0.1, -0.2])
    family = basis.make(6, centre=centre).dilated(np.array([7.0, 5.0]))
    family = family.placed(kernel, centre - 1, centre + 1)
    Phi = family.evaluate(kernel, X)
    assert family.orders is not None
    assert Phi.shape == (2, len(family.orders)) == (2, family.num_features)

    rule = half_line(basis.edges, panels=6)
    u = np.concatenate([-rule.u, rule.u])
    rest, weights = np.tile(rule.rest, 2), np.tile(rule.weights, 2)
    c = np.asarray(family.dilation)
    grid = np.stack(np.meshgrid(c[0] * u, c[1] * u, indexing="ij"), axis=-1)
    root = np.sqrt(densities(kernel, grid)) * weights[:, None] * weights * np.sqrt(np.prod(c))
    for x, phi in zip(X - centre, Phi):
        wave = np.exp(1j * c[0] * u * x[0])[:, None] * np.exp(1j * c[1] * u * x[1]) * root
        for (m, n), value in zip(family.orders, phi):
            integral = basis.member(m, u, rest) @ wave @ basis.member(n, u, rest)
            # e^{iω·x} = cos + i sin: an odd product leaves the sine, an even one the cosine.
            expected = integral.imag if basis.odd(m) != basis.odd(n) else integral.real
            assert value == pytest.approx(expected, abs=1e-8)


def test_high_orders_and_far_points_are_integrated_too() -> None:
    # By orthonormality over all m, Σ φ_m² is k(0) where the family is complete and resolves x.
    kernel = RBF(1.0, 0.01)
    X = np.linspace(-1, 1, 7)[:, None]
    for family in (Trig(401, 600.0), Polynomial(901, "legendre", 800.0)):
        np.testing.assert_allclose(np.sum(family.evaluate(kernel, X) ** 2, axis=1), 1, atol=1e-7)


# ---------------------------------------------------------------------- choosing what is open


def test_far_rows_cost_no_more_than_near_ones_and_leave_them_as_they_are() -> None:
    """Nodes for x = 1e7 would take gigabytes; φ falls as 1/x, and is zero there."""
    kernel = Matern32(variance=1.0, lengthscale=1.0)
    features = Trig(15, a=6.0, centre=0.0)
    near, far = np.array([[0.3], [1.0]]), np.array([[300.0], [1e7]])
    tracemalloc.start()
    found = features.evaluate(kernel, np.concatenate([near, far]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5e7
    np.testing.assert_allclose(found[:2], features.evaluate(kernel, near), rtol=0, atol=1e-12)
    np.testing.assert_allclose(found[2:3], features.evaluate(kernel, far[:1]), rtol=0, atol=1e-12)
    assert 1e-7 < np.max(np.abs(found[2])) < 1e-3
    np.testing.assert_array_equal(found[3], 0.0)


def test_open_parameters_must_be_chosen_before_a_lattice_is_asked_for() -> None:
    with pytest.raises(FeatureError, match="call placed"):
        Trig(11).on(FrequencyLattice(1.0, 10))


@pytest.mark.parametrize("basis", BASES, ids=label)
def test_placement_leaves_out_least(basis: Basis) -> None:
    kernel = RBF(1.0, 0.3)
    X = np.linspace(-1, 1, 41)[:, None]
    chosen = basis.make(NINE).placed(kernel, np.array([-1.0]), np.array([1.0]))
    assert chosen.dilation is not None

    def left_out(factor: float) -> float:
        family = chosen.dilated(factor * np.asarray(chosen.dilation))
        return float(np.mean(family.residual_variance(kernel, X)))

    assert left_out(1.0) <= min(map(left_out, [0.25, 0.5, 0.9, 1.1, 2.0, 4.0])) + 2e-4


@pytest.mark.parametrize("basis", BASES, ids=label)
def test_given_parameters_are_kept(basis: Basis) -> None:
    family = basis.placed_alike(NINE, centre=CENTRE)
    placed = family.placed(RBF(), np.array([-1.0]), np.array([2.0]))
    assert placed.dilation == pytest.approx(basis.dilation)
    assert placed.centre == pytest.approx(CENTRE)
    assert placed.num_features == NINE


@pytest.mark.parametrize("basis", BASES, ids=label)
def test_no_feature_explains_more_than_the_prior_holds(basis: Basis) -> None:
    kernel = Matern32(1.3, 0.5)
    X = make_rows(3, 25, 1).X
    Phi = basis.make(21).evaluate(kernel, X)
    K = covariances(kernel, X[:, None, :] - X)
    assert np.linalg.eigvalsh(K - Phi @ Phi.T)[0] > -1e-12


# ---------------------------------------------------------------------- completeness


@pytest.mark.parametrize("basis", BAND_LIMITED, ids=label)
def test_many_features_give_the_kernel_without_frequencies_beyond_the_band(basis: Basis) -> None:
    # The paper's section 3.4. A band of 3/ℓ leaves a visible part of the kernel out.
    kernel, a = RBF(1.0, 0.5), 6.0
    X = np.linspace(-1, 1, 9)[:, None]
    lags = X[:, None, :] - X
    x, w = np.polynomial.legendre.leggauss(200)
    density = densities(kernel, a * x[:, None])
    limit = np.cos(lags * (a * x)) @ (a * w * density)
    assert np.max(np.abs(limit - covariances(kernel, lags))) > 1e-3

    def error(num_features: int) -> float:
        Phi = basis.make(num_features, a=a).evaluate(kernel, X)
        return float(np.max(np.abs(Phi @ Phi.T - limit)))

    few, many = error(20), error(80)
    assert many < few / 3 or many < 1e-12
    assert many < (0.05 if "singular" in basis.name else 5e-3)


@pytest.mark.parametrize("name", ["laguerre", "laguerre, generalised"])
def test_many_features_of_a_complete_family_give_the_kernel(name: str) -> None:
    kernel = RBF(1.0, 0.3)
    X = np.linspace(-1, 1, 9)[:, None]
    K = covariances(kernel, X[:, None, :] - X)
    error = []
    for num_features in (20, 40, 80, 160):
        Phi = BY_NAME[name].make(num_features, a=0.6).evaluate(kernel, X)
        error.append(np.max(np.abs(Phi @ Phi.T - K)))
    assert np.all(np.diff(error) < 0)
    assert error[-1] < (1e-10 if name == "laguerre" else 1e-3)


# ---------------------------------------------------------------------- a user's own


class Walsh(SpectralFeatures):
    """Square waves of the band: even and odd Walsh functions of |u|, in pairs."""

    band: Any = None

    def basis(self, u: NDArray[np.float64], count: int) -> NDArray[np.float64]:
        digits = np.minimum(np.floor(256 * np.abs(u)), 255).astype(int)
        order = np.arange(count)[:, None] // 2
        parity = sum(((order >> bit) & (digits >> (7 - bit)) & 1) for bit in range(8))
        values = np.sqrt(0.5) * (-1.0) ** parity
        values[1::2] *= np.where(u < 0, -1.0, 1.0)
        return values

    def is_odd(self, order: NDArray[np.int64]) -> NDArray[np.bool_]:
        return order % 2 == 1

    def reach(self, count: int) -> float:
        return 1.0

    def breakpoints(self, count: int) -> NDArray[np.float64]:
        pieces = 2 ** int(np.ceil(np.log2(max((count + 1) // 2, 1))))
        return np.linspace(0, 1, pieces + 1)

    @property
    def dilation(self) -> NDArray[np.float64] | None:
        return self.band

    def dilated(self, dilation: NDArray[np.float64]) -> Self:
        return replace(self, band=dilation)


class Sech(Kernel):
    """v/cosh(τ/ℓ) in one column."""

    variance: Any = eqx.field(default_factory=lambda: np.asarray(1.3))
    lengthscale: Any = eqx.field(default_factory=lambda: np.asarray(0.2))

    def k(self, lag: Float[jax.Array, " d"]) -> Float[jax.Array, ""]:
        return self.variance / jnp.cosh(lag[0] / self.lengthscale)

    def spectral_density(self, omega: Float[jax.Array, " d"]) -> Float[jax.Array, ""]:
        reduced = jnp.pi / 2 * self.lengthscale * omega[0]
        return self.variance * self.lengthscale / 2 / jnp.cosh(reduced)

    def prior_variance(self) -> Float[jax.Array, ""]:
        return jnp.asarray(self.variance)


def test_a_users_family_and_kernel_work_without_registration() -> None:
    kernel, rows = Sech(), make_rows(5, 40, 1)
    lower, upper = rows.X.min(axis=0), rows.X.max(axis=0)
    placed = Walsh(32).placed(kernel, lower, upper)
    Phi = placed.evaluate(kernel, rows.X)
    # The third member: an even function, + on the inner half of the band and − on the outer one.
    a, x = float(np.asarray(placed.dilation)[0]), rows.X - placed.centre
    nodes, weights = np.polynomial.legendre.leggauss(100)
    omega = np.concatenate([a / 4 * (1 + nodes), a / 4 * (3 + nodes)])
    psi = np.repeat([1.0, -1.0], 100) / np.sqrt(2 * a)
    root = np.sqrt(1.3 * 0.1 / np.cosh(np.pi / 10 * omega))
    expected = 2 * np.cos(x * omega) @ (np.tile(a / 4 * weights, 2) * psi * root)
    np.testing.assert_allclose(Phi[:, 2], expected, atol=1e-12)
    K = 1.3 / np.cosh((rows.X - rows.X.T) / 0.2)
    assert np.linalg.eigvalsh(K - Phi @ Phi.T)[0] > -1e-12

    lattice = FrequencyLattice(0.1, 800, (lower + upper) / 2)
    fitted = Walsh(32).placed(kernel, lower, upper, lattice)
    series = fitted.on(lattice)
    weights = weights_at_all_nodes(series)
    np.testing.assert_allclose(weights @ weights.T, np.eye(32), atol=1e-12)
    Phi_on = series.evaluate(kernel, rows.X)
    np.testing.assert_allclose(Phi_on, fitted.evaluate(kernel, rows.X), atol=0.02)
    K_on = wrapped_gram(kernel, rows.X, rows.X, lattice.period)
    assert np.linalg.eigvalsh(K_on - Phi_on @ Phi_on.T)[0] > -1e-12
    for features, values in ((placed, Phi), (series, Phi_on)):
        moments = moments_from_rows(features, kernel, rows.X, rows.y)
        np.testing.assert_allclose(moments.gram, values.T @ values, atol=1e-11)
        np.testing.assert_allclose(moments.projection, values.T @ rows.y, atol=1e-11)
        left_out = np.sum(1.3 - np.sum(values**2, axis=1))
        assert moments.residual_trace == pytest.approx(left_out, rel=1e-9)
