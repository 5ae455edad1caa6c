"""Features as records of a file: the name of the family, and what was chosen for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import FileError
from orthogp.features import (
    Additive,
    AdditiveLattice,
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
    SeriesFeatures,
    Trig,
    TwoBlock,
    VariationalFourier,
)
from orthogp.features.additive import AdditiveSeries
from orthogp.features.harmonic import HarmonicSeries
from orthogp.features.random import RandomSeries, RandomWaves
from orthogp.features.two_block import PointTwoBlock
from orthogp.features.vff import VariationalFourierSeries
from orthogp.statistics import FrequencyLattice
from orthogp.statistics.lattice import MAX_DIMS
from orthogp.statistics.stored import lattice_content, lattice_from
from orthogp.storage.record import Record
from orthogp.storage.sketches import mean_content, mean_from

# The most modes of a lattice of features, several times those that a fit takes.
_MOST_MODES = 2**20
_MOST_COUNT, _MOST_COLUMNS, _MOST_DEPTH = 2**26, 2**20, 4
_MOST_ORDER = 2**30


class _Field(NamedTuple):
    """How a field of a family is written and read."""

    write: Callable[[Any], Any]
    read: Callable[[Record, str], Any]


def features_content(features: Features) -> dict[str, Any]:
    """Return features as a record; `FileError` if they are of a class that no file can name."""
    name = type(features).__name__
    if isinstance(features, Additive | AdditiveSeries) and type(features) in _COMPOUNDS:
        own = {
            "parts": [features_content(part) for part in features.parts],
            "columns": [list(dims) for dims in features.dims],
        }
        if isinstance(features, AdditiveSeries):
            own["lattice"] = lattice_content(features.lattice)
        return {"name": name, **own}
    if isinstance(features, AdditiveLattice) and type(features) in _COMPOUNDS:
        return {
            "name": name,
            "parts": [features_content(part) for part in features.parts],
            "columns": [list(dims) for dims in features.columns],
            "mean": mean_content(features.mean),
        }
    if isinstance(features, TwoBlock) and type(features) in _COMPOUNDS:
        first, second = features_content(features.first), features_content(features.second)
        return {"name": name, "first": first, "second": second}
    kind, fields = _FAMILIES.get(name, (None, {}))
    if type(features) is not kind:
        raise FileError(
            f"A file holds no code, so it cannot hold features of the class {name}: use those of "
            "orthogp.features."
        )
    return {
        "name": name,
        **{key: field.write(getattr(features, key)) for key, field in fields.items()},
    }


def features_from(record: Record, depth: int = 0) -> Features:
    """Return the features of a record."""
    if depth > _MOST_DEPTH:
        record.fail(f"must be nested at most {_MOST_DEPTH} deep")
    compounds = {kind.__name__: kind for kind in _COMPOUNDS}
    name = record.text("name", (*_FAMILIES, *compounds))
    if name in _FAMILIES:
        kind, fields = _FAMILIES[name]
        values = {key: field.read(record, key) for key, field in fields.items()}
        return _MAKERS.get(name, _make)(kind, values, record)
    if name in ("TwoBlock", "PointTwoBlock"):
        first = features_from(record.record("first"), depth + 1)
        second = features_from(record.record("second"), depth + 1)
        if not isinstance(second, InducingPoints):
            record.fail("must be inducing points", "second")
        return (PointTwoBlock if name == "PointTwoBlock" else TwoBlock)(first, second)
    parts = tuple(features_from(part, depth + 1) for part in record.records("parts"))
    columns = _columns(record, len(parts))
    if name == "Additive":
        return Additive(parts, columns)
    if name == "AdditiveLattice":
        lattices = tuple(part for part in parts if isinstance(part, Lattice))
        if len(lattices) < len(parts):
            record.fail("must be lattices", "parts")
        return AdditiveLattice(lattices, columns, mean_from(record.record("mean")))
    series = tuple(part for part in parts if isinstance(part, SeriesFeatures))
    if len(series) < len(parts):
        record.fail("must be series", "parts")
    lattice = lattice_from(record.record("lattice"), most_modes=_MOST_MODES)
    for part, own in zip(series, columns, strict=True):
        if max(own) >= lattice.num_dims or len(own) != part.lattice.num_dims:
            record.fail("must be columns of the lattice", "columns")
        if np.any(part.lattice.extent > lattice.extent[list(own)]):
            record.fail("must lie on the lattice", "parts")
    return AdditiveSeries.join(lattice, series, columns)


def _columns(record: Record, count: int) -> tuple[tuple[int, ...], ...]:
    listed = record.value("columns")
    if not isinstance(listed, list) or len(listed) != count or count == 0:
        record.fail(f"must be {count} lists of columns, at least one", "columns")
    each = Record({str(i): own for i, own in enumerate(listed)}, record.source, record.where)
    columns = tuple(each.integers(str(i), most=_MOST_COLUMNS) for i in range(count))
    if not all(1 <= len(own) <= MAX_DIMS and len(set(own)) == len(own) for own in columns):
        record.fail(f"must be 1 to {MAX_DIMS} distinct columns each", "columns")
    return columns


# ---------------------------------------------------------------------- fields


def _write_scale(value: Any) -> Any:
    return None if value is None else np.asarray(value, dtype=np.float64).tolist()


def _read_scale(record: Record, name: str) -> NDArray[np.float64] | None:
    """Return a number or one for each column."""
    if name not in record:
        return None
    if isinstance(record.value(name), list):
        return record.vector(name)
    return np.asarray(record.number(name))


def _write_orders(value: Any) -> Any:
    return None if value is None else np.asarray(value, dtype=np.int64)


def _read_orders(record: Record, name: str) -> NDArray[np.int64] | None:
    if name not in record:
        return None
    orders = record.array(name, "int", (None, None))
    if orders.size == 0 or orders.shape[1] > MAX_DIMS:
        record.fail("must have a row for each feature and a column for each input", name)
    if orders.min() < 0 or orders.max() > _MOST_ORDER:
        record.fail(f"must lie between 0 and {_MOST_ORDER}", name)
    return orders


def _read_order_tuples(record: Record, name: str) -> tuple[tuple[int, ...], ...] | None:
    """Return orders of a basis, whose tables are as long as the highest."""
    orders = _read_orders(record, name)
    if orders is None:
        return None
    if orders.max() > 4 * len(orders) + 64:
        record.fail("must not lie far beyond the number of features", name)
    return tuple(map(tuple, orders.tolist()))


def _read_lattice(record: Record, name: str) -> FrequencyLattice | None:
    if name not in record:
        return None
    return lattice_from(record.record(name), most_modes=_MOST_MODES)


def _read_indices(record: Record, name: str) -> NDArray[np.int64] | None:
    """Return indices that lie on the record's lattice, index zero first."""
    if name not in record:
        return None
    lattice = _read_lattice(record, "lattice")
    if lattice is None:
        record.fail("is missing", "lattice")
    indices = record.array(name, "int", (None, lattice.num_dims))
    if len(indices) == 0 or np.any(indices[0] != 0) or np.any(np.abs(indices) > lattice.extent):
        record.fail("must lie on the lattice and begin with index zero", name)
    return indices


def _array(kind: Any, *shape: None) -> _Field:
    return _Field(
        lambda value: value, lambda record, name: record.maybe(name, record.array, kind, shape)
    )


def _simple(question: str, **limits: Any) -> _Field:
    def read(record: Record, name: str) -> Any:
        return record.maybe(name, getattr(record, question), **limits)

    return _Field(lambda value: value, read)


_COUNT = _simple("integer", least=1, most=_MOST_COUNT)
_SEED = _simple("integer", least=0)
_FLAG, _TEXT, _NUMBER = _simple("flag"), _simple("text"), _simple("number")
_SCALE = _Field(_write_scale, _read_scale)
_ORDERS = _Field(_write_orders, _read_orders)
_ORDER_TUPLES = _Field(_write_orders, _read_order_tuples)
_LATTICE = _Field(
    lambda value: None if value is None else lattice_content(value),
    _read_lattice,
)
_INDICES = _Field(_write_orders, _read_indices)
_MEAN = _Field(mean_content, lambda record, name: mean_from(record.record(name)))

_SPECTRAL = {
    "num_features": _COUNT,
    "centre": _SCALE,
    "learn": _FLAG,
    "orders": _ORDER_TUPLES,
    "chosen": _FLAG,
}
_SERIES = {
    "lattice": _LATTICE,
    "indices": _INDICES,
    "odd": _array("bool", None),
    "weights": _array("float", None, None),
}
# The only classes that a file can name, with all that their constructors take.
_FAMILIES: dict[str, tuple[type[Features], dict[str, _Field]]] = {
    "Trig": (Trig, {**_SPECTRAL, "a": _SCALE}),
    "Hermite": (Hermite, {**_SPECTRAL, "r": _SCALE}),
    "Polynomial": (
        Polynomial,
        {**_SPECTRAL, "kind": _TEXT, "a": _SCALE, "alpha": _NUMBER, "beta": _NUMBER},
    ),
    "Box": (Box, {**_SPECTRAL, "width": _SCALE}),
    "Eigenfunction": (Eigenfunction, {**_SPECTRAL, "input_sd": _SCALE, "lengthscale": _SCALE}),
    "VariationalFourier": (
        VariationalFourier,
        {"num_features": _COUNT, "lower": _SCALE, "upper": _SCALE, "orders": _ORDER_TUPLES},
    ),
    "Harmonic": (
        Harmonic,
        {
            "num_features": _COUNT,
            "half_width": _SCALE,
            "constrained": _FLAG,
            "centre": _SCALE,
            "orders": _ORDERS,
        },
    ),
    "RandomFourier": (
        RandomFourier,
        {
            "num_features": _COUNT,
            "seed": _SEED,
            "lattice": _LATTICE,
            "num_draws": _COUNT,
            "indices": _INDICES,
            "weights": _array("float", None),
        },
    ),
    "InducingPoints": (
        InducingPoints,
        {
            "num_features": _COUNT,
            "Z": _array("float", None, None),
            "placement": _TEXT,
            "learn": _FLAG,
            "seed": _SEED,
            "spacing": _SCALE,
        },
    ),
    "Lattice": (Lattice, {"lattice": _LATTICE, "indices": _INDICES, "mean": _MEAN}),
    "MassSeries": (MassSeries, _SERIES),
    "RandomSeries": (RandomSeries, _SERIES),
    "RandomWaves": (
        RandomWaves,
        {
            "normals": _array("float", None, None),
            "uniforms": _array("float", None, None),
            "centre": _SCALE,
        },
    ),
    "HarmonicSeries": (
        HarmonicSeries,
        {"lattice": _LATTICE, "orders": _ORDERS, "constrained": _FLAG},
    ),
    "VariationalFourierSeries": (
        VariationalFourierSeries,
        {"lattice": _LATTICE, "orders": _ORDER_TUPLES},
    ),
}
_COMPOUNDS = (Additive, AdditiveSeries, AdditiveLattice, TwoBlock, PointTwoBlock)


# ---------------------------------------------------------------------- objects


def _make(kind: type[Features], values: dict[str, Any], record: Record) -> Features:
    """Return features by their constructor, which checks what it is given."""
    needed = {"num_features", "lattice", "indices"} & values.keys()
    for name in needed if kind is not RandomFourier else {"num_features"}:
        if values[name] is None:
            record.fail("is missing", name)
    # A flag or a text that is not there is the constructor's default.
    return kind(**{key: value for key, value in values.items() if value is not None})


def _make_series(kind: type[Features], values: dict[str, Any], record: Record) -> Features:
    indices, odd, weights = values["indices"], values["odd"], values["weights"]
    if indices is None or odd is None or weights is None:
        record.fail("must have indices, odd and weights")
    if weights.shape != (len(odd), len(indices)) or len(odd) == 0:
        record.fail("must have a row for each feature and a column for each index", "weights")
    return _make(kind, values, record)


def _make_waves(kind: type[Features], values: dict[str, Any], record: Record) -> Features:
    normals, uniforms, centre = values["normals"], values["uniforms"], values["centre"]
    if normals is None or uniforms is None or centre is None:
        record.fail("must have normals, uniforms and a centre")
    if normals.size == 0 or uniforms.shape != normals.shape or centre.shape != normals.shape[1:]:
        record.fail("must be of one shape, with a centre for each column", "normals")
    if np.any(uniforms <= 0) or np.any(uniforms > 1):
        record.fail("must lie above zero, and not above one", "uniforms")
    return _make(kind, values, record)


def _make_harmonic_series(kind: type[Features], values: dict[str, Any], record: Record) -> Features:
    lattice, orders = values["lattice"], values["orders"]
    if lattice is None or orders is None or orders.shape[1] != lattice.num_dims:
        record.fail("must have orders for each column of its lattice")
    if orders.min() < 1 or np.any(orders > lattice.extent):
        record.fail("must lie on the lattice", "orders")
    return HarmonicSeries.from_orders(lattice, orders, record.flag("constrained"))


def _make_fourier_series(kind: type[Features], values: dict[str, Any], record: Record) -> Features:
    lattice, orders = values["lattice"], values["orders"]
    if lattice is None or orders is None or len(orders[0]) != lattice.num_dims:
        record.fail("must have orders for each column of its lattice")
    return VariationalFourier(len(orders), orders=orders).on(lattice)


_MAKERS: dict[str, Callable[[type[Features], dict[str, Any], Record], Features]] = {
    "MassSeries": _make_series,
    "RandomSeries": _make_series,
    "RandomWaves": _make_waves,
    "HarmonicSeries": _make_harmonic_series,
    "VariationalFourierSeries": _make_fourier_series,
}
