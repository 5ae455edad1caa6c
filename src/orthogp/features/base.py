"""The contract of feature families: features φ_m with K_uu = I.

There are three ways to write a family, each a subclass with a few lines:

- `SpectralFeatures` (features/spectral.py): an orthonormal basis in frequency, the paper's way;
- `SeriesFeatures` (features/series.py): coefficients of cosines and sines on a lattice;
- `PointFeatures` (here): φ itself as a JAX function of the inputs.

The first two are summed from `FourierStatistics`, the third from the rows.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray

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
