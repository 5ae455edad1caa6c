"""The posterior of hyperparameters against grids, and predictions that integrate over it."""

from pathlib import Path

import numpy as np
import pytest

from orthogp import GPRegressor, InputError
from orthogp.hyperparameters import MixedPosterior, draw_from, evidence_of
from orthogp.kernels import RBF, LogNormal, Matern32, Noise

RNG = np.random.default_rng(5)
X = np.sort(RNG.uniform(0, 10, (40, 1)), axis=0)
Y = 2 * np.sin(X[:, 0]) + 0.4 * RNG.standard_normal(40)
KERNEL = Matern32(4.0, 2.0).prior("lengthscale", LogNormal(2.0, 0.7)).fix("variance")
NOISE = Noise(0.2).prior(LogNormal(0.2, 0.7))


@pytest.fixture(scope="module")
def model() -> GPRegressor:
    return GPRegressor(KERNEL, noise_variance=NOISE, solver="exact").fit(X, Y)


@pytest.fixture(scope="module")
def grid(model: GPRegressor) -> tuple[np.ndarray, np.ndarray]:
    """Points (n, 2) of log lengthscale and log noise, and their posterior masses."""
    evidence = evidence_of(model)
    axes = np.meshgrid(
        evidence.mode[0] + np.linspace(-2.5, 2.5, 41),
        evidence.mode[1] + np.linspace(-2.0, 2.0, 41),
        indexing="ij",
    )
    points = np.stack([axis.ravel() for axis in axes], axis=1)
    values = np.array([evidence.value(point) for point in points])
    masses = np.exp(values - values.max())
    return points, masses / masses.sum()


def test_draws_have_the_moments_of_a_grid(model: GPRegressor, grid) -> None:
    points, masses = grid
    found = model.hyperparameter_posterior(draws=1024)
    assert found.names == ("lengthscale", "noise_variance")
    assert found.method == "importance"
    assert found.effective_sample_size > 500
    unit = [1.0, float(model.target_scale_[0] ** 2)]
    mean = masses @ points
    sd = np.sqrt(masses @ (points - mean) ** 2)
    logs = np.log(found.draws / unit)
    # Sobol points of which half count: errors of some hundredths of a standard deviation.
    np.testing.assert_allclose(found.weights @ logs, mean, atol=0.05 * sd.max())
    np.testing.assert_allclose(found.standard_errors, sd, rtol=0.05)
    covariance = (masses * (points - mean)[:, 0]) @ (points - mean)[:, 1]
    assert found.correlations[0, 1] == pytest.approx(covariance / np.prod(sd), abs=0.05)
    for probability in (0.05, 0.5, 0.95):
        for j in range(2):
            order = np.argsort(points[:, j])
            reached = np.cumsum(masses[order])
            expected = points[order, j][np.searchsorted(reached, probability)]
            # The step of the grid, and the draws' error.
            assert np.log(found.quantile(probability)[j] / unit[j]) == pytest.approx(
                expected, abs=0.15
            )


def test_integrated_predictions_are_those_of_a_grid(model: GPRegressor, grid) -> None:
    points, masses = grid
    at = np.array([[2.0], [5.0], [11.0]])
    evidence = evidence_of(model)
    likely = np.flatnonzero(masses > 3e-4)
    found = [evidence.posterior(evidence.start_at(points[i])).predict(at) for i in likely]
    weights = masses[likely] / masses[likely].sum()
    means = np.stack([own.mean[:, 0] for own in found])
    mean = weights @ means
    variance = weights @ (np.stack([own.variance for own in found]) + (means - mean) ** 2)
    scale, offset = model.target_scale_[0], model.target_offset_[0]
    mixed = GPRegressor(
        KERNEL, noise_variance=NOISE, solver="exact", hyperparameters="integrate"
    ).fit(X, Y)
    ours, std = mixed.predict(at, return_std=True)
    # A mixture of two dozen draws.
    sd = np.sqrt(variance) * scale
    np.testing.assert_allclose((ours - mean * scale - offset) / sd, 0.0, atol=0.15)
    np.testing.assert_allclose(std, sd, rtol=0.1)
    draws = mixed.sample_y(at, 4000, random_state=0)
    # Standard errors of means and deviations of 4,000 draws: four of them.
    np.testing.assert_allclose(draws.mean(axis=1), ours, atol=4 * std.max() / np.sqrt(4000))
    np.testing.assert_allclose(draws.std(axis=1), std, rtol=4 / np.sqrt(2 * 4000) + 0.02)
    covariance = mixed.predict(at, return_cov=True)[1]
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), std, rtol=1e-8)


def test_dense_lattice_and_exact_process_have_the_same_posterior(model: GPRegressor) -> None:
    kernel = RBF(4.0, 2.0).prior("lengthscale", LogNormal(2.0, 0.5)).fix("variance")
    exact, dense = (
        GPRegressor(kernel, noise_variance=NOISE, solver=solver)
        .fit(X, Y)
        .hyperparameter_posterior(draws=256)
        for solver in ("exact", "dense")
    )
    np.testing.assert_allclose(dense.standard_errors, exact.standard_errors, rtol=0.1)
    np.testing.assert_allclose(np.log(dense.mean / exact.mean), 0.0, atol=0.03)


def test_hamiltonian_draws_follow_a_density_that_bends() -> None:
    """A curved ridge, for which Laplace's approximation is poor; its moments are known."""

    def density(v: np.ndarray) -> tuple[float, np.ndarray]:
        bent = v[1] - v[0] ** 2
        value = -0.5 * v[0] ** 2 - 0.5 * (bent / 0.5) ** 2 - 0.5 * np.sum(v[2:] ** 2)
        return value, np.concatenate([[-v[0] + 2 * v[0] * bent / 0.25, -bent / 0.25], -v[2:]])

    box = (np.full(6, -30.0), np.full(6, 30.0))
    found = draw_from(density, lambda v: density(v)[0], np.zeros(6), box, 4000)
    assert found.method == "hamiltonian"
    assert found.effective > 100
    # E v_0 = 0, var v_0 = 1, E v_1 = 1, within four standard errors of the effective draws.
    error = 4 / np.sqrt(found.effective)
    assert found.vectors[:, 0].mean() == pytest.approx(0.0, abs=error)
    assert found.vectors[:, 0].var() == pytest.approx(1.0, abs=error * np.sqrt(2))
    assert found.vectors[:, 1].mean() == pytest.approx(1.0, abs=error * np.sqrt(2.25))


def test_what_is_fixed_has_no_posterior(model: GPRegressor) -> None:
    fixed = GPRegressor(KERNEL, noise_variance=Noise(0.2).fix(), solver="exact").fit(X, Y)
    assert fixed.hyperparameter_posterior(draws=64).names == ("lengthscale",)


def test_integrating_model_predicts_the_same_from_its_file(tmp_path: Path) -> None:
    mixed = GPRegressor(KERNEL, noise_variance=NOISE, hyperparameters="integrate").fit(X, Y)
    mixed.save(tmp_path / "m.orthogp")
    again = GPRegressor.load(tmp_path / "m.orthogp")
    expected = mixed.predict(X[:5], return_std=True)
    np.testing.assert_allclose(again.predict(X[:5], return_std=True), expected, rtol=1e-6)
    assert isinstance(again._predictive, MixedPosterior)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"solver": "neighbours"}, "'neighbours' has no posterior"),
        ({"learn": False}, "set learn=True"),
        ({"hyperparameters": "average"}, "must be one of"),
    ],
)
def test_what_cannot_be_integrated_says_so(settings: dict, words: str) -> None:
    settings = {"hyperparameters": "integrate", **settings}
    with pytest.raises(InputError, match=words):
        GPRegressor("matern32", **settings).fit(X, Y)
