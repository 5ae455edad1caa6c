"""A fitted model as one HTML page without scripts, fonts or network.

The figures and derived numbers are made here; the words and their layout are in page.html.jinja,
the looks in page.css.
"""

from __future__ import annotations

import json
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn.utils.validation import check_is_fitted

from orthogp.atomic import replacing
from orthogp.errors import InputError, OrthogpError
from orthogp.inference import Domain
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
    from orthogp.regressor import GPRegressor

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
    with replacing(path) as stream:
        stream.write(text.encode())
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
    content = (_ClassFigures if classifier else _RegressorFigures)(model, names, found).content()
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


class _Figures(ABC):
    """The figures and numbers of a page, for the template."""

    def __init__(self, model: Any, names: Names, found: Any) -> None:
        self._model, self._names, self._found = model, names, found
        self._columns = [int(c) for c in model.columns_]
        self._count = 0

    @abstractmethod
    def content(self) -> dict[str, Any]:
        """Return all that the template shows besides attributes of the model."""

    def _draw(
        self, description: str, draw: Callable[..., Any], *arguments: Any, **options: Any
    ) -> Drawings:
        """Return a figure for all screens."""
        return [self._svg(description, "plot", partial(draw, *arguments, **options))]

    def _draw_twice(
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
        # Identifiers must be unique in the page.
        self._count += 1
        return inline_svg(draw, f"figure{self._count}", description, look=look)

    def _effects(
        self, components: list[Component], about: str, effect: str, target: int = 0
    ) -> list[Drawings]:
        """Return the components of a target or of log odds, the largest share first."""

        def share(component: Component) -> float:
            return float(np.ravel(component.share)[target])

        inputs, options = self._names.inputs, {"target": target, "ylabel": effect}
        every = sorted(renamed(components, self._names), key=share, reverse=True)
        return [
            self._draw(
                f"Effect of {each.name} on {about}, {100 * share(each):.2g} % of the variance.",
                draw_components,
                [each],
                inputs,
                **options,
            )
            for each in every[:_MOST_COMPONENTS]
        ]

    def _spectrum(self, spectrum: Spectrum, target: int = 0, *, small: bool = False) -> Drawings:
        """Return the figure of one spectrum, `small` if there are three in a row."""
        inputs = self._names.product([self._columns[c] for c in spectrum.columns])
        if len(spectrum.columns) == 1:
            unit = self._names.units.get(inputs) or f"unit of {inputs}"
            if SINCE in unit:
                unit = unit.split(SINCE)[0].removesuffix("s")
            label = f"cycles per {unit}"
        else:
            label = f"waves across the range of {inputs}"
        number = len(spectrum.bands)
        about = f"Learned spectral density over {label}, with the data's in {number} bands."
        options = {"target": target, "small": small}
        return self._draw(about, figures.draw_spectrum, spectrum, plain(label), **options)


class _RegressorFigures(_Figures):
    """The figures and numbers of the page about a regressor."""

    def content(self) -> dict[str, Any]:
        """Return all that the template shows besides attributes of the model."""
        model, posterior = self._model, self._model.posterior_
        number, scale = len(model.target_scale_), np.asarray(model.target_scale_)
        targets = range(min(number, _MOST_TARGETS))
        heading = [self._names.targets[t] if number > 1 else "" for t in targets]
        spectra = self._spectra()
        shown = [(each, t) for each in spectra[:_MOST_SPECTRA] for t in targets]
        along = self._inputs_by_share()[:_MOST_INPUTS]
        checked = targets if self._found is not None else ()
        approximate, additive = model.features_ is not None, is_additive(model)
        return {
            "mean": model._sketch.mean.kind,
            "one_scale": bool(np.all(scale == scale[0])),
            "guarantee": guarantee(model),
            "left_out": posterior.residual / posterior.prior_variance if approximate else None,
            "num_components": len(posterior.kernels) if additive else 0,
            "remainder": np.ravel(model.residual_share_) if additive else None,
            "fit": [Group(heading[t], self._fit(t)) for t in targets],
            "spectra": [self._spectrum(each, t, small=len(shown) > 2) for each, t in shown],
            "spectrum_captions": [heading[t] for _, t in shown],
            "spectra_shown": _MOST_SPECTRA,
            "spectra_in_all": len(spectra),
            "along": len(along),
            "residuals": [Group(heading[t], self._residuals(along, t)) for t in checked],
            "calibration": [Group(heading[t], self._calibration(t)) for t in checked],
            "levels": LEVELS,
        }

    def _fit(self, target: int) -> list[Drawings]:
        """Return what was learned about a target: components, a curve, maps, or lines."""
        model, names = self._model, self._names
        name = names.targets[target]
        if is_additive(model):
            effect = f"effect on {names.target(target)}"
            return self._effects(model.components(), name, effect, target)
        if len(self._columns) == 1:
            return self._curve(target)
        box = data_range(model, self._found)
        if len(self._columns) <= MAX_DIMS:
            return self._maps(box, target)
        about = f"Posterior mean and 95 % bands of {name} along"
        options = {"target": target, "size": PANEL, "stretch": box}
        return [
            self._draw(
                f"{about} {names.inputs[c]}.", figures.draw_curve, model, names, along=i, **options
            )
            for i, c in enumerate(self._columns[:_MOST_COMPONENTS])
        ]

    def _curve(self, target: int) -> list[Drawings]:
        """Return the curve of a target, and its end magnified if it turns often."""
        model, names = self._model, self._names
        curve = (figures.draw_curve, model, names, figures.Rows.binned(self._found, target))
        about = f"{names.targets[target]} over {names.inputs[self._columns[0]]}"
        whole = f"Posterior mean and 95 % bands of {about}."
        drawn = [self._draw_twice(whole, *curve, target=target)]
        if figures.wiggles(model, target) > _MOST_TURNS:
            box, covered = data_range(model, self._found), covered_range(model)
            length = _STRETCH * (box.upper - box.lower)
            stretch = Domain(box.upper - length, np.minimum(box.upper + length / 3, covered.upper))
            about = f"The end of the range, magnified: {about}."
            options = {"height": 3.4, "target": target, "stretch": stretch}
            drawn.append(self._draw_twice(about, *curve, **options))
        return drawn

    def _maps(self, box: Domain, target: int) -> list[Drawings]:
        """Return maps of mean and standard deviation; of three inputs, at three of the last."""
        names, columns = self._names, self._columns
        at: list[Any] = [None]
        if len(columns) > 2:
            at = [box.lower[2] + share * (box.upper[2] - box.lower[2]) for share in _CUTS]
        cuts = [figures.field_maps(self._model, box, target=target, third=value) for value in at]
        kinds = (("Mean", figures.MEAN_COLOURS), ("Standard deviation", figures.SD_COLOURS))
        drawn = []
        for cut, value in zip(cuts, at, strict=True):
            where = "" if value is None else f", {names.inputs[columns[2]]} = {value:.4g}"
            for kind, (title, colours) in enumerate(kinds):
                values = cut[kind].values
                every = [each[kind].values for each in cuts]
                about = (
                    f"Map: {(title + where).lower()} of {names.targets[target]}, from "
                    f"{values.min():.4g} to {values.max():.4g}."
                )
                options = {
                    "titles": [title + where],
                    "bars": [names.target(target)],
                    "colours": [colours],
                    "limits": (np.min(every), np.max(every)),
                }
                arguments = ([cut[kind]], names, columns)
                drawn.append(self._draw(about, figures.draw_maps, *arguments, **options))
        return drawn

    def _by_share(self) -> list[tuple[int, ...]]:
        """Return the columns of an additive model's components, those of the largest share first.

        They are counted among those that the kernel acts on; of other models there are none.
        """
        if not is_additive(self._model):
            return []
        shares = [float(np.mean(component.share)) for component in self._model.components()]
        columns = [tuple(each) for each in self._model.posterior_.features.columns]
        return [columns[i] for i in np.argsort(shares)[::-1]]

    def _inputs_by_share(self) -> list[int]:
        """Return the positions of all inputs, those of the largest components first."""
        first = [column for component in self._by_share() for column in component]
        return list(dict.fromkeys([*first, *range(len(self._columns))]))

    def _spectra(self) -> list[Spectrum]:
        order, box = self._by_share(), data_range(self._model, self._found)
        spectra = learned_spectra(self._model, box.lower, box.upper)
        return sorted(spectra, key=lambda each: order.index(tuple(each.columns)) if order else 0)

    def _residuals(self, along: list[int], target: int) -> list[Drawings]:
        """Return the standardised residuals' histogram, then along the inputs, then as a map."""
        found, names, columns = self._found, self._names, self._columns
        name = names.targets[target]
        about = f"Histogram of {name}'s standardised residuals beside the standard normal."
        drawn = [self._draw(about, figures.draw_residual_counts, found, target)]
        about = "Mean and standard deviation of the residuals along"
        for i in along:
            along_input = (figures.draw_residuals_along, found, i, names.input(columns[i]), target)
            drawn.append(self._draw(f"{about} {names.inputs[columns[i]]}.", *along_input))
        if np.sum(found.map_count >= figures.FEWEST_ROWS) >= _FEWEST_CELLS:
            first, second = (names.inputs[c] for c in columns[:2])
            about = f"Map of the mean residual over {first} and {second}, in standard errors."
            labels = (names.input(columns[0]), names.input(columns[1]))
            drawn.append(self._draw(about, figures.draw_residual_map, found, *labels, target))
        return drawn

    def _calibration(self, target: int) -> list[Drawings]:
        """Return the histogram of predictive probabilities, and the coverage of intervals."""
        name = self._names.targets[target]
        even = f"Histogram of {name}'s predictive probabilities, which should be even."
        inside = f"Coverage of {name}'s predictive intervals against their probability."
        return [
            self._draw(even, figures.draw_pit, self._found, target),
            self._draw(inside, figures.draw_coverage, self._found, target),
        ]


class _ClassFigures(_Figures):
    """The figures and numbers of the page about a classifier."""

    def content(self) -> dict[str, Any]:
        """Return all that the template shows besides attributes of the model."""
        model = self._model
        several = isinstance(model.posterior_, tuple)
        latent = list(model.classes_ if several else model.classes_[1:])
        fields = (model.kernel_, model.posterior_, model.status_)
        fields = fields if several else [(field,) for field in fields]
        posteriors: Any = fields[1]
        box = model._extent if is_additive(model) else data_range(model, self._found)
        fit = self._class_fit(latent, box)
        spectra = [
            self._spectrum(spectrum)
            for posterior in posteriors[:_MOST_CLASSES]
            if isinstance(posterior, Posterior)
            for spectrum in latent_spectra(posterior, box.lower, box.upper)[:_MOST_CLASS_SPECTRA]
        ]
        about = "Reliability: observed share of {} against its predicted probability."
        reliable = (figures.draw_reliability, self._found, latent)
        shown = range(min(len(latent), _MOST_CLASSES) if self._found is not None else 0)
        return {
            "each": [(str(label), *each) for label, *each in zip(latent, *fields, strict=True)],
            "num_features": max(each.features.num_features for each in posteriors),
            "left_out": max(each.residual / each.prior_variance for each in posteriors),
            "num_components": len(posteriors[0].kernels) if is_additive(model) else 0,
            "fit": fit,
            "spectra": spectra,
            "reliability": [self._draw(about.format(latent[i]), *reliable, i) for i in shown],
        }

    def _class_fit(self, latent: list[Any], box: Domain) -> list[Group]:
        """Return what was learned about the classes: components, curves, or maps."""
        model, names, columns = self._model, self._names, self._columns
        if is_additive(model):
            groups = []
            for label in latent[:_MOST_CLASSES]:
                odds = f"the log odds of {label}", effect_on_odds(label)
                effects = self._effects(model.components(label), *odds)
                groups.append(Group(str(label) if len(latent) > 1 else "", effects))
            return groups
        if len(columns) == 1:
            about = f"Probability of the classes over {names.inputs[columns[0]]}."
            curves = (figures.draw_probabilities, model, names, self._found)
            return [Group("", [self._draw_twice(about, *curves)])]
        third = None if len(columns) == 2 else float(box.lower[2] + box.upper[2]) / 2
        at = "" if third is None else f", {names.inputs[columns[2]]} = {third:.4g}"
        maps = figures.probability_maps(model, box, third)[-len(latent) :]
        drawn = []
        for label, each in list(zip(latent, maps, strict=True))[:_MOST_CLASSES]:
            one = (figures.draw_probability_maps, [each], names, columns, [label], at)
            drawn.append(self._draw(f"Map of the probability of {label}{at}.", *one))
        return [Group("", drawn)]
