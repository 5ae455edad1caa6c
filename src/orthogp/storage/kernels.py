"""Kernels as records of a file: the public name of the class, and its parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from orthogp.errors import FileError
from orthogp.kernels import (
    RBF,
    Categorical,
    Cyclic,
    Kernel,
    Matern,
    Matern12,
    Matern32,
    Matern52,
    On,
    OnSphere,
    Product,
    QuasiPeriodic,
    RationalQuadratic,
    Rotated,
    SpectralMixture,
    Sum,
)
from orthogp.kernels.sphere import Sphere
from orthogp.storage.record import Record

# The only classes that a file can name. Their array fields are all of their parameters.
_PRIMITIVES: dict[str, type[Kernel]] = {
    "RBF": RBF,
    "Matern": Matern,
    "Matern12": Matern12,
    "Matern32": Matern32,
    "Matern52": Matern52,
    "RationalQuadratic": RationalQuadratic,
    "SpectralMixture": SpectralMixture,
    "QuasiPeriodic": QuasiPeriodic,
}
_COMPOUNDS = ("Sum", "Product", "On", "Cyclic", "Categorical", "Rotated", "OnSphere", "Sphere")
_PARAMETERS = {
    "Matern": ("nu", "variance", "lengthscale"),
    "RationalQuadratic": ("variance", "lengthscale", "alpha"),
    "SpectralMixture": ("weights", "means", "lengthscale"),
    "QuasiPeriodic": ("variance", "lengthscale", "period", "shape_lengthscale"),
}
_USUAL = ("variance", "lengthscale")
# Of kernels within kernels, and of parts of one.
_MOST_DEPTH, _MOST_PARTS = 16, 4096
_MOST_COLUMNS = 2**20


def kernel_content(kernel: Kernel) -> dict[str, Any]:
    """Return a kernel as a record; `FileError` if it is of a class that no file can name."""
    kind = type(kernel)
    if isinstance(kernel, Sum) and kind is Sum:
        return {"name": "Sum", "terms": [kernel_content(term) for term in kernel.terms]}
    if isinstance(kernel, Product) and kind is Product:
        return {"name": "Product", "factors": [kernel_content(own) for own in kernel.factors]}
    if isinstance(kernel, On) and kind is On:
        return {
            "name": "On",
            "columns": list(kernel.dims),
            "kernel": kernel_content(kernel.kernel),
        }
    if isinstance(kernel, OnSphere) and kind is OnSphere:
        inner = kernel_content(kernel.kernel)
        return {**inner, "name": "OnSphere", "columns": list(kernel.dims)}
    if isinstance(kernel, Sphere) and kind is Sphere:
        return {
            "name": "Sphere",
            "radius": kernel.radius,
            "kernel": kernel_content(kernel.kernel),
        }
    if isinstance(kernel, Cyclic) and kind is Cyclic:
        return {
            "name": "Cyclic",
            "period": kernel.period,
            "kernel": kernel_content(kernel.kernel),
        }
    if isinstance(kernel, Rotated) and kind is Rotated:
        return {
            "name": "Rotated",
            "angle": float(kernel.angle),
            "kernel": kernel_content(kernel.kernel),
            "fixed": ["angle"] if "angle" in kernel.fixed else [],
        }
    if isinstance(kernel, Categorical) and kind is Categorical:
        return {
            "name": "Categorical",
            "levels": int(kernel.levels),
            "variance": float(kernel.variance),
            "fixed": list(kernel.fixed),
        }
    name = kind.__name__
    if _PRIMITIVES.get(name) is not kind:
        raise FileError(
            f"A file holds no code, so it cannot hold a kernel of the class {name}: use kernels of "
            f"orthogp.kernels ({', '.join(_PRIMITIVES)}, {', '.join(_COMPOUNDS)})."
        )
    values = kernel.parameters()
    parameters = {key: np.asarray(values[key]).tolist() for key in _parameters(name)}
    return {"name": name, **parameters, "fixed": list(kernel.fixed)}


def kernel_from(record: Record, depth: int = 0) -> Kernel:
    """Return the kernel of a record."""
    if depth > _MOST_DEPTH:
        record.fail(f"must be nested at most {_MOST_DEPTH} deep")
    name = record.text("name", (*_PRIMITIVES, *_COMPOUNDS))
    if name in ("Sum", "Product"):
        parts = record.records("terms" if name == "Sum" else "factors")
        if not 1 <= len(parts) <= _MOST_PARTS:
            record.fail(f"must have 1 to {_MOST_PARTS} parts")
        kernels = tuple(kernel_from(part, depth + 1) for part in parts)
        return Sum(kernels) if name == "Sum" else Product(kernels)
    if name == "On":
        columns = record.integers("columns", most=_MOST_COLUMNS)
        return On(kernel_from(record.record("kernel"), depth + 1), columns)
    if name in ("OnSphere", "Sphere"):
        inner = kernel_from(record.record("kernel"), depth + 1)
        sphere = Sphere(inner, record.positive("radius"))
        if name == "Sphere":
            return sphere
        return OnSphere(sphere, record.integers("columns", most=_MOST_COLUMNS))
    if name == "Cyclic":
        inner = kernel_from(record.record("kernel"), depth + 1)
        return Cyclic(inner, record.positive("period"))
    if name == "Rotated":
        inner = kernel_from(record.record("kernel"), depth + 1)
        return Rotated(inner, record.positive("angle"), fixed=_fixed(record, ("angle",)))
    if name == "Categorical":
        levels = record.integer("levels", least=2, most=_MOST_COLUMNS)
        return Categorical(levels, record.positive("variance"), fixed=_fixed(record, ("variance",)))
    names = _parameters(name)
    parameters = {key: _parameter(record, key) for key in names}
    return _PRIMITIVES[name](**parameters, fixed=_fixed(record, names))


def _parameters(name: str) -> tuple[str, ...]:
    return _PARAMETERS.get(name, _USUAL)


def _parameter(record: Record, name: str) -> Any:
    """Return a number, a list of numbers or a table of them, whose values the kernel checks."""
    value = record.value(name)
    if not isinstance(value, list):
        return np.asarray(record.positive(name))
    if value and isinstance(value[0], list):
        rows = Record({str(i): row for i, row in enumerate(value)}, record.source, name)
        return np.stack([rows.vector(str(i), size=len(value[0])) for i in range(len(value))])
    return record.vector(name)


def _fixed(record: Record, names: tuple[str, ...]) -> tuple[str, ...]:
    fixed = record.texts("fixed")
    if not set(fixed) <= set(names) or len(set(fixed)) < len(fixed):
        record.fail(f"must be some of {', '.join(names)}", "fixed")
    return tuple(fixed)
