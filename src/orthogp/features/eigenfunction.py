"""Eigenfunction features: the eigenfunctions of the RBF kernel under Gaussian inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import equinox as eqx
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.errors import FeatureError
from orthogp.features.base import check_scale
from orthogp.features.hermite import (
    HermiteFunctions,
    Terms,
    as_rbf,
    exponential,
    lengthscales,
    r_of_inputs,
)
from orthogp.kernels import RBF, Kernel
from orthogp.precision import AnyArray
from orthogp.statistics import FrequencyLattice


class Eigenfunction(HermiteFunctions):
    r"""Eigenfunctions of the RBF kernel, each times the root of its eigenvalue.

        ∫ k(x, x') e_m(x') N(x'; x₀, σ²) dx' = λ_m e_m(x),      φ_m = √λ_m e_m

    With a = 1/(4σ²), b = 1/(2ℓ²), c = √(a² + 2ab), and h_m = H_m/√(2^m m!) (Rasmussen and Williams
    2006, section 4.3.1):

        λ_m = v √(2a/(a+b+c)) (b/(a+b+c))^m
        e_m(x) = (c/a)^{1/4} e^{−(c−a)(x−x₀)²} h_m(√(2c) (x−x₀))

    Products over the columns are taken in the order of their eigenvalues. If the inputs are drawn
    from that distribution the posterior of these features factorises as their number grows, which
    is what mean-field inference wants (section 3.3 of the paper).

    They are `Hermite` features with 4r⁴ = 4ℓ²σ² + ℓ⁴. In frequency it is r that defines them: on a
    lattice it stays at the value for the kernel of `placed`, while `evaluate` follows the
    lengthscale of the kernel it is given.

    Parameters
    ----------
    num_features : int
        At most 512 in one column.
    input_sd : float or (d,), optional
        σ, the standard deviation of the inputs; chosen for the data unless given.
    lengthscale : (d,)
        Of the kernel the features are placed for; set by `placed`.
    """

    input_sd: Any = eqx.field(default=None, converter=lambda value: check_scale(value, "input_sd"))
    lengthscale: Any = eqx.field(default=None, kw_only=True)

    @property
    def dilation(self) -> NDArray[np.float64] | None:
        """1/r, known once there is a kernel."""
        if self.input_sd is None or self.lengthscale is None:
            return None
        return 1 / r_of_inputs(self.input_sd, self.lengthscale)

    def dilated(self, dilation: NDArray[np.float64]) -> Self:
        """Return a copy with the input_sd that belongs to another r."""
        if np.array_equal(dilation, np.asarray(self.dilation)):
            # Placing asks for what is given; where σ is much smaller than ℓ it would be rounded.
            return self
        variance = (4 * dilation**-4 - self.lengthscale**4) / (4 * self.lengthscale**2)
        if np.any(variance <= 0):
            raise FeatureError(
                f"Eigenfunction needs 2r² > ℓ², got r = {1 / dilation} for lengthscale "
                f"{self.lengthscale}: use Hermite, which takes every r."
            )
        return replace(self, input_sd=np.sqrt(variance))

    def for_inputs(self, input_sd: NDArray[np.float64], lengthscale: NDArray[np.float64]) -> Self:
        """Return a copy with that input_sd, placed for that lengthscale."""
        return replace(self, input_sd=input_sd, lengthscale=lengthscale)

    def check(self, kernel: Kernel, num_dims: int) -> None:
        """Raise `FeatureError` unless the kernel is RBF."""
        _require_rbf(kernel, num_dims)

    def placed(
        self,
        kernel: Kernel,
        lower: NDArray[np.float64],
        upper: NDArray[np.float64],
        lattice: FrequencyLattice | None = None,
    ) -> Self:
        """Return a copy with centre, products and input_sd chosen, for that kernel."""
        rbf = _require_rbf(kernel, len(lower))
        features = self
        if self.input_sd is not None:
            input_sd = np.broadcast_to(self.input_sd, (len(lower),))
            features = self.for_inputs(input_sd, lengthscales(rbf, len(lower)))
        return super(Eigenfunction, features).placed(kernel, lower, upper, lattice)

    def terms(
        self,
        column: int,
        lengthscale: Float[AnyArray, ""],
        variance: Float[AnyArray, ""],
        x: Float[AnyArray, " n"],
    ) -> Terms:
        """Return `eigenfunction_terms` with the column's σ."""
        sd = self.input_sd[column] if self.input_sd.ndim else self.input_sd
        return eigenfunction_terms(variance, lengthscale, sd**2, x)

    def eigenvalues(self, kernel: Kernel) -> NDArray[np.float64]:
        """Return λ_m of the (placed) features, (m,)."""
        orders = np.array(self.orders)
        rbf = _require_rbf(kernel, orders.shape[1])
        a, b, c = _abc(np.asarray(rbf.lengthscale), np.asarray(self.input_sd) ** 2)
        factors = np.sqrt(2 * a / (a + b + c)) * (b / (a + b + c)) ** orders
        return float(rbf.variance) * np.prod(factors, axis=1)

    def free_parameters(self) -> NDArray[np.float64]:
        """Return log σ if it is to be learned with the kernel, (d,) or (0,)."""
        return np.log(np.atleast_1d(self.input_sd)) if self.learn else np.empty(0)

    def with_free_parameters(self, vector: Float[AnyArray, " q"]) -> Self:
        """Return a copy with another σ; the inverse of `free_parameters`."""
        if not self.learn:
            return self
        return eqx.tree_at(lambda own: own.input_sd, self, exponential(vector))


def eigenfunction_terms(
    variance: Float[AnyArray, ""],
    lengthscale: Float[AnyArray, ""],
    input_variance: Float[AnyArray, ""],
    x: Float[AnyArray, " n"],
) -> Terms:
    """Return the terms of √λ_m e_m, so that A² = λ_0 √(c/a), E = (c−a)x², ρ = λ_1/λ_0."""
    a, b, c = _abc(lengthscale, input_variance)
    ratio = b / (a + b + c)
    amplitude = (variance * (2 * c / (a + b + c)) ** 0.5) ** 0.5
    # c − a, without cancellation where σ is much smaller than ℓ.
    decay = 2 * a * b / (a + c)
    return Terms(amplitude, decay * x**2, (2 * c * ratio) ** 0.5 * x, ratio)


def _abc(lengthscale: Any, input_variance: Any) -> tuple[Any, Any, Any]:
    a, b = 1 / (4 * input_variance), 1 / (2 * lengthscale**2)
    return a, b, (a * (a + 2 * b)) ** 0.5


def _require_rbf(kernel: Kernel, num_dims: int) -> RBF:
    rbf = as_rbf(kernel, num_dims)
    if rbf is None:
        raise FeatureError(
            "Eigenfunction needs the RBF kernel, whose eigenfunctions are known, got "
            f"{type(kernel).__name__}: use Hermite, which serves every kernel."
        )
    return rbf
