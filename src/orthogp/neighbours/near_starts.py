"""Starting values for conditionals, read off the rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from orthogp.exact.row_starts import fitted_lengths
from orthogp.inference.parameters import with_lengthscale_per_column
from orthogp.kernels import Kernel, RationalQuadratic
from orthogp.learning.problem import Start
from orthogp.learning.starts import with_variance
from orthogp.neighbours.nearest import NearestRows

# Shares of the variance that are noise, and lengthscales: in distances to the tenth neighbour, and
# in standard deviations of the columns.
_SHARES = (0.5, 0.05, 1e-3)
_NEAR, _NEIGHBOUR = (1.0, 6.0), 10
_WIDE = (0.5, 3.0)


def starts_near_rows(kernel: Kernel, X: NDArray[np.float64]) -> list[Start]:
    """Return starts for a kernel whose values are not known, with targets of variance one."""
    sd = X.std(axis=0)
    sd = np.where(sd > 0, sd, 1.0)
    scaled = X / sd
    nearest = NearestRows(scaled)
    few = scaled[:: max(1, len(scaled) // 300)]
    distances = nearest.query(few, min(_NEIGHBOUR + 1, len(scaled)))[0][:, -1]
    near = float(np.median(distances[distances > 0])) if np.any(distances > 0) else 1.0
    template = with_lengthscale_per_column(kernel, X.shape[1])
    lengths = sorted(
        {*(factor * near for factor in _NEAR), *(f * np.sqrt(X.shape[1]) for f in _WIDE)}
    )
    starts = []
    for shape, length in enumerate(lengths):
        shaped = template.with_primitives(
            primitive.with_parameters(
                lengthscale=fitted_lengths(
                    (length * sd)[list(range(len(sd)) if dims is None else dims)], primitive
                )
            )
            if "lengthscale" in set(primitive.parameters()) - set(primitive.fixed)
            else primitive
            for primitive, dims in template.primitives()
        )
        if isinstance(shaped, RationalQuadratic):
            shaped = shaped.with_parameters(alpha=np.asarray(2.0))
        starts += [Start(with_variance(shaped, 1.0), share, shape) for share in _SHARES]
    return starts
