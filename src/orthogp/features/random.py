r"""Random Fourier features (Rahimi & Recht 2008).

R frequencies are drawn from the masses that a kernel has on a lattice, p_t = mass_t/Σ mass, and for
any kernel θ

    Q(x, x') = (1/R) Σ_r (mass_{t_r}(θ)/p_{t_r}) cos ω_{t_r}·(x − x')
    E Q(x, x') = Σ_t mass_t(θ) cos ω_t·(x − x')

so that Q is an unbiased estimate of every kernel's part on the lattice, and smooth in the kernel's
parameters while the draw stays.

On more columns than a lattice has, frequencies are drawn from the spectral density itself,
ω_r = ω(z_r; θ) with random numbers z_r that stay (`Kernel.frequencies`), and

    Q(x, x') = (k(0)/R) Σ_r cos ω_r·(x − x'),      E Q = k
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from typing import Any, Self, cast

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.errors import FeatureError
from orthogp.features.base import (
    Features,
    Floats,
    PointFeatures,
    as_rows,
    check_count,
    correlation_lengths,
    prior_variance,
)
from orthogp.features.series import MassSeries, for_kernel, lattice_masses
from orthogp.kernels import Kernel, components
from orthogp.precision import AnyArray
from orthogp.statistics import FrequencyLattice
from orthogp.statistics.lattice import MAX_DIMS

# The largest index of a lattice made here, by number of columns.
_EXTENTS = {1: 2**15, 2: 127, 3: 31}
# The periods of a lattice, in extents of the data, of which the longest is taken that keeps enough
# variance: the longer the period, the more the frequencies are those of the continuum.
_PERIODS = [2.0**i for i in range(1, 11)]
# The smallest share of the prior variance that may lie on the lattice.
_SHARE = 0.999


class RandomSeries(MassSeries):
    """Random Fourier features as series: weights √(count/(R p_t)) of the modes drawn."""

    projects = False


class RandomWaves(PointFeatures):
    """Random Fourier features on any number of columns, whose frequencies follow the kernel.

        φ = √(k(0)/R) (cos ω_r·(x−x₀), sin ω_r·(x−x₀))

    A sum of T kernels has every T-th draw for each of its terms.

    Parameters
    ----------
    normals, uniforms : (R, d)
        The random numbers that frequencies are made of.
    centre : (d,)
        x₀.
    """

    normals: Any
    uniforms: Any
    centre: Any

    projects = False
    any_columns = True

    @property
    def num_features(self) -> int:
        """2R."""
        return 2 * len(self.normals)

    def phi(self, kernel: Kernel, X: Float[AnyArray, "n d"]) -> Float[AnyArray, "n m"]:
        """Return the cosines of all terms, then their sines."""
        terms = _terms(kernel, X.shape[1])
        waves = []
        for i, term in enumerate(terms):
            drawn = slice(i, None, len(terms))
            omegas = term.frequencies(jnp.asarray(self.normals)[drawn], self.uniforms[drawn])
            phases = (X - self.centre) @ omegas.T
            scale = jnp.sqrt(term.prior_variance() / omegas.shape[0])
            waves.append((scale * jnp.cos(phases), scale * jnp.sin(phases)))
        return jnp.concatenate([part for pair in zip(*waves) for part in pair], axis=1)


class RandomFourier(Features):
    """Cosines and sines at random frequencies; the kernel Q of the features replaces the prior.

        φ = √(n_t mass_t/(R p_t)) (cos ω_t·(x−x₀), sin ω_t·(x−x₀))   for a mode t drawn n_t times

    An index and its negative are the same mode, and index zero has no sine, so that there are 2R
    features if all draws differ, and fewer otherwise. On more than three columns `placed` returns
    `RandomWaves`, whose 2R features are drawn without a lattice.

    Parameters
    ----------
    num_features : int
        2R, for R draws.
    seed : int
        The draws are the same for the same seed, kernel and lattice.
    lattice : FrequencyLattice
        Where frequencies were drawn: that of the statistics, or a fine one made for the features.
    num_draws : int
        R.
    indices, weights : (s, d), (s,)
        The modes drawn, index zero first (of weight zero unless drawn), and √(n_t/(R p_t)). These
        and the two before are chosen by `placed`.
    """

    num_features: int = eqx.field(static=True, converter=check_count)
    seed: int = eqx.field(
        default=0, static=True, converter=lambda seed: check_count(seed, "seed", least=0)
    )
    lattice: FrequencyLattice | None = eqx.field(default=None, static=True, kw_only=True)
    num_draws: int | None = eqx.field(default=None, static=True, kw_only=True)
    indices: Any = eqx.field(default=None, kw_only=True)
    weights: Any = eqx.field(default=None, kw_only=True)

    known_as = ("random-fourier",)
    projects = False
    # With the drawn frequencies kept, a bound would flatten the weights by shrinking lengthscales:
    # any prior over few frequencies fits better than the kernel's.
    learns = False
    any_columns = True

    def __check_init__(self) -> None:
        if self.lattice is None:
            check_count(self.num_features, least=2)

    def check(self, kernel: Kernel, num_dims: int) -> None:
        """Raise unless there is a lattice to draw from, or a way to draw without one."""
        if num_dims <= MAX_DIMS:
            return
        terms = _terms(kernel, num_dims)
        if len(terms) > self.num_features // 2:
            raise FeatureError(
                f"A sum of {len(terms)} kernels needs a frequency for each, two features, but "
                f"RandomFourier has {self.num_features}: use a larger num_features."
            )
        one = np.full((1, num_dims), 0.5)
        for term in terms:
            term.frequencies(one, one)

    def evaluate(self, kernel: Kernel, X: NDArray) -> Floats:
        """Return φ_m(x_n), (n, m); an open lattice is chosen for the smallest box around X."""
        X = as_rows(X)
        family = self if X.shape[1] > MAX_DIMS else for_kernel(self, kernel, X.shape[1])
        if family is not self:
            return family.evaluate(kernel, X)
        features = self.placed(kernel, X.min(axis=0), X.max(axis=0))
        if isinstance(features, RandomWaves):
            return features.evaluate(kernel, X)
        assert features.lattice is not None
        return features.on(features.lattice).evaluate(kernel, X)

    def placed(
        self, kernel: Kernel, lower: Floats, upper: Floats, lattice: FrequencyLattice | None = None
    ) -> Self:
        """Return a copy with frequencies drawn from the kernel, unless they have been drawn.

        On another lattice than theirs they are drawn anew.
        """
        if self.lattice is not None and lattice in (None, self.lattice):
            return self
        if len(lower) > MAX_DIMS:
            self.check(kernel, len(lower))
            rng = np.random.default_rng(self.seed)
            shape = (self.num_features // 2, len(lower))
            # Uniform numbers without zero, where a quantile may be infinitely far.
            normals, uniforms = rng.standard_normal(shape), 1 - rng.random(shape)
            return cast(Self, RandomWaves(normals, uniforms, (lower + upper) / 2))
        if lattice is None:
            lattice = _fine_lattice(kernel, lower, upper)
        indices = lattice.half_indices()
        # One of each pair ±t stands for both.
        multiplicity = np.where(np.any(indices != 0, axis=1), 2.0, 1.0)
        shares = multiplicity * np.maximum(lattice_masses(kernel, lattice, indices), 0.0)
        num_draws = self.num_draws or self.num_features // 2
        counts = np.random.default_rng(self.seed).multinomial(num_draws, shares / shares.sum())
        kept = counts > 0
        kept[0] = True
        # Index zero comes first even if it was not drawn, and may then have no mass at all.
        probabilities = np.where(counts > 0, shares / shares.sum(), 1.0)
        weights = np.sqrt(counts * multiplicity / (num_draws * probabilities))[kept]
        num_features = 2 * (len(weights) - 1) + int(counts[0] > 0)
        return replace(
            self,
            num_features=num_features,
            lattice=lattice,
            num_draws=num_draws,
            indices=indices[kept],
            weights=weights,
        )

    def wanted_period(self, kernel: Kernel, width: Floats) -> Floats:
        """Return no limit, (d,): the longer, the closer are the frequencies to the continuum."""
        return np.full(len(width), np.inf)

    def on(self, lattice: FrequencyLattice) -> RandomSeries:
        """Return the features as series on the lattice where their frequencies were drawn."""
        if self.lattice != lattice:
            raise FeatureError(
                "The frequencies of random features belong to the lattice they were drawn on: call "
                "placed(kernel, lower, upper, lattice) first."
            )
        s = len(self.indices)
        cosines = np.diag(self.weights)[int(self.weights[0] == 0) :]
        sines = np.diag(self.weights)[1:]
        odd = np.repeat([False, True], [len(cosines), s - 1])
        return RandomSeries(lattice, self.indices, odd, np.concatenate([cosines, sines]))


def _terms(kernel: Kernel, num_dims: int) -> list[Kernel]:
    """Return the kernels that a kernel adds up, on all columns."""
    return [
        term.on(*dims)
        for dims, component in components(kernel, num_dims)
        for term in component.summands
    ]


def _fine_lattice(kernel: Kernel, lower: Floats, upper: Floats) -> FrequencyLattice:
    """Return a lattice around a box with a long period and nearly all of the kernel's variance."""
    width = np.where(upper > lower, upper - lower, 1.0)
    scale = width + correlation_lengths(kernel, width)
    variance = prior_variance(kernel)

    def lattice_of(factor: float) -> FrequencyLattice:
        extent = _EXTENTS[len(lower)]
        return FrequencyLattice.for_domain(lower, upper, period=factor * scale, extent=extent)

    def loses_variance(factor: float) -> bool:
        lattice = lattice_of(factor)
        masses = lattice_masses(kernel, lattice, lattice.half_indices())
        return bool(masses[0] + 2 * masses[1:].sum() < _SHARE * variance)

    first_bad = bisect_left(_PERIODS, True, key=loses_variance)
    return lattice_of(_PERIODS[max(first_bad - 1, 0)])
