"""Statistics as records of a file, and back.

Sums of real columns have conjugates at −t: a file holds one of each pair ±t, from index zero on in
lexicographic order, which is that of `FrequencyLattice.half_indices`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from orthogp.statistics.lattice import MAX_DIMS, FrequencyLattice

if TYPE_CHECKING:
    from orthogp.statistics.fourier import FourierStatistics
    from orthogp.storage.record import Record


class StoredStatistics(ABC):
    """Adds `save` and `load`."""

    #: What a file of such statistics says that it holds.
    file_kind: ClassVar[str]

    @abstractmethod
    def to_content(self) -> dict[str, Any]:
        """Return what a file holds of the statistics."""

    @classmethod
    @abstractmethod
    def from_record(cls, record: Record) -> Self:
        """Return the statistics that a file holds; `FileError` if they make no sense."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the sums to a file, whole or not at all; see docs/format.md."""
        from orthogp.storage.container import write_file

        write_file(path, self.file_kind, self.to_content())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the statistics that `save` wrote; `FileError` if the file is not as it must be."""
        from orthogp.storage.container import read_file

        return cls.from_record(read_file(path, (cls.file_kind,)).content)


def lattice_content(lattice: FrequencyLattice) -> dict[str, Any]:
    """Return a lattice as lists of numbers."""
    return {
        "spacing": lattice.spacing.tolist(),
        "extent": lattice.extent.tolist(),
        "centre": lattice.centre.tolist(),
    }


def lattice_from(record: Record, *, most_modes: int = 2**22) -> FrequencyLattice:
    """Return the lattice of a record, of so many modes at most."""
    spacing = record.vector("spacing")
    if not 1 <= len(spacing) <= MAX_DIMS or np.any(spacing <= 0):
        record.fail(f"must have 1 to {MAX_DIMS} numbers > 0", "spacing")
    extent = record.integers("extent", most=2**30)
    if len(extent) != len(spacing):
        record.fail(f"must have {len(spacing)} numbers", "extent")
    if np.prod([2.0 * k + 1 for k in extent]) > most_modes:
        record.fail(f"must span at most {most_modes} modes", "extent")
    return FrequencyLattice(spacing, extent, record.vector("centre", size=len(spacing)))


def fourier_content(statistics: FourierStatistics) -> dict[str, Any]:
    """Return the sums on one lattice as a record of a file."""
    return {
        "lattice": lattice_content(statistics.lattice),
        "rows": statistics.rows,
        "count": statistics.count,
        "log_weights": statistics.log_weights,
        "point_sums": _half(statistics.point_sums[None])[0],
        "target_sums": _half(statistics.target_sums),
        "yy": statistics.yy,
        "covariate_sums": _half(statistics.covariate_sums),
        "covariate_gram": statistics.covariate_gram,
        "covariate_targets": statistics.covariate_targets,
    }


def fourier_fields(record: Record) -> dict[str, Any]:
    """Return the fields of `FourierStatistics` that a record holds."""
    # The sums themselves, which are there to be counted, say how large a lattice may be.
    points = record.array("point_sums", "complex", (None,))
    lattice = lattice_from(record.record("lattice"), most_modes=2 * len(points))
    if 2 * len(points) - 1 != np.prod([float(n) for n in lattice.point_shape]):
        record.fail("has not as many sums as its lattice", "point_sums")
    half = (int(np.prod(lattice.target_shape)) + 1) // 2
    yy = record.array("yy", "float", (None,))
    gram = record.array("covariate_gram", "float", (None, None))
    p, q = len(yy), len(gram)
    if p == 0:
        record.fail("must be at least one number", "yy")
    targets = record.array("target_sums", "complex", (p, half))
    covariates = record.array("covariate_sums", "complex", (q, half))
    return {
        "lattice": lattice,
        "rows": record.number("rows", least=0.0),
        "count": record.number("count", least=0.0),
        "log_weights": record.number("log_weights"),
        "point_sums": _whole(points[None], lattice.point_shape)[0],
        "target_sums": _whole(targets, lattice.target_shape),
        "yy": yy,
        "covariate_sums": _whole(covariates, lattice.target_shape),
        "covariate_gram": record.array("covariate_gram", "float", (q, q)),
        "covariate_targets": record.array("covariate_targets", "float", (q, p)),
    }


def _half(sums: NDArray[np.complex128]) -> NDArray[np.complex128]:
    """Return one of each pair of conjugates, (columns, half)."""
    flat = sums.reshape(len(sums), int(np.prod(sums.shape[1:])))
    return np.ascontiguousarray(flat[:, flat.shape[1] // 2 :])


def _whole(half: NDArray[np.complex128], shape: tuple[int, ...]) -> NDArray[np.complex128]:
    """Return all sums, index zero in the middle of every axis."""
    return np.concatenate([half[:, :0:-1].conj(), half], axis=1).reshape(len(half), *shape)
