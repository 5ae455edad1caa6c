"""The contract of feature families, features φ_m with K_uu = I, and how families are placed.

There are three ways to write a family, each a subclass with a few lines:

- `SpectralFeatures` (features/spectral.py): an orthonormal basis in frequency, the paper's way;
- `SeriesFeatures` (features/series.py): coefficients of cosines and sines on a lattice;
- `PointFeatures` (here): φ itself as a JAX function of the inputs.

The first two are summed from `FourierStatistics`, the third from the rows. What a family leaves
open is chosen by searches over placements, products of functions of one column, and Gauss rules.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh_tridiagonal
from scipy.special import betaln

from orthogp.errors import FeatureError
from orthogp.kernels import Kernel
from orthogp.precision import AnyArray, in_double
from orthogp.statistics import FrequencyLattice

if TYPE_CHECKING:
    from orthogp.features.series import SeriesFeatures

Floats = NDArray[np.float64]
#: The function of each column that each feature is the product of; the columns of each component.
Orders = tuple[tuple[int, ...], ...]

#: The families that can be named by a string: all classes with a `known_as`.
FAMILIES: dict[str, type[Features]] = {}
#: What `resolve_features` returns for "exact": no features at all.
EXACT: Final = "exact"
# The number of features unless told, by number of columns.
_DEFAULT_COUNTS = {1: 201, 2: 441, 3: 512}
# The number of features unless told on more columns.
_MANY_COLUMNS_COUNT = 512


class Features(eqx.Module):
    """Inducing features that are orthonormal under the prior.

    cov(u_m, u_m') = δ_mm',   φ_m(x) = cov(u_m, f(x)),   Σ_m φ_m(x) φ_m(x') → k as m grows
    """

    if TYPE_CHECKING:
        # A field of some families and a property of others, which equinox cannot declare.
        @property
        def num_features(self) -> int:
            """The number m of features."""
            ...

    #: The strings that stand for the family, if any; see `named`.
    known_as: ClassVar[tuple[str, ...]] = ()
    #: Whether the features are those of the process itself, so that Q = Σ φ_m φ_m ≤ K and the
    #: bounds hold for it. Families that replace the prior by Q (random Fourier features) say no.
    projects: ClassVar[bool] = True
    #: Whether the process that the features belong to has the prior variance k(0) everywhere; if
    #: not, `residual_variance` and `process_covariance` say what it has.
    stationary: ClassVar[bool] = True
    #: Whether the bound of the features can learn hyperparameters; if not, a fit takes those that
    #: lattice features learn.
    learns: ClassVar[bool] = True
    #: Whether an additive kernel takes one copy of the features for each of its components.
    by_component: ClassVar[bool] = True
    #: Whether a regressor makes the features by itself, and takes none that a user made.
    made_by_fits: ClassVar[bool] = False
    #: Whether the features act on any number of columns jointly. On more than a lattice holds they
    #: are placed by `from_rows`, and must be point features then.
    any_columns: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        FAMILIES.update(dict.fromkeys(vars(cls).get("known_as", ()), cls))

    @classmethod
    def named(cls, name: str, num_features: int) -> Self:
        """Return the features that one of the names in `known_as` stands for."""
        return cls(num_features)  # type: ignore[call-arg]

    @abstractmethod
    def evaluate(self, kernel: Kernel, X: NDArray) -> Floats:
        """Return φ_m(x_n), (n, m)."""

    def residual_variance(self, kernel: Kernel, X: NDArray) -> Floats:
        """Return the prior variance left out, k(0) − Σ_m φ_m(x_n)², (n,)."""
        if not self.projects:
            return np.zeros(len(X))
        explained = np.sum(self.evaluate(kernel, X) ** 2, axis=1)
        return np.maximum(prior_variance(kernel) - explained, 0.0)

    def check(self, kernel: Kernel, num_dims: int) -> None:
        """Raise `FeatureError` unless the family can take the kernel on `num_dims` columns."""

    def process_covariance(self, kernel: Kernel, X: NDArray) -> Floats:
        """Return the prior covariance, at the rows of X, of a process that is not stationary."""
        raise NotImplementedError

    def unplaced(self) -> FeatureError:
        """Return the error of features that lack what `placed` chooses."""
        return FeatureError(
            f"{type(self).__name__} has open parameters: call placed(kernel, lower, upper) first."
        )

    def placed(
        self, kernel: Kernel, lower: Floats, upper: Floats, lattice: FrequencyLattice | None = None
    ) -> Self:
        """Return a copy in which everything left open is chosen, for inputs within a box.

        Parameters
        ----------
        kernel : Kernel
            The one to choose for; the result serves any other.
        lower, upper : (d,)
            The box.
        lattice : FrequencyLattice, optional
            Where `on` will be asked for; parameters are rounded to what it holds.
        """
        return self

    def adjusted(
        self, kernel: Kernel, lower: Floats, upper: Floats, lattice: FrequencyLattice | None = None
    ) -> Self:
        """Return placed features placed again, for a kernel that has moved a little."""
        return self.placed(kernel, lower, upper, lattice)

    def from_rows(self, kernel: Kernel, X: NDArray) -> Self:
        """Return a copy in which everything left open is chosen for these rows."""
        X = as_rows(X)
        return self.placed(kernel, X.min(axis=0), X.max(axis=0))

    def wanted_period(self, kernel: Kernel, width: Floats) -> Floats | None:
        """Return the period of the lattice that suits the family best, (d,).

        `None` means the shortest whose wrapped prior is close to the kernel.
        """
        return None

    def on(self, lattice: FrequencyLattice) -> SeriesFeatures | None:
        """Return the (placed) features as series on a lattice, or `None` if they are none."""
        return None

    def free_parameters(self) -> Floats:
        """Return the parameters to be learned with the kernel, as any real numbers, (q,)."""
        return np.empty(0)

    def with_free_parameters(self, vector: Float[AnyArray, " q"]) -> Self:
        """Return a copy with other learned parameters; the inverse of `free_parameters`."""
        return self


class PointFeatures(Features):
    """Features given by φ itself, as a differentiable function."""

    @abstractmethod
    def phi(self, kernel: Kernel, X: Float[AnyArray, "n d"]) -> Float[AnyArray, "n m"]:
        """Return φ_m(x_n) as JAX arrays; the gradient for learning is taken through this."""

    def evaluate(self, kernel: Kernel, X: NDArray) -> Floats:
        """Return φ_m(x_n), (n, m); what is open is chosen for the smallest box around X."""
        X = as_rows(X)
        features = self.placed(kernel, X.min(axis=0), X.max(axis=0))
        return np.asarray(_phi(features, kernel, X))


@in_double
@eqx.filter_jit
def _phi(features: PointFeatures, kernel: Kernel, X: NDArray) -> AnyArray:
    return features.phi(kernel, jnp.asarray(X))


@in_double
def prior_variance(kernel: Kernel) -> float:
    """Return k(0)."""
    return float(kernel.prior_variance())


def as_rows(X: ArrayLike) -> Floats:
    """Return inputs as (n, d), a vector as one column."""
    X = np.asarray(X, dtype=np.float64)
    return X[:, None] if X.ndim == 1 else X


def check_count(count: object, name: str = "num_features", *, least: int = 1) -> int:
    """Return `count` as an integer, or raise `FeatureError` unless it is one ≥ `least`."""
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < least:
        raise FeatureError(f"{name} must be a whole number ≥ {least}, got {count!r}.")
    return int(count)


def check_scale(value: ArrayLike | None, name: str) -> Floats | None:
    """Return a positive parameter, one number or one per column, or `None` if left open."""
    if value is None:
        return None
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise FeatureError(f"{name} must be a positive number, got {value!r}.") from error
    if array.size == 0 or array.ndim > 1 or not np.all(np.isfinite(array)) or np.any(array <= 0):
        raise FeatureError(
            f"{name} must be positive and finite, one number or one per column, got {value!r}."
        )
    return array


def per_column(values: ArrayLike, num_dims: int, name: str) -> Floats:
    """Return one number per column, or raise `FeatureError`."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim and array.shape != (num_dims,):
        raise FeatureError(
            f"The features have a {name} for {array.size} columns, but act on {num_dims}: give one "
            "number, or one per column."
        )
    return np.broadcast_to(array, (num_dims,))


def resolve_features(
    features: str | Features, num_features: int | str, num_dims: int
) -> Features | Literal["exact"] | None:
    """Return the family that a user named or made, or `None` for the lattice."""
    if isinstance(features, Features):
        if features.made_by_fits:
            raise FeatureError(
                "A regressor makes its own Lattice features: use "
                'features="lattice", num_features=….'
            )
        if num_features not in ("auto", features.num_features):
            raise FeatureError(
                f"num_features is {num_features}, but the features have {features.num_features}: "
                "give the number in one place."
            )
        return features
    names = feature_names()
    if not isinstance(features, str) or features not in names:
        raise FeatureError(
            f"features must be one of {', '.join(names)}, or an object of orthogp.features, got "
            f"{features!r}."
        )
    if features in ("auto", "lattice"):
        return None
    if features == EXACT:
        return EXACT
    count = _DEFAULT_COUNTS.get(num_dims, _MANY_COLUMNS_COUNT)
    count = count if num_features == "auto" else check_count(num_features)
    return FAMILIES[features].named(features, count)


def feature_names() -> tuple[str, ...]:
    """Return the strings that `features` may be."""
    return ("auto", "lattice", *FAMILIES, EXACT)


def takes_any_columns(features: str | Features) -> bool:
    """Return whether the family that a user named or made acts on any number of columns."""
    family = resolve_features(features, "auto", 1)
    return isinstance(family, Features) and family.any_columns


# Points per column at which placements are judged, by number of columns.
_SAMPLES = {1: 129, 2: 11, 3: 6}
# Lags relative to the width at which a kernel's decay is looked at.
_LAGS = np.geomspace(1e-4, 4.0, 64)
# Margins of a window, in lengthscales, that are tried before the best is refined.
_MARGINS = np.concatenate([[0.0], np.geomspace(0.25, 32.0, 15)])
# The largest distance, relative to a window's width, by which rounding may put data outside.
_ROUNDING = 1e-9


def least(
    score: Callable[[float], float], factors: Iterable[float], step: float, refinements: int
) -> float:
    """Return the factor of the least score: the best of some, then moved by shrinking steps."""
    remembered = cache(score)
    best = float(min(factors, key=remembered))
    for _ in range(refinements):
        best = min((best / step, best, best * step), key=remembered)
        step = float(np.sqrt(step))
    return best


def best_margin(error: Callable[[float], float]) -> float:
    """Return the margin between 0 and 40 lengthscales at which an error is least."""
    return least(error, _MARGINS, float(np.sqrt(_MARGINS[2] / _MARGINS[1])), 4)


def centred(
    centre: ArrayLike | None, lower: Floats, upper: Floats, lattice: FrequencyLattice | None
) -> tuple[Floats, Floats]:
    """Return the lattice's centre, the one given, or the box's; and how far the box reaches."""
    if lattice is not None:
        middle = lattice.centre
    else:
        middle = (lower + upper) / 2 if centre is None else per_column(centre, len(lower), "centre")
    return middle, np.maximum(np.abs(lower - middle), np.abs(upper - middle))


def check_inside(lower: Floats, upper: Floats, start: Floats, end: Floats, remedy: str) -> None:
    """Raise `FeatureError` unless the data's box lies between `start` and `end`."""
    slack = _ROUNDING * (end - start)
    if np.any((lower < start - slack) | (upper > end + slack)):
        raise FeatureError(
            f"The features are defined on {_box(start, end)} only, but the data cover "
            f"{_box(lower, upper)}: {remedy}."
        )


def _box(lower: Floats, upper: Floats) -> str:
    ends = zip(np.atleast_1d(lower), np.atleast_1d(upper), strict=True)
    return " × ".join(f"[{low:.6g}, {high:.6g}]" for low, high in ends)


def correlation_lengths(kernel: Kernel, width: Floats) -> Floats:
    """Return the lag along each column at which the covariance has fallen by half, (d,).

    Looked for between 1e-4 and 4 widths.
    """
    lengths = np.empty(len(width))
    for d in range(len(width)):
        lags = np.zeros((len(_LAGS), len(width)))
        lags[:, d] = _LAGS * width[d]
        below = np.flatnonzero(np.asarray(_correlations(kernel, lags)) < 0.5)
        lengths[d] = width[d] * _LAGS[below[0] if len(below) else -1]
    return lengths


@in_double
@eqx.filter_jit
def _correlations(kernel: Kernel, lags: Floats) -> Float[AnyArray, " n"]:
    return jax.vmap(kernel.k)(jnp.asarray(lags)) / kernel.prior_variance()


def grid_orders(
    num_features: int, complexity: Floats, most: NDArray[np.int64] | float = np.inf
) -> Orders:
    """Return a grid of at most `num_features` products, finer along complex columns.

    No column takes more than `most` functions, one number or one per column.
    """
    counts = np.ones(len(complexity), dtype=int)
    while True:
        rest = (num_features * counts // np.prod(counts) > counts) & (counts < most)
        if not rest.any():
            break
        counts[np.argmax(np.where(rest, complexity / counts, -np.inf))] += 1
    return tuple(itertools.product(*(range(int(count)) for count in counts)))


def simplex_orders(
    num_features: int, complexity: Floats, most: NDArray[np.int64] | float = np.inf
) -> Orders:
    """Return the `num_features` products of lowest total order, weighted by complexity.

    No column takes more than `most` functions, one number or one per column.
    """
    num_dims = len(complexity)
    weights = complexity.max() / complexity
    # Enough of each column that the simplex through them holds the number asked for.
    volume = num_features * np.prod(weights) * np.prod(np.arange(1, num_dims + 1))
    edge = volume ** (1 / num_dims) + np.sum(weights)
    counts = np.maximum(np.ceil(edge / weights), 1).astype(int)
    counts = np.minimum(np.minimum(counts, num_features), most).astype(int)
    grid = np.array(list(itertools.product(*(range(int(count)) for count in counts))))
    chosen = grid[np.argsort(grid @ weights, kind="stable")[:num_features]]
    return tuple(tuple(int(order) for order in row) for row in chosen)


def sample_box(lower: Floats, upper: Floats) -> Floats:
    """Return an even grid of points over a box, (n, d)."""
    size = _SAMPLES[len(lower)]
    return grid_points([np.linspace(*ends, size) for ends in zip(lower, upper, strict=True)])


def grid_points(axes: list[Floats]) -> Floats:
    """Return all points with coordinates from the axes, the last varying fastest, (n, d)."""
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))


def order_products(tables: list[Floats], orders: NDArray[np.int64]) -> Floats:
    """Return ∏_d table_d[m_d] over the grid of all columns' nodes, (m, nodes)."""
    result = tables[0][orders[:, 0]]
    for d in range(1, len(tables)):
        factor = tables[d][orders[:, d]]
        result = (result[:, :, None] * factor[:, None, :]).reshape(len(orders), -1)
    return result


# The most nodes of one Gauss rule; longer rules are made of several panels.
_PANEL = 128


# The rules of ∫ g(v) (1−v)^α (1+v)^β dv over [−1, 1].
@lru_cache(maxsize=64)
def _gauss_jacobi(size: int, alpha: float, beta: float) -> tuple[Floats, Floats]:
    """Return the rule of ∫ g(v) (1−v)^α (1+v)^β dv over [−1, 1], by Golub and Welsch.

    That of SciPy loses two digits for 128 nodes.
    """
    diagonal, off_diagonal = jacobi_recurrence(size, alpha, beta)
    nodes, vectors = eigh_tridiagonal(diagonal, off_diagonal[1:])
    return nodes, vectors[0] ** 2 * np.exp(log_jacobi_mass(alpha, beta))


def gauss_panels(
    lower: float, upper: float, size: int, at_lower: float = 0.0, at_upper: float = 0.0
) -> tuple[Floats, Floats]:
    """Return nodes and weights, at least `size` of them, of an integral with power-law ends.

        ∫ f du over [lower, upper],      f = (u − lower)^at_lower (upper − u)^at_upper · smooth

    One Gauss–Jacobi rule, or panels of them that grow denser towards the ends as its nodes do.
    """
    num_panels = -(-size // _PANEL)
    each = -(-size // num_panels)
    edges = (1 - np.cos(np.pi * np.arange(num_panels + 1) / num_panels)) / 2
    nodes, weights = [], []
    for panel in range(num_panels):
        left = at_lower if panel == 0 else 0.0
        right = at_upper if panel == num_panels - 1 else 0.0
        v, w = _gauss_jacobi(each, right, left)
        start, half = edges[panel], (edges[panel + 1] - edges[panel]) / 2
        u = (upper - lower) * (start + half * (1 + v)) + lower
        half = (upper - lower) * half
        # From the rounded nodes, so that the factors cancel those of the integrand.
        factors = ((u - lower) / half) ** left * ((upper - u) / half) ** right
        nodes.append(u)
        weights.append(half * w / factors)
    return np.concatenate(nodes), np.concatenate(weights)


def jacobi_recurrence(size: int, alpha: float, beta: float) -> tuple[Floats, Floats]:
    r"""Return d_0 … d_{n−1} and b_0 … b_{n−1} of the orthonormal Jacobi polynomials.

    v p_n = b_{n+1} p_{n+1} + d_n p_n + b_n p_{n−1},      b_0 = 0
    """
    n = np.arange(1, size)
    total = alpha + beta
    diagonal = (beta**2 - alpha**2) / ((2 * n + total) * (2 * n + total + 2))
    # n(n+α+β)/(2n+α+β−1) is 0/0 at n = 1 for α + β = −1, and 1 for all others.
    ratio = np.ones(len(n))
    ratio[1:] = n[1:] * (n[1:] + total) / (2 * n[1:] + total - 1)
    square = 4 * (n + alpha) * (n + beta) * ratio / ((2 * n + total) ** 2 * (2 * n + total + 1))
    first = (beta - alpha) / (total + 2)
    return np.concatenate([[first], diagonal]), np.concatenate([[0.0], np.sqrt(square)])


def log_jacobi_mass(alpha: float, beta: float) -> float:
    """Return log ∫ (1−v)^α (1+v)^β dv over [−1, 1]."""
    return float((alpha + beta + 1) * np.log(2) + betaln(alpha + 1, beta + 1))
