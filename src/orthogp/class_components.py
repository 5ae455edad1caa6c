"""The components of additive classifiers: what each column does to the log odds of a class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from orthogp.component_models import (
    AdditiveParts,
    Component,
    additive_posterior,
    column_names,
)
from orthogp.component_plots import draw_components
from orthogp.errors import InputError
from orthogp.inference.components import AdditivePosterior
from orthogp.labels import labels_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class ClassComponentsMixin:
    """What additive classifiers offer besides predictions of the whole function."""

    if TYPE_CHECKING:
        classes_: NDArray
        columns_: NDArray[np.int64]
        kernel_: Any
        _posteriors: list[Any]
        _extent: Any

        def _inputs(self, X: ArrayLike) -> NDArray: ...

    def components(self, label: Any = None) -> list[Component]:
        """Return the components of f, the log odds of a class, in the order of the kernel's terms.

        Parameters
        ----------
        label : optional
            The class whose log odds they add up to: with more than two classes, which.
        """
        return self._parts(label).components()

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
            With more than two classes, which.
        """
        parts = self._parts(label)
        return parts.predict_at(index, self._inputs(X), return_std)

    def plot_components(
        self,
        path: str | Path | None = None,
        *,
        components: Sequence[int] | None = None,
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
        label : optional
            With more than two classes, which.
        ylabel : str, optional
            What the effects are effects on; the log odds of the class unless given.
        """
        parts = self._parts(label)
        effect = _effect_on(self.classes_[1] if label is None else label)
        return parts.draw(path, components, ylabel=effect if ylabel is None else ylabel)

    def _draw(self, rows: Any, target: int) -> Figure:
        """Return the figure that `plot` shows."""
        if not isinstance(self._posteriors[0], AdditivePosterior):
            return super()._draw(rows, target)  # type: ignore[misc]
        # Of several classes the first: a figure has room for the components of one.
        label = self.classes_[0] if len(self._posteriors) > 1 else self.classes_[1]
        names = labels_of(self).inputs
        components = [
            replace(own, name=" × ".join(names[c] for c in own.columns))
            for own in self.components(label)
        ]
        return draw_components(components, names, target=0, ylabel=_effect_on(label))

    def _parts(self, label: Any = None) -> AdditiveParts:
        """Return the components of the log odds of a class."""
        check_is_fitted(self, "posterior_")
        number = self._number(label)
        kernels = self.kernel_ if isinstance(self.kernel_, tuple) else (self.kernel_,)
        return AdditiveParts(
            posterior=additive_posterior(self._posteriors[number]),
            kernel=kernels[number],
            columns=self.columns_,
            names=column_names(self),
            extent=self._extent,
            scale=np.ones(1),
            one_target=True,
        )

    def _number(self, label: Any) -> int:
        """Return which latent function is that of a class."""
        known = self.classes_.tolist()
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


def _effect_on(label: Any) -> str:
    return f"effect on log odds of {label}".replace("$", r"\$")
