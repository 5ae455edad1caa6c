r"""The bound of a factorised q(u) from some rows and some features (Evans & Nair 2020).

For q(u) = ∏_j N(m_j, s_j) over M features and N rows,

    ELBO = Σ_n [−½ log 2πσ² − ((y_n − μ_n)² + v_n)/(2σ²)] − Σ_j KL_j
    μ_n = Σ_j φ_j(x_n) m_j,      v_n = κ(x_n) + Σ_j φ_j(x_n)² (s_j − 1),      κ the prior variance
    KL_j = ½ (m_j² + s_j − 1 − log s_j)

Rows drawn at random estimate the sum over n, and a set J of features estimates sums over j, each
times M/|J|. The square takes two independent sets, for the product of independent estimates is
unbiased where the square of one is not:

    (y_n − μ_n)² ≈ (y_n − μ̂_n)(y_n − μ̂'_n),      μ̂ from J,  μ̂' from J'

All other sums over j are the mean of the estimates from J and J'. The cost is rows × features of
the draw, whatever N and M are. `SubsampledBound.maximise` climbs by these estimates.
"""

from __future__ import annotations

from functools import singledispatch
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import FeatureError, InputError
from orthogp.features.additive import AdditiveSeries
from orthogp.features.base import Features, as_rows, prior_variance
from orthogp.features.lattice import Lattice
from orthogp.features.series import MassSeries, lattice_masses
from orthogp.kernels import Kernel, components
from orthogp.statistics.nufft import chunks

# The number of rows evaluated at once for the bound itself.
_ROWS_PER_BLOCK = 2**12


class MeanField(NamedTuple):
    """A factorised q(u) and a noise variance: m (M,), log s (M,), log σ²."""

    mean: NDArray[np.float64]
    log_variance: NDArray[np.float64]
    log_noise: float

    @classmethod
    def prior(cls, num_features: int, noise_variance: float) -> Self:
        """Return q(u) = p(u)."""
        zeros = np.zeros(num_features)
        return cls(zeros, zeros, float(np.log(noise_variance)))


class Draw(NamedTuple):
    """What one estimate looks at: rows, and two independent sets of features."""

    rows: NDArray[np.int64]
    first: NDArray[np.int64]
    second: NDArray[np.int64]


class Estimate(NamedTuple):
    """An unbiased estimate of the bound, and its gradient in m, log s and log σ².

    The gradient is zero for all features but those drawn, `features` (q,).
    """

    value: float
    features: NDArray[np.int64]
    mean: NDArray[np.float64]
    log_variance: NDArray[np.float64]
    log_noise: float


class SubsampledBound:
    """Unbiased estimates of the bound of a factorised q(u); see the module's docstring.

    Parameters
    ----------
    features : Lattice, MassSeries or AdditiveSeries
        Families that can evaluate a few of their features; see `evaluate_some`. Spectral families
        can once they are on a lattice: `features.on(lattice)`.
    kernel : Kernel
    X : (n, d)
    y : (n,)
    """

    def __init__(self, features: Features, kernel: Kernel, X: NDArray, y: NDArray) -> None:
        if not features.projects:
            raise FeatureError(
                f"{type(features).__name__} replace the prior by their own: subsampling needs "
                "features of the process itself."
            )
        self.features = features
        self.kernel = kernel
        self.X = as_rows(X)
        self.y = np.asarray(y, dtype=np.float64)
        if self.y.shape != (len(self.X),):
            raise InputError(
                f"y must be one target for each of the {len(self.X)} rows, got shape "
                f"{self.y.shape}."
            )
        self._prior = np.full(len(self.X), prior_variance(kernel))
        if isinstance(features, Lattice):
            self._prior += features.mean.prior_variance(self.X)

    def draw(self, rng: np.random.Generator, num_rows: int, num_features: int) -> Draw:
        """Return rows and two sets of features at random, each without replacement."""
        N, M = len(self.X), self.features.num_features
        if not 1 <= num_rows <= N or not 1 <= num_features <= M:
            raise InputError(
                f"A draw takes 1 to {N} rows and 1 to {M} features, got {num_rows} and "
                f"{num_features}."
            )
        return Draw(
            rng.choice(N, num_rows, replace=False),
            rng.choice(M, num_features, replace=False),
            rng.choice(M, num_features, replace=False),
        )

    def estimate(self, q: MeanField, draw: Draw) -> Estimate:
        """Return the estimate of the bound and its gradient from one draw."""
        sets = (draw.first, draw.second)
        X, y = self.X[draw.rows], self.y[draw.rows]
        noise = np.exp(q.log_noise)
        per_row = len(self.X) / len(draw.rows)
        scales = [self.features.num_features / len(columns) for columns in sets]
        # Each set estimates sums over all features by itself, and enters their mean by half.
        Phis = [evaluate_some(self.features, self.kernel, X, columns) for columns in sets]
        residuals = [
            y - scale * Phi @ q.mean[columns] for scale, Phi, columns in zip(scales, Phis, sets)
        ]
        spread = self._prior[draw.rows].copy()
        divergence = 0.0
        mean_parts, variance_parts = [], []
        for scale, Phi, columns, other in zip(scales, Phis, sets, residuals[::-1]):
            mean, variance = q.mean[columns], np.exp(q.log_variance[columns])
            spread += scale / 2 * Phi**2 @ (variance - 1)
            kl = 0.5 * (mean**2 + variance - 1 - q.log_variance[columns])
            divergence += scale / 2 * np.sum(kl)
            mean_parts.append(scale / 2 * (per_row / noise * (other @ Phi) - mean))
            squares = per_row / noise * np.sum(Phi**2, axis=0)
            variance_parts.append(scale / 4 * (1 - variance * (1 + squares)))
        misfit = per_row * float(np.sum(residuals[0] * residuals[1] + spread)) / noise
        touched, at = np.unique(np.concatenate(sets), return_inverse=True)
        gradient = np.zeros((len(touched), 2))
        np.add.at(gradient, at, np.stack([np.hstack(mean_parts), np.hstack(variance_parts)], 1))
        return Estimate(
            value=-0.5 * (len(self.X) * np.log(2 * np.pi * noise) + misfit) - divergence,
            features=touched,
            mean=gradient[:, 0],
            log_variance=gradient[:, 1],
            log_noise=0.5 * (misfit - len(self.X)),
        )

    def maximise(
        self,
        q: MeanField,
        rng: np.random.Generator,
        *,
        num_rows: int,
        num_features: int,
        num_steps: int = 2000,
        learning_rate: float = 0.3,
    ) -> MeanField:
        """Return q(u) after steps along estimated gradients, with the noise variance held.

        Each step moves the drawn features alone, by AdaGrad: every parameter moves by the learning
        rate times its gradient over the root of the sum of its squared gradients.

        Parameters
        ----------
        num_rows, num_features : int
            Of each draw; two sets of features are drawn.
        """
        values = np.stack([q.mean, q.log_variance])
        squares = np.zeros_like(values)
        for _ in range(num_steps):
            draw = self.draw(rng, num_rows, num_features)
            found = self.estimate(q._replace(mean=values[0], log_variance=values[1]), draw)
            gradients = np.stack([found.mean, found.log_variance])
            squares[:, found.features] += gradients**2
            roots = np.sqrt(np.maximum(squares[:, found.features], np.finfo(np.float64).tiny))
            values[:, found.features] += learning_rate * gradients / roots
        return q._replace(mean=values[0], log_variance=values[1])

    def exact(self, q: MeanField) -> float:
        """Return the bound itself, from all rows and all features."""
        noise, variance = np.exp(q.log_noise), np.exp(q.log_variance)
        misfit = float(np.sum(self._prior))
        for part in chunks(len(self.X), _ROWS_PER_BLOCK):
            Phi = self.features.evaluate(self.kernel, self.X[part])
            misfit += np.sum((self.y[part] - Phi @ q.mean) ** 2) + np.sum(Phi**2 @ (variance - 1))
        divergence = 0.5 * np.sum(q.mean**2 + variance - 1 - q.log_variance)
        normaliser = len(self.X) * np.log(2 * np.pi * noise)
        return float(-0.5 * (normaliser + misfit / noise) - divergence)


# ---------------------------------------------------------------------- some features only


@singledispatch
def evaluate_some(
    features: Features, kernel: Kernel, X: NDArray, columns: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return φ_m(x_n) for the features m in `columns` alone, (n, q).

    Families that can do so are registered here, as others may be.
    """
    raise FeatureError(
        f"{type(features).__name__} cannot evaluate some of its features alone: use Lattice, or a "
        "spectral family on a lattice."
    )


@evaluate_some.register
def _(
    features: Lattice, kernel: Kernel, X: NDArray, columns: NDArray[np.int64]
) -> NDArray[np.float64]:
    # Columns are the cosines, the sines without index zero, the slopes.
    size, mean = len(features.indices), features.mean
    modes = np.flatnonzero(columns < 2 * size - 1)
    sine = columns[modes] >= size
    t = np.where(sine, columns[modes] - size + 1, columns[modes])
    indices = features.indices[t]
    variances = lattice_masses(kernel, features.lattice, indices)
    variances = np.where(t == 0, variances + mean.offset_variance, 2 * variances)
    # A sine is a cosine a quarter of a turn late.
    phases = (X - features.lattice.centre) @ (indices * features.lattice.spacing).T
    Phi = np.empty((len(X), len(columns)))
    Phi[:, modes] = np.cos(phases - np.where(sine, np.pi / 2, 0.0)) * np.sqrt(variances)
    slopes = np.flatnonzero(columns >= 2 * size - 1)
    if len(slopes):
        covariates = mean.covariates(X)[:, columns[slopes] - (2 * size - 1)]
        Phi[:, slopes] = np.sqrt(mean.slope_variance) * covariates
    return Phi


@evaluate_some.register
def _(
    features: MassSeries, kernel: Kernel, X: NDArray, columns: NDArray[np.int64]
) -> NDArray[np.float64]:
    # Only the modes that the chosen features have a part in.
    weights = features.weights[columns]
    used = np.flatnonzero(np.any(weights != 0, axis=0))
    masses = lattice_masses(kernel, features.lattice, features.indices[used])
    C = weights[:, used] * np.sqrt(np.maximum(masses, 0.0))
    odd = features.odd[columns]
    phases = (X - features.lattice.centre) @ features.omegas[used].T
    Phi = np.empty((len(X), len(columns)))
    Phi[:, ~odd] = np.cos(phases) @ C[~odd].T
    Phi[:, odd] = np.sin(phases) @ C[odd].T
    return Phi


@evaluate_some.register
def _(
    features: AdditiveSeries, kernel: Kernel, X: NDArray, columns: NDArray[np.int64]
) -> NDArray[np.float64]:
    Phi = np.empty((len(X), len(columns)))
    start = 0
    for part, (dims, component) in zip(features.parts, components(kernel, X.shape[1])):
        inside = (columns >= start) & (columns < start + part.num_features)
        if np.any(inside):
            Phi[:, inside] = evaluate_some(
                part, component, X[:, list(dims)], columns[inside] - start
            )
        start += part.num_features
    return Phi
