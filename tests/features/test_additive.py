"""Additive features: one family for each component of the kernel, side by side."""

import numpy as np
import pytest

from orthogp.errors import FeatureError
from orthogp.features.bands import Box, Polynomial, Trig
from orthogp.features.series import Additive, AdditiveSeries
from orthogp.inference.moments import moments_from_rows
from orthogp.kernels import RBF, Kernel, Matern12, Matern32, components
from orthogp.statistics import FrequencyLattice
from tests.oracles import Array
from tests.problems import CENTRE, covariances, make_rows, prior_variance, wrapped_gram

KERNEL = RBF(1.3, 0.5).on(0) + Matern32(0.7, 0.8).on(1)
X = make_rows(1, 25, 2).X
LOWER, UPPER = X.min(axis=0), X.max(axis=0)
LATTICE = FrequencyLattice([0.5, 0.6], [40, 35], CENTRE[:2])


def gram(kernel: Kernel, points: Array) -> Array:
    return covariances(kernel, points[:, None, :] - points)


def explained(Phi: Array) -> Array:
    return Phi @ Phi.T


# ---------------------------------------------------------------------- components of kernels


@pytest.mark.parametrize(
    ("kernel", "num_dims", "expected"),
    [
        (RBF(), 2, [(0, 1)]),
        (RBF().on(0), 2, [(0,)]),
        (RBF().on(0) + Matern32().on(1), 2, [(0,), (1,)]),
        (RBF().on(1) + Matern32().on(0) + Matern12().on(1), 2, [(1,), (0,)]),
        (RBF() + Matern32().on(0, 1), 2, [(0, 1)]),
        (RBF() + Matern32().on(2) + Matern12(), 3, [(0, 1, 2), (2,)]),
        ((RBF().on(1) + Matern32().on(0)).on(2, 0), 3, [(0,), (2,)]),
        ((RBF().on(1) + Matern32()).on(0, 2), 3, [(2,), (0, 2)]),
        (RBF().on(1).on(0, 2) + Matern32().on(2), 3, [(2,)]),
    ],
    ids=str,
)
def test_components_are_grouped_by_their_columns(
    kernel: Kernel, num_dims: int, expected: list[tuple[int, ...]]
) -> None:
    parts = components(kernel, num_dims)
    assert [dims for dims, _ in parts] == expected
    points = np.random.default_rng(0).normal(size=(6, num_dims))
    total = sum(gram(part, points[:, list(dims)]) for dims, part in parts)
    np.testing.assert_allclose(total, gram(kernel, points), atol=1e-13)


# ---------------------------------------------------------------------- features


def test_any_family_serves_an_additive_kernel() -> None:
    for family in (Trig(15), Polynomial(15), Box(15)):
        Phi = family.evaluate(KERNEL, X)
        assert Phi.shape == (len(X), 30)
        assert np.linalg.eigvalsh(gram(KERNEL, X) - explained(Phi))[0] > -1e-12


def test_parts_stand_side_by_side() -> None:
    features = Additive((Trig(9, 8.0, centre=0.1), Polynomial(7, a=6.0)), ((0,), (1,)))
    Phi = features.evaluate(KERNEL, X)
    assert features.num_features == 16
    first = Trig(9, 8.0, centre=0.1).evaluate(RBF(1.3, 0.5), X[:, :1])
    second = Polynomial(7, a=6.0).evaluate(Matern32(0.7, 0.8), X[:, 1:])
    np.testing.assert_allclose(Phi, np.concatenate([first, second], axis=1), atol=1e-13)


@pytest.mark.parametrize(
    ("kernel", "dims"),
    [
        (KERNEL, ((0,), (1,))),
        (RBF(1.3, 0.5).on(1, 0), ((1, 0),)),
        (RBF(0.6, 0.5).on(1, 0) + Matern32(0.7, [0.8, 0.5]), ((1, 0), (0, 1))),
        (Matern32(0.7, 0.8) + RBF(0.6, 0.5).on(1), ((0, 1), (1,))),
    ],
    ids=str,
)
def test_series_on_a_lattice_are_features_of_the_wrapped_prior(
    kernel: Kernel, dims: tuple[tuple[int, ...], ...]
) -> None:
    features = Additive(tuple(Trig(25, 9.0) for _ in dims), dims)
    features = features.placed(kernel, LOWER, UPPER, LATTICE)
    series = features.on(LATTICE)
    assert isinstance(series, AdditiveSeries)
    # A half set: index zero first, and no index together with its mirror image.
    all_indices = {tuple(t) for t in np.concatenate([series.indices, -series.indices]).tolist()}
    assert not series.indices[0].any()
    assert len(all_indices) == 2 * len(series.indices) - 1
    assert np.all(np.abs(series.indices) <= LATTICE.extent)
    # φ of all parts, each as a series of its own.
    Phi = series.evaluate(kernel, X)
    parts = [
        part.on(
            FrequencyLattice(
                LATTICE.spacing[list(own)], LATTICE.extent[list(own)], LATTICE.centre[list(own)]
            )
        ).evaluate(kernel_part, X[:, list(own)])
        for part, own, (_, kernel_part) in zip(features.parts, dims, components(kernel, 2))
    ]
    np.testing.assert_allclose(Phi, np.concatenate(parts, axis=1), atol=1e-12)
    K = wrapped_gram(kernel, X, X, LATTICE.period)
    assert np.linalg.eigvalsh(K - explained(Phi))[0] > -1e-10
    assert np.trace(explained(Phi)) > 0.5 * np.trace(K)


def test_features_on_a_lattice_approach_the_integrals() -> None:
    errors = []
    for refinement in (1, 3):
        lattice = FrequencyLattice(
            LATTICE.spacing / refinement, refinement * LATTICE.extent + refinement // 2, CENTRE[:2]
        )
        features = Additive((Trig(15, 9.75), Trig(15, 8.7)), ((0,), (1,)))
        features = features.placed(KERNEL, LOWER, UPPER, lattice)
        series = features.on(lattice)
        assert series is not None
        Phi = series.evaluate(KERNEL, X)
        errors.append(np.max(np.abs(Phi - features.evaluate(KERNEL, X))))
    assert errors[0] < 0.02
    assert errors[1] < errors[0] / 4


def test_coefficients_follow_the_kernel() -> None:
    features = Additive((Trig(15, 9.0), Trig(15, 8.0)), ((0,), (1,)))
    series = features.placed(KERNEL, LOWER, UPPER, LATTICE).on(LATTICE)
    assert series is not None
    other = RBF(2.6, 0.4).on(0) + Matern32(1.4, 0.9).on(1)
    Phi = series.evaluate(other, X)
    K = wrapped_gram(other, X, X, LATTICE.period)
    assert np.linalg.eigvalsh(K - explained(Phi))[0] > -1e-10


def test_moments_add_up_over_rows() -> None:
    rows = make_rows(2, 30, 2)
    features = Additive((Trig(9, 5.0), Box(5, 1.0)), ((0,), (1,)))
    features = features.placed(KERNEL, rows.X.min(axis=0), rows.X.max(axis=0))
    moments = moments_from_rows(features, KERNEL, rows.X, rows.y)
    Phi = features.evaluate(KERNEL, rows.X)
    np.testing.assert_allclose(moments.gram, Phi.T @ Phi, atol=1e-11)
    left_out = len(Phi) * prior_variance(KERNEL) - np.sum(Phi**2)
    assert moments.residual_trace == pytest.approx(left_out, rel=1e-10)


def test_a_kernel_with_other_components_is_refused() -> None:
    features = Additive((Trig(5), Trig(5)), ((0,), (1,)))
    with pytest.raises(FeatureError, match=r"columns \(\(0,\), \(1,\)\), but the kernel has"):
        features.evaluate(RBF(), X)
