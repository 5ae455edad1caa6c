"""The classes that files hold, and limits of their fields.

The kernels of `orthogp.kernels` and the families of `orthogp.features` are registered by being
listed there. Constructors check the mistakes of users; the checks here are for requests
that only a hostile file makes: tables beyond the memory, and parts that do not fit each other.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from itertools import combinations
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from orthogp import features as feature_families
from orthogp import kernels as kernel_classes
from orthogp.engines import Trial
from orthogp.errors import InputError
from orthogp.features import Features, MeanPrior, SeriesFeatures, VariationalFourier
from orthogp.features.harmonic import HarmonicSeries
from orthogp.features.inducing import PointTwoBlock
from orthogp.features.random import RandomSeries, RandomWaves
from orthogp.features.series import AdditiveSeries
from orthogp.features.vff import VariationalFourierSeries
from orthogp.inference import Certificate, Domain
from orthogp.inference.certificates import Guarantee
from orthogp.inference.likelihoods import LIKELIHOODS, resolve_likelihood
from orthogp.inference.separable import GAUSSIAN
from orthogp.kernels import (
    Categorical,
    Gamma,
    Kernel,
    LogNormal,
    Noise,
    On,
    OnSphere,
    Product,
    Sum,
)
from orthogp.kernels.base import ANGLE
from orthogp.kernels.terms import Term, component_kernels
from orthogp.kernels.transformed import Sphere, own_periods
from orthogp.learning.sketches import KeptRows, RowTotals, Sketch, totalled
from orthogp.statistics import (
    AdditiveStatistics,
    ComponentLattice,
    FourierStatistics,
    FrequencyLattice,
)
from orthogp.statistics.lattice import MAX_DIMS
from orthogp.stochastic.training import Progress, TrainingSettings
from orthogp.storage.codec import RefusedError, check_every, register

# The largest number of modes of a lattice of features, several times that of a fit.
_MOST_MODES = 2**20
# The largest index of a lattice, and the highest order of a feature.
_MOST_ORDER = 2**30
# The largest number of features of a family.
_MOST_FEATURES = 2**26
# The largest number of input columns.
MOST_COLUMNS = 2**20
# The largest number of parts of a sum or a product of kernels.
_MOST_PARTS = 4096
# The number of parts that kernels may have besides one for each column and each pair of columns.
_FEW_PARTS = 32
# The rounding of sums, relative to them.
_SLACK = 1e-6
# The largest factor by which the lattice of a component may be decimated.
_MOST_FACTOR = 2**20
# The largest length, and the inverse of the smallest, whose square is finite.
_MOST_LENGTH = 1e150

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]


def demand(fulfilled: Any, what: str, name: str = "") -> None:
    """Raise `RefusedError` unless something holds for all."""
    if not np.all(fulfilled):
        raise RefusedError(what, name)


def demand_shape(array: NDArray, shape: tuple[int | None, ...], name: str) -> None:
    """Raise `RefusedError` unless an array has a shape, in which `None` is any length."""
    fits = array.ndim == len(shape) and all(
        wanted in (None, got) for wanted, got in zip(shape, array.shape, strict=True)
    )
    shown = ", ".join("any" if n is None else str(n) for n in shape)
    demand(fits, f"must have shape ({shown}), got {array.shape}", name)


def demand_few_parts(kernel: Kernel, num_columns: int) -> None:
    """Raise `RefusedError` if a kernel has far more parts than columns and pairs of columns."""
    most = _FEW_PARTS + num_columns * (num_columns + 1) // 2
    number = sum(1 for _ in kernel.primitives())
    demand(number <= most, f"must have at most {most} parts, got {number}", "kernel")


def demand_components(kernel: Kernel, columns: NDArray, terms: tuple[tuple[int, ...], ...]) -> None:
    """Raise `RefusedError` unless a kernel is a sum over these columns, of those that it sees."""
    seen = all(c < len(columns) for term in terms for c in term)
    demand(seen, f"must see the {len(columns)} columns of the model", "kernel")
    component_kernels(kernel, [tuple(columns[list(term)]) for term in terms])


def _distinct_columns(columns: tuple[int, ...], name: str) -> None:
    good = columns and len(set(columns)) == len(columns)
    demand(good and min(columns) >= 0 and max(columns) < MOST_COLUMNS, "must be distinct", name)


# ---------------------------------------------------------------------- kernels


def _check_kernel(kernel: Kernel) -> None:
    """Check what holds for every kernel, those of users too."""
    parameters = kernel.parameters()
    for name, value in parameters.items():
        demand(np.isfinite(value), "must be finite", name)
        demand(np.greater(value, 0) | (name == "angle"), "must be positive", name)
    known = {*parameters, *(own for part, _ in kernel.primitives() for own in part.parameters())}
    fixed = kernel.fixed
    good = set(fixed) <= known and len(set(fixed)) == len(fixed)
    demand(good, f"must be some of {', '.join(sorted(known))}", "fixed")
    for told in (kernel.bounds, kernel.priors):
        free = {own[0] for own in told} <= known - {*fixed, ANGLE}
        demand(free, "must be of parameters that are learned", "bounds or priors")
    for name, lower, upper in kernel.bounds:
        demand(0 < lower < upper, f"must have 0 < lower < upper for {name}", "bounds")


def _check_own_kernel(kernel: Kernel) -> None:
    if isinstance(kernel, Sum | Product):
        number = len(kernel.terms if isinstance(kernel, Sum) else kernel.factors)
        demand(1 <= number <= _MOST_PARTS, f"must have 1 to {_MOST_PARTS} parts")
    if isinstance(kernel, On | OnSphere):
        _distinct_columns(kernel.dims, "dims")
    if isinstance(kernel, Sphere):
        demand(kernel.radius <= _MOST_LENGTH, f"must be at most {_MOST_LENGTH:g}", "radius")
    if isinstance(kernel, Categorical):
        good = 2 <= kernel.levels <= MOST_COLUMNS
        demand(good, f"must be from 2 to {MOST_COLUMNS}", "levels")


# ---------------------------------------------------------------------- features


def _check_features(features: Features) -> None:
    number = getattr(features, "num_features", 1)
    demand(1 <= number <= _MOST_FEATURES, f"must be from 1 to {_MOST_FEATURES}", "num_features")
    for name in ("centre", "spacing", "a", "r", "width", "input_sd", "lengthscale", "half_width"):
        value: Any = getattr(features, name, None)
        numbers = value is None or (np.asarray(value).dtype.kind in "fi" and np.ndim(value) <= 1)
        demand(numbers, "must be a number or one for each column", name)
    orders = getattr(features, "orders", None)
    if orders is not None:
        _check_orders(orders)
    lattice = getattr(features, "lattice", None)
    if isinstance(lattice, FrequencyLattice):
        _check_modes(lattice)
        indices = getattr(features, "indices", None)
        if indices is not None:
            _check_indices(indices, lattice)
    odd, weights = getattr(features, "odd", None), getattr(features, "weights", None)
    if isinstance(features, SeriesFeatures) and odd is not None and weights is not None:
        demand(len(odd) > 0, "must have a row for each feature", "weights")
        demand_shape(weights, (len(odd), len(features.indices)), "weights")
    for name in ("columns", "dims"):
        columns = getattr(features, name, None)
        if columns is not None:
            _check_parts(columns, len(features.parts), name)  # type: ignore[attr-defined]


def _check_modes(lattice: FrequencyLattice) -> None:
    modes = np.prod(2.0 * lattice.extent + 1)
    demand(modes <= _MOST_MODES, f"must span at most {_MOST_MODES} modes", "lattice")


def _check_indices(indices: Any, lattice: FrequencyLattice) -> None:
    """Demand indices on a lattice, index zero first."""
    demand(getattr(indices, "dtype", None) == np.int64, "must be whole numbers", "indices")
    demand_shape(indices, (None, lattice.num_dims), "indices")
    first = len(indices) > 0 and np.all(indices[0] == 0)
    # Not by absolute values: the smallest integer has none.
    on = np.all((indices <= lattice.extent) & (indices >= -lattice.extent))
    demand(first and on, "must lie on the lattice and begin with index zero", "indices")


def _check_orders(orders: Any) -> None:
    table = np.asarray(orders)
    good = table.ndim == 2 and table.dtype.kind == "i" and 1 <= table.shape[1] <= MAX_DIMS
    demand(
        good and table.size, "must have a row for each feature, a column for each input", "orders"
    )
    demand((table >= 0) & (table <= _MOST_ORDER), f"must be from 0 to {_MOST_ORDER}", "orders")
    if isinstance(orders, tuple):
        # The tables of a basis are as long as the highest order.
        far = "must not lie far beyond the number of features"
        demand(table.max() <= 4 * len(table) + 64, far, "orders")


def _check_parts(columns: tuple[tuple[int, ...], ...], number: int, name: str) -> None:
    demand(0 < number == len(columns), "must be columns for each part, at least one", name)
    for own in columns:
        _distinct_columns(own, name)
        demand(len(own) <= MAX_DIMS, f"must be 1 to {MAX_DIMS} columns each", name)


def _random_waves(
    normals: Annotated[Floats, "r d"],
    uniforms: Annotated[Floats, "r d"],
    centre: Annotated[Floats, "d"],
) -> RandomWaves:
    demand(normals.size > 0, "must have a row for each frequency", "normals")
    demand((uniforms > 0) & (uniforms <= 1), "must lie above zero, and not above one", "uniforms")
    return RandomWaves(normals, uniforms, centre)


def _harmonic_series(
    lattice: FrequencyLattice, orders: NDArray[np.int64], constrained: bool
) -> HarmonicSeries:
    _check_modes(lattice)
    _check_orders(orders)
    demand_shape(orders, (None, lattice.num_dims), "orders")
    demand((orders >= 1) & (orders <= lattice.extent), "must lie on the lattice", "orders")
    return HarmonicSeries.from_orders(lattice, orders, constrained)


def _fourier_series(
    lattice: FrequencyLattice, orders: tuple[tuple[int, ...], ...]
) -> SeriesFeatures:
    _check_modes(lattice)
    _check_orders(orders)
    demand(len(orders[0]) == lattice.num_dims, "must be one for each column", "orders")
    return VariationalFourier(len(orders), orders=orders).on(lattice)


def _additive_series(
    lattice: FrequencyLattice,
    parts: tuple[SeriesFeatures, ...],
    dims: tuple[tuple[int, ...], ...],
) -> AdditiveSeries:
    _check_modes(lattice)
    _check_parts(dims, len(parts), "dims")
    for part, own in zip(parts, dims, strict=True):
        fits = max(own) < lattice.num_dims and len(own) == part.lattice.num_dims
        demand(fits, "must be columns of the lattice", "dims")
        demand(part.lattice.extent <= lattice.extent[list(own)], "must lie on it", "parts")
    return AdditiveSeries.join(lattice, parts, dims)


# ---------------------------------------------------------------------- statistics


def _check_lattice(lattice: FrequencyLattice) -> None:
    demand(lattice.extent <= _MOST_ORDER, f"must be at most {_MOST_ORDER}", "extent")
    far = np.abs(np.log(lattice.spacing)) <= np.log(_MOST_LENGTH)
    demand(far, f"must be a frequency from {1 / _MOST_LENGTH:g} to {_MOST_LENGTH:g}", "spacing")


def _half(sums: Complexes) -> Complexes:
    """Return one of each pair of conjugates at ±t, index zero first, (columns, half)."""
    flat = sums.reshape(len(sums), int(np.prod(sums.shape[1:])))
    return np.ascontiguousarray(flat[:, flat.shape[1] // 2 :])


def whole(half: Complexes, shape: tuple[int, ...]) -> Complexes:
    """Return the sums at all indices, zero in the middle of every axis."""
    return np.concatenate([half[:, :0:-1].conj(), half], axis=1).reshape(len(half), *shape)


def _halved(statistics: FourierStatistics) -> dict[str, Any]:
    return {
        **vars(statistics),
        "point_sums": _half(statistics.point_sums[None])[0],
        "target_sums": _half(statistics.target_sums),
        "covariate_sums": _half(statistics.covariate_sums),
    }


def _fourier_statistics(**values: Any) -> FourierStatistics:
    held = FourierStatistics(**values)
    lattice, points = held.lattice, held.point_sums
    demand(held.rows >= 0, "must be at least 0", "rows")
    demand(held.count >= 0, "must be at least 0", "count")
    # The sums themselves, which are there to be counted, say how large a lattice may be.
    demand_shape(points, (None,), "point_sums")
    counted = 2 * len(points) - 1 == np.prod(4.0 * lattice.extent + 1)
    demand(counted, "has not as many sums as its lattice", "point_sums")
    half = (int(np.prod(lattice.target_shape)) + 1) // 2
    demand(held.yy.ndim == 1 and len(held.yy), "must be at least one number", "yy")
    demand(held.covariate_gram.ndim, "must be a matrix", "covariate_gram")
    p, q = held.num_targets, held.num_covariates
    demand_shape(held.target_sums, (p, half), "target_sums")
    demand_shape(held.covariate_sums, (q, half), "covariate_sums")
    demand_shape(held.covariate_gram, (q, q), "covariate_gram")
    demand_shape(held.covariate_targets, (q, p), "covariate_targets")
    # No rows have larger sums than their number, or than their squares allow.
    number = (1 + _SLACK) * held.count
    numbers = abs(points[0] - held.count) <= _SLACK * held.count and np.all(abs(points) <= number)
    demand(numbers, "must not exceed the number of rows", "point_sums")
    most = np.sqrt(number * np.maximum(held.yy, 0.0)) * (1 + _SLACK)
    within = np.all(abs(held.target_sums) <= most[:, None] + _SLACK * most.max())
    demand(within, "must not exceed what squares of targets allow", "target_sums")
    return replace(
        held,
        point_sums=whole(points[None], lattice.point_shape)[0],
        target_sums=whole(held.target_sums, lattice.target_shape),
        covariate_sums=whole(held.covariate_sums, lattice.target_shape),
    )


def _check_component(component: ComponentLattice) -> None:
    _distinct_columns(component.columns, "columns")
    fits = len(component.columns) == component.lattice.num_dims
    demand(fits, "must be one for each axis of the lattice", "columns")
    _check_indices(component.indices, component.lattice)


def _with_cross_sums(statistics: AdditiveStatistics) -> dict[str, Any]:
    pairs = combinations(range(len(statistics.parts)), 2)
    return {**vars(statistics), "cross": [statistics.cross[pair] for pair in pairs]}


def _additive_statistics(
    components: tuple[ComponentLattice, ...],
    parts: tuple[FourierStatistics, ...],
    cross: tuple[Floats, ...],
) -> AdditiveStatistics:
    """Return the statistics; `cross` has one block for each pair i < j of components."""
    columns = {(part.num_targets, part.num_covariates) for part in parts}
    same = len(parts) == len(components) and len(columns) == 1
    demand(same, "must be one or more, with the same targets", "parts")
    lattices = [own.lattice == part.lattice for own, part in zip(components, parts, strict=True)]
    demand(all(lattices), "must be on the lattices of the components", "parts")
    pairs = list(combinations(range(len(parts)), 2))
    demand(len(cross) == len(pairs), "must be one block for each pair of components", "cross")
    sizes = [2 * len(own.indices) - 2 for own in components]
    for (i, j), block in zip(pairs, cross, strict=True):
        demand_shape(block, (sizes[i], sizes[j]), "cross")
    return AdditiveStatistics(components, parts, dict(zip(pairs, cross, strict=True)))


# ---------------------------------------------------------------------- sketches


def _check_domain(domain: Domain) -> None:
    lower, upper = domain
    demand(lower.ndim == 1 and lower.shape == upper.shape, "must have edges for each column")
    demand(len(lower) > 0 and np.all(lower <= upper), "must have lower edges below the upper ones")


def _check_mean(mean: MeanPrior) -> None:
    demand(mean.offset_variance >= 0, "must be at least 0", "offset_variance")
    demand(mean.slope_variance >= 0, "must be at least 0", "slope_variance")
    demand(mean.origin.ndim == 1 and np.isfinite(mean.origin), "must be finite", "origin")
    # An infinite width is no slope.
    demand(mean.width.shape == mean.origin.shape, "must be one for each column", "width")
    demand(mean.width > 0, "must be positive", "width")
    q = mean.num_covariates
    demand(0 <= q <= len(mean.origin), "must be no more than there are columns", "num_covariates")
    demand(not q or mean.slope_variance > 0, "must be positive with covariates", "slope_variance")


def check_mean_columns(mean: MeanPrior, num_dims: int, name: str) -> None:
    """Refuse a mean function that is not of the inputs, of the covariates, or of both."""
    q = mean.num_covariates
    sizes = (q, num_dims + q) if q else (num_dims,)
    demand(len(mean.origin) in sizes, f"must be of {num_dims} columns and its covariates", name)


def _check_sketch(sketch: Sketch) -> None:
    extent, mean, statistics = sketch.extent, sketch.mean, sketch.statistics
    num_dims = len(extent.lower)
    demand(np.isfinite(extent), "must be finite", "extent")
    check_mean_columns(mean, num_dims, "mean")
    demand_shape(sketch.shift, (statistics.num_targets,), "shift")
    known = sketch.likelihood in LIKELIHOODS
    demand(known, f"must be one of {', '.join(LIKELIHOODS)}", "likelihood")
    family = sketch.family
    if isinstance(sketch, KeptRows):
        return
    number = 0 if family is None else len(family.constants(*np.ones((3, 1))))
    demand_shape(sketch.constants, (number,), "constants")
    demand(np.isfinite(sketch.constants), "must be finite", "constants")
    demand(family is None or statistics.joint, "must be on one lattice", "likelihood")
    known = statistics.num_covariates == mean.num_slopes
    demand(known, "must have sums for the slopes of the mean function", "statistics")
    some = statistics.rows > 0 and statistics.count > 0
    demand(some, "must be of at least one row", "statistics")
    demand(statistics.joint == sketch.joint, "must be one for each lattice", "terms")
    if statistics.joint:
        fits = statistics.parts[0].lattice.num_dims == num_dims
        demand(fits, f"must have {num_dims} columns as the extent has", "statistics")
        return
    number = len(sketch.statistics.components)
    demand(len(sketch.terms) == len(sketch.factors) == number, "must be one for each", "terms")
    for term, own, factors in zip(
        sketch.terms, sketch.statistics.components, sketch.factors, strict=True
    ):
        demand(term.columns == own.columns, "must be on the columns of the statistics", "terms")
        demand(max(term.columns) < num_dims, f"must be of {num_dims} columns", "terms")
        fits = len(factors) == len(own.columns) and all(factors)
        demand(fits, "must be one list for each column", "factors")
        within = all(1 <= factor <= _MOST_FACTOR for axis in factors for factor in axis)
        demand(within, f"must be from 1 to {_MOST_FACTOR}", "factors")


def _kept_sketch(sketch: Sketch) -> dict[str, Any]:
    of_terms = ("terms", "factors", "repeats") if sketch.joint else ()
    if sketch.likelihood == GAUSSIAN:
        of_terms = (*of_terms, "likelihood", "constants")
    return {name: value for name, value in vars(sketch).items() if name not in of_terms}


def _term(columns: tuple[int, ...], kernel: Kernel) -> Term:
    _distinct_columns(columns, "columns")
    demand(len(columns) <= MAX_DIMS, f"must be at most {MAX_DIMS}", "columns")
    kernel.check(len(columns))
    return Term(columns, kernel, own_periods(kernel, len(columns)))


def _kept_rows(
    extent: Domain,
    mean: MeanPrior,
    shift: Annotated[Floats, "p"],
    X: Annotated[Floats, "n d"],
    y: Annotated[Floats, "n c"],
    weights: Annotated[Floats, "n"],
    likelihood: str = GAUSSIAN,
) -> KeptRows:
    wide = X.shape[1] == len(extent.lower) + mean.num_covariates
    demand(wide, "must have the columns of the extent, and the covariates", "X")
    # Exposures or trials stand behind the targets.
    sizes = y.shape[1] - len(shift)
    known = (0,) if likelihood == GAUSSIAN else (0, 1)
    demand(sizes in known, "must have a column for each target", "y")
    inputs = X[:, : len(extent.lower)]
    demand(extent.outside(inputs) is None, "must hold all rows", "extent")
    several = len(X) > 1 and y.shape[1] > 0 and np.all((weights > 1e-200) & (weights < 1e200))
    demand(several, "must be at least two rows of positive weight", "weights")
    known = likelihood in LIKELIHOODS
    demand(known, f"must be one of {', '.join(LIKELIHOODS)}", "likelihood")
    try:
        totals = RowTotals.of(*totalled(y, weights, resolve_likelihood(likelihood)), shift)
    except InputError as error:
        raise RefusedError("must be targets of the likelihood", "y") from error
    return KeptRows(totals, extent, mean, shift, X, y, weights, likelihood=likelihood)


def _kept_rows_of(kept: KeptRows) -> dict[str, Any]:
    # As files were before other likelihoods kept rows, where they can be.
    names = ["extent", "mean", "shift", "X", "y", "weights"]
    names += [] if kept.likelihood == GAUSSIAN else ["likelihood"]
    return {name: getattr(kept, name) for name in names}


# ---------------------------------------------------------------------- all of them


def _certificate(rounding: float = 0.0, **values: Any) -> Certificate:
    """Return a certificate; older files hold the bounds only, and what rounding may add to them."""
    found = Certificate(**values)
    lower, upper = found.lower, found.upper
    demand(found.kind in ("exact", "bound", "estimate"), "must be of a known kind", "kind")
    demand(not lower > upper + 1e-6 * abs(upper), "must not exceed the upper bound", "lower")
    smallest = min(found.mean_error, found.variance_error)
    demand(not smallest < 0, "must not be negative", "mean_error")
    if "mean_error" not in values:
        found = Certificate(**Certificate.from_gap(lower, upper, rounding)._asdict() | values)
    return found


def _register_public(package: Any, base: type, check: Any) -> None:
    """Register all classes that a package imports and that objects can be made of."""
    for kind in vars(package).values():
        if isinstance(kind, type) and issubclass(kind, base) and not inspect.isabstract(kind):
            check_every(register(kind), check)


_register_public(kernel_classes, Kernel, _check_own_kernel)
check_every(register(Sphere), _check_own_kernel)
register(LogNormal)
register(Gamma)
register(Noise)
_register_public(feature_families, Features, _check_features)
register(RandomSeries)
register(RandomWaves, make=_random_waves)
register(PointTwoBlock)
register(HarmonicSeries, make=_harmonic_series)
register(VariationalFourierSeries, make=_fourier_series)
register(AdditiveSeries, make=_additive_series)
register(FrequencyLattice)
register(FourierStatistics, make=_fourier_statistics, keep=_halved)
register(ComponentLattice)
register(AdditiveStatistics, make=_additive_statistics, keep=_with_cross_sums)
register(Domain, infinite=("lower", "upper"))
register(MeanPrior, infinite=("width",))
register(Term, make=_term)
# Files of several components call it by another name, too.
register(Sketch, "AdditiveSketch")
register(Sketch, keep=_kept_sketch)
register(KeptRows, make=_kept_rows, keep=_kept_rows_of)
register(TrainingSettings)
register(Trial, infinite=("score",))
register(Progress, infinite=("elbo", "standard_error"))
register(Certificate, make=_certificate, keep=Certificate._asdict, infinite=Certificate._fields)
register(Guarantee)

check_every(Kernel, _check_kernel)
check_every(FrequencyLattice, _check_lattice)
check_every(ComponentLattice, _check_component)
check_every(Domain, _check_domain)
check_every(MeanPrior, _check_mean)
check_every(Sketch, _check_sketch)
