"""Lattice features: orthonormal for the wrapped prior, chosen by mass, with a constant residual."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthogp.errors import InputError
from orthogp.features import Lattice, MeanPrior
from orthogp.features.series import lattice_masses
from orthogp.kernels import RBF, Matern12
from orthogp.statistics import FrequencyLattice
from tests.problems import (
    DIMS,
    Entry,
    all_entries,
    label,
    make_lattice,
    make_rows,
    mean_covariance,
    mean_prior,
    prior_variance,
    wrapped_gram,
)

MEANS = (None, "constant", "linear")
# Many enough for the smooth kernels below to be represented to rounding.
EXTENTS = {1: 60, 2: 16, 3: 9}


@pytest.mark.parametrize(("num_dims", "entry"), all_entries(), ids=label)
def test_residual_variance_is_what_the_features_leave_out_everywhere(
    num_dims: int, entry: Entry
) -> None:
    X = make_rows(0, 20, num_dims).X
    lattice = make_lattice(num_dims, 6.0, EXTENTS[num_dims] // 2)
    features = Lattice.select(entry.kernel, lattice, 31)
    residual = features.residual_variance(entry.kernel, X)
    squares = np.sum(features.evaluate(entry.kernel, X) ** 2, axis=1)
    assert residual.shape == (20,)
    assert np.all(residual >= 0)
    np.testing.assert_allclose(residual + squares, prior_variance(entry.kernel), rtol=1e-6)


@pytest.mark.parametrize("kind", MEANS)
@pytest.mark.parametrize("num_dims", DIMS)
def test_products_of_features_are_the_wrapped_prior(num_dims: int, kind: str | None) -> None:
    kernel = RBF(1.3, np.full(num_dims, 0.7))
    mean = mean_prior(kind, num_dims)
    lattice = make_lattice(num_dims, 5.0, EXTENTS[num_dims])
    features = Lattice.select(kernel, lattice, 10**6, mean)
    X = make_rows(1, 12, num_dims).X
    Phi = features.evaluate(kernel, X)
    assert Phi.shape == (12, features.num_features)
    expected = wrapped_gram(kernel, X, X, lattice.period) + mean_covariance(mean, X, X)
    np.testing.assert_allclose(Phi @ Phi.T, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("num_dims", DIMS)
@pytest.mark.parametrize("num_features", [1, 2, 10, 11, 10**6])
def test_features_are_the_largest_masses(num_dims: int, num_features: int) -> None:
    kernel = Matern12(1.0, np.array([0.3, 0.5, 2.0])[:num_dims])
    lattice = make_lattice(num_dims, 5.0, {1: 20, 2: 5, 3: 3}[num_dims])
    features = Lattice.select(kernel, lattice, num_features)
    every = lattice.half_indices()
    pairs = min((num_features - 1) // 2, len(every) - 1)
    assert len(features.indices) == 1 + pairs
    assert features.num_features == 1 + 2 * pairs
    assert not features.indices[0].any()
    masses = lattice_masses(kernel, lattice, every)
    chosen = {tuple(t) for t in features.indices}
    left = [mass for t, mass in zip(every, masses) if tuple(t) not in chosen]
    if left and pairs:
        assert min(features.masses(kernel)[1:]) >= max(left)


def test_mode_zero_is_always_a_feature() -> None:
    # A narrow band far from zero has next to no mass there.
    kernel = RBF(1.0, 0.01)
    features = Lattice.select(kernel, make_lattice(1, 5.0, 20), 5)
    assert not features.indices[0].any()


@given(seed=st.integers(0, 1000), num_dims=st.sampled_from(DIMS), kind=st.sampled_from(MEANS))
def test_gather_is_the_transpose_of_squared_amplitudes(
    seed: int, num_dims: int, kind: str | None
) -> None:
    # ⟨g, amplitudes(m) − amplitudes(0)⟩ = ⟨gather(g), m⟩ for all g and m.
    rng = np.random.default_rng(seed)
    lattice = make_lattice(num_dims, 5.0, 2)
    features = Lattice(lattice, lattice.half_indices()[::2], mean_prior(kind, num_dims))
    masses = rng.uniform(0, 1, len(features.indices))
    gradient = rng.normal(size=features.num_features)
    linear = features.squared_amplitudes(masses) - features.squared_amplitudes(0 * masses)
    assert gradient @ linear == pytest.approx(features.gather(gradient) @ masses, rel=1e-12)


def test_masses_do_not_depend_on_how_many_are_asked_for() -> None:
    # They are computed in blocks of 1024, the last one filled up.
    lattice = FrequencyLattice(0.5, 3000)
    kernel, indices = RBF(1.3, 0.01), lattice.half_indices()
    together = lattice_masses(kernel, lattice, indices)
    assert together.shape == (3001,)
    for some in (slice(0, 1), slice(1000, 1050), slice(1023, 1025), slice(2990, 3001)):
        np.testing.assert_array_equal(
            lattice_masses(kernel, lattice, indices[some]), together[some]
        )


def test_mean_prior_covariates_and_variance() -> None:
    mean = MeanPrior(4.0, 2.0, np.array([1.0, 2.0]), np.array([2.0, 4.0]))
    X = np.array([[3.0, 2.0], [1.0, 6.0], [1.0, 2.0]])
    np.testing.assert_allclose(mean.covariates(X), [[1, 0], [0, 1], [0, 0]])
    np.testing.assert_allclose(mean.prior_variance(X), [6.0, 6.0, 4.0])
    assert MeanPrior(4.0).covariates(X).shape == (3, 0)
    np.testing.assert_allclose(MeanPrior(4.0).prior_variance(X), 4.0)


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([[1], [2]], "index zero"),
        (np.empty((0, 1), dtype=int), "index zero"),
        ([[0], [5]], "within the lattice's extent"),
    ],
)
def test_impossible_indices_are_refused(indices: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Lattice(FrequencyLattice(1.0, 4), np.asarray(indices))


def test_at_least_one_feature_is_needed() -> None:
    with pytest.raises(InputError, match="at least 1, got 0"):
        Lattice.select(RBF(), FrequencyLattice(1.0, 4), 0)
