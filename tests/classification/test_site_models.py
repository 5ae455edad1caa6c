"""Additive models of labels against the same written out with dense matrices."""

import numpy as np
import pytest

from orthogp.classification.passes import Pass, SiteAscent, SiteModel
from orthogp.classification.sites import LogisticSites, Marginals, PolyaGammaSites
from orthogp.features import AdditiveLattice, Lattice, MeanPrior
from orthogp.inference import Domain
from orthogp.inference.parameters import pack
from orthogp.kernels import RBF, Categorical, Cyclic, Matern32
from orthogp.kernels.terms import join_terms, split_terms
from orthogp.precision import BlasThreads
from orthogp.rows import Rows
from orthogp.statistics import AdditiveStatistics, ComponentLattice, FrequencyLattice
from tests import oracles

THREADS = BlasThreads(1)
TERMS = split_terms(
    Matern32(2.0, 0.5).on(0)
    + Cyclic(RBF(1.5, 0.3), 1.0).on(1)
    + Categorical(3, 0.7).on(2)
    + RBF(1.0, [0.6, 0.9]).on(3, 0),
    4,
)
KERNEL = join_terms(TERMS)
LATTICES = [
    FrequencyLattice(2 * np.pi / 4.0, 24, 0.5),
    FrequencyLattice(2 * np.pi / 1.0, 8, 0.5),
    FrequencyLattice(2 * np.pi / 3.0, 1, 0.0),
    FrequencyLattice(2 * np.pi / np.array([5.0, 6.0]), [8, 8], 0.5),
]
COMPONENTS = tuple(
    ComponentLattice(term.columns, lattice, lattice.half_indices())
    for term, lattice in zip(TERMS, LATTICES, strict=True)
)
MEANS = {
    "constant": MeanPrior(4.0),
    "linear": MeanPrior(4.0, 2.0, np.full(4, 0.5), np.array([0.5, np.inf, np.inf, 0.5])),
}


def make_labels(num_rows=50, *, weights=False, seed=0) -> Rows:
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 1, (num_rows, 4))
    X[:, 2] = rng.integers(0, 3, num_rows)
    f = 3 * np.sin(5 * X[:, 0]) + X[:, 2] - 1
    labels = np.where(rng.uniform(size=num_rows) < 1 / (1 + np.exp(-f)), 1.0, -1.0)
    counts = rng.integers(1, 4, num_rows).astype(float) if weights else None
    return Rows(X, labels[:, None], counts)


def make_model(rows, num_features=61, mean="constant", factors=(1, 1, 1, 1)) -> SiteModel:
    sums = AdditiveStatistics.from_data(COMPONENTS, rows)
    thin = sums.thinned(factors)
    features = AdditiveLattice.select(KERNEL, thin.components, num_features, MEANS[mean])
    return SiteModel(features, sums)


class Dense:
    """q(u) of the sites' regression from the features at the rows."""

    def __init__(self, model, sites):
        self.rows, features = sites.rows, model.features
        self.counts = np.ones(len(self.rows.X)) if self.rows.weights is None else self.rows.weights
        self.Phi = features.evaluate(KERNEL, self.rows.X)
        self.left_out = features.residual_variance(KERNEL, self.rows.X)[0]
        weighted = self.Phi.T * (self.counts * sites.precisions)
        self.S = np.linalg.inv(np.eye(features.num_features) + weighted @ self.Phi)
        self.m = self.S @ self.Phi.T @ (self.counts * sites.slopes)

    def marginals(self) -> Marginals:
        return Marginals(
            self.Phi @ self.m, np.sum((self.Phi @ self.S) * self.Phi, axis=1) + self.left_out
        )

    def divergence(self) -> float:
        logdet = np.linalg.slogdet(self.S)[1]
        return (np.trace(self.S) + self.m @ self.m - len(self.m) - logdet) / 2


@pytest.mark.parametrize("kind", [LogisticSites, PolyaGammaSites])
@pytest.mark.parametrize(("weights", "mean"), [(False, "constant"), (True, "linear")])
def test_pass_is_that_of_dense_matrices(kind, weights, mean):
    rows = make_labels(weights=weights)
    rng = np.random.default_rng(1)
    guess = Marginals(rng.standard_normal(50), rng.uniform(0.2, 2.0, 50))
    sites = kind.flat(rows).updated(guess)
    model = make_model(rows, mean=mean)
    assert model.features.num_features < 66
    result = Pass.over(model, KERNEL, sites, THREADS)
    dense = Dense(model, sites)
    f, N = dense.marginals(), dense.counts.sum()
    expected = dense.counts @ sites.expected_log_likelihood(f) - dense.divergence()
    assert result.elbo.total == pytest.approx(expected, rel=1e-9)
    total = dense.counts @ sites.precisions
    trace = -N / 2 * np.log1p(dense.left_out * total / N)
    tightened = f.variance - dense.left_out + dense.left_out / (1 + dense.left_out * total / N)
    better = sites.updated(Marginals(f.mean, tightened))
    np.testing.assert_allclose(result.better.precisions, better.precisions, rtol=1e-7)
    np.testing.assert_allclose(result.better.slopes, better.slopes, rtol=1e-6, atol=1e-8)
    assert result.elbo.trace < -1e-3
    assert trace > result.elbo.trace


@pytest.mark.parametrize("factors", [(1, 1, 1, 1), (2, 1, 1, 1)])
def test_posterior_and_components_are_those_of_dense_matrices(factors):
    rows = make_labels(weights=True)
    sites = LogisticSites.flat(rows)
    model = make_model(rows, factors=factors)
    moments = Pass.over(model, KERNEL, sites, THREADS).objective.moments(KERNEL)
    domain = Domain(np.full(4, -0.5), np.array([1.5, 1.5, 2.5, 1.5]))
    posterior, dense = model.posterior(KERNEL, moments, domain, 1), Dense(model, sites)
    f = posterior.predict(rows.X)
    np.testing.assert_allclose(f.mean[:, 0], dense.marginals().mean, atol=1e-7)
    np.testing.assert_allclose(f.variance, dense.marginals().variance, atol=1e-7)
    share = dense.counts / dense.counts.sum()
    whole = dense.marginals().mean
    for j, own in enumerate(model.features.slices):
        # Centred over the rows as they were weighted, not over their sites.
        mean = dense.Phi[:, own] @ dense.m[own]
        mean = mean - share @ mean
        part = posterior.component(j, rows.X)
        np.testing.assert_allclose(part.mean[:, 0], mean, atol=1e-7)
        variance = share @ (whole - share @ whole) ** 2
        expected = share @ mean**2 / variance
        np.testing.assert_allclose(posterior.shares.components[j, 0], expected, atol=1e-8)


def test_gradient_is_the_difference_of_converged_bounds(monkeypatch):
    from orthogp.classification import passes as classification

    monkeypatch.setattr(classification, "CONVERGED", 1e-12)
    monkeypatch.setattr(classification, "_SHARE", 0.0)
    rows = make_labels(30)
    ascent = SiteAscent(make_model(rows, 21), KERNEL, LogisticSites.flat(rows))
    vector = pack(KERNEL, ascent.slots)
    _, gradient = ascent(vector)
    along = np.random.default_rng(0).standard_normal(len(vector))

    def bound(step):
        return np.asarray(ascent(vector + step[0] * along)[0])

    expected = oracles.fourth_order_difference(bound, np.zeros(1), 1e-2)
    np.testing.assert_allclose(gradient @ along, expected[0], atol=1e-5)


@pytest.mark.parametrize("mean", ["constant", "linear"])
def test_one_component_on_all_columns_is_the_joint_model(mean):
    """Where both are the same model, both ways through the code agree."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (40, 2))
    labels = np.where(X[:, 0] + 0.3 * rng.standard_normal(40) > 0.5, 1.0, -1.0)
    rows, kernel = Rows(X, labels[:, None]), RBF(3.0, [0.4, 0.7])
    slopes = 2.0 if mean == "linear" else 0.0
    prior = MeanPrior(4.0, slopes, np.full(2, 0.5), np.full(2, 0.5))
    lattice = FrequencyLattice(2 * np.pi / np.array([4.0, 5.0]), [9, 9], 0.5)
    own = ComponentLattice((0, 1), lattice, lattice.half_indices())
    sums = AdditiveStatistics.from_data([own], Rows(X, labels))
    term = join_terms(split_terms(kernel, 2))
    additive = SiteModel(AdditiveLattice.select(term, [own], 41, prior), sums)
    joint = SiteModel(Lattice.select(kernel, lattice, 41, prior))
    sites = LogisticSites.flat(rows)
    first = SiteAscent(additive, term, sites).ascend(term)
    second = SiteAscent(joint, kernel, sites).ascend(kernel)
    assert first.bound == pytest.approx(second.bound, rel=1e-10)
    np.testing.assert_allclose(first.sites.precisions, second.sites.precisions, rtol=1e-7)
