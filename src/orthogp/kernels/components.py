"""The independent processes that a kernel adds up."""

from __future__ import annotations

from collections.abc import Iterator

from orthogp.kernels.base import Kernel, On, Sum


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
