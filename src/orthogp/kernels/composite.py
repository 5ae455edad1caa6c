r"""Kernels made of kernels: sums, products, and kernels on some of the columns.

On the lattice ω_t the modes of a sum have the sum of the terms' masses. Those of a product whose
factors see different columns have the product of the factors' masses; a kernel on some columns has
masses only where the frequencies of the other columns vanish.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from operator import add, mul
from typing import Any, ClassVar, Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from orthogp.errors import KernelError
from orthogp.kernels.base import AMPLITUDES, Columns, Kernel, Scalar, Vector, Vectors


class Combination(Kernel):
    """Several kernels combined; whatever concerns each part by itself is forwarded to the parts."""

    compound = True
    #: Makes one covariance of two.
    operation: ClassVar[Callable[[Any, Any], Any]]

    @property
    @abstractmethod
    def parts(self) -> tuple[Kernel, ...]:
        """The kernels that are combined."""

    def with_parts(self, parts: Iterable[Kernel]) -> Self:
        """Return the same combination of other kernels."""
        return type(self)(tuple(parts))  # type: ignore[call-arg]

    def k(self, lag: Vector) -> Scalar:
        """Return the sum or product of the k_i(τ)."""
        return reduce(self.operation, (part.k(lag) for part in self.parts))

    def prior_variance(self) -> Scalar:
        """Return the sum or product of the k_i(0)."""
        return reduce(self.operation, (part.prior_variance() for part in self.parts))

    def wrapped(self, lag: Vector, period: Vector) -> Scalar:
        """Return the sum or product of the wrapped covariances."""
        return reduce(self.operation, (part.wrapped(lag, period) for part in self.parts))

    def primitives(self) -> Iterator[tuple[Kernel, Columns | None]]:
        """Yield the primitives of every part."""
        for part in self.parts:
            yield from part.primitives()

    def with_primitives(self, primitives: Iterator[Kernel]) -> Self:
        """Return the combination with its primitives replaced."""
        return self.with_parts(part.with_primitives(primitives) for part in self.parts)

    def with_columns(self, renamed: dict[int, int]) -> Self:
        """Return the combination with the columns of its parts renamed."""
        return self.with_parts(part.with_columns(renamed) for part in self.parts)

    def fix(self, *names: str) -> Self:
        """Return a copy in which the named parameters of every part that has them are fixed."""
        known = {name for primitive, _ in self.primitives() for name in primitive.parameters()}
        if unknown := [name for name in names if name not in known]:
            raise KernelError(
                f"No kernel of the {self.label.lower()} has a parameter {unknown[0]!r}."
            )
        return self.with_primitives(
            primitive.fix(*held)
            if (held := [name for name in names or known if name in primitive.parameters()])
            else primitive
            for primitive, _ in self.primitives()
        )

    @property
    def has_lattice(self) -> bool:
        """Whether all parts have masses on lattices."""
        return all(part.has_lattice for part in self.parts)

    def check(self, num_dims: int) -> None:
        """Check every part."""
        for part in self.parts:
            part.check(num_dims)


class Sum(Combination):
    """The sum of kernels: independent processes added up."""

    terms: tuple[Kernel, ...]

    operation = staticmethod(add)

    @classmethod
    def of(cls, kernels: Sequence[Kernel]) -> Kernel:
        """Return the sum of kernels, or the only one."""
        return kernels[0] if len(kernels) == 1 else cls(tuple(kernels))

    @property
    def parts(self) -> tuple[Kernel, ...]:
        """The terms."""
        return self.terms

    @property
    def summands(self) -> tuple[Kernel, ...]:
        """The terms."""
        return self.terms

    def spectral_density(self, omega: Vector) -> Scalar:
        """Return Σ S_i(ω)."""
        return reduce(add, (term.spectral_density(omega) for term in self.terms))

    def derivative_variance(self, num_dims: int) -> Vector:
        """Return the sum of the terms' derivative variances."""
        return reduce(add, (term.derivative_variance(num_dims) for term in self.terms))

    def mass(self, omega: Vector, spacing: Vector) -> Scalar:
        """Return the sum of the terms' masses."""
        return reduce(add, (term.mass(omega, spacing) for term in self.terms))

    def scaled(self, factor: float) -> Sum:
        """Return the sum with every term scaled."""
        return self.with_parts(term.scaled(factor) for term in self.terms)

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.terms))


class Product(Combination):
    """The product of kernels, written `kernel.on(0) * other.on(1)`.

        k(τ) = ∏_j k_j(τ_{dims_j}),      S(ω) = ∏_j S_j(ω_{dims_j}),      mass = ∏_j mass_j

    Where factors share columns S is a convolution, which is not computed: such a kernel serves the
    engines that take its covariance at the rows themselves.

    Only the product of the variances can be learned: `*` gives it to one factor and fixes the
    variance of every other at 1. A factor with several variances (a sum, a mixture) keeps them,
    since their ratios matter, and carries the whole if there is one.
    """

    factors: tuple[Kernel, ...]

    operation = staticmethod(mul)

    @property
    def has_lattice(self) -> bool:
        """Whether each factor has masses on lattices, and columns of its own."""
        seen: set[int] = set()
        for factor in self.factors:
            named = [dims for _, dims in factor.primitives()]
            columns = {column for dims in named if dims is not None for column in dims}
            if None in named or columns & seen:
                return False
            seen |= columns
        return super().has_lattice

    @property
    def parts(self) -> tuple[Kernel, ...]:
        """The factors."""
        return self.factors

    def spectral_density(self, omega: Vector) -> Scalar:
        """Return ∏ S_j(ω) if the factors see all columns, else raise `KernelError`."""
        self._demand_lattice()
        _check_all_columns("product", self.columns(omega.shape[0]), omega)
        parts = self._restricted(omega.shape[0])
        return reduce(mul, (factor.spectral_density(omega[dims]) for dims, factor in parts))

    def derivative_variance(self, num_dims: int) -> Vector:
        """Return the derivative variances of each factor times the variances of the others."""
        total = jnp.zeros(num_dims)
        for j, factor in enumerate(self.factors):
            others = (other.prior_variance() for i, other in enumerate(self.factors) if i != j)
            total += reduce(mul, others, factor.derivative_variance(num_dims))
        return total

    def mass(self, omega: Vector, spacing: Vector) -> Scalar:
        """Return ∏ mass_j where the frequencies of all other columns vanish, zero elsewhere."""
        self._demand_lattice()
        parts = self._restricted(omega.shape[0])
        masses = (factor.mass(omega[dims], spacing[dims]) for dims, factor in parts)
        return _on_plane(omega, self.columns(omega.shape[0]), reduce(mul, masses))

    def frequencies(self, normals: Vectors, uniforms: Vectors) -> Vectors:
        """Return frequencies whose columns are those of the factors, independent of each other."""
        self._demand_lattice()
        return reduce(add, (factor.frequencies(normals, uniforms) for factor in self.factors))

    def scaled(self, factor: float) -> Product:
        """Return the product with the factor that carries the variance scaled."""
        carrier = _carrier(self.factors)
        return self.with_parts(
            part.scaled(factor) if j == carrier else part for j, part in enumerate(self.factors)
        )

    def __repr__(self) -> str:
        return " * ".join(map(_parenthesised, self.factors))

    def _demand_lattice(self) -> None:
        if not self.has_lattice:
            raise KernelError(
                "The spectral density of a product on shared columns is not computed: use "
                'GPRegressor with features="auto" or "inducing-points".'
            )

    def _restricted(self, num_dims: int) -> Iterator[tuple[np.ndarray, Kernel]]:
        """Yield each factor's columns, and the factor relative to them."""
        for factor in self.factors:
            dims = factor.columns(num_dims)
            yield np.array(dims), factor.with_columns({d: i for i, d in enumerate(dims)})


class OnColumns(Kernel):
    """A kernel inside another one that says which columns the first sees."""

    kernel: eqx.AbstractVar[Kernel]
    dims: eqx.AbstractVar[Columns]

    def prior_variance(self) -> Scalar:
        """Return k(0)."""
        return self.kernel.prior_variance()

    def primitives(self) -> Iterator[tuple[Kernel, Columns | None]]:
        """Yield the inner primitives with their columns."""
        for primitive, inner in self.kernel.primitives():
            yield primitive, self.dims if inner is None else tuple(self.dims[d] for d in inner)

    def with_primitives(self, primitives: Iterator[Kernel]) -> Self:
        """Return a copy with the inner primitives replaced."""
        return replace(self, kernel=self.kernel.with_primitives(primitives))

    def with_columns(self, renamed: dict[int, int]) -> Self:
        """Return a copy on the renamed columns; those inside are relative to them."""
        return replace(self, dims=tuple(renamed[d] for d in self.dims))

    @property
    def has_lattice(self) -> bool:
        """Whether the inner kernel has masses on lattices."""
        return self.kernel.has_lattice

    def fix(self, *names: str) -> Self:
        """Return a copy with parameters of the inner kernel fixed."""
        return replace(self, kernel=self.kernel.fix(*names))

    def scaled(self, factor: float) -> Self:
        """Return a copy with the inner kernel scaled."""
        return replace(self, kernel=self.kernel.scaled(factor))

    def check(self, num_dims: int) -> None:
        """Raise `KernelError` unless X has the columns."""
        if max(self.dims) >= num_dims:
            raise KernelError(
                f"The kernel acts on column {max(self.dims)}, but X has {num_dims} columns "
                "(counted from 0)."
            )


class On(OnColumns):
    """A kernel that sees some columns only and is constant along the others.

    Its spectral measure sits on the plane where the other frequencies vanish, so it has masses on a
    lattice, but no density.
    """

    kernel: Kernel
    dims: Columns = eqx.field(static=True)

    def __check_init__(self) -> None:
        # Names stay until a model that is fitted to a data frame replaces them by numbers.
        there = self.dims and all(
            isinstance(d, str) or (isinstance(d, int) and d >= 0) for d in self.dims
        )
        if not there or len(set(self.dims)) != len(self.dims):
            raise KernelError(
                f"Columns must be distinct, and named or counted from 0, got {self.dims}: "
                'write for example kernel.on(0), kernel.on(0, 2) or kernel.on("time").'
            )
        if named := self.kernel.column_names:
            raise KernelError(
                f"Column {named[0]!r} is named inside a kernel on other columns: count those "
                "inside from 0."
            )

    def k(self, lag: Vector) -> Scalar:
        """Return the covariance at the lag along the kernel's columns."""
        return self.kernel.k(lag[np.array(self.dims)])

    def spectral_density(self, omega: Vector) -> Scalar:
        """Return the density if the kernel sees all columns, else raise `KernelError`."""
        _check_all_columns("kernel", self.dims, omega)
        return self.kernel.spectral_density(omega[np.array(self.dims)])

    def derivative_variance(self, num_dims: int) -> Vector:
        """Return the derivative variances, zero along the other columns."""
        inner = self.kernel.derivative_variance(len(self.dims))
        return jnp.zeros(num_dims).at[np.array(self.dims)].set(inner)

    def mass(self, omega: Vector, spacing: Vector) -> Scalar:
        """Return the mass on the plane where the other frequencies vanish, zero elsewhere."""
        at = np.array(self.dims)
        return _on_plane(omega, self.dims, self.kernel.mass(omega[at], spacing[at]))

    def wrapped(self, lag: Vector, period: Vector) -> Scalar:
        """Return the covariance wrapped along the kernel's columns."""
        at = np.array(self.dims)
        return self.kernel.wrapped(lag[at], period[at])

    def correlation_across(self, gap: float) -> float:
        """Return that of the kernel on its column."""
        return self.kernel.correlation_across(gap)

    def frequencies(self, normals: Vectors, uniforms: Vectors) -> Vectors:
        """Return frequencies along the kernel's columns, zero along the others."""
        at = np.array(self.dims)
        drawn = self.kernel.frequencies(normals[:, at], uniforms[:, at])
        return jnp.zeros(normals.shape).at[:, at].set(drawn)

    def check(self, num_dims: int) -> None:
        """Check that the columns exist and that the inner kernel fits them."""
        super().check(num_dims)
        self.kernel.check(len(self.dims))

    def __repr__(self) -> str:
        return f"{_parenthesised(self.kernel)}.on({', '.join(map(repr, self.dims))})"


def product(left: Kernel, right: Kernel) -> Product:
    """Return the product of two kernels, with one variance to learn."""
    checked = Product((*_flat(left), *_flat(right)))
    carrier = _carrier(checked.factors)
    variances = {
        j: float(amplitudes[0].parameters()["variance"])
        for j, factor in enumerate(checked.factors)
        if j != carrier and _is_single(amplitudes := _amplitudes(factor))
    }
    return checked.with_parts(
        factor.scaled(1 / variances[j]).fix("variance") if j in variances else factor
        for j, factor in enumerate(checked.factors)
    ).scaled(math.prod(variances.values()))


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
    some = [j for j, found in enumerate(amplitudes) if found]
    free = [j for j in some if any(set(AMPLITUDES).isdisjoint(p.fixed) for p in amplitudes[j])]
    several = [j for j in free if not _is_single(amplitudes[j])]
    if not some:
        raise KernelError("A product needs a factor with a variance, got none.")
    return (several + free + some)[0]


def _amplitudes(kernel: Kernel) -> list[Kernel]:
    """Return the primitives that have a variance or weights."""
    primitives = [primitive for primitive, _ in kernel.primitives()]
    return [p for p in primitives if set(AMPLITUDES) & set(p.parameters())]


def _is_single(amplitudes: list[Kernel]) -> bool:
    return len(amplitudes) == 1 and "variance" in amplitudes[0].parameters()


def _check_all_columns(what: str, columns: Columns, omega: Vector) -> None:
    if len(columns) != omega.shape[0]:
        raise KernelError(
            f"A {what} on some of the columns has no spectral density over all of them; use its "
            "masses on a lattice."
        )


def _on_plane(omega: Vector, columns: Columns, mass: Scalar) -> Scalar:
    """Return the mass where the frequencies of all other columns vanish, zero elsewhere."""
    others = np.setdiff1d(np.arange(omega.shape[0]), columns)
    return jnp.where(jnp.all(omega[others] == 0), mass, 0.0)


def _parenthesised(kernel: Kernel) -> str:
    return f"({kernel!r})" if kernel.compound else repr(kernel)


def _added(left: Kernel, right: Kernel) -> Sum:
    """Return the sum of two kernels, with the terms of both."""
    return Sum((*left.summands, *right.summands))


Kernel.sum_of = _added
Kernel.product_of = product
Kernel.place_on_columns = On
