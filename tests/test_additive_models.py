"""Additive models of many columns, as a user meets them."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.linear_model import Ridge

from orthogp import (
    FeatureError,
    GPRegressor,
    InputError,
    KernelError,
    LatticeMismatchError,
    OutOfDomainWarning,
    StochasticGPRegressor,
)
from orthogp.kernels import RBF, Categorical, Cyclic, Matern32, Sum, additive
from tests import oracles

NAMES = ["width", "depth", "hour", "kind", "idle"]
KINDS = np.array([0.0, 1.0, -1.0])


def truth(X):
    return np.stack(
        [
            np.sin(5 * X[:, 0]),
            2 * (X[:, 1] - 0.5) ** 2,
            np.cos(2 * np.pi * X[:, 2] / 24),
            KINDS[X[:, 3].astype(int)],
        ]
    )


def rows(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 1, (n, 5))
    X[:, 2] *= 24
    X[:, 3] = rng.integers(0, 3, n)
    return X, truth(X).sum(axis=0) + 0.1 * rng.standard_normal(n)


X, Y = rows(400)
KERNEL = additive("rbf", 5, categorical={3: 3}, periodic={2: 24.0})
FIXED = (
    RBF(1.0, 0.4).on(0)
    + RBF(0.5, 0.5).on(1)
    + Cyclic(RBF(1.0, 5.0), 24.0).on(2)
    + Categorical(3, 0.8).on(3)
    + RBF(0.3, 0.6).on(4)
)


def regressor(kernel=KERNEL, solver="dense", **options):
    return GPRegressor(kernel, max_features=150, solver=solver, **options)


@pytest.fixture(scope="module")
def model():
    return regressor().fit(pd.DataFrame(X, columns=NAMES), Y)


def test_components_are_found(model):
    components = model.components()
    assert [component.name for component in components] == NAMES
    assert [component.columns for component in components] == [(0,), (1,), (2,), (3,), (4,)]
    effects = truth(X)
    for component, effect in zip(components, effects, strict=False):
        j = component.columns[0]
        mean, std = component.predict(X[:, j], return_std=True)
        centred = effect - effect.mean()
        assert np.sqrt(np.mean((mean - centred) ** 2)) < 0.03
        assert np.all(std > 0)
        assert std.mean() < 0.06
        assert component.share == pytest.approx(np.var(effect) / np.var(Y), abs=0.03)
        of_rows = model.predict_component(j, pd.DataFrame(X, columns=NAMES), return_std=True)
        np.testing.assert_allclose(of_rows, (mean, std))
    assert components[4].share < 1e-3
    assert model.residual_share_ == pytest.approx(0.01 / np.var(Y), rel=0.2)


def test_components_add_up_to_the_prediction(model):
    frame = pd.DataFrame(X, columns=NAMES)
    total = sum(model.predict_component(j, frame) for j in range(5))
    offset = model.predict(frame) - total
    np.testing.assert_allclose(offset, offset.mean(), atol=1e-8)
    # A ridge towards the broad prior's mean apart, the offset is the average of y.
    assert offset.mean() == pytest.approx(Y.mean(), abs=1e-3)


def test_summary_lists_the_components(model):
    text = model.summary()
    for name in NAMES:
        assert f" {name} " in text
    assert "% of the variance  Cyclic RBF: " in text
    assert "period 24" in text
    assert "3 levels" in text
    assert "residual" in text
    assert "5 lattices" in text
    assert model.elbo_ <= model.tightened_bound_ <= model.upper_bound_


def test_noise_and_predictions(model):
    assert model.noise_variance_ == pytest.approx(0.01, rel=0.2)
    X_new, _ = rows(200, seed=1)
    mean, std = model.predict(pd.DataFrame(X_new, columns=NAMES), return_std=True)
    error = np.abs(mean - truth(X_new).sum(axis=0))
    assert np.sqrt(np.mean(error**2)) < 0.04
    assert np.mean(error < 3 * std) > 0.95
    frame = pd.DataFrame(X_new[:3], columns=NAMES)
    _, covariance = model.predict(frame, return_cov=True)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), std[:3], rtol=1e-5)
    assert model.sample_y(frame, 4, random_state=0).shape == (3, 4)


def test_plot_has_a_panel_for_each_component(model, tmp_path):
    path = tmp_path / "components.png"
    figure = model.plot_components(path, ylabel="effect (mm)")
    assert path.stat().st_size > 10_000
    titles = [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")]
    assert [title.split(":")[0] for title in titles] == NAMES
    assert len(model.plot_components(components=[0, 3]).axes) == 2
    with pytest.raises(InputError, match="must end in"):
        model.plot_components("components.doc")


@pytest.mark.slow
def test_maps_of_two_columns_are_drawn(tmp_path):
    kernel = RBF(lengthscale=0.5).on(0, 1) + RBF().on(2) + RBF().on(3)
    own = GPRegressor(kernel, max_features=60).fit(X, Y)
    assert own.components()[0].name == "column 0 × column 1"
    assert own.components()[0].predict(X[:4, :2]).shape == (4,)
    figure = own.plot_components(tmp_path / "map.svg")
    assert sum(len(axes.images) for axes in figure.axes) == 1


def test_posterior_is_that_of_the_exact_process():
    rng = np.random.default_rng(2)
    inputs, new = rng.uniform(0, 1, (60, 4)), rng.uniform(0, 1, (10, 4))
    targets = Y[:60]
    scales = [(0.7, 0.4), (1.0, 0.5), (1.0, 0.5), (0.2, 0.6)]
    kernel = Sum(tuple(RBF(v, s).on(i) for i, (v, s) in enumerate(scales)))
    own = GPRegressor(
        kernel, learn=False, noise_variance=0.05, mean=None, wrap_tolerance=1e-9, num_features=300
    ).fit(inputs, targets)

    def gram(A, B):
        lags = A[:, None] - B[None]
        return sum(oracles.rbf(lags[..., i : i + 1], *scale) for i, scale in enumerate(scales))

    gain = np.linalg.solve(gram(inputs, inputs) + 0.05 * np.eye(60), gram(inputs, new)).T
    mean, std = own.predict(new, return_std=True)
    np.testing.assert_allclose(mean, gain @ targets, atol=1e-6)
    variance = np.diag(gram(new, new) - gain @ gram(inputs, new))
    np.testing.assert_allclose(std**2, variance, atol=1e-6)
    assert own.certificate_.holds


def test_single_category_is_a_ridge_on_indicators():
    codes = X[:, 3:4]
    own = GPRegressor(Categorical(3, 0.5), learn=False, noise_variance=0.2, mean=None).fit(codes, Y)
    indicators = (codes == np.arange(3)).astype(float)
    ridge = Ridge(alpha=0.2 / 0.5, fit_intercept=False).fit(indicators, Y)
    levels = np.arange(3.0)[:, None]
    np.testing.assert_allclose(own.predict(levels), ridge.coef_, atol=1e-9)
    counts = indicators.sum(axis=0)
    _, std = own.predict(levels, return_std=True)
    np.testing.assert_allclose(std**2, 1 / (1 / 0.5 + counts / 0.2), rtol=1e-8)


def test_single_circle_is_the_dense_process_of_the_wrapped_kernel():
    hours, at = X[:, 2:3], np.linspace(0, 24, 9)[:, None]
    own = GPRegressor(
        Cyclic(RBF(1.0, 4.0), 24.0), learn=False, noise_variance=0.1, mean=None, num_features=61
    ).fit(hours, Y)

    def gram(A, B):
        lags = A[:, None] - B[None]
        return oracles.wrapped(lambda x: oracles.rbf(x, 1.0, 4.0), lags, np.array([24.0]), 5)

    expected = gram(at, hours) @ np.linalg.solve(gram(hours, hours) + 0.1 * np.eye(400), Y)
    np.testing.assert_allclose(own.predict(at), expected, atol=1e-8)
    np.testing.assert_allclose(own.predict(at + 240), expected, atol=1e-8)


@pytest.mark.parametrize(("name", "solver"), [("matern32", "dense"), ("additive-matern32", "auto")])
def test_names_put_one_kernel_on_each_column(name, solver):
    columns = X[:, :4] if name == "matern32" else X[:, :2]
    own = GPRegressor(name, max_features=60, max_seconds=5, solver=solver).fit(columns, Y)
    assert len(own.components()) == columns.shape[1]
    assert "additive, one matern32 kernel on each column" in own.summary()
    assert ("more than three cannot act jointly" in own.summary()) == (name == "matern32")
    assert clone(own).kernel == name


@pytest.mark.parametrize("engine", ["exact", "additive"])
def test_a_plain_name_on_many_columns_is_tried_jointly_and_as_a_sum(engine):
    rng = np.random.default_rng(0)
    inputs = rng.uniform(-1, 1, (300, 4))
    if engine == "exact":
        targets = np.sin(3 * inputs[:, 0] * inputs[:, 1]) + inputs[:, 2] * inputs[:, 3]
    else:
        targets = np.sin(3 * inputs).sum(axis=1)
    targets = targets + 0.1 * rng.standard_normal(300)
    own = GPRegressor("rbf", max_features=60).fit(inputs, targets)
    assert own.engine_ == engine
    scores = {trial.engine: trial.score for trial in own.trials_}
    assert scores.keys() == {"exact", "additive"}
    assert max(scores, key=scores.__getitem__) == engine
    assert "tried: engine, log p(y) per row, seconds" in own.summary()
    assert "cannot act jointly" not in own.summary()


def test_adding_and_removing_rows():
    half = regressor(FIXED, learn=False, noise_variance=0.01).fit(X[:200], Y[:200])
    grown = clone(half).fit(X[:200], Y[:200]).partial_fit(X[200:], Y[200:])
    whole = clone(half).fit(X, Y)
    np.testing.assert_allclose(grown.predict(X), whole.predict(X), atol=0.01)
    assert grown.statistics_.count == 400
    grown.forget(X[200:], Y[200:])
    np.testing.assert_allclose(grown.predict(X), half.predict(X), atol=1e-6)
    further = X[:3].copy()
    further[:, 0] += 100
    with pytest.raises(LatticeMismatchError, match="column 0 extends"):
        half.partial_fit(further, Y[:3])
    further = X[:3].copy()
    further[:, 2] += 24_000
    half.partial_fit(further, Y[:3])


def test_few_rows_have_the_components_of_the_exact_process():
    """A lattice with hardly anything left out has the same, with the same hyperparameters."""
    joint = FIXED + RBF(0.5, [0.7, 0.8]).on(0, 1)
    rng = np.random.default_rng(4)
    settings = {"learn": False, "noise_variance": 0.05, "weights": "precisions"}
    weights = rng.uniform(0.5, 2.0, 400)
    rows = np.concatenate([X, X[:30]]), np.stack([np.append(Y, Y[:30] + 0.3)] * 2, axis=1)
    rows[1][:, 1] *= X[:1, 0] + 1
    own, lattice = (
        GPRegressor(joint, solver=solver, max_features=2000, **settings).fit(
            *rows, np.append(weights, weights[:30])
        )
        for solver in ("auto", "dense")
    )
    assert (own.engine_, lattice.engine_) == ("exact", "additive")
    for j, (one, other) in enumerate(zip(own.components(), lattice.components(), strict=True)):
        assert (one.name, one.columns) == (other.name, other.columns)
        np.testing.assert_allclose(one.share, other.share, rtol=1e-3, atol=1e-6)
        mean, std = own.predict_component(j, X[:40], return_std=True)
        wanted, spread = lattice.predict_component(j, X[:40], return_std=True)
        np.testing.assert_allclose(mean, wanted, atol=2e-3 * spread.max())
        np.testing.assert_allclose(std, spread, rtol=2e-3)
        if one.is_curve and j < 3:
            x = np.linspace(one.lower[0], one.upper[0], 9)[1:-1]
            np.testing.assert_allclose(one.density(x), other.density(x), rtol=1e-2)
    np.testing.assert_allclose(own.residual_share_, lattice.residual_share_, rtol=1e-3)
    assert own.summary().count(" % of the variance ") == len(own.components())


def test_centred_components_of_few_rows_are_those_of_a_joint_gaussian():
    """By the covariance of f_j at points and rows with y, in one matrix."""
    points, few, y = X[:7], X[100:160], Y[100:160]
    kernel = RBF(1.0, 0.4).on(0) + Categorical(3, 0.8).on(3) + RBF(0.3, 0.6).on(1, 4)
    own = GPRegressor(kernel, learn=False, noise_variance=0.04, mean=None).fit(few, y)
    assert own.engine_ == "exact"

    def part(A, B, columns, variance, length):
        lag = A[:, None, columns] - B[None, :, columns]
        return variance * np.exp(-0.5 * np.sum(lag**2, axis=2) / length**2)

    def same(A, B):
        return 0.8 * (A[:, None, 3] == B[None, :, 3])

    terms = [
        lambda A, B: part(A, B, [0], 1.0, 0.4),
        same,
        lambda A, B: part(A, B, [1, 4], 0.3, 0.6),
    ]
    of_y = sum(k(few, few) for k in terms) + 0.04 * np.eye(60)
    both = np.concatenate([points, few])
    centre = np.concatenate([np.eye(7), np.full((7, 60), -1 / 60)], axis=1)
    for j, k in enumerate(terms):
        cross = centre @ k(both, few)
        mean, std = own.predict_component(j, points, return_std=True)
        wanted = cross @ np.linalg.solve(of_y, y - own.target_offset_[0])
        np.testing.assert_allclose(mean, wanted, atol=1e-9)
        covariance = centre @ k(both, both) @ centre.T
        covariance -= cross @ np.linalg.solve(of_y, cross.T)
        np.testing.assert_allclose(std**2, np.diag(covariance), atol=1e-9)


def test_few_rows_of_sums_keep_their_components(tmp_path):
    own = GPRegressor(FIXED, learn=False, noise_variance=0.01).fit(X[:300], Y[:300])
    own.save(tmp_path / "own.orthogp")
    again = GPRegressor.load(tmp_path / "own.orthogp")
    shares = [component.share for component in own.components()]
    assert [component.share for component in again.components()] == shares
    grown, whole = again.partial_fit(X[300:], Y[300:]), clone(own).fit(X, Y)
    np.testing.assert_allclose(grown.predict(X), whole.predict(X), atol=1e-6)
    np.testing.assert_allclose(
        [component.share for component in grown.components()],
        [component.share for component in whole.components()],
        rtol=1e-6,
    )


def test_terms_on_few_rows_are_not_taken_for_noise():
    """A lengthscale far below the distances of rows would make f noisy, and its bands too wide."""
    rng = np.random.default_rng(0)
    wide = rng.uniform(0, 1, (120, 6))
    f = np.sin(6 * wide[:, 0]) + 2 * wide[:, 1] ** 2
    y = f + 0.3 * rng.standard_normal(120)
    own = GPRegressor("additive-matern32").fit(wide, y)
    assert own.engine_ == "exact"
    spacing = 4 * 0.5 / 120
    lengths = [component.kernel.lengthscale for component in own.components()]
    assert np.min(lengths) > 0.7 * spacing
    assert own.noise_variance_ > 0.05
    _, std = own.predict(wide, return_std=True)
    assert np.sqrt(np.mean(std**2)) < 0.25


@pytest.mark.slow
def test_going_on_learning_from_more_rows(model):
    own = regressor().fit(X[:250], Y[:250]).partial_fit(X[250:], Y[250:])
    assert own.elbo_ == pytest.approx(model.elbo_, abs=5)


def test_weights_repeat_rows():
    counts = np.random.default_rng(3).integers(0, 3, 400)
    own = regressor(FIXED, learn=False, noise_variance=0.01)
    weighted = clone(own).fit(X, Y, counts)
    repeated = clone(own).fit(np.repeat(X, counts, axis=0), np.repeat(Y, counts))
    np.testing.assert_allclose(weighted.predict(X), repeated.predict(X), atol=1e-5)
    assert weighted.elbo_ == pytest.approx(repeated.elbo_, rel=1e-6)


def test_several_targets():
    targets = np.stack([Y, 3 * X[:, 0] - 1], axis=1)
    own = regressor(learn=True, max_seconds=5).fit(X, targets)
    assert own.predict(X).shape == (400, 2)
    mean, std = own.predict_component(0, X, return_std=True)
    assert mean.shape == std.shape == (400, 2)
    assert own.components()[0].share.shape == (2,)
    assert own.components()[0].share[1] > 0.9
    assert own.residual_share_.shape == (2,)
    assert "2 targets" in own.summary()
    own.plot_components(target=1)


def test_linear_mean_leaves_slopes_to_the_columns_that_have_them():
    targets = 5 * X[:, 0] + Y
    own = regressor(FIXED, mean="linear", learn=False, noise_variance=0.01).fit(X, targets)
    expected = truth(X).sum(axis=0) + 5 * X[:, 0]
    assert np.sqrt(np.mean((own.predict(X) - expected) ** 2)) < 0.06
    assert np.all(np.isinf(own.posterior_.features.mean.width[[2, 3]]))


def test_derivative_along_a_column(model):
    frame = pd.DataFrame(X[:5], columns=NAMES)
    slope, std = model.predict_derivative(frame, 0)
    assert np.all(np.abs(slope - 5 * np.cos(5 * X[:5, 0])) < 4 * std + 0.1)
    with pytest.raises(InputError, match="up to three columns"):
        model.predict_integral(np.zeros((1, 5)), np.ones((1, 5)))


def test_beyond_the_data_only_the_component_there_is_unknown(model):
    frame = pd.DataFrame(X[:2], columns=NAMES)
    frame.loc[0, "width"] = 1e4
    with pytest.warns(OutOfDomainWarning, match="1 of 2 points"):
        _, std = model.predict(frame, return_std=True)
    assert std[0] > 5 * std[1]
    with pytest.warns(OutOfDomainWarning):
        mean, _ = model.predict_component(0, frame, return_std=True)
    assert mean[0] == 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict_component(1, frame)


def test_domain_is_covered():
    own = regressor(FIXED, learn=False, noise_variance=0.01, domain=(-10, 40)).fit(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, std = own.components()[0].predict([-9.0, 39.0], return_std=True)
    assert np.all(own.domain_.lower <= -10)
    assert np.all(own.domain_.upper >= 40)
    assert np.all(std > 0)


@pytest.mark.parametrize(
    ("kernel", "error", "words"),
    [
        (RBF(), InputError, "at most 3 jointly"),
        (RBF().on(0, 1, 2, 3), InputError, "at most 3 jointly"),
        (RBF().on(0, 1, 2, 3) + RBF().on(4), InputError, r"acts on 4 columns \(0, 1, 2, 3\)"),
        (sum((RBF().on(i) for i in range(3)), start=Sum((RBF().on(7),))), KernelError, "column 7"),
        (KERNEL + Categorical(3), KernelError, "acts on one column"),
        ("additive-nothing", KernelError, "Unknown kernel"),
        (additive("rbf", 5, categorical={3: 2}), InputError, "Column 3 is categorical with codes"),
        (additive("rbf", 5, categorical={0: 2}), InputError, "are others, such as 0."),
    ],
)
def test_bad_models_are_told_apart_in_a_sentence(kernel, error, words):
    with pytest.raises(error, match=words) as raised:
        GPRegressor(kernel, solver="dense").fit(X, Y)
    assert str(raised.value).endswith(".")


def test_bad_requests_are_told_apart_in_a_sentence(model):
    with pytest.raises(FeatureError, match="lattice features"):
        GPRegressor(KERNEL, features="trig").fit(X, Y)
    with pytest.raises(InputError, match="components 0 to 4"):
        model.predict_component(7, pd.DataFrame(X, columns=NAMES))
    with pytest.raises(InputError, match="takes 1 columns, got 2"):
        model.components()[0].predict(X[:, :2])
    with pytest.raises(InputError, match="Column 3 is categorical"):
        model.components()[3].predict([5.0])
    frame = pd.DataFrame(X[:2], columns=NAMES)
    frame.loc[0, "kind"] = 1.5
    with pytest.raises(InputError, match=r"such as 1\.5"):
        model.predict(frame)
    joint = GPRegressor("rbf", learn=False, num_features=5).fit(X[:, :2], Y)
    with pytest.raises(InputError, match='kernel="additive-matern32"'):
        joint.components()


def test_a_curve_for_each_category_is_drawn_as_a_map_of_them():
    kernel = RBF(1.0, 0.4).on(0) + Categorical(3).on(3) * RBF(1.0, 0.5).on(1)
    own = GPRegressor(kernel, num_features=41, learn=False, noise_variance=0.01).fit(X, Y)
    axes = own.plot_components(components=[1]).axes[0]
    (image,) = axes.get_images()
    across = own.components()[1].columns.index(3)
    assert image.get_array().shape[1 - across] == 3
    assert list(image.get_extent()[2 * across : 2 * across + 2]) == [-0.5, 2.5]


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["exact", "dense"])
def test_the_status_calls_columns_what_the_user_does(solver):
    """The kernel sees three of five columns, of which the last has no effect."""
    y = np.sin(6 * X[:, 1]) + np.cos(np.pi * X[:, 2] / 12)
    # Noise in which the evidence sees nothing of that column: in other draws it may see a little.
    noisy = y + 0.1 * np.random.default_rng(6).standard_normal(len(y))
    kernel = RBF().on(1) + Cyclic(RBF(), 24.0).on(2) + RBF().on(4)
    model = GPRegressor(kernel, max_features=49, solver=solver)
    assert "no effect of column 4." in model.fit(X, noisy).status_
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d", "e"])
    assert "no effect of e." in model.fit(frame, noisy).status_


def test_components_of_files_have_the_names_of_their_columns(tmp_path):
    lines = [",".join(f"{value:.6f}" for value in [*row, y]) for row, y in zip(X, Y, strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join(["depth,speed,age,code,rank,out", *lines]))
    settings = {"num_features": 21, "learn": False, "noise_variance": 0.01}
    model = GPRegressor("additive-rbf", **settings)
    model.fit_files(tmp_path / "rows.csv", "out", ["speed", "age"])
    assert [own.name for own in model.components()] == ["speed", "age"]
    assert "components   speed " in model.summary()


def test_batches_refuse_kernels_with_a_period_of_their_own():
    with pytest.raises(KernelError, match="which GPRegressor and GPClassifier have"):
        StochasticGPRegressor(Categorical(3).on(1) + RBF().on(0)).fit(X[:, [0, 3]], Y)


def test_number_of_features_is_the_total():
    own = GPRegressor(FIXED, num_features=21, learn=False, noise_variance=0.01).fit(X, Y)
    assert own.num_features_ == 21
    assert "21 features asked for" in own.status_


@pytest.mark.slow
def test_matern_terms_on_many_columns_learn():
    rng = np.random.default_rng(5)
    wide = rng.uniform(0, 1, (300, 12))
    y = np.sin(6 * wide[:, 3]) + 0.1 * rng.standard_normal(300)
    kernel = Sum(tuple(Matern32(lengthscale=0.3).on(i) for i in range(12)))
    own = GPRegressor(kernel, max_features=120, max_seconds=8).fit(wide, y)
    shares = [component.share for component in own.components()]
    assert np.argmax(shares) == 3
    assert shares[3] > 0.9
    assert "no effect of" in own.status_ or max(np.delete(shares, 3)) < 0.02
