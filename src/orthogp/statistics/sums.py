r"""AdditiveStatistics: the sums of several components, and of every pair.

For f(x) = Σ_j f_j(x_{columns_j}), component j with its own lattice ω_t and a set of kept indices,

    own      Σ w_n e^{iω_t·x_j},  Σ w_n y_n e^{iω_t·x_j}        as in `FourierStatistics`
    cross    Σ w_n (cos, sin)(ω_t·x_j) (cos, sin)(ω_t'·x_j')     for t, t' ≠ 0 kept

The cross sums are half sums and differences of Σ w_n e^{i(ω_t·x_j ± ω_t'·x_j')}, one non-uniform
FFT in d_j + d_j' ≤ 3 dimensions for each pair; beyond three dimensions, or for few rows, they are
products of the cosines and sines themselves. The sums know no kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from orthogp.errors import InputError, LatticeMismatchError
from orthogp.persistence import Storable
from orthogp.statistics.fourier import FourierStatistics, RealSums, check_statistics_rows
from orthogp.statistics.lattice import MAX_DIMS, ComponentLattice, FrequencyLattice
from orthogp.statistics.nufft import TOLERANCE, ColumnSums, PairSums, chunks, column_sizes

# Rows whose cosines and sines are formed at once.
_PRODUCT_ROWS = 2**12
# Seconds for each cosine or sine, for each product of two at a row; for each row of a transform and
# each of its modes (rough figures: they only decide which way is taken).
_WAVE_SECONDS, _PRODUCT_SECONDS = 5e-9, 6e-11
_ROW_SECONDS, _MODE_SECONDS = {2: 3e-7, 3: 1.5e-6}, 2e-7


def cross_sums(
    components: Sequence[ComponentLattice],
    X: NDArray,
    weights: NDArray[np.float64] | None,
    *,
    tolerance: float,
    num_threads: int | None,
    chunk_rows: int,
) -> dict[tuple[int, int], NDArray[np.float64]]:
    """Return Σ w_n (cos, sin)(ω_t·x_i) (cos, sin)(ω_t'·x_j) for all pairs of components i < j.

    Each by one transform in d_i + d_j ≤ 3 dimensions; beyond, or for few rows, from the cosines and
    sines themselves.
    """
    pairs = list(combinations(range(len(components)), 2))
    transformed = {
        pair
        for pair in pairs
        if _transform_is_quicker(components[pair[0]], components[pair[1]], len(X))
    }
    blocks = _products(components, [pair for pair in pairs if pair not in transformed], X, weights)
    for i, j in transformed:
        blocks[i, j] = _transformed(
            components[i],
            components[j],
            X,
            weights,
            tolerance=tolerance,
            num_threads=num_threads,
            chunk_rows=chunk_rows,
        )
    return {pair: blocks[pair] for pair in pairs}


def _transform_is_quicker(first: ComponentLattice, second: ComponentLattice, num_rows: int) -> bool:
    num_dims = len(first.columns) + len(second.columns)
    if num_dims > MAX_DIMS:
        return False
    waves = num_rows * 2 * (len(first.indices) + len(second.indices)) * _WAVE_SECONDS
    product = waves + num_rows * 4 * len(first.indices) * len(second.indices) * _PRODUCT_SECONDS
    modes = float(np.prod(2 * np.concatenate([first.reach, second.reach]) + 1.0)) / 2
    return product > num_rows * _ROW_SECONDS[num_dims] + modes * _MODE_SECONDS


def _transformed(
    first: ComponentLattice,
    second: ComponentLattice,
    X: NDArray,
    weights: NDArray[np.float64] | None,
    *,
    tolerance: float,
    num_threads: int | None,
    chunk_rows: int,
) -> NDArray[np.float64]:
    """Return the cross sums of two components by one transform in all their dimensions."""
    if len(first.columns) > 1:
        turned = _transformed(
            second,
            first,
            X,
            weights,
            tolerance=tolerance,
            num_threads=num_threads,
            chunk_rows=chunk_rows,
        )
        return np.ascontiguousarray(turned.T)
    boxes = [
        FrequencyLattice(own.lattice.spacing, own.reach, own.lattice.centre)
        for own in (first, second)
    ]
    sums = PairSums(*boxes, tolerance=tolerance, num_threads=num_threads)
    for part in chunks(len(X), chunk_rows):
        rows = X[part]
        own_weights = None if weights is None else weights[part]
        sums.add(rows[:, list(first.columns)], rows[:, list(second.columns)], own_weights)
    totals = sums.totals()
    # A half set in one dimension may hold either of ±t; the sums are at t ≥ 0.
    t, other = first.indices[1:, 0], second.indices[1:]
    sign = np.where(t < 0, -1, 1)
    flat = totals.reshape(len(totals), -1)
    strides = np.array(np.empty(boxes[1].target_shape, dtype=np.int8).strides)
    linear, middle = other @ strides, flat.shape[1] // 2
    plus = flat[np.abs(t)[:, None], middle + sign[:, None] * linear]
    minus = flat[np.abs(t)[:, None], middle - sign[:, None] * linear]
    c, s = len(t), len(other)
    block = np.empty((2 * c, 2 * s))
    block[:c, :s] = (minus.real + plus.real) / 2
    block[c:, s:] = (minus.real - plus.real) / 2
    # The imaginary parts belong to sign · θ ± θ'.
    block[c:, :s] = sign[:, None] * (plus.imag + minus.imag) / 2
    block[:c, s:] = sign[:, None] * (plus.imag - minus.imag) / 2
    return block


def _products(
    components: Sequence[ComponentLattice],
    pairs: list[tuple[int, int]],
    X: NDArray,
    weights: NDArray[np.float64] | None,
) -> dict[tuple[int, int], NDArray[np.float64]]:
    """Return the cross sums of some pairs from the cosines and sines themselves."""
    blocks: dict[tuple[int, int], NDArray[np.float64]] = {
        (i, j): np.zeros((2 * len(components[i].indices) - 2, 2 * len(components[j].indices) - 2))
        for i, j in pairs
    }
    needed = sorted({i for pair in pairs for i in pair})
    for part in chunks(len(X), _PRODUCT_ROWS):
        designs = {i: components[i].design(X[part]) for i in needed}
        for (i, j), block in blocks.items():
            right = designs[j] if weights is None else weights[part, None] * designs[j]
            block += designs[i].T @ right
    return blocks


# Rows transformed at once: large enough to keep the transforms busy, small beside the sums.
CHUNK_ROWS = 2**19


@dataclass(frozen=True, eq=False)
class AdditiveStatistics(Storable):
    """The sums of a data set for the components of an additive model; see the module's docstring.

    Attributes
    ----------
    components : tuple of ComponentLattice
    parts : tuple of FourierStatistics
        Each component's own sums.
    cross : dict of (i, j) to (2s_i−2, 2s_j−2)
        For i < j, the products of the components' cosines and sines at their kept indices.
    """

    components: tuple[ComponentLattice, ...]
    parts: tuple[FourierStatistics, ...]
    cross: dict[tuple[int, int], NDArray[np.float64]]

    @classmethod
    def from_data(
        cls,
        components: Sequence[ComponentLattice],
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        target_shift: ArrayLike = 0.0,
        covariates: Callable[[NDArray], NDArray[np.float64]] | None = None,
        tolerance: float = TOLERANCE,
        num_threads: int | None = None,
        chunk_rows: int = CHUNK_ROWS,
    ) -> AdditiveStatistics:
        """Return the statistics of the rows (X, y); parameters as in `FourierStatistics`."""
        components = tuple(components)
        if not components:
            raise InputError("Additive statistics need at least one component.")
        X, targets, weights = check_statistics_rows(X, y, sample_weight)
        shift = np.asarray(target_shift, dtype=np.float64)

        def columns_of(part: slice) -> NDArray[np.float64]:
            """Return the shifted targets and the covariates of a chunk."""
            columns = np.asarray(targets[part], dtype=np.float64) - shift
            if covariates is None:
                return columns
            return np.concatenate([columns, covariates(X[part])], axis=1)

        totals = _Totals.of(columns_of, weights, len(X), targets, chunk_rows)
        sizes = column_sizes(totals.products, totals.count)
        parts = []
        for own in components:
            sums = ColumnSums(
                own.lattice,
                1 + totals.products.shape[0],
                tolerance=tolerance,
                num_threads=num_threads,
                max_rows=min(len(X), chunk_rows),
            )
            for part in chunks(len(X), chunk_rows):
                chunk_weights = None if weights is None else weights[part]
                inputs = X[part][:, list(own.columns)]
                sums.add(inputs, [1.0, *columns_of(part).T], chunk_weights, sizes)
            parts.append(totals.statistics(own.lattice, sums.totals()))
        cross = cross_sums(
            components,
            X,
            weights,
            tolerance=tolerance,
            num_threads=num_threads,
            chunk_rows=chunk_rows,
        )
        return cls(components, tuple(parts), cross)

    # ------------------------------------------------------------------ what all parts share

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

    @property
    def num_targets(self) -> int:
        """The number p of target columns."""
        return self.parts[0].num_targets

    @property
    def num_covariates(self) -> int:
        """The number q of covariate columns."""
        return self.parts[0].num_covariates

    @property
    def target_totals(self) -> NDArray[np.float64]:
        """Σ w_n y_n for each target, (p,)."""
        return self.parts[0].target_totals

    # ------------------------------------------------------------------ arithmetic

    def __add__(self, other: AdditiveStatistics) -> AdditiveStatistics:
        """Return the statistics of both data sets together."""
        return self._combine(other, 1.0)

    def __sub__(self, other: AdditiveStatistics) -> AdditiveStatistics:
        """Return the statistics with the rows of `other` taken out."""
        return self._combine(other, -1.0)

    def _combine(self, other: AdditiveStatistics, sign: float) -> AdditiveStatistics:
        if not isinstance(other, AdditiveStatistics):
            return NotImplemented
        if self.components != other.components:
            raise LatticeMismatchError(
                "Additive statistics combine for the same components, on the same lattices, only: "
                "sum both data sets on the same lattices."
            )
        pairs = zip(self.parts, other.parts, strict=True)
        return AdditiveStatistics(
            self.components,
            tuple(own + its if sign > 0 else own - its for own, its in pairs),
            {pair: own + sign * other.cross[pair] for pair, own in self.cross.items()},
        )

    def standardised(self, offset: ArrayLike, scale: ArrayLike) -> AdditiveStatistics:
        """Return the statistics of (y − offset)/scale, without touching the rows."""
        parts = tuple(part.standardised(offset, scale) for part in self.parts)
        return replace(self, parts=parts)

    def decimate(self, factors: Sequence[ArrayLike]) -> AdditiveStatistics:
        """Return the statistics on every `factors[j]`-th frequency of component j.

        Of the kept indices those remain that are multiples of the factors.
        """
        components, parts, kept = [], [], []
        for own, part, factor in zip(self.components, self.parts, factors, strict=True):
            step = np.broadcast_to(np.asarray(factor, dtype=np.int64), own.lattice.extent.shape)
            thin = part.decimate(step)
            stays = np.all(own.indices % step == 0, axis=1)
            components.append(
                ComponentLattice(own.columns, thin.lattice, own.indices[stays] // step)
            )
            parts.append(thin)
            kept.append(_twice(np.flatnonzero(stays), len(stays)))
        cross = {
            (i, j): block
            if len(kept[i]) == block.shape[0] and len(kept[j]) == block.shape[1]
            else block[np.ix_(kept[i], kept[j])]
            for (i, j), block in self.cross.items()
        }
        return AdditiveStatistics(tuple(components), tuple(parts), cross)

    # ------------------------------------------------------------------ sums of real products

    def real_sums(self, indices: Sequence[NDArray[np.int64]]) -> RealSums:
        """Return the sums of products of all real columns.

        The columns are the constant, then for each component the cosines and the sines at its
        indices but zero, then the covariates.

        Parameters
        ----------
        indices : sequence of (s, d)
            A subset of each component's kept indices, index zero first.
        """
        positions = [
            _positions(own, chosen) for own, chosen in zip(self.components, indices, strict=True)
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
            _positions(own, chosen) for own, chosen in zip(self.components, indices, strict=True)
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


@dataclass(frozen=True)
class _Totals:
    """What is summed without any lattice."""

    rows: float
    count: float
    log_weights: float
    #: Σ w_n c_ni c_nj over the targets and covariates c.
    products: NDArray[np.float64]
    num_targets: int

    @classmethod
    def of(
        cls,
        columns_of: Callable[[slice], NDArray[np.float64]],
        weights: NDArray[np.float64] | None,
        num_rows: int,
        targets: NDArray,
        chunk_rows: int,
    ) -> _Totals:
        products = 0.0
        for part in chunks(num_rows, chunk_rows):
            columns = columns_of(part)
            weighted = columns if weights is None else weights[part, None] * columns
            products = products + np.einsum("ni,nj->ij", columns, weighted)
        products = np.asarray(products)
        if not np.isfinite(products).all():
            raise InputError("y is too large: the sum of its squares overflows; rescale it.")
        if weights is None:
            return cls(num_rows, num_rows, 0.0, products, targets.shape[1])
        positive = weights > 0
        log_weights = float(np.log(weights[positive]).sum())
        rows, count = float(np.count_nonzero(positive)), float(weights.sum())
        return cls(rows, count, log_weights, products, targets.shape[1])

    def statistics(
        self, lattice: FrequencyLattice, sums: NDArray[np.complex128]
    ) -> FourierStatistics:
        """Return one component's statistics from the sums of its columns."""
        inner, p = tuple(slice(k, 3 * k + 1) for k in lattice.extent), self.num_targets
        return FourierStatistics(
            lattice=lattice,
            rows=float(self.rows),
            count=float(self.count),
            log_weights=self.log_weights,
            point_sums=sums[0],
            target_sums=sums[(slice(1, p + 1), *inner)].copy(),
            yy=np.diag(self.products)[:p].copy(),
            covariate_sums=sums[(slice(p + 1, None), *inner)].copy(),
            covariate_gram=self.products[p:, p:].copy(),
            covariate_targets=self.products[p:, :p].copy(),
        )


def _positions(own: ComponentLattice, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where the cosines and sines at the chosen indices stand in the cross sums."""
    kept = {index: i for i, index in enumerate(map(tuple, own.indices.tolist()))}
    try:
        at = np.array([kept[index] for index in map(tuple, chosen.tolist())])
    except KeyError as error:
        raise InputError(
            f"The sums with other components are not kept at index {error.args[0]}."
        ) from error
    return _twice(at, len(own.indices))


def _twice(at: NDArray[np.int64], num_indices: int) -> NDArray[np.int64]:
    """Return the positions of cosines and of sines, without those of index zero."""
    return np.concatenate([at[1:] - 1, at[1:] + num_indices - 2])
