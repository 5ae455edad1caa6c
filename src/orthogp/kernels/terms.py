"""Sums of kernels on few columns each, as models of many columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

from orthogp.errors import KernelError
from orthogp.kernels.base import Kernel, On, Sum
from orthogp.kernels.convert import KERNEL_NAMES, KernelChoice, resolve_kernel
from orthogp.kernels.cyclic import Categorical, Cyclic, has_own_period, own_periods

#: Before the name of a kernel: one such kernel on each column.
ADDITIVE_PREFIX = "additive-"


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

    columns: tuple[int, ...]
    kernel: Kernel
    periods: tuple[float | None, ...]


def components(kernel: Kernel, num_dims: int) -> list[tuple[tuple[int, ...], Kernel]]:
    """Return the independent processes that a kernel adds up, by the columns they act on.

    Terms on the same columns are one component; each kernel comes relative to its own columns.
    """
    groups: dict[tuple[int, ...], list[Kernel]] = {}
    for term in kernel.terms if isinstance(kernel, Sum) else (kernel,):
        dims, inner = (term.dims, term.kernel) if isinstance(term, On) else (None, term)
        for own, part in _nested(inner, dims, num_dims):
            groups.setdefault(own, []).append(part)
    return [
        (dims, parts[0] if len(parts) == 1 else Sum(tuple(parts))) for dims, parts in groups.items()
    ]


def _nested(
    kernel: Kernel, dims: tuple[int, ...] | None, num_dims: int
) -> Iterator[tuple[tuple[int, ...], Kernel]]:
    if dims is None:
        own = kernel.columns(num_dims)
        yield own, kernel.with_columns({d: i for i, d in enumerate(own)})
        return
    for inner_dims, part in components(kernel, len(dims)):
        yield tuple(dims[d] for d in inner_dims), part


def additive(
    kernel: str | Kernel = "matern32",
    num_columns: int = 1,
    *,
    categorical: Mapping[int, int] | None = None,
    periodic: Mapping[int, float] | None = None,
    joint: Iterable[tuple[int, ...]] = (),
) -> Sum:
    """Return the sum of one kernel on each of the columns 0, 1, …, num_columns − 1.

    A regressor that learns starts from lengthscales read off the data besides the kernel's own.

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
    own = kernel if isinstance(kernel, Kernel) else resolve_kernel(kernel).kernel
    own.check(1)

    def on_column(column: int) -> Kernel:
        if column in categorical:
            return Categorical(categorical[column])
        if column not in periodic:
            return own
        period = float(periodic[column])
        if "lengthscale" in own.parameters() and not isinstance(kernel, Kernel):
            # By name the lengthscale is a mere placeholder, which must fit the period.
            return Cyclic(own.with_parameters(lengthscale=period / 8), period)
        return Cyclic(own, period)

    def on_columns(columns: tuple[int, ...]) -> Kernel:
        if categorical.keys() & set(columns) or periodic.keys() & set(columns):
            return reduce(Kernel.multiply, (on_column(column).on(column) for column in columns))
        length = own.parameters().get("lengthscale")
        if length is None:
            return own.on(*columns)
        return own.with_parameters(lengthscale=np.full(len(columns), float(length))).on(*columns)

    single = (on_column(column).on(column) for column in range(num_columns))
    return Sum((*single, *(on_columns(tuple(columns)) for columns in joint)))


def resolve_additive(kernel: object, num_columns: int, most_joint: int) -> KernelChoice:
    """Return the kernel that an estimator's argument stands for, on so many columns.

    A name after `ADDITIVE_PREFIX` means one kernel on each column, and so does a plain name if
    there are more columns than can act jointly.
    """
    if isinstance(kernel, str):
        name = kernel.removeprefix(ADDITIVE_PREFIX)
        if name not in KERNEL_NAMES:
            raise KernelError(
                f"Unknown kernel {kernel!r}; known names are {', '.join(KERNEL_NAMES)}, these "
                f'after "{ADDITIVE_PREFIX}" for one on each column, or pass a kernel object.'
            )
        if name != kernel or num_columns > most_joint:
            return KernelChoice(additive(name, num_columns), None, from_name=True)
    return resolve_kernel(kernel)


def is_additive(kernel: Kernel, num_columns: int, most_joint: int) -> bool:
    """Return whether a kernel is one for a sum over its terms' own lattices.

    It is if it acts on more columns than one lattice holds, or has periods of its own.
    """
    several = isinstance(kernel, Sum) and len(kernel.columns(num_columns)) > most_joint
    return several or has_own_period(kernel)


def split_terms(kernel: Kernel, num_columns: int) -> tuple[Term, ...]:
    """Return the independent processes that a kernel adds up.

    Terms on the same columns, with the same periods of their own, are one.
    """
    groups: dict[tuple, list[Kernel]] = {}
    for columns, own in components(kernel, num_columns):
        for part in own.terms if isinstance(own, Sum) else (own,):
            groups.setdefault((columns, own_periods(part, len(columns))), []).append(part)
    return tuple(
        Term(columns, parts[0] if len(parts) == 1 else Sum(tuple(parts)), periods)
        for (columns, periods), parts in groups.items()
    )


def join_terms(terms: tuple[Term, ...]) -> Sum:
    """Return the kernel that adds up the terms, one `On` for each, in their order."""
    return Sum(tuple(On(term.kernel, term.columns) for term in terms))


def component_kernels(kernel: Kernel, columns: Sequence[tuple[int, ...]]) -> tuple[Kernel, ...]:
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
