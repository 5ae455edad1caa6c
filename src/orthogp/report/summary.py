"""A fitted model in words: names of its columns, its summary as text and as a table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from orthogp.features import resolve_features
from orthogp.files.columns import time_scales
from orthogp.inference.likelihoods import StudentT
from orthogp.kernels import Categorical, Cyclic, Kernel, Product
from orthogp.kernels.base import EARTH_RADIUS
from orthogp.kernels.terms import ADDITIVE_PREFIX
from orthogp.kernels.transformed import Sphere
from orthogp.learning.sketches import KeptRows
from orthogp.neighbours.posterior import NeighbourPosterior

if TYPE_CHECKING:
    from orthogp.classifier import GPClassifier
    from orthogp.regressor import GPRegressor
    from orthogp.report.components import Component

#: Between the unit and the origin of an input that is a time.
SINCE = " since "
# The largest certified error of means, in posterior sd, or of sds that is worth printing.
_LOOSEST = 1.0
# The distance of the bounds on log p(y), in nats per row, from which on they are not printed.
_WIDE = 1.0
# The distance of the sum of all shares of the variance from one above which the summary says why.
_CANCELLING = 0.005

_ENGINES = {
    "exact": "exact: all rows, no approximation",
    "dense": "dense lattice",
    "iterative": "iterative lattice",
    "additive": "additive: a lattice for each term",
    "features": "features of a family",
}

_TABLE = "border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 0 0 .5em"
_HEAD = "font-weight: 600; padding: .15em 1.2em .15em 0; text-align: left; vertical-align: top"
_CELL = "padding: .15em 0; text-align: left; white-space: pre-wrap"

# A label, empty where the line before goes on, and a text.
_Line = tuple[str, str]


# ---------------------------------------------------------------------- names


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
    targets = about.get("targets", about.get("target", "y"))
    targets = [targets] if isinstance(targets, str) else [str(name) for name in targets]
    count = len(getattr(model, "target_scale_", [1.0]))
    if len(targets) != count:
        targets = targets[:1] if count == 1 else [f"{targets[0]}{i}" for i in range(count)]
    units = {str(name): str(unit) for name, unit in (about.get("units") or {}).items() if unit}
    for name, scale in zip(inputs, time_scales(model), strict=False):
        if scale is not None:
            units.setdefault(str(name), f"{scale.unit}{SINCE}{scale.origin}")
    return Names(tuple(map(str, inputs)), tuple(targets), units, str(about.get("source") or ""))


def known_names(model: Any) -> list[str] | None:
    """Return the names of the columns of X, from a data frame or a file, if there are any."""
    names = getattr(model, "feature_names_in_", None)
    if names is None:
        names = (getattr(model, "about_", None) or {}).get("inputs")
    if names is None or len(names) != model.n_features_in_:
        return None
    return [str(name) for name in names]


def column_names(model: Any) -> list[str]:
    """Return the names of the columns of X, from a data frame or a file, or by their numbers."""
    return known_names(model) or [f"column {i}" for i in range(model.n_features_in_)]


def describe_domain(model: Any) -> str:
    """Return the box in which predictions hold as text, in dates where inputs are times."""
    times = time_scales(model)
    intervals = []
    for column, *edges in zip(model.columns_, *model.domain_, strict=True):
        scale = times[int(column)]
        if scale is None:
            ends = [f"{edge:.6g}" for edge in edges]
        else:
            # To the second where days are too coarse.
            precision: Any = "D" if scale.unit == "days" else "s"
            dates = scale.datetimes(np.array(edges, dtype=np.float64))
            ends = np.datetime_as_string(dates, unit=precision, casting="unsafe")
        intervals.append(f"[{', '.join(ends)}]")
    return " × ".join(intervals)


# ---------------------------------------------------------------------- summaries


def summarise(model: GPRegressor | GPClassifier) -> str:
    """Return what a fitted model has learned, its bounds and timings as text."""
    (name, size), *lines = _lines(model)
    return "\n".join([f"{name}: {size}", *(f"  {label:<12} {text}" for label, text in lines)])


def learned_table(model: Any) -> str:
    """Return the summary of a fitted model as a table in HTML; nothing if it is not fitted."""
    if not hasattr(model, "posterior_"):
        return ""
    body = "".join(
        f'<tr><th scope="row" style="{_HEAD}">{escape(label)}</th>'
        f'<td style="{_CELL}">{escape(text)}</td></tr>'
        for label, text in _lines(model)
    )
    return f'<table style="{_TABLE}">{body}</table>'


def with_table(model: Any, bundle: dict[str, str]) -> dict[str, str]:
    """Return what a notebook is given to show, with the learned model above its HTML."""
    if "text/html" in bundle:
        bundle["text/html"] = learned_table(model) + bundle["text/html"]
    return bundle


def _lines(model: Any) -> list[_Line]:
    return _classifier_lines(model) if hasattr(model, "classes_") else _regressor_lines(model)


def _regressor_lines(model: GPRegressor) -> list[_Line]:
    several = len(model.target_scale_) > 1
    size = f"{model.statistics_.rows:,.0f} rows, {_columns(model)}"
    lines = [("GPRegressor", size + f", {len(model.target_scale_)} targets" * several)]
    additive = model.posterior_.additive
    if additive:
        lines += _choice(model.kernel, tried=len(model.trials_) > 1)
        lines += _shares(model.components(), float(np.mean(model.residual_share_)))
    else:
        sign = "×" if isinstance(model.kernel_, Product) else "+"
        for i, term in enumerate(model.kernel_.primitives()):
            text = _term(*term, known_names(model))
            lines.append(("kernel" if i == 0 else f"     {sign}", text))
    lines.append(_noise(model))
    if several and not np.all(model.target_scale_ == model.target_scale_[0]):
        lines.append(("units", f"of each target's own scale {_number(model.target_scale_)}"))
    mean = model._sketch.mean.kind
    lines.append(("mean", "none" if mean is None else f"{mean}, integrated out"))
    if model.covariate_names_:
        effects = model.effects_.lines()
        lines += [("" if i else "effects", text) for i, text in enumerate(effects)]
    lines.append(("engine", _engine(model)))
    lines += [("", text) for text in _trials(model)]
    if model.features_ is not None:
        lines.append(("features", _features(model)))
    if model.period_ is not None and not additive:
        lines.append(("covers", describe_domain(model)))
    lines += [("log p(y)", _evidence(model)), ("certificate", guarantee(model))]
    certificate = model.certificate_
    if certificate.wrap_error:
        text = "periodic; differs from the kernel over the data by at most"
        lines.append(("prior", f"{text} {certificate.wrap_error:.1e} of its variance"))
    if certificate.quadrature_error:
        text = "three times as many nodes would move the features by at most"
        lines.append(("quadrature", f"{text} {certificate.quadrature_error:.1e} of the prior sd"))
    return [*lines, ("status", model.status_), ("seconds", f"{model.timings_['total']:.2f}")]


def _noise(model: GPRegressor) -> _Line:
    family = model.likelihood_
    if family is None:
        sd = float(np.sqrt(model.noise_variance_))
        shared = ", the same for all targets" if len(model.target_scale_) > 1 else ""
        return "noise", f"variance {model.noise_variance_:.4g} (sd {sd:.4g}){shared}"
    dispersion = "" if model.dispersion_ is None else f", dispersion {model.dispersion_:.4g}"
    if model.noise_posterior_ is not None:
        sd = float(np.sqrt(model.noise_variance_))
        dispersion = f", noise sd around {sd:.4g}, its log variance {model.noise_posterior_.kernel}"
    if isinstance(family, StudentT):
        dispersion = f", scale {family.dispersion:.4g}, degrees of freedom {family.degrees:.3g}"
    passes = "one pass over the rows"
    if isinstance(model._sketch, KeptRows):
        passes = "the rows are kept"
    elif model.passes_ > 1:
        passes = f"{model.passes_} passes over the rows"
    return "likelihood", f"{family.known_as}{dispersion}; {passes}"


def _classifier_lines(model: GPClassifier) -> list[_Line]:
    batches = model.inference == "minibatch"
    mean = "learned" if batches else "integrated out"
    lines = [
        (
            "GPClassifier",
            f"{model.num_rows_:,} rows, {_columns(model)}, {len(model.classes_)} classes",
        ),
        ("mean", "none" if model.mean is None else f"{model.mean}, {mean}"),
    ]
    additive = model._posteriors[0].additive
    if additive:
        lines += _choice(model.kernel)
    for label, kernel, posterior, status in latent_functions(model):
        share = posterior.residual / posterior.prior_variance
        lattices = f", {len(posterior.features.parts)} lattices" if additive else ""
        lines.append(("class", str(label)))
        lines += _shares(model.components(label)) if additive else [("kernel", str(kernel))]
        features = f"M = {posterior.features.num_features}{lattices}, leaving out {share:.1e} of"
        lines += [("features", f"{features} the prior variance"), ("status", status)]
    seconds, passes = model.timings_["total"], model.num_passes_
    return [
        *lines,
        ("covers", describe_domain(model)),
        ("log p(y)", f"at least {model.elbo_:,.3f} ({'estimated ' * batches}elbo)"),
        ("seconds", f"{seconds:.2f}, in {passes} pass{'es' * (passes > 1)} over the rows"),
    ]


def latent_functions(model: Any) -> list[tuple[Any, Kernel, Any, str]]:
    """Return class, kernel, posterior and status of each latent function of a classifier.

    With two classes there is one latent function, of the second.
    """
    parts = model.kernel_, model.posterior_, model.status_
    if not isinstance(model.posterior_, tuple):
        return [(model.classes_[1], *parts)]
    return list(zip(model.classes_, *parts, strict=True))


def guarantee(model: GPRegressor) -> str:
    """Return what the certificate implies, as a sentence."""
    certificate = model.certificate_
    if model.likelihood_ is not None and model.engine_ != "neighbours":
        if model.engine_ == "exact":
            return "not needed: the posterior is the closest Gaussian to that of the rows"
        if model.passes_ > 1:
            return "none: no frequency of a function of f was cut, for the rows were read"
        return (
            f"frequencies that were cut move means by at most {certificate.mean_error:.1e} "
            f"posterior sd, variances by {100 * certificate.variance_error:.1e} %, to first order"
        )
    if certificate.replaces_prior:
        return "none: the features replace the kernel's prior, and the bounds hold for theirs"
    if certificate.kind == "exact":
        return "not needed: the posterior is exact"
    if certificate.kind == "estimate":
        return (
            f"none, but an estimate: means within about {certificate.mean_error:.2g} posterior sd, "
            f"sds within about {100 * certificate.sd_error:.2g} % of the exact Gaussian process"
        )
    # Without a guarantee the effect of the period is not part of the bounds.
    bounded = getattr(model.posterior_, "guarantee", None) is not None
    prior = "" if bounded or not certificate.wrap_error else " of the periodic prior"
    within = (
        f"every mean within {certificate.mean_error:.2g} posterior sd, every sd within "
        f"{100 * certificate.sd_error:.2g} % of the exact Gaussian process{prior}"
    )
    if certificate.holds:
        return within
    if certificate.error < _LOOSEST:
        return f"{within}: more than the {100 * certificate.tolerance:.2g} % asked for"
    share = model.posterior_.residual / model.posterior_.prior_variance
    left_out = f"the features leave out {share:.1e} of the prior variance"
    return f"none: {left_out}"


def _columns(model: Any) -> str:
    return f"{model.n_features_in_} input column{'s' if model.n_features_in_ > 1 else ''}"


def _engine(model: GPRegressor) -> str:
    posterior = model.posterior_
    if isinstance(posterior, NeighbourPosterior):
        return (
            f"neighbours: each prediction uses the nearest {posterior.num_neighbours} of "
            f"{posterior.num_rows:,} rows"
        )
    return _ENGINES[model.engine_]


def _trials(model: GPRegressor) -> list[str]:
    """Return the scores of the engines that were tried, or why no other engine was."""
    if len(model.trials_) < 2:
        return []
    if not any(np.isfinite(trial.score) for trial in model.trials_):
        untried = [trial for trial in model.trials_ if trial.remark]
        return [f"The engine {trial.engine} was not tried: {trial.remark}." for trial in untried]
    exact = any(trial.engine == "exact" for trial in model.trials_)
    scored = "log p(y) per row" if exact else "mean log predictive density of held-out rows"
    lines = [f"tried: engine, {scored}, seconds"]
    for trial in model.trials_:
        score = f"{trial.score:10.4f}" if np.isfinite(trial.score) else f"{'–':>10}"
        remark = f"  not tried: {trial.remark}" if trial.remark else ""
        lines.append(f"  {trial.engine:<11}{score}{trial.seconds:9.1f}{remark}")
    return lines


def _evidence(model: GPRegressor) -> str:
    """Return what is known of log p(y), as a sentence."""
    if isinstance(model.posterior_, NeighbourPosterior):
        kind = "" if model.likelihood_ is None else " (elbo)"
        return f"about {model.elbo_:,.0f}{kind}, from a sample of the rows' conditionals"
    if model.likelihood_ is not None:
        return f"at least {model.elbo_:,.3f} (elbo)"
    if model.engine_ == "exact":
        return f"{model.elbo_:,.3f}"
    if not model.upper_bound_ - model.elbo_ < _WIDE * model.statistics_.rows:
        return "its bounds are too far apart to be worth printing"
    return (
        f"between {model.elbo_:,.3f} (elbo) and {model.upper_bound_:,.3f}; "
        f"tightened lower bound {model.tightened_bound_:,.3f}"
    )


def _features(model: GPRegressor) -> str:
    if model.posterior_.additive:
        return f"M = {model.num_features_}, {len(model.period_)} lattices"
    family = resolve_features(model.features, "auto", 1)
    name = "" if family is None else f"{type(family).__name__}, "
    lattice = "" if model.period_ is None else f", lattice of period {_number(model.period_)}"
    return f"{name}M = {model.num_features_}{lattice}"


def _choice(kernel: Any, *, tried: bool = False) -> list[_Line]:
    """Return a line on the additive model that a kernel's name stands for, if it is a name.

    `tried` says that a model of all columns jointly was tried as well.
    """
    if not isinstance(kernel, str):
        return []
    name = kernel.removeprefix(ADDITIVE_PREFIX)
    why = "" if tried or name != kernel else ": more than three cannot act jointly on a lattice"
    return [("model", f"additive, one {name} kernel on each column{why}")]


def _shares(components: Sequence[Component], residual: float | None = None) -> list[_Line]:
    """Return a line for each component, and one for the share that they leave, if it is known."""
    width = max(len(component.name) for component in components)
    shares = [float(np.mean(component.share)) for component in components]
    texts = [
        f"{component.name:<{width}} {100 * share:6.2f} % of the variance  {_kernel(component)}"
        for component, share in zip(components, shares, strict=True)
    ]
    if residual is not None:
        texts.append(f"{'residual':<{width}} {100 * residual:6.2f} %")
    if note := total_share(sum(shares) + (residual or 0.0)):
        texts.append(note)
    return [("" if i else "components", text) for i, text in enumerate(texts)]


def total_share(total: float) -> str:
    """Return why shares of the variance do not add up to 100 %, nothing if they do."""
    if abs(total - 1.0) <= _CANCELLING:
        return ""
    way = (
        "cancel each other in part" if total > 1 else "rise and fall together, which adds the rest"
    )
    return f"{100 * total:.4g} % in all: components {way}"


def _kernel(component: Component) -> str:
    sign = " × " if isinstance(component.kernel, Product) else " + "
    return sign.join(_term(primitive, None) for primitive, _ in component.kernel.primitives())


def _term(
    primitive: Kernel, dims: tuple[int, ...] | None, names: Sequence[str] | None = None
) -> str:
    """Return what a primitive is, which columns it acts on, and its parameters."""
    values = {name: _number(value) for name, value in primitive.parameters().items()}
    numbers, word = [str(column) for column in dims or ()], "column "
    if names is not None:
        numbers, word = [names[column] for column in dims or ()], ""
    on = "" if dims is None else f" on {word}{', '.join(numbers)}"
    if isinstance(primitive, Cyclic):
        values["period"] = f"{primitive.period:g}"
    if isinstance(primitive, Sphere) and dims is not None:
        on = f" of {word and 'columns '}{', '.join(numbers[:2])}"
        if further := numbers[2:]:
            on += f" and {word if len(further) == 1 else word and 'columns '}{', '.join(further)}"
        if primitive.radius == EARTH_RADIUS:
            first, *others = map(_number, np.ravel(primitive.parameters()["lengthscale"]))
            lengths = ", ".join([f"{first} km", *others])
            values["lengthscale"] = f"[{lengths}]" if others else lengths
    shown = [f"{name} {value}" for name, value in values.items()]
    if isinstance(primitive, Categorical):
        shown.append(f"{primitive.levels} levels")
    return f"{primitive.label}{on}: {', '.join(shown)}"


def _number(value: object) -> str:
    array = np.asarray(value, dtype=float)
    if array.size == 1:
        return f"{array.item():.4g}"
    return "[" + ", ".join(f"{entry:.4g}" for entry in array.ravel()) + "]"
