"""q(u) in closed form: against numerical maximisation, and against dense matrices."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.optimize import minimize

from orthogp.errors import InputError
from orthogp.features.inducing import InducingPoints, TwoBlock
from orthogp.inference.bounds import titsias_bound
from orthogp.inference.moments import Moments, moments_from_rows
from orthogp.kernels import RBF
from orthogp.stochastic.normals import factorised_posterior
from tests import oracles
from tests.oracles import Array
from tests.problems import Rows, make_rows

NOISE = 0.15
KERNEL = RBF(1.3, 0.5)


def make(num_features: int = 6, num_targets: int = 1) -> tuple[Rows, InducingPoints, Moments]:
    rows = make_rows(0, 25, 1, num_targets)
    # Features that overlap: orthonormal under the prior, but not over the data.
    features = InducingPoints(num_features).placed(KERNEL, rows.X.min(axis=0), rows.X.max(axis=0))
    return rows, features, moments_from_rows(features, KERNEL, rows.X, rows.y)


def uncollapsed(rows: Rows, Phi: Array, mean: Array, S: Array) -> float:
    """E_q log p(y|f) − KL(q(u)‖p(u)) for one target, row by row."""
    y = rows.y[:, 0]
    total = 0.0
    for phi, target in zip(Phi, y):
        variance = 1.3 - phi @ phi + phi @ S @ phi
        error = (target - phi @ mean) ** 2 + variance
        total -= 0.5 * np.log(2 * np.pi * NOISE) + error / (2 * NOISE)
    kl = 0.5 * (np.trace(S) + mean @ mean - len(mean) - np.linalg.slogdet(S)[1])
    return total - kl


@pytest.mark.parametrize("blocks", [[[0], [1], [2], [3]], [[0, 2], [1, 3]], [[0, 1, 2, 3]]])
def test_bound_is_the_maximum_over_factorised_distributions(blocks: list[list[int]]) -> None:
    rows, features, moments = make(4)
    Phi = features.evaluate(KERNEL, rows.X)
    sizes = [len(block) for block in blocks]
    cuts = np.cumsum([4, *(size**2 for size in sizes)])

    def split(vector: Array) -> tuple[Array, Array]:
        S = np.zeros((4, 4))
        for block, (start, stop) in zip(blocks, pairwise(cuts)):
            root = np.tril(vector[start:stop].reshape(len(block), -1))
            S[np.ix_(block, block)] = root @ root.T
        return vector[:4], S

    start = np.concatenate([np.zeros(4), *(np.eye(size).ravel() for size in sizes)])
    found = minimize(
        lambda v: -uncollapsed(rows, Phi, *split(v)), start, method="BFGS", options={"gtol": 1e-4}
    )
    posterior = factorised_posterior(moments, NOISE, blocks)
    assert -found.fun == pytest.approx(posterior.bound.total, abs=1e-6)
    mean, S = split(found.x)
    np.testing.assert_allclose(posterior.mean[:, 0], mean, atol=1e-3)
    np.testing.assert_allclose(posterior.covariance, S, atol=1e-3)


@pytest.mark.parametrize("num_targets", [1, 3])
def test_one_block_is_titsias_bound_and_more_are_worse(num_targets: int) -> None:
    _, _, moments = make(6, num_targets)
    full = titsias_bound(moments, NOISE)
    assert factorised_posterior(moments, NOISE, 6).bound.total == pytest.approx(
        full.total, rel=1e-13
    )
    # Each partition refines the one before.
    partitions = [6, [4, 2], 2, 1]
    bounds = [factorised_posterior(moments, NOISE, blocks).bound for blocks in partitions]
    for coarse, fine in pairwise(bounds):
        assert fine.total < coarse.total - 1e-3
        assert fine.data_fit == pytest.approx(full.data_fit)
        assert fine.trace == full.trace


def test_targets_add_up() -> None:
    rows, features, moments = make(6, 3)
    single = [
        factorised_posterior(
            moments_from_rows(features, KERNEL, rows.X, column), NOISE, 2
        ).bound.total
        for column in rows.y.T
    ]
    assert factorised_posterior(moments, NOISE, 2).bound.total == pytest.approx(
        sum(single), rel=1e-12
    )


def test_mean_field_variances_are_reciprocal_diagonals() -> None:
    _, _, moments = make()
    posterior = factorised_posterior(moments, NOISE, 1)
    variances = np.diag(1 / (1 + np.diag(moments.gram) / NOISE))
    np.testing.assert_allclose(posterior.covariance, variances, rtol=1e-12)


def test_mean_is_that_of_the_full_posterior() -> None:
    rows, features, moments = make(6, 2)
    Phi = features.evaluate(KERNEL, rows.X)
    K = oracles.rbf(rows.X[:, None] - rows.X, 1.3, 0.5)
    posterior = factorised_posterior(moments, NOISE, [[5, 0], [1, 2, 4], [3]])
    # Σ φ_m m_m is the mean of a process with covariance Q, whatever the blocks.
    Q = Phi @ Phi.T
    assert np.max(np.abs(K - Q)) > 1e-4
    mean, _ = oracles.posterior(Q, Q, Q, rows.y, NOISE)
    np.testing.assert_allclose(Phi @ posterior.mean, mean, atol=1e-10)


def test_independent_blocks_lose_nothing() -> None:
    gram = np.zeros((5, 5))
    gram[:2, :2] = [[3.0, 1.0], [1.0, 2.0]]
    gram[2:, 2:] = 2 * np.eye(3) + 0.5
    moments = Moments(gram, np.ones((5, 1)), np.array([9.0]), 0.3, 20.0, 0.0)
    full = titsias_bound(moments, NOISE).total
    assert factorised_posterior(moments, NOISE, [2, 3]).bound.total == pytest.approx(
        full, rel=1e-13
    )
    assert factorised_posterior(moments, NOISE, [3, 2]).bound.total < full - 1e-3


def test_two_independent_blocks_stand_between_the_first_and_the_full_posterior() -> None:
    # q(u)q(v) of SOLVE-GP.
    rows, _, _ = make()
    Z = np.linspace(rows.X.min(), rows.X.max(), 8)[:, None]
    halves = InducingPoints(Z=Z[::2]), InducingPoints(Z=Z[1::2])
    moments = moments_from_rows(TwoBlock(*halves), KERNEL, rows.X, rows.y)
    full = titsias_bound(moments, NOISE).total
    first = titsias_bound(moments_from_rows(halves[0], KERNEL, rows.X, rows.y), NOISE).total
    both = factorised_posterior(moments, NOISE, [4, 4]).bound.total
    assert first + 1 < both < full


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        (0, "at least one feature, got a size of 0"),
        ([3, 2], r"add up to 6 features, got \[3, 2\]"),
        ([7, -1], "must be positive"),
        ([[0, 1], [2, 3]], "6 features, counted from 0, must be in exactly one block"),
        ([[0, 1, 2], [2, 3, 4, 5]], "exactly one block"),
        ([[1, 2, 3], [4, 5, 6]], "exactly one block"),
    ],
)
def test_blocks_must_be_a_partition(blocks: object, message: str) -> None:
    _, _, moments = make()
    with pytest.raises(InputError, match=message):
        factorised_posterior(moments, NOISE, blocks)  # type: ignore[arg-type]
