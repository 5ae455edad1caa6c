"""The tables of docs/families.md: `python docs/tabulate_families.py` prints them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orthogp import FrequencyLattice
from orthogp.errors import FeatureError
from orthogp.features import (
    Box,
    Eigenfunction,
    Features,
    Harmonic,
    Hermite,
    InducingPoints,
    Lattice,
    MassSeries,
    Polynomial,
    RandomFourier,
    SpectralFeatures,
    Trig,
    TwoBlock,
    VariationalFourier,
)
from orthogp.features.inducing import covariance_matrix
from orthogp.kernels import RBF, Kernel, Matern32
from orthogp.learning.limits import required_period
from orthogp.precision import in_double

Array = NDArray[np.float64]

LOWER, UPPER = np.array([-1.0]), np.array([1.0])
POINTS = np.linspace(-1, 1, 201)[:, None]
WRAP_TOLERANCE = 1e-4

POLYNOMIALS: dict[str, dict[str, Any]] = {
    "legendre": {"kind": "legendre"},
    "chebyshev": {"kind": "chebyshev"},
    "chebyshev2": {"kind": "chebyshev2"},
    "gegenbauer, α = 2": {"kind": "gegenbauer", "alpha": 2.0},
    "jacobi, α = 1/2, β = 0": {"kind": "jacobi", "alpha": 0.5, "beta": 0.0},
    "laguerre": {"kind": "laguerre"},
}
FAMILIES: dict[str, Callable[[int], Features]] = {
    "Trig": Trig,
    "Hermite": Hermite,
    "Eigenfunction": Eigenfunction,
    **{
        f"Polynomial, {kind}": partial(Polynomial, **parameters)
        for kind, parameters in POLYNOMIALS.items()
    },
    "Box": Box,
    "VariationalFourier": VariationalFourier,
    "Harmonic, constrained": partial(Harmonic, constrained=True),
    "InducingPoints, even grid": InducingPoints,
    "TwoBlock, Trig + InducingPoints": lambda m: TwoBlock(Trig(m // 2 + 1), InducingPoints(m // 2)),
}
COLUMNS = [(kernel, m) for kernel in (Matern32(1.0, 0.1), RBF(1.0, 0.1)) for m in (41, 81)]


def variance_table() -> Iterator[str]:
    """Mean share of prior variance left out over [−1, 1], ℓ = 0.1, with open parameters placed.

    Two numbers: the family's own features / those with nodes on the shortest lattice.
    """
    names = [f"{type(kernel).__name__}, {m}" for kernel, m in COLUMNS]
    yield f"| family | {' | '.join(names)} |"
    yield "|---" * (1 + len(COLUMNS)) + "|"
    yield row("best possible", [share(best_possible(kernel, m)) for kernel, m in COLUMNS])
    lattice_shares = [
        share(
            float(
                Lattice.select(kernel, shortest_lattice(kernel), m).residual_variance(
                    kernel, POINTS
                )[0]
            )
        )
        for kernel, m in COLUMNS
    ]
    yield row("Lattice", lattice_shares)
    for name, make in FAMILIES.items():
        yield row(name, [left_out(make, kernel, m) for kernel, m in COLUMNS])


def left_out(make: Callable[[int], Features], kernel: Kernel, num_features: int) -> str:
    try:
        placed = make(num_features).placed(kernel, LOWER, UPPER)
    except FeatureError:
        return "–"
    own = share(float(np.mean(placed.residual_variance(kernel, POINTS))))
    if not isinstance(placed, SpectralFeatures):
        return own
    lattice = shortest_lattice(kernel)
    series = make(num_features).placed(kernel, LOWER, UPPER, lattice).on(lattice)
    assert series is not None
    return f"{own} / {share(float(np.mean(series.residual_variance(kernel, POINTS))))}"


def best_possible(kernel: Kernel, num_features: int, size: int = 1200) -> float:
    """The eigenvalues beyond the first of ∫ k(x − x') · dx'/2, by Gauss–Legendre quadrature."""
    nodes, weights = np.polynomial.legendre.leggauss(size)
    root = np.sqrt(weights / 2)
    K = np.asarray(covariance_matrix(kernel, nodes[:, None], nodes[:, None]))
    return float(np.sum(np.linalg.eigvalsh(root[:, None] * K * root)[: size - num_features]))


def prior_table() -> Iterator[str]:
    """How far the kernels of families that replace the prior are from k: max |Q − k|/k(0)."""
    yield "| family | " + " | ".join(f"{type(k).__name__}, {m}" for k, m in COLUMNS) + " |"
    yield "|---" * (1 + len(COLUMNS)) + "|"
    families: dict[str, Callable[[int], Features]] = {
        "Harmonic": Harmonic,
        "RandomFourier": RandomFourier,
    }
    for name, make in families.items():
        errors = []
        for kernel, m in COLUMNS:
            Phi = make(m).placed(kernel, LOWER, UPPER).evaluate(kernel, POINTS)
            K = np.asarray(covariance_matrix(kernel, POINTS, POINTS))
            errors.append(share(float(np.max(np.abs(Phi @ Phi.T - K)))))
        yield row(name, errors)


def quadrature_table() -> Iterator[str]:
    """What nodes on a lattice do to Legendre features: Matérn-3/2, ℓ = 0.1, M = 41.

    The smallest eigenvalue of k_P − Q over the points says whether Q ≤ k_P: with the nodes'
    orthonormal basis, and with the basis as it is, which is the plain rectangle rule.
    """
    kernel = Matern32(1.0, 0.1)
    yield "| lattice | nodes | quadrature_error | left out | λ_min, orthonormal | λ_min, plain |"
    yield "|---|---|---|---|---|---|"
    coarse = shortest_lattice(kernel)
    family = Polynomial(41, a=Polynomial(41).placed(kernel, LOWER, UPPER).a)
    for factor in (2, 4, 8, 16):
        lattice = FrequencyLattice(coarse.spacing / factor, factor * coarse.extent, coarse.centre)
        placed = family.placed(kernel, LOWER, UPPER, lattice)
        series = placed.on(lattice)
        K = np.asarray(wrapped_covariances(kernel, lattice))
        yield row(
            f"P = {lattice.period[0]:.3g}",
            [
                str(2 * len(series.indices) - 1),
                share(placed.quadrature_error(kernel, lattice, POINTS[::5])),
                share(float(np.mean(series.residual_variance(kernel, POINTS)))),
                smallest(K, series.evaluate(kernel, POINTS)),
                smallest(K, plain_rule(placed, series).evaluate(kernel, POINTS)),
            ],
        )


def plain_rule(placed: SpectralFeatures, series: MassSeries) -> MassSeries:
    """The same nodes without orthonormality: √h ψ(ω_t), twice for all but index zero."""
    c = float(np.max(np.asarray(placed.dilation)))
    u = series.omegas[:, 0] / c
    values = np.sqrt(series.lattice.spacing[0] / c) * placed.basis(u, placed.num_features)
    values[:, 1:] *= 2
    return MassSeries(series.lattice, series.indices, series.odd, values)


@in_double
def wrapped_covariances(kernel: Kernel, lattice: FrequencyLattice) -> Array:
    lags = np.linspace(0, 2, len(POINTS))
    values = np.array([float(kernel.wrapped(np.array([lag]), lattice.period)) for lag in lags])
    index = np.arange(len(POINTS))
    return values[np.abs(index[:, None] - index)]


def smallest(K: Array, Phi: Array) -> str:
    value = float(np.linalg.eigvalsh(K - Phi @ Phi.T)[0])
    return f"{value:.1e}".replace("e-0", "e-") if abs(value) > 1e-12 else "0"


def shortest_lattice(kernel: Kernel, extent: int = 4000) -> FrequencyLattice:
    """The lattice of the shortest period whose wrapped prior is within 1e-4 of the kernel."""
    period = required_period(kernel, UPPER - LOWER, WRAP_TOLERANCE)
    return FrequencyLattice.for_domain(LOWER, UPPER, period=period, extent=extent)


def share(value: float) -> str:
    return f"{value:.1e}".replace("e-0", "e-") if value > 1e-13 else "< 1e-13"


def row(name: str, cells: list[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


if __name__ == "__main__":
    for table in (variance_table, prior_table, quadrature_table):
        print("\n".join(table()), end="\n\n")
