"""A fitted model as one HTML page without scripts, fonts or network.

The figures and derived numbers are made here; the words and their layout are in page.html.jinja,
the looks in page.css.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn.utils.validation import check_is_fitted

from orthogp.errors import InputError, OrthogpError
from orthogp.inference import Domain
from orthogp.inference.additive_posterior import AdditivePosterior
from orthogp.inference.posterior import Posterior
from orthogp.report import figures
from orthogp.report.components import (
    Component,
    draw_components,
    effect_on_odds,
    is_additive,
    renamed,
)
from orthogp.report.diagnostic_results import (
    LEVELS,
    ClassificationDiagnostics,
    Diagnostics,
    RegressionDiagnostics,
)
from orthogp.report.names import (
    SINCE,
    Names,
    covered_range,
    data_range,
    describe_domain,
    names_of,
    plain,
)
from orthogp.report.plots import PANEL, Svg, inline_svg, require_matplotlib
from orthogp.report.spectrum import Spectrum, latent_spectra, learned_spectra
from orthogp.report.summary import guarantee
from orthogp.statistics.lattice import MAX_DIMS

if TYPE_CHECKING:
    from orthogp.classifier import GPClassifier
    from orthogp.estimators import GPRegressor

# The name of a model's file unless one is given.
_MODEL_FILE = "m.orthogp"
# The most targets and classes, each with figures of its own.
_MOST_TARGETS, _MOST_CLASSES = 3, 4
# The most components, or inputs of a model of many, that have a figure.
_MOST_COMPONENTS = 12
# The most inputs along which residuals are shown.
_MOST_INPUTS = 7
# The most spectra of a regressor, and of a class.
_MOST_SPECTRA, _MOST_CLASS_SPECTRA = 8, 6
# The most turns of a mean that is not also shown magnified, at the end of the rows' range.
_MOST_TURNS = 24
# The length of the magnified stretch, relative to the rows' range.
_STRETCH = 0.12
# Where the third of three inputs is cut, relative to its range.
_CUTS = (0.25, 0.5, 0.75)
# The fewest cells with enough rows that make a map of the residuals.
_FEWEST_CELLS = 30
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
    """
    path = Path(path)
    if not path.parent.is_dir():
        # Before the work, not after it.
        raise InputError(f"The report cannot go to {path}: {path.parent} is no directory.")
    text = render_report(model, title=title, diagnostics=diagnostics, model_file=model_file)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"The report cannot go to {path} ({error.strerror}): give another path."
        ) from error
    return path


def render_report(
    model: GPRegressor | GPClassifier,
    *,
    title: str | None = None,
    diagnostics: Diagnostics | None = None,
    model_file: str | None = None,
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
    found = _checked_diagnostics(model, diagnostics)
    names = names_of(model)
    fitted: Any = model
    classifier = hasattr(model, "classes_")
    rows = fitted.num_rows_ if classifier else fitted.statistics_.rows
    inputs = ", ".join(names.inputs[int(c)] for c in model.columns_)
    targets = ", ".join(names.targets)
    content = (_classifier_content if classifier else _regressor_content)(model, names, found)
    return template.render(
        css=_resource("page.css"),
        title=title or f"A Gaussian process for {targets}",
        subtitle=f"{targets} from {inputs}: {type(model).__name__}, {rows:,.0f} rows",
        classifier=classifier,
        additive=is_additive(model),
        model=model,
        names=names,
        found=found,
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
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError as error:
        raise OrthogpError(
            "Report pages need jinja2: install it with pip install 'orthogp[plots]'."
        ) from error
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


class _Draw:
    """Draws the figures of a page, and numbers them for identifiers that are unique."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(
        self, description: str, draw: Callable[..., Any], *arguments: Any, **options: Any
    ) -> Drawings:
        """Return a figure for all screens."""
        return [self._svg(description, "plot", partial(draw, *arguments, **options))]

    def twice(
        self,
        description: str,
        draw: Callable[..., Any],
        *arguments: Any,
        height: float = figures.WIDE[1],
        **options: Any,
    ) -> Drawings:
        """Return a figure for wide screens and for phones."""
        sizes = {"wide": (figures.WIDE[0], height), "narrow": figures.NARROW}
        return [
            self._svg(description, look, partial(draw, *arguments, size=size, **options))
            for look, size in sizes.items()
        ]

    def _svg(self, description: str, look: str, draw: Callable[[], Any]) -> Svg:
        self._count += 1
        return inline_svg(draw, f"figure{self._count}", description, look=look)


# ---------------------------------------------------------------------- regressors


def _regressor_content(
    model: Any, names: Names, found: RegressionDiagnostics | None
) -> dict[str, Any]:
    """Return the figures and numbers of a regressor's page."""
    draw = _Draw()
    number = len(model.target_scale_)
    targets = range(min(number, _MOST_TARGETS))
    heading = [names.targets[t] if number > 1 else "" for t in targets]
    scale = np.asarray(model.target_scale_)
    posterior = model.posterior_
    spectra = _spectra(model, data_range(model, found))
    shown = [(own, t) for own in spectra[:_MOST_SPECTRA] for t in targets]
    along = _inputs_by_share(model)[:_MOST_INPUTS]
    fit = [Group(heading[t], _fit(draw, model, names, found, t)) for t in targets]
    return {
        "mean": model._sketch.mean.kind,
        "num_components": len(posterior.kernels) if is_additive(model) else 0,
        "one_scale": bool(np.all(scale == scale[0])),
        "guarantee": guarantee(model),
        "left_out": None
        if model.features_ is None
        else posterior.residual / posterior.prior_variance,
        "fit": fit,
        "spectra": [
            _spectrum(draw, model, names, own, t, small=len(shown) > 2) for own, t in shown
        ],
        "spectrum_captions": [heading[t] for _, t in shown],
        "spectra_shown": _MOST_SPECTRA,
        "spectra_in_all": len(spectra),
        "along": len(along),
        "residuals": []
        if found is None
        else [Group(heading[t], _residuals(draw, model, names, found, along, t)) for t in targets],
        "calibration": []
        if found is None
        else [Group(heading[t], _calibration(draw, names, found, t)) for t in targets],
        "levels": LEVELS,
        "remainder": np.ravel(model.residual_share_) if is_additive(model) else None,
    }


def _fit(
    draw: _Draw, model: Any, names: Names, found: RegressionDiagnostics | None, target: int
) -> list[Drawings]:
    """Return what was learned about a target: components, a curve, maps, or lines."""
    if is_additive(model):
        effect = f"effect on {names.target(target)}"
        about = names.targets[target]
        return _effects(draw, model.components(), names, about, effect, target)
    if len(model.columns_) == 1:
        return _curve(draw, model, names, found, target)
    box = data_range(model, found)
    columns = [int(c) for c in model.columns_]
    if len(columns) <= MAX_DIMS:
        return _maps(draw, model, names, box, columns, target)
    return [
        draw(
            f"Posterior mean and 95 % bands of {names.targets[target]} along "
            f"{names.inputs[columns[i]]}.",
            figures.draw_curve,
            model,
            names,
            target=target,
            size=PANEL,
            stretch=box,
            along=i,
        )
        for i in range(min(len(columns), _MOST_COMPONENTS))
    ]


def _curve(
    draw: _Draw, model: Any, names: Names, found: RegressionDiagnostics | None, target: int
) -> list[Drawings]:
    """Return the curve of a target, and its end magnified if it turns often."""
    curve = (figures.draw_curve, model, names, figures.Rows.binned(found, target))
    about = f"{names.targets[target]} over {names.inputs[int(model.columns_[0])]}"
    drawn = [draw.twice(f"Posterior mean and 95 % bands of {about}.", *curve, target=target)]
    if figures.wiggles(model, target) > _MOST_TURNS:
        box, covered = data_range(model, found), covered_range(model)
        length = _STRETCH * (box.upper - box.lower)
        stretch = Domain(box.upper - length, np.minimum(box.upper + length / 3, covered.upper))
        about = f"The end of the range, magnified: {about}."
        drawn.append(draw.twice(about, *curve, height=3.4, target=target, stretch=stretch))
    return drawn


def _maps(
    draw: _Draw, model: Any, names: Names, box: Domain, columns: list[int], target: int
) -> list[Drawings]:
    """Return maps of mean and standard deviation, of three inputs at three values of the last."""
    at: list[Any] = [None]
    if len(columns) > 2:
        at = [box.lower[2] + share * (box.upper[2] - box.lower[2]) for share in _CUTS]
    cuts = [figures.field_maps(model, box, target=target, third=value) for value in at]
    kinds = (("Mean", figures.MEAN_COLOURS), ("Standard deviation", figures.SD_COLOURS))
    drawn = []
    for cut, value in zip(cuts, at, strict=True):
        for kind, (title, colours) in enumerate(kinds):
            every = [own[kind].values for own in cuts]
            low, high = cut[kind].values.min(), cut[kind].values.max()
            where = "" if value is None else f", {names.inputs[columns[2]]} = {value:.4g}"
            drawn.append(
                draw(
                    f"Map: {f'{title}{where}'.lower()} of {names.targets[target]}, from "
                    f"{low:.4g} to {high:.4g}.",
                    figures.draw_maps,
                    [cut[kind]],
                    names,
                    columns,
                    titles=[f"{title}{where}"],
                    bars=[names.target(target)],
                    colours=[colours],
                    limits=(np.min(every), np.max(every)),
                )
            )
    return drawn


def _effects(
    draw: _Draw, components: list[Component], names: Names, about: str, effect: str, target: int = 0
) -> list[Drawings]:
    """Return the components of a target or of the log odds of a class, the largest share first."""

    def share(component: Component) -> float:
        return float(np.ravel(component.share)[target])

    shown = sorted(renamed(components, names), key=share, reverse=True)[:_MOST_COMPONENTS]
    options = {"target": target, "ylabel": effect}
    return [
        draw(
            f"Effect of {own.name} on {about}, {100 * share(own):.2g} % of the variance.",
            draw_components,
            [own],
            names.inputs,
            **options,
        )
        for own in shown
    ]


def _by_share(model: Any) -> list[tuple[int, ...]]:
    """Return the columns of an additive model's components, those of the largest share first.

    They are counted among those that the kernel acts on; of other models there are none.
    """
    if not is_additive(model):
        return []
    shares = [float(np.mean(component.share)) for component in model.components()]
    columns = [tuple(own) for own in model.posterior_.features.columns]
    return [columns[i] for i in np.argsort(shares)[::-1]]


def _inputs_by_share(model: Any) -> list[int]:
    """Return the positions of all inputs, those of an additive model's largest components first."""
    first = [column for component in _by_share(model) for column in component]
    return list(dict.fromkeys([*first, *range(len(model.columns_))]))


def _spectra(model: Any, box: Domain) -> list[Spectrum]:
    order = _by_share(model)
    spectra = learned_spectra(model, box.lower, box.upper)
    return sorted(spectra, key=lambda own: order.index(tuple(own.columns)) if order else 0)


def _spectrum(
    draw: _Draw,
    model: Any,
    names: Names,
    own: Spectrum,
    target: int = 0,
    *,
    small: bool = False,
) -> Drawings:
    """Return the figure of one spectrum, `small` if there are three in a row."""
    inputs = names.product([int(model.columns_[c]) for c in own.columns])
    if len(own.columns) == 1:
        unit = names.units.get(inputs) or f"unit of {inputs}"
        if SINCE in unit:
            unit = unit.split(SINCE)[0].removesuffix("s")
        xlabel = f"cycles per {unit}"
    else:
        xlabel = f"waves across the range of {inputs}"
    about = f"Learned spectral density over {xlabel}, with the data's in {len(own.bands)} bands."
    return draw(about, figures.draw_spectrum, own, plain(xlabel), target=target, small=small)


def _residuals(
    draw: _Draw,
    model: Any,
    names: Names,
    found: RegressionDiagnostics,
    along: list[int],
    target: int,
) -> list[Drawings]:
    """Return the standardised residuals' histogram, then along the inputs, then as a map."""
    columns = [int(c) for c in model.columns_]
    about = f"Histogram of {names.targets[target]}'s standardised residuals beside the standard "
    drawn = [draw(f"{about}normal.", figures.draw_residual_counts, found, target)]
    for i in along:
        about = f"Mean and standard deviation of the residuals along {names.inputs[columns[i]]}."
        label = names.input(columns[i])
        drawn.append(draw(about, figures.draw_residuals_along, found, i, label, target))
    if np.sum(found.map_count >= figures.FEWEST_ROWS) >= _FEWEST_CELLS:
        first, second = (names.inputs[c] for c in columns[:2])
        about = f"Map of the mean residual over {first} and {second}, in standard errors."
        labels = (names.input(columns[0]), names.input(columns[1]))
        drawn.append(draw(about, figures.draw_residual_map, found, *labels, target))
    return drawn


def _calibration(
    draw: _Draw, names: Names, found: RegressionDiagnostics, target: int
) -> list[Drawings]:
    """Return the histogram of predictive probabilities, and the coverage of intervals."""
    name = names.targets[target]
    even = f"Histogram of {name}'s predictive probabilities, which should be even."
    inside = f"Coverage of {name}'s predictive intervals against their probability."
    return [
        draw(even, figures.draw_pit, found, target),
        draw(inside, figures.draw_coverage, found, target),
    ]


# ---------------------------------------------------------------------- classifiers


def _classifier_content(
    model: Any, names: Names, found: ClassificationDiagnostics | None
) -> dict[str, Any]:
    """Return the figures and numbers of a classifier's page."""
    draw = _Draw()
    several = isinstance(model.posterior_, tuple)
    latent = model.classes_ if several else model.classes_[1:]
    fields = (model.kernel_, model.posterior_, model.status_)
    columns = fields if several else [(field,) for field in fields]
    each: list[Any] = [(str(label), *own) for label, *own in zip(latent, *columns, strict=True)]
    box = model._extent if is_additive(model) else data_range(model, found)
    fit = _class_fit(draw, model, names, found, list(latent), box)
    spectra = [
        spectrum
        for _, _, own, _ in each[:_MOST_CLASSES]
        if isinstance(own, Posterior | AdditivePosterior)
        for spectrum in latent_spectra(own, box.lower, box.upper)[:_MOST_CLASS_SPECTRA]
    ]
    return {
        "each": each,
        "num_features": max(own.features.num_features for _, _, own, _ in each),
        "left_out": max(own.residual / own.prior_variance for _, _, own, _ in each),
        "num_components": len(each[0][2].kernels) if is_additive(model) else 0,
        "fit": fit,
        "spectra": [_spectrum(draw, model, names, own) for own in spectra],
        "reliability": []
        if found is None
        else [
            draw(
                f"Reliability: observed share of {latent[i]} against its predicted probability.",
                figures.draw_reliability,
                found,
                latent,
                i,
            )
            for i in range(min(len(latent), _MOST_CLASSES))
        ],
    }


def _class_fit(
    draw: _Draw,
    model: Any,
    names: Names,
    found: ClassificationDiagnostics | None,
    latent: list[Any],
    box: Domain,
) -> list[Group]:
    """Return what was learned about the classes: components, curves, or maps."""
    columns = [int(c) for c in model.columns_]
    if is_additive(model):
        groups = []
        for label in latent[:_MOST_CLASSES]:
            odds = f"the log odds of {label}", effect_on_odds(label)
            effects = _effects(draw, model.components(label), names, *odds)
            groups.append(Group(str(label) if len(latent) > 1 else "", effects))
        return groups
    if len(columns) == 1:
        about = f"Probability of the classes over {names.inputs[columns[0]]}."
        return [Group("", [draw.twice(about, figures.draw_probabilities, model, names, found)])]
    third = None if len(columns) == 2 else float(box.lower[2] + box.upper[2]) / 2
    maps = figures.probability_maps(model, box, third)
    at = "" if third is None else f", {names.inputs[columns[2]]} = {third:.4g}"
    shown = zip(maps[-len(latent) :], latent, strict=True)
    drawn = [
        draw(
            f"Map of the probability of {label}{at}.",
            figures.draw_probability_maps,
            [own],
            names,
            columns,
            [label],
            at,
        )
        for own, label in list(shown)[:_MOST_CLASSES]
    ]
    return [Group("", drawn)]
