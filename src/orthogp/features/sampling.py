"""A basis of frequency functions on a lattice, orthonormal over its points."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import FeatureError

if TYPE_CHECKING:
    from orthogp.features.spectral import SpectralFeatures

# Rounding of sampled inner products: beyond it they are made orthonormal.
_ORTHONORMAL = 1e-13


def sampled(
    family: SpectralFeatures, count: int, dilation: float, h: float, most: int
) -> NDArray[np.float64]:
    """Return one column's basis at the nodes −n…n, orthonormal over them, (count, 2n+1).

    However few the nodes, these are features of the wrapped prior, and with few of them they
    were seen to leave out less of it, not more: a node for every member is all they need.
    """
    wanted = int(np.floor(dilation * family.reach(count) / h + 1e-9))
    odd = family.is_odd(np.arange(count))
    least = max(int(np.sum(~odd)) - 1, int(np.sum(odd)))
    name = f"{type(family).__name__} with {count} members per column"
    if family.compact and wanted > most:
        raise FeatureError(
            f"{name} reaches up to frequency {dilation * family.reach(count):.4g}, but the "
            f"lattice only to {most * h:.4g}: use a narrower band or fewer features."
        )
    n = min(wanted, most)
    if least > n:
        raise FeatureError(
            f"{name} wants at least {2 * least + 1} nodes, but the lattice has {2 * n + 1} "
            "there: use fewer features, or a larger `domain` for a finer lattice."
        )
    # On the half line, so that no rounding can spoil the symmetry.
    nodes = np.arange(n + 1, dtype=np.float64)
    fold = np.where(nodes == 0, 1.0, np.sqrt(2))
    half = np.sqrt(h / dilation) * fold * family.basis(nodes * (h / dilation), count)
    half[odd, 0] = 0.0
    for part, values in ((~odd, half), (odd, half[:, 1:])):
        gram = values[part] @ values[part].T
        if np.max(np.abs(gram - np.eye(len(gram))), initial=0.0) > _ORTHONORMAL:
            values[part] = _orthonormal_rows(values[part])
    half /= fold
    mirrored = np.where(odd, -1.0, 1.0)[:, None] * half[:, :0:-1]
    return np.concatenate([mirrored, half], axis=1)


def _orthonormal_rows(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return rows with the same successive spans and signs, orthonormal."""
    q, r = np.linalg.qr(values.T)
    return (q * np.where(np.diag(r) < 0, -1.0, 1.0)).T
