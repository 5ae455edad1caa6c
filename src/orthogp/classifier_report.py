"""A fitted classifier in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orthogp.component_report import describe_choice, describe_shares
from orthogp.inference.components import AdditivePosterior
from orthogp.inference.domain import show

if TYPE_CHECKING:
    from orthogp.classifier import GPClassifier


def summarise_classifier(model: GPClassifier) -> str:
    """Return kernels, features, bound and timings as text."""
    batches = model.inference == "minibatch"
    fate = "learned" if batches else "integrated out"
    columns = f"{model.n_features_in_} input column{'s' if model.n_features_in_ > 1 else ''}"
    lines = [
        f"GPClassifier: {model.num_rows_:,} rows, {columns}, {len(model.classes_)} classes",
        f"  {'mean':<12} {'none' if model.mean is None else f'{model.mean}, {fate}'}",
    ]
    additive = isinstance(model._posteriors[0], AdditivePosterior)
    if additive:
        lines += describe_choice(model.kernel)
    labels, parts = model.classes_, (model.kernel_, model.posterior_, model.status_)
    if len(labels) == 2:
        labels, parts = labels[1:], tuple((part,) for part in parts)
    for label, kernel, posterior, status in zip(labels, *parts, strict=True):
        share = posterior.residual / posterior.prior_variance
        features = posterior.features.num_features
        lattices = f", {len(posterior.features.parts)} lattices" if additive else ""
        lines.append(f"  {'class':<12} {label}")
        if additive:
            lines += describe_shares(model.components(label))
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
