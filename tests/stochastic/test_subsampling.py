"""Estimates from some rows and some features: unbiased, with the right gradient."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from orthogp.errors import FeatureError, InputError
from orthogp.features.bands import Trig
from orthogp.features.base import Features
from orthogp.features.inducing import InducingPoints
from orthogp.features.series import Additive, Lattice, MassSeries
from orthogp.inference.moments import moments_from_rows
from orthogp.kernels import RBF, Kernel, Matern32
from orthogp.stochastic.baselines import Draw, MeanField, SubsampledBound, evaluate_some
from orthogp.stochastic.normals import factorised_posterior
from tests import oracles
from tests.oracles import Array
from tests.problems import make_lattice, make_rows, mean_prior

KERNEL = Matern32(1.3, [0.4])


def lattice_features(num_features: int, kind: str | None = None) -> Lattice:
    return Lattice.select(KERNEL, make_lattice(1, 5.0, 40), num_features, mean_prior(kind, 1))


def series_features(num_features: int) -> MassSeries:
    lattice = make_lattice(1, 5.0, 40)
    rows = make_rows(0, 30, 1)
    lower, upper = rows.X.min(axis=0), rows.X.max(axis=0)
    return Trig(num_features).placed(KERNEL, lower, upper, lattice).on(lattice)


def some_q(num_features: int, seed: int = 0) -> MeanField:
    rng = np.random.default_rng(seed)
    return MeanField(
        rng.normal(size=num_features), rng.normal(-1, 0.5, num_features), float(np.log(0.3))
    )


def bound_of_q(Phi: Array, y: Array, q: MeanField, prior: Array) -> float:
    """The ELBO, written out."""
    s, noise = np.exp(q.log_variance), np.exp(q.log_noise)
    total = 0.0
    for phi, target, variance in zip(Phi, y, prior):
        f_variance = variance - phi @ phi + phi @ (s * phi)
        total -= 0.5 * np.log(2 * np.pi * noise)
        total -= ((target - phi @ q.mean) ** 2 + f_variance) / (2 * noise)
    return total - 0.5 * np.sum(s + q.mean**2 - 1 - np.log(s))


# ---------------------------------------------------------------------- some features only


def additive() -> tuple[Kernel, Features, Array]:
    kernel = Matern32(0.5, [0.6]).on(0) + Matern32(0.9, [0.8]).on(1)
    lattice = make_lattice(2, 5.0, 12)
    X = make_rows(1, 15, 2).X
    family = Additive((Trig(5, a=5.0), Trig(7, a=6.0)), ((0,), (1,)))
    series = family.placed(kernel, X.min(axis=0), X.max(axis=0), lattice).on(lattice)
    assert series is not None
    return kernel, series, X


@pytest.mark.parametrize("kind", ["lattice", "lattice with a mean", "series", "additive"])
def test_some_features_are_columns_of_all(kind: str) -> None:
    kernel, X = KERNEL, make_rows(1, 15, 1).X
    if kind == "additive":
        kernel, features, X = additive()
    elif kind == "series":
        features = series_features(9)
    else:
        features = lattice_features(11, "linear" if "mean" in kind else None)
    every = features.evaluate(kernel, X)
    rng = np.random.default_rng(0)
    for size in (1, 4, features.num_features):
        columns = rng.permutation(features.num_features)[:size]
        some = evaluate_some(features, kernel, X, columns)
        np.testing.assert_allclose(some, every[:, columns], rtol=1e-9, atol=1e-12)


def test_cost_does_not_grow_with_the_number_of_features(monkeypatch: pytest.MonkeyPatch) -> None:
    # Masses are asked for the modes of the draw alone, and all features are never evaluated.
    asked = []
    from orthogp.stochastic import baselines

    def counted(kernel: Kernel, lattice: object, indices: Array) -> Array:
        asked.append(len(indices))
        return np.ones(len(indices))

    monkeypatch.setattr(baselines, "lattice_masses", counted)
    monkeypatch.setattr(Lattice, "evaluate", lambda *_: pytest.fail("all features evaluated"))
    lattice = make_lattice(1, 5.0, 50_000)
    features = Lattice(lattice, lattice.half_indices())
    rows = make_rows(2, 20, 1)
    bound = SubsampledBound(features, KERNEL, rows.X, rows.y[:, 0])
    draw = bound.draw(np.random.default_rng(0), 5, 30)
    estimate = bound.estimate(some_q(features.num_features), draw)
    assert asked == [30, 30]
    assert len(estimate.features) <= 60


def test_families_without_single_features_are_refused() -> None:
    rows = make_rows(2, 5, 1)
    features = InducingPoints(Z=rows.X)
    bound = SubsampledBound(features, KERNEL, rows.X, rows.y[:, 0])
    draw = bound.draw(np.random.default_rng(0), 2, 2)
    with pytest.raises(FeatureError, match="InducingPoints cannot evaluate some"):
        bound.estimate(some_q(5), draw)


# ---------------------------------------------------------------------- unbiased


@pytest.mark.parametrize("kind", [None, "linear"])
def test_exact_bound_is_the_uncollapsed_bound(kind: str | None) -> None:
    features, rows = lattice_features(9, kind), make_rows(3, 12, 1)
    q = some_q(features.num_features)
    bound = SubsampledBound(features, KERNEL, rows.X, rows.y[:, 0])
    prior = np.full(12, 1.3) + features.mean.prior_variance(rows.X)
    expected = bound_of_q(features.evaluate(KERNEL, rows.X), rows.y[:, 0], q, prior)
    assert bound.exact(q) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", ["lattice", "series"])
def test_average_over_all_draws_is_the_bound_and_its_gradient(kind: str) -> None:
    # Every pair of rows, and every two pairs of the five features: 3 · 10 · 10 draws.
    features = series_features(5) if kind == "series" else lattice_features(5)
    rows = make_rows(4, 3, 1)
    q = some_q(5)
    bound = SubsampledBound(features, KERNEL, rows.X, rows.y[:, 0])
    pairs = [np.array(pair) for pair in itertools.combinations(range(5), 2)]
    batches = [np.array(pair) for pair in itertools.combinations(range(3), 2)]
    values, gradients = [], []
    for draw in itertools.product(batches, pairs, pairs):
        estimate = bound.estimate(q, Draw(*draw))
        values.append(estimate.value)
        gradient = np.zeros(11)
        gradient[estimate.features] = estimate.mean
        gradient[5 + estimate.features] = estimate.log_variance
        gradient[-1] = estimate.log_noise
        gradients.append(gradient)
    exact = bound.exact(q)
    assert np.std(values) > 0.1
    assert np.mean(values) == pytest.approx(exact, rel=1e-12)
    at = np.concatenate([q.mean, q.log_variance, [q.log_noise]])
    expected = oracles.fourth_order_difference(
        lambda v: np.asarray(bound.exact(MeanField(v[:5], v[5:10], float(v[10])))), at, 1e-3
    )
    np.testing.assert_allclose(np.mean(gradients, axis=0), expected, rtol=1e-8, atol=1e-8)


def test_random_draws_are_unbiased() -> None:
    # A two-sided test of the mean of 2000 estimates; six standard errors are false alarms at 2e-9.
    features, rows = lattice_features(21), make_rows(5, 40, 1)
    q = some_q(21)._replace(mean=0.3 * some_q(21).mean)
    bound = SubsampledBound(features, KERNEL, rows.X, rows.y[:, 0])
    rng = np.random.default_rng(0)
    values = [bound.estimate(q, bound.draw(rng, 10, 7)).value for _ in range(2000)]
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    assert abs(np.mean(values) - bound.exact(q)) < 6 * error
    # ... and sharp enough to notice an estimate that squares one set of features.
    assert error < 0.02 * abs(bound.exact(q))


def test_everything_drawn_is_the_bound_itself() -> None:
    features, rows = lattice_features(7), make_rows(6, 9, 1)
    q = some_q(7)
    bound = SubsampledBound(features, KERNEL, rows.X, rows.y[:, 0])
    estimate = bound.estimate(q, bound.draw(np.random.default_rng(0), 9, 7))
    assert estimate.value == pytest.approx(bound.exact(q), rel=1e-12)
    np.testing.assert_array_equal(estimate.features, np.arange(7))


# ---------------------------------------------------------------------- gradients


@pytest.mark.parametrize("sizes", [(3, 4), (5, 2)])
def test_gradient_of_one_draw_is_the_difference(sizes: tuple[int, int]) -> None:
    features, rows = lattice_features(9, "linear"), make_rows(7, 12, 1)
    m = features.num_features
    q = some_q(m)
    bound = SubsampledBound(features, KERNEL, rows.X, rows.y[:, 0])
    rng = np.random.default_rng(1)
    # Sets of unequal size that overlap.
    first, second = (rng.choice(m, size, replace=False) for size in sizes)
    draw = Draw(np.array([0, 3, 7, 8]), np.append(first, 0)[-3:], np.unique(np.append(second, 0)))
    assert np.intersect1d(draw.first, draw.second).size > 0
    estimate = bound.estimate(q, draw)
    at = np.concatenate([q.mean, q.log_variance, [q.log_noise]])

    def value(v: Array) -> Array:
        return np.asarray(bound.estimate(MeanField(v[:m], v[m:-1], float(v[-1])), draw).value)

    expected = oracles.fourth_order_difference(value, at, 1e-3)
    gradient = np.zeros(2 * m + 1)
    gradient[estimate.features] = estimate.mean
    gradient[m + estimate.features] = estimate.log_variance
    gradient[-1] = estimate.log_noise
    np.testing.assert_allclose(gradient, expected, rtol=1e-7, atol=1e-7)


def test_stochastic_ascent_approaches_the_optimum() -> None:
    rows = make_rows(8, 200, 1)
    features = lattice_features(21)
    y = rows.y[:, 0]
    bound = SubsampledBound(features, KERNEL, rows.X, y)
    moments = moments_from_rows(features, KERNEL, rows.X, y)
    best = factorised_posterior(moments, 0.3, 1)
    q = MeanField(np.zeros(21), np.zeros(21), float(np.log(0.3)))
    start = bound.exact(q)
    assert best.bound.total > start + 500
    rng = np.random.default_rng(0)
    for step in range(1500):
        estimate = bound.estimate(q, bound.draw(rng, 50, 15))
        rate = 1 / (50 + step)
        touched = estimate.features
        # Scaled by the curvature 1 + A_jj/σ², known from the factorised optimum.
        scale = np.diag(best.covariance)[touched]
        q.mean[touched] += 15 * rate * scale * estimate.mean
        q.log_variance[touched] += 2 * rate * estimate.log_variance.clip(-5, 5)
    assert bound.exact(q) > start + 0.9 * (best.bound.total - start)
    assert bound.exact(q) <= best.bound.total


@pytest.mark.slow
def test_maximise_comes_within_a_few_nats_of_the_best_factorised_q() -> None:
    rows, features = make_rows(8, 200, 1), lattice_features(21)
    y = rows.y[:, 0]
    bound = SubsampledBound(features, KERNEL, rows.X, y)
    best = factorised_posterior(moments_from_rows(features, KERNEL, rows.X, y), 0.3, 1)
    start = MeanField.prior(21, 0.3)
    assert bound.exact(start) < best.bound.total - 500
    found = [
        bound.maximise(start, np.random.default_rng(seed), num_rows=50, num_features=15)
        for seed in (0, 0, 1)
    ]
    # The start is left alone, and the seed decides everything.
    np.testing.assert_array_equal(start.mean, np.zeros(21))
    np.testing.assert_array_equal(found[0].mean, found[1].mean)
    assert not np.array_equal(found[0].mean, found[2].mean)
    for q in found:
        assert best.bound.total - 10 < bound.exact(q) <= best.bound.total
        assert q.log_noise == start.log_noise


def test_features_that_were_not_drawn_stay() -> None:
    rows, features = make_rows(8, 20, 1), lattice_features(21)
    bound = SubsampledBound(features, KERNEL, rows.X, rows.y[:, 0])
    start, rng = MeanField.prior(21, 0.3), np.random.default_rng(0)
    moved = bound.maximise(start, rng, num_rows=5, num_features=3, num_steps=1)
    assert 3 <= np.count_nonzero(moved.mean) <= 6
    np.testing.assert_array_equal(moved.mean != 0, moved.log_variance != 0)


def test_example_of_the_page_prints_what_it_shows(capsys: pytest.CaptureFixture) -> None:
    page = Path(__file__).parents[2] / "docs" / "paper.md"
    (pair,) = re.findall(
        r"```python\n(.*?)```\n\n```text\n(.*?)```", page.read_text("utf-8"), re.DOTALL
    )
    exec(compile(pair[0], str(page), "exec"), {"__name__": "page"})
    # Sums in another order end a nat away at most.
    found, shown = (
        [float(number) for number in re.findall(r"-?[0-9]+", text)]
        for text in (capsys.readouterr().out, pair[1])
    )
    assert len(shown) == 2
    np.testing.assert_allclose(found, shown, atol=1)


# ---------------------------------------------------------------------- bad input


def test_impossible_draws_and_targets_are_refused() -> None:
    features, rows = lattice_features(7), make_rows(9, 9, 1, 2)
    with pytest.raises(InputError, match=r"one target .* 9 rows, got shape \(9, 2\)"):
        SubsampledBound(features, KERNEL, rows.X, rows.y)
    bound = SubsampledBound(features, KERNEL, rows.X, rows.y[:, 0])
    rng = np.random.default_rng(0)
    for sizes in ((0, 1), (10, 1), (1, 0), (1, 8)):
        with pytest.raises(InputError, match="1 to 9 rows and 1 to 7 features"):
            bound.draw(rng, *sizes)


class _OwnPrior(Lattice):
    projects = False


def test_features_with_their_own_prior_are_refused() -> None:
    lattice = make_lattice(1, 5.0, 4)
    features = _OwnPrior(lattice, lattice.half_indices())
    with pytest.raises(FeatureError, match="_OwnPrior replace the prior"):
        SubsampledBound(features, RBF(), np.zeros((3, 1)), np.zeros(3))
