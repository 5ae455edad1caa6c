"""Spectral families on a lattice: orthonormal over its points, so features of the wrapped prior."""

import numpy as np
import pytest

from orthogp.errors import FeatureError
from orthogp.features.bands import Polynomial, Trig
from orthogp.features.spectral import SpectralFeatures
from orthogp.kernels import RBF, Matern32
from orthogp.statistics import FrequencyLattice
from tests.features.bases import BASES, BY_NAME, Basis, label, weights_at_all_nodes
from tests.problems import Entry, make_rows, prior_variance, wrapped_gram, zoo

NINE = 9
#: Where features are compared; their centre is not the middle of these.
POINTS = np.array([[-0.9], [0.05], [1.3]])
CENTRE = 0.2


def with_nodes(
    basis: Basis, num_features: int, num_nodes: int
) -> tuple[SpectralFeatures, FrequencyLattice]:
    """Features and a lattice of about so many nodes of which the family's band is tiled."""
    family = basis.placed_alike(num_features)
    half = num_nodes // 2
    h = basis.dilation * family.reach(num_features) / (half + 0.5)
    lattice = FrequencyLattice(h, half, CENTRE)
    return family.placed(RBF(), np.array([-1.0]), np.array([1.4]), lattice), lattice


@pytest.mark.parametrize("num_nodes", [11, 41, 301])
@pytest.mark.parametrize("basis", BASES, ids=label)
def test_weights_are_orthonormal_over_the_lattice(basis: Basis, num_nodes: int) -> None:
    family, lattice = with_nodes(basis, NINE, num_nodes)
    weights = weights_at_all_nodes(family.on(lattice))
    np.testing.assert_allclose(weights @ weights.T, np.eye(NINE), atol=1e-12)


@pytest.mark.parametrize("name", ["trig", "chebyshev", "laguerre", "box"])
def test_weights_of_products_are_orthonormal_over_the_lattice(name: str) -> None:
    basis = BY_NAME[name]
    lattice = FrequencyLattice([0.3, 0.4], [40, 31])
    box = np.array([-1.0, -1.0]), np.array([1.0, 1.0])
    family = basis.placed_alike(20).placed(RBF(1.0, 0.5), *box, lattice)
    weights = weights_at_all_nodes(family.on(lattice))
    np.testing.assert_allclose(weights @ weights.T, np.eye(family.num_features), atol=1e-12)


def test_symmetry_survives_where_the_nodes_barely_suffice() -> None:
    # The condition of 81 polynomials sampled at 101 nodes is beyond double precision.
    kernel, lattice = RBF(1.0, 0.1), FrequencyLattice(60 / 50.5, 50)
    family = Polynomial(81, "chebyshev", 60.0, centre=0.0)
    family = family.placed(kernel, np.array([-1.0]), np.array([1.0]), lattice)
    weights = weights_at_all_nodes(family.on(lattice))
    np.testing.assert_allclose(weights @ weights.T, np.eye(81), atol=1e-12)


@pytest.mark.parametrize("basis", BASES, ids=label)
def test_features_on_a_lattice_approach_the_integrals(basis: Basis) -> None:
    kernel = Matern32(1.3, 0.5)
    errors, estimates = [], []
    for num_nodes in (135, 405, 1215):
        family, lattice = with_nodes(basis, NINE, num_nodes)
        Phi = family.on(lattice).evaluate(kernel, POINTS)
        exact = family.evaluate(kernel, POINTS)
        errors.append(np.max(np.abs(Phi - exact)) / np.sqrt(1.3))
        estimates.append(family.quadrature_error(kernel, lattice, POINTS))
    # With an integrable singularity in ψ the sums converge like √h or slower.
    assert errors[0] / errors[1] > 1.3
    assert errors[1] / errors[2] > 1.3
    assert errors[2] < (0.1 if "singular" in basis.name else 0.03)
    for error, estimate in zip(errors, estimates):
        assert estimate < 1.5 * error
        assert error < 4 * estimate


@pytest.mark.parametrize(
    ("basis", "entry"),
    [
        *((BASES[0], entry) for entry in zoo(1)),
        *((basis, entry) for basis in BASES[1:] for entry in (zoo(1)[0], zoo(1)[1])),
    ],
    ids=lambda value: value.name,
)
def test_no_feature_explains_more_than_the_wrapped_prior_holds(basis: Basis, entry: Entry) -> None:
    X = make_rows(3, 25, 1).X
    lattice = FrequencyLattice(0.55, 40, CENTRE)
    family = basis.placed_alike(NINE).placed(entry.kernel, X.min(axis=0), X.max(axis=0), lattice)
    Phi = family.on(lattice).evaluate(entry.kernel, X)
    K = wrapped_gram(entry.kernel, X, X, lattice.period)
    variance = prior_variance(entry.kernel)
    assert np.linalg.eigvalsh(K - Phi @ Phi.T)[0] > -1e-11 * variance
    assert np.mean(np.sum(Phi**2, axis=1)) > 0.1 * variance


def test_too_few_nodes_are_refused_with_their_number() -> None:
    kernel, lattice = RBF(1.0, 0.1), FrequencyLattice(1.0, 20)
    box = np.array([-1.0]), np.array([1.0])
    for family in (Trig(31, 14.5), Polynomial(31, a=14.5), Polynomial(30, a=14.5)):
        placed = family.placed(kernel, *box, lattice)
        with pytest.raises(FeatureError, match=r"3. members .* at least 31 nodes, .* has 29 "):
            placed.on(lattice)
    # Beyond its end a lattice has none either.
    endless = Polynomial(31, "laguerre", 1.0).placed(kernel, *box)
    with pytest.raises(FeatureError, match=r"31 members .* at least 31 nodes, .* has 29 "):
        endless.on(FrequencyLattice(1.0, 14))
    # One for each member is enough.
    assert Polynomial(31, a=15.5).placed(kernel, *box, lattice).on(lattice).num_features == 31


def test_a_band_beyond_the_lattice_is_refused() -> None:
    family = Trig(5, 30.0).placed(RBF(), np.array([-1.0]), np.array([1.0]))
    with pytest.raises(FeatureError, match="up to frequency 30, but the lattice only to 10"):
        family.on(FrequencyLattice(1.0, 10))
