r"""Everything that inference needs to know of a data set, summed in one pass.

With weights w_n (one unless given) and the lattice ω_t:

    point_sums[t]  = Σ w_n e^{iω_t·(x_n−x₀)}        |t_d| ≤ 2K_d
    target_sums[t] = Σ w_n y_n e^{iω_t·(x_n−x₀)}    |t_d| ≤ K_d
    count = Σ w_n,   yy = Σ w_n y_n²

The sums know no kernel. Data sets on one lattice add and subtract, and hyperparameters, kernels and
feature sets change without touching the rows again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from orthogp.errors import InputError, LatticeMismatchError, check_finite
from orthogp.persistence import Storable
from orthogp.statistics.lattice import ComponentLattice, FrequencyLattice
from orthogp.statistics.nufft import (
    CHUNK_ROWS,
    TOLERANCE,
    ColumnSums,
    chunks,
    column_sizes,
)


class RealSums(NamedTuple):
    """The sums of products of cosines and sines, before any kernel scales them.

    The columns are cos(ω_t·x) for every t of a half set, sin(ω_t·x) for every t but zero, and the
    covariates.
    """

    gram: NDArray[np.float64]
    projection: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class FourierStatistics(Storable):
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
        covariates: Callable[[NDArray], NDArray[np.float64]] | None = None,
        tolerance: float = TOLERANCE,
        num_threads: int | None = None,
        chunk_rows: int = CHUNK_ROWS,
    ) -> FourierStatistics:
        """Return the statistics of the rows (X, y), in one pass, accumulated in double precision.

        Parameters
        ----------
        X : (n, d)
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
        X, targets, weights = _check_rows(lattice, X, y, sample_weight)
        shift = np.asarray(target_shift, dtype=np.float64)
        num_targets = targets.shape[1]
        num_covariates = 0 if covariates is None else covariates(X[:1]).shape[1]
        num_columns = 1 + num_targets + num_covariates
        sums = ColumnSums(
            lattice,
            num_columns,
            tolerance=tolerance,
            num_threads=num_threads,
            max_rows=min(len(X), chunk_rows),
        )
        count, rows, log_weights = 0.0, 0.0, 0.0
        products = np.zeros((num_columns - 1, num_columns - 1))
        for part in chunks(len(X), chunk_rows):
            columns = np.asarray(targets[part], dtype=np.float64)
            if shift.any():
                columns = columns - shift
            if covariates is not None:
                columns = np.concatenate([columns, covariates(X[part])], axis=1)
            if weights is None:
                own = _cross_products(columns, columns)
                rows += len(columns)
                chunk_count, chunk_weights = float(len(columns)), None
            else:
                chunk_weights = np.asarray(weights[part], dtype=np.float64)
                positive = chunk_weights > 0
                own = _cross_products(columns, chunk_weights[:, None] * columns)
                rows += np.count_nonzero(positive)
                chunk_count = float(chunk_weights.sum())
                log_weights += np.log(chunk_weights[positive]).sum()
            count += chunk_count
            products += own
            sums.add(X[part], [1.0, *columns.T], chunk_weights, column_sizes(own, chunk_count))
        if not np.isfinite(products).all():
            check_finite(targets, "y")
            raise InputError("y is too large: the sum of its squares overflows; rescale it.")
        totals = sums.totals()
        inner = tuple(slice(k, 3 * k + 1) for k in lattice.extent)
        targets_end = 1 + num_targets
        return cls(
            lattice=lattice,
            rows=float(rows),
            count=float(count),
            log_weights=float(log_weights),
            point_sums=totals[0],
            target_sums=totals[(slice(1, targets_end), *inner)].copy(),
            yy=np.diag(products)[:num_targets].copy(),
            covariate_sums=totals[(slice(targets_end, None), *inner)].copy(),
            covariate_gram=products[num_targets:, num_targets:].copy(),
            covariate_targets=products[num_targets:, :num_targets].copy(),
        )

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

        Only sums travel, and how the rows are cut into chunks changes nothing but the rounding.

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
            Settings of `from_data`; one thread for each chunk unless `num_threads` says more.
        """
        from orthogp.files.cluster import sum_collection

        return sum_collection(
            partial(cls.from_data, **{"num_threads": 1, **settings}),
            data,
            target,
            inputs=inputs,
            weights=weights,
            lattice=lattice,
            scheduler=scheduler,
        )

    @property
    def parts(self) -> tuple[FourierStatistics, ...]:
        """The statistics of each component of a model: of a joint one, these."""
        return (self,)

    @property
    def components(self) -> tuple[ComponentLattice, ...]:
        """A joint model's only component: all columns, all modes."""
        columns = tuple(range(self.lattice.num_dims))
        return (ComponentLattice(columns, self.lattice, self.lattice.half_indices()),)

    @property
    def num_targets(self) -> int:
        """The number p of target columns."""
        return len(self.yy)

    @property
    def num_covariates(self) -> int:
        """The number q of covariate columns."""
        return len(self.covariate_gram)

    @property
    def target_totals(self) -> NDArray[np.float64]:
        """Σ w_n y_n for each target, (p,)."""
        return self.target_sums[(slice(None), *self.lattice.extent)].real

    def __add__(self, other: FourierStatistics) -> FourierStatistics:
        """Return the statistics of both data sets together."""
        return self._combine(other, 1.0)

    def __sub__(self, other: FourierStatistics) -> FourierStatistics:
        """Return the statistics with the rows of `other` taken out."""
        return self._combine(other, -1.0)

    def _combine(self, other: FourierStatistics, sign: float) -> FourierStatistics:
        if not isinstance(other, FourierStatistics):
            return NotImplemented
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
        lattice = self.lattice.decimate(factor)
        factors = np.broadcast_to(np.asarray(factor, dtype=np.int64), self.lattice.extent.shape)

        def thin(reach: int) -> tuple[slice, ...]:
            # `reach` × K is the largest index; the middle of each axis is index zero.
            return tuple(
                slice(reach * k - reach * f * (k // f), reach * k + reach * f * (k // f) + 1, f)
                for k, f in zip(self.lattice.extent, factors, strict=True)
            )

        return replace(
            self,
            lattice=lattice,
            point_sums=self.point_sums[thin(2)],
            target_sums=self.target_sums[(slice(None), *thin(1))],
            covariate_sums=self.covariate_sums[(slice(None), *thin(1))],
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


def _cross_products(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    # Not left.T @ right: BLAS threads spin for a while after a call, on the cores that the next
    # transform needs, and its time then multiplies.
    return np.einsum("ni,nj->ij", left, right)


def _check_rows(
    lattice: FrequencyLattice, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None
) -> tuple[NDArray, NDArray, NDArray | None]:
    X = np.asarray(X)
    if X.ndim == 1:
        X = X[:, None]
    if X.ndim != 2 or X.shape[1] != lattice.num_dims:
        raise InputError(
            f"X must have {lattice.num_dims} columns as the lattice has, got shape {X.shape}."
        )
    return check_statistics_rows(X, y, sample_weight)


def check_statistics_rows(
    X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None
) -> tuple[NDArray, NDArray, NDArray | None]:
    """Return rows X (n, d), targets (n, p) and weights (n,) as arrays that can be summed."""
    X, y = np.asarray(X), np.asarray(y)
    if X.ndim == 1:
        X = X[:, None]
    if y.ndim not in (1, 2) or len(y) != len(X):
        raise InputError(
            f"y must have one value or one row per row of X ({len(X)}), got shape {y.shape}."
        )
    if len(X) == 0:
        raise InputError("The data are empty: at least one row is needed.")
    check_finite(X, "X")
    if sample_weight is None:
        return X, y.reshape(len(y), -1), None
    weights = np.asarray(sample_weight)
    if weights.shape != (len(X),):
        raise InputError(
            f"sample_weight must have one value per row ({len(X)}), got shape {weights.shape}."
        )
    check_finite(weights, "sample_weight")
    if (negative := np.count_nonzero(weights < 0)) > 0:
        raise InputError(f"sample_weight must be ≥ 0, but {negative} values are negative.")
    return X, y.reshape(len(y), -1), weights
