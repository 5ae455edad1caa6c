"""The sections of a page that are mostly words: summary, certificate, timings, loading."""

from __future__ import annotations

import json
import shlex
from html import escape
from typing import Any

import numpy as np

from orthogp.diagnostics import Diagnostics, RegressionDiagnostics
from orthogp.html_report.page import Section, Tile, code, paragraph, table, tiles
from orthogp.inference.components import AdditivePosterior
from orthogp.labels import Labels, describe_domain
from orthogp.report import guarantee

_MEANS = {None: "none", "constant": "a constant", "linear": "a plane"}
# A shorter pass has no rate worth telling; with sums that were there before there was none.
_SHORTEST_PASS = 1e-2


def number(value: Any, digits: int = 4) -> str:
    """Return a number or a few of them in so many digits."""
    array = np.asarray(value, dtype=float)
    return ", ".join(f"{entry:.{digits}g}" for entry in np.atleast_1d(array).ravel())


def _figure(value: float) -> str:
    """Return a number in three digits, trailing zeros included."""
    return f"{value:#.3g}".rstrip(".")


def _percent(share: float) -> str:
    """Return a share as a percentage that only says 100 if it is all."""
    digits = 1 if share < 0.999 else 2 if share < 0.9999 else 3
    return f"{np.floor(share * 100 * 10**digits) / 10**digits:.{digits}f} %"


def kernel_table(kernel: Any, labels: Labels, caption: str) -> str:
    """Return the terms of a kernel with their parameters, as a table."""
    rows = []
    for primitive, dims in kernel.primitives():
        names = "all inputs" if dims is None else ", ".join(labels.inputs[d] for d in dims)
        values = "; ".join(
            f"{name.replace('_', ' ')} {number(value)}"
            for name, value in primitive.parameters().items()
        )
        rows.append([primitive.label, names, values])
    header = ["kernel", "acts on", "learned"]
    if len(labels.inputs) == 1:
        rows, header = [[name, values] for name, _, values in rows], [header[0], header[2]]
    return table(rows, header, caption=caption)


def summary_section(model: Any, labels: Labels, found: Diagnostics | None) -> Section:
    """Return what the model is, in numbers."""
    rows, scale = model.statistics_.rows, np.asarray(model.target_scale_)
    shared = bool(np.all(scale == scale[0]))
    unit = labels.unit(labels.targets[0]) if shared else ""
    entries = [
        Tile("rows", f"{rows:,.0f}"),
        Tile(
            "features",
            "none" if model.features_ is None else f"{model.num_features_:,}",
            _ENGINE_NOTES.get(model.engine_, ""),
        ),
        Tile(
            "noise, standard deviation",
            f"{_figure(np.sqrt(model.noise_variance_))}{unit}",
            "" if shared else "of each target's own scale",
        ),
    ]
    if isinstance(found, RegressionDiagnostics):
        error = float(found.rmse[0])
        explained = 1 - float((found.rmse[0] / found.target_sd[0]) ** 2)
        entries += [
            Tile(
                "error, row by row left out",
                f"{_figure(error)}{labels.unit(labels.targets[0])}",
                f"{_percent(explained)} of the variance explained"
                if explained > 0
                else "no variance explained",
            ),
            Tile(
                "in their 95 % intervals",
                f"{100 * found.covered(0.95):.1f} %",
                f"of {found.rows_used:,} rows left out",
            ),
        ]
    certificate = model.certificate_
    if certificate.holds and model.features_ is not None:
        entries.append(
            Tile(
                "means are exact within",
                f"{certificate.mean_error:.2g} sd",
                "of the exact posterior, certified",
            )
        )
    entries.append(Tile("seconds to fit", f"{model.timings_['total']:.3g}"))
    mean = model._sketch.mean.kind
    facts = [["mean function", f"{_MEANS[mean]}{', integrated out' * bool(mean)}"]]
    additive = isinstance(model.posterior_, AdditivePosterior)
    if model.period_ is not None and not additive:
        facts.append(["predictions hold within", describe_domain(model)])
    facts.append(["how the fit ended", model.status_])
    if labels.source:
        facts.append(["data", labels.source])
    body = tiles(entries) + kernel_table(
        model.kernel_, labels, "The kernel: how values at different inputs go together."
    )
    return Section("summary", "Summary", body + table(facts))


def certificate_section(model: Any, *, checked: bool = False) -> Section:
    """Return the bounds and what follows from them, in plain words.

    Parameters
    ----------
    checked : bool
        Whether the page shows checks by the rows, which do not depend on the bounds.
    """
    certificate = model.certificate_
    body = ""
    if model.engine_ == "neighbours":
        text = f"Predictions look at the nearest rows only. {model.status_}"
        body = _verdict("Estimated, not certified.", text, False)
        rows = [["log p(y), estimated", f"{model.elbo_:,.0f}"]]
        body += table(rows, ["from a sample of the rows' conditionals", "nats"], numbers=[1])
        return Section("certificate", "Accuracy", body)
    if model.features_ is None:
        body = _verdict(
            "Exact.", "The posterior is computed without approximation: nothing to bound.", True
        )
        rows = [["log p(y)", f"{model.elbo_:,.3f}"]]
        body += table(rows, ["evidence of the data under this kernel", "nats"], numbers=[1])
        return Section("certificate", "Accuracy", body)
    if certificate.replaces_prior:
        body = _verdict("No certificate.", guarantee(model).capitalize() + ".", False)
    elif certificate.holds:
        body = _verdict(
            "Certified.",
            "The features leave out so little that every posterior mean lies within "
            f"{certificate.mean_error:.2g} standard deviations, and every posterior variance "
            f"within {100 * certificate.variance_error:.2g} %, of what the exact Gaussian process "
            "with this kernel and noise would say.",
            True,
        )
    else:
        share = model.posterior_.residual / model.posterior_.prior_variance
        body = _verdict(
            "Not certified.",
            "The bounds are too far apart to promise anything about single predictions. The "
            f"features leave out {share:.1e} of the prior variance; more of them (num_features, "
            "max_features) bring the bounds together."
            + " The checks above are not touched by this."
            * checked,
            False,
        )
    body += paragraph(
        "The evidence log p(y) of the data under this kernel lies between a lower and an upper "
        "bound. Their distance bounds the Kullback–Leibler divergence of the model that predicts "
        "from the exact posterior, and that divergence bounds the errors of means and variances."
    )
    rows = [
        ["lower bound (ELBO)", f"{model.elbo_:,.3f}"],
        ["tightened lower bound", f"{model.tightened_bound_:,.3f}"],
        ["upper bound", f"{model.upper_bound_:,.3f}"],
        ["divergence, at most", f"{certificate.gap:.3g}"],
    ]
    body += table(rows, ["log p(y)", "nats"], numbers=[1])
    notes = []
    if certificate.wrap_error:
        notes.append(
            "The prior is periodic beyond the data; over them it differs from the kernel by at "
            f"most {certificate.wrap_error:.1e} of its variance."
        )
    if certificate.quadrature_error:
        notes.append(
            "Three times as many quadrature nodes would move the features by at most "
            f"{certificate.quadrature_error:.1e} of the prior standard deviation."
        )
    return Section("certificate", "Bounds and certificate", body + "".join(map(paragraph, notes)))


_ENGINE_NOTES = {
    "exact": "the posterior is exact",
    "neighbours": "each prediction looks at the nearest rows",
}


def _verdict(word: str, text: str, good: bool) -> str:
    look = "verdict" if good else "verdict open"
    return f'<p class="{look}"><strong>{escape(word)}</strong> {escape(text)}</p>'


def timings_section(model: Any) -> Section:
    """Return where the time went."""
    timings = model.timings_
    names = {"pass": "pass over the rows", "learn": "learning and posterior", "total": "all"}
    rows = [[names.get(name, name), f"{seconds:.2f}"] for name, seconds in timings.items()]
    if hasattr(model, "num_passes_"):
        text = f"The rows were passed over {model.num_passes_:,} times."
    elif "pass" not in timings:
        text = "This is all that fitting took, whatever was tried included."
    elif timings["pass"] < _SHORTEST_PASS:
        text = ""
    else:
        speed = model.statistics_.rows / timings["pass"]
        text = f"{float(f'{speed:.2g}'):,.0f} rows per second in the one pass over them."
    body = table(rows, ["step", "seconds"], numbers=[1]) + (paragraph(text) if text else "")
    return Section("timings", "Timings", body)


def loading_section(model: Any, labels: Labels, file: str) -> Section:
    """Return how to load the model from a file and predict, in Python and on the command line."""
    kind = type(model).__name__
    classifier = kind == "GPClassifier"
    predict = (
        "probabilities = model.predict_proba(X_new)"
        if classifier
        else "mean, std = model.predict(X_new, return_std=True)"
    )
    columns = ", ".join(labels.inputs)
    python = (
        f"from orthogp import {kind}\n\n"
        f"model = {kind}.load({json.dumps(file, ensure_ascii=False)})\n"
        f"# Columns of X_new: {columns}.\n"
        f"{predict}"
    )
    body = paragraph("In Python, the model having been saved by model.save or orthogp fit:")
    body += code(python, "python")
    body += paragraph("On the command line:")
    body += code(f"orthogp predict {shlex.quote(file)} new.csv --out pred.csv", "shell")
    return Section("load", "How to load the model", body)
