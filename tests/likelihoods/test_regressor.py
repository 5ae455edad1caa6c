"""GPRegressor with likelihoods that are not Gaussian, as users meet it."""

import numpy as np
import pytest

from orthogp import GPRegressor
from orthogp.errors import FitWarning, InputError
from orthogp.kernels import RBF


def truth(x):
    return np.sin(2 * x) + 0.2 * x - 1


def data(likelihood, n=2000, seed=0):
    """Rows, targets, and how much each row stands for."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 6, (n, 1))
    f = truth(X[:, 0])
    hours, trials = rng.uniform(0.5, 3.0, n), rng.integers(1, 6, n)
    if likelihood == "poisson":
        return X, rng.poisson(hours * np.exp(f)), {"exposure": hours}
    if likelihood == "binomial":
        return X, rng.binomial(trials, 1 / (1 + np.exp(-f))), {"trials": trials}
    if likelihood == "negative-binomial":
        return X, rng.negative_binomial(2.0, 2 / (2 + np.exp(f))), {}
    return X, rng.gamma(3.0, hours * np.exp(f) / 3), {"exposure": hours}


NAMES = ["poisson", "binomial", "negative-binomial", "gamma"]
GRID = np.linspace(0.2, 5.8, 40)[:, None]


@pytest.fixture(scope="module", params=NAMES)
def fitted(request):
    X, y, sizes = data(request.param)
    return GPRegressor("rbf", likelihood=request.param).fit(X, y, **sizes)


def test_the_latent_function_is_found_within_its_band(fitted):
    """Standardised errors of a smooth f at 40 points have a root mean square far below 2."""
    mean, std = fitted.predict_latent(GRID, return_std=True)
    errors = (mean - truth(GRID[:, 0])) / std
    assert np.sqrt(np.mean(errors**2)) < 1.8
    assert np.abs(mean - truth(GRID[:, 0])).max() < 0.5
    assert fitted.passes_ == 1
    assert "one pass over the rows" in fitted.summary()


def test_dispersions_are_learned(fitted):
    expected = {"negative-binomial": 2.0, "gamma": 3.0}.get(fitted.likelihood)
    if expected is None:
        assert fitted.dispersion_ is None
    else:
        # Some twenty standard errors of 2,000 rows.
        assert expected / 1.6 < fitted.dispersion_ < expected * 1.6


def test_predictions_are_of_y_and_quantiles_cover(fitted):
    """Of 4,000 new rows the 90 % intervals hold at least 87 %: 0.9 less 6 standard errors."""
    X, y, sizes = data(fitted.likelihood, 4000, seed=1)
    lower, upper = fitted.predict_quantiles(X, (0.05, 0.95), **sizes).T
    assert np.mean((y >= lower) & (y <= upper)) > 0.87
    mean, std = fitted.predict(X, return_std=True, **sizes)
    z = (y - mean) / std
    assert abs(np.mean(z)) < 0.1
    assert 0.8 < np.std(z) < 1.2
    np.testing.assert_allclose(mean, fitted.predict(X, **sizes))


def test_files_hold_the_model(fitted, tmp_path):
    path = tmp_path / "model.orthogp"
    fitted.save(path)
    again = GPRegressor.load(path)
    np.testing.assert_allclose(again.predict(GRID), fitted.predict(GRID), rtol=1e-9)
    assert again.dispersion_ == fitted.dispersion_
    assert again.likelihood == fitted.likelihood
    assert again.summary().splitlines()[2:6] == fitted.summary().splitlines()[2:6]


def test_files_hold_kept_rows_with_their_exposures(tmp_path):
    X, y, sizes = data("poisson", 120)
    settings = {"likelihood": "poisson", "learn": False, "solver": "exact"}
    kept = GPRegressor(RBF(1.0, 1.0), **settings).fit(X, y, **sizes)
    kept.save(tmp_path / "m.orthogp")
    again = GPRegressor.load(tmp_path / "m.orthogp")
    np.testing.assert_allclose(again.predict(GRID), kept.predict(GRID), rtol=1e-12)


@pytest.mark.parametrize("likelihood", ["poisson", "gamma"])
def test_rows_added_and_forgotten_are_as_all_at_once(likelihood):
    X, y, sizes = data(likelihood, 1200)
    kernel = RBF(1.0, 1.0)
    settings = {"likelihood": likelihood, "learn": False, "domain": (0.0, 6.0)}
    part = {name: value[:700] for name, value in sizes.items()}
    rest = {name: value[700:] for name, value in sizes.items()}
    model = GPRegressor(kernel, **settings).fit(X[:700], y[:700], **part)
    first = model.predict_latent(GRID)
    model.partial_fit(X[700:], y[700:], **rest)
    whole = GPRegressor(kernel, **settings).fit(X, y, **sizes)
    # The lattice of the first rows may differ from that of all: the prior is the same to 1e-4.
    np.testing.assert_allclose(model.elbo_, whole.elbo_, rtol=2e-3)
    np.testing.assert_allclose(model.predict_latent(GRID), whole.predict_latent(GRID), atol=0.02)
    model.forget(X[700:], y[700:], **rest)
    np.testing.assert_allclose(model.predict_latent(GRID), first, atol=1e-6)


def test_weights_count_rows():
    X, y, sizes = data("poisson", 300)
    settings = {"likelihood": "poisson", "learn": False}
    both = np.repeat(X, 2, axis=0), np.repeat(y, 2)
    with pytest.warns(FitWarning, match="occurs 2 times"):
        twice = GPRegressor(RBF(1.0, 1.0), **settings).fit(
            *both, exposure=np.repeat(sizes["exposure"], 2)
        )
    weighted = GPRegressor(RBF(1.0, 1.0), **settings).fit(X, y, np.full(300, 2.0), **sizes)
    np.testing.assert_allclose(twice.predict(GRID), weighted.predict(GRID), rtol=1e-8)
    np.testing.assert_allclose(twice.elbo_, weighted.elbo_, rtol=1e-10)


def test_an_offset_is_the_logarithm_of_an_exposure():
    X, y, sizes = data("poisson", 300)
    model = GPRegressor(RBF(1.0, 1.0), likelihood="poisson", learn=False)
    by_exposure = model.fit(X, y, exposure=sizes["exposure"]).predict(GRID)
    by_offset = model.fit(X, y, offset=np.log(sizes["exposure"])).predict(GRID)
    np.testing.assert_allclose(by_exposure, by_offset, rtol=1e-9)


def test_counts_in_two_columns_are_found():
    rng = np.random.default_rng(3)
    X = rng.uniform(0, 1, (3000, 2))
    f = 1 + np.sin(5 * X[:, 0]) + np.cos(4 * X[:, 1])
    model = GPRegressor("rbf", likelihood="poisson").fit(X, rng.poisson(np.exp(f)))
    mean, std = model.predict_latent(X[:200], return_std=True)
    assert np.sqrt(np.mean(((mean - f[:200]) / std) ** 2)) < 1.8
    assert np.abs(mean - f[:200]).max() < 0.5


@pytest.mark.parametrize(
    ("likelihood", "y", "sizes", "sentence"),
    [
        ("poisson", [1.0, -1.0, 2.0], {}, "whole numbers ≥ 0"),
        ("poisson", [1.0, 0.5, 2.0], {}, "whole numbers ≥ 0"),
        ("poisson", [1.0, 1.0, 2.0], {"exposure": [1.0, 0.0, 2.0]}, "Exposure must be positive"),
        ("poisson", [1.0, 1.0, 2.0], {"exposure": [1.0, 2.0]}, "one value per row"),
        ("poisson", [1.0, 1.0, 2.0], {"trials": [1, 2, 2]}, "takes exposure, not trials"),
        ("binomial", [1.0, 3.0, 2.0], {"trials": [1, 2, 2]}, "number of trials"),
        ("binomial", [1.0, 1.0, 2.0], {"trials": [1.5, 2, 2]}, "whole numbers ≥ 1"),
        ("negative-binomial", [1, 2, 3], {"exposure": [1, 1, 2]}, "takes nothing of the kind"),
        ("gamma", [1.0, 0.0, 2.0], {}, "must be positive"),
        ("gaussian", [1.0, 0.0, 2.0], {"exposure": [1, 1, 1]}, "takes nothing of the kind"),
        ("weibull", [1.0, 0.0, 2.0], {}, "must be one of"),
        ("poisson", [[1.0, 1, 1], [0, 1, 1], [2, 1, 1]], {}, "one column of targets"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(likelihood, y, sizes, sentence):
    with pytest.raises(InputError, match=sentence):
        GPRegressor(likelihood=likelihood).fit([[0.0], [1.0], [2.0]], y, **sizes)


def test_models_that_do_not_fit_on_one_lattice_are_refused():
    rng = np.random.default_rng(0)
    X, y = rng.uniform(0, 1, (50, 4)), rng.poisson(1.0, 50)
    with pytest.raises(InputError, match="up to 3 columns jointly"):
        GPRegressor(likelihood="poisson", solver="dense").fit(X, y)
    with pytest.raises(InputError, match="A lattice or the rows"):
        GPRegressor(likelihood="poisson", solver="iterative").fit(X[:, :2], y)
    with pytest.raises(InputError, match="linear"):
        GPRegressor(likelihood="poisson", mean="linear", solver="dense").fit(X[:, :2], y)


def test_counts_that_are_all_zero_have_a_rate_close_to_zero():
    X = np.linspace(0, 1, 50)[:, None]
    model = GPRegressor("rbf", likelihood="poisson").fit(X, np.zeros(50))
    assert np.all(model.predict(X) < 0.2)


def test_a_last_stage_with_fewer_features_and_a_coarser_grid_is_tried():
    rng = np.random.default_rng(0)
    X, hours = rng.uniform(0, 6, (800, 1)), rng.uniform(1, 2, 800)
    y = rng.poisson(hours * np.exp(np.sin(X[:, 0])))
    model = GPRegressor("rbf", likelihood="poisson").fit(X, y, exposure=hours)
    # The kernel asks for 33 features, the first stage had 129.
    assert model.num_features_ <= 129
    assert np.abs(model.predict_latent(GRID) - np.sin(GRID[:, 0])).max() < 0.5


def squares(n, seed=0):
    """Rows whose successes are those of a board of squares, but for one in ten."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 1, (n, 2))
    black = (np.floor(4 * X).sum(axis=1) % 2).astype(int)
    return X, np.where(rng.uniform(size=n) < 0.1, 1 - black, black)


def test_few_rows_of_a_rough_function_are_read_instead_of_sums_that_do_not_reach():
    X, y = squares(1200)
    model = GPRegressor("rbf", likelihood="binomial").fit(X, y)
    assert model.passes_ > 1
    assert "the rows were read instead" in model.status_
    X_new, y_new = squares(2000, seed=1)
    assert np.mean((model.predict(X_new) > 0.5) != y_new) < 0.2


@pytest.mark.slow
def test_many_rows_that_a_lattice_cannot_resolve_go_to_the_nearest():
    """The score of rows left out is that of new rows: within four standard errors of 0.012."""
    X, y = squares(2600)
    model = GPRegressor("matern32", likelihood="binomial", max_features=151).fit(X, y)
    scores = {trial.engine: trial.score for trial in model.trials_}
    assert model.engine_ == "neighbours"
    assert scores["neighbours"] > scores["dense"] + 0.01
    X_new, y_new = squares(2000, seed=1)
    p = model.predict(X_new)
    assert np.mean((p > 0.5) != y_new) < 0.17
    assert np.mean(np.log(np.where(y_new, p, 1 - p))) == pytest.approx(
        scores["neighbours"], abs=0.05
    )


def test_sums_alone_say_that_they_do_not_reach_a_rougher_function():
    X, y = squares(1200)
    settings = {"likelihood": "binomial", "max_features": 201, "solver": "dense"}
    whole = GPRegressor("rbf", **settings).fit(X, y)
    model = GPRegressor("rbf", **settings).fit_sketch(whole._sketch)
    assert model.passes_ == 1
    assert model.elbo_ < whole.elbo_ - 10
    assert "do not reach far enough for a rougher function" in model.status_


# ---------------------------------------------------------------------- rows that are kept


def test_many_columns_and_covariates_keep_the_rows(tmp_path):
    rng = np.random.default_rng(0)
    X, z = rng.uniform(0, 1, (250, 4)), rng.standard_normal(250)
    y = rng.poisson(np.exp(1 + np.sin(4 * X[:, 0]) + 0.5 * z))
    model = GPRegressor(RBF(1.0, np.ones(4)), likelihood="poisson").fit(X, y, covariates=z)
    assert model.engine_ == "exact"
    text = model.summary()
    assert "poisson; the rows are kept" in text
    assert "dense was not tried: a lattice takes one kernel on up to 3 columns" in text
    effect = model.effects_
    # Five standard errors of about 0.04.
    assert abs(effect.values[0] - 0.5) < 0.2
    low, high = (model.predict(X[:5], covariates=np.full(5, v)) for v in (-1.0, 1.0))
    np.testing.assert_allclose(high / low, np.exp(2 * effect.values[0]), rtol=0.05)
    path = tmp_path / "model.orthogp"
    model.save(path)
    again = GPRegressor.load(path)
    np.testing.assert_allclose(
        again.predict(X[:5], covariates=z[:5]), model.predict(X[:5], covariates=z[:5]), rtol=1e-8
    )
    again.partial_fit(X[:3], y[:3], covariates=z[:3])
    again.forget(X[:3], y[:3], covariates=z[:3])
    np.testing.assert_allclose(again.elbo_, model.elbo_, atol=0.05)


def test_kept_rows_with_sizes_can_be_added_and_forgotten():
    X, y, sizes = data("poisson", 80)
    kernel = RBF(1.0, 1.0)
    settings = {"likelihood": "poisson", "learn": False, "solver": "exact"}
    hours = sizes["exposure"]
    model = GPRegressor(kernel, **settings).fit(X[:50], y[:50], exposure=hours[:50])
    first = model.predict_latent(GRID)
    model.partial_fit(X[50:], y[50:], exposure=hours[50:])
    whole = GPRegressor(kernel, **settings).fit(X, y, exposure=hours)
    np.testing.assert_allclose(model.predict(GRID), whole.predict(GRID), rtol=1e-6)
    model.forget(X[50:], y[50:], exposure=hours[50:])
    np.testing.assert_allclose(model.predict_latent(GRID), first, atol=1e-6)
    draws = whole.sample_y(GRID, 400, random_state=0)
    mean, std = whole.predict_latent(GRID, return_std=True)
    # Standard errors of a mean of 400 draws.
    assert np.abs((np.log(draws).mean(axis=1) - mean) / (std / 20)).max() < 5
