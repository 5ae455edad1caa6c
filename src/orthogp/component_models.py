"""The components of additive models: what each says, and how much of the variance it explains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from orthogp.beginnings import check_categories
from orthogp.component_plots import draw_components
from orthogp.errors import InputError
from orthogp.inference.additive_posterior import AdditivePosterior
from orthogp.kernels import Kernel
from orthogp.kernels.additive import term_kernels
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
        The variance of its posterior mean over the training rows, relative to that of y. Components
        of columns that go together may cancel in part, and their shares then add up to more than 1.
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
    _model: ComponentsMixin = field(repr=False)

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
        return self._model._predict_part(self._index, values, return_std)

    def density(self, x: ArrayLike) -> NDArray[np.float64]:
        """Return how densely the training rows lie around values of a single column, (n,)."""
        values = np.asarray(x, dtype=np.float64).reshape(-1, 1)
        width = float(self.upper[0] - self.lower[0]) / 60
        return self._model.posterior_.density(self._index, values, width)


class ComponentsMixin:
    """What additive models offer besides predictions of the whole function."""

    if TYPE_CHECKING:
        posterior_: Any
        columns_: NDArray[np.int64]
        kernel_: Kernel
        target_scale_: NDArray[np.float64]
        n_features_in_: int
        _sketch: Any

        def _shaped(self, values: NDArray[np.float64]) -> NDArray[np.float64]: ...

        def _inputs(self, X: ArrayLike) -> NDArray: ...

    def components(self) -> list[Component]:
        """Return the components of an additive model, in the order of its kernel's terms."""
        posterior = self._additive_posterior()
        names = column_names(self)
        extent, terms = self._sketch.extent, self._sketch.terms
        result = []
        for j, (own, term) in enumerate(zip(term_kernels(self.kernel_), terms, strict=True)):
            inner = list(term.columns)
            columns = tuple(int(c) for c in self.columns_[inner])
            share = self._shaped(posterior.shares.components[j])
            result.append(
                Component(
                    name=" × ".join(names[c] for c in columns),
                    columns=columns,
                    kernel=own,
                    share=float(share) if share.ndim == 0 else share,
                    lower=extent.lower[inner],
                    upper=extent.upper[inner],
                    _index=j,
                    _model=self,
                )
            )
        return result

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
        self._additive_posterior()
        inputs = self._inputs(X)
        term = self._sketch.terms[self._checked_index(index)]
        return self._predict_part(index, inputs[:, list(term.columns)], return_std)

    @property
    def residual_share_(self) -> Any:
        """The mean square of y less the posterior mean, relative to the variance of y."""
        try:
            posterior = self._additive_posterior()
        except InputError as error:
            # What a model does not have must not be found by looking at all that it has.
            raise AttributeError(str(error)) from error
        share = self._shaped(posterior.shares.residual)
        return float(share) if share.ndim == 0 else share

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
        if path is not None:
            check_format(Path(path))
        own = self.components()
        chosen = own if components is None else [own[self._checked_index(i)] for i in components]
        figure = draw_components(chosen, column_names(self), target=target, ylabel=ylabel)
        if path is not None:
            save(figure, Path(path))
        return figure

    def _predict_part(self, index: int, values: NDArray[np.float64], return_std: bool) -> Any:
        """Return a component at values of its own columns."""
        posterior = self._additive_posterior()
        term, extent = self._sketch.terms[index], self._sketch.extent
        # The other columns do not matter; these values are inside.
        rows = np.repeat(extent.lower[None], len(values), axis=0)
        rows[:, list(term.columns)] = values
        check_categories(term.kernel, values, self.columns_[list(term.columns)])
        prediction = posterior.component(index, rows)
        mean = self._shaped(prediction.mean * self.target_scale_)
        if not return_std:
            return mean
        deviation = np.sqrt(prediction.variance)[:, None] * self.target_scale_
        return mean, self._shaped(deviation)

    def _additive_posterior(self) -> AdditivePosterior:
        check_is_fitted(self, "posterior_")
        if not isinstance(self.posterior_, AdditivePosterior):
            raise InputError(
                "This model is not a sum of components with lattices of their own: fit with "
                'kernel="additive-matern32", or a sum of kernels on more than three columns.'
            )
        return self.posterior_

    def _checked_index(self, index: int) -> int:
        number = len(self._sketch.terms)
        if not isinstance(index, int | np.integer) or not 0 <= index < number:
            raise InputError(f"There are components 0 to {number - 1}, got {index!r}.")
        return int(index)


def column_names(model: Any) -> list[str]:
    """Return the names of the columns of X, from a data frame or by their numbers."""
    names = getattr(model, "feature_names_in_", None)
    if names is not None:
        return [str(name) for name in names]
    return [f"column {i}" for i in range(model.n_features_in_)]
