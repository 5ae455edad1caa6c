"""The learned spectrum against the data's, on data whose spectrum is known."""

from typing import Any

import numpy as np
import pytest

from orthogp import GPClassifier, GPRegressor
from orthogp.kernels import RBF, Matern32
from orthogp.report.spectrum import Spectrum, latent_spectra, learned_spectra
from orthogp.rows import Domain
from tests.oracles import Array

KERNEL, NOISE = Matern32(variance=1.0, lengthscale=0.3), 0.04


def draw_rows(kernel_lengthscale: float, seed: int, n: int = 400) -> tuple[Array, Array]:
    """Rows of a Matérn-3/2 process at clustered inputs, and noise."""
    rng = np.random.default_rng(seed)
    X = np.sort(10 * rng.beta(0.7, 1.5, (n, 1)), axis=0)
    z = np.sqrt(3) * np.abs(X - X.T) / kernel_lengthscale
    covariance = (1 + z) * np.exp(-z) + NOISE * np.eye(n)
    return X, np.linalg.cholesky(covariance) @ rng.standard_normal(n)


def spectrum(kernel: Any, X: Array, y: Array, **settings: Any) -> Spectrum:
    model = GPRegressor(kernel, noise_variance=NOISE, learn=False, **settings).fit(X, y)
    return learned_spectra(model, Domain.around(X))[0]


def at_bands(own: Spectrum) -> Array:
    """The learned density, in the middle of each band."""
    logs = np.interp(np.log(own.bands), np.log(own.frequency), np.log(own.learned[0]))
    return np.exp(logs)


def test_the_line_is_the_kernels_density_per_cycle() -> None:
    X, y = draw_rows(0.3, seed=0)
    own = spectrum(KERNEL, X, y)
    # S(ω) = 4 (√3/ℓ)³/(2π (3/ℓ² + ω²)²), per cycle 2π times as much; the model's units are y's.
    decay = np.sqrt(3) / 0.3
    wanted = 4 * decay**3 / (decay**2 + (2 * np.pi * own.frequency) ** 2) ** 2
    np.testing.assert_allclose(own.learned[0], wanted, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"features": "exact"}, {"solver": "iterative"}])
def test_data_of_the_model_lie_on_the_line(settings: dict[str, Any]) -> None:
    ratios, inside = [], []
    for seed in range(3):
        X, y = draw_rows(0.3, seed)
        own = spectrum(KERNEL, X, y, **settings)
        line = at_bands(own)
        ratios += (own.data[0] / line).tolist()
        inside += ((own.low[0] < line) & (line < own.high[0])).tolist()
    # Some forty bands of at least five degrees of freedom each: four standard errors.
    assert len(ratios) > 20
    assert abs(np.mean(ratios) - 1) < 4 * np.sqrt(2 / 5 / len(ratios))
    assert np.mean(inside) > 0.8


def test_data_of_another_process_leave_the_line() -> None:
    X, y = draw_rows(3.0, seed=1)
    own = spectrum(KERNEL, X, y)
    line, half = at_bands(own), len(own.bands) // 2
    # The kernel has more power at high frequencies than data that are ten times as smooth.
    assert np.mean(line[half:] > own.high[0, half:]) > 0.5
    assert np.mean(own.data[0, half:] / line[half:]) < 0.5


def test_components_have_spectra_of_their_own() -> None:
    rng = np.random.default_rng(2)
    X = rng.uniform(-1, 1, (400, 4))
    y = np.sin(6 * X[:, 0]) + 0.2 * rng.standard_normal(400)
    kernel = Matern32(1.0, 0.3).on(0) + RBF(1.0, 1.0).on(1) + RBF(1.0, 1.0).on(2, 3)
    model = GPRegressor(kernel, noise_variance=NOISE, learn=False, num_features=101).fit(X, y)
    found = learned_spectra(model, Domain.around(X))
    assert [own.columns for own in found] == [(0,), (1,), (2, 3)]
    # A sine of six radians per unit, near one cycle.
    assert found[0].bands[np.argmax(found[0].data[0])] == pytest.approx(6 / (2 * np.pi), rel=0.4)


def test_a_classifiers_log_odds_have_a_spectrum() -> None:
    rng = np.random.default_rng(3)
    X = rng.uniform(-2, 2, (600, 1))
    y = np.sin(4 * X[:, 0]) + 0.3 * rng.standard_normal(600) > 0
    model = GPClassifier(RBF(9.0, 0.4), learn=False, num_features=41).fit(X, y)
    (own,) = latent_spectra(model.posterior_, Domain.around(X))
    assert own.noise.tolist() == [0.0]
    assert own.bands[np.argmax(own.data[0])] == pytest.approx(4 / (2 * np.pi), rel=0.5)
