"""Names of a fitted model's inputs and targets, and the range of its rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.files.columns import TimeScale
from orthogp.inference import Domain

#: Between the unit and the origin of an input that is a time.
SINCE = " since "


class Names(NamedTuple):
    """Names of all columns of X and of the targets, and units by name.

    They come from `model.about_`, from a data frame's columns, or are x and y.
    """

    inputs: tuple[str, ...]
    targets: tuple[str, ...]
    units: dict[str, str]
    source: str

    def input(self, column: int) -> str:
        """Return an input's name with its unit, to stand along an axis of a figure."""
        return self._with_unit(self.inputs[column])

    def target(self, number: int = 0) -> str:
        """Return a target's name with its unit, to stand along an axis of a figure."""
        return self._with_unit(self.targets[number])

    def unit(self, name: str) -> str:
        """Return a unit after a space, or nothing."""
        return f" {self.units[name]}" if self.units.get(name) else ""

    def product(self, columns: Sequence[int]) -> str:
        """Return the names of some inputs, joined."""
        return " × ".join(self.inputs[c] for c in columns)

    def _with_unit(self, name: str) -> str:
        unit = self.units.get(name, name)
        return plain(name if unit == name else f"{name} ({unit})")


def plain(text: Any) -> str:
    """Return text with its dollar signs escaped: figures take a pair of them for mathematics."""
    return re.sub(r"(?<!\\)\$", r"\\$", str(text))


def names_of(model: Any) -> Names:
    """Return the names of a fitted model's inputs and targets."""
    about = getattr(model, "about_", None) or {}
    number = int(model.n_features_in_)
    inputs = about.get("inputs")
    if inputs is None:
        inputs = getattr(model, "feature_names_in_", None)
    if inputs is None or len(inputs) != number:
        inputs = ["x"] if number == 1 else [f"x{i}" for i in range(number)]
    targets = _as_list(about.get("targets", about.get("target")))
    count = len(getattr(model, "target_scale_", [1.0]))
    if len(targets) != count:
        targets = [targets[0] if targets else "y"]
        targets = targets if count == 1 else [f"{targets[0]}{i}" for i in range(count)]
    units = {str(name): str(unit) for name, unit in (about.get("units") or {}).items() if unit}
    for name, scale in zip(inputs, about.get("times") or (), strict=False):
        if scale:
            units.setdefault(str(name), f"{scale['unit']}{SINCE}{scale['origin']}")
    return Names(tuple(map(str, inputs)), tuple(targets), units, str(about.get("source") or ""))


def column_names(model: Any) -> list[str]:
    """Return the names of the columns of X, from a data frame or a file, or by their numbers."""
    names = getattr(model, "feature_names_in_", None)
    if names is None:
        names = (getattr(model, "about_", None) or {}).get("inputs")
    if names is not None and len(names) == model.n_features_in_:
        return [str(name) for name in names]
    return [f"column {i}" for i in range(model.n_features_in_)]


def describe_domain(model: Any) -> str:
    """Return the box in which predictions hold as text, in dates where inputs are times."""
    times = (getattr(model, "about_", None) or {}).get("times") or [None] * model.n_features_in_
    domain = model.domain_
    intervals = []
    for column, *edges in zip(model.columns_, domain.lower, domain.upper, strict=True):
        scale = TimeScale.from_json(times[int(column)])
        ends = [f"{edge:.6g}" for edge in edges] if scale is None else _dates(scale, edges)
        intervals.append(f"[{', '.join(ends)}]")
    return " × ".join(intervals)


def _dates(scale: TimeScale, values: Sequence[float]) -> list[str]:
    """Return date-times to the day, or to the second where days are too coarse a unit."""
    precision: Any = "D" if scale.unit == "days" else "s"
    times = scale.datetimes(np.array(values, dtype=np.float64))
    return [str(text) for text in np.datetime_as_string(times, unit=precision, casting="unsafe")]


def covered_range(model: Any) -> Domain:
    """Return the box around the rows and the domain asked for, in the kernel's columns."""
    sketch = getattr(model, "_sketch", None)
    if sketch is not None:
        embedding = getattr(model, "_embedding", None)
        if embedding is None:
            return sketch.extent
        X = embedding.degrees(sketch.X)
        return Domain(X.min(axis=0), X.max(axis=0))
    posterior = model.posterior_[0] if isinstance(model.posterior_, tuple) else model.posterior_
    mean = getattr(posterior.features, "mean", None)
    width = getattr(mean, "width", None)
    if width is None or mean is None:
        return model.domain_
    origin = np.asarray(mean.origin, dtype=np.float64)
    box = Domain(origin - width, origin + width)
    # Mini-batches know the box itself, and no period around it.
    return box if np.all(box.lower >= model.domain_.lower) else model.domain_


def data_range(model: Any, diagnostics: Any = None) -> Domain:
    """Return the box around the rows if there are diagnostics, else the covered range."""
    if diagnostics is None:
        return covered_range(model)
    return Domain(diagnostics.lower, diagnostics.upper)


def grid_points(lower: NDArray, upper: NDArray, counts: Sequence[int]) -> NDArray[np.float64]:
    """Return the points of an even grid, the first column fastest, (n, d)."""
    axes = [np.linspace(*edge) for edge in zip(lower, upper, counts, strict=True)]
    columns = np.meshgrid(*axes[::-1], indexing="ij")[::-1]
    return np.stack([column.ravel() for column in columns], axis=1)


def _as_list(value: Any) -> list[str]:
    if value is None:
        return []
    return [value] if isinstance(value, str) else [str(name) for name in value]
