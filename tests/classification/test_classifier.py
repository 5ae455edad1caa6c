"""GPClassifier: what users rely on, end to end."""

import pickle

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from sklearn.base import clone
from sklearn.datasets import make_blobs, make_moons
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process import kernels as sk
from sklearn.metrics import log_loss

from orthogp.classifier import GPClassifier
from orthogp.errors import FitWarning, InputError, KernelError, OutOfDomainWarning
from orthogp.inference.logistic import mean_logistic
from orthogp.kernels import RBF
from orthogp.stochastic.training import TrainingSettings


def coin_flips(num_rows, seed=0):
    """Return inputs, labels 0 and 1, and the probabilities behind them."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 1, (num_rows, 1))
    p = expit(3 * np.sin(9 * X[:, 0]) + 0.5)
    return X, (rng.uniform(size=num_rows) < p).astype(int), p


@pytest.fixture(scope="module")
def fitted():
    X, y, p = coin_flips(1500)
    return X, y, p, GPClassifier("rbf", n_jobs=1).fit(X, y)


@pytest.fixture(scope="module")
def three_classes():
    X, y = make_blobs(150, centers=[[0, 0], [4, 0], [0, 4]], random_state=0)
    model = GPClassifier(RBF(20.0, 2.0), learn=False, max_features=200, n_jobs=1).fit(X, y)
    return X, y, model


# ---------------------------------------------------------------------- how good it is


def test_probabilities_are_close_to_scikit_learns_laplace_approximation():
    X, y, _ = coin_flips(150)
    ours = GPClassifier(RBF(6.0, 0.2), learn=False, mean=None, wrap_tolerance=1e-8).fit(X, y)
    kernel = sk.ConstantKernel(6.0) * sk.RBF(0.2)
    theirs = GaussianProcessClassifier(kernel, optimizer=None).fit(X, y)
    X_new = np.linspace(0, 1, 101)[:, None]
    # Laplace's approximation takes the mode for the mean: a few percent.
    difference = ours.predict_proba(X_new) - theirs.predict_proba(X_new)
    assert np.abs(difference).max() < 0.03


def test_learned_model_has_nearly_the_log_loss_of_the_truth(fitted):
    X_new, y_new, p_new = coin_flips(4000, seed=1)
    model = fitted[3]
    assert log_loss(y_new, model.predict_proba(X_new)) < log_loss(y_new, p_new) + 0.01
    assert np.mean(np.abs(model.predict_proba(X_new)[:, 1] - p_new)) < 0.04


@pytest.mark.slow
def test_learning_raises_the_bound_above_that_of_other_hyperparameters(fitted):
    X, y, _, model = fitted
    for variance, lengthscale in ((1.0, 1.0), (3.0, 0.5), (1.0, 0.2)):
        factors = (variance, lengthscale)
        kernel = RBF(
            float(model.kernel_.variance) * factors[0],
            float(model.kernel_.lengthscale) * factors[1],
        )
        other = GPClassifier(kernel, learn=False, n_jobs=1).fit(X, y)
        assert other.elbo_ <= model.elbo_ + 0.05


@pytest.mark.slow
def test_moons_are_told_apart():
    X, y = make_moons(400, noise=0.2, random_state=0)
    X_new, y_new = make_moons(1000, noise=0.2, random_state=1)
    model = GPClassifier("rbf", max_features=300, n_jobs=1).fit(X, y)
    assert model.score(X_new, y_new) > 0.95
    assert log_loss(y_new, model.predict_proba(X_new)) < 0.12


def test_without_signal_the_probability_is_the_share_of_the_class():
    rng = np.random.default_rng(0)
    X, y = rng.uniform(0, 1, (1000, 1)), (np.arange(1000) < 100).astype(int)
    model = GPClassifier("matern32", max_features=100, n_jobs=1).fit(X, y)
    p = model.predict_proba(np.linspace(0, 1, 30)[:, None])[:, 1]
    np.testing.assert_allclose(p, 0.1, atol=0.04)


@pytest.mark.slow
def test_mean_function_takes_up_what_the_kernel_cannot():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (800, 1))
    y = (rng.uniform(size=800) < expit(6 * X[:, 0] - 1)).astype(int)
    flat = RBF(1e-3, 0.3)
    none, constant, linear = (
        GPClassifier(flat, learn=False, mean=mean, n_jobs=1).fit(X, y)
        for mean in (None, "constant", "linear")
    )
    ends = [[0.0], [1.0]]
    np.testing.assert_allclose(none.predict_proba(ends)[:, 1], 0.5, atol=0.1)
    np.testing.assert_allclose(constant.predict_proba(ends)[:, 1], y.mean(), atol=0.03)
    np.testing.assert_allclose(linear.predict_proba(ends)[:, 1], expit([-1, 5]), atol=0.1)


def test_kernel_object_is_learned_from_its_own_values(fitted):
    X, y, _, model = fitted
    other = GPClassifier(RBF(1.0, 0.5)).fit(X, y)
    assert other.elbo_ == pytest.approx(model.elbo_, abs=0.1)


# ---------------------------------------------------------------------- ways of inference


def test_polya_gamma_bound_is_looser_and_its_predictions_close(fitted):
    X, y, _, model = fitted
    other = GPClassifier(model.kernel_, learn=False, inference="polya-gamma", n_jobs=1).fit(X, y)
    assert model.elbo_ - 10 < other.elbo_ < model.elbo_ - 0.5
    X_new = np.linspace(0, 1, 50)[:, None]
    np.testing.assert_allclose(other.predict_proba(X_new), model.predict_proba(X_new), atol=0.02)


@pytest.mark.slow
def test_batches_approach_what_passes_find():
    X, y, _ = coin_flips(400)
    kernel = RBF(8.0, 0.2)
    passes = GPClassifier(kernel, learn=False, inference="polya-gamma", n_jobs=1).fit(X, y)
    training = TrainingSettings(batch_size=100, natural=0.2, num_samples=32, max_steps=600)
    batches = GPClassifier(
        kernel, learn=False, inference="minibatch", num_features=16, training=training
    ).fit(X, y)
    X_new = np.linspace(0, 1, 50)[:, None]
    np.testing.assert_allclose(batches.predict_proba(X_new), passes.predict_proba(X_new), atol=0.06)
    summary = batches.summary()
    assert "constant, learned" in summary
    assert "estimated elbo" in summary
    assert "600 steps" in batches.status_


@pytest.mark.slow
def test_batches_learn_hyperparameters_offset_and_several_classes():
    # Of unit spread: boundaries two standard deviations away leave an error of 3 %.
    X, y = make_blobs(300, centers=[[0.0], [4.0], [8.0]], random_state=0)
    training = TrainingSettings(batch_size=64, natural=0.2, num_samples=64, max_steps=800)
    model = GPClassifier("rbf", inference="minibatch", num_features=20, training=training)
    assert model.fit(X, y).score(X, y) > 0.94
    assert len(model.kernel_) == 3
    rare = (X[:, 0] > np.quantile(X, 0.9)).astype(int)[np.random.default_rng(0).permutation(300)]
    model.fit(X, rare)
    np.testing.assert_allclose(model.predict_proba(X)[:, 1], 0.1, atol=0.07)


@pytest.mark.slow
def test_batches_end_when_the_time_does():
    X, y, _ = coin_flips(40)
    training = TrainingSettings(num_samples=8, block=5)
    model = GPClassifier(
        RBF(8.0, 0.2), num_features=3, inference="minibatch", training=training, max_seconds=1e-3
    )
    assert "after 5 steps: the time" in model.fit(X, y).status_
    assert "estimated elbo" in model.summary()


# ---------------------------------------------------------------------- predictions


def test_predictions_follow_from_the_latent_posterior(fitted):
    X, _, _, model = fitted
    mean, std = model.predict_latent(X, return_std=True)
    f = model.posterior_.predict(X)
    np.testing.assert_array_equal(mean, f.mean[:, 0])
    np.testing.assert_array_equal(model.predict_latent(X), mean)
    p = model.predict_proba(X)
    np.testing.assert_allclose(p[:, 1], mean_logistic(mean, std**2), rtol=1e-12)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-14)
    np.testing.assert_allclose(model.decision_function(X), np.log(p[:, 1] / p[:, 0]), atol=1e-9)
    np.testing.assert_array_equal(model.predict(X), (mean > 0).astype(int))


@pytest.mark.parametrize(
    ("labels", "kind"),
    [(("no", "yes"), object), ((-1, 1), int), ((False, True), bool), ((3.0, 2.0), float)],
)
def test_labels_of_any_type_are_sorted_and_returned(labels, kind):
    X, y, _ = coin_flips(100)
    named = np.array([labels[i] for i in y], dtype=kind)
    reference = GPClassifier(RBF(5.0, 0.3), learn=False, n_jobs=1).fit(X, y)
    model = GPClassifier(RBF(5.0, 0.3), learn=False, n_jobs=1).fit(X, named)
    assert list(model.classes_) == sorted(labels)
    order = [list(model.classes_).index(label) for label in labels]
    np.testing.assert_allclose(
        model.predict_proba(X)[:, order], reference.predict_proba(X), atol=1e-10
    )
    expected = [labels[i] for i in reference.predict(X)]
    np.testing.assert_array_equal(model.predict(X), expected)


@pytest.mark.slow
def test_several_classes_are_each_told_from_all_others(three_classes):
    X, y, model = three_classes
    assert model.score(X, y) > 0.95
    each = []
    for label in range(3):
        alone = GPClassifier(RBF(20.0, 2.0), learn=False, max_features=200, n_jobs=1).fit(
            X, y == label
        )
        each.append(alone.predict_proba(X)[:, 1])
    each = np.stack(each, axis=1)
    expected = each / each.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(model.predict_proba(X), expected, atol=1e-9)
    decision = model.decision_function(X)
    np.testing.assert_allclose(decision, np.log(each / (1 - each)), atol=1e-7)
    np.testing.assert_array_equal(model.predict(X), np.argmax(expected, axis=1))
    assert len(model.kernel_) == len(model.posterior_) == len(model.status_) == 3
    assert model.predict_latent(X).shape == (150, 3)


def test_rows_that_count_several_times_equal_repeated_rows():
    X, y, _ = coin_flips(60)
    weights = np.random.default_rng(0).integers(0, 4, 60)
    weights[:2] = 1
    options = {"max_features": 60, "domain": (0.0, 1.0), "n_jobs": 1}
    weighted = GPClassifier("rbf", **options).fit(X, y, sample_weight=weights)
    repeated = GPClassifier("rbf", **options).fit(np.repeat(X, weights, 0), np.repeat(y, weights))
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), atol=1e-8)
    assert weighted.elbo_ == pytest.approx(repeated.elbo_, abs=1e-8)


def test_class_without_weight_is_no_class():
    X, y, _ = coin_flips(60)
    third = y + 1
    third[:10] = 0
    model = GPClassifier(RBF(5.0, 0.3), learn=False, n_jobs=1, domain=(0.0, 1.0))
    model.fit(X, third, sample_weight=np.where(third == 0, 0.0, 1.0))
    alone = GPClassifier(RBF(5.0, 0.3), learn=False, n_jobs=1, domain=(0.0, 1.0))
    alone.fit(X[10:], y[10:])
    np.testing.assert_array_equal(model.classes_, [1, 2])
    assert model.elbo_ == pytest.approx(alone.elbo_, abs=1e-8)


def test_beyond_the_covered_domain_one_warning_and_the_mean_function(three_classes):
    model = three_classes[2]
    with pytest.warns(OutOfDomainWarning, match="1 of 2 points") as caught:
        p = model.predict_proba([[0.0, 0.0], [1e4, 0.0]])
    assert len(caught) == 1
    assert p[0, 0] > 0.8
    assert np.all(p[1] > 0.05)


def test_kernel_on_some_columns_ignores_the_others():
    X, y, _ = coin_flips(100)
    wide = np.column_stack([np.random.default_rng(0).normal(size=(100, 4)), X])
    model = GPClassifier(RBF(5.0, 0.3).on(4), learn=False, n_jobs=1).fit(wide, y)
    alone = GPClassifier(RBF(5.0, 0.3), learn=False, n_jobs=1).fit(X, y)
    np.testing.assert_array_equal(model.columns_, [4])
    np.testing.assert_allclose(model.predict_proba(wide), alone.predict_proba(X), atol=1e-10)


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "change", "message"),
    [
        ({}, {"y": np.zeros(30)}, "two classes, got one class only: 0.0"),
        ({}, {"sample_weight": np.arange(30) % 2 == 0}, "two classes"),
        ({}, {"y": np.linspace(0, 1, 30)}, "continuous"),
        ({}, {"y": np.where(np.arange(30) < 5, np.nan, 1.0)}, "y has 5 NaN"),
        ({}, {"y": None}, "requires y"),
        ({}, {"y": np.arange(29) % 2}, "inconsistent"),
        ({}, {"y": np.ones((30, 2), dtype=int)}, "multilabel|multioutput|1d array"),
        ({"kernel": RBF()}, {"X": np.ones((30, 4))}, "at most 3"),
        ({}, {"X": np.full((30, 1), np.inf)}, "X has 30"),
        ({"num_features": 0}, {}, "num_features must be"),
        ({"max_features": 2.5}, {}, "max_features must be"),
        ({"mean": "cubic"}, {}, "mean must be one of"),
        ({"max_seconds": -1}, {}, "max_seconds must be"),
        ({"domain": (1, 0)}, {}, "domain needs"),
        ({"kernel": "round"}, {}, "Unknown kernel"),
        ({"inference": "laplace"}, {}, "inference must be one of"),
        ({"inference": "minibatch", "mean": "linear"}, {}, "Mini-batches take mean"),
        (
            {"inference": "minibatch", "kernel": RBF()},
            {"sample_weight": np.ones(30)},
            "Mini-batches take no sample_weight",
        ),
        (
            {
                "inference": "minibatch",
                "kernel": RBF(),
                "training": TrainingSettings(batch_size=31),
            },
            {},
            "between 1 and the 30 rows",
        ),
    ],
)
def test_bad_input_is_refused_in_a_sentence(options, change, message):
    rows = {"X": np.linspace(0, 1, 30)[:, None], "y": np.arange(30) % 2, **change}
    with pytest.raises(ValueError, match=message):
        GPClassifier(**options).fit(**rows)


def test_white_noise_has_no_place_in_the_kernel():
    X, y, _ = coin_flips(20)
    with pytest.raises(KernelError, match="WhiteKernel"):
        GPClassifier(sk.RBF(0.3) + sk.WhiteKernel(0.1)).fit(X, y)


def test_failed_fit_leaves_the_model_as_it_was():
    X, y, _ = coin_flips(40)
    model = GPClassifier(RBF(5.0, 0.3), learn=False, n_jobs=1).fit(X, y)
    before = model.predict_proba(X)
    with pytest.raises(InputError):
        model.fit(X, np.zeros(40))
    np.testing.assert_array_equal(model.predict_proba(X), before)


def test_constant_column_is_warned_of():
    X, y, _ = coin_flips(40)
    with pytest.warns(FitWarning, match="column 1 is constant"):
        GPClassifier(RBF(5.0, 0.3), learn=False, n_jobs=1).fit(np.column_stack([X, np.ones(40)]), y)


# ---------------------------------------------------------------------- settings and surroundings


def test_number_of_features_is_the_one_asked_for():
    X, y, _ = coin_flips(200)
    model = GPClassifier("matern32", num_features=21).fit(X, y)
    assert model.features_.num_features == 21
    assert 'num_features="auto"' in model.status_


def test_max_seconds_stops_learning_at_a_usable_model():
    X, y, p = coin_flips(600)
    model = GPClassifier("rbf", max_seconds=1e-3).fit(X, y)
    assert "max_seconds" in model.status_
    assert np.mean(np.abs(model.predict_proba(X)[:, 1] - p)) < 0.15


@pytest.mark.slow
def test_units_of_the_inputs_do_not_matter(fitted):
    X, y, _, model = fitted
    moved = GPClassifier("rbf", n_jobs=1).fit(1e4 * X + 3e5, y)
    np.testing.assert_allclose(
        moved.predict_proba(1e4 * X + 3e5), model.predict_proba(X), atol=2e-3
    )


def test_frames_pickles_and_clones():
    X, y, _ = coin_flips(80)
    frame = pd.DataFrame({"place": X[:, 0]})
    model = GPClassifier(RBF(5.0, 0.3), learn=False, n_jobs=1).fit(frame, pd.Series(y, name="won"))
    assert list(model.feature_names_in_) == ["place"]
    restored = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(restored.predict_proba(frame), model.predict_proba(frame))
    single = GPClassifier(RBF(5.0, 0.3), learn=False, n_jobs=1).fit(X.astype(np.float32), y)
    np.testing.assert_allclose(single.predict_proba(X), model.predict_proba(frame), atol=1e-4)
    assert not hasattr(clone(model), "posterior_")


def test_summary_names_what_was_promised(fitted, three_classes):
    text = fitted[3].summary()
    for word in (
        "1,500 rows",
        "2 classes",
        "RBF",
        "M = ",
        "elbo",
        "covers",
        "1 pass over",
        "constant",
    ):
        assert word in text
    assert three_classes[2].summary().count("kernel") == 3
