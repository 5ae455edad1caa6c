"""GPRegressor: validation, units, and calls to the parts; no mathematics."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from orthogp.choosing import fit_rows
from orthogp.covariates import (
    Effects,
    average_covariates,
    check_covariates,
    effects_of,
    with_covariates,
)
from orthogp.engines import Outcome, Task, fit_sketch
from orthogp.errors import FitWarning, InputError, OutOfDomainWarning
from orthogp.estimator import GPEstimator
from orthogp.features import Features
from orthogp.files.fitting import MEMORY, fit_files, fit_sums
from orthogp.files.source import open_source
from orthogp.forgetting import check_forgotten
from orthogp.hyperparameters import DRAWS, Hyperparameters, hyperparameters_of, predictive
from orthogp.inference import Domain, Functions, Gaussian
from orthogp.inference.bounds import TOLERANCE
from orthogp.inference.predictive import PredictivePosterior
from orthogp.inference.separable import GAUSSIAN
from orthogp.kernels import Kernel, Noise
from orthogp.kernels.sphere import Embedding
from orthogp.kernels.terms import has_white
from orthogp.learning.problem import MAX_FEATURES, Start
from orthogp.learning.sketches import KeptRows, Sketch
from orthogp.predicting import latent, prediction_bounds, target_moments, target_quantiles
from orthogp.report.components import AdditiveParts, parts_of
from orthogp.report.summary import summarise
from orthogp.rows import Rows
from orthogp.statistics.nufft import available_threads
from orthogp.validation import (
    check_likelihood,
    check_no_sizes,
    check_rows,
    check_settings,
    check_takes_size,
    choose_model,
    warn_constant_columns,
    warn_repeated_rows,
    with_sizes,
)

if TYPE_CHECKING:
    import xarray

    from orthogp.maps.grids import BlockMeans


class GPRegressor(RegressorMixin, GPEstimator):
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
    likelihood : {"gaussian", "poisson", "binomial", "negative-binomial", "gamma"}
        How targets come about, given f; see docs/likelihoods.md. All but the first take one kernel
        on up to three columns, and the posterior of f is the closest Gaussian.

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
    likelihood_ : Separable or None
        The likelihood, `None` if the noise is Gaussian; `noise_variance_` has no meaning then.
    dispersion_ : float or None
        r of the negative binomial, and the shape of the gamma likelihood.
    passes_ : int
        How often all rows were read.
    """

    kernel_: Kernel
    covariate_names_: tuple[str, ...] = ()

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
        *,
        exposure: ArrayLike | None = None,
        offset: ArrayLike | None = None,
        trials: ArrayLike | None = None,
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
        y = with_sizes(self.likelihood, y, exposure=exposure, offset=offset, trials=trials)
        rows = check_rows(self, X, y, sample_weight, reset=True)
        rows = with_covariates(self, rows, covariates, reset=True)
        outcome = fit_rows(Task(self, rows, began))
        warn_constant_columns(self, rows.used, outcome.model.columns)
        warn_repeated_rows(rows)
        self._adopt(outcome, None, began)
        self._one_target = rows.one_target or self.likelihood_ is not None
        return self

    def fit_files(
        self,
        data: str | PathLike[str] | Sequence[str | PathLike[str]],
        target: str | Sequence[str],
        inputs: Sequence[str] | None = None,
        *,
        weights: str | None = None,
        covariates: Sequence[str] | None = None,
        size: str | None = None,
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
        size : str, optional
            The column of exposures, or of trials.
        skip_bad : bool
            Whether rows that cannot be read are left out instead of refused.
        memory : float
            In bytes.
        scheduler : str or distributed.Client, optional
            A dask scheduler, whose workers sum the rows: they must see the files.
        """
        if size is not None:
            check_takes_size(self.likelihood, "size")
            target = [target, size] if isinstance(target, str) else [*target, size]
        source = open_source(
            data, target, inputs, weights=weights, covariates=covariates, skip_bad=skip_bad
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
        **sizes: ArrayLike | None,
    ) -> Self:
        """Add rows and learn again, from the present hyperparameters; the old rows are not needed.

        If anything fails the model stays as it was. `sizes` are exposure, offset or trials as in
        `fit`.
        """
        if not hasattr(self, "posterior_"):
            return self.fit(X, y, sample_weight, covariates, **sizes)
        y = with_sizes(self.likelihood, y, **sizes)
        rows = check_rows(self, X, y, sample_weight, reset=False)
        return self._update(with_covariates(self, rows, covariates, reset=False), sign=1)

    def forget(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        covariates: ArrayLike | None = None,
        **sizes: ArrayLike | None,
    ) -> Self:
        """Take out rows that were fitted before, and learn again; the inverse of `partial_fit`.

        Rows that cannot have been fitted, judging by the sums, are refused, and the model stays as
        it was: rows elsewhere, with other targets or weights, or more than there are.
        """
        check_is_fitted(self, "posterior_")
        y = with_sizes(self.likelihood, y, **sizes)
        rows = check_rows(self, X, y, sample_weight, reset=False)
        return self._update(with_covariates(self, rows, covariates, reset=False), sign=-1)

    def _update(self, rows: Rows, *, sign: int) -> Self:
        began = time.monotonic()
        check_settings(self)
        family = check_likelihood(self)
        if family is None and rows.y.shape[1] != len(self.target_scale_):
            raise InputError(
                f"y must have {len(self.target_scale_)} columns as before, got {rows.y.shape[1]}."
            )
        kept = isinstance(self._sketch, KeptRows)
        model = choose_model(self.kernel, self.features, rows.num_inputs, joint=kept)
        if not np.array_equal(model.columns, self.columns_):
            raise InputError("The kernel acts on other columns than before: fit again.")
        seen = model.see(rows)
        sketch = self._sketch.updated(seen, sign, available_threads(self.n_jobs))
        if sign < 0 and not kept:
            summed = seen if family is None else family.summands(seen)[0]
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
        self.statistics_, self.target_shift_ = sketch.statistics, sketch.shift
        self.target_offset_, self.target_scale_ = units.offset, units.scale
        self.posterior_, self.domain_ = outcome.posterior, covered
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

    def hyperparameter_posterior(
        self, draws: int = DRAWS, random_state: int | None = None
    ) -> Hyperparameters:
        """Return weighted draws from the posterior of the hyperparameters.

        p(log θ | y) ∝ p(y | θ) p(log θ), with the evidence of the engine (exact, dense or
        additive), and flat priors of logarithms where none were given. Laplace's approximation is
        weighted by the evidence; where the weights fail, Hamiltonian Monte Carlo draws.
        """
        check_is_fitted(self, "posterior_")
        seed = self.random_state if random_state is None else random_state
        return hyperparameters_of(self, draws, seed)

    @property
    def _predictive(self) -> PredictivePosterior:
        """The posterior that predicts."""
        return predictive(self)

    # ------------------------------------------------------------------ prediction

    def predict(
        self,
        X: ArrayLike,
        return_std: bool = False,
        return_cov: bool = False,
        include_noise: bool | None = None,
        return_bounds: bool = False,
        covariates: ArrayLike | None = None,
        *,
        exposure: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> Any:
        """Return the mean of f at the rows of X, and standard deviations or covariances if asked.

        For noise that is not Gaussian, mean and standard deviation of y.

        Parameters
        ----------
        return_std, return_cov : bool
            Return also the standard deviations, (n,) or (n, p), or the covariance matrix, (n, n) or
            (n, n, p).
        include_noise : bool, optional
            For a new observation instead of the function itself. By default only if the kernel is
            scikit-learn's with a `WhiteKernel`, whose noise is part of standard deviations there.
        return_bounds : bool
            Return also, last, what the exact process can differ by: `PredictionBounds`. The exact
            engine and the dense lattice have them.
        covariates : (n,) or (n, q), optional
            Their values at the rows of X, if the model was fitted with covariates; the mean is then
            that of f + Σ_j β_j z_j.
        exposure, trials : (n,) or float, optional
            Of new observations, as in `fit`; one unless given.
        """
        if return_std and return_cov:
            raise InputError("Ask for return_std or return_cov, not for both.")
        check_is_fitted(self, "posterior_")
        include_noise = self.noise_in_kernel_ if include_noise is None else include_noise
        sizes = {"exposure": exposure, "trials": trials}
        if self.likelihood_ is not None:
            return target_moments(self, X, sizes, return_std, return_cov or return_bounds)
        check_no_sizes(self.likelihood, **sizes)
        if return_bounds:
            bounds = prediction_bounds(self, self._points(X, covariates), include_noise)
            others = self.predict(X, return_std, return_cov, include_noise, covariates=covariates)
            return (*others, bounds) if isinstance(others, tuple) else (others, bounds)
        X = self._points(X, covariates)
        scale = self.target_scale_
        if not (return_std or return_cov):
            return self._shaped(self._predictive.predict_mean(X) * scale + self.target_offset_)
        prediction = self._predictive.predict(X)
        mean = self._shaped(prediction.mean * scale + self.target_offset_)
        noise = self._predictive.noise_variance if include_noise else 0.0
        if return_std:
            deviation = np.sqrt(prediction.variance + noise)
            return mean, self._shaped(deviation[:, None] * scale)
        with warnings.catch_warnings():
            # The mean above has warned already.
            warnings.simplefilter("ignore", OutOfDomainWarning)
            covariance = self._predictive.covariance(X) + noise * np.eye(len(X))
        return mean, self._shaped(covariance[:, :, None] * scale**2)

    def predict_latent(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Return the mean of f at the rows of X, and its standard deviation if asked."""
        check_is_fitted(self, "posterior_")
        if self.likelihood_ is None:
            return self.predict(X, return_std)
        mean, variance = latent(self, self._inputs(X))
        return (mean, np.sqrt(variance)) if return_std else mean

    def predict_quantiles(
        self,
        X: ArrayLike,
        quantiles: Sequence[float] = (0.05, 0.5, 0.95),
        **sizes: ArrayLike | None,
    ) -> NDArray[np.float64]:
        """Return quantiles of new observations y at the rows of X, (n, q) or (n, p, q).

        P(y ≤ result) is at least the probability asked for, f being averaged over its posterior;
        `sizes` are exposure or trials as in `predict`.
        """
        check_is_fitted(self, "posterior_")
        return target_quantiles(self, X, quantiles, sizes)

    def predict_grid(
        self,
        resolution: float | Sequence[float] | None = None,
        *,
        coordinates: Mapping[str, ArrayLike] | None = None,
        covariates: Any = None,
        include_noise: bool = False,
    ) -> xarray.Dataset:
        """Return mean and standard deviation of f on a grid, as an `xarray.Dataset`.

        Its dimensions are the inputs that the kernel acts on, by name, in dates where they are
        date-times; its variables are `mean` and `sd`, with the units of y. `orthogp.write_map`
        writes it to a NetCDF file or a GeoTIFF.

        Parameters
        ----------
        resolution : float or sequence
            The size of cells, or one for each input: the grid has all multiples within the extent
            of the rows.
        coordinates : mapping, optional
            Instead, the values along each input by name.
        covariates : xarray.Dataset or callable, optional
            Maps of the covariates on the grid (their coordinates serve unless others are given), or
            a function of the inputs (n, d).
        include_noise : bool
            For a new observation instead of the function itself.
        """
        check_is_fitted(self, "posterior_")
        # Here, since grids need xarray.
        from orthogp.maps.grids import predict_grid

        return predict_grid(self, resolution, coordinates, covariates, include_noise=include_noise)

    def predict_blocks(self, blocks: Any, *, covariates: Any = None) -> BlockMeans:
        """Return means of f over regions, with their joint covariance: block kriging.

        Parameters
        ----------
        blocks : polygons, or (lower, upper)
            Polygons of two inputs, as a `geopandas.GeoDataFrame` or a sequence of shapely's; or
            boxes by their corners, (n, d) each.
        covariates : callable, optional
            A function of inputs (n, d) that gives the covariates there, if the model has any.
        """
        check_is_fitted(self, "posterior_")
        from orthogp.maps.grids import predict_blocks

        return predict_blocks(self, blocks, covariates)

    def sample_y(
        self,
        X: ArrayLike,
        n_samples: int = 1,
        random_state: int | None = None,
        covariates: ArrayLike | None = None,
        include_noise: bool | None = None,
    ) -> NDArray[np.float64]:
        """Return posterior draws at the rows of X, (n, n_samples) or (n, p, n_samples).

        Of the function f, or with `include_noise` of new observations y = f + ε; its default and
        `covariates`, whose effects are drawn with f, are as in `predict`.
        For noise that is not Gaussian, of the mean of y of size one.
        """
        check_is_fitted(self, "posterior_")
        X = self._points(X, covariates)
        rng = self._generator(self.random_state if random_state is None else random_state)
        values = np.moveaxis(self._predictive.draw(n_samples, rng)(X), 1, -1)
        if self.noise_in_kernel_ if include_noise is None else include_noise:
            noise = np.sqrt(np.reshape(self._predictive.noise_variance, (-1, 1)))
            values = values + noise * rng.standard_normal(values.shape)
        values = values * self.target_scale_[:, None] + self.target_offset_[:, None]
        if self.likelihood_ is not None:
            values = self.likelihood_.inverse_link(values)
        return values[:, 0] if self._one_target else values

    def draw_functions(self, n_samples: int = 1, random_state: int | None = None) -> Functions:
        """Return posterior functions f in the units of y, to be evaluated anywhere.

        They take rows of the columns that the kernel sees, and behind them the covariates, if any,
        and give values (n, n_samples, p), with p = 1 for a single target.
        """
        check_is_fitted(self, "posterior_")
        drawn = self._predictive.draw(n_samples, self._generator(random_state))
        scale, offset, d = self.target_scale_, self.target_offset_, len(self.columns_)
        return lambda X: drawn(self._embedded(X[:, :d], X[:, d:])) * scale + offset

    @staticmethod
    def _generator(random_state: int | None) -> np.random.Generator:
        return np.random.default_rng(check_random_state(random_state).randint(2**31))

    def predict_derivative(
        self, X: ArrayLike, dim: int = 0
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean and standard deviation of ∂f/∂x_dim at the rows of X."""
        check_is_fitted(self, "posterior_")
        self._refuse_on_sphere("Derivatives along")
        if dim not in self.columns_:
            raise InputError(
                f"dim must be a column that the kernel acts on ({self.columns_.tolist()}), "
                f"got {dim}."
            )
        position = int(np.flatnonzero(self.columns_ == dim)[0])
        return self._mean_and_std(self._predictive.derivative(self._inputs(X), position))

    def predict_integral(
        self, lower: ArrayLike, upper: ArrayLike
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean and standard deviation of ∫ f over boxes [lower_n, upper_n], (n, columns)."""
        check_is_fitted(self, "posterior_")
        self._refuse_on_sphere("Integrals over boxes of")
        lower = np.asarray(lower, dtype=np.float64).reshape(-1, len(self.columns_))
        upper = np.asarray(upper, dtype=np.float64).reshape(-1, len(self.columns_))
        volume = np.prod(upper - lower, axis=1)
        mean, std = self._mean_and_std(self._predictive.integral(lower, upper))
        constant = self._shaped(volume[:, None] * self.target_offset_)
        return mean + constant, std

    def _mean_and_std(
        self, prediction: Gaussian
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        deviation = np.sqrt(prediction.variance)[:, None] * self.target_scale_
        return self._shaped(prediction.mean * self.target_scale_), self._shaped(deviation)

    @property
    def effects_(self) -> Effects:
        """The effects of the covariates with their standard errors, in the units given."""
        check_is_fitted(self, "posterior_")
        if not self.covariate_names_:
            raise AttributeError("The model was fitted without covariates, and has no effects.")
        return effects_of(self)

    def score(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        covariates: ArrayLike | None = None,
    ) -> float:
        """Return the coefficient of determination R² of the predicted means."""
        mean = self.predict(X, covariates=covariates)
        return float(r2_score(y, mean, sample_weight=sample_weight))

    def _inputs(self, X: ArrayLike) -> NDArray:
        """Return rows as the posterior sees them, with average covariates."""
        return self._embedded(super()._inputs(X))

    def _points(self, X: ArrayLike, covariates: ArrayLike | None) -> NDArray:
        """Return rows as the posterior sees them, with covariates of their own."""
        X = super()._inputs(X)
        return self._embedded(X, check_covariates(self, covariates, len(X)))

    @property
    def _embedding(self) -> Embedding | None:
        """Where points of spheres lie in space, if the kernel acts on any."""
        renamed = {int(column): i for i, column in enumerate(self.columns_)}
        return Embedding.of(self.kernel_.with_columns(renamed), len(self.columns_))

    def _embedded(self, X: NDArray, covariates: NDArray | None = None) -> NDArray:
        """Return rows of the kernel's columns as the posterior sees them.

        Spheres in space, and behind them the covariates: average ones unless given.
        """
        embedding = self._embedding
        X = X if embedding is None else embedding.rows(X)
        if not self.covariate_names_:
            return X
        if covariates is None:
            covariates = np.repeat(average_covariates(self)[None], len(X), axis=0)
        return np.concatenate([X, covariates], axis=1)

    def _refuse_on_sphere(self, what: str) -> None:
        if self._embedding is not None:
            raise InputError(
                f"{what} longitude and latitude are not available for a kernel on the sphere: "
                "take differences or averages of draws (sample_y) instead."
            )

    def _shaped(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Drop the last axis, that of the targets, if y had none."""
        return values[..., 0] if self._one_target else values

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
        return parts.share(parts.posterior.shares.residual)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def variance_unit(scale: NDArray[np.float64]) -> float:
    """Return the factor from standardised to original variances, where one serves all."""
    return float(scale[0] ** 2) if np.all(scale == scale[0]) else 1.0
