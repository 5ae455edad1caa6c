r"""Two blocks of features, the second on what the first leaves out (Shi, Titsias & Mnih 2019).

With φ₁ the features of the first block and Z points,

    φ₂(x) = L⁻¹ r(Z, x),      LLᵀ = r(Z, Z) + ε k(0) I,      r(x, x') = k(x − x') − φ₁(x)·φ₁(x')

r being the covariance of f minus its projection on the first block. So (φ₁, φ₂) are orthonormal:
the span of both blocks at the price of two small factorisations instead of one large. The name in
the literature is SOLVE-GP; its q(u)q(v) is `paper/closed_form.py` with two blocks.
"""

from __future__ import annotations

from typing import Self, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.errors import FeatureError
from orthogp.features.base import Features, PointFeatures, as_rows
from orthogp.features.inducing import JITTER, InducingPoints, covariances, spread_points, whitened
from orthogp.features.lattice import Lattice
from orthogp.features.series import SeriesFeatures
from orthogp.kernels import Kernel
from orthogp.precision import AnyArray, in_double
from orthogp.statistics import FrequencyLattice

# Candidates per point where points are chosen from a box.
_CANDIDATES = 16


class TwoBlock(Features):
    """Any features, and inducing points on what they leave out; see the module's docstring.

    `placed` and `from_rows` return a `PointTwoBlock` if the first block is differentiable: point
    features, or series, which features with nodes on a lattice become where one is given.

    Parameters
    ----------
    first : Features
        Series stand for the wrapped prior, and so do then both blocks.
    second : InducingPoints
        Open ones are placed given the first block.
    """

    first: Features
    second: InducingPoints

    def __check_init__(self) -> None:
        name = type(self.first).__name__
        if not self.first.projects:
            raise FeatureError(
                f"TwoBlock needs features of the process itself first, but {name} replace the "
                "prior by their own and leave nothing out."
            )
        mean = self.first.mean if isinstance(self.first, Lattice) else None
        if mean is not None and (mean.offset_variance or mean.slope_variance):
            raise FeatureError(
                "TwoBlock needs features of the process alone first: give a Lattice without a "
                "mean function."
            )

    @property
    def num_features(self) -> int:
        """The number of features of both blocks together."""
        return self.first.num_features + self.second.num_features

    @property
    def any_columns(self) -> bool:  # type: ignore[override]
        """Whether the first block acts on any number of columns, as the second does."""
        return self.first.any_columns

    @property
    def learn(self) -> bool:
        """Whether a block's own parameters follow the bound."""
        return self.second.learn or bool(getattr(self.first, "learn", False))

    def evaluate(self, kernel: Kernel, X: NDArray) -> NDArray[np.float64]:
        """Return φ₁ and φ₂ side by side, (n, m)."""
        X = as_rows(X)
        features = self.placed(kernel, X.min(axis=0), X.max(axis=0))
        Phi = features.first.evaluate(kernel, X)
        at_points = features.first.evaluate(kernel, features.second.Z)
        rest = _rest(kernel, features.second.Z, X, at_points, Phi, _period(features.first))
        return np.concatenate([Phi, np.asarray(rest)], axis=1)

    def placed(
        self,
        kernel: Kernel,
        lower: NDArray[np.float64],
        upper: NDArray[np.float64],
        lattice: FrequencyLattice | None = None,
    ) -> Self:
        """Return a copy with both blocks placed for inputs within a box.

        With a lattice, a first block that has nodes on it becomes a series.
        """
        first = self.first.placed(kernel, lower, upper, lattice)
        if lattice is not None and (series := first.on(lattice)) is not None:
            first = series
        second = self.second
        if second.Z is None:
            # An even grid could meet that of the first block, where nothing is left to explain.
            candidates = spread_points(lower, upper, _CANDIDATES * second.num_features)
            second = second.from_rows(kernel, candidates, given=first)
        return cast(Self, _joined(first, second.placed(kernel, lower, upper)))

    def from_rows(self, kernel: Kernel, X: NDArray) -> Self:
        """Return a copy with both blocks placed by the data."""
        first = self.first.from_rows(kernel, X)
        return cast(Self, _joined(first, self.second.from_rows(kernel, X, given=first)))


class PointTwoBlock(TwoBlock, PointFeatures):  # pyright: ignore[reportIncompatibleVariableOverride]
    """Two blocks as a differentiable function, the first being point features or series."""

    def __check_init__(self) -> None:
        if not isinstance(self.first, PointFeatures | SeriesFeatures):
            raise FeatureError(
                "PointTwoBlock needs point features or series first, got "
                f"{type(self.first).__name__}: use TwoBlock."
            )

    def phi(self, kernel: Kernel, X: Float[AnyArray, "n d"]) -> Float[AnyArray, "n m"]:
        """Return φ₁ and φ₂ side by side."""
        Z = jnp.asarray(self.second.Z)
        Phi, at_points = self._first(kernel, X), self._first(kernel, Z)
        rest = residual_features(kernel, Z, X, at_points, Phi, _period(self.first))
        return jnp.concatenate([Phi, rest], axis=1)

    def free_parameters(self) -> NDArray[np.float64]:
        """Return the learned parameters of both blocks."""
        return np.concatenate([self._first_parameters(), self.second.free_parameters()])

    def with_free_parameters(self, vector: Float[AnyArray, " q"]) -> Self:
        """Return a copy with other learned parameters; the inverse of `free_parameters`."""
        first, size = self.first, len(self._first_parameters())
        if isinstance(first, PointFeatures):
            first = first.with_free_parameters(vector[:size])
        return type(self)(first, self.second.with_free_parameters(vector[size:]))

    def _first_parameters(self) -> NDArray[np.float64]:
        return (
            self.first.free_parameters() if isinstance(self.first, PointFeatures) else np.empty(0)
        )

    def _first(self, kernel: Kernel, X: Float[AnyArray, "n d"]) -> Float[AnyArray, "n m"]:
        if isinstance(self.first, PointFeatures):
            return self.first.phi(kernel, X)
        assert isinstance(self.first, SeriesFeatures)
        C = self.first.coefficients(kernel)
        phases = (X - self.first.lattice.centre) @ self.first.omegas.T
        return jnp.where(self.first.odd, jnp.sin(phases) @ C.T, jnp.cos(phases) @ C.T)


def residual_features(
    kernel: Kernel,
    Z: Float[AnyArray, "m d"],
    X: Float[AnyArray, "n d"],
    first_at_Z: Float[AnyArray, "m q"],
    first_at_X: Float[AnyArray, "n q"],
    period: NDArray[np.float64] | None = None,
) -> Float[AnyArray, "n m"]:
    """Return φ₂ at X from φ₁ at Z and at X; with a period, for the wrapped prior."""
    if period is None:
        K_uu, K_uf = covariances(kernel, Z, Z), covariances(kernel, Z, X)
    else:
        K_uu, K_uf = _wrapped(kernel, Z, Z, period), _wrapped(kernel, Z, X, period)
    return whitened(
        K_uu - first_at_Z @ first_at_Z.T,
        K_uf - first_at_Z @ first_at_X.T,
        JITTER * kernel.prior_variance(),
    )


@in_double
@eqx.filter_jit
def _rest(
    kernel: Kernel,
    Z: NDArray,
    X: NDArray,
    first_at_Z: NDArray,
    first_at_X: NDArray,
    period: NDArray | None,
) -> Float[AnyArray, "n m"]:
    at_Z, at_X = jnp.asarray(first_at_Z), jnp.asarray(first_at_X)
    return residual_features(kernel, jnp.asarray(Z), jnp.asarray(X), at_Z, at_X, period)


def _wrapped(
    kernel: Kernel,
    A: Float[AnyArray, "a d"],
    B: Float[AnyArray, "b d"],
    period: Float[AnyArray, " d"],
) -> Float[AnyArray, "a b"]:
    def covariance(row: Float[AnyArray, " d"], other: Float[AnyArray, " d"]):
        return kernel.wrapped(row - other, jnp.asarray(period))

    return jax.vmap(lambda row: jax.vmap(lambda other: covariance(row, other))(B))(A)


def _period(first: Features) -> NDArray[np.float64] | None:
    """Return the period of the prior whose features these are, `None` for the kernel's own."""
    if isinstance(first, TwoBlock):
        return _period(first.first)
    return first.lattice.period if isinstance(first, SeriesFeatures | Lattice) else None


def _joined(first: Features, second: InducingPoints) -> TwoBlock:
    differentiable = isinstance(first, PointFeatures | SeriesFeatures)
    return (PointTwoBlock if differentiable else TwoBlock)(first, second)
