"""The parameters of an estimator as records of a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from orthogp.errors import FileError
from orthogp.features import Features
from orthogp.kernels import Kernel, resolve_kernel
from orthogp.stochastic.training import TrainingSettings
from orthogp.storage.features import features_content, features_from
from orthogp.storage.kernels import kernel_content, kernel_from
from orthogp.storage.record import Record


def settings_content(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return an estimator's parameters as a record; `FileError` if one cannot be written.

    A scikit-learn kernel is written as the kernel it stands for, and its noise as the noise
    variance to start from.
    """
    values = dict(parameters)
    kernel = values.get("kernel")
    if not isinstance(kernel, str | Kernel):
        choice = resolve_kernel(kernel)
        values["kernel"] = choice.kernel
        if "noise_variance" in values and values["noise_variance"] is None:
            values["noise_variance"] = choice.noise_variance
    return {name: _content(name, value) for name, value in values.items()}


def settings_from(record: Record, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a record; those it does not name have their defaults."""
    unknown = set(record) - set(defaults)
    if unknown:
        record.fail("is no parameter of the estimator", sorted(unknown)[0][:60])
    return {name: _value(record, name) for name in record}


def _content(name: str, value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Kernel):
        return {"kernel": kernel_content(value)}
    if isinstance(value, Features):
        return {"features": features_content(value)}
    if isinstance(value, TrainingSettings):
        own = {each.name: getattr(value, each.name) for each in fields(value)}
        return {"training": {key: _content(f"training.{key}", own[key]) for key in own}}
    if name == "domain":
        try:
            edges = [np.asarray(edge, dtype=np.float64) for edge in value]
        except (TypeError, ValueError):
            edges = []
        if len(edges) == 2 and all(edge.ndim <= 1 for edge in edges):
            return {"domain": [edge.tolist() for edge in edges]}
    raise FileError(
        f"A file holds numbers and texts, but {name} is a {type(value).__name__}: set "
        f"model.{name} to a number, a text or None before saving."
    )


def _value(record: Record, name: str) -> Any:
    value = record.value(name)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    own = record.record(name)
    if set(own) == {"kernel"}:
        return kernel_from(own.record("kernel"))
    if set(own) == {"features"}:
        return features_from(own.record("features"))
    if set(own) == {"training"}:
        known = {each.name: None for each in fields(TrainingSettings)}
        return TrainingSettings(**settings_from(own.record("training"), known))
    edges = own.value("domain")
    if not isinstance(edges, list) or len(edges) != 2:
        own.fail("must be two edges", "domain")
    each = Record(dict(zip(("lower", "upper"), edges)), record.source, f"{own.where}/domain")
    return tuple(
        each.vector(edge) if isinstance(each.value(edge), list) else each.number(edge)
        for edge in ("lower", "upper")
    )
