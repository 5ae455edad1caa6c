"""Feature families: orthonormal inducing features, and their names."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Literal

from orthogp.errors import FeatureError
from orthogp.features.additive import Additive
from orthogp.features.base import Features, PointFeatures, check_count
from orthogp.features.box import Box
from orthogp.features.eigenfunction import Eigenfunction
from orthogp.features.harmonic import Harmonic
from orthogp.features.hermite import Hermite
from orthogp.features.inducing import InducingPoints
from orthogp.features.lattice import AdditiveLattice, Lattice, MeanPrior
from orthogp.features.polynomial import Polynomial
from orthogp.features.random import RandomFourier
from orthogp.features.series import MassSeries, SeriesFeatures
from orthogp.features.spectral import SpectralFeatures
from orthogp.features.trig import Trig
from orthogp.features.two_block import TwoBlock
from orthogp.features.vff import VariationalFourier

__all__ = [
    "EXACT",
    "FEATURE_NAMES",
    "Additive",
    "AdditiveLattice",
    "Box",
    "Eigenfunction",
    "Features",
    "Harmonic",
    "Hermite",
    "InducingPoints",
    "Lattice",
    "MassSeries",
    "MeanPrior",
    "PointFeatures",
    "Polynomial",
    "RandomFourier",
    "SeriesFeatures",
    "SpectralFeatures",
    "Trig",
    "TwoBlock",
    "VariationalFourier",
    "resolve_features",
]

#: What `resolve_features` returns for "exact": no features at all.
EXACT: Final = "exact"

_FAMILIES: dict[str, Callable[[int], Features]] = {
    "trig": Trig,
    "hermite": Hermite,
    "legendre": Polynomial,
    "chebyshev": partial(Polynomial, kind="chebyshev"),
    "box": Box,
    "eigenfunction": Eigenfunction,
    "variational-fourier": VariationalFourier,
    "harmonic": Harmonic,
    "random-fourier": RandomFourier,
    "inducing-points": InducingPoints,
}
FEATURE_NAMES = ("auto", "lattice", *_FAMILIES, EXACT)

# How many features a family has unless told, by number of columns, and on more than those.
_DEFAULT_COUNTS = {1: 201, 2: 441, 3: 512}
_MANY_COLUMNS_COUNT = 512


def resolve_features(
    features: str | Features, num_features: int | str, num_dims: int
) -> Features | Literal["exact"] | None:
    """Return the family that a user named or made, or `None` for the lattice."""
    if isinstance(features, Lattice):
        raise FeatureError(
            'A regressor makes its own Lattice features: use features="lattice", num_features=….'
        )
    if isinstance(features, Features):
        if num_features not in ("auto", features.num_features):
            raise FeatureError(
                f"num_features is {num_features}, but the features have {features.num_features}: "
                "give the number in one place."
            )
        return features
    if not isinstance(features, str) or features not in FEATURE_NAMES:
        raise FeatureError(
            f"features must be one of {', '.join(FEATURE_NAMES)}, or an object of "
            f"orthogp.features, got {features!r}."
        )
    if features in ("auto", "lattice"):
        return None
    if features == EXACT:
        return EXACT
    count = _DEFAULT_COUNTS.get(num_dims, _MANY_COLUMNS_COUNT)
    return _FAMILIES[features](count if num_features == "auto" else check_count(num_features))


def takes_any_columns(features: str | Features) -> bool:
    """Return whether the family that a user named or made acts on any number of columns."""
    family = resolve_features(features, "auto", 1)
    return isinstance(family, Features) and family.any_columns
