"""Where on a grid of frequencies a kernel has most of its variance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import FeatureError
from orthogp.features.masses import spectral_densities
from orthogp.features.orders import correlation_lengths, grid_points
from orthogp.kernels import Kernel

# In inverse correlation lengths: a kernel's frequencies are not sought beyond unless S leads there.
_HIGHEST = 8.0


def largest_modes(
    kernel: Kernel,
    half_width: NDArray[np.float64],
    count: int,
    most: NDArray[np.int64] | None,
) -> NDArray[np.int64]:
    """Return the wave numbers of the `count` largest spectral densities, in order of the first.

    They are looked for in a box of indices that grows until its outer half holds none of them; and,
    where densities underflow, until it covers all that the kernel's decay near lag zero speaks for.
    """
    num_dims, spacing = len(half_width), np.pi / (2 * half_width)
    length = correlation_lengths(kernel, 2 * half_width)
    ratio = half_width / length
    reach = np.ceil(4 * ratio * (count / np.prod(ratio)) ** (1 / num_dims)).astype(np.int64)
    while True:
        if most is not None:
            reach = np.minimum(reach, most)
        grid = grid_points([np.arange(1.0, n + 1) for n in reach]).astype(np.int64)
        densities = spectral_densities(kernel, grid * spacing)
        best = np.sort(np.argsort(-densities, kind="stable")[:count])
        chosen = grid[best]
        short = 2 * chosen.max(axis=0) > reach
        if densities[best].min() == 0:
            short |= reach * spacing < _HIGHEST / length
        if most is not None:
            short &= reach < most
        if not short.any():
            break
        reach = np.where(short, 2 * reach, reach)
    if len(chosen) < count:
        raise FeatureError(
            f"The lattice holds {len(chosen)} harmonic features, but {count} are asked for: use "
            "fewer features."
        )
    return chosen
