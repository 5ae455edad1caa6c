"""Fitted estimators as files, and back.

This file knows what attributes estimators have, but not their classes: those come from whoever
asks for a model (`orthogp.persistence`, `orthogp.storage.files`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from orthogp.engines import ENGINES, Trial
from orthogp.errors import FileError
from orthogp.exact.process import ExactPosterior
from orthogp.features.series import SeriesFeatures
from orthogp.fields.posterior import IterativePosterior
from orthogp.inference import Certificate
from orthogp.inference.components import AdditivePosterior
from orthogp.inference.posterior import Posterior
from orthogp.kernels.sphere import Embedding
from orthogp.learning.problem import Start
from orthogp.learning.sketch import Units
from orthogp.neighbours.posterior import NeighbourPosterior
from orthogp.report.diagnostic_results import Diagnostics
from orthogp.statistics.nufft import available_threads
from orthogp.stochastic.training import Progress
from orthogp.storage.container import File, read_file, write_file
from orthogp.storage.decoding import decoding
from orthogp.storage.kernels import kernel_content, kernel_from
from orthogp.storage.labels import labels_content, labels_from
from orthogp.storage.posteriors import Setting, posterior_content, posterior_from
from orthogp.storage.record import Record
from orthogp.storage.settings import settings_content, settings_from
from orthogp.storage.sketches import domain_content, domain_from, sketch_content, sketch_from

Estimator = TypeVar("Estimator")

_MOST_COLUMNS = 2**20
_TIMES = ("pass", "learn", "total")


class _Codec(NamedTuple):
    """How what an estimator has learned is written, and read into a fresh one."""

    write: Callable[[Any], dict[str, Any]]
    read: Callable[[Record, Any], None]


def write_model(path: str | os.PathLike[str], model: Any) -> None:
    """Write a fitted estimator to a file, whole or not at all."""
    check_is_fitted(model, "posterior_")
    kind = kind_of(type(model))
    content: dict[str, Any] = {
        "settings": settings_content(model.get_params(deep=False)),
        "num_columns": int(model.n_features_in_),
        "fit": _CODECS[kind].write(model),
    }
    names = getattr(model, "feature_names_in_", None)
    if names is not None:
        content["column_names"] = [str(name) for name in names]
    diagnostics = getattr(model, "diagnostics_", None)
    if diagnostics is not None:
        content["diagnostics"] = diagnostics.to_state()
    write_file(path, kind, content, getattr(model, "about_", None))


def read_model(path: str | os.PathLike[str], kind: type[Estimator]) -> Estimator:
    """Return the fitted estimator of some class that a file holds."""
    return model_from(path, read_file(path, (kind_of(kind),)), kind)


def model_from(path: str | os.PathLike[str], file: File, kind: type[Estimator]) -> Estimator:
    """Return the estimator that a file, which has been read, holds."""
    with decoding(path):
        content = file.content
        defaults = kind().get_params(deep=False)  # type: ignore[attr-defined]
        model: Any = kind(**settings_from(content.record("settings"), defaults))
        model.n_features_in_ = content.integer("num_columns", least=1, most=_MOST_COLUMNS)
        if "column_names" in content:
            names = content.texts("column_names")
            if len(names) != model.n_features_in_:
                content.fail("must be one for each column", "column_names")
            model.feature_names_in_ = np.array(names, dtype=object)
        _CODECS[kind_of(kind)].read(content.record("fit"), model)
        if "diagnostics" in content:
            found = content.record("diagnostics")
            model.diagnostics_ = Diagnostics.from_state({name: found.value(name) for name in found})
        if file.header.about:
            model.about_ = file.header.about
    return model


def kind_of(kind: type) -> str:
    """Return what files say that they hold for a class, or for one derived from it."""
    for base in kind.__mro__:
        if base.__name__ in _CODECS and base.__module__.startswith("orthogp."):
            return base.__name__
    raise FileError(f"A file cannot hold a {kind.__name__}: only {', '.join(_CODECS)}.")


# ---------------------------------------------------------------------- GPRegressor


def _regressor_content(model: Any) -> dict[str, Any]:
    certificate = model.certificate_
    return {
        "columns": model.columns_.tolist(),
        "one_target": model._one_target,
        "sketch": sketch_content(model._sketch),
        "target_offset": model.target_offset_.tolist(),
        "target_scale": model.target_scale_.tolist(),
        "domain": domain_content(model.domain_),
        "posterior": posterior_content(model.posterior_, has_sums=True),
        "num_features": int(model.num_features_),
        "kernel": kernel_content(model.kernel_),
        "noise_variance": float(model.noise_variance_),
        "elbo": float(model.elbo_),
        "tightened_bound": float(model.tightened_bound_),
        "upper_bound": float(model.upper_bound_),
        "certificate": {
            "wrap_error": float(certificate.wrap_error),
            "rounding": float(certificate.rounding),
            "quadrature_error": float(certificate.quadrature_error),
            "replaces_prior": bool(certificate.replaces_prior),
        },
        "status": model.status_,
        "engine": model.engine_,
        "trials": [
            {**trial._asdict(), "score": _finite_or_none(trial.score)} for trial in model.trials_
        ],
        "seconds": dict(model.timings_),
    }


def _finite_or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _engine(record: Record, model: Any) -> tuple[str, tuple[Trial, ...]]:
    """Return which engine fitted the model, and what was tried beside it."""
    if "engine" not in record:
        # Files of older releases say so by what they hold.
        form = type(model.posterior_)
        names = {
            ExactPosterior: "exact",
            IterativePosterior: "iterative",
            AdditivePosterior: "additive",
            Posterior: "dense",
        }
        return names.get(form, "features"), ()
    trials = []
    for own in record.records("trials"):
        score = np.nan if own.value("score") is None else own.number("score")
        seconds = own.number("seconds", least=0.0)
        trials.append(Trial(own.text("engine", ENGINES), score, seconds, own.text("remark")))
    engine = record.text("engine", ENGINES)
    for name, kind in (("exact", ExactPosterior), ("neighbours", NeighbourPosterior)):
        if (engine == name) != isinstance(model.posterior_, kind):
            wanted = f"be {name}" if engine != name else f"not be {name}"
            record.fail(f"must {wanted}, by its posterior", "engine")
    return engine, tuple(trials)


def _read_regressor(record: Record, model: Any) -> None:
    columns = _columns(record, model.n_features_in_)
    kernel = kernel_from(record.record("kernel"))
    kernel.check(model.n_features_in_)
    num_dims = len(columns)
    embedding = Embedding.of(kernel, model.n_features_in_)
    if embedding is not None:
        # Engines see points of the sphere in space; a kernel that is there already is refused.
        embedding.kernel(kernel)
        num_dims = embedding.size
    sketch = sketch_from(record.record("sketch"))
    if len(sketch.extent.lower) != num_dims:
        record.fail(f"must be of {num_dims} columns", "sketch")
    p = sketch.statistics.num_targets
    offset = record.vector("target_offset", size=p)
    scale = record.vector("target_scale", size=p)
    if np.any(scale <= 0):
        record.fail("must be positive", "target_scale")
    domain = domain_from(record.record("domain"), size=len(columns), finite=False)
    setting = Setting(
        num_dims,
        p,
        available_threads(model.n_jobs),
        sketch,
        Units(offset, scale, constant=False),
        model.weights == "repeats",
    )
    posterior = posterior_from(record.record("posterior"), setting)
    one_target = record.flag("one_target")
    if one_target and p > 1:
        record.fail(f"must be false for {p} targets", "one_target")
    model._one_target, model._sketch, model.columns_ = one_target, sketch, columns
    model._last = Start(posterior.kernel, posterior.noise_variance, rows=sketch.statistics.count)
    model.statistics_, model.target_shift_ = sketch.statistics, sketch.shift
    model.target_offset_, model.target_scale_ = offset, scale
    model.posterior_, model.domain_ = posterior, domain
    model.features_, model.period_ = _features_and_period(posterior)
    model.engine_, model.trials_ = _engine(record, model)
    model.num_features_ = record.integer("num_features")
    model.kernel_, model.noise_variance_ = kernel, record.positive("noise_variance")
    model.elbo_ = record.number("elbo", finite=False)
    model.tightened_bound_ = record.number("tightened_bound", finite=False)
    model.upper_bound_ = record.number("upper_bound", finite=False)
    own = record.record("certificate")
    model.certificate_ = Certificate(
        model.elbo_,
        model.upper_bound_,
        own.number("wrap_error", finite=False),
        own.number("rounding", finite=False),
        own.number("quadrature_error", finite=False),
        own.flag("replaces_prior"),
    )
    model.status_ = record.text("status")
    model.timings_ = _seconds(record)


def _features_and_period(posterior: Any) -> tuple[Any, Any]:
    if isinstance(posterior, IterativePosterior):
        features = posterior.features
        return features, features.lattice.period
    if isinstance(posterior, ExactPosterior | NeighbourPosterior):
        return None, None
    features = posterior.features
    if isinstance(posterior, AdditivePosterior):
        return features, tuple(part.lattice.period for part in features.parts)
    on_lattice = isinstance(posterior, Posterior) or isinstance(features, SeriesFeatures)
    return features, features.lattice.period if on_lattice else None


# ---------------------------------------------------------------------- GPClassifier


def _classifier_content(model: Any) -> dict[str, Any]:
    several = len(model.classes_) > 2
    statuses = model.status_ if several else (model.status_,)
    content = {
        "classes": labels_content(model.classes_),
        "columns": model.columns_.tolist(),
        "domain": domain_content(model.domain_),
        "posteriors": [posterior_content(own, has_sums=False) for own in model._posteriors],
        "status": list(statuses),
        "elbo": float(model.elbo_),
        "num_passes": int(model.num_passes_),
        "num_rows": int(model.num_rows_),
        "seconds": dict(model.timings_),
    }
    if isinstance(model._posteriors[0], AdditivePosterior):
        content["extent"] = domain_content(model._extent)
    return content


def _read_classifier(record: Record, model: Any) -> None:
    classes = labels_from(record.record("classes"))
    count = len(classes) if len(classes) > 2 else 1
    columns = _columns(record, model.n_features_in_)
    domain = domain_from(record.record("domain"), size=len(columns), finite=False)
    setting = Setting(len(columns), 1, available_threads(model.n_jobs))
    parts = record.records("posteriors", count=count)
    posteriors = [posterior_from(part, setting) for part in parts]
    if len({type(own) for own in posteriors}) > 1:
        record.fail("must all be of one form", "posteriors")
    extent = None
    if isinstance(posteriors[0], AdditivePosterior):
        extent = domain_from(record.record("extent"), size=len(columns))
    status = record.texts("status")
    if len(status) != count:
        record.fail(f"must be {count} texts", "status")
    names = dict(enumerate(columns.tolist()))

    def one_or_all(values: list[Any]) -> Any:
        return values[0] if count == 1 else tuple(values)

    model.classes_, model.columns_, model.domain_ = classes, columns, domain
    model._posteriors, model._extent = posteriors, extent
    model.posterior_ = one_or_all(posteriors)
    model.kernel_ = one_or_all([own.kernel.with_columns(names) for own in posteriors])
    model.features_ = one_or_all([own.features for own in posteriors])
    model.status_ = one_or_all(status)
    model.elbo_ = record.number("elbo", finite=False)
    model.num_passes_ = record.integer("num_passes")
    model.num_rows_ = record.integer("num_rows")
    model.timings_ = _seconds(record)


# ---------------------------------------------------------------------- StochasticGPRegressor


def _stochastic_content(model: Any) -> dict[str, Any]:
    return {
        "posterior": posterior_content(model.posterior_, has_sums=False),
        "target_offset": float(model.target_offset_),
        "target_scale": float(model.target_scale_),
        "history": np.array(model.history_, dtype=np.float64).reshape(-1, len(Progress._fields)),
        "elbo": float(model.elbo_),
        "elbo_error": float(model.elbo_error_),
        "status": model.status_,
    }


def _read_stochastic(record: Record, model: Any) -> None:
    posterior = posterior_from(record.record("posterior"), Setting(model.n_features_in_, 1))
    model.target_offset_ = record.number("target_offset")
    model.target_scale_ = scale = record.positive("target_scale")
    model.posterior_, model.features_ = posterior, posterior.features
    model.kernel_ = posterior.kernel.scaled(scale**2)
    model.noise_variance_ = posterior.noise_variance * scale**2
    history = record.array("history", "float", (None, len(Progress._fields)), finite=False)
    model.history_ = [
        Progress(int(step), int(most), elbo, error, int(samples))
        for step, most, elbo, error, samples in history.tolist()
    ]
    model.elbo_ = record.number("elbo", finite=False)
    model.elbo_error_ = record.number("elbo_error", finite=False)
    model.status_ = record.text("status")


# ---------------------------------------------------------------------- parts


def _columns(record: Record, most: int) -> NDArray[np.int64]:
    columns = record.integers("columns", most=most - 1)
    if not columns or list(columns) != sorted(set(columns)):
        record.fail("must be distinct, in ascending order", "columns")
    return np.array(columns, dtype=np.int64)


def _seconds(record: Record) -> dict[str, float]:
    own = record.record("seconds")
    return {name: own.number(name, least=0.0) for name in _TIMES if name in own}


_CODECS: dict[str, _Codec] = {
    "GPRegressor": _Codec(_regressor_content, _read_regressor),
    "GPClassifier": _Codec(_classifier_content, _read_classifier),
    "StochasticGPRegressor": _Codec(_stochastic_content, _read_stochastic),
}
