"""GPClassifier: validation, labels, and calls to the parts; no mathematics."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from os import PathLike
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from orthogp.classification.fitting import START_ROWS, fit_batches, learn_labels
from orthogp.classification.one_pass import check_indicators, indicators, learn_class
from orthogp.classification.sites import LogisticSites, PolyaGammaSites
from orthogp.engines import begin_sketch, settings_for
from orthogp.errors import InputError, KernelError, OutOfDomainWarning, check_finite
from orthogp.estimator import GPEstimator, check_forgotten
from orthogp.files.fitting import MEMORY, fit_files
from orthogp.files.source import open_source
from orthogp.inference import Domain
from orthogp.inference.logistic import mean_log_odds, mean_logistic
from orthogp.kernels import Kernel
from orthogp.learning.problem import Fit, FitSettings
from orthogp.learning.sketches import Sketch
from orthogp.precision import BlasThreads, one_thread
from orthogp.report.components import AdditiveParts, class_parts, effect_on_odds
from orthogp.report.summary import summarise
from orthogp.rows import Rows
from orthogp.statistics.nufft import available_threads
from orthogp.stochastic.training import TrainingSettings
from orthogp.validation import (
    Model,
    check_domain,
    check_rows,
    check_settings,
    choose_model,
    kernel_of,
    refuse_priors,
    warn_constant_columns,
)

#: The most features by default: each of some ten steps, or hundred passes, factorises a matrix of
#: this size.
MAX_FEATURES = 1000


class _Fitted(NamedTuple):
    """The model of a class, where it holds, and the box around the rows."""

    fit: Fit
    domain: Domain
    extent: Domain


class GPClassifier(ClassifierMixin, GPEstimator):
    """Gaussian process classification for any number of rows.

    The latent function f has a Gaussian process prior and p(y = 1) = 1/(1 + e^{−f}). One to three
    input columns act jointly; more add up, f(x) = Σ_j f_j(x_{columns_j}): conditionals on the
    nearest rows, which let any number of columns act jointly, are for Gaussian noise and serve
    `GPRegressor` only. The posterior is approximated by the Gaussian that is closest by the
    evidence lower bound: of joint columns from sums that one pass over the rows gives, of columns
    that add up in passes. With more than two classes, each is told from all others.

    Parameters
    ----------
    kernel : str, Kernel or scikit-learn kernel, default "matern32"
        A name ("rbf", "matern", "matern12", "matern32", "matern52", "rational-quadratic",
        "quasi-periodic") starts from values read off the data, with one lengthscale per column. A
        kernel object starts from its own values; made by `.on(columns)`, it may leave some unused.
        A name after "additive-", or any name with more than three columns, means one kernel on each
        column; sums such as `Matern32().on(0) + RBF().on(1, 2)` may act on any number of columns,
        up to three in each term.
    num_features : int or "auto"
        "auto" takes as many as the bound needs, up to `max_features`.
    mean : {None, "constant", "linear"}, default "constant"
        The mean function of f; its coefficients have broad priors and are integrated out (with
        mini-batches, a constant is learned).
    inference : {"variational", "polya-gamma", "minibatch"}
        "variational" maximises the evidence lower bound, of joint columns without a linear mean
        function in one pass. "polya-gamma" does so in passes with a quadratic bound on the
        likelihood, which is looser, but whose every update is an ascent. "minibatch" estimates the
        latter from random rows and random frequencies of Trig features (section 3.3 of the paper):
        far slower, in memory that does not grow with the rows.
    training : TrainingSettings, optional
        How "minibatch" trains.
    learn : bool, default True
        Whether to learn the hyperparameters.
    domain : (lower, upper), optional
        A box to cover besides the data, for predictions beyond them.
    wrap_tolerance : float, default 1e-4
        The largest relative error of the periodic prior over the data.
    max_features : int
        The largest feature set for "auto"; time grows with its cube.
    max_seconds : float, optional
        Stop learning after that long.
    n_jobs : int, optional
        Threads, at most one for each core at hand; all unless given, and −1 is all too.
    random_state : int, optional
        Not used by passes, which are deterministic; mini-batches are drawn by `training.seed`.

    Attributes
    ----------
    classes_ : (k,)
        The labels, sorted; those of rows with positive weight.
    columns_ : (d,)
        The columns of X that the kernel acts on.
    kernel_, posterior_, features_, status_
        The learned kernel in the units of X, the posterior of f, its features, and how the fit
        ended and what to do about it. With more than two classes these are tuples, one entry for
        each class.
    elbo_ : float
        The lower bound on log p(y), or with mini-batches an estimate of it, summed over classes if
        there are more than two.
    domain_ : Domain
        Where predictions are the posterior's.
    num_passes_ : int
        How often all rows were read: once, if sums reach far enough for functions as rough.
    """

    # Settings that only `GPRegressor` lets users choose.
    features = "auto"
    noise_variance = None
    weights = "repeats"
    solver = "auto"
    max_memory = None

    def __init__(
        self,
        kernel: str | Kernel | Any = "matern32",
        *,
        num_features: int | Literal["auto"] = "auto",
        mean: str | None = "constant",
        inference: str = "variational",
        training: TrainingSettings | None = None,
        learn: bool = True,
        domain: tuple[ArrayLike, ArrayLike] | None = None,
        wrap_tolerance: float = 1e-4,
        max_features: int = MAX_FEATURES,
        max_seconds: float | None = None,
        n_jobs: int | None = None,
        random_state: int | None = None,
    ) -> None:
        self.kernel = kernel
        self.num_features = num_features
        self.mean = mean
        self.inference = inference
        self.training = training
        self.learn = learn
        self.domain = domain
        self.wrap_tolerance = wrap_tolerance
        self.max_features = max_features
        self.max_seconds = max_seconds
        self.n_jobs = n_jobs
        self.random_state = random_state

    # ------------------------------------------------------------------ fitting

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit to rows X (n, d) with labels y (n,), of any type.

        Parameters
        ----------
        sample_weight : (n,), optional
            Weights ≥ 0: a row counts as often as its weight says.
        """
        began = time.monotonic()
        check_settings(self)
        names, codes = _check_labels(y)
        rows = check_rows(self, X, codes, sample_weight, reset=True)
        model = self._check_model(rows.X.shape[1])
        warn_constant_columns(self, rows.used, model.columns)
        if rows.weights is not None:
            rows = rows.part(rows.weights > 0)
        present, codes = np.unique(rows.y[:, 0], return_inverse=True)
        if len(present) < 2:
            raise InputError(
                "A classifier needs rows of at least two classes, got one class only: "
                f"{names[int(present[0])]}."
            )
        classes = names[present.astype(int)]
        if self._one_pass(model):
            labels = rows._replace(y=indicators(codes, len(present)))
            return self._learn(begin_sketch(self, labels, model), model, classes, began, labels)
        problems = [1] if len(present) == 2 else range(len(present))
        fits = []
        for i, positive in enumerate(problems):
            signs = np.where(codes == positive, 1.0, -1.0)
            settings = self._settings_for(model, began, (i + 1) / len(problems))
            fits.append(self._fit_class(rows._replace(y=signs[:, None]), model, settings))
        return self._finish(fits, model.columns, classes, rows.total_weight, began)

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        classes: ArrayLike | None = None,
    ) -> Self:
        """Add rows and learn again, from the present hyperparameters; the old rows are not needed.

        If anything fails the model stays as it was.

        Parameters
        ----------
        classes : (k,), optional
            All labels that may come, for the first rows; those of the first rows unless given.
        """
        began = time.monotonic()
        if hasattr(self, "posterior_"):
            return self._update(X, y, sample_weight, 1)
        labels = None if classes is None else np.unique(np.asarray(classes))
        if labels is None or np.array_equal(_check_labels(y)[0], labels):
            return self.fit(X, y, sample_weight)
        check_settings(self)
        rows = check_rows(self, X, _codes(y, labels), sample_weight, reset=True)
        model = self._check_model(rows.X.shape[1])
        self._need_sums(model)
        if len(labels) < 2:
            raise InputError(f"A classifier needs at least two classes, got {labels.tolist()}.")
        rows = rows._replace(y=indicators(rows.y[:, 0], len(labels)))
        return self._learn(begin_sketch(self, rows, model), model, labels, began, rows)

    def forget(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Take out rows that were fitted before, and learn again; the inverse of `partial_fit`.

        Rows that cannot have been fitted, judging by the sums, are refused.
        """
        check_is_fitted(self, "posterior_")
        return self._update(X, y, sample_weight, -1)

    def fit_sketch(self, sketch: Sketch, classes: ArrayLike | None = None) -> Self:
        """Fit to sums of labels 0 and 1, made by `orthogp sketch` or from another model's rows.

        Parameters
        ----------
        sketch : Sketch
            Of one column of labels, or of one for each of more than two classes.
        classes : (k,), optional
            The labels that 0 and 1, or the columns, stand for; whole numbers from 0 unless given.
        """
        began = time.monotonic()
        check_settings(self)
        num_columns, number = len(sketch.extent.lower), max(len(sketch.shift), 2)
        labels = np.arange(number) if classes is None else np.asarray(classes)
        model = self._check_model(num_columns)
        self._need_sums(model)
        if not sketch.joint or len(labels) != number or len(model.columns) != num_columns:
            raise InputError(
                f"The sums are of {number} classes and {num_columns} columns: name as many, or sum "
                "the rows for this model."
            )
        check_indicators(sketch)
        self._learn(sketch, model, labels, began)
        self.n_features_in_ = num_columns
        return self

    def fit_files(
        self,
        data: str | PathLike[str] | Sequence[str | PathLike[str]],
        target: str,
        inputs: Sequence[str] | None = None,
        *,
        weights: str | None = None,
        skip_bad: bool = False,
        memory: float = MEMORY,
        scheduler: Any = None,
    ) -> Self:
        """Fit to the rows of CSV, TSV or Parquet files, with labels that are numbers.

        Rows that take more than `memory` are summed in one pass; their labels are 0 and 1. See
        `GPRegressor.fit_files`.
        """
        source = open_source(data, target, inputs, weights=weights, skip_bad=skip_bad)
        fit_files(self, source, memory, scheduler)
        return self

    def _one_pass(self, model: Model) -> bool:
        """Return whether sums of one lattice serve."""
        return not model.additive and self.mean != "linear" and self.inference == "variational"

    def _need_sums(self, model: Model) -> None:
        if not self._one_pass(model):
            raise InputError(
                "Only one kernel on up to three columns jointly, without a linear mean function, "
                'learns from sums, by inference="variational": fit all rows at once.'
            )

    def _update(self, X: ArrayLike, y: ArrayLike, weights: ArrayLike | None, sign: int) -> Self:
        began = time.monotonic()
        check_settings(self)
        rows = check_rows(self, X, _codes(y, self.classes_), weights, reset=False)
        model = self._check_model(rows.num_inputs)
        self._need_sums(model)
        before = self._sketch
        if before is None or not np.array_equal(model.columns, self.columns_):
            raise InputError("The model holds no sums of these columns: fit again.")
        seen = model.see(rows._replace(y=indicators(rows.y[:, 0], len(self.classes_))))
        sketch = before.updated(seen, sign, available_threads(self.n_jobs))
        if sign < 0:
            check_forgotten(self, before, sketch, seen)
        few = 2 * before.statistics.count < sketch.statistics.count
        known: list[Any] = self._posteriors
        kernels = None if few else [own.kernel for own in known]
        return self._learn(sketch, model, self.classes_, began, kernels=kernels)

    def _learn(
        self,
        sketch: Sketch,
        model: Model,
        classes: NDArray,
        began: float,
        rows: Rows | None = None,
        kernels: Sequence[Kernel] | None = None,
    ) -> Self:
        """Learn from sums, and keep them; from rows where sums do not reach far enough."""
        fits, number = [], len(sketch.shift)
        threads = BlasThreads(available_threads(self.n_jobs))
        for i in range(number):
            settings = self._settings_for(model, began, (i + 1) / number)
            own = None if rows is None else rows.on(model.columns)._replace(y=rows.y[:, i : i + 1])
            known = None if kernels is None else kernels[i]
            fit = learn_class(sketch, i, model.inner, settings, threads, own, known)
            fits.append(_Fitted(fit, sketch.covered(fit.period), sketch.extent))
        self._finish(fits, model.columns, classes, sketch.statistics.rows, began)
        self._sketch = sketch
        return self

    def _settings_for(self, model: Model, began: float, share: float) -> FitSettings:
        """Return how to fit, within a share of the user's seconds."""
        limit = self.max_seconds
        return settings_for(self, model, None if limit is None else began + share * limit)

    def _check_model(self, num_columns: int) -> Model:
        """Return the model that the kernel stands for, if the inference can have it."""
        batches = self.inference == "minibatch"
        if batches and self.mean == "linear":
            raise InputError('Mini-batches take mean=None or "constant", not "linear".')
        model = choose_model(kernel_of(self), self.features, num_columns)
        refuse_priors(model.choice.kernel, "GPClassifier")
        if model.choice.noise.value is not None:
            raise KernelError(
                "A classifier's labels are noisy by themselves: leave WhiteKernel out of the "
                "kernel."
            )
        if batches and model.additive:
            raise InputError(
                "Mini-batches take a kernel on up to three columns jointly, not a sum of terms "
                'with lattices of their own: use inference="variational".'
            )
        return model

    def _fit_class(self, rows: Rows, model: Model, settings: FitSettings) -> _Fitted:
        """Return the model of labels ±1, and where it holds."""
        if self.inference != "minibatch":
            return self._fit_passes(rows, model, settings)
        kernel = model.inner.kernel
        if self.learn and model.choice.from_name:
            # The first rows may be special.
            order = np.random.default_rng(0).permutation(len(rows.X))
            few = rows.part(np.sort(order[:START_ROWS]))
            few = few._replace(weights=None, y=(few.y + 1) / 2)
            sketch, threads = begin_sketch(self, few, model), BlasThreads(1)
            few = few.on(model.columns)
            kernel = learn_class(sketch, 0, model.inner, settings, threads, few).kernel
        rows = rows.on(model.columns)
        box = Domain.around(rows.X).with_box(check_domain(self, np.arange(rows.X.shape[1])))
        offset = self.mean is not None
        fit = fit_batches(
            rows, box, kernel, offset=offset, settings=settings, training=self.training
        )
        return _Fitted(fit, box, box)

    def _fit_passes(self, rows: Rows, model: Model, settings: FitSettings) -> _Fitted:
        """Return the model from passes over all rows."""
        sketch = begin_sketch(self, rows, model)
        sites = PolyaGammaSites if self.inference == "polya-gamma" else LogisticSites
        rows, threads = rows.on(model.columns), available_threads(self.n_jobs)
        fit = learn_labels(sketch, rows, model.inner, sites, settings, threads)
        return _Fitted(fit, sketch.covered(fit.period), sketch.extent)

    def _finish(
        self,
        fits: Sequence[_Fitted],
        columns: NDArray[np.int64],
        classes: NDArray,
        num_rows: float,
        began: float,
    ) -> Self:
        """Keep what was learned; the estimator changes only when every fit has succeeded."""
        self.domain_ = Domain(
            np.max([own.domain.lower for own in fits], axis=0),
            np.min([own.domain.upper for own in fits], axis=0),
        )
        threads, names = available_threads(self.n_jobs), dict(enumerate(columns.tolist()))
        with one_thread():
            self._posteriors = [own.fit.posterior(self.domain_, threads) for own in fits]
        # They are about other rows.
        for stale in ("diagnostics_", "about_"):
            vars(self).pop(stale, None)
        self._sketch = None
        self.classes_, self.num_rows_ = classes, int(num_rows)
        self._extent = fits[0].extent
        self.columns_ = columns
        self.posterior_ = _one_or_all(self._posteriors)
        self.kernel_ = _one_or_all([own.fit.kernel.with_columns(names) for own in fits])
        self.features_ = _one_or_all([own.fit.features for own in fits])
        self.status_ = _one_or_all([own.fit.status for own in fits])
        self.elbo_ = sum(own.fit.elbo.total for own in fits)
        # Classes share the pass that gives their sums.
        self.num_passes_ = sum(own.fit.passes for own in fits if own.fit.passes > 1) or 1
        seconds = time.monotonic() - began
        self.timings_ = {"learn": seconds, "total": seconds}
        return self

    # ------------------------------------------------------------------ prediction

    def predict(self, X: ArrayLike) -> NDArray:
        """Return the most probable label at each row of X, (n,)."""
        decision = self.decision_function(X)
        if decision.ndim == 1:
            return self.classes_[(decision > 0).astype(int)]
        return self.classes_[np.argmax(decision, axis=1)]

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the probability of each label at each row of X, (n, k), in order of `classes_`.

        The logistic function is averaged over the posterior of f; of more than two classes, each
        against all others, the averages are scaled to add up to one.
        """
        check_is_fitted(self, "posterior_")
        return self._probabilities(self._inputs(X))

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the log odds of the second class, (n,), or of each against all others, (n, k).

        They are those of `predict_proba`, before it makes more than two classes add up to one.
        """
        check_is_fitted(self, "posterior_")
        odds = mean_log_odds(*self._latent(self._inputs(X)))
        return odds[:, 0] if odds.shape[1] == 1 else odds

    def predict_latent(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Return the posterior mean of f at each row of X, and its standard deviation if asked.

        Each is (n,), f being the latent function of the second class, or (n, k) with k > 2 classes.
        """
        check_is_fitted(self, "posterior_")
        mean, variance = self._latent(self._inputs(X))
        if mean.shape[1] == 1:
            mean, variance = mean[:, 0], variance[:, 0]
        return (mean, np.sqrt(variance)) if return_std else mean

    def _probabilities(self, X: NDArray) -> NDArray[np.float64]:
        """Return the probability of each label at rows of the columns that the kernel sees."""
        mean, variance = self._latent(X)
        if mean.shape[1] == 1:
            mean, variance = np.hstack([-mean, mean]), np.hstack([variance, variance])
        each = mean_logistic(mean, variance)
        return each / each.sum(axis=1, keepdims=True)

    def _latent(self, X: NDArray) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean and variance of f, (n, 1) or with k > 2 classes (n, k)."""
        first = self._posteriors[0].predict(X)
        with warnings.catch_warnings():
            # All share one domain, and the first has warned.
            warnings.simplefilter("ignore", OutOfDomainWarning)
            others = [posterior.predict(X) for posterior in self._posteriors[1:]]
        latent = [first, *others]
        return np.hstack([f.mean for f in latent]), np.stack([f.variance for f in latent], axis=1)

    # ------------------------------------------------------------------ showing

    def summary(self) -> str:
        """Return the model and its bound in a page of text."""
        check_is_fitted(self, "posterior_")
        return summarise(self)

    def _components(self, label: Any) -> AdditiveParts:
        return class_parts(self, label)

    def _effect(self, label: Any) -> str:
        return effect_on_odds(self.classes_[1] if label is None else label)


def _check_labels(y: Any) -> tuple[NDArray, NDArray[np.float64]]:
    """Return the distinct labels, sorted, and the position of each row's among them."""
    if y is None:
        # scikit-learn's wording, which its own checks look for.
        raise InputError("This estimator requires y to be passed, but the target y is None.")
    y = np.asarray(y)
    if y.dtype.kind == "f":
        check_finite(y, "y")
    check_classification_targets(y)
    names, codes = np.unique(column_or_1d(y, warn=True), return_inverse=True)
    return names, codes.astype(np.float64)


def _codes(y: Any, classes: NDArray) -> NDArray[np.float64]:
    """Return the position of each label among the classes."""
    names, codes = _check_labels(y)
    unknown = np.setdiff1d(names, classes)
    if len(unknown):
        raise InputError(
            f"y has the label {unknown[0]}, which is none of the classes {classes.tolist()}: fit "
            "again, or name all classes with the first rows."
        )
    return np.searchsorted(classes, names)[codes.astype(int)].astype(np.float64)


def _one_or_all(values: list[Any]) -> Any:
    """Return the only entry, or a tuple of all."""
    return values[0] if len(values) == 1 else tuple(values)
