r"""Comparing kernels by held-out rows, from sums where they serve.

Sums of rows add and subtract. Each fold is summed once; all sums less those of fold j are the sums
of the other rows, from which a kernel learns its hyperparameters θ_j. How likely the fold is given
the others follows from two evidences, without any of its rows:

    log p(y_fold | y_others, θ_j) = log p(y_all | θ_j) − log p(y_others | θ_j)

This is the *joint* score of the fold's rows. The *pointwise* score Σ_i log p(y_i | y_others, θ_j)
needs the rows, and takes each of them by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from orthogp.engines import begin_sketch
from orthogp.errors import InputError
from orthogp.hyperparameters import lattice_fitter
from orthogp.inference.likelihoods import resolve_likelihood
from orthogp.inference.parameters import pack
from orthogp.inference.separable import GAUSSIAN, NOISE_NODES, NOISE_WEIGHTS
from orthogp.learning.sketches import Sketch
from orthogp.precision import one_thread, within_precision
from orthogp.predicting import latent, log_noise
from orthogp.regressor import GPRegressor
from orthogp.rows import Rows, Units
from orthogp.statistics.nufft import available_threads
from orthogp.validation import Sizes, check_rows, choose_model, kernel_of, with_sizes

Array = NDArray[np.float64]
Labels = NDArray[np.int64]

# The factor by which periods leave room for longer lengthscales than those learned.
_ROOM = 1.1


@dataclass(frozen=True)
class CrossValidation:
    """Held-out log scores of some kernels, in nats, the larger the better.

    Attributes
    ----------
    kernels : tuple of str
    sizes : (k,)
        The number of rows in each fold.
    joint : (m, k) or None
        log p(y_fold | y_others) of each kernel and fold; `None` for engines that keep the rows.
    pointwise : (m, k) or None
        Σ_i log p(y_i | y_others) of each kernel and fold; `None` if there were sums only.
    """

    kernels: tuple[str, ...]
    sizes: Array
    joint: Array | None
    pointwise: Array | None

    @property
    def scores(self) -> Array:
        """The joint scores where there are any, else the pointwise ones, (m, k)."""
        found = self.pointwise if self.joint is None else self.joint
        assert found is not None
        return found

    @property
    def mean_scores(self) -> Array:
        """The score of each kernel in nats per row, (m,)."""
        return self.scores.sum(axis=1) / self.sizes.sum()

    @property
    def standard_errors(self) -> Array:
        """The standard errors of the mean scores, by how folds differ, (m,)."""
        return self._errors(self.scores)

    def compared_with(self, number: int) -> tuple[Array, Array]:
        """Return how much better each kernel is than one of them, and the standard errors.

        Folds are compared one by one: what makes a fold hard for all kernels cancels.
        """
        gains = self.scores - self.scores[number]
        return gains.sum(axis=1) / self.sizes.sum(), self._errors(gains)

    def _errors(self, scores: Array) -> Array:
        mean = scores.sum(axis=1, keepdims=True) / self.sizes.sum()
        number = len(self.sizes)
        spread = np.sum((scores - mean * self.sizes) ** 2, axis=1) * number / (number - 1)
        return np.sqrt(spread) / self.sizes.sum()

    def __str__(self) -> str:
        best = int(np.argmax(self.mean_scores))
        gains, errors = self.compared_with(best)
        width = max(map(len, self.kernels))
        kind = "pointwise" if self.joint is None else "joint"
        both = self.joint is not None and self.pointwise is not None
        also = "; pointwise" if both else ""
        lines = [f"{'':{width}}   {kind} log score in nats per row, and beside the best{also}"]
        for i, name in enumerate(self.kernels):
            score = f"{self.mean_scores[i]:9.4f} ± {self.standard_errors[i]:.4f}"
            beside = "best" if i == best else f"{gains[i]:.4f} ± {errors[i]:.4f}"
            line = f"{name:{width}}   {score}   {beside:17}"
            if both:
                assert self.pointwise is not None
                line += f"   {self.pointwise[i].sum() / self.sizes.sum():.4f}"
            lines.append(line.rstrip())
        return "\n".join(lines)


def cross_validate(
    X: ArrayLike | Sequence[Sketch],
    y: ArrayLike | None = None,
    kernels: Sequence[Any] = ("matern32", "rbf"),
    *,
    folds: int | ArrayLike = 10,
    blocks: bool = False,
    estimator: GPRegressor | None = None,
    **amounts: Unpack[Sizes],
) -> CrossValidation:
    """Return held-out log scores of several kernels.

    Dense lattices and additive models take one pass over the rows for all joint kernels and one
    for each additive one; engines that keep the rows (`solver="exact"` or `"neighbours"` of the
    estimator), and likelihoods that are not Gaussian, fit the other rows anew for each fold.

    Parameters
    ----------
    X, y
        Rows and targets (n,), or a sketch for each fold in place of X, all on the same lattice.
    kernels : sequence
        What `GPRegressor` takes as `kernel`.
    folds : int or (n,)
        How many, or the number of each row's fold.
    blocks : bool
        Whether folds are neighbourhoods rather than rows at random: for predictions at places far
        from all rows.
    estimator : GPRegressor, optional
        Its settings, but for the kernel.
    exposure, offset, trials : (n,), optional
        How much each row stands for, as in `GPRegressor.fit`.
    """
    template = GPRegressor() if estimator is None else estimator
    if not kernels:
        raise InputError("There must be at least one kernel to compare.")
    names = tuple(kernel if isinstance(kernel, str) else repr(kernel) for kernel in kernels)
    models = [clone(template).set_params(kernel=kernel) for kernel in kernels]  # type: ignore[union-attr]
    if isinstance(X, Sequence) and X and all(isinstance(own, Sketch) for own in X):
        sketches: list[Sketch] = list(X)  # type: ignore[arg-type]
        if any(own.family is not None for own in sketches):
            raise InputError(
                "Sums are compared under Gaussian noise only: give the rows of counts, shares and "
                "amounts themselves."
            )
        sizes = np.array([own.statistics.rows for own in sketches])
        _check_folds(sizes)
        joint = np.array([[score for score, _ in _by_sums(own, sketches)] for own in models])
        return CrossValidation(names, sizes, joint, None)
    known = clone(template)
    targets = with_sizes(template.likelihood, y, **amounts)
    rows = check_rows(known, X, targets, None, reset=True)
    for own in models:
        own.set_params(kernel=kernel_of(known.set_params(kernel=own.kernel)))  # type: ignore[union-attr]
    labels = _labels(rows.X, folds, blocks=blocks)
    sizes = np.bincount(labels).astype(float)
    _check_folds(sizes)
    by_fits = template.solver not in ("auto", "dense") or template.likelihood != GAUSSIAN
    if by_fits or template.features not in ("auto", "lattice"):
        pointwise = np.array([_by_fits(own, rows, labels) for own in models])
        return CrossValidation(names, sizes, None, pointwise)
    shared: dict[bool, list[Sketch]] = {}
    joint, pointwise = [], []
    for own in models:
        model = choose_model(own.kernel, own.features, rows.X.shape[1])
        if model.beyond_lattices:
            raise InputError(
                "More than three columns that act jointly, and products on shared columns, have no "
                "lattice: use "
                'estimator=GPRegressor(solver="neighbours").'
            )
        whole = len(model.columns) == rows.X.shape[1] and not model.additive
        if not (whole and True in shared):
            made = _fold_sketches(own, rows, labels, model)
            shared[whole] = made
        sums = shared[whole]
        found = list(_by_sums(own, sums))
        joint.append([score for score, _ in found])
        pointwise.append(
            [
                _pointwise(fit, rows.part(labels == j).on(model.columns))
                for j, (_, fit) in enumerate(found)
            ]
        )
    return CrossValidation(names, sizes, np.array(joint), np.array(pointwise))


def _check_folds(sizes: Array) -> None:
    if len(sizes) < 2 or np.any(sizes < 1):
        raise InputError(
            f"Cross-validation needs two folds or more, each with a row, got {len(sizes)} of "
            f"{sizes.astype(int).tolist()} rows."
        )


def _labels(X: NDArray, folds: int | ArrayLike, *, blocks: bool) -> Labels:
    """Return the number of each row's fold, (n,)."""
    if np.ndim(folds):  # type: ignore[arg-type]
        given = np.asarray(folds)
        if given.shape != (len(X),):
            raise InputError(f"folds must be one number for each of {len(X)} rows.")
        return np.unique(given, return_inverse=True)[1].astype(np.int64)
    number = int(folds)  # type: ignore[arg-type]
    if not 2 <= number <= len(X):
        raise InputError(f"folds must be from 2 to the number of rows {len(X)}, got {folds!r}.")
    labels = np.empty(len(X), dtype=np.int64)
    if blocks:
        scale = np.ptp(X, axis=0)
        scaled = np.asarray(X / np.where(scale > 0, scale, 1.0), dtype=np.float64)
        _label_blocks(scaled, np.arange(len(X)), range(number), labels)
        return labels
    labels[np.random.default_rng(0).permutation(len(X))] = np.arange(len(X)) % number
    return labels


def _label_blocks(X: Array, rows: Labels, numbers: range, labels: Labels) -> None:
    """Label some rows by blocks of about as many each, halved across their widest column."""
    if len(numbers) == 1:
        labels[rows] = numbers[0]
        return
    half = len(numbers) // 2
    across = int(np.argmax(np.ptp(X[rows], axis=0)))
    order = rows[np.argsort(X[rows, across], kind="stable")]
    cut = len(rows) * half // len(numbers)
    _label_blocks(X, order[:cut], numbers[:half], labels)
    _label_blocks(X, order[cut:], numbers[half:], labels)


# ---------------------------------------------------------------------- sums


def _fold_sketches(template: GPRegressor, rows: Rows, labels: Labels, model: Any) -> list[Sketch]:
    """Return the sums of each fold, on lattices that suit all rows."""
    neutral = model if model.additive else choose_model("matern32", "auto", rows.X.shape[1])
    if len(model.columns) < rows.X.shape[1]:
        neutral = model
    whole, threads = begin_sketch(template, rows, neutral), available_threads(template.n_jobs)
    return [
        replace(whole.alone(model.see(rows.part(labels == j)), threads), extent=whole.extent)
        for j in range(labels.max() + 1)
    ]


def _by_sums(template: GPRegressor, sketches: list[Sketch]) -> Iterator[tuple[float, GPRegressor]]:
    """Yield the joint score of each fold, and the model of the other rows."""
    sums: list[Any] = [own.statistics for own in sketches]
    total = reduce(add, sums)
    extent = reduce(lambda one, other: one.with_box(other), (own.extent for own in sketches))
    for own in sketches:
        others = total - own.statistics
        model = clone(template).fit_sketch(replace(own, statistics=others, extent=extent))  # type: ignore[union-attr]
        if model.engine_ not in ("dense", "additive"):
            raise InputError("Sums are compared with lattice features only: use solver='dense'.")
        sketch = model._sketch
        units = Units(model.target_offset_, model.target_scale_, constant=False)
        values = []
        for statistics in (total, others):
            fitter, start = lattice_fitter(model, replace(sketch, statistics=statistics), units)
            objective = fitter.evidence(start, model.num_features_, _ROOM)
            vector = np.append(pack(start.kernel, objective.slots), np.log(start.noise_variance))
            with one_thread(), within_precision():
                value = objective.value_and_gradient(vector)[0]
            # The prior of hyperparameters is the same for both.
            values.append(value)
        factors = own.statistics.rows if model.weights != "repeats" else own.statistics.count
        jacobian = factors * float(np.sum(np.log(units.scale)))
        yield values[0] - values[1] - jacobian, model


# ---------------------------------------------------------------------- rows


def _by_fits(template: GPRegressor, rows: Rows, labels: Labels) -> list[float]:
    """Return the pointwise score of each fold, by models of the other rows."""
    family, scores = resolve_likelihood(template.likelihood), []
    for j in range(labels.max() + 1):
        others, amounts = rows.part(labels != j), {}
        y = others.y[:, 0] if rows.one_target or family is not None else others.y
        if family is not None and family.size_is is not None and rows.y.shape[1] == 2:
            amounts = {family.size_is: others.y[:, 1]}
        model = clone(template).fit(others.X, y, **amounts)  # type: ignore[union-attr]
        scores.append(_pointwise(model, rows.part(labels == j)))
    return scores


def _pointwise(model: GPRegressor, rows: Rows) -> float:
    """Return Σ_i log p(y_i) of rows under a model of others."""
    if model.noise_posterior_ is not None:
        mean, spread = latent(model, rows.X)
        level, doubt = log_noise(model, rows.X)
        # Averaged over the logarithm of the noise variance.
        noise = np.exp(level[:, None] + np.sqrt(doubt)[:, None] * NOISE_NODES)
        variance, square = spread[:, None] + noise, (rows.y[:, 0] - mean)[:, None] ** 2
        density = -0.5 * (np.log(2 * np.pi * variance) + square / variance)
        return float(np.logaddexp.reduce(density + np.log(NOISE_WEIGHTS), axis=1).sum())
    if model.likelihood_ is not None:
        return model.likelihood_.log_predictive(rows, *latent(model, rows.X))
    mean, std = model.predict(rows.X, return_std=True, include_noise=True)
    mean, std = (np.reshape(own, rows.y.shape) for own in (mean, std))
    density = -0.5 * (np.log(2 * np.pi * std**2) + ((rows.y - mean) / std) ** 2)
    return float(density.sum())
