"""What files hold of an estimator, a sketch and statistics, and how each is made of it again.

An estimator's settings are the parameters of its constructor. What it has learned is a record for
each kind of estimator (`KeptRegressor` and so on): `of` takes it from a fitted one, `give` puts it
into a fresh one. The content of files of version 1 is turned into what version 2 would hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from importlib import import_module
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from orthogp.engines import ENGINES, Trial
from orthogp.errors import FileError
from orthogp.exact.process import ExactPosterior
from orthogp.features.series import SeriesFeatures
from orthogp.files.columns import UNITS, TimeScale
from orthogp.inference import Certificate, Domain
from orthogp.inference.component_posterior import AdditivePosterior
from orthogp.inference.likelihoods import StudentT
from orthogp.inference.predictive import FamilyPosterior
from orthogp.inference.separable import VaryingNoise
from orthogp.kernels import Kernel, resolve_kernel
from orthogp.kernels.transformed import Embedding
from orthogp.learning.problem import Start
from orthogp.learning.sketches import Sketch
from orthogp.neighbours.posterior import NeighbourPosterior
from orthogp.report.diagnostics import Diagnostics
from orthogp.rows import Units
from orthogp.statistics.nufft import available_threads
from orthogp.stochastic.training import Progress
from orthogp.storage.classes import (
    MOST_COLUMNS,
    Floats,
    demand,
    demand_components,
    demand_few_parts,
    demand_shape,
)
from orthogp.storage.codec import (
    TYPE,
    RefusedError,
    decoding,
    encode,
    printable,
    register,
    registered_name,
    taken,
)
from orthogp.storage.container import FilePath, Header, read_file, write_file
from orthogp.storage.posteriors import KeptPosterior, Setting, kept_of, restored
from orthogp.storage.surroundings import NOTHING_KNOWN, KeptSurroundings
from orthogp.validation import check_settings, kernel_of

Saved = TypeVar("Saved")

_SKETCH = "sketch"
# A day as in 2024-01-31.
_DAY = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])")
# The types of labels that a file can name; texts and objects are lists of texts.
_NUMBERS = (
    *(f"{sign}int{size}" for sign in ("", "u") for size in (8, 16, 32, 64)),
    *(f"float{size}" for size in (16, 32, 64)),
)
# Fields that version 1 called otherwise, by class.
_RENAMED = {
    "On": {"columns": "dims"},
    "OnSphere": {"columns": "dims"},
    "Additive": {"columns": "dims"},
    "AdditiveSeries": {"columns": "dims"},
}
# The engine that a form of posterior came from, when files did not name engines.
_ENGINES = {"exact": "exact", "iterative": "iterative", "additive": "additive", "lattice": "dense"}
# The names of the wrappers of settings that are no numbers or texts.
_WRAPPERS = ("kernel", "features", "training", "domain")


def save(
    path: FilePath, saved: Any, about: Mapping[str, Any] | None = None, mode: int | None = None
) -> None:
    """Write a fitted estimator, a sketch or statistics to a file, whole or not at all.

    Parameters
    ----------
    about : mapping, optional
        Notes about it, such as names of columns, units, sources: texts, finite numbers, lists and
        mappings. An estimator's `about_` unless given.
    mode : int, optional
        The file's permissions: those of the file it replaces, or of any new file, by default.
    """
    kind = _kind_of(type(saved))
    if kind in _MODELS:
        check_is_fitted(saved, "posterior_")
        about = getattr(saved, "about_", None) if about is None else about
        saved = KeptModel.of(saved, _MODELS[kind])
    write_file(path, kind, encode(saved), about, mode)


def load(path: FilePath, kind: type[Saved]) -> Saved:
    """Return what `save` wrote, if it is of that class; `FileError` otherwise."""
    name = _kind_of(kind)
    if name in _MODELS:
        return _model(path, (name,), kind)
    with _reading(path, (name,), kind) as (found, _):
        return found


def load_model(path: FilePath) -> Any:
    """Return the fitted estimator that a file holds, of whatever class."""
    return _model(path, tuple(_MODELS), None)


def save_sketch(path: FilePath, sketch: Sketch, about: Mapping[str, Any] | None = None) -> None:
    """Write a sketch to a file, whole or not at all, with notes about the rows."""
    save(path, sketch, about)


def load_sketch(path: FilePath) -> tuple[Sketch, dict[str, Any]]:
    """Return the sketch that `save_sketch` wrote, and the notes about its rows."""
    with _reading(path, (_SKETCH,), Sketch) as (sketch, header):
        return sketch, header.about


@contextmanager
def _reading(
    path: FilePath, kinds: tuple[str, ...], hint: type[Saved]
) -> Iterator[tuple[Saved, Header]]:
    """Yield what a file holds and its header; errors of the body are about the file."""
    header, content = read_file(path, kinds)
    with decoding(path) as decoder:
        content = upgraded(content, header.kind) if header.version == 1 else content
        yield decoder.decode(content, hint), header


def _model(path: FilePath, kinds: tuple[str, ...], kind: type | None) -> Any:
    with _reading(path, kinds, KeptModel) as (kept, header):
        if not isinstance(kept.fit, _MODELS[header.kind]):
            raise RefusedError(f"must be what was learned by a {header.kind}", "fit")
        # Estimators are made of parts that save sketches, and are found by name.
        model = kept.model(kind or getattr(import_module("orthogp"), header.kind))
        if header.about:
            model.about_ = _printable(header.about)
    return model


def _kind_of(kind: type) -> str:
    """Return what files say that they hold for a class, or for one derived from it."""
    for base in kind.__mro__:
        if base.__name__ in _MODELS and base.__module__.startswith("orthogp."):
            return base.__name__
    name = _SKETCH if issubclass(kind, Sketch) else registered_name(kind)
    if name is not None:
        return name
    raise FileError(f"A file cannot hold a {kind.__name__}: only {', '.join(_MODELS)}.")


class KeptModel(NamedTuple):
    """A fitted estimator: its settings, the columns of its inputs, and what it has learned."""

    settings: dict[str, Any]
    num_columns: int
    fit: KeptFit
    column_names: tuple[str, ...] | None = None
    diagnostics: dict[str, Any] | None = None
    #: For each column, the unit and the origin of its date-times.
    times: tuple[dict[str, str] | None, ...] | None = None

    @classmethod
    def of(cls, model: Any, kept: type[KeptFit]) -> KeptModel:
        """Return what is kept of an estimator.

        A scikit-learn kernel is kept as the kernel it stands for, and its noise as the noise
        variance to start from.
        """
        settings = model.get_params(deep=False) | {"kernel": kernel_of(model)}
        if not isinstance(settings.get("kernel"), str | Kernel):
            choice = resolve_kernel(settings["kernel"])
            settings["kernel"] = choice.kernel
            if "noise_variance" in settings and settings["noise_variance"] is None:
                settings["noise_variance"] = choice.noise
        names = getattr(model, "feature_names_in_", None)
        diagnostics = getattr(model, "diagnostics_", None)
        times = getattr(model, "time_scales_", None)
        return cls(
            settings,
            int(model.n_features_in_),
            kept.of(model),
            None if names is None else tuple(map(str, names)),
            None if diagnostics is None else diagnostics.to_state(),
            None if times is None else tuple(own and own._asdict() for own in times),
        )

    def model(self, kind: type) -> Any:
        """Return the estimator; settings that the file does not name have their defaults."""
        unknown = set(self.settings) - set(kind().get_params(deep=False))  # type: ignore[attr-defined]
        if unknown:
            raise RefusedError("is no parameter of the estimator", f"settings/{min(unknown)[:60]}")
        model: Any = kind(**_printable(self.settings))
        if hasattr(model, "solver"):
            check_settings(model)
        within = 1 <= self.num_columns <= MOST_COLUMNS
        demand(within, f"must be from 1 to {MOST_COLUMNS}", "num_columns")
        model.n_features_in_ = self.num_columns
        if self.column_names is not None:
            fits = len(self.column_names) == self.num_columns
            demand(fits, "must be one for each column", "column_names")
            model.feature_names_in_ = np.array(self.column_names, dtype=object)
        if self.times is not None:
            fits = len(self.times) == self.num_columns
            demand(fits, "must be one for each column", "times")
            model.time_scales_ = tuple(map(_time_scale, self.times))
        try:
            self.fit.give(model)
        except RefusedError as error:
            raise RefusedError(error.what, f"fit/{error.name}") from error
        if self.diagnostics is not None:
            model.diagnostics_ = Diagnostics.from_state(self.diagnostics)
        return model


def _time_scale(kept: dict[str, str] | None) -> TimeScale | None:
    """Return what the numbers of a column mean, having seen that they can."""
    if kept is None:
        return None
    demand(set(kept) == set(TimeScale._fields), "must have a unit and an origin", "times")
    scale = TimeScale(kept["unit"], kept["origin"])
    demand(scale.unit in UNITS, f"must be in one of {', '.join(UNITS)}", "times")
    demand(_DAY.fullmatch(scale.origin) is not None, "must begin at a day", "times")
    return scale


@dataclass(frozen=True)
class KeptFit:
    """What an estimator has learned, each field under the name of an attribute."""

    #: The attributes whose names are not those of the fields with an underscore.
    paths: ClassVar[dict[str, str]] = {}

    elbo: float

    @classmethod
    def of(cls, model: Any) -> Self:
        """Return what a fitted estimator has learned."""
        return taken(cls, model, cls._attributes(), **cls._given(model))

    def give(self, model: Any) -> None:
        """Put it into a fresh estimator."""
        seconds = getattr(self, "seconds", {"total": 0.0})
        good = "total" in seconds and min(seconds.values()) >= 0
        demand(good, "must be a total, and not negative", "seconds")
        for name, attribute in self._attributes().items():
            setattr(model, attribute, getattr(self, name))
        self._derive(model)

    @staticmethod
    def _given(model: Any) -> dict[str, Any]:
        """Return the fields that are no attributes of an estimator."""
        return {"posterior": kept_of(model.posterior_, getattr(model, "_sketch", None))}

    def _derive(self, model: Any) -> None:
        """Set the attributes that follow from the fields, having checked these."""
        raise NotImplementedError

    @classmethod
    def _attributes(cls) -> dict[str, str]:
        return {own.name: cls.paths.get(own.name, f"{own.name}_") for own in fields(cls)}


# ---------------------------------------------------------------------- GPRegressor


@dataclass(frozen=True)
class KeptRegressor(KeptFit):
    """What a `GPRegressor` has learned."""

    paths: ClassVar[dict[str, str]] = {
        "one_target": "_one_target",
        "sketch": "_sketch",
        "seconds": "timings_",
    }

    columns: NDArray[np.int64]
    one_target: bool
    sketch: Sketch
    target_offset: Floats
    target_scale: Floats
    domain: Domain
    posterior: KeptPosterior
    num_features: int
    kernel: Kernel
    noise_variance: float
    tightened_bound: float
    upper_bound: float
    certificate: Certificate
    status: str
    engine: str
    trials: tuple[Trial, ...]
    seconds: dict[str, float]
    covariate_names: tuple[str, ...] = ()
    noise_in_kernel: bool = False
    dispersion: float | None = None
    degrees: float | None = None
    passes: int = 1
    noise_posterior: KeptPosterior | None = None

    @staticmethod
    def _given(model: Any) -> dict[str, Any]:
        # The sums give the posterior of Gaussian noise by one solution, others by many steps.
        sketch = model._sketch if model.likelihood_ is None else None
        noise = model.noise_posterior_
        return {
            "posterior": kept_of(model.posterior_, sketch),
            "noise_posterior": None if noise is None else kept_of(noise, None),
        }

    def _derive(self, model: Any) -> None:
        num_dims = _check_columns(self.columns, self.domain, model)
        _check_bounds(self.elbo, self.tightened_bound, self.upper_bound)
        demand_few_parts(self.kernel, len(self.columns))
        self.kernel.check(model.n_features_in_)
        embedding = Embedding.of(self.kernel, model.n_features_in_)
        if embedding is not None:
            # Engines see points of the sphere in space; a kernel that is there already is refused.
            embedding.kernel(self.kernel)
            num_dims = embedding.size
        sketch, family = self.sketch, self.sketch.family
        p = sketch.statistics.num_targets if family is None else 1
        demand(len(sketch.extent.lower) == num_dims, f"must be of {num_dims} columns", "sketch")
        named = len(self.covariate_names) == sketch.mean.num_covariates
        demand(named, "must be one for each covariate of the sketch", "covariate_names")
        demand_shape(self.target_offset, (p,), "target_offset")
        demand_shape(self.target_scale, (p,), "target_scale")
        demand(self.target_scale > 0, "must be positive", "target_scale")
        demand(not self.one_target or p == 1, f"must be false for {p} targets", "one_target")
        demand(self.num_features >= 0, "must be at least 0", "num_features")
        demand(self.noise_variance > 0, "must be positive", "noise_variance")
        setting = Setting(
            num_dims,
            p,
            available_threads(model.n_jobs),
            sketch,
            Units(self.target_offset, self.target_scale, constant=False),
            model.weights == "repeats",
        )
        posterior = restored(self.posterior, setting, "posterior")
        for engine in (self.engine, *(trial.engine for trial in self.trials)):
            demand(engine in ENGINES, f"must be one of {', '.join(ENGINES)}", "engine")
        for name, kind in (("exact", ExactPosterior), ("neighbours", NeighbourPosterior)):
            there = isinstance(posterior, kind)
            wanted = f"must {'' if there else 'not '}be {name}, by its posterior"
            demand((self.engine == name) == there, wanted, "engine")
        same = model.likelihood == sketch.likelihood
        demand(same, f"must be of the likelihood {model.likelihood!r}", "sketch")
        demand(self.passes >= 1, "must be at least 1", "passes")
        there = self.noise_posterior is not None
        wanted = f"must {'not ' if there else ''}be there, by the likelihood"
        demand(isinstance(family, VaryingNoise) == there, wanted, "noise_posterior")
        if self.noise_posterior is not None:
            model.noise_posterior_ = restored(self.noise_posterior, setting, "noise_posterior")
        if self.dispersion is not None:
            positive = family is not None and family.dispersed and self.dispersion > 0
            demand(positive, "must be positive, for a likelihood that has one", "dispersion")
            family = None if family is None else family.with_dispersion(self.dispersion)
        if isinstance(family, StudentT):
            degrees = self.degrees or 0.0
            demand(degrees > 2, "must be above 2", "degrees")
            family = replace(family, degrees=degrees)
        model.likelihood_ = family
        learned = posterior.kernel, posterior.noise_variance
        model._last = Start(*learned, rows=sketch.statistics.count, likelihood=family)
        model.statistics_, model.target_shift_ = sketch.statistics, sketch.shift
        features: Any = getattr(posterior, "features", None)
        model.posterior_, model.features_, model.period_ = posterior, features, None
        if posterior.additive:
            parts = posterior if isinstance(posterior, AdditivePosterior) else posterior.components
            demand_components(self.kernel, self.columns, parts.columns)
        if isinstance(posterior, AdditivePosterior):
            model.period_ = tuple(part.lattice.period for part in features.parts)
        elif isinstance(features, SeriesFeatures) or not isinstance(posterior, FamilyPosterior):
            model.period_ = None if features is None else features.lattice.period


# ---------------------------------------------------------------------- GPIntensity


@dataclass(frozen=True)
class KeptIntensity(KeptFit):
    """What a `GPIntensity` has learned: its window, and the model of the logarithm of the rate."""

    window: Domain
    num_events: int
    rate: float
    exposure: float
    regressor: KeptModel
    surroundings: KeptSurroundings = NOTHING_KNOWN

    @staticmethod
    def _given(model: Any) -> dict[str, Any]:
        regressor = KeptModel.of(model.regressor_, KeptRegressor)
        return {"regressor": regressor, "surroundings": KeptSurroundings.of(model)}

    def _derive(self, model: Any) -> None:
        d = model.n_features_in_
        for name in ("num_events", "rate", "exposure"):
            demand(getattr(self, name) > 0, "must be positive", name)
        demand(isinstance(self.regressor.fit, KeptRegressor), "must be a GPRegressor", "regressor")
        demand(self.regressor.num_columns == d, "must have the window's columns", "regressor")
        regressor = self.regressor.model(import_module("orthogp").GPRegressor)
        demand(regressor.likelihood == "poisson", "must be of Poisson counts", "regressor")
        model._surround(*self.surroundings.restored(self.window, self.exposure, d))
        model._adopt(regressor)


# ---------------------------------------------------------------------- GPClassifier


class KeptLabels(NamedTuple):
    """The labels of classes, with their type."""

    type: str
    values: tuple[Any, ...]

    @classmethod
    def of(cls, labels: NDArray) -> KeptLabels:
        """Return labels that are numbers, truths or texts; `FileError` for others."""
        values = labels.tolist()
        odd = [own for own in values if isinstance(own, str) and own != printable(own)]
        if odd:
            raise FileError(
                f"A file holds labels without control characters, but one is {odd[0]!r}: fit with "
                "others."
            )
        if labels.dtype.kind == "U":
            return cls("text", tuple(values))
        if labels.dtype.kind == "S":
            return cls("bytes", tuple(value.decode("latin-1") for value in values))
        if labels.dtype.kind == "O" and all(isinstance(value, str) for value in values):
            return cls("object", tuple(values))
        if labels.dtype.name in (*_NUMBERS, "bool"):
            return cls(labels.dtype.name, tuple(values))
        raise FileError(
            f"A file holds labels that are numbers or texts, but these are of type {labels.dtype}: "
            "fit with such labels."
        )

    def labels(self) -> NDArray:
        """Return the labels, at least two and distinct."""
        name, values = self
        texts = {"text": np.str_, "bytes": np.bytes_, "object": object}
        demand(name in (*texts, "bool", *_NUMBERS), "is no type of labels", "classes/type")
        wanted: tuple[type, ...] = (str,)
        if name == "bool":
            wanted = (bool,)
        elif name in _NUMBERS:
            wanted = (int,) if "int" in name else (int, float)
        good = all(type(value) in wanted for value in values)
        demand(good, f"must be a list of type {name}", "classes/values")
        plain = all(value == printable(value) for value in values if isinstance(value, str))
        demand(plain, "must have no control characters", "classes/values")
        distinct = len(values) >= 2 and len(set(values)) == len(values)
        demand(distinct, "must be two or more different labels", "classes/values")
        if name == "bytes":
            values = tuple(value.encode("latin-1") for value in values)  # type: ignore[union-attr]
        return np.array(values, dtype=texts.get(name, name))


@dataclass(frozen=True)
class KeptClassifier(KeptFit):
    """What a `GPClassifier` has learned: a posterior for each class, or one if there are two."""

    paths: ClassVar[dict[str, str]] = {
        "posteriors": "_posteriors",
        "extent": "_extent",
        "sketch": "_sketch",
        "seconds": "timings_",
    }

    classes: KeptLabels
    columns: NDArray[np.int64]
    domain: Domain
    posteriors: tuple[KeptPosterior, ...]
    status: tuple[str, ...]
    num_passes: int
    num_rows: int
    seconds: dict[str, float]
    extent: Domain | None = None
    sketch: Sketch | None = None

    @staticmethod
    def _given(model: Any) -> dict[str, Any]:
        return {
            "classes": KeptLabels.of(model.classes_),
            "posteriors": tuple(kept_of(own, None) for own in model._posteriors),
            "status": model.status_ if len(model.classes_) > 2 else (model.status_,),
        }

    def _derive(self, model: Any) -> None:
        model.classes_ = self.classes.labels()
        count = len(model.classes_) if len(model.classes_) > 2 else 1
        num_dims = _check_columns(self.columns, self.domain, model)
        demand(len(self.posteriors) == count, f"must be {count} posteriors", "posteriors")
        demand(len(self.status) == count, f"must be {count} texts", "status")
        demand(self.num_passes >= 0, "must be at least 0", "num_passes")
        demand(self.num_rows >= 0, "must be at least 0", "num_rows")
        if self.sketch is not None:
            sums = self.sketch.statistics
            fits = self.sketch.joint and len(self.sketch.extent.lower) == num_dims
            demand(fits and sums.num_targets == count, "must be of the model's classes", "sketch")
        setting = Setting(num_dims, 1, available_threads(model.n_jobs))
        model._posteriors = posteriors = [
            restored(own, setting, f"posteriors/{i}") for i, own in enumerate(self.posteriors)
        ]
        demand(len({type(own) for own in posteriors}) == 1, "must be of one form", "posteriors")
        if posteriors[0].additive:
            if self.extent is None:
                raise RefusedError("is missing", "extent")
            fits = len(self.extent.lower) == num_dims and np.all(np.isfinite(self.extent))
            demand(fits, "must be finite, one edge for each column", "extent")
        names = dict(enumerate(self.columns.tolist()))

        def one_or_all(values: Iterable[Any]) -> Any:
            return next(iter(values)) if count == 1 else tuple(values)

        model.posterior_ = one_or_all(posteriors)
        model.kernel_ = one_or_all(own.kernel.with_columns(names) for own in posteriors)
        model.features_ = one_or_all(own.features for own in posteriors)
        model.status_ = one_or_all(self.status)


# ---------------------------------------------------------------------- StochasticGPRegressor


@dataclass(frozen=True)
class KeptStochastic(KeptFit):
    """What a `StochasticGPRegressor` has learned."""

    posterior: KeptPosterior
    target_offset: float
    target_scale: float
    history: tuple[Progress, ...]
    elbo_error: float
    status: str

    def _derive(self, model: Any) -> None:
        demand(self.target_scale > 0, "must be positive", "target_scale")
        square = self.target_scale**2
        posterior = restored(self.posterior, Setting(model.n_features_in_, 1), "posterior")
        model.posterior_, model.features_ = posterior, posterior.features
        model.kernel_ = posterior.kernel.scaled(square)
        model.noise_variance_ = posterior.noise_variance * square
        model.history_ = list(self.history)


# ---------------------------------------------------------------------- parts


def _printable(notes: Any) -> Any:
    """Return notes about a model without control characters in their texts."""
    if isinstance(notes, dict):
        return {printable(name): _printable(own) for name, own in notes.items()}
    if isinstance(notes, list):
        return [_printable(own) for own in notes]
    return printable(notes) if isinstance(notes, str) else notes


def _check_bounds(elbo: float, tightened: float, upper: float) -> None:
    """Raise `RefusedError` unless lower bounds lie below the upper one, up to rounding."""
    room = 1e-6 * (1 + abs(upper)) if np.isfinite(upper) else 0.0
    demand(not max(elbo, tightened) > upper + room, "must not exceed the upper bound", "elbo")


def _check_columns(columns: NDArray[np.int64], domain: Domain, model: Any) -> int:
    """Return the number of columns that a model sees, having checked which."""
    there = columns.ndim == 1 and len(columns) > 0 and np.all(np.diff(columns) > 0)
    within = there and columns[0] >= 0 and columns[-1] < model.n_features_in_
    demand(within, f"must be distinct, ascending, of {model.n_features_in_}", "columns")
    demand(len(domain.lower) == len(columns), "must be one edge for each column", "domain")
    return len(columns)


_BOUNDS = ("elbo", "tightened_bound", "upper_bound", "elbo_error")
_MODELS: dict[str, type[KeptFit]] = {
    "GPRegressor": register(KeptRegressor, "GPRegressor", infinite=_BOUNDS),
    "GPClassifier": register(KeptClassifier, "GPClassifier", infinite=_BOUNDS),
    "GPIntensity": register(KeptIntensity, "GPIntensity", infinite=_BOUNDS),
    "StochasticGPRegressor": register(KeptStochastic, "StochasticGPRegressor", infinite=_BOUNDS),
}

register(KeptModel, "model", infinite=("diagnostics",))
register(KeptLabels, "labels", infinite=("values",))


# ---------------------------------------------------------------------- version 1


def upgraded(content: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the content of a file of version 1 as version 2 has it.

    Content that version 1 did not write passes unchanged, and is refused when it is decoded.
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
        # Their fixed parameters are those of the kernel inside.
        node.pop("fixed", None)
    for old, new in _RENAMED.get(str(kind), {}).items():
        if old in node:
            node[new] = node.pop(old)
    if "components" in node and "cross" in node:
        _part_components(node)
    return node


def _settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings without the wrappers of those that are no numbers or texts."""
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
