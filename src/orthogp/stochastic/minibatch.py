"""StochasticGPRegressor: the paper's mini-batch inference behind scikit-learn's interface."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import DataConversionWarning
from sklearn.utils.validation import check_is_fitted

from orthogp.errors import InputError
from orthogp.features import Features, resolve_features
from orthogp.kernels import Kernel, resolve_kernel
from orthogp.learning.sketches import ROUNDING, mean_target
from orthogp.persistence import Storable
from orthogp.regressor import GPRegressor
from orthogp.rows import Domain
from orthogp.stochastic.bound import (
    BATCH_SIZE,
    NUM_FEATURES,
    StochasticModel,
    natural_step_for,
    train_stochastic,
)
from orthogp.stochastic.frequencies import Sampler
from orthogp.stochastic.normals import Covariance
from orthogp.stochastic.training import Progress, TrainingSettings
from orthogp.validation import (
    check_columns,
    check_domain,
    check_inputs,
    check_rows,
    kernel_of,
    refuse_priors,
)

# The number of rows that starting values are learned from.
_START_ROWS = 2000
# The number of features with which starting values are learned.
_START_FEATURES = 201


class StochasticGPRegressor(Storable, RegressorMixin, BaseEstimator):
    """Regression by mini-batches of rows and random frequencies (section 3.3 of the paper).

    `GPRegressor` solves the same problem from one pass over the rows, without noise, and is the
    better choice where it serves. The paper's method needs a memory that does not depend on the
    number of rows, and extends to other likelihoods. The estimator has no figures, no checks and no
    report page: `summary()` and `history_` say how training went. Predictions far from the rows are
    those of the prior.

    Parameters
    ----------
    kernel : str, Kernel or scikit-learn kernel, default "matern32"
        A name starts from values learned from a few rows, a kernel object from its values.
    features : str or SpectralFeatures, default "trig"
        A family with a basis in frequency: "trig", "hermite", "legendre", "chebyshev", "box".
    num_features : int or "auto"
        "auto" is 64 in one column.
    covariance : {"dense", "diagonal"}
        The form of the covariance of q(u). A diagonal one takes far cheaper steps with many
        features, but far more of them.
    noise_variance : float, optional
        To start from.
    learn : bool, default True
        Whether kernel, noise variance and band are learned besides q(u).
    batch_size : int, "auto" or None
        Rows of a step; "auto" is 256, or all rows if there are fewer; `None` takes all.
    num_samples : int or "auto"
        Random frequencies of either set; "auto" takes more while their noise hides the progress.
    sampler : {"stratified", "independent"}
    learning_rate : float or callable
        Adam's, or a schedule from the step to it.
    natural_step : float, "auto" or None
        The size of natural-gradient steps for q(u); "auto" is 0.9 if batches hold all rows, else
        0.1; `None` leaves q(u) to Adam.
    max_steps : int
    domain : (lower, upper), optional
        A box that the features are to cover besides the data.
    checkpoint : path, optional
        Where training keeps its state, and a later `fit` with the same settings finds it.
    verbose : bool, default False
        Whether to show a line of progress.
    random_state : int, default 0

    Attributes
    ----------
    kernel_, noise_variance_, features_, posterior_
        The model, in the units of X and y; `posterior_` in standardised units of y.
    elbo_, elbo_error_ : float
        The mean of the last block's estimates of the bound, and its standard error.
    history_ : list of Progress
    status_ : str
        Why training ended.
    """

    n_features_in_: int

    def __init__(
        self,
        kernel: str | Kernel | Any = "matern32",
        *,
        features: str | Features = "trig",
        num_features: int | Literal["auto"] = "auto",
        covariance: Covariance = "dense",
        noise_variance: float | None = None,
        learn: bool = True,
        batch_size: int | Literal["auto"] | None = "auto",
        num_samples: int | Literal["auto"] = "auto",
        sampler: Sampler = "stratified",
        learning_rate: float | Callable[[int], Any] = 1e-2,
        natural_step: float | Literal["auto"] | None = "auto",
        max_steps: int = 20_000,
        domain: tuple[ArrayLike, ArrayLike] | None = None,
        checkpoint: str | Path | None = None,
        verbose: bool = False,
        random_state: int = 0,
    ) -> None:
        self.kernel = kernel
        self.features = features
        self.num_features = num_features
        self.covariance: Covariance = covariance
        self.noise_variance = noise_variance
        self.learn = learn
        self.batch_size = batch_size
        self.num_samples = num_samples
        self.sampler: Sampler = sampler
        self.learning_rate = learning_rate
        self.natural_step = natural_step
        self.max_steps = max_steps
        self.domain = domain
        self.checkpoint = checkpoint
        self.verbose = verbose
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit to rows X (n, d) with targets y (n,); both may be mapped from files."""
        for name in ("batch_size", "num_samples", "num_features", "natural_step"):
            value = getattr(self, name)
            if isinstance(value, str) and value != "auto":
                raise InputError(f'{name} must be a number or "auto", got {value!r}.')
        rows = check_rows(self, X, y, None, reset=True)
        if rows.y.shape[1] != 1:
            raise InputError("y must be one target: use GPRegressor for several.")
        if not rows.one_target:
            warnings.warn(
                "y is a column, but one number per row was expected: use y.ravel().",
                DataConversionWarning,
                stacklevel=2,
            )
        kernel = resolve_kernel(kernel_of(self)).kernel
        refuse_priors(kernel, "StochasticGPRegressor", bounds=isinstance(self.kernel, Kernel))
        columns = check_columns(kernel, rows.X.shape[1])
        if len(columns) != rows.X.shape[1]:
            raise InputError("The kernel must act on all columns: leave the others out of X.")
        offset = float(mean_target(rows)[0])
        targets = rows.y[:, 0].astype(np.float64)
        scale = float(np.std(targets - offset))
        # A constant leaves its rounding.
        scale = scale if scale > ROUNDING * abs(offset) else 1.0
        y = (targets - offset) / scale
        kernel, noise_variance = self._start(rows.X, y, scale**2)
        box = Domain.around(rows.X).with_box(check_domain(self, np.arange(rows.X.shape[1])))
        named = isinstance(self.features, str) and self.num_features == "auto"
        number = NUM_FEATURES[len(columns)] if named else self.num_features
        learn = ("kernel", "noise", "dilation") if self.learn else ()
        # The model refuses features without a basis in frequency.
        features: Any = resolve_features(self.features, number, len(columns))
        model = StochasticModel(features, kernel, noise_variance, self.covariance, learn=learn)
        jacobian = len(y) * float(np.log(scale))
        fit = train_stochastic(rows.X, y, model.placed(box), self._training(len(y), jacobian))
        if self.verbose:
            sys.stderr.write("\n")
        self.posterior_, self.features_ = fit.posterior(box, 1), fit.features
        self.target_offset_, self.target_scale_ = offset, scale
        self.kernel_ = fit.kernel.scaled(scale**2)
        self.noise_variance_ = fit.noise_variance * scale**2
        self.history_, self.status_ = fit.history, fit.status
        self.elbo_, self.elbo_error_ = fit.elbo.total - jacobian, fit.last.standard_error
        return self

    def summary(self) -> str:
        """Return the model and how training ended, in a few lines."""
        check_is_fitted(self, "posterior_")
        return "\n".join(
            [
                f"StochasticGPRegressor: {self.features_.num_features} features, "
                f"{self.n_features_in_} input column{'s' if self.n_features_in_ > 1 else ''}",
                f"  kernel    {self.kernel_}",
                f"  noise sd  {np.sqrt(self.noise_variance_):.4g}",
                f"  log p(y)  ≥ {self.elbo_:.6g} ± {self.elbo_error_:.2g}, estimated",
                f"  status    {self.status_}",
            ]
        )

    def _training(self, num_rows: int, jacobian: float) -> TrainingSettings:
        """Return how to train, and to show progress in the units of y."""
        batch_size = self.batch_size
        if isinstance(batch_size, str):
            batch_size = BATCH_SIZE if num_rows > BATCH_SIZE else None
        natural = self.natural_step
        return TrainingSettings(
            batch_size=batch_size,
            num_samples=None if isinstance(self.num_samples, str) else self.num_samples,
            sampler=self.sampler,
            max_steps=self.max_steps,
            learning_rate=self.learning_rate,
            natural=natural_step_for(batch_size) if isinstance(natural, str) else natural,
            seed=self.random_state,
            checkpoint=self.checkpoint,
            progress=partial(_show, jacobian) if self.verbose else None,
        )

    def _start(self, X: NDArray, y: NDArray[np.float64], unit: float) -> tuple[Kernel, float]:
        """Return hyperparameters to start from, in standardised units."""
        choice = resolve_kernel(kernel_of(self))
        given = choice.noise.value if self.noise_variance is None else self.noise_variance
        noise_variance = None if given is None else given / unit
        if not choice.from_name:
            return choice.kernel.without_knowledge().scaled(
                1 / unit
            ), 0.1 if given is None else given / unit
        rng = np.random.default_rng(self.random_state)
        some = np.sort(rng.permutation(len(y))[:_START_ROWS])
        model = GPRegressor(
            self.kernel, mean=None, max_features=_START_FEATURES, noise_variance=noise_variance
        ).fit(X[some], y[some])
        return model.kernel_, model.noise_variance_

    def predict(self, X: ArrayLike, return_std: bool = False, include_noise: bool = False) -> Any:
        """Return the mean of f at the rows of X, and standard deviations if asked.

        Parameters
        ----------
        return_std : bool
        include_noise : bool
            For a new observation instead of the function itself.
        """
        check_is_fitted(self, "posterior_")
        found = self.posterior_.predict(check_inputs(self, X))
        mean = found.mean[:, 0] * self.target_scale_ + self.target_offset_
        if not return_std:
            return mean
        noise = self.posterior_.noise_variance if include_noise else 0.0
        return mean, np.sqrt(found.variance + noise) * self.target_scale_


def _show(jacobian: float, progress: Progress) -> None:
    """Write one line over the last."""
    text = (
        f"\rstep {progress.step:,} of {progress.max_steps:,}: "
        f"ELBO {progress.elbo - jacobian:,.2f} ± {progress.standard_error:.2g} "
        f"(T = {progress.num_samples})"
    )
    sys.stderr.write(text.ljust(72))
    sys.stderr.flush()
