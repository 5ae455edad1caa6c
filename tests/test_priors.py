"""Priors, bounds and fixed values in every engine: what is learned, and what stays."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

from orthogp import GPClassifier, GPRegressor, KernelError, StochasticGPRegressor
from orthogp.exact.process import ExactObjective
from orthogp.kernels import RBF, Kernel, LogNormal, Matern32, Noise, additive, penalised_variance
from orthogp.learning.sketches import mean_prior
from orthogp.rows import Domain, Rows

RNG = np.random.default_rng(3)
X = RNG.uniform(0, 10, (250, 1))
Y = 5 * np.sin(2 * X[:, 0]) + 0.5 * RNG.standard_normal(250)
KERNEL = Matern32(5.0, 1.0)

ENGINES = {
    "exact": {"solver": "exact"},
    "dense": {"solver": "dense"},
    "neighbours": {"solver": "neighbours"},
    "features": {"features": "trig", "num_features": 61},
}


def fitted(kernel: Kernel, **settings) -> GPRegressor:
    return GPRegressor(kernel, **settings).fit(X, Y)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())
def test_fixed_noise_stays_while_the_kernel_is_learned(engine: dict) -> None:
    model = fitted(KERNEL, noise_variance=Noise(1.0).fix(), **engine)
    assert model.noise_variance_ == pytest.approx(1.0, rel=1e-12)
    assert float(model.kernel_.parameters()["lengthscale"]) > 1.2


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())
def test_bounds_hold_the_noise_and_the_lengthscale(engine: dict) -> None:
    kernel = KERNEL.bound("lengthscale", 0.2, 0.8)
    model = fitted(kernel, noise_variance=Noise().bound(0.4, 0.9), **engine)
    # The data want a longer lengthscale and less noise.
    assert float(model.kernel_.parameters()["lengthscale"]) == pytest.approx(0.8, rel=1e-6)
    assert model.noise_variance_ == pytest.approx(0.4, rel=1e-6)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())
def test_narrow_priors_decide(engine: dict) -> None:
    kernel = KERNEL.prior("variance", LogNormal(30.0, 1e-3)).prior(
        "lengthscale", LogNormal(1, 1e-3)
    )
    model = fitted(kernel, noise_variance=Noise().prior(LogNormal(0.5, 1e-3)), **engine)
    learned = model.kernel_.parameters()
    assert float(learned["variance"]) == pytest.approx(30.0, rel=0.01)
    assert float(learned["lengthscale"]) == pytest.approx(1.0, rel=0.01)
    assert model.noise_variance_ == pytest.approx(0.5, rel=0.01)


def test_iterative_lattice_keeps_fixed_noise_and_follows_a_prior() -> None:
    rng = np.random.default_rng(0)
    many = rng.uniform(0, 1, (4000, 2))
    y = np.sin(9 * many[:, 0]) * np.cos(7 * many[:, 1]) + 0.1 * rng.standard_normal(4000)
    kernel = Matern32(1.0, 0.3).prior("lengthscale", LogNormal(0.2, 1e-3))
    noise = Noise(0.02).fix()
    model = GPRegressor(kernel, solver="iterative", noise_variance=noise).fit(many, y)
    assert model.noise_variance_ == pytest.approx(0.02, rel=1e-9)
    assert float(model.kernel_.parameters()["lengthscale"]) == pytest.approx(0.2, rel=0.01)


def test_additive_terms_have_bounds_of_their_own() -> None:
    rng = np.random.default_rng(1)
    many = rng.uniform(0, 1, (600, 4))
    y = np.sin(6 * many).sum(axis=1) + 0.1 * rng.standard_normal(600)
    first = Matern32().bound("lengthscale", 0.05, 0.1).on(0)
    kernel = first + additive("matern32", 4).with_parts(Matern32().on(j) for j in range(1, 4))
    model = GPRegressor(kernel, noise_variance=Noise(0.04).fix(), solver="dense").fit(many, y)
    lengths = [float(own.parameters()["lengthscale"]) for own, _ in model.kernel_.primitives()]
    assert model.engine_ == "additive"
    assert lengths[0] == pytest.approx(0.1, rel=1e-6)
    assert min(lengths[1:]) > 0.2
    assert model.noise_variance_ == pytest.approx(0.04, rel=1e-12)


def test_exact_fit_ends_at_the_mode_of_a_grid() -> None:
    """The maximum over a fine grid of log p(y) and the log prior, each computed by itself."""
    X_few, y_few = X[:40], Y[:40]
    prior = LogNormal(0.6, 0.3)
    kernel = Matern32(10.0, 1.0).fix("variance").prior("lengthscale", prior)
    noise = Noise().prior(penalised_variance(0.3, 0.05))
    model = GPRegressor(kernel, noise_variance=noise, mean=None, solver="exact").fit(X_few, y_few)
    rows = Rows(X_few, (y_few - model.target_offset_)[:, None], None)
    objective = ExactObjective(
        kernel.without_knowledge(), mean_prior(None, Domain.around(X_few)), rows
    )
    lengths, noises = np.linspace(-1.5, 0.5, 81), np.linspace(-4.0, 0.0, 81)
    value = np.array([[objective.value(np.array([a, b])) for b in noises] for a in lengths])
    value += prior.log_density(lengths).value[:, None]
    value += penalised_variance(0.3, 0.05).log_density(noises).value
    i, j = np.unravel_index(np.argmax(value), value.shape)
    learned = float(model.kernel_.parameters()["lengthscale"])
    # Half a step of the grid, and a little for the curvature between its points.
    assert np.log(learned) == pytest.approx(lengths[i], abs=0.02)
    assert np.log(model.noise_variance_) == pytest.approx(noises[j], abs=0.04)


# scikit-learn warns that its optimum is at a bound.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_scikit_learns_bounds_and_fixed_values_mean_what_they_mean_there() -> None:
    few, y = X[:80], Y[:80] - Y[:80].mean()
    kernel = sk.ConstantKernel(20.0, (1.0, 25.0)) * sk.Matern(0.5, (0.1, 0.9), nu=1.5)
    for white in (sk.WhiteKernel(0.5, "fixed"), sk.WhiteKernel(0.5, (0.6, 2.0))):
        theirs = GaussianProcessRegressor(kernel + white, alpha=1e-12).fit(few, y)
        ours = GPRegressor(kernel + white, mean=None, solver="exact").fit(few, y)
        constant, matern, noise = np.exp([*theirs.kernel_.theta.tolist(), np.log(0.5)])[:3]
        learned = ours.kernel_.parameters()
        # Searches end where a step promises less than 1e-4 nats.
        assert ours.elbo_ == pytest.approx(theirs.log_marginal_likelihood_value_, abs=1e-3)
        assert float(learned["variance"]) == pytest.approx(constant, rel=0.02)
        assert float(learned["lengthscale"]) == pytest.approx(matern, rel=1e-3)
        assert ours.noise_variance_ == pytest.approx(noise, rel=1e-3)


def test_settings_survive_cloning_and_files(tmp_path: Path) -> None:
    kernel = KERNEL.prior("lengthscale", LogNormal(1.0, 0.2)).bound("variance", 1.0, 50.0)
    noise = Noise(0.3).prior(penalised_variance(1.0, 0.05))
    model = fitted(kernel, noise_variance=noise)
    assert clone(model).noise_variance == noise
    model.save(tmp_path / "m.orthogp")
    again = GPRegressor.load(tmp_path / "m.orthogp")
    assert again.noise_variance == noise
    assert again.kernel.priors == kernel.priors
    assert again.kernel.bounds == kernel.bounds
    more = RNG.uniform(0, 10, (20, 1))
    y = 5 * np.sin(2 * more[:, 0])
    model.partial_fit(more, y)
    again.partial_fit(more, y)
    assert again.noise_variance_ == pytest.approx(model.noise_variance_, rel=1e-9)


def test_estimators_without_priors_say_so() -> None:
    kernel = RBF().prior("lengthscale", LogNormal(1.0, 0.5))
    labels = (Y > 0).astype(int)
    with pytest.raises(KernelError, match="GPClassifier takes no priors"):
        GPClassifier(kernel).fit(X, labels)
    with pytest.raises(KernelError, match="StochasticGPRegressor takes no priors"):
        StochasticGPRegressor(kernel).fit(X, Y)
