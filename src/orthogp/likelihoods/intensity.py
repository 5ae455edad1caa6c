r"""GPIntensity: events in a window, by the log-Gaussian Cox process.

Events come at the rate λ(x) = λ₀ e^{f(x) + βᵀz(x)}, f a Gaussian process, z covariates and λ₀ the
average rate:

    log p(events | f) = Σ_events log λ(x_n) − ∫_window E(x) λ(x) dx

with E the exposure, how long each place was watched. These are the terms of Poisson counts, whose
weights are spread over the window and whose targets are the events. All that a lattice needs of the
window is ∫ E e^{βᵀz} e^{iω·x} dx. A box alone has it in closed form; what varies takes cells
(`surfaces.py`). The effects β maximise the bound, and its curvature gives their standard errors:
with q of f at its best for each β,

    ∂L/∂β = Σ_n (z(x_n) − z̄) − ∫ E (z − z̄) E_q[λ] dx
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri, roots_legendre
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from orthogp.covariates import Effects
from orthogp.errors import InputError, check_finite
from orthogp.kernels import Kernel
from orthogp.learning.layout import Setup
from orthogp.learning.sketches import Sketch, mean_prior
from orthogp.likelihoods.surfaces import Cells, Surface, Surroundings
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
# Rounds in which the kernel and the effects of covariates are learned in turn,
_ROUNDS = 3
# the most steps of the effects in each,
_STEPS = 8
# and the standard errors by which the last step moves them at most.
_SETTLED = 0.02
# The change of an effect, of a covariate with unit standard deviation, by which slopes are
# differentiated.
_DIFFERENCE = 0.02


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
        λ₀, events per unit of the window's volume and of exposure, where covariates are zero.
    exposure_ : float
        Its average over the window.
    covariate_names_ : tuple of str
        The covariates' names, and `effects_` their effects on the logarithm of the rate, with
        standard errors. Bands of the rate are for effects held at these values.
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
        self,
        events: ArrayLike,
        window: tuple[ArrayLike, ArrayLike],
        exposure: Any = 1.0,
        covariates: Mapping[str, Any] | None = None,
    ) -> Self:
        """Fit to the places of events, (n, d) or (n,), of a box that was watched.

        Parameters
        ----------
        window : (lower, upper)
            The corners of the box, a number or (d,) each.
        exposure : float, array or callable
            How long it was watched, or by how many: rates are per unit of it. If it varies, values
            at evenly spaced places from corner to corner, with an axis for each column of events,
            or a function of places (n, d); zero where nobody watched.
        covariates : dict of arrays or callables, optional
            What the logarithm of the rate depends on linearly, given like exposures, by name.
        """
        X = check_events(events)
        box = check_window(window, X)
        around = Surroundings.of(box, exposure, covariates)
        known = _Events(X, around)
        effects = None
        if around.names:
            model, effects = self._with_effects(known)
        else:
            model = self._regression(None, known, np.zeros(0))
        self.n_features_in_ = X.shape[1]
        self.window_, self.num_events_ = box, len(X)
        self._surround(around, effects)
        self.rate_ = known.rate(np.zeros(0) if effects is None else known.scaled(effects.values))
        self._adopt(model)
        return self

    def _regression(
        self, like: GPRegressor | None, known: _Events, effects: Floats, *, learn: bool = True
    ) -> GPRegressor:
        """Return the model of f for given effects, from the kernel of another."""
        model = GPRegressor(
            self.kernel if like is None else like.kernel_,
            likelihood="poisson",
            max_features=self.max_features,
            learn=self.learn and learn,
            max_seconds=self.max_seconds,
            n_jobs=self.n_jobs,
            random_state=self.random_state,
            num_features="auto" if learn or like is None else like.num_features_,
        )
        model.fit_sketch(known.sketch(effects, model))
        # A density has no upper bound as probabilities of counts have.
        model.upper_bound_ = np.inf
        model.certificate_ = model.certificate_._replace(upper=np.inf)
        return model

    def _with_effects(self, known: _Events) -> tuple[GPRegressor, Effects]:
        """Return the model of f and the effects that maximise the bound."""
        effects = known.without_process()
        model = self._regression(None, known, effects)
        covariance = np.eye(len(effects))
        for _ in range(_ROUNDS):
            slope = known.slope(effects, model)
            columns = []
            for move in _DIFFERENCE * np.eye(len(effects)):
                other = self._regression(model, known, effects + move, learn=False)
                columns.append((slope - known.slope(effects + move, other)) / _DIFFERENCE)
            values, vectors = np.linalg.eigh((np.array(columns) + np.array(columns).T) / 2)
            covariance = (vectors / np.maximum(values, 1e-3)) @ vectors.T
            errors, moved = np.sqrt(np.diag(covariance)), 0.0
            for _ in range(_STEPS):
                step = covariance @ slope
                effects, moved = effects + step, moved + float(np.max(np.abs(step) / errors))
                model = self._regression(model, known, effects, learn=False)
                slope = known.slope(effects, model)
                if np.max(np.abs(step) / errors) < _SETTLED:
                    break
            if moved < 5 * _SETTLED or not self.learn:
                break
            model = self._regression(model, known, effects)
        unit = known.scale
        names = known.around.names
        return model, Effects(names, effects / unit, covariance / np.outer(unit, unit))

    def _surround(self, around: Surroundings, effects: Effects | None) -> None:
        """Keep what is known of the window, and the effects of it."""
        self._around, self.covariate_names_ = around, around.names
        watched = around.exposure
        self.exposure_ = around.mean_exposure
        self._watched = watched.values if isinstance(watched, Surface) else None
        self._covariate_values = tuple(own.values for own in around.covariates)
        self._effects = effects

    @property
    def effects_(self) -> Effects:
        """The effects of the covariates on the logarithm of the rate."""
        check_is_fitted(self, "posterior_")
        if self._effects is None:
            raise InputError("The model was fitted without covariates: it has no effects.")
        return self._effects

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
        draws = self.regressor_.sample_y(X, n_samples, random_state)
        return np.exp(self._log_factor(X))[:, None] * draws

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
        mean = float(weights @ (self._around.exposure_at(nodes) * self.predict(nodes)))
        nodes, weights = _nodes(lower, upper, _JOINT_NODES[d - 1])
        rates = weights * self._around.exposure_at(nodes) * self.predict(nodes)
        between = np.expm1(self.posterior_.covariance(nodes))
        return mean, float(np.sqrt(max(rates @ between @ rates, 0.0)))

    def _log_rate(self, X: ArrayLike) -> tuple[Floats, Floats]:
        check_is_fitted(self, "posterior_")
        mean, sd = self.regressor_.predict_latent(X, return_std=True)
        return mean + self._log_factor(X), sd**2

    def _log_factor(self, X: ArrayLike) -> Floats:
        """Return log λ₀ + βᵀz at the rows of X."""
        places = np.asarray(X, dtype=np.float64).reshape(-1, self.n_features_in_)
        factor = np.full(len(places), np.log(self.rate_))
        if self._effects is not None:
            factor += self._around.covariates_at(places) @ self._effects.values
        return factor

    def summary(self) -> str:
        """Return the model in a page of text."""
        check_is_fitted(self, "posterior_")
        ends = zip(self.window_.lower, self.window_.upper, strict=True)
        box = " × ".join(f"[{low:g}, {high:g}]" for low, high in ends)
        number, sd = (own[0] for own in self.expected_number(*self.window_))
        volume = float(np.prod(self.window_.width))
        average = self.num_events_ / (volume * self.exposure_)
        varies = "" if self._watched is None else " on average"
        lines = [
            f"GPIntensity: {self.num_events_:,} events in {box}",
            f"  rate         {average:.4g} on average; exposure {self.exposure_:g}{varies}",
            f"  expected     {number:,.1f} events in the window, sd {sd:.1f}",
        ]
        skipped = ("likelihood", "seconds")
        if self._effects is not None:
            effects = self._effects.lines()
            lines += [f"  {'' if i else 'effects':<12} {own}" for i, own in enumerate(effects)]
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


class _Events:
    """Events in their surroundings, and the sums that stand for them.

    Effects are those of covariates centred and divided by their standard deviations in the window.

    Attributes
    ----------
    around : Surroundings
    scale : (q,)
        The covariates' standard deviations.
    """

    def __init__(self, X: Floats, around: Surroundings) -> None:
        self._X, self.around = X, around
        self._cells: Cells | None = None
        self._centre = self.scale = np.zeros(0)
        self._at_events, self._at_cells = np.zeros((len(X), 0)), np.zeros((1, 0))
        if isinstance(around.exposure, Surface) and np.any(around.exposure_at(X) <= 0):
            raise InputError("There are events where the exposure is zero: nobody watched there.")
        if isinstance(around.exposure, Surface) or around.names:
            self._cells = around.cells()
        if self._cells is not None and around.names:
            at_cells = around.covariates_at(self._cells.centres)
            weights = self._cells.exposure / self._cells.exposure.sum()
            self._centre = weights @ at_cells
            self.scale = np.sqrt(weights @ (at_cells - self._centre) ** 2)
            self._at_cells = (at_cells - self._centre) / self.scale
            self._at_events = (around.covariates_at(X) - self._centre) / self.scale
            correlation = self._at_cells.T @ (weights[:, None] * self._at_cells)
            if np.linalg.eigvalsh(correlation)[0] < 1e-8:
                raise InputError(
                    f"The covariates {', '.join(map(repr, around.names))} are collinear in the "
                    "window, so that their effects cannot be told apart: leave one of them out."
                )

    def scaled(self, effects: Floats) -> Floats:
        """Return the effects of centred covariates with unit standard deviation."""
        return effects * self.scale

    def _weights(self, effects: Floats) -> Floats:
        """Return ∫ E e^{βᵀz} over each cell, or over the window."""
        if self._cells is None:
            volume = float(np.prod(self.around.box.width))
            return np.array([self.around.mean_exposure * volume])
        return self._cells.exposure * np.exp(self._at_cells @ effects)

    def rate(self, effects: Floats) -> float:
        """Return λ₀, by which events are as many as there were, for covariates of zero."""
        rate = len(self._X) / float(self._weights(effects).sum())
        return rate * float(np.exp(-(effects / self.scale) @ self._centre))

    def without_process(self) -> Floats:
        """Return the effects on a rate that depends on nothing else: those of Poisson counts."""
        effects = np.zeros(len(self.scale))
        for _ in range(50):
            weights = self._weights(effects)
            weights /= weights.sum()
            mean = weights @ self._at_cells
            away = self._at_cells - mean
            slope = self._at_events.mean(axis=0) - mean
            step = np.linalg.solve(away.T @ (weights[:, None] * away), slope)
            effects = effects + step / max(1.0, float(np.abs(step).max()))
            if np.abs(step).max() < 1e-6:
                break
        return effects

    def slope(self, effects: Floats, model: GPRegressor) -> Floats:
        """Return the bound's derivative by the effects, with q(f) held."""
        assert self._cells is not None
        weights = self._weights(effects)
        weights /= weights.sum()
        mean = weights @ self._at_cells
        expected = len(self._X) * weights * model.predict(self._cells.centres)
        return (self._at_events - mean).sum(axis=0) - expected @ (self._at_cells - mean)

    def sketch(self, effects: Floats, model: GPRegressor) -> Sketch:
        """Return the sums of events, and of weights over the window that add up to their number."""
        X, box = self._X, self.around.box
        threads, number = available_threads(model.n_jobs), float(len(X))
        lattice = Setup(mean="constant", domain=box, num_threads=threads).lattice(box, len(X))
        sums = FourierStatistics.from_data(lattice, X, np.ones(len(X)), num_threads=threads)
        weights = self._weights(effects)
        if self._cells is None:
            of_window = box_sums(lattice, box)
        else:
            of_window = self._cells.sums(lattice, weights / weights.sum(), threads)
        known = {"point_sums": number * of_window, "count": number, "log_weights": 0.0}
        constant = number * np.log(number / weights.sum()) + (self._at_events @ effects).sum()
        return Sketch(
            FourierStatistics(**vars(sums) | known),
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
