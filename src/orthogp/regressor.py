"""GPRegressor: validation, units, and calls to the parts; no mathematics."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from orthogp.choosing import fit_rows
from orthogp.covariates import (
    with_covariates,
)
from orthogp.engines import Outcome, Task, fit_sketch
from orthogp.errors import FitWarning, InputError
from orthogp.estimator import check_forgotten
from orthogp.features import Features
from orthogp.files.fitting import MEMORY, fit_files, fit_sums
from orthogp.files.source import open_source
from orthogp.hyperparameters import predictive
from orthogp.inference import Domain
from orthogp.inference.bounds import TOLERANCE
from orthogp.inference.separable import GAUSSIAN
from orthogp.kernels import Kernel, Noise
from orthogp.kernels.terms import has_white
from orthogp.learning.problem import MAX_FEATURES, Start
from orthogp.learning.sketches import KeptRows, Sketch
from orthogp.predicting import GPPredictor
from orthogp.report.components import AdditiveParts, parts_of
from orthogp.report.summary import summarise
from orthogp.rows import Rows
from orthogp.statistics.nufft import available_threads
from orthogp.validation import (
    Sizes,
    check_likelihood,
    check_rows,
    check_settings,
    check_size_column,
    choose_model,
    kernel_of,
    warn_constant_columns,
    warn_repeated_rows,
    warn_shared_noise,
    with_sizes,
)

if TYPE_CHECKING:
    pass


class GPRegressor(GPPredictor):
    """Gaussian process regression for any number of rows.

    Up to 2500 rows the process is exact. More rows are summed on a frequency lattice in one pass
    (`FourierStatistics`; a lattice for each term of additive models), and learning and prediction
    see the sums only. Where no lattice resolves the data, or more than three columns act jointly,
    each row is conditioned on its nearest rows. See `engine_`.

    Parameters
    ----------
    kernel : str, Kernel or scikit-learn kernel, default "matern32"
        A name ("rbf", "matern", "matern12", "matern32", "matern52", "rational-quadratic",
        "quasi-periodic") starts from values read off the data, with one lengthscale per column. A
        kernel object starts from its own values, in the units of X and y; made by `.on(columns)`,
        it may leave columns of X unused. A name after "additive-" means one kernel on each column,
        f(x) = Σ_j f_j(x_j); for any other name and more than three columns, both an additive model
        and one kernel on all columns are tried. Sums such as `Matern32().on(0) + RBF().on(1, 2)`
        may act on any number of columns, up to three in each term.
    features : str or Features, default "auto"
        "auto" leaves it to `solver`. A family of inducing features: "lattice", "trig", "hermite",
        "legendre", "chebyshev", "box", "eigenfunction", "variational-fourier", "harmonic",
        "random-fourier", "inducing-points", "exact" (no features, for up to some thousand rows),
        or an object of `orthogp.features`; see docs/families.md. "inducing-points" and
        "random-fourier" act on any number of columns jointly, others on up to three.
    num_features : int or "auto"
        "auto" takes for the lattice as many as the certificate needs, up to `max_features`, and for
        other families a number that suits the columns.
    mean : {"auto", None, "constant", "linear"}, default "auto"
        The mean function; its coefficients have broad priors and are integrated out. "auto" is
        "linear" for neighbours and features of more than three columns, "constant" elsewhere.
    noise_variance : float or Noise, optional
        Where learning starts; the value itself if `learn` is false. `Noise(0.01).fix()` keeps it
        while the kernel is learned; a `Noise` can also have bounds and a prior.
    learn : bool, default True
        Whether to learn the hyperparameters.
    hyperparameters : {"optimise", "integrate"}, default "optimise"
        Whether predictions take the best hyperparameters, or integrate over their posterior, by a
        mixture of some of its draws: exact, dense and additive engines, one target.
    domain : (lower, upper), optional
        A box to cover besides the data, for predictions beyond them.
    weights : {"repeats", "precisions"}, default "repeats"
        What `sample_weight` means: w counts a row w times (scikit-learn's convention), or the row's
        noise variance is σ²/w.
    wrap_tolerance : float, default 1e-4
        The largest relative error of the periodic prior over the data.
    max_features : int
        The largest feature set of the dense solver for "auto"; time grows with its cube.
    tolerance : float, default 0.05
        How close the lattice is to come to the exact process: means within that many posterior
        standard deviations, standard deviations within that relative error. Features are added
        until the certificate proves it, up to `max_features`.
    solver : {"auto", "exact", "dense", "iterative", "neighbours"}, default "auto"
        "exact" takes up to 5000 rows; "dense" up to `max_features` lattice features, with a
        certificate; "iterative" up to millions of them; "neighbours" any number of rows and
        columns. "auto" takes the first for up to 2500 rows, the second where it resolves the data,
        and otherwise the solver that predicts held-out rows best.
    max_seconds : float, optional
        The time after which learning stops. With very many features it stops earlier, so that the
        rest is done in time, and their number is limited accordingly.
    max_memory : float, optional
        The most bytes that the iterative solver may take: fewer bytes allow fewer features.
    n_jobs : int, optional
        Threads, at most one for each core at hand; all unless given, and −1 is all too.
    random_state : int, optional
        The default seed of `sample_y`; fitting is deterministic.
    likelihood : {"gaussian", "heteroscedastic", "poisson", "binomial", "negative-binomial",
        "gamma", "student-t"}
        How targets come about, given f; see docs/likelihoods.md. Under all but the first the
        posterior of f is the closest Gaussian. One kernel on up to three columns learns from sums;
        others, and "student-t" (noise with outliers), keep the rows.

    Attributes
    ----------
    columns_ : (d,)
        The columns of X that the kernel acts on.
    kernel_, noise_variance_
        The learned model, in the units of X and y (several targets of different scale: in units of
        `target_scale_`).
    noise_in_kernel_ : bool
        Whether the noise is a scikit-learn `WhiteKernel`, and so part of standard deviations.
    elbo_, upper_bound_ : float
        Lower (Titsias) and upper bound on log p(y), for the prior that the features approximate;
        `certificate_` has bounds for the kernel itself.
    certificate_ : Certificate
        How far means and standard deviations can be from those of the exact process.
    engine_ : str
        The engine of the fit: "exact", "dense", "iterative", "additive", "neighbours", or
        "features" for any family but the lattice.
    trials_ : tuple of Trial
        The engines that were tried, with their scores.
    statistics_ : FourierStatistics, AdditiveStatistics or RowTotals
        The sums of all rows seen, of y less `target_shift_`; totals if the rows are kept (exact,
        neighbours, features of more than three columns).
    posterior_ : Posterior
        In standardised units: y = target_offset_ + target_scale_ · f.
    features_ : Features or None
        The features in place, and `num_features_` of them; `None` for exact and neighbours.
    domain_ : Domain
        Where predictions are the posterior's.
    status_ : str
        How the fit ended and what to do about it.
    covariate_names_ : tuple of str
        The covariates' names, and `effects_` their effects with standard errors.
    likelihood_ : Likelihood or None
        The likelihood, `None` if the noise is Gaussian; `noise_variance_` has no meaning then.
    dispersion_ : float or None
        r of the negative binomial, the shape of the gamma likelihood, the scale of Student's t.
    degrees_ : float or None
        The degrees of freedom of Student's t.
    passes_ : int
        How often all rows were read.
    noise_posterior_ : Posterior or None
        Of log(σ²(x)/`noise_variance_`), if the noise varies; see `predict_noise`.
    """

    def __init__(
        self,
        kernel: str | Kernel | Any = "matern32",
        *,
        features: str | Features = "auto",
        num_features: int | Literal["auto"] = "auto",
        mean: str | None = "auto",
        noise_variance: float | Noise | None = None,
        learn: bool = True,
        hyperparameters: str = "optimise",
        domain: tuple[ArrayLike, ArrayLike] | None = None,
        weights: str = "repeats",
        wrap_tolerance: float = 1e-4,
        max_features: int = MAX_FEATURES,
        tolerance: float = TOLERANCE,
        solver: str = "auto",
        max_seconds: float | None = None,
        max_memory: float | None = None,
        n_jobs: int | None = None,
        random_state: int | None = None,
        likelihood: str = GAUSSIAN,
    ) -> None:
        self.kernel = kernel
        self.features = features
        self.num_features = num_features
        self.mean = mean
        self.noise_variance = noise_variance
        self.learn = learn
        self.hyperparameters = hyperparameters
        self.domain = domain
        self.weights = weights
        self.wrap_tolerance = wrap_tolerance
        self.max_features = max_features
        self.tolerance = tolerance
        self.solver = solver
        self.max_seconds = max_seconds
        self.max_memory = max_memory
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.likelihood = likelihood

    # ------------------------------------------------------------------ fitting

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        covariates: ArrayLike | None = None,
        **sizes: Unpack[Sizes],
    ) -> Self:
        """Fit to rows X (n, d) with targets y, (n,) or (n, p).

        Parameters
        ----------
        sample_weight : (n,), optional
            Weights ≥ 0; see the `weights` parameter.
        covariates : (n,) or (n, q), optional
            Columns z with linear effects, y = f(x) + Σ_j β_j z_j + noise, which are integrated out;
            predictions need them too. See `effects_`.
        exposure : (n,), optional
            How much each row stands for, such as hours or areas: counts and amounts have the mean
            exposure · e^f.
        offset : (n,), optional
            The logarithm of an exposure.
        trials : (n,), optional
            Of which y are the successes; one each unless given.
        """
        began = time.monotonic()
        check_settings(self)
        rows = self._rows(X, y, sample_weight, covariates, sizes, reset=True)
        outcome = fit_rows(Task(self, rows, began))
        warn_constant_columns(self, rows.used, outcome.model.columns)
        warn_repeated_rows(rows)
        self._adopt(outcome, None, began)
        self._one_target = rows.one_target or self.likelihood_ is not None
        if not self._one_target:
            seen = outcome.model.see(rows).standardised(outcome.units)
            warn_shared_noise(seen, outcome.posterior)
        return self

    def fit_files(
        self,
        data: str | PathLike[str] | Sequence[str | PathLike[str]],
        target: str | Sequence[str],
        inputs: Sequence[str] | None = None,
        *,
        weights: str | None = None,
        covariates: Sequence[str] | None = None,
        size: str | Mapping[str, str] | None = None,
        skip_bad: bool = False,
        memory: float = MEMORY,
        scheduler: Any = None,
    ) -> Self:
        """Fit to the rows of CSV, TSV or Parquet files.

        Rows that take more than `memory` are summed in one pass, a batch at a time; lattice
        features then learn from the sums. `about_` says which columns were used, and what numbers
        mean where a column holds date-times.

        Parameters
        ----------
        data : path or sequence of paths
            Files, folders, or patterns such as "data/*.parquet".
        target : str or sequence of str
            The column or columns of y.
        inputs : sequence of str, optional
            The columns of X; all others if those are at most three.
        weights : str, optional
            The column of weights.
        covariates : sequence of str, optional
            The columns with linear effects; see `fit`.
        size : str or mapping, optional
            The column of exposures, or of trials; {"offset": name} for one of offsets.
        skip_bad : bool
            Whether rows that cannot be read are left out instead of refused.
        memory : float
            In bytes.
        scheduler : str or distributed.Client, optional
            A dask scheduler, whose workers sum the rows: they must see the files.
        """
        source = open_source(
            data,
            target,
            inputs,
            weights=weights,
            covariates=covariates,
            skip_bad=skip_bad,
            size=check_size_column(self.likelihood, size),
        )
        fit_files(self, source, memory, scheduler)
        return self

    def fit_sketch(self, sketch: Sketch) -> Self:
        """Fit to sums that were made before, by `orthogp sketch` or from another model's rows.

        Dense lattice features, and families that need no rows, can learn from them.
        """
        fit_sums(self, sketch)
        return self

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        covariates: ArrayLike | None = None,
        **sizes: Unpack[Sizes],
    ) -> Self:
        """Add rows and learn again, from the present hyperparameters; the old rows are not needed.

        If anything fails the model stays as it was. `sizes` are exposure, offset or trials as in
        `fit`.
        """
        if not hasattr(self, "posterior_"):
            return self.fit(X, y, sample_weight, covariates, **sizes)
        rows = self._rows(X, y, sample_weight, covariates, sizes, reset=False)
        return self._update(rows, sign=1)

    def forget(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        covariates: ArrayLike | None = None,
        **sizes: Unpack[Sizes],
    ) -> Self:
        """Take out rows that were fitted before, and learn again; the inverse of `partial_fit`.

        Rows that cannot have been fitted, judging by the sums, are refused, and the model stays as
        it was: rows elsewhere, with other targets or weights, or more than there are.
        """
        check_is_fitted(self, "posterior_")
        rows = self._rows(X, y, sample_weight, covariates, sizes, reset=False)
        return self._update(rows, sign=-1)

    def _rows(
        self, X: Any, y: Any, sample_weight: Any, covariates: Any, sizes: Sizes, *, reset: bool
    ) -> Rows:
        """Return validated rows, with exposures or trials beside y and covariates behind X."""
        targets = with_sizes(self.likelihood, y, **sizes)
        rows = check_rows(self, X, targets, sample_weight, reset=reset)
        return with_covariates(self, rows, covariates, reset=reset)

    def _update(self, rows: Rows, *, sign: int) -> Self:
        began = time.monotonic()
        check_settings(self)
        family = check_likelihood(self)
        if family is None and rows.y.shape[1] != len(self.target_scale_):
            raise InputError(
                f"y must have {len(self.target_scale_)} columns as before, got {rows.y.shape[1]}."
            )
        kept = isinstance(self._sketch, KeptRows)
        joint = kept and not self.posterior_.additive
        model = choose_model(kernel_of(self), self.features, rows.num_inputs, joint=joint)
        if not np.array_equal(model.columns, self.columns_):
            raise InputError("The kernel acts on other columns than before: fit again.")
        seen = model.see(rows)
        sketch = self._sketch.updated(seen, sign, available_threads(self.n_jobs))
        if sign < 0 and not kept:
            summed = seen if family is None else family.summands(seen, self._sketch.shift)[0]
            check_forgotten(self, self._sketch, sketch, summed)
        self._adopt(fit_sketch(self, sketch, model, self._last, began), self._last, began)
        return self

    def _adopt(self, outcome: Outcome, previous: Start | None, began: float) -> None:
        """Adopt a fitted model; the estimator changes only when the fit has succeeded."""
        fit, sketch, units = outcome.fit, outcome.sketch, outcome.units
        columns = outcome.model.columns
        covered = sketch.covered(fit.period)
        if outcome.model.embedding is not None:
            # Anywhere on the sphere, in the columns of X.
            covered = Domain(np.full(len(columns), -np.inf), np.full(len(columns), np.inf))
        if units.constant:
            warnings.warn(
                "y is constant: there is nothing to learn, and the model predicts that constant.",
                FitWarning,
                stacklevel=3,
            )
        # Attributes that describe other rows, or how those were read.
        for stale in ("diagnostics_", *(("about_",) if previous is None else ())):
            vars(self).pop(stale, None)
        self._sketch = sketch
        seen = {"rows": sketch.statistics.count, "likelihood": fit.likelihood}
        self._last = Start(fit.kernel, fit.noise_variance, **seen)
        self.likelihood_, self.passes_ = fit.likelihood, fit.passes
        self.dispersion_ = getattr(fit.likelihood, "learned", None)
        self.degrees_ = getattr(fit.likelihood, "degrees", None)
        self.statistics_, self.target_shift_ = sketch.statistics, sketch.shift
        self.target_offset_, self.target_scale_ = units.offset, units.scale
        self.posterior_, self.domain_ = outcome.posterior, covered
        self.noise_posterior_ = None
        if fit.noise is not None:
            covered = sketch.covered(fit.noise.period)
            self.noise_posterior_ = fit.noise.posterior(covered, available_threads(self.n_jobs))
        self.engine_, self.trials_ = outcome.engine, outcome.trials
        self.features_ = fit.features
        self.period_, self.num_features_ = fit.period, fit.num_features
        unit = variance_unit(units.scale)
        self.columns_ = columns
        # A model from a file has another kernel in place of scikit-learn's.
        known = previous is not None and self.noise_in_kernel_
        self.noise_in_kernel_ = known or has_white(self.kernel)
        self.kernel_ = outcome.model.as_given(fit.kernel.scaled(unit))
        self.noise_variance_ = fit.noise_variance * unit
        jacobian = fit.rows * float(np.sum(np.log(units.scale)))
        self.elbo_ = fit.elbo.total - jacobian
        self.tightened_bound_ = fit.tightened.total - jacobian
        self.upper_bound_ = fit.upper.total - jacobian
        self.certificate_ = fit.certificate._replace(
            lower=fit.certificate.lower - jacobian, upper=fit.certificate.upper - jacobian
        )
        self.status_ = fit.status
        learned = time.monotonic() - began
        vars(self).pop("_mixed", None)
        predictive(self)
        self.timings_ = {"learn": learned, "total": time.monotonic() - began}

    # ------------------------------------------------------------------ showing

    def summary(self) -> str:
        """Return the model, its bounds and what they guarantee, in a page of text."""
        check_is_fitted(self, "posterior_")
        return summarise(self)

    def _components(self, label: Any) -> AdditiveParts:
        if label is not None:
            raise InputError(f"A regressor has no classes, got label={label!r}.")
        return parts_of(self)

    def _effect(self, label: Any) -> str:
        return "effect on y"

    @property
    def residual_share_(self) -> Any:
        """The mean square of y less the posterior mean, relative to the variance of y."""
        try:
            parts = parts_of(self)
        except InputError as error:
            # Tools that list all attributes of a model pass over those that it lacks.
            raise AttributeError(str(error)) from error
        return parts.share(parts.parts.shares.residual)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def variance_unit(scale: NDArray[np.float64]) -> float:
    """Return the factor from standardised to original variances, where one serves all."""
    return float(scale[0] ** 2) if np.all(scale == scale[0]) else 1.0
