"""The components of additive models: their effects, shares of the variance, and figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from orthogp.errors import InputError
from orthogp.inference import Domain
from orthogp.inference.component_posterior import AdditivePosterior
from orthogp.kernels import Categorical, Kernel
from orthogp.kernels.cyclic import categorical_columns
from orthogp.kernels.terms import component_kernels
from orthogp.model_choice import check_categories
from orthogp.report.names import Names, column_names, plain
from orthogp.report.plots import (
    BAND_SDS,
    BLUE,
    GREY,
    STYLE,
    VERMILLION,
    blend,
    check_format,
    draw_image,
    require_matplotlib,
    save,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from orthogp.classifier import GPClassifier
    from orthogp.regressor import GPRegressor

# Points along the curve of a component.
_POINTS = 400
# Cells along each side of a map.
_CELLS = 120
# The share of the largest density of rows below which rows are rare, and the band may leave the
# panel.
_RARE = 0.02
# The smallest range of an effect's scale, relative to the largest.
_SMALLEST = 0.02
# The share of the largest posterior sd above which a cell of a map is pale.
_VAGUE = 0.5


@dataclass(frozen=True)
class Component:
    """One term f_j of f(x) = offset + Σ_j f_j(x_{columns_j}), centred over the training rows.

    Attributes
    ----------
    name : str
        The names of its columns.
    columns : tuple of int
        The columns of X that it acts on.
    kernel : Kernel
        The learned kernel, relative to those columns.
    share : float or (p,)
        The variance of its posterior mean over the training rows, relative to that of y (of a
        classifier, to that of the mean of f). Components of columns that go together may cancel in
        part, and their shares then add up to more than 1.
    lower, upper : (d,)
        The range of the columns in the training rows.
    """

    name: str
    columns: tuple[int, ...]
    kernel: Kernel
    share: Any
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    _index: int = field(repr=False)
    _model: AdditiveParts = field(repr=False)

    def predict(self, x: ArrayLike, return_std: bool = False) -> Any:
        """Return the mean of the component at values of its own columns, and its sd if asked.

        Parameters
        ----------
        x : (n,) or (n, d)
        """
        values = np.asarray(x, dtype=np.float64)
        values = values.reshape(len(values), -1) if values.ndim else values.reshape(1, 1)
        if values.shape[1] != len(self.columns):
            raise InputError(
                f"Component {self.name} takes {len(self.columns)} columns, got {values.shape[1]}."
            )
        return self._model.predict(self._index, values, return_std)

    def density(self, x: ArrayLike) -> NDArray[np.float64]:
        """Return how densely the training rows lie around values of a single column, (n,)."""
        values = np.asarray(x, dtype=np.float64).reshape(-1, 1)
        width = float(self.upper[0] - self.lower[0]) / 60
        return self._model.posterior.density(self._index, values, width)


@dataclass(frozen=True, eq=False)
class AdditiveParts:
    """The components of one additive function.

    Attributes
    ----------
    posterior : AdditivePosterior
        In standardised units, of the columns that the kernel sees.
    kernel : Kernel
        The learned kernel, as a user sees it.
    columns : (d,)
        The columns of X that it acts on.
    names : list of str
        Of all columns of X.
    extent : Domain
        The box around the training rows, in the columns that the kernel sees.
    scale : (p,)
        The units of the targets.
    one_target : bool
        Whether the axis of the targets is to be dropped.
    """

    posterior: AdditivePosterior
    kernel: Kernel
    columns: NDArray[np.int64]
    names: list[str]
    extent: Domain
    scale: NDArray[np.float64]
    one_target: bool

    def components(self) -> list[Component]:
        """Return the components, in the order of the kernel's terms."""
        inner = [list(within) for within in self.posterior.features.columns]
        # The kernel counts the columns of X, the posterior those that the kernel acts on.
        columns = [tuple(int(c) for c in self.columns[within]) for within in inner]
        kernels = component_kernels(self.kernel, columns)
        result = []
        for j, own in enumerate(kernels):
            result.append(
                Component(
                    name=" × ".join(self.names[c] for c in columns[j]),
                    columns=columns[j],
                    kernel=own,
                    share=self.share(self.posterior.shares.components[j]),
                    lower=self.extent.lower[inner[j]],
                    upper=self.extent.upper[inner[j]],
                    _index=j,
                    _model=self,
                )
            )
        return result

    def predict(self, index: int, values: NDArray[np.float64], return_std: bool) -> Any:
        """Return a component at values of its own columns."""
        inner = list(self.posterior.features.columns[index])
        # The other columns do not matter; these values are inside.
        rows = np.repeat(self.extent.lower[None], len(values), axis=0)
        rows[:, inner] = values
        check_categories(self.posterior.kernels[index], values, self.columns[inner])
        prediction = self.posterior.component(index, rows)
        mean = self._shaped(prediction.mean * self.scale)
        if not return_std:
            return mean
        return mean, self._shaped(np.sqrt(prediction.variance)[:, None] * self.scale)

    def predict_at(self, index: int, inputs: NDArray, return_std: bool) -> Any:
        """Return a component at rows of all columns that the kernel sees."""
        inner = list(self.posterior.features.columns[self.checked(index)])
        return self.predict(index, inputs[:, inner], return_std)

    def share(self, values: NDArray[np.float64]) -> Any:
        """Return shares (p,), or the only one as a number."""
        shaped = self._shaped(values)
        return float(shaped) if shaped.ndim == 0 else shaped

    def checked(self, index: int) -> int:
        """Return the number of a component; `InputError` if there is none of it."""
        number = len(self.posterior.features.columns)
        if not isinstance(index, int | np.integer) or not 0 <= index < number:
            raise InputError(f"There are components 0 to {number - 1}, got {index!r}.")
        return int(index)

    def draw(
        self, path: str | Path | None, chosen: Sequence[int] | None, *, target: int = 0, ylabel: str
    ) -> Figure:
        """Return a figure of some components, or all, written to a file if a path is given."""
        if path is not None:
            check_format(Path(path))
        own = self.components()
        own = own if chosen is None else [own[self.checked(i)] for i in chosen]
        figure = draw_components(own, self.names, target=target, ylabel=ylabel)
        if path is not None:
            save(figure, Path(path))
        return figure

    def _shaped(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return values[..., 0] if self.one_target else values


def parts_of(model: GPRegressor) -> AdditiveParts:
    """Return the components of an additive regressor; `InputError` if it is another."""
    check_is_fitted(model, "posterior_")
    return AdditiveParts(
        posterior=_additive(model.posterior_),
        kernel=model.kernel_,
        columns=model.columns_,
        names=column_names(model),
        extent=model._sketch.extent,
        scale=model.target_scale_,
        one_target=model._one_target,
    )


def class_parts(model: GPClassifier, label: Any = None) -> AdditiveParts:
    """Return the components of the log odds of a class; `InputError` if there are none."""
    check_is_fitted(model, "posterior_")
    number = _latent_number(model.classes_.tolist(), label)
    kernels = model.kernel_ if isinstance(model.kernel_, tuple) else (model.kernel_,)
    return AdditiveParts(
        posterior=_additive(model._posteriors[number]),
        kernel=kernels[number],
        columns=model.columns_,
        names=column_names(model),
        extent=model._extent,
        scale=np.ones(1),
        one_target=True,
    )


def is_additive(model: Any) -> bool:
    """Return whether a fitted model is a sum of components with lattices of their own."""
    posterior = model.posterior_
    return (posterior[0] if isinstance(posterior, tuple) else posterior).additive


def effect_on_odds(label: Any) -> str:
    """Return the text along the axis of a component of the log odds of a class."""
    return plain(f"effect on log odds of {label}")


def renamed(components: Sequence[Component], names: Names) -> list[Component]:
    """Return components that are called by the names of a model's inputs."""
    return [replace(each, name=names.product(each.columns)) for each in components]


def _latent_number(known: list[Any], label: Any) -> int:
    """Return the number of the latent function of a class."""
    if len(known) == 2 and label in (None, known[1]):
        return 0
    if len(known) > 2 and label in known:
        return known.index(label)
    if len(known) == 2:
        raise InputError(
            f"With two classes the components are those of the log odds of {known[1]!r}, got "
            f"label={label!r}: leave it out."
        )
    raise InputError(
        f"Each class has components of its own: label must be one of {known}, got {label!r}."
    )


def _additive(posterior: Any) -> AdditivePosterior:
    if not posterior.additive:
        raise InputError(
            "This model is not a sum of components with lattices of their own: fit with "
            'kernel="additive-matern32", or a sum of kernels on more than three columns.'
        )
    return posterior


class _Panel(NamedTuple):
    """The size of panels, in inches, and how many stand side by side at most."""

    width: float
    height: float
    across: int


_CURVE, _MAP = _Panel(3.2, 2.6, 4), _Panel(4.2, 3.6, 3)


def draw_components(
    components: Sequence[Component], names: Sequence[str], *, target: int, ylabel: str
) -> Figure:
    """Return a figure of the components: curves with 95 % bands, points, or maps.

    Parameters
    ----------
    names : sequence of str
        Of the columns of X.
    target : int
        Which column of the targets.
    ylabel : str
        What the effects are effects on.
    """
    matplotlib = require_matplotlib()
    curves = [component for component in components if len(component.columns) == 1]
    maps = [component for component in components if len(component.columns) > 1]
    # Curves and maps apart: the maps have scales of colours beside them.
    groups = [(group, shape) for group, shape in ((curves, _CURVE), (maps, _MAP)) if group]
    downs = [-(-len(group) // shape.across) for group, shape in groups]
    heights = [down * shape.height for down, (_, shape) in zip(downs, groups, strict=True)]
    width = max(min(len(group), shape.across) * shape.width for group, shape in groups)
    with matplotlib.rc_context(STYLE):
        size = (width + 0.4, sum(heights))
        figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
        parts = figure.subfigures(len(groups), 1, height_ratios=heights, squeeze=False)[:, 0]
        for part, down, (group, shape) in zip(parts, downs, groups, strict=True):
            # As many across as fit, so that panels of few components do not stretch.
            across = max(min(len(group), shape.across), int(width / shape.width))
            panels = list(part.subplots(down, across, squeeze=False).ravel())
            for component, axes in zip(group, panels, strict=False):
                _draw(part, axes, component, names, target, ylabel)
            for axes in panels[len(group) :]:
                axes.set_visible(False)
            if group is curves:
                _set_scales(panels[: len(group)])
    return figure


def _draw(
    figure: Any, axes: Axes, component: Component, names: Sequence[str], target: int, ylabel: str
) -> None:
    """Draw one component in its panel."""
    if len(component.columns) > 1:
        _draw_map(figure, axes, component, names, target, ylabel)
    else:
        draw = _draw_points if isinstance(component.kernel, Categorical) else _draw_curve
        draw(axes, component, target)
        axes.set(xlabel=plain(component.name))
        if axes.get_subplotspec().is_first_col():  # type: ignore[union-attr]
            axes.set_ylabel(ylabel)
    share = np.ravel(component.share)[target]
    axes.set_title(f"{plain(component.name)}: {_percent(share)} of the variance")


def _draw_curve(axes: Axes, component: Component, target: int) -> None:
    x = np.linspace(component.lower[0], component.upper[0], _POINTS)
    mean, std = _posterior(component, x, target)
    axes.axhline(0.0, color=GREY, linewidth=0.8)
    band = (mean - BAND_SDS * std, mean + BAND_SDS * std)
    axes.fill_between(x, *band, color=BLUE, alpha=0.25, linewidth=0)
    axes.plot(x, mean, color=BLUE, linewidth=1.3)
    axes.margins(x=0)
    # Where the rows are, along the foot of the panel. Elsewhere the band may leave it.
    density = component.density(x)
    seen = density > _RARE * density.max()
    axes.set_ylim(float(band[0][seen].min()), float(band[1][seen].max()))
    foot = axes.inset_axes((0.0, 0.0, 1.0, 0.13))
    foot.fill_between(x, density, color=GREY, alpha=0.35, linewidth=0)
    foot.set(xlim=(x[0], x[-1]), ylim=(0, density.max() * 1.02 if density.max() > 0 else 1))
    foot.axis("off")


def _draw_points(axes: Axes, component: Component, target: int) -> None:
    codes = np.arange(component.kernel.levels)  # type: ignore[union-attr]
    mean, std = _posterior(component, codes, target)
    axes.axhline(0.0, color=GREY, linewidth=0.8)
    axes.errorbar(
        codes,
        mean,
        BAND_SDS * std,
        fmt="o",
        color=BLUE,
        ecolor=BLUE,
        elinewidth=1.3,
        markersize=4.5,
        capsize=2.5,
    )
    axes.set_xticks(codes if len(codes) <= 12 else codes[:: -(-len(codes) // 12)])
    axes.margins(x=0.05)
    axes.grid(visible=False, axis="x")


def _draw_map(
    figure: Any, axes: Axes, component: Component, names: Sequence[str], target: int, label: str
) -> None:
    """Draw the mean over two columns, paler where the posterior is vague."""
    axis_values, edges = zip(*(_cells_along(component, d) for d in range(2)), strict=True)
    cells = np.stack(np.meshgrid(*axis_values, indexing="xy"), axis=-1).reshape(-1, 2)
    shape = (len(axis_values[1]), len(axis_values[0]))
    # A third column stays in the middle of its range.
    third = [np.sort(_cells_along(component, d)[0]) for d in range(2, len(component.lower))]
    middle = np.broadcast_to([own[len(own) // 2] for own in third], (len(cells), len(third)))
    mean, std = _posterior(component, np.concatenate([cells, middle], axis=1), target)
    certain = np.clip(2 * (1 - std / max(std.max(), 1e-300)) / (1 + _VAGUE), 0.0, 1.0)
    reach = float(np.abs(mean).max()) or 1.0
    draw_image(
        figure,
        axes,
        mean.reshape(shape),
        (*edges[0], *edges[1]),
        bar={"label": label},
        cmap=blend(BLUE, "white", VERMILLION),
        vmin=-reach,
        vmax=reach,
        alpha=certain.reshape(shape),
    )
    axes.set(xlabel=plain(names[component.columns[0]]), ylabel=plain(names[component.columns[1]]))


def _cells_along(
    component: Component, axis: int
) -> tuple[NDArray[np.float64], tuple[float, float]]:
    """Return where a map has its cells along a column, and where it ends: codes are all shown."""
    levels = dict(categorical_columns(component.kernel, len(component.columns))).get(axis)
    if levels is not None:
        return np.arange(levels, dtype=np.float64), (-0.5, levels - 0.5)
    ends = float(component.lower[axis]), float(component.upper[axis])
    return np.linspace(*ends, _CELLS), ends


def _set_scales(panels: list[Axes]) -> None:
    """Give every curve a scale of its own, but none to effects that are next to nothing."""
    limits = [axes.get_ylim() for axes in panels]
    least = _SMALLEST * max(high - low for low, high in limits)
    for axes, (low, high) in zip(panels, limits, strict=True):
        middle, half = (low + high) / 2, max(high - low, least) / 2
        # Room for the rows at the foot.
        axes.set_ylim(middle - 1.35 * half, middle + 1.1 * half)


def _posterior(
    component: Component, x: NDArray[Any], target: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    mean, std = component.predict(x, return_std=True)
    return np.reshape(mean, (len(x), -1))[:, target], np.reshape(std, (len(x), -1))[:, target]


def _percent(share: float) -> str:
    if 0 < share < 1e-4:
        return "< 0.01 %"
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"
