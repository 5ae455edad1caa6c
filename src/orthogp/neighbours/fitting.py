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

from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import PrecisionError
from orthogp.exact.pairs import MergedRows
from orthogp.exact.process import ExactObjective
from orthogp.features.series import MeanPrior
from orthogp.inference.bounds import Bound, Certificate
from orthogp.inference.parameters import (
    Slot,
    learned_slots,
    pack,
    scale_entries,
    unpack,
    with_lengthscale_per_column,
)
from orthogp.inference.predictive import Gaussian
from orthogp.kernels import Kernel, RationalQuadratic
from orthogp.kernels.stationary import Radial
from orthogp.learning.limits import per_lengthscale
from orthogp.learning.optimise import Ascent, Budget, Evaluation, ascend, curvature_at
from orthogp.learning.problem import Fit, FitSettings, Progress, Start
from orthogp.learning.starts import fitted_lengths, with_variance
from orthogp.neighbours.conditionals import Sets, Terms, innovations, terms
from orthogp.neighbours.nearest import OrderedRows, metric_lengths, widths_of
from orthogp.neighbours.posterior import NeighbourPosterior, Trend
from orthogp.rows import Rows
from orthogp.statistics.nufft import chunks

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

# The numbers of neighbours in learning's stages, by whether there are up to three columns or more.
_NEIGHBOURS = {True: (10, 16, 30), False: (10, 20, 40)}
# The numbers of terms in the first two stages.
_TERMS = (200, 800)
# The fewest terms in the last stage, by whether there are up to three columns or more. Terms in few
# columns are cheap, and under heavy tails 2,000 of them determine the noise variance to 5 % only.
_LAST_TERMS = {True: 10_000, False: 2_000}
# The number of terms that log p(y) is estimated from.
_SCORED_TERMS = 2_000
# The number of terms for each parameter in the last stage: a loss of 5e-4 nats per row.
_TERMS_PER_PARAMETER = 300
# The loss in nats per row above which the sample grows, and the most terms of a sample, by whether
# there are up to three columns or more. Where the kernel is not quite right, predictions from all
# rows lose several times what the mean term does.
_LOSS = {True: 3e-4, False: 1e-3}
_MOST_TERMS = {True: 60_000, False: 20_000}
# The largest number of rows of which all terms are taken.
_ALL_TERMS = 6000
# The number of terms that give the curvature for standard errors.
_CURVATURE_TERMS = 800
# The number of rows at the head of the order whose likelihood counts as a whole, where others take
# turns with their targets: nearest rows alone say little of long lengthscales under much noise.
_HEAD = 1000
# The gain in nats below which such a step is not taken.
_GAIN = 0.05
# The number of rows at the head of the order that the mean function is learned from.
_TREND_ROWS = 4000
# The same of the effects of covariates, once the hyperparameters are learned: neighbouring rows say
# most about covariates that vary from row to row.
_EFFECT_ROWS = 100_000
# The number of these rows that are looked at together, which bounds memory.
_TREND_BLOCK = 20_000
# The numbers of neighbours that are tried for predictions.
_PREDICTED = (32, 64, 128, 256)
# The number of neighbours that predictions usually take.
_USUAL = 64
# The nats per row that the usual number of neighbours must be worth.
_SAME = 0.003
# The relative change of sds by twice as many neighbours above which as many are taken.
_LOOSE = 0.1
# The nats per row that variances which agree with left-out rows must be worth: sds off by a third.
_MISFIT = 0.05
# The number of left-out rows that decide on the number of neighbours.
_CHECKED = 500
# The change of the kernel's metric, as a factor, at which neighbours are found anew.
_MOVED = 1.15
# The rank of the neighbour whose distance is the unit of short lengthscales to start from.
_NEIGHBOUR = 10
# Short lengthscales to start from, in distances to that neighbour.
_SHORT = (1.0, 6.0)
# Long lengthscales to start from, in standard deviations of the columns.
_LONG = (0.5, 3.0)
# The shares of the variance that are noise to start from.
_SHARES = (0.5, 0.05, 1e-3)
# The limits of the noise variance, for targets of variance one.
_NOISE_LIMITS = (1e-13, 1e3)
# The limits of other parameters.
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
    squares : (n,)
        The rows' squared distances from their predictions, relative to the predictive variances.
    """

    mean_change: float
    sd_change: float
    squares: Array


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
    """

    def __init__(
        self,
        rows: MergedRows,
        mean: MeanPrior,
        settings: FitSettings,
        num_threads: int = 1,
        seed: int = 0,
    ) -> None:
        self._rows = rows
        self._mean = mean
        self._settings = settings
        self._threads = num_threads
        self._rng = np.random.default_rng(seed)
        self._order = self._rng.permutation(len(rows.X))
        self._mean_columns = mean.features(rows.X)[self._order]
        # The rows as the kernel sees them.
        self._seen = rows._replace(X=mean.inputs(rows.X))
        self._X = self._seen.X[self._order]
        # Distances keep their digits where inputs are far from zero.
        self._origin = self._X.mean(axis=0)
        self._centred = self._X - self._origin
        self._width = widths_of(self._X)
        self._lengths: Array | None = None
        self._found: OrderedRows | None = None
        self._held = False
        self._head: tuple[Array, Indices] | None = None
        self._progress = Progress()
        self._few = few = self._X.shape[1] <= 3
        self._counts = tuple(min(m, max(len(self._X) - 1, 1)) for m in _NEIGHBOURS[few])

    def starts(self, kernel: Kernel) -> list[Start]:
        """Return starts for a kernel whose values are not known, with targets of variance one."""
        num_dims, distances = self._X.shape[1], self._distances[:, -1]
        near = float(np.median(distances[distances > 0])) if np.any(distances > 0) else 1.0
        template = with_lengthscale_per_column(kernel, num_dims)
        lengths = sorted({*(f * near for f in _SHORT), *(f * np.sqrt(num_dims) for f in _LONG)})
        starts = []
        for shape, length in enumerate(lengths):
            shaped = template.with_primitives(
                primitive.with_parameters(
                    lengthscale=fitted_lengths(
                        (length * self._sd)[list(range(num_dims) if dims is None else dims)],
                        primitive,
                    )
                )
                if "lengthscale" in set(primitive.parameters()) - set(primitive.fixed)
                else primitive
                for primitive, dims in template.primitives()
            )
            if isinstance(shaped, RationalQuadratic):
                shaped = shaped.with_parameters(alpha=np.asarray(2.0))
            starts += [Start(with_variance(shaped, 1.0), share, shape) for share in _SHARES]
        return starts

    @cached_property
    def _sd(self) -> Array:
        """The standard deviation of each column, one where it is zero, (d,)."""
        sd = self._X.std(axis=0)
        return np.where(sd > 0, sd, 1.0)

    @cached_property
    def _distances(self) -> Array:
        """Distances of some rows to the nearest ones, in standard deviations, themselves first."""
        X = self._seen.X
        few = (X[:: max(1, len(X) // 300)] - self._origin) / self._sd
        return self._near(self._sd).first(len(X)).query(few, _NEIGHBOUR + 1)[0]

    # ------------------------------------------------------------------ learning

    def fit(self, starts: list[Start]) -> Fit:
        """Return the fit from the best of some starting values."""
        with self._progress:
            return self._fit(starts)

    def _fit(self, starts: list[Start]) -> Fit:
        learned = Learned(starts[0], np.empty(0), converged=True, num_evaluations=0)
        if self._settings.learn:
            learned = self.learn(starts)
        return self.finished(learned)

    def finished(self, learned: Learned) -> Fit:
        """Return the fit of some hyperparameters."""
        self._progress.say("predicting rows that are left out")
        best = learned.start
        value = self._log_likelihood(best)
        posterior, check = self._checked(self.posterior(best))
        factor = self._misfit(best, check) if learned.standard_errors.size else 1.0
        if factor != 1.0:
            noise_variance = factor * best.noise_variance
            best = replace(best, kernel=best.kernel.scaled(factor), noise_variance=noise_variance)
            posterior = self.posterior(best).with_neighbours(posterior.num_neighbours)
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
            status=self._status(learned.converged, check, factor),
            converged=learned.converged,
            num_evaluations=learned.num_evaluations,
            rows=len(self._X) + self._rows.surplus,
            posterior=lambda domain, num_threads: posterior,
            num_features=posterior.num_rows,
            check=check,
            standard_errors=learned.standard_errors,
        )

    def learn(self, starts: list[Start]) -> Learned:
        """Return the hyperparameters with the largest sum of sampled conditionals."""
        kernel = starts[0].kernel
        slots = learned_slots(kernel)
        limits = self._limits(kernel, slots)
        vectors = [
            np.append(pack(start.kernel, slots), np.log(start.noise_variance)).clip(*limits)
            for start in starts
        ]
        first = self._stage(kernel, _TERMS[0], self._counts[0])
        scored = sorted(
            ((first.at(vector)(vector)[0], i) for i, vector in enumerate(vectors)), reverse=True
        )
        evaluations = len(vectors)
        tried = _distinct([vectors[i] for _, i in scored])
        summits: list[Ascent] = []
        for number, vector in enumerate(tried, start=1):
            self._progress.say(f"learning from neighbours: start {number} of {len(tried)}")
            summits.append(self._search(first.at(vector), vector, limits, tolerance=0.5, most=25))
        summits.sort(key=lambda summit: -summit.at.value)
        # The best two basins on more terms.
        second: list[tuple[float, Ascent]] = []
        for summit in summits[:2]:
            if summit.at.value >= summits[0].at.value - 40:
                stage = self._stage(kernel, _TERMS[1], self._counts[1]).at(summit.x)
                found = self._search(stage, summit.x, limits, tolerance=0.2, most=30)
                second.append((found.at.value / stage.num_terms, found))
        evaluations += sum(found.num_evaluations for found in summits)
        evaluations += sum(found.num_evaluations for _, found in second)
        x = max(second, key=lambda item: item[0])[1].x
        allowed, most = _LOSS[self._few], min(len(self._X), _MOST_TERMS[self._few])
        count = max(_LAST_TERMS[self._few], _TERMS_PER_PARAMETER * len(x))
        while True:
            count = min(count, len(self._X))
            if len(self._X) <= max(count / 0.4, _ALL_TERMS):
                count = len(self._X)
            self._progress.say(f"learning from neighbours: {count:,} of {len(self._X):,} rows")
            stage = self._stage(kernel, count, self._counts[2])
            rounds = 3
            while True:
                # The same terms, with neighbours anew as long as the metric moves.
                stage = stage.at(x)
                found = self._search(stage, x, limits, tolerance=0.1, most=30)
                evaluations += found.num_evaluations
                before, x = x, found.x
                rounds -= 1
                near = np.max(np.abs(x - before)[:-1], initial=0.0) < 0.15
                if near or rounds == 0 or self._settings.late():
                    break
            errors, loss = self._errors(stage, x, limits)
            if loss < allowed or count >= most or self._settings.late():
                break
            count = min(int(1.3 * count * loss / allowed) + 1, most, 4 * count)
        best = Start(unpack(kernel, slots, x[:-1]), float(np.exp(x[-1])))
        return Learned(best, errors, found.converged, evaluations)

    # ------------------------------------------------------------------ other targets

    @property
    def settings(self) -> FitSettings:
        """How to fit."""
        return self._settings

    def with_targets(self, y: Array, weights: Array, *, held: bool = False) -> NeighbourFitter:
        """Return the fitter of the same inputs with other targets and weights.

        With the neighbours of terms held as they are, if that is asked for.
        """
        other = copy(self)
        other._held = held
        other._rows = self._rows._replace(y=y, weights=weights)
        other._seen = self._seen._replace(y=y, weights=weights)
        return other

    def last_stage(self, kernel: Kernel) -> Stage:
        """Return the objective that learning ends with, of as many terms as usual."""
        slots = learned_slots(kernel)
        count = max(_LAST_TERMS[self._few], _TERMS_PER_PARAMETER * len(slots))
        whole = len(self._X) <= max(count / 0.4, _ALL_TERMS)
        return self._stage(kernel, len(self._X) if whole else count, self._counts[2])

    def climbed(self, stage: Stage, start: Start) -> tuple[Start, float]:
        """Return where an ascent ends on a stage's terms and the head's likelihood.

        With the present targets; and the largest change of the hyperparameters' logarithms.
        """
        slots, head = stage.slots, self._order[:_HEAD]
        x = np.append(pack(start.kernel, slots), np.log(start.noise_variance))
        own = replace(stage, fitter=self).at(x)
        rows = Rows(self._rows.X[head], self._rows.y[head], self._rows.weights[head])
        exact = ExactObjective(
            stage.kernel, self._mean, rows, repeats=False, num_threads=self._threads
        )

        def evaluate(vector: Array) -> Evaluation | None:
            try:
                joint = exact.evaluate(vector)
            except PrecisionError:
                return None
            few = own.evaluate(vector)
            gradient, information = few.gradient + joint.gradient, few.information
            return Evaluation(few.value + joint.value, gradient, information + joint.information)

        limits = self._limits(stage.kernel, slots)
        found = ascend(evaluate, x, limits, Budget(10, self._settings.late, _GAIN))
        if found is None:
            return start, 0.0
        kernel = unpack(stage.kernel, slots, found.x[:-1])
        change = float(np.max(np.abs(found.x - x), initial=0.0))
        return replace(start, kernel=kernel), change

    # ------------------------------------------------------------------ terms

    def _stage(self, kernel: Kernel, count: int, m: int) -> Stage:
        """Return the objective of `count` terms, without neighbours as yet."""
        return Stage(self, kernel, learned_slots(kernel), self._positions(count), m)

    def _positions(self, count: int) -> Indices:
        """Return positions drawn evenly over the order, all of them if there are no more."""
        total = len(self._X)
        if count >= total:
            return np.arange(total)
        edges = np.linspace(0, total, count + 1)
        return np.minimum(
            (edges[:-1] + self._rng.random(count) * np.diff(edges)), total - 1
        ).astype(np.int64)

    def _search(
        self, stage: Stage, x: Array, limits: tuple[Array, Array], *, tolerance: float, most: int
    ) -> Ascent:
        """Return the maximum near x, by steps with the expected information."""
        budget = Budget(most, self._settings.late, tolerance)
        found = ascend(stage.evaluate, x, limits, budget)
        assert found is not None
        return found

    def _errors(self, stage: Stage, x: Array, limits: tuple[Array, Array]) -> tuple[Array, float]:
        """Return standard errors of the parameters, and what the sample loses per row."""
        (lower, upper), gradients = limits, stage.terms(x).gradients
        free = (x > lower + 1e-3) & (x < upper - 1e-3)
        errors = np.zeros(len(x))
        if not free.any():
            return errors, 0.0
        # The curvature is needed to some percent only: some of the terms give it.
        some = stage.thinned(_CURVATURE_TERMS)
        ratio = len(gradients) / some.num_terms
        H = ratio * curvature_at(some, x, some(x)[1], *limits)[np.ix_(free, free)]
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
        nearest = self._distances[:, min(1, self._distances.shape[1] - 1)]
        spacing = float(np.median(nearest[nearest > 0])) if np.any(nearest > 0) else 1.0
        shortest = 1e-2 * spacing * self._sd / np.sqrt(self._X.shape[1])
        primitives = list(kernel.primitives())
        lower, upper = [], []
        values = np.split(pack(kernel, slots), np.cumsum([slot.size for slot in slots])[:-1])
        for slot, logs in zip(slots, values, strict=True) if slots else ():
            if slot.name == "lengthscale":
                primitive, dims = primitives[slot.primitive]
                columns = list(range(len(shortest)) if dims is None else dims)
                low, high = np.log(shortest[columns]), np.log(1e3 * self._width[columns])
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
        unit = self._settings.noise_unit
        lower.append(np.log([unit * _NOISE_LIMITS[0]]))
        upper.append(np.log([unit * _NOISE_LIMITS[1]]))
        limits = np.concatenate(lower), np.concatenate(upper)
        return self._settings.beliefs.within(slots, limits)

    # ------------------------------------------------------------------ neighbours and the mean

    def _near(self, lengths: Array) -> OrderedRows:
        """Return what finds nearest rows, with distances in units of these lengths or similar."""
        held = self._held and self._found is not None
        if not held and (self._lengths is None or _moved(self._lengths, lengths)):
            self._lengths = lengths
            self._found = OrderedRows(self._centred / lengths, self._threads)
        assert self._found is not None
        return self._found

    def _gather(self, positions: Indices, neighbours: Indices) -> tuple[Sets, Array]:
        """Return rows with their neighbours, and the mean function's columns (n, m+1, q)."""
        whole = np.concatenate([neighbours, positions[:, None]], axis=1)
        there = whole >= 0
        columns = self._mean_columns[whole]
        sets = Sets.gather(self._seen, np.where(there, self._order[whole], -1))
        return sets, np.where(there[:, :, None], columns, 0.0)

    def sets(
        self, kernel: Kernel, positions: Indices, m: int, coefficients: Array | None = None
    ) -> Sets:
        """Return rows with their neighbours, their targets less the mean function."""
        found = self._near(metric_lengths(kernel, self._width)).query(positions, m)
        sets, columns = self._gather(positions, found)
        trend = 0.0 if coefficients is None else columns @ coefficients
        return Sets(sets.X, sets.y - trend, sets.noise, sets.there)

    def trend(self, kernel: Kernel, noise_variance: float, m: int | None = None) -> Trend:
        """Return the mean function's coefficients by generalised least squares.

        Of the rows at the head of the order; of many more without m, if there are covariates.
        """
        p, q = self._rows.y.shape[1], self._mean_columns.shape[1]
        if q == 0:
            return Trend(np.zeros((0, p)), np.zeros((0, 0)), self._mean)
        most = _EFFECT_ROWS if m is None and self._mean.num_covariates else _TREND_ROWS
        head = np.arange(min(len(self._X), most))
        m = min(self._counts[-1] if m is None else m, max(len(head) - 1, 1))
        lengths, known = metric_lengths(kernel, self._width), self._head
        if known is None or known[1].shape != (len(head), m) or _moved(known[0], lengths):
            found = OrderedRows(self._centred[head] / lengths, self._threads)
            self._head = known = lengths, found.query(head, m)
        precision, projection = np.eye(q), np.zeros((q, p))
        for part in chunks(len(head), _TREND_BLOCK):
            sets, columns = self._gather(head[part], known[1][part])
            both = np.concatenate([columns, sets.y], axis=2)
            new, variance = innovations(kernel, noise_variance, sets, both, self._threads)
            weighted = new[:, :q] / variance[:, None]
            precision += weighted.T @ new[:, :q]
            projection += weighted.T @ new[:, q:]
        covariance = np.asarray(np.linalg.inv(precision), dtype=np.float64)
        return Trend(covariance @ projection, covariance, self._mean)

    # ------------------------------------------------------------------ what a fit gives

    def posterior(self, start: Start) -> NeighbourPosterior:
        """Return the posterior of some hyperparameters."""
        model = start.kernel, start.noise_variance
        return NeighbourPosterior(*model, self._rows, self.trend(*model), _USUAL, self._threads)

    def _log_likelihood(self, start: Start) -> float:
        """Return an estimate of log p(y) from a sample of terms."""
        positions = self._positions(_SCORED_TERMS)
        trend = self.trend(start.kernel, start.noise_variance)
        sets = self.sets(start.kernel, positions, self._counts[-1], trend.coefficients)
        kernel = start.kernel.fix() if learned_slots(start.kernel) else start.kernel
        values = terms(kernel, start.noise_variance, sets, self._threads).values
        mean_part = 0.0
        if len(trend.covariance):
            # The mean function integrated out: Laplace's formula is exact for Gaussians.
            p = self._rows.y.shape[1]
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
        found, densities, squares = {}, {}, {}
        for count in counts:
            found[count] = posterior.with_neighbours(count).predict_left_out(chosen)
            mean, variance = found[count].mean, found[count].variance + noise
            squares[count] = np.mean((y - mean) ** 2, axis=1) / variance
            densities[count] = -0.5 * (np.log(variance) + squares[count])
            if self._settings.late():
                break
        enough = min(densities, key=lambda count: abs(count - _USUAL))
        # The more neighbours, the dearer a prediction, and the more they must be worth.
        prices = {count: _SAME * count / _USUAL for count in densities}
        best = max(densities, key=lambda count: float(np.mean(densities[count])) - prices[count])
        gain = densities[best] - densities[enough]
        if np.mean(gain) > max(prices[best], np.std(gain) / np.sqrt(size)):
            enough = best
        checks: dict[int, Check] = {}
        while True:
            if enough >= most:
                check = Check(0.0, 0.0, squares[enough])
                return posterior.with_neighbours(len(self._rows.X)), check
            twice = min(2 * enough, most)
            if twice not in found:
                found[twice] = posterior.with_neighbours(twice).predict_left_out(chosen)
            checks[enough] = _change(found[enough], found[twice], squares[enough])
            worse = twice not in densities or np.mean(densities[twice] - densities[enough]) < -_SAME
            if checks[enough].sd_change < _LOOSE or worse:
                break
            # Variances are to be right where more rows do not predict worse.
            enough = twice
        # More rows are not worth their price where they bring variances no closer.
        least = min(check.sd_change for check in checks.values())
        enough = min(
            count for count, check in checks.items() if check.sd_change <= max(1.1 * least, _LOOSE)
        )
        return posterior.with_neighbours(enough), checks[enough]

    def _misfit(self, best: Start, check: Check) -> float:
        """Return what all variances are to be multiplied by for left-out rows to agree with them.

        A kernel that is rougher than the function has a likelihood that far rows decide, where they
        are apart; between near ones its variances are too large.
        """
        square = float(np.mean(check.squares))
        error = float(np.std(check.squares)) / np.sqrt(len(check.squares))
        gain = 0.5 * (square - 1 - np.log(square)) if square > 0 else 0.0
        # A variance that is fixed holds all others.
        held = scale_entries(best.kernel, learned_slots(best.kernel)) is None
        held |= self._settings.beliefs.about_scale
        return 1.0 if held or gain < _MISFIT or abs(square - 1) < 3 * error else square

    def _status(self, converged: bool, check: Check, factor: float) -> str:
        parts = [
            f"Twice as many neighbours would move means by {check.mean_change:.2g} posterior sd "
            f"and sds by {100 * check.sd_change:.2g} % (root mean square)."
        ]
        if factor != 1.0:
            parts.append(
                f"Rows that are left out lie {np.sqrt(factor):.2g} times as far from their "
                f"predictions as the likelihood's sds say, so all variances were multiplied by "
                f"{factor:.2g}."
            )
        if self._settings.late():
            parts.append("The time ran out: raise max_seconds to go on learning.")
        elif not converged:
            parts.append("Learning stopped before it settled.")
        return " ".join(parts)


def _change(few: Gaussian, many: Gaussian, squares: Array) -> Check:
    """Return what the predictions from many neighbours change."""
    sd = np.sqrt(many.variance)
    means = np.sqrt(np.mean((many.mean - few.mean) ** 2 / sd[:, None] ** 2))
    sds = np.sqrt(np.mean((np.sqrt(few.variance) / sd - 1) ** 2))
    return Check(float(means), float(sds), squares)


def _moved(known: Array, lengths: Array) -> bool:
    """Return whether neighbours are to be found anew."""
    # Distances that all grow by one factor leave neighbours as they are.
    ratios = lengths / known
    return bool(ratios.max() > _MOVED * ratios.min())


class Learned(NamedTuple):
    """Hyperparameters, their standard errors, and how they were found."""

    start: Start
    standard_errors: Array
    converged: bool
    num_evaluations: int


def _distinct(vectors: list[Array], most: int = 4) -> list[Array]:
    """Return the first vectors that differ from each other."""
    chosen: list[Array] = []
    for vector in vectors:
        if all(np.max(np.abs(vector - other)) > 0.7 for other in chosen):
            chosen.append(vector)
    return chosen[:most]


@dataclass(frozen=True)
class Stage:
    """The sum of some conditionals as a function of log hyperparameters."""

    fitter: NeighbourFitter
    kernel: Kernel
    slots: tuple[Slot, ...]
    positions: Indices
    num_neighbours: int
    sets: Sets | None = None

    @property
    def num_terms(self) -> int:
        """The number of terms."""
        return len(self.positions)

    def at(self, vector: Array) -> Stage:
        """Return the stage with neighbours and mean function for some hyperparameters."""
        kernel, noise_variance = self._model(vector)
        trend = self.fitter.trend(kernel, noise_variance, m=self.num_neighbours)
        sets = self.fitter.sets(kernel, self.positions, self.num_neighbours, trend.coefficients)
        return replace(self, sets=sets)

    def __call__(self, vector: Array) -> tuple[float, Array]:
        """Return the sum and its gradient."""
        found = self.evaluate(vector)
        return found.value, found.gradient

    def evaluate(self, vector: Array) -> Evaluation:
        """Return the sum with the log prior, its gradient and its expected information."""
        values, gradients, information = self.terms(vector)
        beside, slope = self.fitter._rows.beside(float(np.exp(vector[-1])))
        share = self.num_terms / len(self.fitter._X)
        gradient = gradients.sum(axis=0)
        gradient[-1] += share * slope
        # Of what merging took out: half of each Gaussian factor.
        information[-1, -1] += share * self.fitter._rows.surplus / 2
        found = Evaluation(float(values.sum() + share * beside), gradient, information)
        prior = self.fitter._settings.beliefs.log_prior(self.slots, vector)
        return found.with_prior(prior, share)

    def thinned(self, count: int) -> Stage:
        """Return the stage of so many of its terms, evenly chosen."""
        assert self.sets is not None
        size = min(count, self.num_terms)
        chosen = np.linspace(0, self.num_terms - 1, size).astype(np.int64)
        return replace(self, positions=self.positions[chosen], sets=self.sets.part(chosen))

    def terms(self, vector: Array) -> Terms:
        """Return the terms, their gradients, and their information."""
        assert self.sets is not None
        return terms(*self._model(vector), self.sets, self.fitter._threads)

    def _model(self, vector: Array) -> tuple[Kernel, float]:
        return unpack(self.kernel, self.slots, vector[:-1]), float(np.exp(vector[-1]))
