"""Nearest rows under likelihoods that are not Gaussian."""

import numpy as np
import pytest

from orthogp import GPRegressor
from orthogp.kernels import Matern32

NAMES = ["poisson", "binomial", "negative-binomial", "gamma", "student-t"]


def data(name, n, d=1, seed=0):
    """Rows with targets, how much each stands for, and f."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 3, (n, d))
    f = np.sin(2 * X[:, 0]) + (0.0 if d == 1 else np.cos(2 * X[:, 1]))
    sizes = rng.integers(1, 4, n)
    drawn = {
        "poisson": lambda: (rng.poisson(sizes * np.exp(f)), {"exposure": sizes}),
        "binomial": lambda: (rng.binomial(sizes, 1 / (1 + np.exp(-f))), {"trials": sizes}),
        "negative-binomial": lambda: (rng.negative_binomial(3, 3 / (3 + np.exp(f))), {}),
        "gamma": lambda: (rng.gamma(3.0, sizes * np.exp(f) / 3), {"exposure": sizes}),
        "student-t": lambda: (f + 0.1 * rng.standard_t(3, n), {}),
    }
    return X, *drawn[name](), f


def both(name, kernel, **settings):
    """The exact model of 30 rows, and that whose rows are neighbours of all before them."""
    X, y, sizes, _ = data(name, 30)
    settings = {"likelihood": name, **settings}
    return [
        GPRegressor(kernel, solver=solver, **settings).fit(X, y, **sizes)
        for solver in ("exact", "neighbours")
    ]


GRID = np.linspace(-0.3, 3.3, 25)[:, None]


def assert_same(exact, nearest, tolerance):
    assert (exact.engine_, nearest.engine_) == ("exact", "neighbours")
    (mean, sd), (own, own_sd) = (
        model.predict_latent(GRID, return_std=True) for model in (exact, nearest)
    )
    np.testing.assert_allclose((own - mean) / sd, 0.0, atol=tolerance)
    np.testing.assert_allclose(own_sd, sd, rtol=tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_all_rows_as_neighbours_are_the_exact_posterior_and_its_bound(name):
    exact, nearest = both(name, Matern32(1.0, 1.0), learn=False)
    assert nearest.elbo_ == pytest.approx(exact.elbo_, abs=1e-6)
    assert_same(exact, nearest, 2e-4)


@pytest.mark.parametrize("name", NAMES)
def test_all_rows_as_neighbours_teach_what_the_exact_bound_teaches(name):
    """Without a mean function, whose coefficients the two treat differently."""
    exact, nearest = both(name, "matern32", mean=None)
    assert nearest.elbo_ == pytest.approx(exact.elbo_, abs=2e-3)
    assert_same(exact, nearest, 0.01)
    if exact.dispersion_ is not None:
        # Beyond some hundreds a dispersion says nothing any more.
        assert 1 / nearest.dispersion_ == pytest.approx(1 / exact.dispersion_, rel=0.01, abs=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_means_and_sds_from_nearest_rows_are_close_to_those_of_all(name):
    """Closer than twice what the fit itself estimates that more neighbours would change."""
    X, y, sizes, _ = data(name, 500, 2)
    settings = {"likelihood": name, "learn": False}
    nearest, exact = (
        GPRegressor(Matern32(1.0, 1.5), solver=solver, **settings).fit(X, y, **sizes)
        for solver in ("neighbours", "exact")
    )
    assert nearest.posterior_.num_neighbours < 500
    grid = data(name, 300, 2, seed=1)[0]
    mean, sd = nearest.predict_latent(grid, return_std=True)
    all_mean, all_sd = exact.predict_latent(grid, return_std=True)
    estimate = nearest.certificate_
    assert np.sqrt(np.mean(((mean - all_mean) / all_sd) ** 2)) < 2 * estimate.mean_error
    assert np.sqrt(np.mean((sd / all_sd - 1) ** 2)) < 2 * estimate.sd_error + 0.02


def test_files_hold_the_model_and_rows_are_added_and_forgotten(tmp_path):
    X, y, sizes, _ = data("poisson", 300, 4)
    hours = sizes["exposure"]
    settings = {"likelihood": "poisson", "learn": False, "solver": "neighbours"}
    model = GPRegressor(Matern32(1.0, 2 * np.ones(4)), **settings).fit(X, y, exposure=hours)
    model.save(tmp_path / "m.orthogp")
    again = GPRegressor.load(tmp_path / "m.orthogp")
    np.testing.assert_allclose(again.predict(X[:9]), model.predict(X[:9]), rtol=1e-9)
    wanted = model.predict_quantiles(X[:9], (0.05, 0.95), exposure=hours[:9])
    found = again.predict_quantiles(X[:9], (0.05, 0.95), exposure=hours[:9])
    np.testing.assert_array_equal(found, wanted)
    again.partial_fit(X[:5], y[:5], exposure=hours[:5])
    again.forget(X[:5], y[:5], exposure=hours[:5])
    assert again.engine_ == "neighbours"
    mean, sd = model.predict_latent(X, return_std=True)
    # The same rows in another order may be given another number of neighbours.
    assert np.sqrt(np.mean(((again.predict_latent(X) - mean) / sd) ** 2)) < 0.5


@pytest.mark.slow
def test_rows_that_sums_cannot_serve_go_to_neighbours():
    X, y, sizes, _ = data("poisson", 2501, 4)
    model = GPRegressor(likelihood="poisson").fit(X, y, **sizes)
    text = model.summary()
    assert model.engine_ == "neighbours"
    assert "poisson; the rows are kept" in text
    assert "each prediction uses the nearest" in text
    assert "dense was not tried: a lattice takes one kernel on up to 3 columns" in text
    assert "(elbo), from a sample of the rows' conditionals" in text
    X_new, y_new, sizes, f = data("poisson", 2000, 4, seed=1)
    mean, sd = model.predict_latent(X_new, return_std=True)
    assert np.sqrt(np.mean((mean - f) ** 2)) < 0.25
    assert np.mean(np.abs(mean - f) < 1.645 * sd) > 0.85
    lower, upper = model.predict_quantiles(X_new, (0.05, 0.95), **sizes).T
    assert np.mean((y_new >= lower) & (y_new <= upper)) > 0.88
