"""Every family that is a series on a lattice, small, with the kernels it takes."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from orthogp.features import (
    Box,
    Eigenfunction,
    Features,
    Harmonic,
    Hermite,
    Polynomial,
    RandomFourier,
    Trig,
    VariationalFourier,
)
from orthogp.features.series import SeriesFeatures, for_kernel
from orthogp.kernels import Kernel, components
from orthogp.statistics import FrequencyLattice
from tests.problems import CENTRE, Entry, zoo

#: How many features, by number of columns.
COUNTS = {1: 17, 2: 25, 3: 27}


class Family(NamedTuple):
    """A family, and the names of the kernels it takes (`None`: all)."""

    name: str
    make: Callable[[int], Features]
    kernels: tuple[str, ...] | None = None
    most_dims: int = 3


MATERNS = ("matern12", "matern32", "matern52")
FAMILIES = [
    Family("trig", Trig),
    Family("hermite", Hermite),
    Family("legendre", Polynomial),
    Family("laguerre", partial(Polynomial, kind="laguerre")),
    Family("box", Box),
    Family("eigenfunction", Eigenfunction, ("rbf",)),
    Family("variational-fourier", VariationalFourier, MATERNS, most_dims=1),
    Family("harmonic", Harmonic),
    Family("random-fourier", RandomFourier),
]


def pairs(*dims: int) -> list[tuple[int, Family, Entry]]:
    """Every family with every kernel that it takes, by number of columns."""
    return [
        (num_dims, family, entry)
        for num_dims in dims
        for family in FAMILIES
        if num_dims <= family.most_dims
        for entry in zoo(num_dims)
        if family.kernels is None or entry.name in family.kernels
    ]


def label(value: object) -> str | None:
    """An identifier for `pytest.mark.parametrize`."""
    if isinstance(value, Family | Entry):
        return value.name
    return f"{value}D" if isinstance(value, int) else None


def on_lattice(
    family: Family, kernel: Kernel, lattice: FrequencyLattice, count: int | None = None
) -> SeriesFeatures:
    """The family placed for the box of the test data, on a lattice."""
    num_dims = lattice.num_dims
    # An additive kernel takes that many for each component.
    each = count or (COUNTS[num_dims] if len(components(kernel, num_dims)) == 1 else 7)
    made = for_kernel(family.make(each), kernel, num_dims)
    centre = CENTRE[:num_dims]
    series = made.placed(kernel, centre - 1, centre + 1, lattice).on(lattice)
    assert series is not None
    return series
