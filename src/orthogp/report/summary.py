"""A fitted model in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from orthogp.features import resolve_features
from orthogp.kernels import Categorical, Cyclic, Kernel, Product
from orthogp.kernels.base import EARTH_RADIUS
from orthogp.kernels.sphere import Sphere
from orthogp.kernels.terms import ADDITIVE_PREFIX
from orthogp.neighbours.posterior import NeighbourPosterior
from orthogp.rows import show

if TYPE_CHECKING:
    from orthogp.classifier import GPClassifier
    from orthogp.regressor import GPRegressor
    from orthogp.report.components import Component

# The distance of the bounds on log p(y), in nats per row, from which on they are not printed.
_WIDE = 1.0
# The sum of all shares of the variance above which the summary says that components cancel.
_CANCELLING = 1.2


def summarise(model: GPRegressor) -> str:
    """Return kernel, noise, features, bounds, guarantee and timings as text."""
    certificate = model.certificate_
    statistics = model.statistics_
    columns = f"{model.n_features_in_} input column{'s' if model.n_features_in_ > 1 else ''}"
    several = len(model.target_scale_) > 1
    lines = [f"GPRegressor: {statistics.rows:,.0f} rows, {columns}"]
    if several:
        lines[0] += f", {len(model.target_scale_)} targets"
    additive = model.posterior_.additive
    if additive:
        lines += _components(model)
    for i, (primitive, dims) in enumerate(() if additive else model.kernel_.primitives()):
        sign = "×" if isinstance(model.kernel_, Product) else "+"
        label = "kernel" if i == 0 else f"     {sign}"
        lines.append(f"  {label:<12} {_term(primitive, dims)}")
    noise_sd = float(np.sqrt(model.noise_variance_))
    lines.append(f"  {'noise':<12} variance {model.noise_variance_:.4g} (sd {noise_sd:.4g})")
    if several and not np.all(model.target_scale_ == model.target_scale_[0]):
        lines.append(f"  {'units':<12} of each target's own scale {_number(model.target_scale_)}")
    mean = {
        None: "none",
        "constant": "constant, integrated out",
        "linear": "linear, integrated out",
    }
    lines.append(f"  {'mean':<12} {mean[model._sketch.mean.kind]}")
    lines.append(f"  {'engine':<12} {describe_engine(model)}")
    lines += [f"  {'':<12} {line}" for line in describe_trials(model)]
    if model.features_ is not None:
        lines.append(f"  {'features':<12} {_features(model)}")
    if model.period_ is not None and not additive:
        lines.append(f"  {'covers':<12} {show(model.domain_)}")
    lines.append(f"  {'log p(y)':<12} {describe_evidence(model)}")
    lines.append(f"  {'certificate':<12} {guarantee(model)}")
    if certificate.wrap_error:
        lines.append(
            f"  {'prior':<12} periodic; differs from the kernel over the data by at most "
            f"{certificate.wrap_error:.1e} of its variance"
        )
    if certificate.quadrature_error:
        lines.append(
            f"  {'quadrature':<12} three times as many nodes would move the features by at most "
            f"{certificate.quadrature_error:.1e} of the prior sd"
        )
    lines.append(f"  {'status':<12} {model.status_}")
    lines.append(f"  {'seconds':<12} {model.timings_['total']:.2f}")
    return "\n".join(lines)


def summarise_classifier(model: GPClassifier) -> str:
    """Return kernels, features, bound and timings as text."""
    batches = model.inference == "minibatch"
    fate = "learned" if batches else "integrated out"
    columns = f"{model.n_features_in_} input column{'s' if model.n_features_in_ > 1 else ''}"
    lines = [
        f"GPClassifier: {model.num_rows_:,} rows, {columns}, {len(model.classes_)} classes",
        f"  {'mean':<12} {'none' if model.mean is None else f'{model.mean}, {fate}'}",
    ]
    additive = model._posteriors[0].additive
    if additive:
        lines += _choice(model.kernel)
    labels, parts = model.classes_, (model.kernel_, model.posterior_, model.status_)
    if len(labels) == 2:
        labels, parts = labels[1:], tuple((part,) for part in parts)
    for label, kernel, posterior, status in zip(labels, *parts, strict=True):
        share = posterior.residual / posterior.prior_variance
        features = posterior.features.num_features
        lattices = f", {len(posterior.features.parts)} lattices" if additive else ""
        lines.append(f"  {'class':<12} {label}")
        if additive:
            lines += _shares(model.components(label))
        else:
            lines.append(f"  {'kernel':<12} {kernel}")
        lines += [
            f"  {'features':<12} M = {features}{lattices}, leaving out {share:.1e} of the prior "
            "variance",
            f"  {'status':<12} {status}",
        ]
    return "\n".join(
        [
            *lines,
            f"  {'covers':<12} {show(model.domain_)}",
            f"  {'log p(y)':<12} at least {model.elbo_:,.3f} ({'estimated ' * batches}elbo)",
            f"  {'seconds':<12} {model.timings_['total']:.2f}, in {model.num_passes_} passes over "
            "the rows",
        ]
    )


def guarantee(model: GPRegressor) -> str:
    """Return what the certificate implies, as a sentence."""
    certificate = model.certificate_
    if certificate.replaces_prior:
        return "none: the features replace the kernel's prior, and the bounds hold for theirs"
    if isinstance(model.posterior_, NeighbourPosterior):
        return "none: an estimate is in the status"
    if model.features_ is None:
        return "not needed: the posterior is exact"
    if certificate.holds:
        return (
            f"KL from the exact posterior ≤ {certificate.gap:.2g} nats: every mean is within "
            f"{certificate.mean_error:.2g} exact posterior sd, every variance within "
            f"{100 * certificate.variance_error:.2g} %"
        )
    share = model.posterior_.residual / model.posterior_.prior_variance
    if not certificate.gap < _WIDE * model.statistics_.rows:
        return f"none: the features leave out {share:.1e} of the prior variance"
    return (
        f"KL from the exact posterior ≤ {certificate.gap:.3g} nats: too much to bound single means "
        f"and variances (the features leave out {share:.1e} of the prior variance)"
    )


def describe_engine(model: GPRegressor) -> str:
    """Return which engine the model was fitted with, as a sentence."""
    posterior = model.posterior_
    if isinstance(posterior, NeighbourPosterior):
        return (
            f"neighbours: each prediction looks at the nearest {posterior.num_neighbours} of "
            f"{posterior.num_rows:,} rows"
        )
    names = {
        "exact": "exact: all rows, no approximation",
        "dense": "dense lattice",
        "iterative": "iterative lattice",
        "additive": "additive: a lattice for each term",
        "features": "features of a family",
    }
    return names[model.engine_]


def describe_trials(model: GPRegressor) -> list[str]:
    """Return what was tried, a line for each engine, if more than one was."""
    if len(model.trials_) < 2:
        return []
    exact = any(trial.engine == "exact" for trial in model.trials_)
    scored = "log p(y) per row" if exact else "mean log predictive density of hidden rows"
    lines = [f"tried: engine, {scored}, seconds"]
    for trial in model.trials_:
        score = f"{trial.score:10.4f}" if np.isfinite(trial.score) else f"{'–':>10}"
        remark = f"  not tried: {trial.remark}" if trial.remark else ""
        lines.append(f"  {trial.engine:<11}{score}{trial.seconds:9.1f}{remark}")
    return lines


def describe_evidence(model: GPRegressor) -> str:
    """Return what is known of log p(y), as a sentence."""
    if isinstance(model.posterior_, NeighbourPosterior):
        return f"about {model.elbo_:,.0f}, from a sample of the rows' conditionals"
    if model.engine_ == "exact":
        return f"{model.elbo_:,.3f}"
    if not model.upper_bound_ - model.elbo_ < _WIDE * model.statistics_.rows:
        return "its bounds are too far apart to be worth printing"
    return (
        f"between {model.elbo_:,.3f} (elbo) and {model.upper_bound_:,.3f}; "
        f"tightened lower bound {model.tightened_bound_:,.3f}"
    )


def _components(model: GPRegressor) -> list[str]:
    """Return a line for each component of an additive model, and one for what they leave."""
    components = model.components()
    residual = float(np.mean(model.residual_share_))
    chosen = len(model.trials_) > 1
    return [*_choice(model.kernel, chosen), *_shares(components, residual)]


def _choice(kernel: Any, chosen: bool = False) -> list[str]:
    """Return a line on what a kernel's name stands for, if it was given by name.

    `chosen` says that a model of all columns jointly was tried as well.
    """
    if not isinstance(kernel, str):
        return []
    name = kernel.removeprefix(ADDITIVE_PREFIX)
    why = "" if chosen or name != kernel else ": more than three cannot act jointly on a lattice"
    return [f"  {'model':<12} additive, one {name} kernel on each column{why}"]


def _shares(components: Sequence[Component], residual: float | None = None) -> list[str]:
    """Return a line for each component, and one for the share that they leave, if any is known."""
    lines = []
    width = max(len(component.name) for component in components)
    for i, component in enumerate(components):
        label = "components" if i == 0 else ""
        share = float(np.mean(component.share))
        lines.append(
            f"  {label:<12} {component.name:<{width}} {100 * share:6.2f} % of the variance  "
            f"{_kernel(component.kernel)}"
        )
    if residual is not None:
        lines.append(f"  {'':<12} {'residual':<{width}} {100 * residual:6.2f} %")
    shares = (residual or 0.0) + sum(float(np.mean(component.share)) for component in components)
    if shares > _CANCELLING:
        lines.append(
            f"  {'':<12} more than 100 % in all: components of columns that go together cancel in "
            "part"
        )
    return lines


def _kernel(kernel: Kernel) -> str:
    parts = []
    for primitive, _ in kernel.primitives():
        name, own = primitive.label, dict(primitive.parameters())
        shown = [f"{label} {_number(value)}" for label, value in own.items()]
        if isinstance(primitive, Cyclic):
            shown.append(f"period {primitive.period:g}")
        if isinstance(primitive, Categorical):
            shown.append(f"{primitive.levels} levels")
        parts.append(f"{name}: {', '.join(shown)}")
    return (" × " if isinstance(kernel, Product) else " + ").join(parts)


def _term(primitive: Kernel, dims: tuple[int, ...] | None) -> str:
    """Return what a primitive is, which columns it acts on, and its parameters."""
    values = {name: _number(value) for name, value in primitive.parameters().items()}
    if isinstance(primitive, Sphere) and dims is not None:
        on = f" of columns {dims[0]}, {dims[1]}"
        if further := dims[2:]:
            columns = "column" if len(further) == 1 else "columns"
            on += f" and {columns} {', '.join(map(str, further))}"
        if primitive.radius == EARTH_RADIUS:
            first, *others = map(_number, np.ravel(primitive.parameters()["lengthscale"]))
            values["lengthscale"] = ", ".join([f"{first} km", *others])
            if others:
                values["lengthscale"] = f"[{values['lengthscale']}]"
    else:
        on = "" if dims is None else f" on column {', '.join(map(str, dims))}"
    shown = ", ".join(f"{name} {value}" for name, value in values.items())
    return f"{primitive.label}{on}: {shown}"


def _features(model: GPRegressor) -> str:
    family = resolve_features(model.features, "auto", 1)
    name = "" if family is None else f"{type(family).__name__}, "
    if model.posterior_.additive:
        return f"M = {model.num_features_}, {len(model.period_)} lattices"
    lattice = "" if model.period_ is None else f", lattice of period {_number(model.period_)}"
    return f"{name}M = {model.num_features_}{lattice}"


def _number(value: object) -> str:
    array = np.asarray(value, dtype=float)
    if array.size == 1:
        return f"{array.item():.4g}"
    return "[" + ", ".join(f"{entry:.4g}" for entry in array.ravel()) + "]"
