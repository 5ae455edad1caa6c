r"""GPEstimator: what every fitted model offers besides its predictions; which rows it can forget.

Rows can be taken out if the sums that are left are sums that some rows have. For rows w_n ≥ 0, x_n,
y_n, any kernel F ≥ 0 with F(0) = 1, and any function f,

    |Σ w e^{iω·x}| ≤ Σ w,    |Σ w y e^{iω·x}|² ≤ Σ w · Σ w y²          at every frequency
    D(x) = Σ w_n F(x_n − x) ≥ 0,    (Σ w_n y_n F(x_n − x))² ≤ D(x) Σ w y²    at every place
    Σ w (y − f(x))² ≥ 0

Fejér's kernels are series on the lattice, so that D is known from the sums: it becomes negative
where a row is taken out that was not there. For f the posterior mean serves. What passes are rows
that may have been fitted, for all that sums can tell.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import chi2
from sklearn.base import BaseEstimator

from orthogp.errors import InputError, KernelError, OutOfDomainWarning
from orthogp.fields.posterior import IterativePosterior
from orthogp.files.columns import TimeScale
from orthogp.kernels import Kernel
from orthogp.learning.sketches import Sketch
from orthogp.persistence import Storable
from orthogp.report.components import AdditiveParts, Component
from orthogp.report.diagnostics import Diagnostics, diagnose
from orthogp.report.figures import plot_model
from orthogp.report.summary import learned_table, with_table
from orthogp.rows import Rows
from orthogp.statistics import FourierStatistics, FrequencyLattice
from orthogp.statistics.nufft import evaluate_series
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


# The rounding of sums of points, relative to the sums before.
_POINTS = 1e-9
# The rounding of sums of squares, relative to the sums before.
_SQUARES = 1e-8
# The largest distance of a row from its place when it was fitted, relative to the extent: that of
# single precision.
_EDGE = 1e-6
# The change of the density around a row that moved by that distance, relative to the row's density.
_MOVED = 1e-3
# The share of a row's density that must be missing for the row to be refused.
_MISSING = 0.05
# The largest number of rows at which the density and the residuals are looked at.
_MOST_PLACES = 200_000
# The probability of residuals under the model below which they are not those of fitted rows, if all
# rows that were fitted have smaller ones.
_UNLIKELY = 1e-9
# The relative error of the residuals of an iterative solution.
_SLACK = 0.05


def check_forgotten(model: Any, before: Sketch, after: Sketch, rows: Rows) -> None:
    """Raise `InputError` if no rows have the sums that are left `after` taking rows out.

    Parameters
    ----------
    model : GPRegressor or GPClassifier
        As it was fitted to the rows of `before`.
    rows : Rows
        Those taken out, in the columns that the kernel sees.
    """
    used = np.ones(len(rows.X), dtype=bool) if rows.weights is None else rows.weights > 0
    numbers = np.flatnonzero(used)
    X = rows.inputs[numbers]
    room = _EDGE * before.extent.width
    outside = np.any((before.extent.lower - room > X) | (before.extent.upper + room < X), axis=1)
    if outside.any():
        _refuse(f"row {numbers[np.argmax(outside)]} lies outside of all that were")
    places = numbers[:: max(1, -(-len(numbers) // _MOST_PLACES))]
    sums = before.statistics
    for lattice, old, new in zip(sums.components, sums.parts, after.statistics.parts, strict=True):
        _check_totals(old, new)
        columns = list(lattice.columns)
        _check_places(old, new, rows.X[places][:, columns], places, model.n_jobs)
    if before.family is None and not hasattr(model, "classes_"):
        _check_residuals(model, before, rows, places)


def _refuse(why: str) -> NoReturn:
    raise InputError(
        f"Only rows that were fitted can be forgotten, but {why}: give X, y and sample_weight as "
        "they were."
    )


def _check_totals(old: FourierStatistics, new: FourierStatistics) -> None:
    """Raise unless sums at all frequencies are within those of numbers and squares."""
    points, squares = _POINTS * old.count, _SQUARES * old.yy
    if np.any(new.yy < -squares):
        _refuse("these have larger squares of y than all that were")
    if np.abs(new.point_sums).max() > new.count + points:
        _refuse("these lie elsewhere, or have other weights")
    most = (new.count + points) * np.maximum(new.yy + squares, 0.0)
    largest = np.abs(new.target_sums).reshape(len(most), -1).max(axis=1)
    if np.any(largest**2 > most + _SQUARES * old.count * old.yy):
        _refuse("these have other values of y")


def _check_places(
    old: FourierStatistics,
    new: FourierStatistics,
    X: NDArray,
    numbers: NDArray[np.int64],
    num_threads: int | None,
) -> None:
    """Raise if the density of rows, or of their targets, is impossible where some were taken."""
    lattice = old.lattice
    kernel = _fejer(2 * lattice.extent)
    sums = [old.point_sums, new.point_sums]
    was, left = _densities(sums, kernel, lattice, X, num_threads)
    missing = left < -(_MISSING * (was - left) + _POINTS * old.count)
    if missing.any():
        number = numbers[np.argmax(missing)]
        _refuse(f"row {number} lies where no such row was, or has another weight")
    inner = tuple(slice(k, 3 * k + 1) for k in lattice.extent)
    kernel = _fejer(lattice.extent)
    sums = [old.point_sums[inner], new.point_sums[inner], *new.target_sums]
    was, left, *targets = _densities(sums, kernel, lattice, X, num_threads)
    taken = np.maximum(was - left, 0.0)
    density = np.maximum(left, 0.0) + _MOVED * taken + _POINTS * old.count
    for values, square, whole in zip(targets, new.yy, old.yy, strict=True):
        wrong = values**2 > density * (max(square, 0.0) + _SQUARES * whole)
        if wrong.any():
            _refuse(f"row {numbers[np.argmax(wrong)]} has another y, or lies where no such row was")


def _densities(
    sums: list[NDArray[np.complex128]],
    kernel: NDArray[np.float64],
    lattice: FrequencyLattice,
    X: NDArray,
    num_threads: int | None,
) -> NDArray[np.float64]:
    """Return Σ w_n c_n F(x_n − x) for each of some sums over w_n c_n, at the rows of X, (s, n)."""
    # The sums' conjugates are the coefficients of a function of x.
    series = np.asarray(np.conj(np.stack(sums)) * kernel, dtype=np.complex128)
    return evaluate_series(series, lattice, X, num_threads=num_threads).T


def _fejer(orders: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the coefficients of Fejér's kernel, which is one at zero and nowhere negative."""
    axes = [1 - np.abs(np.arange(-k, k + 1)) / (k + 1) for k in orders]
    return reduce(np.multiply.outer, [axis / axis.sum() for axis in axes])


def _check_residuals(model: Any, before: Sketch, rows: Rows, numbers: NDArray[np.int64]) -> None:
    """Raise if rows have larger residuals than all fitted rows together."""
    posterior, scale = model.posterior_, model.target_scale_
    offset = model.target_offset_ - before.shift
    sums = before.statistics
    yy = (sums.yy - 2 * offset * sums.target_totals + offset**2 * sums.count) / scale**2
    fitted = _residual_squares(posterior, yy)
    weights = np.ones(len(numbers)) if rows.weights is None else rows.weights[numbers]
    X, y = rows.X[numbers], (rows.y[numbers] - model.target_offset_) / scale
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutOfDomainWarning)
        squares = (y - posterior.predict_mean(X)) ** 2
        if np.all(weights @ squares <= (1 + _SLACK) * fitted + _SQUARES * yy):
            return
        variance = posterior.predict(X).variance
    noise = posterior.noise_variance
    if model.weights == "repeats":
        scores, number = weights / (noise + variance) @ squares, weights.sum()
    else:
        scores, number = (1 / (noise / weights + variance)) @ squares, float(len(weights))
    excess = weights @ squares > (1 + _SLACK) * fitted + _SQUARES * yy
    if np.any(excess & (chi2.sf(scores, number) < _UNLIKELY)):
        _refuse("these are further from the model than all that were")


def _residual_squares(posterior: Any, yy: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Σ w (y − f)² of the rows that a posterior is of, f its mean, for each target.

    With b the moments of the targets and A those of the features, x the mean of the whitened
    coefficients and B = I + A/s²: yy − 2bᵀx + xᵀAx = yy − s² (xᵀBx + xᵀx).
    """
    if isinstance(posterior, IterativePosterior):
        modes, system = posterior.modes, posterior.model.system
        size = system.grid.inner(modes.modes, modes.modes) + np.sum(modes.slopes**2, axis=0)
        return yy - system.noise_variance * (modes.explained + size)
    size = np.sum((posterior.chol.T @ posterior.mean) ** 2 + posterior.mean**2, axis=0)
    return yy - posterior.noise_variance * size
