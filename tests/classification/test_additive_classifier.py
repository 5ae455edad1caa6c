"""Additive classifiers of many columns, as a user meets them."""

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from orthogp import GPClassifier, InputError, OutOfDomainWarning
from orthogp.classification import passes
from orthogp.kernels import RBF, Categorical, Cyclic, Matern32
from orthogp.report import diagnose
from tests.storage.small_models import small_lattices

NAMES = ["width", "depth", "hour", "kind", "idle"]
KINDS = np.array([0.0, 1.5, -1.5])
KERNEL = (
    RBF(6.0, 0.4).on(0)
    + RBF(0.5, 0.5).on(1)
    + Cyclic(RBF(2.0, 6.0), 24.0).on(2)
    + Categorical(3, 1.0).on(3)
    + RBF(0.3, 0.6).on(4)
)


def log_odds(X):
    """Of the columns 0, 2 and 3; the others do not matter."""
    hours = 1.5 * np.cos(2 * np.pi * X[:, 2] / 24)
    return np.stack([3 * np.sin(6 * X[:, 0]), hours, KINDS[X[:, 3].astype(int)]])


def rows(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 1, (n, 5))
    X[:, 2] *= 24
    X[:, 3] = rng.integers(0, 3, n)
    p = expit(log_odds(X).sum(axis=0))
    return X, (rng.uniform(size=n) < p).astype(int), p


def fixed(**options):
    return GPClassifier(KERNEL, learn=False, max_features=61, n_jobs=1, **options)


@pytest.fixture(scope="module")
def model():
    X, y, _ = rows(500)
    return fixed().fit(pd.DataFrame(X, columns=NAMES), np.array(["no", "yes"])[y])


# ---------------------------------------------------------------------- how good it is


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rbf", pytest.param("matern32", marks=pytest.mark.slow)])
def test_two_of_five_columns_are_found_and_their_effect(name):
    def flips(n, seed):
        rng = np.random.default_rng(seed)
        X = rng.uniform(0, 1, (n, 5))
        p = expit(3 * np.sin(6 * X[:, 0]) + 12 * (X[:, 3] - 0.5) ** 2 - 1)
        return X, (rng.uniform(size=n) < p).astype(int), p

    X, y, _ = flips(1500, 0)
    X_new, y_new, p_new = flips(4000, 1)
    model = GPClassifier(name, max_features=100, n_jobs=1).fit(X, y)
    loss = log_loss(y_new, model.predict_proba(X_new))
    assert loss < log_loss(y_new, p_new) + 0.01
    straight = LogisticRegression().fit(X, y)
    assert loss < log_loss(y_new, straight.predict_proba(X_new)) - 0.1
    shares = [component.share for component in model.components()]
    assert shares[0] + shares[3] == pytest.approx(1.0, abs=0.1)
    assert max(shares[1], shares[2], shares[4]) < 0.01


def test_categories_and_hours_are_learned_from_wrong_values():
    X, y, _ = rows(1000)
    X_new, y_new, p_new = rows(3000, seed=1)
    wrong = RBF(0.1, 3.0).on(0) + Cyclic(RBF(9.0, 2.0), 24.0).on(2) + Categorical(3, 20.0).on(3)
    model = GPClassifier(wrong, max_features=61, n_jobs=1).fit(X, y)
    loss = log_loss(y_new, model.predict_proba(X_new))
    assert loss < log_loss(y_new, p_new) + 0.015
    np.testing.assert_array_equal(model.columns_, [0, 2, 3])


def test_a_sum_on_two_columns_is_the_same_on_one_lattice_and_on_two(monkeypatch):
    # Passes end at a gain of 1e-3 nats, which moves probabilities by 2e-4.
    monkeypatch.setattr(passes, "CONVERGED", 1e-10)
    X, y, _ = rows(200)
    X = X[:, [0, 1]]
    kernel = RBF(6.0, 0.4).on(0) + RBF(1.0, 0.5).on(1)
    options = {"learn": False, "wrap_tolerance": 1e-8, "max_features": 300, "n_jobs": 1}
    joint = GPClassifier(kernel, **options).fit(X, y)
    # A category that all rows share shifts what is constant anyway.
    wide = np.column_stack([X, np.zeros(200)])
    with pytest.warns(UserWarning, match="column 2 is constant"):
        apart = GPClassifier(kernel + Categorical(2, 1e-6).on(2), **options).fit(wide, y)
    assert len(apart.features_.parts) == 3
    np.testing.assert_allclose(apart.predict_proba(wide), joint.predict_proba(X), atol=1e-5)
    assert apart.elbo_ == pytest.approx(joint.elbo_, abs=1e-3)


@pytest.mark.parametrize("inference", ["variational", "polya-gamma"])
def test_both_kinds_of_sites_serve_additive_models(inference):
    X, y, p = rows(400)
    own = fixed(inference=inference).fit(X, y)
    assert np.mean(np.abs(own.predict_proba(X)[:, 1] - p)) < 0.1


# ---------------------------------------------------------------------- components


def test_components_add_up_to_the_log_odds(model):
    X, _, _ = rows(300, seed=2)
    frame = pd.DataFrame(X, columns=NAMES)
    components = model.components()
    assert [own.name for own in components] == NAMES
    total = sum(model.predict_component(j, frame) for j in range(5))
    offset = model.predict_latent(frame) - total
    np.testing.assert_allclose(offset, offset.mean(), atol=1e-8)
    for j, effect in zip((0, 2, 3), log_odds(X), strict=True):
        mean, std = components[j].predict(X[:, j], return_std=True)
        error = mean - (effect - effect.mean())
        assert np.sqrt(np.mean(error**2)) < 0.35
        assert np.mean(np.abs(error) < 3 * std + 0.1) > 0.95


def test_components_are_centred_over_the_rows(model):
    X, _, _ = rows(500)
    frame = pd.DataFrame(X, columns=NAMES)
    for j in range(5):
        assert np.mean(model.predict_component(j, frame)) == pytest.approx(0.0, abs=1e-8)
    shares = [own.share for own in model.components()]
    means = [np.var(model.predict_component(j, frame)) for j in range(5)]
    expected = np.array(means) / np.var(model.predict_latent(frame))
    np.testing.assert_allclose(shares, expected, rtol=1e-6)


def test_summary_and_figures_show_the_components(model, tmp_path):
    text = model.summary()
    for name in NAMES:
        assert f" {name} " in text
    assert "period 24" in text
    assert "5 lattices" in text
    assert "residual" not in text
    figure = model.plot(path=tmp_path / "effects.png")
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert sum("of the variance" in title for title in titles) == 5
    assert figure.axes[0].get_ylabel() == "effect on log odds of yes"
    assert (tmp_path / "effects.png").exists()


def test_each_class_has_components_of_its_own():
    X, y, _ = rows(150)
    labels = np.array(["a", "b", "c"])[y + (X[:, 1] > 0.7)]
    own = GPClassifier(KERNEL, learn=False, max_features=31, n_jobs=1).fit(X, labels)
    p = own.predict_proba(X)
    assert p.shape == (150, 3)
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    assert own.score(X, labels) > 0.6
    offset = own.predict_latent(X)[:, 2] - sum(
        own.predict_component(j, X, label="c") for j in range(5)
    )
    np.testing.assert_allclose(offset, offset.mean(), atol=1e-8)
    assert own.components("a")[0].share != own.components("c")[0].share
    assert own.summary().count("\n  components") == 3
    assert own.plot() is not None
    with pytest.raises(InputError, match=r"label must be one of \['a', 'b', 'c'\], got None"):
        own.components()


# ---------------------------------------------------------------------- rows and surroundings


@pytest.mark.parametrize("learn", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_rows_that_count_several_times_equal_repeated_rows(learn):
    X, y, _ = rows(60)
    weights = np.random.default_rng(0).integers(0, 4, 60)
    weights[[X[:, 0].argmin(), X[:, 0].argmax()]] = 1
    kernel = "rbf" if learn else KERNEL
    box = (X.min(axis=0), X.max(axis=0))
    options = {"learn": learn, "max_features": 41, "domain": box, "n_jobs": 1}
    weighted = GPClassifier(kernel, **options).fit(X, y, sample_weight=weights)
    repeated = GPClassifier(kernel, **options).fit(np.repeat(X, weights, 0), np.repeat(y, weights))
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), atol=1e-7)
    assert weighted.elbo_ == pytest.approx(repeated.elbo_, abs=1e-7)


def test_beyond_the_data_a_component_is_as_before_them(model):
    X, _, _ = rows(2)
    frame = pd.DataFrame(X, columns=NAMES)
    frame.loc[0, "width"] = 1e3
    frame.loc[1, "hour"] += 24 * 7
    with pytest.warns(OutOfDomainWarning, match="1 of 2 points"):
        _, std = model.predict_latent(frame, return_std=True)
    assert std[0] > np.sqrt(5.9)
    assert std[1] < 1.0


def test_loaded_model_answers_as_before(model, tmp_path):
    frame = pd.DataFrame(rows(40, seed=3)[0], columns=NAMES)
    model.save(tmp_path / "m.orthogp")
    loaded = GPClassifier.load(tmp_path / "m.orthogp")
    np.testing.assert_array_equal(loaded.predict_proba(frame), model.predict_proba(frame))
    for j in range(5):
        for one, other in zip(
            loaded.predict_component(j, frame, return_std=True),
            model.predict_component(j, frame, return_std=True),
            strict=True,
        ):
            np.testing.assert_array_equal(one, other)
    assert loaded.summary() == model.summary()
    assert loaded.components()[0].upper == model.components()[0].upper


def test_rows_check_the_model(model):
    X, y, _ = rows(500)
    found = diagnose(model, pd.DataFrame(X, columns=NAMES), np.array(["no", "yes"])[y])
    assert found.accuracy > 0.8
    assert found.log_loss < 0.8 * found.base_log_loss


def test_time_limit_is_kept_and_said():
    X, y, _ = rows(100)
    with small_lattices():
        own = GPClassifier("rbf", max_features=31, max_seconds=1e-3, n_jobs=1).fit(X, y)
    assert "max_seconds" in own.status_


@pytest.mark.parametrize(
    ("columns", "slopes"), [pytest.param([0, 1], 2, marks=pytest.mark.slow), ([0, 1, 2, 4], 4)]
)
def test_slopes_come_on_top_of_the_features_asked_for(columns, slopes):
    X, y, _ = rows(60)
    own = GPClassifier("rbf", mean="linear", num_features=9, n_jobs=1).fit(X[:, columns], y)
    assert own.features_.num_features == 9 + slopes


@pytest.mark.parametrize(
    ("options", "change", "message"),
    [
        (
            {"inference": "minibatch"},
            {},
            'Mini-batches take a kernel .* use inference="variational"',
        ),
        ({"kernel": RBF()}, {}, "acts on 5 columns, but can act on at most 3"),
        ({"kernel": RBF().on(0, 1, 2, 4) + RBF().on(3)}, {}, "A term of the kernel acts on 4"),
        ({"kernel": "additive-cubic"}, {}, "Unknown kernel"),
        ({"kernel": KERNEL}, {3: 1.5}, "Column 3 is categorical"),
        ({"kernel": KERNEL}, {3: 3.0}, "Column 3 is categorical"),
        ({"kernel": Matern32().on(9) + Matern32().on(0)}, {}, "column"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(options, change, message):
    X, y, _ = rows(30)
    for column, value in change.items():
        X[0, column] = value
    with pytest.raises(ValueError, match=message) as caught:
        GPClassifier(**options).fit(X, y)
    assert "\n" not in str(caught.value)


def test_questions_without_an_answer_are_refused_in_a_sentence(model):
    frame = pd.DataFrame(rows(3)[0], columns=NAMES)
    with pytest.raises(InputError, match="components 0 to 4, got 5"):
        model.predict_component(5, frame)
    with pytest.raises(InputError, match="log odds of 'yes', got label='no'"):
        model.components("no")
    frame.loc[0, "kind"] = 7.0
    with pytest.raises(InputError, match="Column 3 is categorical"):
        model.predict_proba(frame)
    X, y, _ = rows(30)
    joint = GPClassifier(RBF(), learn=False, num_features=5, n_jobs=1).fit(X[:, :1], y)
    with pytest.raises(InputError, match='kernel="additive-matern32"'):
        joint.components()
