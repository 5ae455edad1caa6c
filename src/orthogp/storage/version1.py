"""Files of version 1 of the format, turned into what version 2 would hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from orthogp.storage.codec import TYPE

# Fields that version 1 called otherwise, by class.
_RENAMED = {
    "On": {"columns": "dims"},
    "OnSphere": {"columns": "dims"},
    "Additive": {"columns": "dims"},
    "AdditiveSeries": {"columns": "dims"},
}
# The engine that a form of posterior came from, when files did not name engines.
_ENGINES = {"exact": "exact", "iterative": "iterative", "additive": "additive", "lattice": "dense"}
# What wrapped a setting that is no number or text.
_WRAPPERS = ("kernel", "features", "training", "domain")


def upgraded(content: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the content of a file of version 1 as version 2 has it.

    What is not as version 1 wrote it passes unchanged: it is refused when it is decoded.
    """
    content = _upgraded(content)
    settings, fit = content.get("settings"), content.get("fit")
    if isinstance(settings, dict):
        content["settings"] = _settings(settings)
    if isinstance(fit, dict):
        fit[TYPE] = kind
        _upgrade_fit(fit)
    return content


def _upgraded(node: Any) -> Any:
    if isinstance(node, list):
        return [_upgraded(own) for own in node]
    if not isinstance(node, dict):
        return node
    node = {name: _upgraded(own) for name, own in node.items()}
    if "kept" in node or "additive" in node:
        kept, additive = node.pop("kept", False), node.pop("additive", False)
        node[TYPE] = "KeptRows" if kept is True else "AdditiveSketch" if additive else "Sketch"
        _move_factors(node)
    for name in ("name", "form"):
        if isinstance(node.get(name), str):
            node[TYPE] = node.pop(name)
    kind = node.get(TYPE)
    if kind == "OnSphere":
        # The sphere and the kernel on it were one record.
        parts = {name: node.pop(name) for name in ("kernel", "radius") if name in node}
        node["kernel"] = {TYPE: "Sphere", **parts}
    if kind in ("Sphere", "Cyclic"):
        # They have what the kernel inside has.
        node.pop("fixed", None)
    for old, new in _RENAMED.get(str(kind), {}).items():
        if old in node:
            node[new] = node.pop(old)
    if "components" in node and "cross" in node:
        _part_components(node)
    return node


def _settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings without what was wrapped around those that are no numbers or texts."""
    result = {}
    for name, own in settings.items():
        if isinstance(own, dict) and len(own) == 1 and next(iter(own)) in _WRAPPERS:
            ((wrapper, own),) = own.items()
            if wrapper == "training" and isinstance(own, dict):
                own = {TYPE: "TrainingSettings", **_settings(own)}
        result[name] = own
    return result


def _upgrade_fit(fit: dict[str, Any]) -> None:
    posterior, certificate = fit.get("posterior"), fit.get("certificate")
    if isinstance(posterior, dict) and fit[TYPE] == "GPRegressor" and "engine" not in fit:
        form = posterior.get(TYPE)
        fit |= {"engine": _ENGINES.get(str(form), "features"), "trials": []}
    if isinstance(certificate, dict):
        certificate |= {"lower": fit.get("elbo"), "upper": fit.get("upper_bound")}
    for trial in fit["trials"] if isinstance(fit.get("trials"), list) else ():
        if isinstance(trial, dict) and trial.get("score", 0.0) is None:
            trial["score"] = np.nan
    history = fit.get("history")
    if isinstance(history, np.ndarray) and history.ndim == 2 and history.shape[1] == 5:
        names = ("step", "max_steps", "elbo", "standard_error", "num_samples")
        fit["history"] = [
            {
                name: int(value) if name in ("step", "max_steps", "num_samples") else value
                for name, value in zip(names, row, strict=True)
            }
            for row in history.tolist()
            if np.isfinite([row[0], row[1], row[4]]).all()
        ]


def _move_factors(sketch: dict[str, Any]) -> None:
    """Take the decimations out of the terms, beside which they stand now."""
    terms = sketch.get("terms")
    if isinstance(terms, list):
        sketch["factors"] = [
            own.pop("factors") for own in terms if isinstance(own, dict) and "factors" in own
        ]


def _part_components(statistics: dict[str, Any]) -> None:
    """Take the sums out of the components, beside which they stand now."""
    components = statistics["components"]
    if not isinstance(components, list) or not all(isinstance(own, dict) for own in components):
        return
    parts = [own.pop("sums", None) for own in components]
    for own, part in zip(components, parts, strict=True):
        own["lattice"] = part.get("lattice") if isinstance(part, dict) else None
    statistics["parts"] = parts
