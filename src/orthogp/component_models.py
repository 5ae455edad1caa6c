"""The components of additive models: what each says, and how much of the variance it explains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from orthogp.component_plots import draw_components
from orthogp.errors import InputError
from orthogp.inference import Domain
from orthogp.inference.components import AdditivePosterior
from orthogp.kernels import Kernel
from orthogp.model_choice import check_categories
from orthogp.plots import check_format, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
        result = []
        features = self.posterior.features
        terms = zip(features.kernels(self.kernel), features.columns, strict=True)
        for j, (own, within) in enumerate(terms):
            inner = list(within)
            columns = tuple(int(c) for c in self.columns[inner])
            result.append(
                Component(
                    name=" × ".join(self.names[c] for c in columns),
                    columns=columns,
                    kernel=own,
                    share=self.share(self.posterior.shares.components[j]),
                    lower=self.extent.lower[inner],
                    upper=self.extent.upper[inner],
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
        self,
        path: str | Path | None,
        chosen: Sequence[int] | None,
        *,
        target: int = 0,
        ylabel: str,
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


class ComponentsMixin:
    """What additive regressors offer besides predictions of the whole function."""

    if TYPE_CHECKING:
        posterior_: Any
        columns_: NDArray[np.int64]
        kernel_: Kernel
        target_scale_: NDArray[np.float64]
        _one_target: bool
        _sketch: Any

        def _inputs(self, X: ArrayLike) -> NDArray: ...

    def components(self) -> list[Component]:
        """Return the components of an additive model, in the order of its kernel's terms."""
        return self._parts().components()

    def predict_component(self, index: int, X: ArrayLike, return_std: bool = False) -> Any:
        """Return the mean of one component at the rows of X, and its standard deviation if asked.

        It is centred: its average over the training rows is removed.

        Parameters
        ----------
        index : int
            Which of `components()`.
        X : (n, d)
            Rows of all columns.
        """
        parts = self._parts()
        return parts.predict_at(index, self._inputs(X), return_std)

    @property
    def residual_share_(self) -> Any:
        """The mean square of y less the posterior mean, relative to the variance of y."""
        try:
            parts = self._parts()
        except InputError as error:
            # What a model does not have must not be found by looking at all that it has.
            raise AttributeError(str(error)) from error
        return parts.share(parts.posterior.shares.residual)

    def plot_components(
        self,
        path: str | Path | None = None,
        *,
        components: Sequence[int] | None = None,
        target: int = 0,
        ylabel: str = "effect on y",
    ) -> Figure:
        """Return a figure with a panel for each component, written to a file if a path is given.

        Parameters
        ----------
        path : str or Path, optional
            A name that ends in .png, .pdf or .svg.
        components : sequence of int, optional
            Which to draw; all unless given.
        target : int
            Which target, if y has several columns.
        ylabel : str
            What the effects are effects on, with its unit.
        """
        return self._parts().draw(path, components, target=target, ylabel=ylabel)

    def _parts(self) -> AdditiveParts:
        check_is_fitted(self, "posterior_")
        return AdditiveParts(
            posterior=additive_posterior(self.posterior_),
            kernel=self.kernel_,
            columns=self.columns_,
            names=column_names(self),
            extent=self._sketch.extent,
            scale=self.target_scale_,
            one_target=self._one_target,
        )


def additive_posterior(posterior: Any) -> AdditivePosterior:
    """Return the posterior of an additive model; `InputError` if it is another."""
    if not isinstance(posterior, AdditivePosterior):
        raise InputError(
            "This model is not a sum of components with lattices of their own: fit with "
            'kernel="additive-matern32", or a sum of kernels on more than three columns.'
        )
    return posterior


def column_names(model: Any) -> list[str]:
    """Return the names of the columns of X, from a data frame or a file, or by their numbers."""
    names = getattr(model, "feature_names_in_", None)
    if names is None:
        names = (getattr(model, "about_", None) or {}).get("inputs")
    if names is not None and len(names) == model.n_features_in_:
        return [str(name) for name in names]
    return [f"column {i}" for i in range(model.n_features_in_)]
