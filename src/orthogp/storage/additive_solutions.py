"""Posteriors of additive models without sums beside them, as records of a file.

The file holds the mean and the factor of q(u), and of the rows what components are centred by: the
averages of each component's modes, one of each pair ±t as in statistics.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from orthogp.features import AdditiveLattice
from orthogp.inference.components import (
    AdditivePosterior,
    AdditiveSolution,
    ComponentSums,
    Shares,
)
from orthogp.kernels import Kernel, On, Sum
from orthogp.kernels.additive import component_kernels
from orthogp.kernels.cyclic import own_periods
from orthogp.storage.factors import packed, unpacked
from orthogp.storage.record import Record


class StoredSolution(NamedTuple):
    """What a posterior takes besides its features and kernel."""

    solution: AdditiveSolution
    sums: tuple[ComponentSums, ...]
    own_periods: tuple[tuple[float | None, ...], ...]


def solution_content(posterior: AdditivePosterior) -> dict[str, Any]:
    """Return what a file holds of a posterior besides its features."""
    return {
        "mean": posterior.mean,
        "factor": packed(posterior.chol),
        "shares": posterior.shares.components,
        "averages": [sums.averages.ravel()[sums.averages.size // 2 :] for sums in posterior.sums],
    }


def solution_from(
    record: Record, features: AdditiveLattice, kernel: Kernel, num_dims: int, num_targets: int
) -> StoredSolution:
    """Return what `solution_content` wrote."""
    terms = kernel.terms if isinstance(kernel, Sum) else ()
    columns = tuple(term.dims for term in terms if isinstance(term, On))
    # The kernel's columns have been checked; those of the features are the same.
    if len(columns) != len(terms) or columns != features.columns:
        record.fail("must be on the columns of the kernel's terms", "features")
    if any(part.lattice.num_dims != len(own) for part, own in zip(features.parts, columns)):
        record.fail("must have a lattice in as many columns as each term", "features")
    if features.num_slopes not in (0, num_dims):
        record.fail(f"must have slopes for {num_dims} columns, or none", "features")
    number = len(terms)
    m = features.num_features
    mean = record.array("mean", "float", (m, num_targets))
    shares = record.array("shares", "float", (number, num_targets))
    if np.any(shares < 0):
        record.fail("must not be negative", "shares")
    listed = record.value("averages")
    if not isinstance(listed, list) or len(listed) != number:
        record.fail(f"must be a list of {number} arrays", "averages")
    named = Record({str(j): own for j, own in enumerate(listed)}, record.source, "averages")
    sums = []
    for j, part in enumerate(features.parts):
        shape = part.lattice.target_shape
        half = named.array(str(j), "complex", ((int(np.prod(shape)) + 1) // 2,))
        whole = np.concatenate([half[:0:-1].conj(), half])
        sums.append(ComponentSums(part.lattice, whole.reshape(shape)))
    solution = AdditiveSolution(mean, unpacked(record, m), Shares(shares, np.zeros(num_targets)))
    periods = tuple(
        own_periods(own, len(within))
        for own, within in zip(component_kernels(kernel, columns), columns, strict=True)
    )
    return StoredSolution(solution, tuple(sums), periods)
