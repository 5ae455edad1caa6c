"""The kernels and the small problems on which the tests run, each kernel with its closed form."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from orthogp.features import Lattice, MeanPrior
from orthogp.inference import Domain, Moments, Posterior, moments_from_statistics
from orthogp.kernels import (
    RBF,
    Kernel,
    Matern,
    Matern12,
    Matern32,
    Matern52,
    QuasiPeriodic,
    RationalQuadratic,
    Rotated,
    SpectralKernel,
    SpectralMixture,
)
from orthogp.statistics import FourierStatistics, FrequencyLattice
from tests import oracles
from tests.oracles import Array

DIMS = (1, 2, 3)


def lengthscales(num_dims: int) -> Array:
    """A different lengthscale for each column."""
    return np.array([0.5, 0.7, 0.9])[:num_dims]


def sech(x: jax.Array) -> jax.Array:
    """1/cosh x without overflow."""
    decay = jnp.exp(-jnp.abs(x))
    return 2 * decay / (1 + decay**2)


def sech_density(u: jax.Array) -> jax.Array:
    """∏ ½ sech(π u_d/2), the density of ∏ sech(z_d)."""
    return jnp.prod(0.5 * sech(jnp.pi / 2 * u))


def sech_covariance(z: jax.Array) -> jax.Array:
    return jnp.prod(sech(z))


class Entry(NamedTuple):
    """A kernel, its closed-form covariance, and how much it asks of a lattice."""

    name: str
    kernel: Kernel
    k: oracles.Covariance
    #: Whether the spectral density decays exponentially.
    smooth: bool
    #: Whether the covariance decays exponentially.
    local: bool = True


def zoo(num_dims: int) -> list[Entry]:
    """Every kernel on `num_dims` columns, with one lengthscale per column (ARD)."""
    ell = lengthscales(num_dims)
    weights, means = (
        np.array([0.5, 0.8]),
        np.array([[3.0, 2.0, 4.0], [8.0, 5.0, 3.0]])[:, :num_dims],
    )
    bumps = np.array([[0.6, 0.8, 0.9], [0.9, 0.5, 0.7]])[:, :num_dims]
    entries = [
        Entry("rbf", RBF(1.3, ell), partial(oracles.rbf, variance=1.3, lengthscale=ell), True),
        Entry(
            "matern12",
            Matern12(1.3, ell),
            partial(oracles.matern12, variance=1.3, lengthscale=ell),
            False,
        ),
        Entry(
            "matern32",
            Matern32(0.7, ell),
            partial(oracles.matern32, variance=0.7, lengthscale=ell),
            False,
        ),
        Entry(
            "matern52",
            Matern52(1.3, ell),
            partial(oracles.matern52, variance=1.3, lengthscale=ell),
            False,
        ),
        Entry(
            "matern",
            Matern(1.8, 1.3, ell),
            partial(oracles.matern, nu=1.8, variance=1.3, lengthscale=ell),
            False,
        ),
        Entry(
            "rational-quadratic",
            RationalQuadratic(1.3, ell, 1.4),
            partial(oracles.rational_quadratic, variance=1.3, lengthscale=ell, alpha=1.4),
            True,
            local=False,
        ),
        Entry(
            "spectral-mixture",
            SpectralMixture(weights, means, bumps),
            partial(oracles.spectral_mixture, weights=weights, means=means, lengthscale=bumps),
            True,
        ),
        Entry(
            "quasi-periodic",
            QuasiPeriodic(1.3, ell, 0.9, 0.8),
            partial(oracles.quasi_periodic, variance=1.3, lengthscale=ell, period=0.9, shape=0.8),
            True,
        ),
        Entry(
            "spectral",
            SpectralKernel(sech_density, sech_covariance, 1.3, ell / 2),
            lambda lag: 1.3 * np.prod(oracles.sech(np.asarray(lag) / (ell / 2)), axis=-1),
            True,
        ),
        Entry(
            "sum",
            Matern52(0.5, ell) + 0.6 * RBF(2.0, ell),
            lambda lag: oracles.matern52(lag, 0.5, ell) + oracles.rbf(lag, 1.2, ell),
            False,
        ),
    ]
    if num_dims == 1:
        entries.append(
            Entry(
                "spectral by quadrature",
                SpectralKernel(sech_density, None, 1.3, ell / 2),
                lambda lag: 1.3 * oracles.sech(np.asarray(lag)[..., 0] / (ell[0] / 2)),
                True,
            )
        )
    else:
        last = num_dims - 1
        entries.append(
            Entry(
                "additive",
                RBF(0.5, 0.6).on(0) + RationalQuadratic(0.9, [0.8], 1.6).on(last),
                lambda lag: (
                    oracles.rbf(np.asarray(lag)[..., :1], 0.5, 0.6)
                    + oracles.rational_quadratic(np.asarray(lag)[..., last:], 0.9, 0.8, 1.6)
                ),
                True,
                local=False,
            )
        )
    if num_dims == 2:
        entries.append(
            Entry(
                "rotated",
                Rotated(Matern32(0.7, [0.9, 0.4]), 0.6),
                lambda lag: oracles.matern32(
                    np.asarray(lag) @ oracles.rotation(0.6).T, variance=0.7, lengthscale=[0.9, 0.4]
                ),
                False,
            )
        )
    # Each kernel and dimension costs a compilation: with more columns one of each kind will do.
    left_out = {1: (), 2: ("matern12", "matern52"), 3: ("matern", "quasi-periodic", "spectral")}
    skipped = {name for d in range(1, num_dims + 1) for name in left_out[d]}
    return [entry for entry in entries if entry.name not in skipped]


def all_entries(*dims: int) -> list[tuple[int, Entry]]:
    return [(num_dims, entry) for num_dims in dims or DIMS for entry in zoo(num_dims)]


def label(value: object) -> str | None:
    """An identifier for `pytest.mark.parametrize`."""
    if isinstance(value, Entry):
        return value.name
    return f"{value}D" if isinstance(value, int) else None


# ---------------------------------------------------------------------- kernels on many lags

_BLOCK = 64


def covariances(kernel: Kernel, lags: ArrayLike) -> Array:
    """k at lags of shape (..., d), in double precision."""
    return _in_blocks(_k, kernel, np.asarray(lags, dtype=float))


def densities(kernel: Kernel, omegas: ArrayLike) -> Array:
    """S at frequencies of shape (..., d), in double precision."""
    return _in_blocks(_spectral_density, kernel, np.asarray(omegas, dtype=float))


def wrapped_covariances(kernel: Kernel, lags: ArrayLike, period: Array) -> Array:
    """k_P at lags of shape (..., d), in double precision."""
    return _in_blocks(_wrapped, kernel, np.asarray(lags, dtype=float), np.asarray(period, float))


def wrapped_gram(kernel: Kernel, A: Array, B: Array, period: Array) -> Array:
    """k_P(a − b) for all pairs of rows."""
    return wrapped_covariances(kernel, A[:, None, :] - B[None, :, :], period)


def prior_variance(kernel: Kernel) -> float:
    with jax.enable_x64(True):
        return float(kernel.prior_variance())


def _in_blocks(function: Callable, kernel: Kernel, points: Array, *arguments: Array) -> Array:
    # Blocks of one shape: one compilation for each kernel and dimension.
    shape, num_dims = points.shape[:-1], points.shape[-1]
    flat = points.reshape(-1, num_dims)
    padded = np.concatenate([flat, np.zeros((-len(flat) % _BLOCK, num_dims))])
    blocks = padded.reshape(-1, _BLOCK, num_dims)
    with jax.enable_x64(True):
        values = [np.asarray(function(kernel, block, *arguments)) for block in blocks]
    return np.concatenate([np.empty(0), *values])[: len(flat)].reshape(shape)


@eqx.filter_jit
def _k(kernel: Kernel, lags: jax.Array) -> jax.Array:
    return jax.vmap(kernel.k)(lags)


@eqx.filter_jit
def _spectral_density(kernel: Kernel, omegas: jax.Array) -> jax.Array:
    return jax.vmap(kernel.spectral_density)(omegas)


@eqx.filter_jit
def _wrapped(kernel: Kernel, lags: jax.Array, period: jax.Array) -> jax.Array:
    return jax.vmap(lambda lag: kernel.wrapped(lag, period))(lags)


# ---------------------------------------------------------------------- data

#: Data lie in the box [−1, 1] around this centre, moved off zero so that forgetting it shows.
CENTRE = np.array([0.3, -0.2, 0.1])
NO_MEAN = MeanPrior()


def mean_prior(kind: str | None, num_dims: int) -> MeanPrior:
    """The prior of no mean function, a constant one, or a linear one."""
    return MeanPrior(
        offset_variance=0.0 if kind is None else 4.0,
        slope_variance=2.5 if kind == "linear" else 0.0,
        origin=CENTRE[:num_dims] + 0.1,
        width=np.array([0.8, 1.1, 1.3])[:num_dims],
    )


def slope_columns(mean: MeanPrior, X: Array) -> Array:
    """What the slopes of a linear mean function multiply."""
    assert mean.origin is not None
    assert mean.width is not None
    return (X - mean.origin) / mean.width


def mean_covariance(mean: MeanPrior, A: Array, B: Array) -> Array:
    """The prior covariance of the mean function, written out."""
    total = np.full((len(A), len(B)), float(mean.offset_variance))
    if mean.slope_variance:
        total = total + mean.slope_variance * slope_columns(mean, A) @ slope_columns(mean, B).T
    return total


def make_lattice(num_dims: int, period: ArrayLike, extent: ArrayLike) -> FrequencyLattice:
    centre = CENTRE[:num_dims]
    return FrequencyLattice.for_domain(centre - 1, centre + 1, period=period, extent=extent)


@dataclass(frozen=True)
class Rows:
    """A small data set."""

    X: Array
    y: Array
    weights: Array | None

    @property
    def num_dims(self) -> int:
        return self.X.shape[1]

    @property
    def precisions(self) -> Array:
        """The weights, ones if there are none."""
        return np.ones(len(self.X)) if self.weights is None else self.weights

    def statistics(self, lattice: FrequencyLattice, mean: MeanPrior = NO_MEAN) -> FourierStatistics:
        covariates = mean.covariates if mean.slope_variance else None
        return FourierStatistics.from_data(
            lattice, self.X, self.y, self.weights, covariates=covariates, num_threads=1
        )


def make_rows(
    seed: int,
    num_rows: int,
    num_dims: int,
    num_targets: int = 1,
    weights: str | None = None,
) -> Rows:
    """Rows with a smooth signal, a trend and noise; weights are None, "real" or "whole"."""
    rng = np.random.default_rng(seed)
    X = CENTRE[:num_dims] + rng.uniform(-1, 1, (num_rows, num_dims))
    phases = X @ rng.normal(0, 2, (num_dims, num_targets)) + rng.uniform(0, 6, num_targets)
    y = np.sin(phases) + X[:, :1] + 0.5 + 0.3 * rng.normal(size=(num_rows, num_targets))
    kinds: dict[str | None, Array | None] = {
        None: None,
        "real": rng.uniform(0.2, 2.0, num_rows),
        "whole": rng.integers(0, 4, num_rows).astype(float),
    }
    chosen = kinds[weights]
    if chosen is not None:
        chosen[0] = max(chosen[0], 1.0)  # at least one row counts
    return Rows(X, y, chosen)


class Model(NamedTuple):
    """Everything that leads from rows to a posterior."""

    features: Lattice
    statistics: FourierStatistics
    moments: Moments
    posterior: Posterior


def fit(
    kernel: Kernel,
    rows: Rows,
    lattice: FrequencyLattice,
    num_features: int,
    noise_variance: float,
    mean: MeanPrior = NO_MEAN,
    *,
    repeats: bool = False,
    reach: float = 1.5,
) -> Model:
    """The posterior at given hyperparameters, covering a box somewhat larger than the data's."""
    statistics = rows.statistics(lattice, mean)
    features = Lattice.select(kernel, lattice, num_features, mean)
    moments = moments_from_statistics(features, kernel, statistics, repeats=repeats)
    centre = CENTRE[: rows.num_dims]
    domain = Domain(centre - reach, centre + reach)
    return Model(
        features,
        statistics,
        moments,
        Posterior(features, kernel, noise_variance, moments, domain, num_threads=1),
    )


def design(features: Lattice, X: Array) -> NDArray[np.float64]:
    """The columns of lattice features before any kernel, written out."""
    omegas = features.indices * features.lattice.spacing
    waves = oracles.cosines_and_sines(X, omegas, features.lattice.centre)
    if not features.mean.slope_variance:
        return waves
    return np.concatenate([waves, slope_columns(features.mean, X)], axis=1)
