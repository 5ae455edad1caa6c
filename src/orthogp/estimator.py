"""GPEstimator: what every fitted model offers besides its predictions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator

from orthogp.errors import KernelError
from orthogp.files.columns import TimeScale
from orthogp.kernels import Kernel
from orthogp.persistence import Storable
from orthogp.report.components import AdditiveParts, Component
from orthogp.report.diagnostics import Diagnostics, diagnose
from orthogp.report.figures import plot_model
from orthogp.report.summary import learned_table, with_table
from orthogp.validation import check_inputs, check_values

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class GPEstimator(Storable, BaseEstimator, ABC):
    """A Gaussian process model that can be fitted, stored, shown and checked."""

    n_features_in_: int
    #: What the numbers of each column of X mean, if a data frame had date-times in some.
    time_scales_: tuple[TimeScale | None, ...]
    #: The columns of X that the kernel acts on, (d,).
    columns_: NDArray[np.int64]
    #: The learned kernel on the columns of X, or one for each class.
    kernel_: Any
    #: How the fit ended and what to do about it, or that for each class.
    status_: Any

    @abstractmethod
    def summary(self) -> str:
        """Return the model and its bounds in a page of text."""

    @abstractmethod
    def _components(self, label: Any) -> AdditiveParts:
        """Return the components of an additive model; `InputError` if it is another."""

    @abstractmethod
    def _effect(self, label: Any) -> str:
        """Return what components are effects on."""

    def set_params(self, **params: Any) -> Self:
        """Set parameters, also those of the kernel: set_params(kernel__lengthscale=2.0).

        A kernel itself never changes: the estimator gets another one.
        """
        prefix = "kernel__"
        inner = {
            name.removeprefix(prefix): params.pop(name)
            for name in [*params]
            if name.startswith(prefix)
        }
        super().set_params(**params)
        if inner:
            kernel: Any = vars(self)["kernel"]
            if isinstance(kernel, str):
                raise KernelError(
                    f"The name {kernel!r} stands for a kernel whose parameters start from the "
                    f"data: give a kernel such as Matern32(), to set its {min(inner)}."
                )
            if isinstance(kernel, Kernel):
                self.kernel = kernel.with_params(**inner)
            else:
                kernel.set_params(**inner)
        return self

    def components(self, label: Any = None) -> list[Component]:
        """Return the components of an additive model, in the order of its kernel's terms.

        Parameters
        ----------
        label : optional
            Of a classifier, the class whose log odds the components add up to: with more than two
            classes, which.
        """
        return self._components(label).components()

    def predict_component(
        self, index: int, X: ArrayLike, return_std: bool = False, label: Any = None
    ) -> Any:
        """Return the mean of one component at the rows of X, and its standard deviation if asked.

        It is centred: its average over the training rows is removed.

        Parameters
        ----------
        index : int
            Which of `components()`.
        X : (n, d)
            Rows of all columns.
        label : optional
            As in `components`.
        """
        return self._components(label).predict_at(index, self._inputs(X), return_std)

    def plot_components(
        self,
        path: str | Path | None = None,
        *,
        components: Sequence[int] | None = None,
        target: int = 0,
        label: Any = None,
        ylabel: str | None = None,
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
        label : optional
            As in `components`.
        ylabel : str, optional
            What the effects are effects on, with its unit.
        """
        parts = self._components(label)
        effect = self._effect(label) if ylabel is None else ylabel
        return parts.draw(path, components, target=target, ylabel=effect)

    def plot(
        self,
        X: ArrayLike | None = None,
        y: ArrayLike | None = None,
        *,
        target: int = 0,
        path: str | Path | None = None,
    ) -> Figure:
        """Return a matplotlib figure of the fit, written to a file if a path is given.

        With one input, the mean and its bands; with two, maps of mean and standard deviation, and
        with three, the same in the middle of the third; with more, the mean along each input, the
        others in the middle of their ranges; of an additive model, its components. Classifiers show
        the probabilities of the classes instead, and the components of one class's log odds.

        Parameters
        ----------
        X, y : arrays, optional
            Rows to draw as points, of a regression on a single input; without them the figure shows
            what `diagnostics_` know of the rows, if the model has any.
        target : int
            Which target, if y has several columns.
        path : str or Path, optional
            A name that ends in .png, .pdf or .svg.
        """
        return plot_model(self, X, y, target=target, path=path)

    def diagnose(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        covariates: ArrayLike | None = None,
        *,
        max_rows: int = 10_000,
        seed: int = 0,
    ) -> Diagnostics:
        """Return checks of the model by the rows it was fitted to, and keep them (`diagnostics_`).

        A regressor predicts each row from all others, with the learned hyperparameters and without
        fitting again. A classifier's probabilities are compared with the labels in sample.

        Parameters
        ----------
        X, y, sample_weight, covariates
            The rows that the model was fitted to, or some of them.
        max_rows : int
            The largest number of rows to predict; more are sampled at random.
        seed : int
            Of that sample.
        """
        self.diagnostics_ = diagnose(
            self, X, y, sample_weight, covariates, max_rows=max_rows, seed=seed
        )
        return self.diagnostics_

    def report(
        self,
        path: str | Path,
        *,
        title: str | None = None,
        model_file: str | None = None,
        live: bool = True,
    ) -> Path:
        """Write a page about the model, one HTML file that needs no network; return its path.

        With one or two inputs and one RBF or Matérn kernel, the page has sliders that move the
        hyperparameters, and mean, bands and evidence follow (docs/report.md).

        Parameters
        ----------
        title : str, optional
            The page's heading; the target's name unless given.
        model_file : str, optional
            The file that holds the model, for the lines that show how to load it.
        live : bool
            Whether the page has sliders where it can; it then holds sums of the rows.
        """
        # Here, since pages need matplotlib and jinja2.
        from orthogp.report.page import write_report

        model: Any = self
        return write_report(model, path, title=title, model_file=model_file, live=live)

    def _inputs(self, X: ArrayLike) -> NDArray:
        """Return validated rows, of the columns that the kernel acts on."""
        X = check_inputs(self, X)
        check_values(self.kernel_[0] if isinstance(self.kernel_, tuple) else self.kernel_, X)
        return X if len(self.columns_) == X.shape[1] else X[:, self.columns_]

    def _repr_html_inner(self) -> str:
        """Return the learned model as a table above scikit-learn's display of the parameters."""
        return learned_table(self) + super()._repr_html_inner()

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return with_table(self, super()._repr_mimebundle_(**kwargs))
