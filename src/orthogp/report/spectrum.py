r"""The spectrum that a model has learned, and what the data say about it.

A periodogram of unevenly placed rows mixes frequencies, gaps and noise. The posterior of the
lattice's modes has them sorted out: with whitened modes u ~ N(0, I) of posterior N(m, B⁻¹), a model
that is right has E m mᵀ = I − B⁻¹, whatever the sampling. In a band of frequencies the ratio

    ρ = Σ m_t² / Σ (1 − (B⁻¹)_tt)

is therefore one on average, and larger where the data hold more power than the kernel's spectral
density S(ω): ρ S(ω) is shown as the data's. The denominator is what the data know about the band,
in degrees of freedom; ρ − 1 is the slope of the evidence along the band's power, relative to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv

from orthogp.features import Lattice
from orthogp.fields.posterior import IterativePosterior, draw_modes
from orthogp.inference.bounds import whiten
from orthogp.inference.moments import moments_from_statistics
from orthogp.inference.posterior import Posterior
from orthogp.learning.sketches import KeptRows, Sketch
from orthogp.rows import Domain
from orthogp.statistics import FourierStatistics
from orthogp.statistics.lattice import MAX_DIMS

# The fewest degrees of freedom of a band.
_LEAST = 5.0
# The fewest standard errors that a band's degrees of freedom amount to, where draws estimate them.
_CERTAIN = 5.0
# The most bands.
_FINEST = 60
# The probability on each side of an interval.
_TAIL = 0.025
# Lattice features that stand in for other features.
_STAND_IN = 801
# Their period, in widths of the data.
_STAND_IN_PERIOD = 2.0
# The most draws of the iterative solver.
_MOST_DRAWS = 16
# The most modes of all draws together.
_MOST_DRAWN = 2**23
# Points of the learned density, where it is averaged over directions.
_LINE_POINTS = 40


@dataclass(frozen=True)
class Spectrum:
    """The learned spectral density, and the data's in bands, in units of the model's targets.

    Attributes
    ----------
    columns : tuple of int
        The inputs that it belongs to, counted among those that the kernel acts on.
    frequency, learned : (n,), (p, n)
        With one input, cycles per unit of it, and the density per such cycle. With several, waves
        across the data's range, √Σ_d (ω_d range_d/2π)², and the density averaged over directions.
    bands, data, low, high : (b,), (p, b), (p, b), (p, b)
        Frequencies of bands that the data know of, their densities, and 95 % intervals.
    noise : (p,)
        The noise's density: σ² times the range, by the number of rows.
    """

    columns: tuple[int, ...]
    frequency: NDArray[np.float64]
    learned: NDArray[np.float64]
    bands: NDArray[np.float64]
    data: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    noise: NDArray[np.float64]


class _Modes(NamedTuple):
    """Pairs of modes ±ω_t: their frequencies (s, d) and densities (s,).

    `power` (p, s) and `known` (s,) are the sums over cosine and sine of m² and of 1 − B⁻¹; `excess`
    is I − B⁻¹ itself, (2, s, 2, s), if it is at hand; otherwise `draws` tell `known`.
    """

    omegas: NDArray[np.float64]
    densities: NDArray[np.float64]
    power: NDArray[np.float64]
    known: NDArray[np.float64]
    excess: NDArray[np.float64] | None
    draws: int = 0

    @property
    def uncertainty(self) -> float:
        """The variance of each entry of `known`, 2 |δ|² being an average of exponentials."""
        return 4 / self.draws if self.draws else 0.0


def learned_spectra(model: Any, box: Domain) -> list[Spectrum]:
    """Return the spectra of a regressor, one for each component if it is additive.

    There are none of kernels on the sphere, where waves along columns have no meaning, of products
    on shared columns, and of sums that were fitted exactly, which have no lattices. The box is the
    range of the inputs that the kernel acts on.
    """
    posterior, sketch = model.posterior_, model._sketch
    if not model.kernel_.has_lattice or (isinstance(sketch, KeptRows) and posterior.additive):
        return []
    if isinstance(sketch, KeptRows) and len(box.width) <= MAX_DIMS:
        sketch = sketch.sums()
    statistics = sketch.statistics
    noise, scale = posterior.noise_variance / statistics.count, np.square(model.target_scale_)
    if isinstance(posterior, Posterior):
        return _component_spectra(posterior, box, noise, scale)
    if isinstance(posterior, IterativePosterior):
        modes = _iterative_modes(posterior)
    elif isinstance(statistics, FourierStatistics):
        (modes,) = _lattice_modes(_stand_in(model, sketch, box.width))
    else:
        return []
    if not len(modes.omegas):
        return []
    return [_spectrum(modes, tuple(range(len(box.width))), box.width, noise, scale)]


def latent_spectra(posterior: Posterior, box: Domain) -> list[Spectrum]:
    """Return the spectra of a classifier's latent function, one for each component.

    Labels have no noise to show.
    """
    return _component_spectra(posterior, box, 0.0, np.ones(1))


def _component_spectra(
    posterior: Posterior, box: Domain, noise: float, scale: NDArray[np.float64]
) -> list[Spectrum]:
    every = zip(_lattice_modes(posterior), posterior.features.columns, strict=True)
    return [
        _spectrum(modes, columns, box.width[list(columns)], noise, scale)
        for modes, columns in every
        if len(modes.omegas)
    ]


def _lattice_modes(posterior: Posterior) -> list[_Modes]:
    """Return the modes of each component."""
    features = posterior.features
    factor = whiten(posterior.chol, np.eye(len(posterior.chol)))
    known = np.eye(len(factor)) - factor.T @ factor
    result = []
    for part, own, kernel in zip(
        features.parts, features.slices, features.kernels(posterior.kernel), strict=True
    ):
        # The first half of a component's features are cosines, the second half sines.
        omegas, shape = part.omegas[1:], (2, len(part.omegas) - 1)
        power = np.sum(posterior.mean[own].reshape(*shape, posterior.mean.shape[1]) ** 2, axis=0).T
        result.append(
            _Modes(
                omegas,
                part.masses(kernel)[1:] / np.prod(part.lattice.spacing),
                power,
                np.diag(known)[own].reshape(shape).sum(axis=0),
                known[own, own].reshape(*shape, *shape),
            )
        )
    return result


def _iterative_modes(posterior: IterativePosterior) -> _Modes:
    """Return the modes of very many features, B⁻¹ being known by draws."""
    model, grid = posterior.model, posterior.model.system.grid
    lattice = model.system.density.lattice
    number = int(np.clip(_MOST_DRAWN // grid.size, 2, _MOST_DRAWS))
    draws = draw_modes(model, number, np.random.default_rng(0)).modes
    indices = grid.indices.reshape(-1, grid.num_dims)
    # Along the last axis zero both of a pair are stored.
    kept = np.flatnonzero(indices.any(axis=1))
    variance = np.mean(np.abs(draws) ** 2, axis=0).ravel()[kept]
    power = np.abs(posterior.modes.modes.reshape(-1, len(indices))[:, kept]) ** 2
    densities = model.masses.ravel()[kept] / np.prod(lattice.spacing)
    omegas = indices[kept] * lattice.spacing
    return _Modes(omegas, densities, 2 * power, 2 * (1 - variance), None, number)


def _stand_in(model: Any, sketch: Sketch, width: NDArray[np.float64]) -> Posterior:
    """Return a posterior of lattice features with the hyperparameters that others have learned."""
    statistics = sketch.statistics.parts[0]
    factor = np.maximum(statistics.lattice.period / (_STAND_IN_PERIOD * width), 1).astype(int)
    offset, posterior = model.target_offset_ - sketch.shift, model.posterior_
    statistics = statistics.standardised(offset, model.target_scale_).decimate(factor)
    kernel = posterior.kernel
    features = Lattice.select(kernel, statistics.lattice, _STAND_IN, sketch.mean)
    moments = moments_from_statistics(features, kernel, statistics)
    return Posterior(features, kernel, posterior.noise_variance, moments, model.domain_)


def _spectrum(
    modes: _Modes,
    columns: tuple[int, ...],
    width: NDArray[np.float64],
    noise: float,
    scale: NDArray[np.float64],
) -> Spectrum:
    """Return the spectrum in the units that are shown, the data's in bands."""
    radius = np.sqrt(np.sum((modes.omegas * width / (2 * np.pi)) ** 2, axis=1))
    one = len(width) == 1
    unit = 2 * np.pi if one else float(np.prod(2 * np.pi / width))
    cycles = 1 / width[0] if one else 1.0
    densities = modes.densities * unit
    middles, rows = [], []
    for band in _bands(radius, modes):
        known = modes.known[band]
        total = float(known.sum())
        # Entries known by draws scatter: there the modes of a band count alike.
        known = np.maximum(known, 0.0) if not modes.draws else np.full(len(band), total / len(band))
        ratio = modes.power[:, band].sum(axis=1) / total
        density = np.exp(known @ np.log(np.maximum(densities[band], 1e-300)) / total)
        freedom = total
        if modes.excess is not None:
            freedom = total**2 / np.sum(modes.excess[:, band][:, :, :, band] ** 2)
        limits = freedom / 2 / gammaincinv(freedom / 2, [[1 - _TAIL], [_TAIL]])
        middles.append(np.exp(known @ np.log(radius[band]) / total))
        rows.append(density * ratio * np.vstack([[[1.0]], limits]))
    frequency, learned = _line(radius, densities, one=one)
    # (3, p, b): the data's density and the ends of its interval.
    data, low, high = np.reshape(rows, (-1, 3, len(scale))).transpose(1, 2, 0) * scale[:, None]
    return Spectrum(
        columns=columns,
        frequency=frequency * cycles,
        learned=learned * scale[:, None],
        bands=np.array(middles) * cycles,
        data=data,
        low=low,
        high=high,
        noise=noise * scale * float(width[0] if one else 1.0),
    )


def _bands(radius: NDArray[np.float64], modes: _Modes) -> list[NDArray[np.int64]]:
    """Return the modes of each band: as narrow as they can be with enough degrees of freedom."""
    edges = np.geomspace(radius.min() * 0.999, radius.max() * 1.001, _FINEST + 1)
    fine = np.digitize(radius, edges) - 1
    order = np.argsort(fine, kind="stable")
    stops = np.searchsorted(fine[order], np.arange(_FINEST), side="right")
    total = np.concatenate([[0.0], np.cumsum(modes.known[order])])
    result, first = [], 0
    for stop in map(int, stops):
        scatter = np.sqrt(modes.uncertainty * (stop - first))
        if total[stop] - total[first] >= max(_LEAST, _CERTAIN * scatter):
            result.append(order[first:stop])
            first = stop
    return result


def _line(
    radius: NDArray[np.float64], densities: NDArray[np.float64], *, one: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return frequencies and densities to draw: of each mode, or averaged over directions."""
    if one:
        order = np.argsort(radius)
        return radius[order], densities[order]
    edges = np.geomspace(radius.min() * 0.999, radius.max() * 1.001, _LINE_POINTS + 1)
    which = np.digitize(radius, edges) - 1
    number = np.bincount(which, minlength=_LINE_POINTS)
    seen = number > 0
    sums = [np.bincount(which, weights=w, minlength=_LINE_POINTS) for w in (radius, densities)]
    return sums[0][seen] / number[seen], sums[1][seen] / number[seen]
