r"""Inducing points (Titsias 2009): values of the process itself, whitened.

With K_uu = k(Z, Z) and ε a tiny share of the prior variance,

    φ(x) = L⁻¹ k(Z, x),      LLᵀ = K_uu + ε k(0) I

Orthogonal families need no ε. K_uu of points closer than the kernel's scale is singular in double
precision, so inducing points do. It costs no validity: these are the exact features of
u = f(Z) + noise of variance ε k(0), hence Q ≤ K and all bounds hold as they are.

`TwoBlock` puts points on what other features leave out (Shi, Titsias & Mnih 2019). With φ₁ those,

    φ₂(x) = L⁻¹ r(Z, x),      LLᵀ = r(Z, Z) + ε k(0) I,      r(x, x') = k(x − x') − φ₁(x)·φ₁(x')

r being the covariance of f minus its projection on the first block. So (φ₁, φ₂) are orthonormal:
the span of both blocks at the price of two small factorisations instead of one large. The name in
the literature is SOLVE-GP; its q(u)q(v) is `paper/closed_form.py` with two blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import KDTree

from orthogp.errors import FeatureError
from orthogp.features.base import (
    Features,
    Floats,
    PointFeatures,
    as_rows,
    check_count,
    check_scale,
    correlation_lengths,
    prior_variance,
)
from orthogp.features.series import Lattice, SeriesFeatures
from orthogp.kernels import Kernel
from orthogp.kernels.base import Scalar, Vector, Vectors
from orthogp.kernels.transformed import categorical_columns
from orthogp.precision import AnyArray, in_double
from orthogp.statistics import FrequencyLattice

#: ε. Rounding moves the eigenvalues of K_uu by 1e-12 k(0) with thousands of points.
JITTER = 1e-10
PLACEMENTS = ("kmeans++", "greedy-variance")

# The most rows that a placement looks at, drawn without replacement from larger data.
_MOST_ROWS = 10_000
# The steps of Lloyd's after the seeding, which alone leaves gaps and clusters behind.
_LLOYD_STEPS = 10
# The candidates for each point where points are chosen from a box.
_CANDIDATES = 16


class InducingPoints(PointFeatures):
    """The process at points Z, whitened; see the module's docstring.

    Parameters
    ----------
    num_features : int, optional
        The number of points; needed unless Z is given.
    Z : (m, d), optional
        The points, chosen from the data by `from_rows` unless given.
    placement : {"kmeans++", "greedy-variance"}
        How they are chosen: by clustering (k-means++ seeding, then a few of Lloyd's steps), in
        units of the kernel's correlation lengths; or one after the other, where the conditional
        variance given those before is largest (Burt et al. 2019), which is a pivoted Cholesky
        factorisation of the kernel matrix.
    learn : bool
        Whether Z is learned with the kernel.
    seed : int
        Of the random choices in a placement.
    spacing : float or (d,), optional
        The unit in which learning measures Z; the mean distance of neighbours unless given.
    """

    known_as = ("inducing-points",)
    any_columns = True

    num_features: int = eqx.field(static=True)
    Z: Any
    placement: str = eqx.field(static=True)
    learn: bool = eqx.field(static=True)
    seed: int = eqx.field(static=True)
    spacing: Any

    def __init__(
        self,
        num_features: int | None = None,
        Z: ArrayLike | None = None,
        placement: str = "kmeans++",
        learn: bool = False,
        seed: int = 0,
        spacing: ArrayLike | None = None,
    ) -> None:
        if placement not in PLACEMENTS:
            raise FeatureError(
                f"placement must be one of {', '.join(map(repr, PLACEMENTS))}, got {placement!r}."
            )
        self.Z = None if Z is None else _check_points(Z)
        count = num_features if self.Z is None else len(self.Z)
        if count is None or num_features not in (None, count):
            raise FeatureError(
                "InducingPoints needs the number of points or the points themselves, got "
                f"num_features={num_features} and {count or 'no'} points: give one of num_features "
                "and Z."
            )
        self.num_features = check_count(count)  # pyright: ignore[reportIncompatibleMethodOverride]
        self.placement = placement
        self.learn = learn
        self.seed = check_count(seed, "seed", least=0)
        self.spacing = check_scale(spacing, "spacing")
        if self.spacing is None and self.Z is not None:
            width = np.ptp(self.Z, axis=0)
            self.spacing = np.where(width > 0, width, 1.0) / count ** (1 / self.Z.shape[1])

    def phi(self, kernel: Kernel, X: Float[AnyArray, "n d"]) -> Float[AnyArray, "n m"]:
        """Return (L⁻¹ k(Z, X))ᵀ."""
        if self.Z is None:
            raise FeatureError("InducingPoints has no points yet: call from_rows or placed first.")
        self._check_width(X.shape[1])
        Z = jnp.asarray(self.Z)
        K_uu, K_uf = covariances(kernel.k, Z, Z), covariances(kernel.k, Z, X)
        return whitened(K_uu, K_uf, JITTER * kernel.prior_variance())

    def free_parameters(self) -> Floats:
        """Return Z in units of its mean spacing if it is learned, (m·d,)."""
        if not self.learn or self.Z is None:
            return np.empty(0)
        # No function of NumPy: Z may be traced.
        return (self.Z / self.spacing).reshape(-1)

    def with_free_parameters(self, vector: Float[AnyArray, " q"]) -> Self:
        """Return a copy with other points; the inverse of `free_parameters`."""
        if not self.learn or self.Z is None:
            return self
        # Through the leaves rather than the constructor: Z may be traced.
        Z = vector.reshape(self.Z.shape) * self.spacing
        return eqx.tree_at(lambda features: features.Z, self, Z)

    # ------------------------------------------------------------------ placement

    def placed(
        self, kernel: Kernel, lower: Floats, upper: Floats, lattice: FrequencyLattice | None = None
    ) -> Self:
        """Return a copy with points all over a box, unless they are given.

        In one column an even grid, in several a sequence of low discrepancy; see `spread_points`.
        """
        if self.Z is not None:
            self._check_width(len(lower))
            return self
        return self._with_points(spread_points(lower, upper, self.num_features))

    def from_rows(self, kernel: Kernel, X: NDArray, given: Features | None = None) -> Self:
        """Return a copy with points placed by the data, unless they are given.

        Parameters
        ----------
        kernel : Kernel
            The one to place for; the result serves any other.
        X : (n, d)
            At most 10 000 of its rows, drawn at random, are looked at.
        given : Features, optional
            Features that will stand beside these: conditional variances are given them, too.
        """
        X = as_rows(X)
        if self.Z is not None:
            self._check_width(X.shape[1])
            return self
        # Two blocks with the same seed must not choose the same points.
        rng = np.random.default_rng([self.seed, int(given is not None)])
        rows, distinct = _some_rows(X, self.num_features, rng)
        if len(distinct) < self.num_features:
            raise FeatureError(
                f"{self.num_features} inducing points need as many distinct rows, but X has "
                f"{len(distinct)}: use a smaller num_features."
            )
        if self.placement == "kmeans++":
            return self._with_points(_cluster(kernel, rows, self.num_features, rng))
        explained = None if given is None else given.evaluate(kernel, distinct)
        chosen = greedy_variance(kernel, distinct, self.num_features, explained)
        return self._with_points(distinct[chosen])

    def _with_points(self, Z: Floats) -> Self:
        return type(self)(None, Z, self.placement, self.learn, self.seed, self.spacing)

    def _check_width(self, num_dims: int) -> None:
        if self.Z.shape[1] != num_dims:
            raise FeatureError(
                f"Z has {self.Z.shape[1]} columns, but the inputs have {num_dims}: give one row "
                "of Z per point, with a value for every input column."
            )


# ---------------------------------------------------------------------- covariances


def covariances(k: Callable[[Vector], Scalar], A: Vectors, B: Vectors) -> Float[AnyArray, "a b"]:
    """Return k(a − b) for all pairs of rows, as a JAX array."""
    # XLA fuses the lags into the covariance: no array of shape (a, b, d) is made.
    return jax.vmap(lambda row: jax.vmap(lambda other: k(row - other))(B))(A)


@in_double
@eqx.filter_jit
def covariance_matrix(kernel: Kernel, A: NDArray, B: NDArray) -> Float[AnyArray, "a b"]:
    """Return k(a − b) for all pairs of rows, in double precision."""
    return covariances(kernel.k, jnp.asarray(A), jnp.asarray(B))


def whitened(
    K_uu: Float[AnyArray, "m m"], K_uf: Float[AnyArray, "m n"], jitter: Scalar
) -> Float[AnyArray, "n m"]:
    """Return (L⁻¹ K_uf)ᵀ, LLᵀ = K_uu + jitter·I."""
    chol = jnp.linalg.cholesky(K_uu + jitter * jnp.eye(K_uu.shape[0]))
    return jax.scipy.linalg.solve_triangular(chol, K_uf, lower=True).T


# ---------------------------------------------------------------------- where points go


def greedy_variance(
    kernel: Kernel, rows: Floats, count: int, explained: Floats | None = None
) -> NDArray[np.int64]:
    """Return which rows to take, each where the variance given those before is largest.

    The pivots of a Cholesky factorisation of k(rows, rows) − `explained` `explained`ᵀ, in
    O(n·count²) and without the whole matrix.
    """
    variance = prior_variance(kernel)
    before = np.zeros((len(rows), 0)) if explained is None else explained
    left = variance - np.sum(before**2, axis=1)
    factor = np.empty((count, len(rows)))
    chosen = np.empty(count, dtype=np.int64)
    for i in range(count):
        pivot = int(np.argmax(left))
        chosen[i] = pivot
        if left[pivot] > JITTER * variance:
            column = np.asarray(covariance_matrix(kernel, rows[pivot : pivot + 1], rows))[0]
            column = column - before @ before[pivot] - factor[:i, pivot] @ factor[:i]
            factor[i] = column / np.sqrt(left[pivot])
            left = left - factor[i] ** 2
        else:
            # Nothing is left to explain: any other row will do.
            factor[i] = 0.0
        left[pivot] = -np.inf
    return chosen


def spread_points(lower: Floats, upper: Floats, count: int) -> Floats:
    """Return points all over a box: an even grid, or in several columns frac(½ + i α), (count, d).

    α_d = g^{−d} with g^{D+1} = g + 1, the generalised golden ratio, keeps the points apart.
    """
    num_dims = len(lower)
    if num_dims == 1:
        return np.linspace(lower, upper, count) if count > 1 else (lower + upper)[None] / 2
    golden = np.max(np.real(np.roots([1.0, *np.zeros(num_dims - 1), -1.0, -1.0])))
    steps = golden ** -np.arange(1.0, num_dims + 1)
    return lower + (upper - lower) * np.mod(0.5 + np.arange(count)[:, None] * steps, 1.0)


def _cluster(kernel: Kernel, rows: Floats, count: int, rng: np.random.Generator) -> Floats:
    """Return centres of clusters, found in units of the kernel's correlation lengths."""
    # Imported where it is used: it takes a fifth of a second.
    from sklearn.cluster import KMeans

    width = np.ptp(rows, axis=0)
    width = np.where(width > 0, width, 1.0)
    scale = np.minimum(correlation_lengths(kernel, width), width)
    means = KMeans(count, max_iter=_LLOYD_STEPS, random_state=int(rng.integers(2**31)))
    centres = means.fit(rows / scale).cluster_centers_
    if any(categorical_columns(kernel, rows.shape[1])):
        # Between the codes of categories there is no process: take the nearest rows.
        return rows[KDTree(rows / scale).query(centres)[1]]
    return centres * scale


def _some_rows(X: Floats, count: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return a sample of the rows, and its distinct rows."""
    size = max(_MOST_ROWS, 2 * count)
    if len(X) > size:
        sample = X[rng.choice(len(X), size, replace=False)]
        distinct = np.unique(sample, axis=0)
        if len(distinct) >= count:
            return sample, distinct
    return X, np.unique(X, axis=0)


def _check_points(Z: ArrayLike) -> Floats:
    try:
        points = as_rows(Z)
    except (TypeError, ValueError) as error:
        raise FeatureError(f"Z must hold numbers, one row per point, got {Z!r}.") from error
    if points.ndim != 2 or points.size == 0 or not np.all(np.isfinite(points)):
        raise FeatureError(
            "Z must have one row per point and one column per input, all finite, got shape "
            f"{points.shape}."
        )
    return points


# ---------------------------------------------------------------------- two blocks


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
        """Whether parameters of a block follow the bound."""
        return self.second.learn or bool(getattr(self.first, "learn", False))

    def evaluate(self, kernel: Kernel, X: NDArray) -> Floats:
        """Return φ₁ and φ₂ side by side, (n, m)."""
        X = as_rows(X)
        features = self.placed(kernel, X.min(axis=0), X.max(axis=0))
        at_Z, at_X = (At(x, features.first.evaluate(kernel, x)) for x in (features.second.Z, X))
        rest = _rest(kernel, at_Z, at_X, _period(features.first))
        return np.concatenate([at_X.first, np.asarray(rest)], axis=1)

    def placed(
        self, kernel: Kernel, lower: Floats, upper: Floats, lattice: FrequencyLattice | None = None
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
        first = cast(PointFeatures, self.first)
        at_Z, at_X = (At(x, first.phi(kernel, x)) for x in (jnp.asarray(self.second.Z), X))
        rest = residual_features(kernel, at_Z, at_X, _period(self.first))
        return jnp.concatenate([at_X.first, rest], axis=1)

    def free_parameters(self) -> Floats:
        """Return the learned parameters of both blocks."""
        return np.concatenate([self.first.free_parameters(), self.second.free_parameters()])

    def with_free_parameters(self, vector: Float[AnyArray, " q"]) -> Self:
        """Return a copy with other learned parameters; the inverse of `free_parameters`."""
        size = len(self.first.free_parameters())
        first = self.first.with_free_parameters(vector[:size])
        return type(self)(first, self.second.with_free_parameters(vector[size:]))


class At(NamedTuple):
    """Points, and the features of the first block there."""

    points: Vectors
    first: Float[AnyArray, "n q"]


def residual_features(
    kernel: Kernel, Z: At, X: At, period: Floats | None = None
) -> Float[AnyArray, "n m"]:
    """Return φ₂ at X; with a period, for the wrapped prior."""

    def k(lag: Vector) -> Scalar:
        return kernel.k(lag) if period is None else kernel.wrapped(lag, jnp.asarray(period))

    K_uu = covariances(k, Z.points, Z.points) - Z.first @ Z.first.T
    K_uf = covariances(k, Z.points, X.points) - Z.first @ X.first.T
    return whitened(K_uu, K_uf, JITTER * kernel.prior_variance())


@in_double
@eqx.filter_jit
def _rest(kernel: Kernel, Z: At, X: At, period: NDArray | None) -> Float[AnyArray, "n m"]:
    return residual_features(kernel, At(*map(jnp.asarray, Z)), At(*map(jnp.asarray, X)), period)


def _period(first: Features) -> Floats | None:
    """Return the period of the prior whose features these are, `None` for the kernel's."""
    if isinstance(first, TwoBlock):
        return _period(first.first)
    return first.lattice.period if isinstance(first, SeriesFeatures | Lattice) else None


def _joined(first: Features, second: InducingPoints) -> TwoBlock:
    differentiable = isinstance(first, PointFeatures | SeriesFeatures)
    return (PointTwoBlock if differentiable else TwoBlock)(first, second)
