"""The lattice of frequencies on which data are summed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from orthogp.errors import InputError
from orthogp.rows import MAX_DIMS

# The default period for each number of input columns, in extents of the data: long periods hold
# long lengthscales.
_PERIODS = {1: 16.0, 2: 8.0, 3: 4.0}
# The default largest index for each number of input columns: large indices hold rough functions.
_EXTENTS = {1: 2**17, 2: 256, 3: 24}
# The same for small data.
_SMALL_EXTENTS = {1: 2**16, 2: 128, 3: 20}
# The number of rows below which data are small.
_SMALL_DATA = 20_000


def default_period(width: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the period of the lattice for data of a width, (d,)."""
    return _PERIODS[len(width)] * width


def default_extent(num_dims: int, num_rows: float) -> int:
    """Return the largest index of the lattice for that many columns and rows."""
    return (_SMALL_EXTENTS if num_rows < _SMALL_DATA else _EXTENTS)[num_dims]


@dataclass(frozen=True, eq=False)
class FrequencyLattice:
    """The frequencies ω_t = h∘t, |t_d| ≤ K_d, around a centre x₀.

    Parameters
    ----------
    spacing : (d,)
        h, the angular frequency between neighbours; functions on the lattice have period 2π/h.
    extent : (d,)
        K, the largest index at which targets are summed; points are summed up to 2K.
    centre : (d,)
        x₀, the origin of the phases.
    """

    spacing: NDArray[np.float64]
    extent: NDArray[np.int64]
    centre: NDArray[np.float64]

    def __init__(self, spacing: ArrayLike, extent: ArrayLike, centre: ArrayLike = 0.0) -> None:
        spacing = np.atleast_1d(np.asarray(spacing, dtype=np.float64))
        if not np.all(np.mod(np.asarray(extent, dtype=np.float64), 1) == 0):
            raise InputError(f"A lattice's extent must be whole numbers, got {extent}.")
        extent = np.broadcast_to(np.asarray(extent, dtype=np.int64), spacing.shape).copy()
        centre = np.broadcast_to(np.asarray(centre, dtype=np.float64), spacing.shape).copy()
        if spacing.ndim != 1 or not 1 <= len(spacing) <= MAX_DIMS:
            raise InputError(
                f"A lattice has 1 to {MAX_DIMS} dimensions, got spacing of shape {spacing.shape}."
            )
        if not np.all(np.isfinite(spacing)) or np.any(spacing <= 0) or np.any(extent < 0):
            raise InputError(
                f"A lattice needs spacing > 0 and extent ≥ 0, got {spacing} and {extent}."
            )
        if not np.all(np.isfinite(centre)):
            raise InputError(f"A lattice needs a finite centre, got {centre}.")
        object.__setattr__(self, "spacing", spacing)
        object.__setattr__(self, "extent", extent)
        object.__setattr__(self, "centre", centre)

    @classmethod
    def for_domain(
        cls, lower: ArrayLike, upper: ArrayLike, *, period: ArrayLike, extent: ArrayLike
    ) -> FrequencyLattice:
        """Return the lattice centred on the box [lower, upper] with the given period and extent."""
        lower, upper = np.atleast_1d(lower).astype(float), np.atleast_1d(upper).astype(float)
        period = np.broadcast_to(np.asarray(period, dtype=float), lower.shape)
        return cls(2 * np.pi / period, extent, (lower + upper) / 2)

    @property
    def num_dims(self) -> int:
        """The number of input columns."""
        return len(self.spacing)

    @property
    def period(self) -> NDArray[np.float64]:
        """The period 2π/h of functions on the lattice, (d,)."""
        return 2 * np.pi / self.spacing

    @property
    def target_shape(self) -> tuple[int, ...]:
        """The shape 2K+1 of sums over targets."""
        return tuple(int(2 * k + 1) for k in self.extent)

    @property
    def point_shape(self) -> tuple[int, ...]:
        """The shape 4K+1 of sums over points."""
        return tuple(int(4 * k + 1) for k in self.extent)

    def half_indices(self) -> NDArray[np.int64]:
        """Return one of each pair ±t with |t_d| ≤ K_d, index zero first, (s, d)."""
        axes = [np.arange(-k, k + 1) for k in self.extent]
        grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, self.num_dims)
        # In lexicographic order -t stands opposite t, and zero in the middle.
        return grid[len(grid) // 2 :]

    def decimate(self, factor: ArrayLike) -> FrequencyLattice:
        """Return the sublattice of every `factor`-th frequency, with a period as much shorter."""
        factor = np.broadcast_to(np.asarray(factor, dtype=np.int64), self.spacing.shape)
        if np.any(factor < 1):
            raise InputError(f"A lattice is decimated by factors ≥ 1, got {factor}.")
        return FrequencyLattice(self.spacing * factor, self.extent // factor, self.centre)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, FrequencyLattice)
            and np.array_equal(self.spacing, other.spacing)
            and np.array_equal(self.extent, other.extent)
            and np.array_equal(self.centre, other.centre)
        )

    def __hash__(self) -> int:
        return hash((self.spacing.tobytes(), self.extent.tobytes(), self.centre.tobytes()))

    def __repr__(self) -> str:
        return (
            f"FrequencyLattice(spacing={self.spacing.tolist()}, extent={self.extent.tolist()}, "
            f"centre={self.centre.tolist()})"
        )


class ComponentLattice(NamedTuple):
    """Where a component is summed.

    Attributes
    ----------
    columns : tuple of int
        The columns of X that it acts on.
    lattice : FrequencyLattice
        Up to whose extent its own sums are kept.
    indices : (s, d)
        A half set, index zero first, for which the sums with other components are kept too.
    """

    columns: tuple[int, ...]
    lattice: FrequencyLattice
    indices: NDArray[np.int64]

    @property
    def reach(self) -> NDArray[np.int64]:
        """The largest kept index along each column, (d,)."""
        return np.abs(self.indices).max(axis=0)

    def design(self, X: NDArray) -> NDArray[np.float64]:
        """Return the cosines, then the sines, at all kept indices but zero, (n, 2s−2)."""
        inputs = np.asarray(X[:, list(self.columns)], dtype=np.float64) - self.lattice.centre
        phases = inputs @ (self.indices[1:] * self.lattice.spacing).T
        return np.concatenate([np.cos(phases), np.sin(phases)], axis=1)

    def decimate(self, step: ArrayLike) -> ComponentLattice:
        """Return the component on every `step`-th frequency, with the kept indices among them."""
        factor = np.asarray(step, dtype=np.int64)
        kept = self.indices[self._multiples(factor)] // factor
        return self._replace(lattice=self.lattice.decimate(factor), indices=kept)

    def staying(self, step: ArrayLike) -> NDArray[np.int64]:
        """Return the columns of `design` that decimation keeps."""
        return self._waves(self._multiples(np.asarray(step, dtype=np.int64)))

    def positions(self, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the columns of `design` at chosen indices, index zero first, which has none."""
        kept = {index: i for i, index in enumerate(map(tuple, self.indices.tolist()))}
        try:
            return self._waves(np.array([kept[index] for index in map(tuple, chosen.tolist())]))
        except KeyError as error:
            raise InputError(
                f"The sums with other components are not kept at index {error.args[0]}."
            ) from error

    def _multiples(self, factor: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.flatnonzero(np.all(self.indices % factor == 0, axis=1))

    def _waves(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the columns of cosines and of sines, without those of index zero."""
        return np.concatenate([at[1:] - 1, at[1:] + len(self.indices) - 2])

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ComponentLattice)
            and self.columns == other.columns
            and self.lattice == other.lattice
            and np.array_equal(self.indices, other.indices)
        )

    __hash__ = None  # type: ignore[assignment]
