"""A fitted model as one HTML page that needs no network.

The content is gathered here, its drawings in figures.py, what its sliders move in live.py; the
words and their layout are in page.html.jinja, the looks in page.css, the scripts in posterior.js
and explore.js.
"""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Iterable
from hashlib import sha256
from importlib import resources
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn.utils.validation import check_is_fitted

from orthogp.errors import InputError, require
from orthogp.inference import Domain
from orthogp.inference.posterior import Posterior
from orthogp.persistence import replacing
from orthogp.report.components import parts_of
from orthogp.report.diagnostics import (
    LEVELS,
    ClassificationDiagnostics,
    Diagnostics,
    RegressionDiagnostics,
)
from orthogp.report.figures import WIDE, Figures, covered_range
from orthogp.report.live import Live, live_content
from orthogp.report.plots import PANEL, Drawing, Svg, inline_svg, require_matplotlib
from orthogp.report.spectrum import latent_spectra, learned_spectra
from orthogp.report.summary import Names, describe_domain, guarantee, latent_functions
from orthogp.statistics.lattice import MAX_DIMS

if TYPE_CHECKING:
    from orthogp.classifier import GPClassifier
    from orthogp.regressor import GPRegressor

# The scripts of a page with sliders, in the order in which they run.
_SCRIPTS = ("posterior.js", "explore.js")
# The name of a model's file unless one is given.
_MODEL_FILE = "m.orthogp"
# The most targets that have figures.
_MOST_TARGETS = 3
# The most classes that have figures.
_MOST_CLASSES = 4
# The most components, or inputs of a model of many, that have a figure.
_MOST_COMPONENTS = 12
# The most inputs along which residuals are shown.
_MOST_INPUTS = 7
# The most spectra of a regressor.
_MOST_SPECTRA = 8
# The most spectra of a class.
_MOST_CLASS_SPECTRA = 6
# The most turns of a mean that is not also shown magnified, at the end of the rows' range.
_MOST_TURNS = 24
# The length of the magnified stretch, relative to the rows' range.
_STRETCH = 0.12
# Where the third of three inputs is cut, relative to its range.
_CUTS = (0.25, 0.5, 0.75)
# Inches of a curve on a phone.
_NARROW = (4.6, 3.5)
# The shortest pass over the rows, in seconds, whose speed is stated.
_SHORTEST_PASS = 1e-2


# One figure of the page: a drawing for all screens, or one for wide screens and one for phones.
Drawings = list[Svg]


class Group(NamedTuple):
    """The figures of one target or class, with its name if there are several."""

    heading: str
    figures: list[Drawings]


def write_report(
    model: GPRegressor | GPClassifier,
    path: str | Path,
    *,
    title: str | None = None,
    diagnostics: Diagnostics | None = None,
    model_file: str | None = None,
    live: bool = True,
) -> Path:
    """Write a page about a fitted model, and return its path.

    Parameters
    ----------
    title : str, optional
        The page's heading; the target's name unless given.
    diagnostics : Diagnostics, optional
        The results of `diagnose`; `model.diagnostics_` unless given. Without any, the sections that
        need them say so.
    model_file : str, optional
        The file that holds the model, for the lines that show how to load it.
    live : bool
        Whether the page has sliders where it can: it then holds the sums of the rows, which say
        much about few rows, and scripts of its own.
    """
    path = Path(path)
    if not path.parent.is_dir():
        # Before the work, not after it.
        raise InputError(f"The report cannot go to {path}: {path.parent} is no directory.")
    if hasattr(model, "window_"):
        raise InputError(
            "A page shows regressions and classifiers: of an intensity there is a summary, and "
            "its predictions make a map."
        )
    text = render_report(
        model, title=title, diagnostics=diagnostics, model_file=model_file, live=live
    )
    with replacing(path) as stream:
        stream.write(text.encode())
    return path


def render_report(
    model: GPRegressor | GPClassifier,
    *,
    title: str | None = None,
    diagnostics: Diagnostics | None = None,
    model_file: str | None = None,
    live: bool = True,
) -> str:
    """Return a page about a fitted model as HTML; see `write_report`."""
    check_is_fitted(model, "posterior_")
    if not hasattr(model, "classes_") and not hasattr(model, "certificate_"):
        raise InputError(
            f"There is no page about a {type(model).__name__}: its status_ and history_ say how "
            "training went, and GPRegressor fits a model that has one."
        )
    require_matplotlib()
    template = _template()
    fitted: Any = model
    classifier = hasattr(model, "classes_")
    figures = Figures(model, _checked_diagnostics(model, diagnostics))
    names = figures.names
    rows = fitted.num_rows_ if classifier else fitted.statistics_.rows
    inputs = ", ".join(names.inputs[column] for column in figures.columns)
    targets = ", ".join(names.targets)
    content = (_class_content if classifier else _regressor_content)(figures)
    explore = Live(reason="The page was written without them.")
    if live:
        explore = live_content(figures)
    if explore.data:
        stretch = _magnified(figures, 0)
        explore.data["stretch"] = stretch and [float(own[0]) for own in stretch]
    scripts = [_resource(name) for name in _SCRIPTS] if explore.data else []
    return template.render(
        css=_resource("page.css"),
        scripts=scripts,
        policy=_policy(scripts),
        explore=explore,
        title=title or f"A Gaussian process for {targets}",
        subtitle=f"{targets} from {inputs}: {type(model).__name__}, {rows:,.0f} rows",
        classifier=classifier,
        additive=figures.additive,
        model=model,
        names=names,
        found=figures.found,
        domain=describe_domain(model),
        kernel_rows=lambda kernel: _kernel_rows(kernel, names),
        most_targets=_MOST_TARGETS,
        most_classes=_MOST_CLASSES,
        most_components=_MOST_COMPONENTS,
        speed=_speed(model),
        file=model_file or _MODEL_FILE,
        **content,
    )


def _template() -> Any:
    require("jinja2", "A report", "plots")
    from jinja2 import Environment, StrictUndefined

    page = Environment(
        autoescape=True,
        extensions=["jinja2.ext.do"],
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    page.filters |= {
        "digits": format,
        # Adding zero to a rounded number leaves no zero with a sign.
        "unsigned": lambda value: f"{round(float(value), 3) + 0.0:.3f}",
        "figure": lambda value: f"{value:#.3g}".rstrip("."),
        "percent": _percent,
        "quoted": lambda text: json.dumps(text, ensure_ascii=False),
        "in_shell": shlex.quote,
    }
    return page.from_string(_resource("page.html.jinja"))


def _policy(scripts: list[str]) -> str:
    """Return what a browser may load and run: nothing but the page and its own scripts."""
    digests = [base64.b64encode(sha256(own.encode()).digest()).decode("ascii") for own in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {allowed}"


def _resource(name: str) -> str:
    return resources.files("orthogp.report").joinpath(name).read_text("utf-8")


def _checked_diagnostics(model: Any, given: Diagnostics | None) -> Any:
    """Return the diagnostics to show, those of the model unless others are given, or `None`."""
    found = getattr(model, "diagnostics_", None) if given is None else given
    kind = ClassificationDiagnostics if hasattr(model, "classes_") else RegressionDiagnostics
    if found is not None and not isinstance(found, kind):
        raise InputError(
            f"diagnostics must be those of this model ({kind.__name__}), got "
            f"{type(found).__name__}: use diagnose(model, X, y)."
        )
    return found


def _percent(share: float) -> str:
    """Return a share as a percentage that says 100 only of the whole."""
    digits = 1 if share < 0.999 else 2 if share < 0.9999 else 3
    return f"{np.floor(share * 100 * 10**digits) / 10**digits:.{digits}f} %"


def _kernel_rows(kernel: Any, names: Names) -> list[list[str]]:
    """Return each term of a kernel: its name, its inputs, and its parameters."""
    rows = []
    for primitive, dims in kernel.primitives():
        inputs = "all inputs" if dims is None else ", ".join(names.inputs[int(d)] for d in dims)
        values = []
        for name, value in primitive.parameters().items():
            entries: list[float] = np.ravel(np.asarray(value, dtype=np.float64)).tolist()
            shown = ", ".join(f"{entry:.4g}" for entry in entries)
            values.append(f"{name.replace('_', ' ')} {shown}")
        acts_on = [inputs] if len(names.inputs) > 1 else []
        rows.append([primitive.label, *acts_on, "; ".join(values)])
    return rows


def _speed(model: Any) -> float | None:
    """Return rows per second of the one pass over them, if there was one that took a while."""
    seconds = model.timings_.get("pass", 0.0)
    if hasattr(model, "num_passes_") or seconds < _SHORTEST_PASS:
        return None
    return float(f"{model.statistics_.rows / seconds:.2g}")


# ---------------------------------------------------------------------- figures


class _Page:
    """Drawings as SVG with identifiers that are unique in the page."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def all(self, drawings: Iterable[Drawing]) -> list[Drawings]:
        """Return figures, each for all screens, wide ones also for phones."""
        return [self.one(drawing) for drawing in drawings]

    def one(self, drawing: Drawing) -> Drawings:
        """Return a figure."""
        if drawing.size[0] != WIDE[0]:
            return [self._svg(drawing, "plot")]
        return [self._svg(drawing, "wide"), self._svg(drawing._replace(size=_NARROW), "narrow")]

    def _svg(self, drawing: Drawing, look: str) -> Svg:
        return inline_svg(drawing, f"figure{next(self._numbers)}", look=look)


def _regressor_content(figures: Figures) -> dict[str, Any]:
    """Return all that the template shows of a regressor besides its attributes."""
    model, posterior, page = figures.model, figures.model.posterior_, _Page()
    scale = np.asarray(model.target_scale_)
    targets = range(min(len(scale), _MOST_TARGETS))
    heading = [figures.names.targets[t] if len(scale) > 1 else "" for t in targets]
    order = _by_share(figures)
    spectra = learned_spectra(model, figures.box)
    spectra.sort(key=lambda own: order.index(tuple(own.columns)) if order else 0)
    shown = [(own, t) for own in spectra[:_MOST_SPECTRA] for t in targets]
    # The inputs of the largest components first.
    inputs = [column for columns in order for column in columns]
    along = list(dict.fromkeys([*inputs, *range(len(figures.columns))]))[:_MOST_INPUTS]
    checked = targets if figures.found is not None else ()
    approximate = model.features_ is not None
    small = len(shown) > 2
    return {
        "mean": model._sketch.mean.kind,
        "located": len(figures.columns) == 2 and figures.locations is not None,
        "one_scale": bool(np.all(scale == scale[0])),
        "guarantee": guarantee(model),
        "left_out": posterior.residual / posterior.prior_variance if approximate else None,
        "num_components": len(order),
        "remainder": np.ravel(model.residual_share_) if figures.additive else None,
        "fit": [Group(heading[t], page.all(_fit(figures, t))) for t in targets],
        "spectra": [page.one(figures.spectrum(own, t, small=small)) for own, t in shown],
        "spectrum_captions": [heading[t] for _, t in shown],
        "spectra_shown": _MOST_SPECTRA,
        "spectra_in_all": len(spectra),
        "along": len(along),
        "residuals": [Group(heading[t], page.all(figures.residuals(along, t))) for t in checked],
        "calibration": [Group(heading[t], page.all(figures.calibration(t))) for t in checked],
        "levels": LEVELS,
    }


def _fit(figures: Figures, target: int) -> list[Drawing]:
    """Return what was learned about a target; the end of a curve that turns often is magnified."""
    if figures.additive:
        return figures.effects(target=target, most=_MOST_COMPONENTS)
    drawings = figures.fit(target, cuts=_CUTS)
    if len(figures.columns) > MAX_DIMS:
        return [drawing._replace(size=PANEL) for drawing in drawings[:_MOST_COMPONENTS]]
    stretch = _magnified(figures, target)
    if stretch is not None:
        drawings.append(figures.curve(target, stretch=stretch))
    return drawings


def _magnified(figures: Figures, target: int) -> Domain | None:
    """Return the end of the rows' range if the curve turns too often to be seen as a whole."""
    if len(figures.columns) != 1 or figures.turns(target) <= _MOST_TURNS:
        return None
    upper, covered = figures.box.upper, covered_range(figures.model)
    length = _STRETCH * (upper - figures.box.lower)
    return Domain(upper - length, np.minimum(upper + length / 3, covered.upper))


def _by_share(figures: Figures) -> list[tuple[int, ...]]:
    """Return the columns of an additive model's components, those of the largest share first.

    They are counted among those that the kernel acts on; of other models there are none.
    """
    if not figures.additive:
        return []
    shares = [float(np.mean(component.share)) for component in figures.model.components()]
    columns = [tuple(own) for own in parts_of(figures.model).parts.columns]
    return [columns[i] for i in np.argsort(shares)[::-1]]


def _class_content(figures: Figures) -> dict[str, Any]:
    """Return all that the template shows of a classifier besides its attributes."""
    latent, page = latent_functions(figures.model), _Page()
    posteriors = [posterior for _, _, posterior, _ in latent]
    shown = [label for label, *_ in latent[:_MOST_CLASSES]]
    if figures.additive:
        fit = [
            Group(
                str(label) if len(latent) > 1 else "",
                page.all(figures.effects(label, most=_MOST_COMPONENTS)),
            )
            for label in shown
        ]
    else:
        fit = [Group("", page.all(figures.classes()[:_MOST_CLASSES]))]
    spectra = [
        page.one(figures.spectrum(spectrum))
        for posterior in posteriors[:_MOST_CLASSES]
        if isinstance(posterior, Posterior)
        for spectrum in latent_spectra(posterior, figures.box)[:_MOST_CLASS_SPECTRA]
    ]
    checked = range(len(shown)) if figures.found is not None else ()
    return {
        "each": [(str(label), *parts) for label, *parts in latent],
        "num_features": max(own.features.num_features for own in posteriors),
        "left_out": max(own.residual / own.prior_variance for own in posteriors),
        "num_components": len(posteriors[0].kernels) if figures.additive else 0,
        "fit": fit,
        "spectra": spectra,
        "reliability": [page.one(figures.reliability(i)) for i in checked],
    }
