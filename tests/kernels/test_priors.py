"""Priors: their densities, what they promise, and what contradicts itself."""

import numpy as np
import pytest
from scipy import stats

from orthogp.errors import KernelError
from orthogp.inference.parameters import Beliefs, learned_slots, pack
from orthogp.kernels import (
    RBF,
    Cyclic,
    Gamma,
    LogNormal,
    Matern32,
    Noise,
    Rotated,
    penalised_lengthscale,
    penalised_variance,
)
from orthogp.kernels.base import Prior

LOGS = np.linspace(-3.0, 3.0, 13)
PRIORS: dict[str, Prior] = {
    "log-normal": LogNormal(2.0, 0.7),
    "gamma": Gamma(3.0, 2.0),
    "inverse gamma": Gamma(3.0, 2.0, power=-1.0),
    "lengthscale": penalised_lengthscale(0.3, 0.05, columns=2),
    "variance": penalised_variance(1.5, 0.01),
}


@pytest.mark.parametrize(
    ("prior", "known"),
    [
        (PRIORS["log-normal"], stats.lognorm(0.7, scale=2.0)),
        (PRIORS["gamma"], stats.gamma(3.0, scale=0.5)),
        (PRIORS["inverse gamma"], stats.invgamma(3.0, scale=2.0)),
    ],
)
def test_density_is_scipys_of_the_logarithm(prior: Prior, known) -> None:
    expected = known.logpdf(np.exp(LOGS)) + LOGS
    np.testing.assert_allclose(prior.log_density(LOGS).value, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS.keys())
def test_derivatives_are_differences(prior: Prior) -> None:
    step = 1e-5
    up, down = prior.log_density(LOGS + step), prior.log_density(LOGS - step)
    found = prior.log_density(LOGS)
    np.testing.assert_allclose(found.slope, (up.value - down.value) / (2 * step), rtol=1e-6)
    np.testing.assert_allclose(found.bend, (up.slope - down.slope) / (2 * step), rtol=1e-6)


@pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS.keys())
def test_scaled_prior_is_that_of_the_multiple(prior: Prior) -> None:
    moved = prior.scaled(3.0).log_density(LOGS + np.log(3.0)).value
    np.testing.assert_allclose(moved, prior.log_density(LOGS).value, rtol=1e-12)


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_penalised_lengthscale_has_its_tail(columns: int) -> None:
    prior = penalised_lengthscale(0.3, 0.05, columns)
    assert _probability(prior, below=0.3) == pytest.approx(0.05, abs=1e-6)


def test_penalised_variance_has_its_tail() -> None:
    prior = penalised_variance(1.5, 0.01)
    assert 1 - _probability(prior, below=1.5**2) == pytest.approx(0.01, abs=1e-6)


def _probability(prior: Prior, below: float) -> float:
    """The probability of values below, by the rectangle rule in the logarithm."""
    width = 1e-4
    logs = np.arange(-60.0, 60.0, width) + width / 2
    mass = np.exp(prior.log_density(logs).value) * width
    np.testing.assert_allclose(mass.sum(), 1.0, atol=1e-9)
    return float(np.interp(np.log(below), logs + width / 2, np.cumsum(mass)))


def test_log_prior_of_a_vector_adds_up_and_has_its_gradient() -> None:
    kernel = RBF(1.0, [0.5, 2.0]).prior("lengthscale", LogNormal(1.0, 0.5)) + Matern32()
    kernel = kernel.prior("variance", Gamma(2.0, 1.0))
    beliefs = Beliefs.of(kernel, Noise().prior(LogNormal(0.1, 1.0)), factor=0.25)
    plain = kernel.without_knowledge()
    slots = learned_slots(plain)
    vector = np.append(pack(plain, slots), np.log(0.3))
    found = beliefs.log_prior(slots, vector)
    expected = (
        LogNormal(1.0, 0.5).log_density(np.log([0.5, 2.0])).value.sum()
        + 2 * Gamma(2.0, 4.0).log_density(np.zeros(1)).value[0]
        + LogNormal(0.025, 1.0).log_density(np.log([0.3])).value[0]
    )
    assert found.value == pytest.approx(expected, rel=1e-12)
    for i in range(len(vector)):
        moved = vector.copy()
        moved[i] += 1e-6
        slope = (beliefs.log_prior(slots, moved).value - found.value) / 1e-6
        assert found.gradient[i] == pytest.approx(slope, abs=1e-4)


def test_wrapped_kernels_keep_bounds_and_priors() -> None:
    inner = Matern32(1.0, [2.0, 1.0]).bound("lengthscale", 0.1, 5.0)
    for kernel in (Rotated(inner), Rotated(Matern32(1.0, [2.0, 1.0])).bound("lengthscale", 0.1, 5)):
        assert kernel.bounds == (("lengthscale", 0.1, 5.0),)
        assert kernel.without_knowledge().bounds == ()
    assert Cyclic(Matern32(), 24.0).prior("variance", Gamma(1.0, 1.0)).priors[0][0] == "variance"


@pytest.mark.parametrize(
    ("contradict", "words"),
    [
        (lambda: RBF().fix("lengthscale").prior("lengthscale", LogNormal(1, 1)), "fixed"),
        (lambda: RBF().prior("lengthscale", LogNormal(1, 1)).fix(), "fixed"),
        (lambda: RBF().fix().bound("variance", 1, 2), "fixed"),
        (lambda: RBF().bound("lengthscale", 2.0, 1.0), "below the upper"),
        (lambda: RBF().bound("lengthscale", -1.0, 1.0), "positive"),
        (lambda: RBF().bound("period", 1.0, 2.0), "no parameter 'period'"),
        (lambda: (RBF() + Matern32()).prior("nu", LogNormal(1, 1)), "no parameter 'nu'"),
        (lambda: RBF().prior("lengthscale", stats.norm(0, 1)), "must be LogNormal"),  # type: ignore[arg-type]
        (lambda: Rotated(RBF(1.0, [1.0, 2.0])).bound("angle", 0.1, 1.0), "goes round"),
        (lambda: Noise().fix(), "needs a value"),
        (lambda: Noise(0.1).fix().prior(LogNormal(1, 1)), "fixed"),
        (lambda: Noise(0.1).bound(1.0, 2.0).fix(), "fixed"),
        (lambda: Noise(-1.0), "positive"),
        (lambda: Noise().bound(2.0, 1.0), "below the upper"),
        (lambda: penalised_lengthscale(1.0, 1.5), "between 0 and 1"),
        (lambda: LogNormal(1.0, 0.0), "positive"),
    ],
)
def test_contradictions_are_refused_in_one_sentence(contradict, words: str) -> None:
    with pytest.raises(KernelError, match=words) as refusal:
        contradict()
    assert str(refusal.value).count(". ") == 0
