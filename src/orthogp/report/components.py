"""The components of additive models: their effects, shares of the variance, and drawings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from orthogp.errors import InputError
from orthogp.exact.components import ExactComponents
from orthogp.exact.process import ExactPosterior
from orthogp.files.columns import Categories, scales_of
from orthogp.inference import Domain
from orthogp.inference.component_posterior import AdditivePosterior
from orthogp.kernels import Categorical, Kernel
from orthogp.kernels.terms import component_kernels
from orthogp.kernels.transformed import categorical_columns
from orthogp.report.plots import (
    BAND_SDS,
    BLUE,
    GREY,
    VERMILLION,
    Band,
    Drawing,
    blend,
    check_format,
    compose,
    draw_image,
    save,
)
from orthogp.report.summary import Names, column_names, latent_functions, plain
from orthogp.validation import check_values

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from orthogp.classifier import GPClassifier
    from orthogp.regressor import GPRegressor

# Inches of a curve, and of a map with its scale of colours.
_CURVE, _MAP = (3.4, 2.6), (4.4, 3.6)
# Points along the curve of a component.
_POINTS = 400
# Cells along each side of a map.
_CELLS = 120
# The share of the largest density of rows below which rows are rare, and the band may leave the
# panel.
_RARE = 0.02
# The smallest range of an effect's scale, relative to the largest.
_SMALLEST = 0.02
# The number of letters of all categories that stand side by side, and of one.
_WIDE, _LONGEST = 30, 16
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
        The variance of its posterior mean over the training rows, relative to the variance of y
        (with a classifier, of the mean of f). Components of correlated columns may cancel in part,
        and their shares then add up to more than 1.
    lower, upper : (d,)
        The range of the columns in the training rows.
    levels : tuple of str
        What the codes of a column of categories stand for, if it is known.
    """

    name: str
    columns: tuple[int, ...]
    kernel: Kernel
    share: Any
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    levels: tuple[str, ...] = ()
    _index: int = field(repr=False, kw_only=True)
    _model: AdditiveParts = field(repr=False, kw_only=True)

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

    @property
    def is_curve(self) -> bool:
        """Whether the component acts on a single column."""
        return len(self.columns) == 1

    def share_of(self, target: int) -> float:
        """Return the share of the variance of one target."""
        return float(np.ravel(self.share)[target])

    def density(self, x: ArrayLike) -> NDArray[np.float64]:
        """Return how densely the training rows lie around values of a single column, (n,)."""
        values = np.asarray(x, dtype=np.float64).reshape(-1, 1)
        width = float(self.upper[0] - self.lower[0]) / 60
        return self._model.parts.density(self._index, values, width)


@dataclass(frozen=True, eq=False)
class AdditiveParts:
    """The components of one additive function.

    Attributes
    ----------
    parts : AdditivePosterior or ExactComponents
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
        Whether results have no axis of targets.
    levels : dict
        The categories of those columns of X that hold any in words.
    """

    parts: AdditivePosterior | ExactComponents
    kernel: Kernel
    columns: NDArray[np.int64]
    names: list[str]
    extent: Domain
    scale: NDArray[np.float64]
    one_target: bool
    levels: dict[int, tuple[str, ...]]

    def components(self) -> list[Component]:
        """Return the components, in the order of the kernel's terms."""
        inner = [list(within) for within in self.parts.columns]
        # The kernel counts the columns of X, the posterior those that the kernel acts on.
        columns = [tuple(int(c) for c in self.columns[within]) for within in inner]
        kernels = component_kernels(self.kernel, columns)
        return [
            Component(
                name=" × ".join(self.names[c] for c in columns[j]),
                columns=columns[j],
                kernel=kernel,
                share=self.share(self.parts.shares.components[j]),
                lower=self.extent.lower[inner[j]],
                upper=self.extent.upper[inner[j]],
                levels=self.levels.get(columns[j][0], ()) if len(columns[j]) == 1 else (),
                _index=j,
                _model=self,
            )
            for j, kernel in enumerate(kernels)
        ]

    def predict(self, index: int, values: NDArray[np.float64], return_std: bool) -> Any:
        """Return a component at values of its own columns."""
        inner = list(self.parts.columns[index])
        # The other columns do not matter; these values are inside.
        rows = np.repeat(self.extent.lower[None], len(values), axis=0)
        rows[:, inner] = values
        check_values(self.parts.kernels[index], values, self.columns[inner])
        prediction = self.parts.component(index, rows)
        mean = self._shaped(prediction.mean * self.scale)
        if not return_std:
            return mean
        return mean, self._shaped(np.sqrt(prediction.variance)[:, None] * self.scale)

    def predict_at(self, index: int, inputs: NDArray, return_std: bool) -> Any:
        """Return a component at rows of all columns that the kernel sees."""
        inner = list(self.parts.columns[self.checked(index)])
        return self.predict(index, inputs[:, inner], return_std)

    def share(self, values: NDArray[np.float64]) -> Any:
        """Return shares (p,), or the only one as a number."""
        shaped = self._shaped(values)
        return float(shaped) if shaped.ndim == 0 else shaped

    def checked(self, index: int) -> int:
        """Return the number of a component; `InputError` if there is none of it."""
        number = len(self.parts.columns)
        if not isinstance(index, int | np.integer) or not 0 <= index < number:
            raise InputError(f"There are components 0 to {number - 1}, got {index!r}.")
        return int(index)

    def draw(
        self, path: str | Path | None, chosen: Sequence[int] | None, *, target: int = 0, ylabel: str
    ) -> Figure:
        """Return a figure of some components, or all, written to a file if a path is given."""
        if path is not None:
            check_format(Path(path))
        drawn = self.components()
        if chosen is not None:
            drawn = [drawn[self.checked(i)] for i in chosen]
        figure = compose(component_drawings(drawn, self.names, target=target, ylabel=ylabel))
        if path is not None:
            save(figure, Path(path))
        return figure

    def _shaped(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return values[..., 0] if self.one_target else values


def parts_of(model: GPRegressor) -> AdditiveParts:
    """Return the components of an additive regressor; `InputError` if it is another."""
    check_is_fitted(model, "posterior_")
    return AdditiveParts(
        parts=_additive(model.posterior_),
        kernel=model.kernel_,
        columns=model.columns_,
        names=column_names(model),
        extent=model._sketch.extent,
        scale=model.target_scale_,
        one_target=model._one_target,
        levels=_levels(model),
    )


def class_parts(model: GPClassifier, label: Any = None) -> AdditiveParts:
    """Return the components of the log odds of a class; `InputError` if there are none."""
    check_is_fitted(model, "posterior_")
    classes = model.classes_.tolist()
    for known, kernel, posterior, _ in latent_functions(model):
        if label == known or (label is None and len(classes) == 2):
            return AdditiveParts(
                parts=_additive(posterior),
                kernel=kernel,
                columns=model.columns_,
                names=column_names(model),
                extent=model._extent,
                scale=np.ones(1),
                one_target=True,
                levels=_levels(model),
            )
    if len(classes) == 2:
        raise InputError(
            f"With two classes the components are those of the log odds of {classes[1]!r}, got "
            f"label={label!r}: leave it out."
        )
    raise InputError(
        f"Each class has components of its own: label must be one of {classes}, got {label!r}."
    )


def _levels(model: Any) -> dict[int, tuple[str, ...]]:
    """Return the categories of the columns of X that hold any in words."""
    scales = enumerate(scales_of(model))
    return {i: scale.levels for i, scale in scales if isinstance(scale, Categories)}


def is_additive(model: Any) -> bool:
    """Return whether a fitted model is a sum of components."""
    posterior = model.posterior_
    return (posterior[0] if isinstance(posterior, tuple) else posterior).additive


def effect_on_odds(label: Any) -> str:
    """Return the text along the axis of a component of the log odds of a class."""
    return plain(f"effect on log odds of {label}")


def renamed(components: Sequence[Component], names: Names) -> list[Component]:
    """Return components that are called by the names of a model's inputs."""
    return [replace(each, name=names.product(each.columns)) for each in components]


def _additive(posterior: Any) -> AdditivePosterior | ExactComponents:
    if not posterior.additive:
        raise InputError(
            "This model is not a sum of components: fit with "
            'kernel="additive-matern32", or a sum of kernels on more than three columns.'
        )
    return posterior.components if isinstance(posterior, ExactPosterior) else posterior


# ---------------------------------------------------------------------- drawings


def component_drawings(
    components: Sequence[Component],
    names: Sequence[str],
    *,
    target: int,
    ylabel: str,
    on: str = "the target",
) -> list[Drawing]:
    """Return a panel for each component: a curve with its 95 % band, points, or a map.

    Parameters
    ----------
    names : sequence of str
        Of the columns of X, with units, to stand along axes.
    target : int
        Which column of the targets.
    ylabel : str
        What the effects are effects on, along the axes.
    on : str
        The same, in the descriptions.
    """
    effects = {i: _Effect.of(own, target) for i, own in enumerate(components) if own.is_curve}
    # Every curve has a scale of its own, but no effect that is next to nothing fills its panel.
    least = _SMALLEST * max((np.ptp(effect.limits) for effect in effects.values()), default=0.0)
    drawings = []
    for i, component in enumerate(components):
        share = component.share_of(target)
        about = f"Effect of {component.name} on {on}, {100 * share:.2g} % of the variance."
        if i in effects:
            label = names[component.columns[0]]
            drawings.append(Drawing(about, partial(effects[i].draw, label, ylabel, least), _CURVE))
        else:
            draw = partial(_draw_map, component, target, [names[c] for c in component.columns])
            drawings.append(Drawing(about, partial(draw, ylabel), _MAP))
    return drawings


class _Effect(NamedTuple):
    """The effect of a single column along its range, with the density of rows, or at its codes."""

    component: Component
    target: int
    band: Band
    density: NDArray[np.float64] | None

    @classmethod
    def of(cls, component: Component, target: int) -> _Effect:
        """Return the effect of a component on a target."""
        if isinstance(component.kernel, Categorical):
            codes = np.arange(component.kernel.levels, dtype=np.float64)
            band = Band(codes, *_posterior(component, codes, target))
            return cls(component, target, band, None)
        x = np.linspace(component.lower[0], component.upper[0], _POINTS)
        band = Band(x, *_posterior(component, x, target))
        return cls(component, target, band, component.density(x))

    @property
    def limits(self) -> tuple[float, float]:
        """The lowest and the highest edge of the band where rows are not rare."""
        density = np.ones(len(self.band.x)) if self.density is None else self.density
        seen = density > _RARE * density.max()
        return float(self.band.lower[seen].min()), float(self.band.upper[seen].max())

    def draw(self, xlabel: str, ylabel: str, least: float, axes: Axes) -> None:
        """Draw the effect, on a scale that has at least some range."""
        x, mean, std = self.band
        axes.axhline(0.0, color=GREY, linewidth=0.8)
        if self.density is None:
            look = {"fmt": "o", "color": BLUE, "elinewidth": 1.3, "ms": 4.5, "capsize": 2.5}
            axes.errorbar(x, mean, BAND_SDS * std, **look)
            shown = slice(None, None, -(-len(x) // 12))
            axes.set_xticks(x[shown])
            if levels := self.component.levels[shown]:
                slant = {"rotation": 30, "ha": "right"} if sum(map(len, levels)) > _WIDE else {}
                axes.set_xticklabels([plain(_short(level)) for level in levels], **slant)
            axes.margins(x=0.05)
            axes.grid(visible=False, axis="x")
        else:
            self.band.fill(axes)
            axes.plot(x, mean, color=BLUE, linewidth=1.3)
            axes.margins(x=0)
            # Where the rows are, along the foot of the panel. Elsewhere the band may leave it.
            foot = axes.inset_axes((0.0, 0.0, 1.0, 0.13))
            foot.fill_between(x, self.density, color=GREY, alpha=0.35, linewidth=0)
            foot.set(xlim=(x[0], x[-1]), ylim=(0, 1.02 * self.density.max() or 1))
            foot.axis("off")
        low, high = self.limits
        middle, half = (low + high) / 2, max(high - low, least) / 2
        # Room for the rows at the foot.
        axes.set_ylim(middle - 1.35 * half, middle + 1.1 * half)
        axes.set(xlabel=plain(xlabel), title=_title(self.component, self.target))
        if axes.get_subplotspec().is_first_col():  # type: ignore[union-attr]
            axes.set_ylabel(ylabel)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _draw_map(
    component: Component, target: int, names: Sequence[str], label: str, axes: Axes
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
        axes,
        mean.reshape(shape),
        (*edges[0], *edges[1]),
        {"label": label},
        cmap=blend(BLUE, "white", VERMILLION),
        vmin=-reach,
        vmax=reach,
        alpha=certain.reshape(shape),
    )
    axes.set(xlabel=plain(names[0]), ylabel=plain(names[1]), title=_title(component, target))


def _cells_along(
    component: Component, axis: int
) -> tuple[NDArray[np.float64], tuple[float, float]]:
    """Return where a map has its cells along a column, and where it ends: codes are all shown."""
    levels = dict(categorical_columns(component.kernel, len(component.columns))).get(axis)
    if levels is not None:
        return np.arange(levels, dtype=np.float64), (-0.5, levels - 0.5)
    ends = float(component.lower[axis]), float(component.upper[axis])
    return np.linspace(*ends, _CELLS), ends


def _posterior(
    component: Component, x: NDArray[Any], target: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    mean, std = component.predict(x, return_std=True)
    return np.reshape(mean, (len(x), -1))[:, target], np.reshape(std, (len(x), -1))[:, target]


def _title(component: Component, target: int) -> str:
    share = component.share_of(target)
    percent = (
        "< 0.01 %" if 0 < share < 1e-4 else f"{100 * share:{'.2g' if share < 0.1 else '.0f'}} %"
    )
    return f"{plain(component.name)}: {percent} of the variance"
