"""Families on more columns than a lattice has: joint models, learned from the rows."""

import numpy as np
import pytest

from orthogp import GPRegressor
from orthogp.errors import FeatureError, KernelError
from orthogp.features import InducingPoints, MeanPrior, RandomFourier, TwoBlock
from orthogp.inference.moments import RowSource
from orthogp.inference.objective import FamilyObjective
from orthogp.inference.parameters import learned_slots
from orthogp.kernels import RBF, Categorical, Kernel, Matern, Matern32, Matern52, RationalQuadratic
from orthogp.learning.problem import Start
from orthogp.rows import Rows
from tests import oracles

NOISE = 0.05
LENGTHS = np.array([0.8, 1.0, 1.2, 1.5, 2.0, 2.5])


def make_data(num_rows: int = 90, num_dims: int = 6, seed: int = 0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (num_rows, num_dims))
    f = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2]
    return X, f + np.sqrt(NOISE) * rng.normal(size=num_rows)


def covariance(A, B):
    return oracles.matern52(A[:, None] - B[None], 1.3, LENGTHS)


def fixed(features, **changes) -> GPRegressor:
    kernel = Matern52(1.3, LENGTHS)
    return GPRegressor(
        kernel, features=features, noise_variance=NOISE, learn=False, mean=None, **changes
    )


FAMILIES = [
    InducingPoints(30),
    InducingPoints(30, placement="greedy-variance"),
    TwoBlock(InducingPoints(15), InducingPoints(15)),
    TwoBlock(InducingPoints(15), InducingPoints(15, placement="greedy-variance")),
]


# ---------------------------------------------------------------------- against the exact process


@pytest.mark.parametrize("features", FAMILIES, ids=["kmeans", "greedy", "two", "two-greedy"])
def test_bounds_enclose_the_exact_evidence(features) -> None:
    X, y = make_data()
    exact = oracles.log_marginal_likelihood(covariance(X, X), y, NOISE)
    model = fixed(features).fit(X, y)
    assert model.elbo_ < model.tightened_bound_ < exact < model.upper_bound_


def test_points_at_the_rows_predict_as_the_exact_process() -> None:
    X, y = make_data()
    new = make_data(20, seed=1)[0]
    K = covariance(X, X) + NOISE * np.eye(len(X))
    cross = covariance(new, X)
    mean = cross @ np.linalg.solve(K, y)
    variance = 1.3 - np.sum(cross * np.linalg.solve(K, cross.T).T, axis=1)
    errors = []
    for number in (10, 30, 60):
        found = fixed(InducingPoints(number)).fit(X, y).predict(new)
        errors.append(np.sqrt(np.mean((found - mean) ** 2)))
    assert errors[0] > errors[1] > errors[2]
    model = fixed(InducingPoints(Z=X)).fit(X, y)
    found, deviation = model.predict(new, return_std=True)
    np.testing.assert_allclose(found, mean, atol=1e-6)
    np.testing.assert_allclose(deviation, np.sqrt(variance), atol=1e-6)
    _, joint = model.predict(new, return_cov=True)
    expected = covariance(new, new) - cross @ np.linalg.solve(K, cross.T)
    np.testing.assert_allclose(joint, expected, atol=1e-6)
    assert model.certificate_.gap < 1e-4


@pytest.mark.parametrize(
    ("features", "kernel"),
    [
        (InducingPoints(12, learn=True), Matern52(1.3, LENGTHS)),
        (TwoBlock(InducingPoints(6, learn=True), InducingPoints(6)), RBF(1.3, LENGTHS)),
        (RandomFourier(20), Matern(1.3, 1.1, LENGTHS)),
        (RandomFourier(20), RationalQuadratic(1.3, LENGTHS, 0.8)),
        (RandomFourier(20), RBF(1.0, 0.7).on(0, 1, 2, 3) + Matern32(0.5, 1.0).on(4, 5)),
    ],
    ids=["points", "two", "matern", "rational", "sum"],
)
def test_gradient_of_the_bound_is_that_of_differences(features, kernel: Kernel) -> None:
    X, y = make_data(30)
    placed = features.from_rows(kernel, X)
    source = RowSource(
        placed, kernel, learned_slots(kernel), Rows(X, y[:, None]), MeanPrior(1.0), repeats=True
    )
    objective = FamilyObjective(source)
    vector = objective.vector(Start(kernel, NOISE))
    _, gradient = objective.value_and_gradient(vector)
    for i in np.linspace(0, len(vector) - 1, min(len(vector), 6)).astype(int):
        step = np.zeros(len(vector))
        step[i] = 1e-5
        up, down = objective.value(vector + step), objective.value(vector - step)
        assert gradient[i] == pytest.approx((up - down) / 2e-5, rel=2e-4, abs=2e-4)


# ---------------------------------------------------------------------- random frequencies


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "k"),
    [
        (RBF(1.3, LENGTHS), lambda lag: oracles.rbf(lag, 1.3, LENGTHS)),
        (Matern32(1.3, LENGTHS), lambda lag: oracles.matern32(lag, 1.3, LENGTHS)),
        (Matern(0.7, 1.3, LENGTHS), lambda lag: oracles.matern(lag, 0.7, 1.3, LENGTHS)),
        (
            RationalQuadratic(1.3, LENGTHS, 0.6),
            lambda lag: oracles.rational_quadratic(lag, 1.3, LENGTHS, 0.6),
        ),
        (
            Matern32(1.3, LENGTHS[:2]).on(0, 1) * RBF(1.0, LENGTHS[2:]).on(2, 3, 4, 5),
            lambda lag: (
                oracles.matern32(lag[..., :2], 1.3, LENGTHS[:2])
                * oracles.rbf(lag[..., 2:], 1.0, LENGTHS[2:])
            ),
        ),
        (
            (RBF(0.5, 0.9) + Matern32(0.8, 1.4)).on(0, 1, 2, 3, 4, 5),
            lambda lag: oracles.rbf(lag, 0.5, 0.9) + oracles.matern32(lag, 0.8, 1.4),
        ),
    ],
    ids=["rbf", "matern32", "matern", "rational", "product", "sum"],
)
def test_random_kernels_have_the_kernel_as_their_mean(kernel: Kernel, k) -> None:
    # Each of R cosines lies in [−1, 1]: by Hoeffding's inequality an entry of Q is farther than t
    # from its mean with a probability of at most 2 exp(−R t²/(2 k(0)²)), here 1e-9. A sum of two
    # has half of the draws for each term, Σ 2v_i²/R = 1.78/R in place of k(0)²/R = 1.69/R, and
    # 3e-9. The 28 entries in each of six cases give false alarms for fewer than 2e-7 of all seeds.
    X = make_data(8)[0]
    draws = 20_000
    Phi = RandomFourier(2 * draws, seed=3).evaluate(kernel, X)
    Q = Phi @ Phi.T
    bound = 1.3 * np.sqrt(2 * np.log(2e9) / draws)
    assert bound < 0.07
    np.testing.assert_allclose(Q, oracles.gram_matrix(k, X, X), atol=bound)
    np.testing.assert_allclose(np.diag(Q), 1.3, rtol=1e-12)


def test_the_seed_fixes_the_draw() -> None:
    X, y = make_data()
    one, same, other = (
        fixed(RandomFourier(40, seed=seed)).fit(X, y).predict(X[:5]) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, same)
    assert np.max(np.abs(one - other)) > 1e-3


def test_random_features_learn_and_certify_nothing() -> None:
    X, y = make_data(200, 5)
    model = GPRegressor("rbf", features="random-fourier", num_features=100).fit(X, y)
    assert np.sqrt(np.mean((model.predict(X) - y) ** 2)) < 1.3 * np.sqrt(NOISE)
    # The first three columns matter, the others do not.
    lengths = np.asarray(model.kernel_.parameters()["lengthscale"])
    assert lengths[:3].max() < lengths[3:].min()
    assert not model.certificate_.holds
    assert "replace the kernel's prior" in model.summary()


# ---------------------------------------------------------------------- the estimator


@pytest.mark.parametrize(
    "features",
    [
        "inducing-points",
        InducingPoints(40, learn=True),
        TwoBlock(InducingPoints(20), InducingPoints(20, placement="greedy-variance")),
    ],
    ids=["name", "learned", "two"],
)
def test_columns_act_jointly_and_lengthscales_tell_which_matter(features) -> None:
    X, y = make_data(200, 5)
    number = 40 if isinstance(features, str) else "auto"
    model = GPRegressor("matern52", features=features, num_features=number).fit(X, y)
    assert model.engine_ == "features"
    assert isinstance(model.kernel_, Matern52)
    assert "linear" in model.summary()
    lengths = np.asarray(model.kernel_.parameters()["lengthscale"])
    assert lengths[:3].max() < lengths[3:].min()
    new = make_data(100, 5, seed=2)[0]
    truth = np.sin(2 * new[:, 0]) + new[:, 1] * new[:, 2]
    assert np.sqrt(np.mean((model.predict(new) - truth) ** 2)) < 0.15


def test_learned_points_have_no_worse_a_bound() -> None:
    X, y = make_data(150, 5)
    still, moved = (
        GPRegressor("rbf", features=InducingPoints(15, learn=learn)).fit(X, y)
        for learn in (False, True)
    )
    assert moved.tightened_bound_ > still.tightened_bound_ + 1


def test_rows_come_and_go() -> None:
    X, y = make_data(120, 5)
    settings = {"features": "inducing-points", "num_features": 30}
    whole = GPRegressor("rbf", **settings).fit(X, y)
    model = GPRegressor("rbf", **settings).fit(X[:90], y[:90])
    model.partial_fit(X[90:], y[90:])
    assert model.statistics_.rows == 120
    assert model.elbo_ == pytest.approx(whole.elbo_, abs=1.0)
    model.forget(X[90:], y[90:])
    again = GPRegressor("rbf", **settings).fit(X[:90], y[:90])
    assert model.statistics_.rows == 90
    assert model.elbo_ == pytest.approx(again.elbo_, abs=1.0)
    assert model.engine_ == "features"


@pytest.mark.parametrize(
    "features",
    [InducingPoints(20), TwoBlock(InducingPoints(9), InducingPoints(9)), RandomFourier(20)],
    ids=["points", "two", "random"],
)
def test_files_give_the_model_back(features, tmp_path) -> None:
    X, y = make_data()
    model = fixed(features).fit(X, y)
    model.save(tmp_path / "model.orthogp")
    loaded = GPRegressor.load(tmp_path / "model.orthogp")
    for mine, other in zip(
        model.predict(X[:9], return_std=True), loaded.predict(X[:9], return_std=True), strict=True
    ):
        np.testing.assert_array_equal(mine, other)
    assert loaded.summary() == model.summary()
    more = make_data(30, seed=4)
    np.testing.assert_allclose(
        loaded.partial_fit(*more).predict(X[:9]), model.partial_fit(*more).predict(X[:9])
    )


def test_weights_are_repeats() -> None:
    X, y = make_data(60)
    weights = np.repeat([1, 2, 0], 20)
    twice = np.repeat(np.arange(60), weights)
    one = fixed(InducingPoints(Z=X[:15])).fit(X, y, weights)
    other = fixed(InducingPoints(Z=X[:15])).fit(X[twice], y[twice])
    assert one.elbo_ == pytest.approx(other.elbo_, rel=1e-9)
    np.testing.assert_allclose(one.predict(X[:5]), other.predict(X[:5]), rtol=1e-7)


def test_several_targets_share_a_kernel() -> None:
    X, y = make_data(100, 5)
    both = np.stack([y, X[:, 3] - y], axis=1)
    model = GPRegressor("rbf", features="inducing-points", num_features=30).fit(X, both)
    mean, deviation = model.predict(X[:7], return_std=True)
    assert mean.shape == deviation.shape == (7, 2)
    assert np.sqrt(np.mean((model.predict(X) - both) ** 2)) < 1.3 * np.sqrt(NOISE)


def test_categories_have_points_at_their_codes() -> None:
    X, y = make_data(80, 5)
    X[:, 4] = np.random.default_rng(0).integers(0, 3, 80)
    kernel = RBF(1.0, 1.0).on(0, 1, 2, 3) * Categorical(3).on(4)
    model = GPRegressor(kernel, features=InducingPoints(20)).fit(X, y)
    codes = model.features_.Z[:, 4]
    np.testing.assert_array_equal(codes, np.round(codes))


@pytest.mark.slow
def test_the_report_shows_each_column_with_the_others_in_the_middle(tmp_path) -> None:
    X, y = make_data(80, 5)
    model = GPRegressor("rbf", features="inducing-points", num_features=20).fit(X, y)
    model.diagnose(X, y)
    model.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "all other inputs in the middle of their ranges" in page
    model.plot(path=tmp_path / "fit.png")
    # Columns that do not matter have the longest lengthscales, and nobody is warned of them.
    assert "limit" not in model.status_


# ---------------------------------------------------------------------- data that are odd


def test_as_many_points_as_rows_have_places_unless_told() -> None:
    X, y = make_data(30, 5)
    twice = np.concatenate([X, X]), np.concatenate([y, y + 0.1])
    model = GPRegressor("rbf", features="inducing-points").fit(*twice)
    assert model.num_features_ == 30
    assert model.certificate_.gap < 1


def test_a_function_without_noise_on_a_constant_column() -> None:
    X, _ = make_data(100, 5)
    X[:, 4] = 7.0
    with pytest.warns(UserWarning, match="constant"):
        model = GPRegressor("rbf", features="inducing-points").fit(X, np.sin(2 * X[:, 0]))
    np.testing.assert_allclose(model.predict(X), np.sin(2 * X[:, 0]), atol=1e-3)


@pytest.mark.parametrize(
    ("kernel", "features", "error", "message"),
    [
        ("rbf", "trig", FeatureError, 'at most 3 columns jointly, got 5: use "inducing-points"'),
        (RBF(), "hermite", FeatureError, "at most 3 columns jointly"),
        ("rbf", InducingPoints(200), FeatureError, "as many distinct rows, but X has 60"),
        ("rbf", InducingPoints(Z=np.zeros((3, 2))), FeatureError, "Z has 2 columns"),
        ("quasi-periodic", "random-fourier", KernelError, "Frequencies cannot be drawn"),
        ("additive-rbf", RandomFourier(4), FeatureError, "use a larger num_features"),
    ],
)
def test_refusals_name_the_remedy(kernel, features, error, message: str) -> None:
    X, y = make_data(60, 5)
    with pytest.raises(error, match=message):
        GPRegressor(kernel, features=features).fit(X, y)
