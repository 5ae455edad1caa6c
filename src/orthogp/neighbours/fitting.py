r"""Learning from a sample of conditionals.

Rows in a random order have log p(y) = Σ_i log p(y_i | y_1, …, y_{i−1}), and of the rows before it
the m nearest say almost all about row i (Vecchia 1988). B of the N terms, drawn evenly over the
order, estimate the mean term without bias, so that learning costs the same for a million rows as
for a billion: what matters is how well B terms determine the hyperparameters. With the terms'
gradients g_i and the curvature H of their sum,

    covariance of θ̂ = H⁻¹ (Σ g_i g_iᵀ) H⁻¹,      loss ≈ tr(H⁻¹ Σ g_i g_iᵀ)/(2B) nats per row

is what a sample loses compared with all terms; B grows until the loss is small.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.exact.merged_rows import MergedRows
from orthogp.features.lattice import MeanPrior
from orthogp.inference.bounds import Bound, Certificate
from orthogp.inference.parameters import Slot, learned_slots, pack, unpack
from orthogp.kernels import Kernel
from orthogp.kernels.stationary import Radial
from orthogp.learning.ascent import Ascent, Evaluation, ascend
from orthogp.learning.limits import per_lengthscale
from orthogp.learning.optimise import curvature_at
from orthogp.learning.problem import Fit, FitSettings, Progress, Start
from orthogp.neighbours.conditionals import Sets, innovations, terms
from orthogp.neighbours.nearest import NearestRows, OrderedRows, metric_lengths, widths_of
from orthogp.neighbours.posterior import NeighbourPosterior, Trend

Array = NDArray[np.float64]

# Neighbours in learning's stages, by whether there are up to three columns or more.
_NEIGHBOURS = {True: (10, 16, 30), False: (10, 20, 40)}
# Terms that starts are compared on, and the fewest of the later stages.
_TERMS = (200, 800, 2000)
# Terms for each parameter in the last stage: a loss of half a thousandth of a nat per row.
_TERMS_PER_PARAMETER = 300
# The loss in nats per row above which the sample grows, and the most terms.
_LOSS, _MOST_TERMS = 1e-3, 20_000
# Rows at the head of the order that the mean function is learned from.
_TREND_ROWS = 4000
# Neighbours of predictions that are tried, the nats per row that the usual number is worth, and the
# left-out rows that are looked at.
_PREDICTED, _USUAL = (32, 64, 128, 256), 64
_SAME, _CHECKED = 0.003, 500
# Terms that give the curvature for standard errors; data of up to so many rows have all terms.
_CURVATURE_TERMS, _ALL_TERMS = 800, 6000
# The metric is that of the kernel; neighbours are found anew if it has changed by this factor.
_MOVED = 1.15
# Limits relative to variances of one: noise, amplitudes, and other parameters.
_NOISE_LIMITS = (1e-13, 1e3)
_LIMITS = {
    "variance": (1e-6, 1e5),
    "weights": (1e-6, 1e5),
    "nu": (0.1, 15.0),
    "alpha": (0.02, 500.0),
    "shape_lengthscale": (0.1, 50.0),
}


class Check(NamedTuple):
    """What twice as many neighbours would change, on a sample of left-out rows.

    Attributes
    ----------
    mean_change : float
        The root mean square change of means, in posterior standard deviations.
    sd_change : float
        The root mean square relative change of standard deviations.
    """

    mean_change: float
    sd_change: float


class NeighbourFitter:
    """Fits nearest-neighbour conditionals to standardised targets.

    Parameters
    ----------
    rows : MergedRows
    mean : MeanPrior
    settings : FitSettings
    num_threads : int
    seed : int
        Of the order of the rows and the sample of terms.
    ordered : bool
        Whether row i is given its nearest rows among those before it in the order, or among all
        others (leave-one-out conditionals, which are no likelihood).
    """

    def __init__(
        self,
        rows: MergedRows,
        mean: MeanPrior,
        settings: FitSettings,
        num_threads: int = 1,
        seed: int = 0,
        *,
        ordered: bool = True,
    ) -> None:
        self._rows = rows
        self._mean = mean
        self._settings = settings
        self._threads = num_threads
        self._rng = np.random.default_rng(seed)
        order = self._rng.permutation(len(rows.X))
        self._X, self._y = rows.X[order], rows.y[order]
        self._width = widths_of(self._X)
        self._noise = 1 / rows.weights[order]
        self._columns = mean.features(self._X)
        self._ordered = ordered
        self._lengths: Array | None = None
        self._found: OrderedRows | NearestRows | None = None
        self._head: _Head | None = None
        self._progress = Progress()
        few = rows.X.shape[1] <= 3
        self._counts = tuple(min(m, max(len(self._X) - 1, 1)) for m in _NEIGHBOURS[few])

    # ------------------------------------------------------------------ learning

    def fit(self, starts: list[Start]) -> Fit:
        """Return the fit from the best of some starting values."""
        try:
            return self._fit(starts)
        finally:
            self._progress.done()

    def _fit(self, starts: list[Start]) -> Fit:
        best, errors, converged, evaluations, num_terms = starts[0], np.empty(0), True, 0, 0
        if self._settings.learn:
            learned = self.learn(starts)
            best, errors, converged = learned.start, learned.standard_errors, learned.converged
            evaluations, num_terms = learned.num_evaluations, learned.num_terms
        self._progress.say("predicting rows that are left out")
        value = self._log_likelihood(best)
        posterior = self.posterior(best)
        posterior, check = self._checked(posterior)
        bound = Bound(data_fit=value, complexity=0.0, trace=0.0)
        return Fit(
            kernel=best.kernel,
            noise_variance=best.noise_variance,
            elbo=bound,
            tightened=bound,
            upper=Bound(np.nan, 0.0, 0.0),
            certificate=Certificate(
                value,
                np.nan,
                check.mean_change,
                (1 + check.sd_change) ** 2 - 1,
                kind="estimate",
            ),
            status=self._status(converged, check, num_terms),
            converged=converged,
            num_evaluations=evaluations,
            rows=len(self._X) + self._rows.surplus,
            posterior=lambda domain, num_threads: posterior,
            num_features=posterior.num_rows,
            check=check,
            standard_errors=errors,
        )

    def learn(self, starts: list[Start]) -> _Learned:
        """Return the hyperparameters with the largest sum of sampled conditionals."""
        kernel = starts[0].kernel
        slots = learned_slots(kernel)
        lower, upper = self._limits(kernel, slots)
        vectors = [
            np.append(pack(start.kernel, slots), np.log(start.noise_variance)).clip(lower, upper)
            for start in starts
        ]
        evaluations = 0
        summits: list[tuple[float, Array]] = []
        first = self._stage(kernel, slots, None, _TERMS[0], self._counts[0])
        scored = sorted(
            ((self._stage_at(first, vector)(vector)[0], i) for i, vector in enumerate(vectors)),
            reverse=True,
        )
        evaluations += len(vectors)
        tried = self._distinct([vectors[i] for _, i in scored])
        for number, vector in enumerate(tried, start=1):
            self._progress.say(f"learning from neighbours: start {number} of {len(tried)}")
            stage = self._stage_at(first, vector)
            found = self._search(stage, vector, lower, upper, tolerance=0.5, most=25)
            evaluations += found.num_evaluations
            summits.append((found.at.value, found.x))
        summits.sort(key=lambda item: -item[0])
        # The best two basins on more terms.
        second = []
        for value, x in summits[:2]:
            if value < summits[0][0] - 40:
                continue
            stage = self._stage(kernel, slots, x, _TERMS[1], self._counts[1])
            found = self._search(stage, x, lower, upper, tolerance=0.2, most=30)
            evaluations += found.num_evaluations
            second.append((found.at.value / stage.num_terms, found.x))
        x = max(second, key=lambda item: item[0])[1]
        count = max(_TERMS[2], _TERMS_PER_PARAMETER * len(x))
        while True:
            count = min(count, len(self._X))
            if len(self._X) <= max(count / 0.4, _ALL_TERMS):
                count = len(self._X)
            self._progress.say(f"learning from neighbours: {count:,} of {len(self._X):,} rows")
            stage = self._stage(kernel, slots, None, count, self._counts[2])
            rounds = 3
            while True:
                # The same terms, with neighbours anew as long as the metric moves.
                stage = self._stage_at(stage, x)
                found = self._search(stage, x, lower, upper, tolerance=0.1, most=30)
                evaluations += found.num_evaluations
                before, x = x, found.x
                rounds -= 1
                near = np.max(np.abs(x - before)[:-1], initial=0.0) < 0.15
                if near or rounds == 0 or self._settings.late():
                    break
            errors, loss = self._errors(stage, x, lower, upper)
            if loss < _LOSS or count >= min(len(self._X), _MOST_TERMS) or self._settings.late():
                break
            count = min(int(1.3 * count * loss / _LOSS) + 1, _MOST_TERMS, 4 * count)
        return _Learned(
            Start(unpack(kernel, slots, x[:-1]), float(np.exp(x[-1]))),
            errors,
            found.converged,
            evaluations,
            stage.num_terms,
        )

    def _stage(
        self, kernel: Kernel, slots: tuple[Slot, ...], vector: Array | None, count: int, m: int
    ) -> _Stage:
        """Return the objective of so many terms, with neighbours in the kernel's metric."""
        positions = self._positions(count)
        stage = _Stage(self, kernel, slots, positions, m)
        return stage if vector is None else self._stage_at(stage, vector)

    def _stage_at(self, stage: _Stage, vector: Array) -> _Stage:
        return stage.near(unpack(stage.kernel, stage.slots, vector[:-1]), np.exp(vector[-1]))

    def _positions(self, count: int) -> NDArray[np.int64]:
        """Return positions drawn evenly over the order, all of them if there are no more."""
        total = len(self._X)
        if count >= total:
            return np.arange(total)
        edges = np.linspace(0, total, count + 1)
        return np.minimum(
            (edges[:-1] + self._rng.random(count) * np.diff(edges)), total - 1
        ).astype(np.int64)

    def _distinct(self, vectors: list[Array], most: int = 4) -> list[Array]:
        chosen: list[Array] = []
        for vector in vectors:
            if all(np.max(np.abs(vector - other)) > 0.7 for other in chosen):
                chosen.append(vector)
            if len(chosen) == most:
                break
        return chosen

    def _search(
        self, stage: _Stage, x: Array, lower: Array, upper: Array, tolerance: float, most: int
    ) -> Ascent:
        """Return the maximum near x, by steps with the expected information."""
        found = ascend(
            stage.evaluate,
            x,
            lower,
            upper,
            tolerance=tolerance,
            max_evaluations=most,
            out_of_time=self._settings.late,
        )
        assert found is not None
        return found

    def _errors(self, stage: _Stage, x: Array, lower: Array, upper: Array) -> tuple[Array, float]:
        """Return standard errors of the parameters, and what the sample loses per row."""
        gradients = stage.gradients(x)
        free = (x > lower + 1e-3) & (x < upper - 1e-3)
        errors = np.zeros(len(x))
        if not free.any():
            return errors, 0.0
        # The curvature is needed to some percent only: some of the terms give it.
        some = stage.thinned(_CURVATURE_TERMS)
        ratio = len(gradients) / some.num_terms
        H = ratio * curvature_at(some, x, some(x)[1], lower, upper)[np.ix_(free, free)]
        scores = gradients[:, free] - gradients[:, free].mean(axis=0)
        square = scores.T @ scores
        inverse = np.linalg.inv(H)
        errors[free] = np.sqrt(np.maximum(np.diag(inverse @ square @ inverse), 0.0))
        # Of all terms none is sampled.
        sampled = 1 - len(gradients) / len(self._X)
        loss = sampled * min(np.trace(inverse @ square), 3.0 * len(x)) / (2 * len(gradients))
        return errors, float(loss)

    def _limits(self, kernel: Kernel, slots: tuple[Slot, ...]) -> tuple[Array, Array]:
        """Return limits of the log parameters: wide, lengthscales by the rows' spacing."""
        X = self._X
        width = np.ptp(X, axis=0)
        width = np.where(width > 0, width, 1.0)
        short = 1e-2 * self._spacing / np.sqrt(X.shape[1])
        primitives = list(kernel.primitives())
        lower, upper = [], []
        values = np.split(pack(kernel, slots), np.cumsum([slot.size for slot in slots])[:-1])
        for slot, logs in zip(slots, values, strict=True) if slots else ():
            if slot.name == "lengthscale":
                primitive, dims = primitives[slot.primitive]
                own = width if dims is None else width[list(dims)]
                low, high = np.log(own * short), np.log(own * 1e3)
                if isinstance(primitive, Radial):
                    low, high = (np.ravel(e) for e in per_lengthscale(primitive, low, high))
                elif slot.size == 1:
                    low, high = low.min(keepdims=True), high.max(keepdims=True)
            elif slot.is_angle:
                low, high = logs - np.pi, logs + np.pi
            elif slot.name in _LIMITS:
                low, high = (np.full(slot.size, np.log(edge)) for edge in _LIMITS[slot.name])
            else:
                low, high = logs - np.log(4), logs + np.log(4)
            lower.append(np.minimum(low, logs))
            upper.append(np.maximum(high, logs))
        lower.append(np.log([_NOISE_LIMITS[0]]))
        upper.append(np.log([_NOISE_LIMITS[1]]))
        return np.concatenate(lower), np.concatenate(upper)

    @property
    def _spacing(self) -> float:
        """The median distance to the nearest row, in widths of the data."""
        if not hasattr(self, "_spacing_found"):
            scaled = self._X / self._width
            few = scaled[:: max(1, len(scaled) // 500)]
            distances = NearestRows(scaled, self._threads).query(few, 2)[0]
            positive = distances[:, -1][distances[:, -1] > 0]
            self._spacing_found = float(np.median(positive)) if len(positive) else 1.0
        return self._spacing_found

    # ------------------------------------------------------------------ neighbours and the mean

    def neighbours(self, kernel: Kernel, positions: NDArray[np.int64], m: int) -> NDArray[np.int64]:
        """Return the rows that some rows are conditioned on, in the kernel's metric."""
        lengths = metric_lengths(kernel, self._width)
        if self._lengths is None or self._found is None or _moved(self._lengths, lengths):
            scaled = self._X / lengths
            self._lengths = lengths
            self._found = (
                OrderedRows(scaled, self._threads)
                if self._ordered
                else NearestRows(scaled, self._threads)
            )
        if isinstance(self._found, OrderedRows):
            return self._found.query(positions, m)
        assert isinstance(self._found, NearestRows)
        found = self._found.query(self._found.X[positions], m + 1)[1]
        own = found == positions[:, None]
        # A row is its own nearest, or else the farthest found goes.
        own[:, -1] |= ~own.any(axis=1)
        return found[~own].reshape(len(positions), -1)

    def sets(
        self, kernel: Kernel, positions: NDArray[np.int64], m: int, trend: Array | None
    ) -> Sets:
        """Return rows with their neighbours, their targets less the mean function."""
        y = self._y if trend is None else self._y - self._columns @ trend
        found = self.neighbours(kernel, positions, m)
        return Sets.gather(self._X, y, self._noise, positions, found)

    def trend(self, kernel: Kernel, noise_variance: float, m: int | None = None) -> Trend:
        """Return the mean function's coefficients by generalised least squares."""
        q, p = self._columns.shape[1], self._y.shape[1]
        if q == 0:
            return Trend(np.zeros((0, p)), np.zeros((0, 0)), self._mean)
        head = np.arange(min(len(self._X), _TREND_ROWS))
        m = self._counts[-1] if m is None else m
        neighbours = self._head_neighbours(kernel, head, min(m, max(len(head) - 1, 1)))
        sets = Sets.gather(self._X, self._y, self._noise, head, neighbours)
        whole = np.concatenate([neighbours, head[:, None]], axis=1)
        columns = np.where((whole >= 0)[:, :, None], self._columns[whole], 0.0)
        both = np.concatenate([columns, sets.y], axis=2)
        new, variance = innovations(kernel, noise_variance, sets, both, self._threads)
        weighted = new[:, :q] / variance[:, None]
        precision = np.eye(q) + weighted.T @ new[:, :q]
        covariance = np.asarray(np.linalg.inv(precision), dtype=np.float64)
        return Trend(covariance @ (weighted.T @ new[:, q:]), covariance, self._mean)

    def _head_neighbours(
        self, kernel: Kernel, head: NDArray[np.int64], m: int
    ) -> NDArray[np.int64]:
        """Return the rows before them that the first rows are conditioned on."""
        lengths, known = metric_lengths(kernel, self._width), self._head
        if known is None or known.neighbours.shape[1] != m or _moved(known.lengths, lengths):
            found = OrderedRows(self._X[head] / lengths, self._threads)
            self._head = known = _Head(lengths, found.query(head, m))
        return known.neighbours

    # ------------------------------------------------------------------ what a fit gives

    def posterior(self, start: Start) -> NeighbourPosterior:
        """Return the posterior of some hyperparameters."""
        trend = self.trend(start.kernel, start.noise_variance)
        return NeighbourPosterior(
            start.kernel,
            start.noise_variance,
            self._rows,
            trend,
            _PREDICTED[1],
            self._threads,
        )

    def _log_likelihood(self, start: Start) -> float:
        """Return an estimate of log p(y) from a sample of terms."""
        positions = self._positions(_TERMS[2])
        trend = self.trend(start.kernel, start.noise_variance)
        sets = self.sets(start.kernel, positions, self._counts[-1], trend.coefficients)
        kernel = start.kernel.fix() if learned_slots(start.kernel) else start.kernel
        values = terms(kernel, start.noise_variance, sets, self._threads).values
        mean_part = 0.0
        if len(trend.covariance):
            # The mean function integrated out: Laplace's formula is exact for Gaussians.
            p = self._y.shape[1]
            mean_part = 0.5 * (
                p * np.linalg.slogdet(trend.covariance)[1] - np.sum(trend.coefficients**2)
            )
        total = len(self._X) * np.mean(values) + mean_part
        return float(total) + self._rows.beside(start.noise_variance)[0]

    def _checked(self, posterior: NeighbourPosterior) -> tuple[NeighbourPosterior, Check]:
        """Return the posterior with as many neighbours as serve, and what twice as many change.

        More or fewer than usual if left-out rows are predicted better by them: where the kernel is
        not quite right, the nearest rows alone may say more than many.
        """
        size = min(_CHECKED, len(self._rows.X))
        chosen = self._rng.choice(len(self._rows.X), size=size, replace=False)
        y = self._rows.y[chosen]
        noise = posterior.noise_variance / self._rows.weights[chosen]
        most = max(len(self._rows.X) - 1, 1)
        counts = sorted({min(count, most) for count in _PREDICTED})
        found, densities = {}, {}
        for count in counts:
            found[count] = posterior.with_neighbours(count).predict_left_out(chosen)
            mean, variance = found[count].mean, found[count].variance + noise
            square = np.mean((y - mean) ** 2, axis=1)
            densities[count] = -0.5 * (np.log(variance) + square / variance)
            if self._settings.late():
                break
        enough = min(densities, key=lambda count: abs(count - _USUAL))
        # The more neighbours, the dearer a prediction, and the more they must be worth.
        prices = {count: _SAME * count / _USUAL for count in densities}
        best = max(densities, key=lambda count: float(np.mean(densities[count])) - prices[count])
        gain = densities[best] - densities[enough]
        if np.mean(gain) > max(prices[best], np.std(gain) / np.sqrt(size)):
            enough = best
        if enough >= most:
            return posterior.with_neighbours(len(self._rows.X)), Check(0.0, 0.0)
        more = found.get(min(2 * enough, most))
        if more is None:
            more = posterior.with_neighbours(2 * enough).predict_left_out(chosen)
        sd = np.sqrt(more.variance)
        mean_change = np.sqrt(np.mean((more.mean - found[enough].mean) ** 2 / sd[:, None] ** 2))
        sd_change = np.sqrt(np.mean((np.sqrt(found[enough].variance) / sd - 1) ** 2))
        return posterior.with_neighbours(enough), Check(float(mean_change), float(sd_change))

    def _status(self, converged: bool, check: Check, num_terms: int) -> str:
        parts = [
            f"Twice as many neighbours would move means by {check.mean_change:.2g} posterior sd "
            f"and sds by {100 * check.sd_change:.2g} % (root mean square)."
        ]
        if self._settings.late():
            parts.append("The time ran out: raise max_seconds to go on learning.")
        elif not converged:
            parts.append("Learning stopped before it settled.")
        return " ".join(parts)


class _Head(NamedTuple):
    """Neighbours (n, m) of the first rows, and the lengths in which they are near."""

    lengths: Array
    neighbours: NDArray[np.int64]


def _moved(known: Array, lengths: Array) -> bool:
    """Return whether neighbours are to be found anew."""
    # Distances that all grow by one factor leave neighbours as they are.
    ratios = lengths / known
    return bool(ratios.max() > _MOVED * ratios.min())


class _Learned(NamedTuple):
    """Hyperparameters, their standard errors, and how they were found."""

    start: Start
    standard_errors: Array
    converged: bool
    num_evaluations: int
    num_terms: int


@dataclass(frozen=True)
class _Stage:
    """The sum of some conditionals as a function of log hyperparameters."""

    fitter: NeighbourFitter
    kernel: Kernel
    slots: tuple[Slot, ...]
    positions: NDArray[np.int64]
    num_neighbours: int
    sets: Sets | None = None

    @property
    def num_terms(self) -> int:
        """The number of terms."""
        return len(self.positions)

    def near(self, kernel: Kernel, noise_variance: float) -> _Stage:
        """Return the stage with neighbours in a kernel's metric, and its mean function."""
        trend = self.fitter.trend(kernel, noise_variance, m=self.num_neighbours)
        sets = self.fitter.sets(kernel, self.positions, self.num_neighbours, trend.coefficients)
        return replace(self, sets=sets)

    def __call__(self, vector: Array) -> tuple[float, Array]:
        """Return the sum and its gradient."""
        found = self.evaluate(vector)
        return found.value, found.gradient

    def evaluate(self, vector: Array) -> Evaluation:
        """Return the sum, its gradient and its expected information."""
        values, gradients, information = self._terms(vector)
        beside, slope = self.fitter._rows.beside(float(np.exp(vector[-1])))
        share = self.num_terms / len(self.fitter._X)
        gradient = gradients.sum(axis=0)
        gradient[-1] += share * slope
        # Of what merging took out: half of each Gaussian factor.
        information[-1, -1] += share * self.fitter._rows.surplus / 2
        return Evaluation(float(values.sum() + share * beside), gradient, information)

    def thinned(self, count: int) -> _Stage:
        """Return the stage of so many of its terms, evenly chosen."""
        assert self.sets is not None
        size = min(count, self.num_terms)
        chosen = np.linspace(0, self.num_terms - 1, size).astype(np.int64)
        return replace(self, positions=self.positions[chosen], sets=self.sets.part(chosen))

    def gradients(self, vector: Array) -> Array:
        """Return the gradient of each term, (n, p)."""
        return self._terms(vector)[1]

    def _terms(self, vector: Array):
        assert self.sets is not None
        kernel = unpack(self.kernel, self.slots, vector[:-1])
        return terms(kernel, float(np.exp(vector[-1])), self.sets, self.fitter._threads)
