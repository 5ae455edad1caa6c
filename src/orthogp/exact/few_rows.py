r"""What a default fit to few rows adds to their evidence, which alone is too sure of itself.

A dozen rows do not determine a lengthscale for each column, a variance and a noise variance: the
largest evidence has residuals that are too small. Weak priors keep hyperparameters where functions
that change once or so over the data, and noise of a third of their spread, would have them. They
fade as rows are added, and many rows have none.

The scale c of kernel and noise variance together is the one parameter that can be integrated out:
with n − q residual degrees of freedom predictions are Student's t. A Gaussian has 95 % bands as
wide as these if both variances are multiplied by the square of

    t_{0.975}(n − q) / z_{0.975}

which leaves means as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, t

from orthogp.inference.parameters import Beliefs, learned_slots
from orthogp.kernels import Kernel
from orthogp.kernels.base import Density, Noise, Prior

#: The number of rows that are not few any more: t's bands are then within 3 % of the normal's.
MANY = 50
# The lengthscale that is believed in one column, relative to its standard deviation: half the width
# of rows that are spread evenly.
_LENGTH = np.sqrt(3.0)
# The noise variance that is believed, relative to that of the targets.
_NOISE = 0.1
# The standard deviations of the logarithms of lengthscales, variances and the noise variance, with
# next to no rows.
_SPREADS = (1.0, 1.0, 1.5)
# The probability of bands that are made as wide as Student's.
_LEVEL = 0.95


@dataclass(frozen=True)
class _Weak(Prior):
    """Logarithms of some parameters are normal, each around its centre."""

    centre: NDArray[np.float64]
    sd: float

    def log_density(self, logs: NDArray[np.float64]) -> Density:
        """Return the log density of each logarithm, without its constant."""
        z = (logs - self.centre) / self.sd
        return Density(-0.5 * z**2, -z / self.sd, np.full_like(z, -1 / self.sd**2))

    def scaled(self, factor: float) -> Self:
        """Return the prior of factor · θ."""
        return replace(self, centre=self.centre + np.log(factor))


def weak_beliefs(kernel: Kernel, num_rows: int, X: NDArray) -> Beliefs:
    """Return priors of a kernel's parameters where there are few rows, targets having variance one.

    Parameters
    ----------
    kernel : Kernel
        With a lengthscale for each column that it sees, or with one for all.
    X : (n, d)
        The columns that it sees.
    """
    spread = np.std(X, axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    vague = 1 / np.sqrt(1 - num_rows / MANY)
    lengths, variances, noise = (float(own * vague) for own in _SPREADS)
    centres = np.log(_LENGTH * np.sqrt(len(spread)) * spread)
    priors: dict[tuple[int, str], Prior] = {}
    for slot in learned_slots(kernel):
        if slot.name == "lengthscale":
            centre = centres if slot.size == len(spread) else np.full(slot.size, centres.mean())
            priors[slot.primitive, slot.name] = _Weak(centre, lengths)
        elif slot.name == "variance":
            priors[slot.primitive, slot.name] = _Weak(np.zeros(1), variances)
    return Beliefs(priors=priors, noise=Noise(belief=_Weak(np.log([_NOISE]), noise)))


def widening(num_rows: int, num_means: int) -> float:
    """Return by how much variances grow for the scale of few rows not to be known."""
    freedom = max(num_rows - num_means, 1)
    ends = (1 + _LEVEL) / 2
    return 1.0 if num_rows >= MANY else float(t.ppf(ends, freedom) / norm.ppf(ends)) ** 2
