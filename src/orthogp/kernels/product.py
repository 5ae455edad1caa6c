"""Products of kernels, each on columns of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import reduce
from operator import mul

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from orthogp.errors import KernelError
from orthogp.kernels.base import Kernel, On
from orthogp.precision import AnyArray

# The parameters that only scale a kernel.
_AMPLITUDES = ("variance", "weights")


class Product(Kernel):
    """The product of kernels on disjoint columns, written `kernel.on(0) * other.on(1)`.

        k(τ) = ∏_j k_j(τ_{dims_j}),      S(ω) = ∏_j S_j(ω_{dims_j}),      mass = ∏_j mass_j

    Only the product of the variances can be learned: `*` gives it to one factor and fixes the
    variance of every other at 1. A factor with several variances (a sum, a mixture) keeps them,
    since their ratios matter, and carries the whole if there is one.
    """

    factors: tuple[Kernel, ...]

    compound = True

    def __check_init__(self) -> None:
        seen: set[int] = set()
        for factor in self.factors:
            named = [dims for _, dims in factor.primitives()]
            own = {column for dims in named if dims is not None for column in dims}
            if None in named or own & seen:
                raise KernelError(
                    f"The factors of a product must act on columns of their own, got {self!r}: "
                    "write for example RBF().on(0) * Matern32().on(1)."
                )
            seen |= own

    def k(self, lag: Float[AnyArray, " d"]) -> Float[AnyArray, ""]:
        """Return ∏ k_j(τ)."""
        return _multiply(factor.k(lag) for factor in self.factors)

    def spectral_density(self, omega: Float[AnyArray, " d"]) -> Float[AnyArray, ""]:
        """Return ∏ S_j(ω) if the factors see all columns, else raise `KernelError`."""
        if len(self.columns(omega.shape[0])) != omega.shape[0]:
            raise KernelError(
                "A product on some of the columns has no spectral density over all of them; use "
                "its masses on a lattice."
            )
        return _multiply(
            own.spectral_density(omega[dims]) for dims, own in self._restricted(omega.shape[0])
        )

    def prior_variance(self) -> Float[AnyArray, ""]:
        """Return ∏ k_j(0)."""
        return _multiply(factor.prior_variance() for factor in self.factors)

    def derivative_variance(self, num_dims: int) -> Float[AnyArray, " d"]:
        """Return the derivative variances of each factor times the variances of the others."""
        total = jnp.zeros(num_dims)
        for j, factor in enumerate(self.factors):
            others = (other.prior_variance() for i, other in enumerate(self.factors) if i != j)
            total += factor.derivative_variance(num_dims) * _multiply(others)
        return total

    def mass(
        self, omega: Float[AnyArray, " d"], spacing: Float[AnyArray, " d"]
    ) -> Float[AnyArray, ""]:
        """Return ∏ mass_j where the frequencies of all other columns vanish, zero elsewhere."""
        num_dims = omega.shape[0]
        others = np.setdiff1d(np.arange(num_dims), self.columns(num_dims))
        masses = (own.mass(omega[dims], spacing[dims]) for dims, own in self._restricted(num_dims))
        return jnp.where(jnp.all(omega[others] == 0), _multiply(masses), 0.0)

    def wrapped(
        self, lag: Float[AnyArray, " d"], period: Float[AnyArray, " d"]
    ) -> Float[AnyArray, ""]:
        """Return the product of the wrapped factors."""
        return _multiply(factor.wrapped(lag, period) for factor in self.factors)

    def frequencies(
        self, normals: Float[AnyArray, "r d"], uniforms: Float[AnyArray, "r d"]
    ) -> Float[AnyArray, "r d"]:
        """Return frequencies whose columns are those of the factors, independent of each other."""
        return sum(
            (factor.frequencies(normals, uniforms) for factor in self.factors),
            start=jnp.zeros(normals.shape),
        )

    def primitives(self) -> Iterator[tuple[Kernel, tuple[int, ...] | None]]:
        """Yield the primitives of every factor."""
        for factor in self.factors:
            yield from factor.primitives()

    def with_primitives(self, primitives: Iterator[Kernel]) -> Product:
        """Return the product with its primitives replaced."""
        return Product(tuple(factor.with_primitives(primitives) for factor in self.factors))

    def with_columns(self, renamed: dict[int, int]) -> Product:
        """Return the product with the columns of its factors renamed."""
        return Product(tuple(factor.with_columns(renamed) for factor in self.factors))

    def fix(self, *names: str) -> Product:
        """Return a copy in which the named parameters of every factor that has them are fixed."""
        known = {name for primitive, _ in self.primitives() for name in primitive.parameters()}
        if unknown := [name for name in names if name not in known]:
            raise KernelError(f"No factor of the product has a parameter {unknown[0]!r}.")
        return self.with_primitives(
            primitive.fix(*held)
            if (held := [name for name in names or known if name in primitive.parameters()])
            else primitive
            for primitive, _ in self.primitives()
        )

    def scaled(self, factor: float) -> Product:
        """Return the product with the factor that carries the variance scaled."""
        carrier = _carrier(self.factors)
        return Product(
            tuple(own.scaled(factor) if j == carrier else own for j, own in enumerate(self.factors))
        )

    def check(self, num_dims: int) -> None:
        """Check every factor."""
        for factor in self.factors:
            factor.check(num_dims)

    def __repr__(self) -> str:
        return " * ".join(
            f"({factor!r})" if factor.compound else repr(factor) for factor in self.factors
        )

    def _restricted(self, num_dims: int) -> Iterator[tuple[np.ndarray, Kernel]]:
        """Yield each factor's columns, and the factor relative to them."""
        for factor in self.factors:
            dims = factor.columns(num_dims)
            yield np.array(dims), factor.with_columns({d: i for i, d in enumerate(dims)})


def product(left: Kernel, right: Kernel) -> Product:
    """Return the product of two kernels, with one variance to learn."""
    checked = Product((*_flat(left), *_flat(right)))
    carrier = _carrier(checked.factors)
    variances = {
        j: float(amplitudes[0].parameters()["variance"])
        for j, factor in enumerate(checked.factors)
        if j != carrier and _is_single(amplitudes := _amplitudes(factor))
    }
    return Product(
        tuple(
            factor.scaled(1 / variances[j]).fix("variance") if j in variances else factor
            for j, factor in enumerate(checked.factors)
        )
    ).scaled(math.prod(variances.values()))


Kernel.multiply = product


def _flat(kernel: Kernel) -> tuple[Kernel, ...]:
    """Return the factors of a product, also of one that sits on some columns."""
    if isinstance(kernel, On) and isinstance(kernel.kernel, Product):
        kernel = kernel.kernel.with_columns(dict(enumerate(kernel.dims)))
    return kernel.factors if isinstance(kernel, Product) else (kernel,)


def _carrier(factors: tuple[Kernel, ...]) -> int:
    """Return which factor's variance is that of the product.

    The first with several variances to learn, else the first with one, else the first with any.
    """
    amplitudes = [_amplitudes(factor) for factor in factors]
    some = [j for j, own in enumerate(amplitudes) if own]
    free = [j for j in some if any(set(_AMPLITUDES).isdisjoint(o.fixed) for o in amplitudes[j])]
    several = [j for j in free if not _is_single(amplitudes[j])]
    if not some:
        raise KernelError("A product needs a factor with a variance, got none.")
    return (several + free + some)[0]


def _amplitudes(kernel: Kernel) -> list[Kernel]:
    """Return the primitives that have a variance or weights."""
    return [own for own, _ in kernel.primitives() if set(_AMPLITUDES) & set(own.parameters())]


def _is_single(amplitudes: list[Kernel]) -> bool:
    return len(amplitudes) == 1 and "variance" in amplitudes[0].parameters()


def _multiply(values: Iterator[Float[AnyArray, "..."]]) -> Float[AnyArray, "..."]:
    return reduce(mul, values)
