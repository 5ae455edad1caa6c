r"""GPIntensity: events in a window, by the log-Gaussian Cox process.

Events come at the rate λ(x) = λ₀ e^{f(x)}, f a Gaussian process and λ₀ the average rate:

    log p(events | f) = Σ_events log λ(x_n) − E ∫_window λ(x) dx

with E the exposure, how long the window was watched. These are the terms of Poisson counts, whose
weights are spread over the window and whose targets are the events. All that a lattice needs of the
window is ∫ e^{iω·x} dx, which a box has in closed form: nothing is divided into cells.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri, roots_legendre
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from orthogp.errors import InputError, check_finite
from orthogp.kernels import Kernel
from orthogp.learning.layout import Setup
from orthogp.learning.sketches import Sketch, mean_prior
from orthogp.persistence import Storable
from orthogp.regressor import GPRegressor
from orthogp.rows import MAX_DIMS, Domain
from orthogp.statistics import FourierStatistics, FrequencyLattice
from orthogp.statistics.nufft import available_threads
from orthogp.validation import check_probabilities

Floats = NDArray[np.float64]

# Nodes along each column, by the number of columns, of quadratures over a box: of means,
_NODES = (2000, 300, 60)
# and of covariances between all of them.
_JOINT_NODES = (400, 28, 10)


class GPIntensity(Storable, BaseEstimator):
    """The rate of events in a window, a log-Gaussian Cox process on one to three columns.

    Parameters
    ----------
    kernel : str or Kernel, default "matern52"
        Of the logarithm of the rate, as in `GPRegressor`.
    max_features : int, default 1000
        The most features of the lattice.
    learn : bool, default True
        Whether to learn the hyperparameters.
    max_seconds, n_jobs, random_state
        As in `GPRegressor`.

    Attributes
    ----------
    window_ : Domain
    num_events_ : int
    rate_ : float
        λ₀, events per unit of the window's volume and of exposure.
    exposure_ : float
    regressor_ : GPRegressor
        The model of f.
    kernel_, elbo_, status_
        Of the model; `elbo_` is a lower bound on the log density of the events.
    """

    n_features_in_: int

    def __init__(
        self,
        kernel: str | Kernel = "matern52",
        *,
        max_features: int = 1000,
        learn: bool = True,
        max_seconds: float | None = None,
        n_jobs: int | None = None,
        random_state: int | None = None,
    ) -> None:
        self.kernel = kernel
        self.max_features = max_features
        self.learn = learn
        self.max_seconds = max_seconds
        self.n_jobs = n_jobs
        self.random_state = random_state

    # ------------------------------------------------------------------ fitting

    def fit(
        self, events: ArrayLike, window: tuple[ArrayLike, ArrayLike], exposure: float = 1.0
    ) -> Self:
        """Fit to the places of events, (n, d) or (n,), of a box that was watched as a whole.

        Parameters
        ----------
        window : (lower, upper)
            The corners of the box, a number or (d,) each.
        exposure : float
            How long it was watched, or by how many: rates are per unit of it.
        """
        X = check_events(events)
        box = check_window(window, X)
        if not (np.isfinite(exposure) and exposure > 0):
            raise InputError(f"exposure must be a positive number, got {exposure!r}.")
        number, volume = len(X), float(np.prod(box.width))
        rate = number / (volume * exposure)
        model = GPRegressor(
            self.kernel,
            likelihood="poisson",
            max_features=self.max_features,
            learn=self.learn,
            max_seconds=self.max_seconds,
            n_jobs=self.n_jobs,
            random_state=self.random_state,
        )
        model.fit_sketch(_sketch(X, box, number * np.log(rate), model))
        # A density has no upper bound as probabilities of counts have.
        model.upper_bound_ = np.inf
        model.certificate_ = model.certificate_._replace(upper=np.inf)
        self.n_features_in_ = X.shape[1]
        self.window_, self.num_events_ = box, number
        self.rate_, self.exposure_ = rate, float(exposure)
        self._adopt(model)
        return self

    def _adopt(self, model: GPRegressor) -> None:
        self.regressor_, self.posterior_ = model, model.posterior_
        self.kernel_, self.elbo_, self.status_ = model.kernel_, model.elbo_, model.status_
        self.columns_, self.domain_, self.timings_ = model.columns_, model.domain_, model.timings_

    # ------------------------------------------------------------------ predictions

    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Return the mean of the intensity λ at the rows of X, and its standard deviation if asked.

        λ is lognormal: its mean is λ₀ e^{μ+s²/2}, with μ and s² mean and variance of f.
        """
        mean, variance = self._log_rate(X)
        rate = np.exp(mean + variance / 2)
        return (rate, rate * np.sqrt(np.expm1(variance))) if return_std else rate

    def predict_quantiles(self, X: ArrayLike, quantiles: Any = (0.05, 0.5, 0.95)) -> Floats:
        """Return quantiles of the intensity at the rows of X, (n, q)."""
        probabilities = check_probabilities(quantiles)
        mean, variance = self._log_rate(X)
        return np.exp(mean[:, None] + np.sqrt(variance)[:, None] * ndtri(probabilities))

    def sample(self, X: ArrayLike, n_samples: int = 1, random_state: int | None = None) -> Floats:
        """Return draws of the intensity at the rows of X, (n, n_samples)."""
        check_is_fitted(self, "posterior_")
        return self.rate_ * self.regressor_.sample_y(X, n_samples, random_state)

    def expected_number(self, lower: ArrayLike, upper: ArrayLike) -> tuple[Floats, Floats]:
        """Return mean and standard deviation of E ∫ λ over boxes, (n,) each.

        Of a new look at a box, the count has the variance of this plus its mean.

        Parameters
        ----------
        lower, upper : (n, d) or (d,)
            The corners of the boxes.
        """
        check_is_fitted(self, "posterior_")
        d = self.n_features_in_
        lower, upper = (np.asarray(edge, dtype=float).reshape(-1, d) for edge in (lower, upper))
        if lower.shape != upper.shape or not np.all(lower < upper):
            raise InputError(f"Boxes need lower < upper in each of {d} columns.")
        found = np.array([self._number(*box) for box in zip(lower, upper, strict=True)])
        return found[:, 0], found[:, 1]

    def _number(self, lower: Floats, upper: Floats) -> tuple[float, float]:
        d = len(lower)
        nodes, weights = _nodes(lower, upper, _NODES[d - 1])
        mean = self.exposure_ * float(weights @ self.predict(nodes))
        nodes, weights = _nodes(lower, upper, _JOINT_NODES[d - 1])
        rates = weights * self.predict(nodes)
        between = np.expm1(self.posterior_.covariance(nodes))
        return mean, self.exposure_ * float(np.sqrt(max(rates @ between @ rates, 0.0)))

    def _log_rate(self, X: ArrayLike) -> tuple[Floats, Floats]:
        check_is_fitted(self, "posterior_")
        mean, sd = self.regressor_.predict_latent(X, return_std=True)
        return mean + np.log(self.rate_), sd**2

    def summary(self) -> str:
        """Return the model in a page of text."""
        check_is_fitted(self, "posterior_")
        ends = zip(self.window_.lower, self.window_.upper, strict=True)
        box = " × ".join(f"[{low:g}, {high:g}]" for low, high in ends)
        number, sd = (own[0] for own in self.expected_number(*self.window_))
        lines = [
            f"GPIntensity: {self.num_events_:,} events in {box}",
            f"  rate         {self.rate_:.4g} on average; exposure {self.exposure_:g}",
            f"  expected     {number:,.1f} events in the window, sd {sd:.1f}",
        ]
        skipped = ("likelihood", "seconds")
        others = self.regressor_.summary().splitlines()[1:]
        lines += [line for line in others if not line.strip().startswith(skipped)]
        return "\n".join(lines)


def check_events(events: ArrayLike) -> Floats:
    """Return events as (n, d), having seen that they are places."""
    X = np.asarray(events, dtype=np.float64)
    X = X[:, None] if X.ndim == 1 else X
    if X.ndim != 2 or not 1 <= X.shape[1] <= MAX_DIMS:
        raise InputError(
            f"Events are rows of one to {MAX_DIMS} columns, got shape {X.shape}: choose columns."
        )
    if len(X) < 2:
        raise InputError(f"An intensity needs at least two events, got {len(X)}.")
    check_finite(X, "events")
    return X


def check_window(window: Any, X: Floats) -> Domain:
    """Return the box of events, which must be in it."""
    d = X.shape[1]
    try:
        lower, upper = (
            np.array(np.broadcast_to(np.asarray(edge, dtype=np.float64), (d,))) for edge in window
        )
    except (TypeError, ValueError) as error:
        raise InputError(
            f"window must be (lower, upper) with a number or {d} numbers each, got {window!r}."
        ) from error
    if not (np.all(np.isfinite([lower, upper])) and np.all(lower < upper)):
        raise InputError(f"window needs finite lower < upper in every column, got {window!r}.")
    outside = np.any((lower > X) | (upper < X), axis=1)
    if np.any(outside):
        place = ", ".join(f"{value:.6g}" for value in X[outside][0])
        raise InputError(
            f"{np.count_nonzero(outside)} of {len(X)} events lie outside the window, such as "
            f"({place}): widen the window or leave them out."
        )
    return Domain(lower, upper)


def box_sums(lattice: FrequencyLattice, box: Domain) -> NDArray[np.complex128]:
    """Return ∫_box e^{iω_s·(x−x₀)} dx / volume for |s| ≤ 2K: a product of sinc functions."""
    sums = np.ones((), dtype=np.complex128)
    for spacing, extent, centre, lower, upper in zip(
        lattice.spacing, lattice.extent, lattice.centre, *box, strict=True
    ):
        omega = spacing * np.arange(-2 * extent, 2 * extent + 1)
        own = np.sinc(omega * (upper - lower) / (2 * np.pi))
        sums = sums[..., None] * (own * np.exp(1j * omega * ((lower + upper) / 2 - centre)))
    return sums


def _sketch(X: Floats, box: Domain, constant: float, model: GPRegressor) -> Sketch:
    """Return the sums of events, and of weights over the window that add up to their number."""
    threads, number = available_threads(model.n_jobs), float(len(X))
    lattice = Setup(mean="constant", domain=box, num_threads=threads).lattice(box, len(X))
    sums = FourierStatistics.from_data(lattice, X, np.ones(len(X)), num_threads=threads)
    statistics = FourierStatistics(
        **{
            **vars(sums),
            "point_sums": number * box_sums(lattice, box),
            "count": number,
            "log_weights": 0.0,
        }
    )
    return Sketch(
        statistics,
        box,
        mean_prior("constant", box),
        np.zeros(1),
        likelihood="poisson",
        constants=np.array([constant]),
    )


def _nodes(lower: Floats, upper: Floats, number: int) -> tuple[Floats, Floats]:
    """Return nodes (m, d) and weights of Gauss and Legendre's rule in a box."""
    at, along = roots_legendre(number)
    d = len(lower)
    grid = np.stack(np.meshgrid(*[at] * d, indexing="ij"), axis=-1).reshape(-1, d)
    weights = np.prod(np.stack(np.meshgrid(*[along] * d, indexing="ij"), axis=-1), axis=-1)
    half = (upper - lower) / 2
    return (lower + upper) / 2 + half * grid, np.asarray(weights.ravel() * float(np.prod(half)))
