"""What a fitted regressor predicts, in the units of y: f and y, draws, maps, bounds."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from orthogp.covariates import Effects, average_covariates, check_covariates, effects_of
from orthogp.errors import InputError, OutOfDomainWarning
from orthogp.estimator import GPEstimator
from orthogp.hyperparameters import DRAWS, Hyperparameters, hyperparameters_of, predictive
from orthogp.inference import Functions, Gaussian
from orthogp.inference.predictive import PredictivePosterior
from orthogp.inference.separable import NOISE_NODES, Likelihood
from orthogp.kernels import Kernel
from orthogp.kernels.transformed import Embedding
from orthogp.learning.sketches import Sketch
from orthogp.validation import check_no_sizes, check_probabilities, with_sizes

if TYPE_CHECKING:
    import xarray

    from orthogp.maps.grids import BlockMeans

Floats = NDArray[np.float64]


class PredictionBounds(NamedTuple):
    """Where means and standard deviations of the exact process lie, each of the shape of y."""

    mean_lower: Floats
    mean_upper: Floats
    std_lower: Floats
    std_upper: Floats


class GPPredictor(RegressorMixin, GPEstimator):
    """A regression with a Gaussian posterior of f, standardised, and what follows from it."""

    random_state: int | None
    likelihood: str
    kernel_: Kernel
    covariate_names_: tuple[str, ...] = ()
    noise_in_kernel_: bool
    target_offset_: Floats
    target_scale_: Floats
    likelihood_: Likelihood | None
    posterior_: Any
    noise_posterior_: Any
    noise_variance_: float
    engine_: str
    _sketch: Sketch
    _one_target: bool

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
            f = latent(self, X, covariates)
            return target_moments(self, X, f, sizes, return_std, return_cov or return_bounds)
        check_no_sizes(self.likelihood, **sizes)
        points = self._points(X, covariates)
        found = self._mean_and_spread(points, return_std, return_cov, include_noise)
        if return_bounds:
            found = (*found, prediction_bounds(self, points, include_noise))
        return found[0] if len(found) == 1 else found

    def _mean_and_spread(
        self, points: NDArray, return_std: bool, return_cov: bool, include_noise: bool
    ) -> tuple[Any, ...]:
        """Return the mean of f, and its standard deviations or covariance if asked."""
        posterior, scale, offset = self._predictive, self.target_scale_, self.target_offset_
        if not (return_std or return_cov):
            return (self._shaped(posterior.predict_mean(points) * scale + offset),)
        found = posterior.predict(points)
        mean = self._shaped(found.mean * scale + offset)
        noise = posterior.noise_variance if include_noise else 0.0
        if return_std:
            return mean, self._shaped(np.sqrt(found.variance + noise)[:, None] * scale)
        with warnings.catch_warnings():
            # The mean above has warned already.
            warnings.simplefilter("ignore", OutOfDomainWarning)
            covariance = posterior.covariance(points) + noise * np.eye(len(points))
        return mean, self._shaped(covariance[:, :, None] * scale**2)

    def predict_latent(
        self, X: ArrayLike, return_std: bool = False, covariates: ArrayLike | None = None
    ) -> Any:
        """Return the mean of f at the rows of X, and its standard deviation if asked."""
        check_is_fitted(self, "posterior_")
        if self.likelihood_ is None:
            return self.predict(X, return_std, covariates=covariates)
        mean, variance = latent(self, X, covariates)
        return (mean, np.sqrt(variance)) if return_std else mean

    def predict_noise(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Return the noise's standard deviation at the rows of X, (n,) or (n, p).

        If it varies (`likelihood="heteroscedastic"`), the median of its posterior, and with
        `return_std` the standard deviation of its logarithm.
        """
        check_is_fitted(self, "posterior_")
        return noise_sd(self, X, return_std)

    def predict_quantiles(
        self,
        X: ArrayLike,
        quantiles: Sequence[float] = (0.05, 0.5, 0.95),
        covariates: ArrayLike | None = None,
        **sizes: ArrayLike | None,
    ) -> Floats:
        """Return quantiles of new observations y at the rows of X, (n, q) or (n, p, q).

        P(y ≤ result) is at least the probability asked for, f being averaged over its posterior;
        `covariates`, and exposure or trials (`sizes`), are as in `predict`.
        """
        check_is_fitted(self, "posterior_")
        return target_quantiles(self, X, quantiles, sizes, covariates)

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
    ) -> Floats:
        """Return posterior draws at the rows of X, (n, n_samples) or (n, p, n_samples).

        Of the function f, or with `include_noise` of new observations y = f + ε; its default and
        `covariates`, whose effects are drawn with f, are as in `predict`.
        For noise that is not Gaussian, of the mean of y of size one.
        """
        check_is_fitted(self, "posterior_")
        rng = _generator(self.random_state if random_state is None else random_state)
        values = self._predictive.draw(n_samples, rng)(self._points(X, covariates))
        values = np.moveaxis(values, 1, -1)
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
        drawn = self._predictive.draw(n_samples, _generator(random_state))
        scale, offset, d = self.target_scale_, self.target_offset_, len(self.columns_)
        return lambda X: drawn(self._embedded(X[:, :d], X[:, d:])) * scale + offset

    def predict_derivative(self, X: ArrayLike, dim: int = 0) -> tuple[Floats, Floats]:
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

    def predict_integral(self, lower: ArrayLike, upper: ArrayLike) -> tuple[Floats, Floats]:
        """Return mean and standard deviation of ∫ f over boxes [lower_n, upper_n], (n, columns)."""
        check_is_fitted(self, "posterior_")
        self._refuse_on_sphere("Integrals over boxes of")
        lower = np.asarray(lower, dtype=np.float64).reshape(-1, len(self.columns_))
        upper = np.asarray(upper, dtype=np.float64).reshape(-1, len(self.columns_))
        volume = np.prod(upper - lower, axis=1)
        mean, std = self._mean_and_std(self._predictive.integral(lower, upper))
        return mean + self._shaped(volume[:, None] * self.target_offset_), std

    def _mean_and_std(self, found: Gaussian) -> tuple[Floats, Floats]:
        deviation = np.sqrt(found.variance)[:, None] * self.target_scale_
        return self._shaped(found.mean * self.target_scale_), self._shaped(deviation)

    def _refuse_on_sphere(self, what: str) -> None:
        if self._embedding is not None:
            raise InputError(
                f"{what} longitude and latitude are not available for a kernel on the sphere: "
                "take differences or averages of draws (sample_y) instead."
            )

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

    def _shaped(self, values: Floats) -> Floats:
        """Drop the last axis, that of the targets, if y had none."""
        return values[..., 0] if self._one_target else values


def _generator(random_state: int | None) -> np.random.Generator:
    return np.random.default_rng(check_random_state(random_state).randint(2**31))


def prediction_bounds(model: GPPredictor, X: NDArray, include_noise: bool) -> PredictionBounds:
    """Return the bounds on the exact process at rows as the posterior sees them."""
    posterior: Any = model.posterior_
    if model._predictive is not posterior:
        raise InputError(
            "There are no bounds for predictions that integrate over hyperparameters: use "
            'hyperparameters="optimise".'
        )
    mean, variance = posterior.predict(X)
    errors, lower, upper = np.zeros_like(mean), variance, variance
    guarantee = getattr(posterior, "guarantee", None)
    if guarantee is not None:
        noise = posterior.noise_variance
        lower, upper = guarantee.variances(variance, posterior.residual, noise)
        errors = guarantee.mean_errors(lower, upper, noise) * np.sqrt(upper)[:, None]
        outside = model._sketch.extent.outside(X)
        if outside is not None:
            # The period of the prior is long enough for the box of the rows, not beyond it.
            errors[outside], lower[outside], upper[outside] = np.inf, 0.0, np.inf
    elif model.engine_ != "exact":
        raise InputError(
            f"There are no bounds point by point for the engine {model.engine_!r}: use "
            'solver="dense" for up to three columns, or solver="exact" for few rows.'
        )
    extra = posterior.noise_variance if include_noise else 0.0
    scale, offset = model.target_scale_, model.target_offset_
    return PredictionBounds(
        model._shaped((mean - errors) * scale + offset),
        model._shaped((mean + errors) * scale + offset),
        model._shaped(np.sqrt(lower + extra)[:, None] * scale),
        model._shaped(np.sqrt(upper + extra)[:, None] * scale),
    )


def latent(
    model: GPPredictor, X: ArrayLike, covariates: ArrayLike | None = None
) -> tuple[Floats, Floats]:
    """Return mean and variance of f at rows of X, (n,) each, with average covariates or these."""
    known = covariates is not None or model.covariate_names_
    rows = model._points(X, covariates) if known else model._inputs(X)
    mean, variance = model.posterior_.predict(rows)
    scale = model.target_scale_[0]
    return mean[:, 0] * scale + model.target_offset_[0], variance * scale**2


def log_noise(model: GPPredictor, X: ArrayLike) -> tuple[Floats, Floats]:
    """Return mean and variance of the logarithm of the noise variance, (n,) each."""
    level = np.log(model.noise_variance_)
    mean, variance = model.noise_posterior_.predict(model._inputs(X))
    return mean[:, 0] + level, variance


def noise_sd(model: GPPredictor, X: ArrayLike, return_std: bool) -> Any:
    """Return the noise's standard deviation at rows, (n,), and the sd of its logarithm if asked."""
    if model.likelihood_ is not None and model.noise_posterior_ is None:
        raise InputError(
            f"The {model.likelihood} likelihood has no noise beside its targets' distribution: "
            "use predict(return_std=True)."
        )
    if model.noise_posterior_ is None:
        sd = np.sqrt(model._predictive.noise_variance) * model.target_scale_
        sd = model._shaped(np.broadcast_to(sd, (len(model._inputs(X)), len(sd))))
        return (sd, np.zeros_like(sd)) if return_std else sd
    mean, variance = log_noise(model, X)
    sd = np.exp(mean / 2)
    return (sd, np.sqrt(variance) / 2) if return_std else sd


def target_moments(
    model: GPPredictor,
    X: ArrayLike,
    f: tuple[Floats, Floats],
    sizes: Mapping[str, Any],
    return_std: bool,
    joint: bool,
) -> Any:
    """Return means of y at rows of X, and sds if asked, given means and variances of f.

    Covariances or bounds, which are asked for if `joint`, are refused: there are none.
    """
    family = model.likelihood_
    if joint:
        raise InputError(
            f"The {model.likelihood} likelihood has no covariances or bounds of y: use "
            "predict_latent, or draws (sample_y)."
        )
    assert family is not None
    mean, variance = family.moments(*f, _sizes(model, X, sizes))
    return (mean, np.sqrt(variance)) if return_std else mean


def target_quantiles(
    model: GPPredictor,
    X: ArrayLike,
    quantiles: Any,
    sizes: Mapping[str, Any],
    covariates: ArrayLike | None = None,
) -> Floats:
    """Return quantiles of y, along the last axis."""
    probabilities = check_probabilities(quantiles)
    family = model.likelihood_
    if family is None:
        check_no_sizes(model.likelihood, **sizes)
        noise = {"include_noise": True, "covariates": covariates}
        mean, std = model.predict(X, return_std=True, **noise)
        return mean[..., None] + std[..., None] * ndtri(probabilities)
    f = latent(model, X, covariates)
    own = _sizes(model, X, sizes)
    return np.stack([family.quantile(p, *f, own) for p in probabilities], axis=-1)


def _sizes(model: GPPredictor, X: ArrayLike, sizes: Mapping[str, Any]) -> Floats:
    """Return exposures or trials of new observations, (n,), or noise variances at nodes, (n, q)."""
    targets = np.zeros(len(model._inputs(X)))
    sized = with_sizes(model.likelihood, targets, **sizes)
    if model.noise_posterior_ is not None:
        mean, variance = log_noise(model, X)
        return np.exp(mean[:, None] + np.sqrt(variance)[:, None] * NOISE_NODES)
    return np.ones(len(targets)) if np.ndim(sized) == 1 else np.asarray(sized)[:, 1]
