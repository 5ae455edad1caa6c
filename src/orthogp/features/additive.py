"""One family for each component of an additive kernel."""

from __future__ import annotations

from typing import Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.errors import FeatureError
from orthogp.features.base import Features, as_rows
from orthogp.features.series import MassSeries, SeriesFeatures
from orthogp.kernels import Kernel, components
from orthogp.precision import AnyArray
from orthogp.statistics import FrequencyLattice


class Additive(Features):
    """The features of independent processes, side by side.

        f(x) = Σ_j f_j(x_{dims_j}),   u = (u_1, u_2, …),   φ = (φ_1(x_{dims_1}), φ_2(x_{dims_2}), …)

    Parameters
    ----------
    parts : tuple of Features
        One for each component of the kernel, in the order of `orthogp.kernels.components`.
    dims : tuple of tuples
        The columns of each.
    """

    parts: tuple[Features, ...]
    dims: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    @property
    def num_features(self) -> int:
        """The number of features of all parts together."""
        return sum(part.num_features for part in self.parts)

    @property
    def projects(self) -> bool:  # type: ignore[override]
        """Whether the features of every part are those of its process."""
        return all(part.projects for part in self.parts)

    def evaluate(self, kernel: Kernel, X: NDArray) -> NDArray[np.float64]:
        """Return the features of all parts, (n, m)."""
        X = as_rows(X)
        kernels = self._kernels(kernel, X.shape[1])
        return np.concatenate(
            [
                part.evaluate(own, X[:, list(dims)])
                for part, own, dims in zip(self.parts, kernels, self.dims, strict=True)
            ],
            axis=1,
        )

    def check(self, kernel: Kernel, num_dims: int) -> None:
        """Check every part with its own kernel."""
        for part, own, dims in zip(
            self.parts, self._kernels(kernel, num_dims), self.dims, strict=True
        ):
            part.check(own, len(dims))

    def placed(
        self,
        kernel: Kernel,
        lower: NDArray[np.float64],
        upper: NDArray[np.float64],
        lattice: FrequencyLattice | None = None,
    ) -> Self:
        """Return a copy with every part placed on its own columns."""
        return self._each("placed", kernel, lower, upper, lattice)

    def adjusted(
        self,
        kernel: Kernel,
        lower: NDArray[np.float64],
        upper: NDArray[np.float64],
        lattice: FrequencyLattice | None = None,
    ) -> Self:
        """Return a copy with every part placed again."""
        return self._each("adjusted", kernel, lower, upper, lattice)

    def _each(
        self,
        method: str,
        kernel: Kernel,
        lower: NDArray[np.float64],
        upper: NDArray[np.float64],
        lattice: FrequencyLattice | None,
    ) -> Self:
        kernels = self._kernels(kernel, len(lower))
        parts = []
        for part, own, dims in zip(self.parts, kernels, self.dims, strict=True):
            columns = list(dims)
            axes = None if lattice is None else _axes(lattice, dims)
            parts.append(getattr(part, method)(own, lower[columns], upper[columns], axes))
        return type(self)(tuple(parts), self.dims)

    def wanted_period(
        self, kernel: Kernel, width: NDArray[np.float64]
    ) -> NDArray[np.float64] | None:
        """Return the longest period that a part wants along each column, if all want one, (d,)."""
        period = width.copy()
        kernels = self._kernels(kernel, len(width))
        for part, own, dims in zip(self.parts, kernels, self.dims, strict=True):
            columns = list(dims)
            wanted = part.wanted_period(own, width[columns])
            if wanted is None:
                return None
            period[columns] = np.maximum(period[columns], wanted)
        return period

    def on(self, lattice: FrequencyLattice) -> AdditiveSeries | None:
        """Return all parts as series on their planes of the lattice, if they are such."""
        series = []
        for part, dims in zip(self.parts, self.dims, strict=True):
            own = part.on(_axes(lattice, dims))
            if own is None:
                return None
            series.append(own)
        return AdditiveSeries.join(lattice, tuple(series), self.dims)

    def _kernels(self, kernel: Kernel, num_dims: int) -> list[Kernel]:
        parts = components(kernel, num_dims)
        if tuple(dims for dims, _ in parts) != self.dims:
            raise FeatureError(
                f"The features are for components on columns {self.dims}, but the kernel has "
                f"components on {tuple(dims for dims, _ in parts)}."
            )
        return [own for _, own in parts]


class AdditiveSeries(SeriesFeatures):
    """The parts' series, each on the plane of the lattice where the other frequencies vanish."""

    lattice: FrequencyLattice = eqx.field(static=True)
    indices: NDArray[np.int64]
    odd: NDArray[np.bool_]
    parts: tuple[SeriesFeatures, ...]
    dims: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    #: Where each part's indices stand among all, and with which sign, for its sines.
    positions: tuple[NDArray[np.int64], ...]
    signs: tuple[NDArray[np.float64], ...]

    @classmethod
    def join(
        cls,
        lattice: FrequencyLattice,
        parts: tuple[SeriesFeatures, ...],
        dims: tuple[tuple[int, ...], ...],
    ) -> Self:
        """Return the series of all parts over the union of their indices."""
        half: dict[tuple[int, ...], int] = {(0,) * lattice.num_dims: 0}
        positions, signs = [], []
        for part, own in zip(parts, dims, strict=True):
            embedded = np.zeros((len(part.indices), lattice.num_dims), dtype=np.int64)
            embedded[:, list(own)] = part.indices
            at, sign = [], []
            for index in map(tuple, embedded.tolist()):
                mirrored = tuple(-t for t in index)
                turned = mirrored in half and any(index)
                at.append(half.setdefault(mirrored if turned else index, len(half)))
                sign.append(-1.0 if turned else 1.0)
            positions.append(np.array(at))
            signs.append(np.array(sign))
        return cls(
            lattice=lattice,
            indices=np.array(list(half), dtype=np.int64),
            odd=np.concatenate([part.odd for part in parts]),
            parts=parts,
            dims=dims,
            positions=tuple(positions),
            signs=tuple(signs),
        )

    @property
    def projects(self) -> bool:  # type: ignore[override]
        """Whether the features of every part are those of its process."""
        return all(part.projects for part in self.parts)

    def coefficients(self, kernel: Kernel) -> Float[AnyArray, "m s"]:
        """Return the parts' coefficients, each in its own columns."""
        kernels = [own for _, own in components(kernel, self.lattice.num_dims)]
        blocks = []
        for part, own, at, sign in zip(
            self.parts, kernels, self.positions, self.signs, strict=True
        ):
            values = part.coefficients(own)
            turned = jnp.where(jnp.asarray(part.odd)[:, None], values * sign, values)
            empty = jnp.zeros((values.shape[0], len(self.indices)))
            blocks.append(empty.at[:, at].add(turned))
        return jnp.concatenate(blocks)


def _axes(lattice: FrequencyLattice, dims: tuple[int, ...]) -> FrequencyLattice:
    """Return the lattice along some columns."""
    own = list(dims)
    return FrequencyLattice(lattice.spacing[own], lattice.extent[own], lattice.centre[own])


def for_kernel(family: Features, kernel: Kernel, num_dims: int) -> Features:
    """Return the family, or for an additive kernel one copy of it for each component."""
    parts = components(kernel, num_dims)
    whole = len(parts) == 1 and parts[0][0] == tuple(range(num_dims))
    if whole or not family.by_component or isinstance(family, Additive):
        return family
    return Additive(tuple(family for _ in parts), tuple(dims for dims, _ in parts))


def is_wrapped(features: SeriesFeatures) -> bool:
    """Return whether the features are those of the wrapped prior, not of the kernel's own."""
    if isinstance(features, AdditiveSeries):
        return all(is_wrapped(part) for part in features.parts)
    return isinstance(features, MassSeries)
