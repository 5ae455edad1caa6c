r"""Everything that inference needs to know of a data set, summed in one pass.

With weights w_n (one unless given) and the lattice ω_t, a joint model has

    point_sums[t]  = Σ w_n e^{iω_t·(x_n−x₀)}        |t_d| ≤ 2K_d
    target_sums[t] = Σ w_n y_n e^{iω_t·(x_n−x₀)}    |t_d| ≤ K_d
    count = Σ w_n,   yy = Σ w_n y_n²

and f(x) = Σ_j f_j(x_{columns_j}) has those of each component, on lattices of their own, and for
each pair, at the indices that are kept,

    cross    Σ w_n (cos, sin)(ω_t·x_j) (cos, sin)(ω_t'·x_j')     for t, t' ≠ 0

The sums know no kernel. Data sets on the same lattices add and subtract, and hyperparameters,
kernels and feature sets change without touching the rows again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from orthogp.errors import InputError, LatticeMismatchError, check_finite
from orthogp.persistence import Storable
from orthogp.rows import Rows, rows_to_sum
from orthogp.statistics.lattice import ComponentLattice, FrequencyLattice
from orthogp.statistics.nufft import (
    CHUNK_ROWS,
    TOLERANCE,
    ColumnSums,
    Transforms,
    chunks,
    column_sizes,
    cross_sums,
)

#: Maps a chunk of X to columns whose sums are kept too, (n, q).
Covariates = Callable[[NDArray], NDArray[np.float64]]


class RealSums(NamedTuple):
    """The sums of products of cosines and sines, before any kernel scales them.

    The columns are cos(ω_t·x) for every t of a half set, sin(ω_t·x) for every t but zero, and the
    covariates.
    """

    gram: NDArray[np.float64]
    projection: NDArray[np.float64]


class _Sums(Storable, ABC):
    """Sums of one component, or of several: sums of data sets on the same lattices combine."""

    #: Whether there is one component of all columns, at all indices of its lattice.
    joint: ClassVar[bool]

    #: The sums of each component: a field of one class, a property of the other.
    parts: Any

    def __add__(self, other: Self) -> Self:
        """Return the statistics of both data sets together."""
        if type(other) is not type(self):
            return NotImplemented
        return self._combined(other, 1.0)

    def __sub__(self, other: Self) -> Self:
        """Return the statistics with the rows of `other` taken out."""
        if type(other) is not type(self):
            return NotImplemented
        return self._combined(other, -1.0)

    @abstractmethod
    def _combined(self, other: Any, sign: float) -> Self:
        """Return the sums plus `sign` times others of the same columns, on the same lattices."""

    @property
    def num_targets(self) -> int:
        """The number p of target columns."""
        return len(self.parts[0].yy)

    @property
    def num_covariates(self) -> int:
        """The number q of covariate columns."""
        return len(self.parts[0].covariate_gram)

    @property
    def target_totals(self) -> NDArray[np.float64]:
        """Σ w_n y_n for each target, (p,)."""
        first = self.parts[0]
        return first.target_sums[(slice(None), *first.lattice.extent)].real


@dataclass(frozen=True, eq=False)
class FourierStatistics(_Sums):
    """The sums of a data set on a frequency lattice; see the module's docstring.

    Attributes
    ----------
    lattice : FrequencyLattice
    rows : float
        The number of rows with positive weight.
    count : float
        Σ w_n.
    log_weights : float
        Σ log w_n over the rows with positive weight.
    point_sums : (4K+1, …), complex
    target_sums : (p, 2K+1, …), complex
    yy : (p,)
    covariate_sums : (q, 2K+1, …), complex
        Σ w_n c_nj e^{iω_t·(x_n−x₀)} for the covariates c, if any.
    covariate_gram, covariate_targets : (q, q), (q, p)
        Σ w_n c_ni c_nj and Σ w_n c_ni y_nj.
    """

    joint = True

    lattice: FrequencyLattice
    rows: float
    count: float
    log_weights: float
    point_sums: NDArray[np.complex128]
    target_sums: NDArray[np.complex128]
    yy: NDArray[np.float64]
    covariate_sums: NDArray[np.complex128]
    covariate_gram: NDArray[np.float64]
    covariate_targets: NDArray[np.float64]

    @classmethod
    def from_data(
        cls,
        lattice: FrequencyLattice,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        target_shift: ArrayLike = 0.0,
        covariates: Covariates | None = None,
        tolerance: float = TOLERANCE,
        num_threads: int | None = None,
        chunk_rows: int = CHUNK_ROWS,
    ) -> FourierStatistics:
        """Return the statistics of the rows (X, y), in one pass, accumulated in double precision.

        Parameters
        ----------
        X : (n, d)
            Columns behind those of the lattice are for `covariates` alone.
        y : (n,) or (n, p)
        sample_weight : (n,), optional
            Weights ≥ 0; rows of weight zero are as good as absent.
        target_shift : float or (p,)
            Subtracted from y, so that a large mean does not cost the sums their digits.
        covariates : callable, optional
            Maps a chunk of X to (n, q) columns whose sums are kept too.
        tolerance : float
            Relative error of the transforms.
        num_threads : int, optional
            All available cores unless given.
        """
        rows = rows_to_sum(X, y, sample_weight)
        wide = covariates is not None and rows.X.shape[-1] > lattice.num_dims
        if rows.X.ndim != 2 or not (wide or rows.X.shape[1] == lattice.num_dims):
            raise InputError(
                f"X must have {lattice.num_dims} columns as the lattice has, got shape "
                f"{rows.X.shape}."
            )
        shift = np.asarray(target_shift, dtype=np.float64)
        transforms = Transforms(tolerance, num_threads, chunk_rows)
        columns = range(lattice.num_dims) if wide else None
        return _Pass(rows, shift, covariates, transforms).statistics(lattice, columns)

    @classmethod
    def from_dask(
        cls,
        data: Any,
        target: Any,
        *,
        inputs: Sequence[Any] | None = None,
        weights: Any = None,
        lattice: FrequencyLattice | None = None,
        scheduler: Any = None,
        **settings: Any,
    ) -> FourierStatistics:
        """Return the statistics of a dask array or data frame, summed where its chunks are.

        Only sums travel; the chunks that the rows are cut into change the rounding alone.

        Parameters
        ----------
        data : dask array (n, d), or dask data frame
        target : dask array (n,) or (n, p), or columns of `data` by number or name
        inputs : sequence, optional
            The columns of X; all others unless given.
        weights : dask array (n,), or a column of `data`, optional
        lattice : FrequencyLattice, optional
            Unless given, a first pass finds the extent of the data, and the lattice is as a model
            would choose it.
        scheduler : str or distributed.Client, optional
            The scheduler's address, or a client; dask's current scheduler unless given.
        **settings
            Of `from_data`; `num_threads` is one unless given.
        """
        from orthogp.files.cluster import collection_chunks, sum_chunks

        chunks = collection_chunks(data, target, inputs, weights)
        summed = partial(cls.from_data, **{"num_threads": 1, **settings})
        return sum_chunks(chunks, summed, lattice, scheduler)

    @property
    def parts(self) -> tuple[FourierStatistics, ...]:  # type: ignore[override]
        """The statistics of each component of a model: of a joint one, these."""
        return (self,)

    @property
    def components(self) -> tuple[ComponentLattice, ...]:
        """A joint model's only component: all columns, all modes."""
        columns = tuple(range(self.lattice.num_dims))
        return (ComponentLattice(columns, self.lattice, self.lattice.half_indices()),)

    def _combined(self, other: FourierStatistics, sign: float) -> FourierStatistics:
        if self.lattice != other.lattice:
            raise LatticeMismatchError(
                "Statistics combine on one lattice only, got "
                f"{self.lattice} and {other.lattice}: sum both data sets on the same lattice."
            )
        if self.num_targets != other.num_targets or self.num_covariates != other.num_covariates:
            raise LatticeMismatchError(
                "Statistics combine with the same columns only, got "
                f"{self.num_targets} and {other.num_targets} targets, "
                f"{self.num_covariates} and {other.num_covariates} covariates."
            )
        sums = {
            field.name: getattr(self, field.name) + sign * getattr(other, field.name)
            for field in fields(self)
            if field.name != "lattice"
        }
        return FourierStatistics(lattice=self.lattice, **sums)

    def decimate(self, factor: ArrayLike) -> FourierStatistics:
        """Return the statistics on every `factor`-th frequency: a period as much shorter."""
        factors = np.broadcast_to(np.asarray(factor, dtype=np.int64), self.lattice.extent.shape)
        return self._at(self.lattice.decimate(factors), factors)

    def within(self, extent: ArrayLike) -> FourierStatistics:
        """Return the statistics at the indices up to a smaller extent."""
        lattice = FrequencyLattice(self.lattice.spacing, extent, self.lattice.centre)
        return self._at(lattice, np.ones(lattice.num_dims, dtype=int))

    def _at(self, lattice: FrequencyLattice, factors: ArrayLike) -> FourierStatistics:
        """Return the sums on a lattice whose index k is index `factors` · k of the present one."""
        # Sums of points reach up to twice the extent; index zero is in the middle of each axis.
        points, inner = (
            tuple(
                slice(n * (k - f * own), n * (k + f * own) + 1, f)
                for k, own, f in zip(
                    self.lattice.extent, lattice.extent, np.asarray(factors), strict=True
                )
            )
            for n in (2, 1)
        )
        return replace(
            self,
            lattice=lattice,
            point_sums=self.point_sums[points],
            target_sums=self.target_sums[(slice(None), *inner)],
            covariate_sums=self.covariate_sums[(slice(None), *inner)],
        )

    def thinned(self, steps: Sequence[ArrayLike]) -> FourierStatistics:
        """Return the statistics with the only component's lattice decimated."""
        return self.decimate(steps[0])

    def emptied(self) -> FourierStatistics:
        """Return the lattice and the totals, without the sums on the lattice."""
        return replace(
            self,
            point_sums=self.point_sums[..., :0].copy(),
            target_sums=self.target_sums[..., :0].copy(),
            covariate_sums=self.covariate_sums[..., :0].copy(),
        )

    def standardised(self, offset: ArrayLike, scale: ArrayLike) -> FourierStatistics:
        """Return the statistics of (y − offset)/scale, without touching the rows."""
        offset = np.broadcast_to(np.asarray(offset, dtype=float), self.yy.shape)
        scale = np.broadcast_to(np.asarray(scale, dtype=float), self.yy.shape)
        inner = tuple(slice(k, 3 * k + 1) for k in self.lattice.extent)
        column = (slice(None), *(None,) * self.lattice.num_dims)
        shifted = self.target_sums - offset[column] * self.point_sums[inner]
        covariate_totals = self.covariate_sums[(slice(None), *self.lattice.extent)].real
        yy = self.yy - 2 * offset * self.target_totals + offset**2 * self.count
        return replace(
            self,
            target_sums=shifted / scale[column],
            yy=np.maximum(yy, 0.0) / scale**2,
            covariate_targets=(self.covariate_targets - np.outer(covariate_totals, offset)) / scale,
        )

    def real_sums(self, indices: NDArray[np.int64]) -> RealSums:
        """Return the sums of products of cosines and sines on a half set of indices.

        cos_a cos_b, sin_a sin_b and cos_a sin_b are half sums and differences of the point sums at
        a − b and a + b.

        Parameters
        ----------
        indices : (s, d)
            One of each pair ±t, index zero first.
        """
        points = self.point_sums.ravel()
        strides = np.array(self.point_sums.strides) // self.point_sums.itemsize
        if not self.point_sums.flags.c_contiguous:
            points = np.ascontiguousarray(self.point_sums).ravel()
            strides = np.array(np.empty(self.point_sums.shape, dtype=np.int8).strides)
        middle = int(strides @ (2 * self.lattice.extent))
        linear = indices @ strides
        s, q = len(indices), self.num_covariates
        gram = np.empty((2 * s - 1 + q, 2 * s - 1 + q), order="F")
        sines = slice(s, 2 * s - 1)
        for part in chunks(s, 256):
            minus = points[middle - linear[:, None] + linear[None, part]]
            plus = points[middle + linear[:, None] + linear[None, part]]
            gram[:s, part] = (minus.real + plus.real) / 2
            gram[sines, part] = ((plus.imag - minus.imag) / 2)[1:]
            sine_part = slice(max(part.start, 1) - 1 + s, part.stop - 1 + s)
            first = 1 if part.start == 0 else 0
            gram[sines, sine_part] = ((minus.real - plus.real) / 2)[1:, first:]
        gram[:s, sines] = gram[sines, :s].T
        at = tuple((indices + self.lattice.extent).T)
        targets = self.target_sums[(slice(None), *at)]
        projection = np.concatenate(
            [targets.real.T, targets.imag.T[1:], self.covariate_targets], axis=0
        )
        if q:
            covariates = self.covariate_sums[(slice(None), *at)]
            gram[:s, 2 * s - 1 :] = covariates.real.T
            gram[sines, 2 * s - 1 :] = covariates.imag.T[1:]
            gram[2 * s - 1 :, : 2 * s - 1] = gram[: 2 * s - 1, 2 * s - 1 :].T
            gram[2 * s - 1 :, 2 * s - 1 :] = self.covariate_gram
        return RealSums(gram, projection)


class _Pass(NamedTuple):
    """Rows to be summed, their targets less a shift, and columns beside the targets."""

    rows: Rows
    shift: NDArray[np.float64]
    covariates: Covariates | None
    transforms: Transforms

    def statistics(
        self, lattice: FrequencyLattice, columns: Sequence[int] | None = None
    ) -> FourierStatistics:
        """Return the sums on a lattice over some columns of X, or over all of them."""
        X, targets, weights = self.rows[:3]
        num_targets, chunk_rows = targets.shape[1], self.transforms.chunk_rows
        num_covariates = 0 if self.covariates is None else self.covariates(X[:1]).shape[1]
        num_columns = 1 + num_targets + num_covariates
        sums = ColumnSums(
            lattice,
            num_columns,
            tolerance=self.transforms.tolerance,
            num_threads=self.transforms.num_threads,
            max_rows=min(len(X), chunk_rows),
        )
        count, rows, log_weights = 0.0, 0.0, 0.0
        products = np.zeros((num_columns - 1, num_columns - 1))
        for part in chunks(len(X), chunk_rows):
            values = np.asarray(targets[part], dtype=np.float64)
            if self.shift.any():
                values = values - self.shift
            if self.covariates is not None:
                values = np.concatenate([values, self.covariates(X[part])], axis=1)
            weighted, chunk_weights = values, None
            chunk_count = num_used = float(len(values))
            if weights is not None:
                chunk_weights = np.asarray(weights[part], dtype=np.float64)
                positive = chunk_weights[chunk_weights > 0]
                weighted = chunk_weights[:, None] * values
                chunk_count, num_used = float(chunk_weights.sum()), len(positive)
                log_weights += np.log(positive).sum()
            # Not values.T @ weighted: BLAS threads spin for a while after a call, on the cores
            # that the next transform needs, and its time then multiplies.
            own = np.einsum("ni,nj->ij", values, weighted)
            count, rows, products = count + chunk_count, rows + num_used, products + own
            inputs = X[part] if columns is None else X[part][:, list(columns)]
            sums.add(inputs, [1.0, *values.T], chunk_weights, column_sizes(own, chunk_count))
        if not np.isfinite(products).all():
            check_finite(targets, "y")
            raise InputError("y is too large: the sum of its squares overflows; rescale it.")
        totals = sums.totals()
        inner, p = tuple(slice(k, 3 * k + 1) for k in lattice.extent), num_targets
        return FourierStatistics(
            lattice=lattice,
            rows=float(rows),
            count=count,
            log_weights=float(log_weights),
            point_sums=totals[0],
            target_sums=totals[(slice(1, p + 1), *inner)].copy(),
            yy=np.diag(products)[:p].copy(),
            covariate_sums=totals[(slice(p + 1, None), *inner)].copy(),
            covariate_gram=products[p:, p:].copy(),
            covariate_targets=products[p:, :p].copy(),
        )


# Rows transformed at once: large enough to keep the transforms busy, small beside the sums.
_CHUNK_ROWS = 2**19


@dataclass(frozen=True, eq=False)
class AdditiveStatistics(_Sums):
    """The sums of a data set for the components of an additive model; see the module's docstring.

    Attributes
    ----------
    components : tuple of ComponentLattice
    parts : tuple of FourierStatistics
        Each component's own sums.
    cross : dict of (i, j) to (2s_i−2, 2s_j−2)
        For i < j, the products of the components' cosines and sines at their kept indices.
    """

    joint = False

    components: tuple[ComponentLattice, ...]
    parts: tuple[FourierStatistics, ...]
    cross: dict[tuple[int, int], NDArray[np.float64]]

    @classmethod
    def from_data(
        cls,
        components: Sequence[ComponentLattice],
        rows: Rows,
        *,
        target_shift: ArrayLike = 0.0,
        covariates: Covariates | None = None,
        num_threads: int | None = None,
        chunk_rows: int = _CHUNK_ROWS,
    ) -> AdditiveStatistics:
        """Return the statistics of the rows; parameters as in `FourierStatistics`."""
        components = tuple(components)
        if not components:
            raise InputError("Additive statistics need at least one component.")
        rows, transforms = rows_to_sum(*rows[:3]), Transforms(TOLERANCE, num_threads, chunk_rows)
        summed = _Pass(rows, np.asarray(target_shift, dtype=np.float64), covariates, transforms)
        parts = tuple(summed.statistics(own.lattice, own.columns) for own in components)
        return cls(components, parts, cross_sums(components, rows.X, rows.weights, transforms))

    @property
    def rows(self) -> float:
        """The number of rows with positive weight."""
        return self.parts[0].rows

    @property
    def count(self) -> float:
        """Σ w_n."""
        return self.parts[0].count

    @property
    def log_weights(self) -> float:
        """Σ log w_n over the rows with positive weight."""
        return self.parts[0].log_weights

    @property
    def yy(self) -> NDArray[np.float64]:
        """Σ w_n y_n² for each target, (p,)."""
        return self.parts[0].yy

    def _combined(self, other: AdditiveStatistics, sign: float) -> AdditiveStatistics:
        if self.components != other.components:
            raise LatticeMismatchError(
                "Additive statistics combine for the same components, on the same lattices, only: "
                "sum both data sets on the same lattices."
            )
        pairs = zip(self.parts, other.parts, strict=True)
        return AdditiveStatistics(
            self.components,
            tuple(own._combined(its, sign) for own, its in pairs),
            {pair: own + sign * other.cross[pair] for pair, own in self.cross.items()},
        )

    def standardised(self, offset: ArrayLike, scale: ArrayLike) -> AdditiveStatistics:
        """Return the statistics of (y − offset)/scale, without touching the rows."""
        parts = tuple(part.standardised(offset, scale) for part in self.parts)
        return replace(self, parts=parts)

    def emptied(self) -> AdditiveStatistics:
        """Return the lattices and the totals, without the sums on the lattices."""
        return replace(self, parts=tuple(part.emptied() for part in self.parts), cross={})

    def thinned(self, steps: Sequence[ArrayLike]) -> AdditiveStatistics:
        """Return the statistics on every `steps[j]`-th frequency of component j.

        Of the kept indices the multiples of the steps remain.
        """
        kept = [own.staying(step) for own, step in zip(self.components, steps, strict=True)]
        cross = {
            (i, j): block
            if len(kept[i]) == block.shape[0] and len(kept[j]) == block.shape[1]
            else block[np.ix_(kept[i], kept[j])]
            for (i, j), block in self.cross.items()
        }
        return AdditiveStatistics(
            tuple(own.decimate(step) for own, step in zip(self.components, steps, strict=True)),
            tuple(part.decimate(step) for part, step in zip(self.parts, steps, strict=True)),
            cross,
        )

    def real_sums(self, indices: Sequence[NDArray[np.int64]]) -> RealSums:
        """Return the sums of products of all real columns.

        The columns are the constant, then for each component the cosines and the sines at its
        indices but zero, then the covariates.

        Parameters
        ----------
        indices : sequence of (s, d)
            A subset of each component's kept indices, index zero first.
        """
        if len(self.parts) == 1:
            return self.parts[0].real_sums(indices[0])
        positions = [
            own.positions(chosen) for own, chosen in zip(self.components, indices, strict=True)
        ]
        sizes = [2 * len(chosen) - 2 for chosen in indices]
        starts = np.cumsum([1, *sizes])
        size, q = int(starts[-1]), self.num_covariates
        gram = np.empty((size + q, size + q), order="F")
        projection = np.empty((size + q, self.num_targets))
        gram[0, 0] = self.count
        projection[0] = self.target_totals
        for j, (part, chosen) in enumerate(zip(self.parts, indices, strict=True)):
            own = part.real_sums(chosen)
            at, m = slice(starts[j], starts[j + 1]), sizes[j]
            # Cosine zero is the constant, which all components share.
            gram[at, at] = own.gram[1 : m + 1, 1 : m + 1]
            gram[at, 0] = gram[0, at] = own.gram[1 : m + 1, 0]
            projection[at] = own.projection[1 : m + 1]
            if q:
                gram[at, size:] = own.gram[1 : m + 1, m + 1 :]
                gram[size:, at] = gram[at, size:].T
        if q:
            first = self.parts[0]
            totals = first.covariate_sums[(slice(None), *first.lattice.extent)].real
            gram[0, size:] = gram[size:, 0] = totals
            gram[size:, size:] = first.covariate_gram
            projection[size:] = first.covariate_targets
        for (i, j), block in self.cross.items():
            rows, columns = slice(starts[i], starts[i + 1]), slice(starts[j], starts[j + 1])
            gram[rows, columns] = block[np.ix_(positions[i], positions[j])]
            gram[columns, rows] = gram[rows, columns].T
        return RealSums(gram, projection)

    def residual_sums(
        self, indices: Sequence[NDArray[np.int64]], z: NDArray[np.float64]
    ) -> list[NDArray[np.float64]]:
        """Return Σ w_n (y_n − f(x_n)) (cos, sin)(ω_t·x_n) at all kept indices but zero.

        Parameters
        ----------
        indices : sequence of (s, d)
        z : (m, p)
            f is the series with these multiples of the columns of `real_sums(indices)`.
        """
        positions = [
            own.positions(chosen) for own, chosen in zip(self.components, indices, strict=True)
        ]
        edges = np.cumsum([1, *(len(own) for own in positions)])
        waves = [z[a:b] for a, b in pairwise(edges)]
        result = []
        for j, (part, component) in enumerate(zip(self.parts, self.components, strict=True)):
            own = part.real_sums(component.indices)
            m = 2 * len(component.indices) - 2
            sums = own.projection[1 : m + 1] - np.outer(own.gram[1 : m + 1, 0], z[0])
            sums -= own.gram[1 : m + 1, 1 + positions[j]] @ waves[j]
            sums -= own.gram[1 : m + 1, m + 1 :] @ z[edges[-1] :]
            for i, at in enumerate(positions):
                if i < j:
                    sums -= self.cross[i, j][at].T @ waves[i]
                elif i > j:
                    sums -= self.cross[j, i][:, at] @ waves[i]
            result.append(sums)
        return result


#: The sums of one model: of its only component, or of several and their pairs.
Statistics = FourierStatistics | AdditiveStatistics
