"""Kernels by name and from scikit-learn; sums of kernels on few columns each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import numpy as np

from orthogp.errors import KernelError
from orthogp.kernels.base import KERNEL_NAMES, Columns, Kernel, Noise
from orthogp.kernels.composite import On, Product, Sum, product
from orthogp.kernels.stationary import (
    RBF,
    Matern,
    Matern12,
    Matern32,
    Matern52,
    QuasiPeriodic,
    RationalQuadratic,
)
from orthogp.kernels.transformed import Categorical, Cyclic, has_own_period, own_periods
from orthogp.rows import MAX_DIMS

# The periods of the calendar's seasons in days.
_SEASONS = {"yearly": 365.2425, "weekly": 7.0, "daily": 1.0}
# The lengths of units of time in days.
_DAYS = {"days": 1.0, "years": 365.2425, "hours": 1 / 24, "minutes": 1 / 1440, "seconds": 1 / 86400}
#: What stands before the name of a kernel to mean one kernel on each column.
ADDITIVE_PREFIX = "additive-"
# The lengthscale, in periods, over which a periodic shape that is to stay the same changes: after
# a hundred periods, correlations are 5e-5 smaller than those of scikit-learn's ExpSineSquared.
_MANY_PERIODS = 1e4


class Term(NamedTuple):
    """One of the independent processes that an additive kernel adds up.

    Attributes
    ----------
    columns : tuple of int
        The columns it acts on.
    kernel : Kernel
        Relative to those columns.
    periods : tuple of float or None
        The period it has by itself along each of them, if any.
    """

    columns: Columns
    kernel: Kernel
    periods: tuple[float | None, ...]


def components(kernel: Kernel, num_dims: int) -> list[tuple[Columns, Kernel]]:
    """Return the independent processes that a kernel adds up, by the columns they act on.

    Terms on the same columns are one component; each kernel comes relative to its columns.
    """
    groups: dict[Columns, list[Kernel]] = {}
    for term in kernel.summands:
        for columns, part in _located(term, num_dims):
            groups.setdefault(columns, []).append(part)
    return [(columns, Sum.of(parts)) for columns, parts in groups.items()]


def _located(term: Kernel, num_dims: int) -> Iterator[tuple[Columns, Kernel]]:
    if not isinstance(term, On):
        columns = term.columns(num_dims)
        yield columns, term.with_columns({d: i for i, d in enumerate(columns)})
        return
    for inner, part in components(term.kernel, len(term.dims)):
        yield tuple(term.dims[d] for d in inner), part


def additive(
    kernel: str | Kernel = "matern32",
    num_columns: int = 1,
    *,
    categorical: Mapping[int, int] | None = None,
    periodic: Mapping[int, float] | None = None,
    joint: Iterable[Columns] = (),
) -> Sum:
    """Return the sum of one kernel on each of the columns 0, 1, …, num_columns − 1.

    A regressor that learns starts from lengthscales read off the data besides the kernel's.

    Parameters
    ----------
    kernel : str or Kernel
        A name such as "matern32", or a kernel of one column.
    categorical : mapping of column to number of levels
        Columns of codes 0, 1, …; they get `Categorical` kernels.
    periodic : mapping of column to period
        Columns that come round, such as hours of a day; they get the kernel wrapped (`Cyclic`).
    joint : iterable of tuples of columns
        Two or three columns whose effects do not simply add up: each gets a kernel on all of them,
        with a lengthscale for each, or the product of what its columns have if one is categorical
        or periodic.
    """
    categorical, periodic = dict(categorical or {}), dict(periodic or {})
    if not isinstance(num_columns, int) or num_columns < 1:
        raise KernelError(f"num_columns must be a whole number ≥ 1, got {num_columns!r}.")
    for column in (*categorical, *periodic):
        if not 0 <= column < num_columns or (column in categorical and column in periodic):
            raise KernelError(
                f"Column {column} must be one of 0 to {num_columns - 1}, and either categorical or "
                "periodic, not both."
            )
    plain = kernel if isinstance(kernel, Kernel) else resolve_kernel(kernel).kernel
    plain.check(1)

    def on_column(column: int) -> Kernel:
        if column in categorical:
            return Categorical(categorical[column])
        if column not in periodic:
            return plain
        period = float(periodic[column])
        if "lengthscale" in plain.parameters() and not isinstance(kernel, Kernel):
            # By name the lengthscale is a mere placeholder, which must fit the period.
            return Cyclic(plain.with_parameters(lengthscale=period / 8), period)
        return Cyclic(plain, period)

    def on_columns(columns: Columns) -> Kernel:
        if categorical.keys() & set(columns) or periodic.keys() & set(columns):
            return reduce(product, (on_column(column).on(column) for column in columns))
        length = plain.parameters().get("lengthscale")
        if length is None:
            return plain.on(*columns)
        return plain.with_parameters(lengthscale=np.full(len(columns), float(length))).on(*columns)

    single = (on_column(column).on(column) for column in range(num_columns))
    return Sum((*single, *(on_columns(tuple(columns)) for columns in joint)))


def beside_categories(name: str, num_columns: int, categorical: Mapping[int, int]) -> Kernel:
    """Return a kernel of that name on all other columns, plus an effect of each category.

    The others act jointly if they are at most three, and add up if they are more.

    Parameters
    ----------
    categorical : mapping of column to number of levels
    """
    plain = name.lower().removeprefix(ADDITIVE_PREFIX)
    others = [column for column in range(num_columns) if column not in categorical]
    if plain != name.lower() or len(others) > MAX_DIMS or not others:
        return additive(plain, num_columns, categorical=categorical)
    kernel = resolve_kernel(plain).kernel
    if len(others) > 1 and "lengthscale" in kernel.parameters():
        kernel = kernel.with_parameters(lengthscale=np.ones(len(others)))
    effects = (Categorical(levels).on(column) for column, levels in categorical.items())
    return Sum((kernel.on(*others), *effects))


def seasonal(*seasons: str | float, unit: str = "days", variance: float = 1.0) -> Kernel:
    """Return the sum of one quasi-periodic kernel for each season, their periods fixed.

    k(τ) = Σ_s v_s exp(−½ (τ/ℓ_s)²) exp(−2 sin²(π τ/p_s)/r_s²)

    Each season keeps its shape over ℓ_s, at first ten periods, and all but p_s is learned.

    Parameters
    ----------
    *seasons : str or float
        "yearly" (365.2425 days), "weekly", "daily", or a period in the unit of the column.
    unit : str
        That of the time column: "days", as dates in data frames have, "years", "hours", "minutes"
        or "seconds".
    variance : float
        Where the learning of each v_s starts, in units of y².
    """
    if unit not in _DAYS:
        raise KernelError(f"unit must be one of {', '.join(_DAYS)}, got {unit!r}.")
    if not seasons:
        raise KernelError("At least one season is needed, such as seasonal('yearly').")
    parts = []
    for season in seasons:
        if isinstance(season, str) and season not in _SEASONS:
            raise KernelError(
                f"A season is one of {', '.join(_SEASONS)} or a period, got {season!r}."
            )
        known = isinstance(season, str)
        period = _SEASONS[season] / _DAYS[unit] if known else float(season)
        parts.append(QuasiPeriodic(variance, 10 * period, period, 1.0).fix("period"))
    return Sum.of(parts)


def resolve_additive(kernel: object, num_columns: int, most_joint: int) -> KernelChoice:
    """Return the kernel that an estimator's argument stands for, on `num_columns` columns.

    A name after `ADDITIVE_PREFIX` means one kernel on each column, and so does a plain name if
    there are more columns than can act jointly.
    """
    if isinstance(kernel, str):
        name = kernel.lower().removeprefix(ADDITIVE_PREFIX)
        if _named(name) is None:
            raise KernelError(
                f"Unknown kernel {kernel!r}; known names are {', '.join(KERNEL_NAMES)}, these "
                f'after "{ADDITIVE_PREFIX}" for one on each column, or pass a kernel object.'
            )
        if name != kernel.lower() or num_columns > most_joint:
            return KernelChoice(additive(name, num_columns), Noise(), from_name=True)
    return resolve_kernel(kernel)


def is_additive(kernel: Kernel, num_columns: int, most_joint: int) -> bool:
    """Return whether a kernel takes a sum over lattices of its terms, rather than one lattice.

    It does if it acts on more columns than one lattice holds, or has periods by itself.
    """
    several = isinstance(kernel, Sum) and len(kernel.columns(num_columns)) > most_joint
    return several or has_own_period(kernel)


def split_terms(kernel: Kernel, num_columns: int) -> tuple[Term, ...]:
    """Return the independent processes that a kernel adds up.

    Terms on the same columns, with the same periods by themselves, are one.
    """
    groups: dict[tuple, list[Kernel]] = {}
    for columns, component in components(kernel, num_columns):
        for part in component.summands:
            groups.setdefault((columns, own_periods(part, len(columns))), []).append(part)
    return tuple(
        Term(columns, Sum.of(parts), periods) for (columns, periods), parts in groups.items()
    )


def join_terms(terms: tuple[Term, ...]) -> Sum:
    """Return the kernel that adds up the terms, one `On` for each, in their order."""
    return Sum(tuple(On(term.kernel, term.columns) for term in terms))


def component_kernels(kernel: Kernel, columns: Sequence[Columns]) -> tuple[Kernel, ...]:
    """Return the kernel of each component on its columns; of a joint model, the kernel itself.

    An additive model's kernel is what `join_terms` made of its components.
    """
    if isinstance(kernel, Sum):
        terms = [term for term in kernel.terms if isinstance(term, On)]
        if len(terms) == len(kernel.terms) and [term.dims for term in terms] == list(columns):
            return tuple(term.kernel for term in terms)
    if len(columns) > 1:
        raise KernelError(f"A sum of terms on columns is needed, got {kernel!r}.")
    return (kernel,)


def split_sum(kernel: Kernel) -> tuple[tuple[Columns, ...], tuple[Kernel, ...]]:
    """Return the columns and the kernels that `join_terms` has made a kernel of."""
    terms = [term for term in kernel.summands if isinstance(term, On)]
    if len(terms) != len(kernel.summands):
        raise KernelError(f"A sum of terms on columns is needed, got {kernel!r}.")
    return tuple(term.dims for term in terms), tuple(term.kernel for term in terms)


class KernelChoice(NamedTuple):
    """What a user's `kernel` argument says."""

    kernel: Kernel
    noise: Noise
    from_name: bool


def resolve_kernel(kernel: object) -> KernelChoice:
    """Return the kernel that a name, a `Kernel` or a scikit-learn kernel stands for."""
    if isinstance(kernel, Kernel):
        return KernelChoice(kernel, Noise(), from_name=False)
    if isinstance(kernel, str):
        if (kind := _named(kernel)) is None:
            raise KernelError(
                f"Unknown kernel {kernel!r}; known names are {', '.join(KERNEL_NAMES)}, "
                "or pass a kernel object."
            )
        return KernelChoice(kind(), Noise(), from_name=True)
    if hasattr(kernel, "get_params") and hasattr(kernel, "theta"):
        return from_sklearn(kernel)
    raise KernelError(
        "kernel must be a name, an orthogp kernel or a scikit-learn kernel, "
        f"got {type(kernel).__name__}."
    )


def _named(name: str) -> type[Kernel] | None:
    """Return the kernel of a name, whatever its case and with or without hyphens."""
    plain = {known.replace("-", ""): kind for known, kind in KERNEL_NAMES.items()}
    return plain.get(name.lower().replace("-", "").replace("_", "").replace(" ", ""))


def has_white(kernel: object) -> bool:
    """Return whether a kernel is scikit-learn's with noise in it (a WhiteKernel)."""
    if isinstance(kernel, str | Kernel) or not hasattr(kernel, "theta"):
        return False
    return bool(_terms(kernel)[1])


def from_sklearn(kernel: object) -> KernelChoice:
    """Return the equal of a scikit-learn kernel; a WhiteKernel becomes the noise.

    Bounds mean what they mean there: parameters are learned between them, and are kept where they
    are "fixed".
    """
    terms, whites = _terms(kernel)
    if not terms:
        raise KernelError("A scikit-learn kernel needs a term besides WhiteKernel.")
    return KernelChoice(Sum.of(terms), _noise(whites), from_name=False)


class _Range(NamedTuple):
    """A hyperparameter of scikit-learn's: its value, and where it may move; nowhere if fixed."""

    value: float
    lower: float
    upper: float

    @classmethod
    def of(cls, kernel, name: str) -> _Range:
        value, known = float(getattr(kernel, name)), getattr(kernel, f"hyperparameter_{name}")
        return cls(value, value, value) if known.fixed else cls(value, *known.bounds[0].tolist())

    def times(self, other: _Range) -> _Range:
        return _Range(*(one * two for one, two in zip(self, other, strict=True)))

    @property
    def fixed(self) -> bool:
        return self.lower == self.upper


def _noise(whites: list[_Range]) -> Noise:
    """Return the noise that WhiteKernels add up to."""
    if not whites:
        return Noise()
    value, lower, upper = (float(sum(own)) for own in zip(*whites, strict=True))
    return Noise(value).bound(lower, upper) if lower < upper else Noise(value).fix()


def _terms(kernel) -> tuple[list[Kernel], list[_Range]]:
    from sklearn.gaussian_process import kernels as sk

    if isinstance(kernel, sk.Sum):
        left, left_whites = _terms(kernel.k1)
        right, right_whites = _terms(kernel.k2)
        return left + right, left_whites + right_whites
    if isinstance(kernel, sk.WhiteKernel):
        return [], [_Range.of(kernel, "noise_level")]
    if isinstance(kernel, sk.Product):
        factors = _factors(kernel, sk)
        constants = [f for f in factors if isinstance(f, sk.ConstantKernel)]
        others = [f for f in factors if not isinstance(f, sk.ConstantKernel)]
        if len(others) == 2 and (equal := _quasi_periodic(others, sk)) is not None:
            terms, whites = [equal], []
        elif len(others) == 1:
            terms, whites = _terms(others[0])
        else:
            parts = [_terms(other) for other in others]
            if not parts or any(noise for _, noise in parts):
                raise KernelError(
                    f"A product of scikit-learn's kernels converts without WhiteKernel in it, and "
                    f"with a factor besides ConstantKernel, got {kernel}: add a WhiteKernel to it."
                )
            terms, whites = [reduce(product, (Sum.of(own) for own, _ in parts))], []
        ranges = [_Range.of(constant, "constant_value") for constant in constants]
        factor = reduce(_Range.times, ranges, _Range(1.0, 1.0, 1.0))
        return [_multiplied(term, factor) for term in terms], [own.times(factor) for own in whites]
    return [_primitive(kernel, sk)], []


def _factors(kernel, sk) -> list:
    if isinstance(kernel, sk.Product):
        return _factors(kernel.k1, sk) + _factors(kernel.k2, sk)
    return [kernel]


def _multiplied(kernel: Kernel, factor: _Range) -> Kernel:
    """Return a kernel times a constant, which its variance becomes part of."""
    if isinstance(kernel, Product):
        first, *others = kernel.factors
        return kernel.with_parts((_multiplied(first, factor), *others))
    if isinstance(kernel, Sum):
        return kernel.with_parts(_multiplied(term, factor) for term in kernel.terms)
    (own, _), *_ = kernel.primitives()
    value = float(own.parameters()["variance"])
    bounds = next(((low, high) for name, low, high in own.bounds if name == "variance"), None)
    variance = _Range(value, *(bounds or (value, value))).times(factor)
    others = tuple(told for told in own.bounds if told[0] != "variance")
    free = tuple(name for name in own.fixed if name != "variance")
    plain = replace(own, fixed=free, bounds=others).with_parameters(variance=variance.value)
    if variance.fixed:
        return plain.fix("variance")
    return plain.bound("variance", variance.lower, variance.upper)


def _primitive(kernel, sk) -> Kernel:
    # scikit-learn's stationary kernels have unit variance, and nothing that learns it unless a
    # ConstantKernel multiplies them.
    if isinstance(kernel, sk.Matern):  # before RBF: scikit-learn's Matern is a subclass of it
        halves = {0.5: Matern12, 1.5: Matern32, 2.5: Matern52}
        if kernel.nu in halves:
            return _restricted(halves[kernel.nu](lengthscale=kernel.length_scale), kernel)
        if np.isinf(kernel.nu):
            return _restricted(RBF(lengthscale=kernel.length_scale), kernel)
        return _restricted(Matern(nu=kernel.nu, lengthscale=kernel.length_scale), kernel).fix("nu")
    if isinstance(kernel, sk.RBF):
        return _restricted(RBF(lengthscale=kernel.length_scale), kernel)
    if isinstance(kernel, sk.RationalQuadratic):
        equal = RationalQuadratic(lengthscale=kernel.length_scale, alpha=kernel.alpha)
        return _restricted(equal, kernel, alpha="alpha")
    if isinstance(kernel, sk.ExpSineSquared):
        return _periodic(kernel, [_MANY_PERIODS * kernel.periodicity]).fix("lengthscale")
    raise KernelError(
        f"scikit-learn's {type(kernel).__name__} has no stationary counterpart here: use RBF, "
        "Matern, RationalQuadratic, ExpSineSquared, ConstantKernel products, WhiteKernel and their "
        "sums."
    )


def _quasi_periodic(factors: list, sk) -> Kernel | None:
    """Return the product of scikit-learn's RBF and ExpSineSquared, in either order."""
    kinds = {type(factor): factor for factor in factors}
    if set(kinds) != {sk.RBF, sk.ExpSineSquared}:
        return None
    smooth = kinds[sk.RBF]
    equal = _periodic(kinds[sk.ExpSineSquared], np.atleast_1d(smooth.length_scale))
    return _limited(equal, smooth, lengthscale="length_scale")


def _periodic(kernel, lengthscale) -> Kernel:
    """Return scikit-learn's ExpSineSquared times an RBF of one column."""
    # One lengthscale in a list: scikit-learn takes the sine of a distance, which is this kernel's
    # in one column only.
    equal = QuasiPeriodic(
        lengthscale=lengthscale,
        period=kernel.periodicity,
        shape_lengthscale=kernel.length_scale,
    )
    names = {"period": "periodicity", "shape_lengthscale": "length_scale"}
    return _limited(equal, kernel, **names).fix("variance")


def _restricted(equal: Kernel, kernel, **further: str) -> Kernel:
    """Return a kernel of unit variance, fixed and bounded as scikit-learn's is.

    `further` names parameters beside the lengthscale, and what scikit-learn calls them.
    """
    return _limited(equal, kernel, lengthscale="length_scale", **further).fix("variance")


def _limited(equal: Kernel, kernel, **names: str) -> Kernel:
    """Return a kernel with some parameters fixed and bounded as scikit-learn's are."""
    for name, theirs in names.items():
        known = getattr(kernel, f"hyperparameter_{theirs}")
        if known.fixed:
            equal = equal.fix(name)
            continue
        lower, upper = np.atleast_2d(known.bounds).T
        if np.ptp(lower) or np.ptp(upper):
            raise KernelError(
                f"Bounds of scikit-learn's {theirs} must be the same for every column, got "
                f"{known.bounds.tolist()}: give one pair."
            )
        equal = equal.bound(name, float(lower[0]), float(upper[0]))
    return equal
