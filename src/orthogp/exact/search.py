"""The search for the hyperparameters of an exact GP: on some of the rows, on more, on all.

The likelihoods of many starts are compared on a part of the rows, and the best of different shapes
climbed. From the summits found there it goes on with more rows, and with all, where two or three
evaluations are left to do: steps by the average information do not need to learn the curvature.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import PrecisionError
from orthogp.exact.process import ExactObjective, Solution
from orthogp.features import MeanPrior
from orthogp.inference.parameters import pack
from orthogp.inference.threads import BlasThreads, one_thread
from orthogp.learning.ascent import Ascent, Evaluation, ascend
from orthogp.learning.limits import NOISE_FLOOR, row_limits
from orthogp.learning.problem import FitSettings, Start
from orthogp.rows import Rows

Vector = NDArray[np.float64]

# Up to so many rows all are used from the beginning; of more, parts of these sizes come first, if
# they are smaller than this share of the rows.
_FEW_ROWS, _PARTS, _SHARE = 512, (256, 768), 0.6
# Of a part, half are neighbours of so many rows: they know the noise, and what is short.
_CENTRES = 4
# How many starts are climbed from, by number of rows: fewer rows have more summits, and cost less.
_CLIMBS = ((150, 7), (300, 5), (_FEW_ROWS, 4))
_MOST_EVALUATIONS = 80
# A step that promises fewer nats is not taken: with few rows, with part of them, with many.
_SETTLED, _SETTLED_PART, _SETTLED_MANY = 1e-4, 5e-2, 0.5
# The last step, taken without looking back, is not worth a factorisation if it promises less.
_NEGLIGIBLE = 1e-2
# Starts whose values differ by less are the same: lengthscales so short that all rows are apart.
_SAME = 0.02
# Summits of a part that are so many nats below the highest may be the highest of all rows.
_DOUBT = 10.0
# The largest Σw k(0)/σ² that double precision resolves, as a rule, and the largest σ²/k(0).
_RESOLVED, _MOST_NOISE = 3e14, 1e9
# How often the noise is raised where rounding has reached it all the same.
_RAISES = 8
# From so many rows on several threads may be faster than one.
_MANY_ROWS = 1024


class Found(NamedTuple):
    """Where a search has come to.

    Attributes
    ----------
    best, value
        The best hyperparameters seen, and log p(y).
    solution : Solution or None
        What was factorised there, if it is at hand.
    beyond : Start or None
        Where the next step would lead, if it promises anything to speak of.
    """

    best: Start
    value: float
    solution: Solution | None
    beyond: Start | None
    converged: bool
    num_evaluations: int


class ExactSearch:
    """Looks for the largest log marginal likelihood.

    Parameters
    ----------
    rows : Rows
        With standardised targets.
    """

    def __init__(
        self, rows: Rows, mean: MeanPrior, settings: FitSettings, threads: BlasThreads
    ) -> None:
        there = np.arange(len(rows.X))
        if rows.weights is not None:
            there = np.flatnonzero(rows.weights > 0)
        self._rows = _take(rows, there)
        self._mean = mean
        self._settings = settings
        self._threads = threads

    def run(self, starts: list[Start], *, few: bool = False) -> Found:
        """Return the best hyperparameters found.

        Parameters
        ----------
        few : bool
            Whether to end with a part of the rows, if there are many: for other models to go on.
        """
        X = self._rows.X
        sizes = [size for size in _PARTS if len(X) > _FEW_ROWS and size < _SHARE * len(X)]
        parts = [_take(self._rows, _choose_rows(X, size)) for size in sizes]
        if not (few and len(sizes) == len(_PARTS)):
            parts.append(self._rows)
        stages = [self._stage(starts[0], part) for part in parts]
        limits = row_limits(starts[0].kernel, stages[0].objective.slots, X, NOISE_FLOOR)
        limits[0][-1] = np.log(stages[-1].objective.total_weight / _RESOLVED)
        limits[1][-1] = np.log(_MOST_NOISE)
        # What is small between the evaluations, or is not theirs, gets one thread.
        with one_thread():
            summits = self._explore(stages[0], starts, limits)
            for stage in stages[1:]:
                summits = self._go_on(stage, summits, limits)
        top, last = summits[0], stages[-1]
        onwards = top.converged and top.promised > _NEGLIGIBLE
        return Found(
            best=last.start_of(top.x),
            value=top.at.value,
            solution=last.objective.solution_at(last.vector(top.x)),
            beyond=last.start_of(np.clip(top.x + top.step, *limits)) if onwards else None,
            converged=top.converged,
            num_evaluations=sum(stage.num_evaluations for stage in stages),
        )

    def _explore(
        self, stage: _Stage, starts: list[Start], limits: tuple[Vector, Vector]
    ) -> list[Ascent]:
        """Return the summits found from the best starts of different shapes, the highest first."""
        vectors = [np.clip(stage.x_of(start), *limits) for start in starts]
        # Starts that differ in nothing that is learned, or beyond the limits only, are the same.
        known: dict[bytes, float] = {}
        for vector in vectors:
            if vector.tobytes() not in known:
                known[vector.tobytes()] = stage.value(vector)
        values = [known[vector.tobytes()] for vector in vectors]
        number = next((n for rows, n in _CLIMBS if stage.size <= rows), _CLIMBS[-1][1])
        summits: list[Ascent] = []

        def joins(x: Vector, at: Evaluation) -> bool:
            return any(_joins(x, at, summit) for summit in summits)

        for i in choose_starts(starts, values, number):
            found = self._climb(
                stage,
                vectors[i],
                limits,
                tolerance=_SETTLED if stage.whole else _SETTLED_PART,
                abandon=joins,
            )
            summits += [] if found is None else [found]
        if not summits:
            raise PrecisionError(
                "No noise variance resolves these data in double precision: rescale the targets."
            )
        return sorted(summits, key=lambda summit: -summit.at.value)

    def _go_on(
        self, stage: _Stage, summits: list[Ascent], limits: tuple[Vector, Vector]
    ) -> list[Ascent]:
        """Return the summits of more rows near those of fewer, the highest first."""
        doubtful: list[Ascent] = []
        for summit in summits:
            known = any(_are_one(summit, other) for other in doubtful)
            if summit.at.value > summits[0].at.value - _DOUBT and not known:
                doubtful.append(summit)
        values = [stage.value(s.x) for s in doubtful] if len(doubtful) > 1 else [0.0]
        found: list[Ascent] = []
        for i in np.argsort(values)[::-1]:
            # On all rows another summit is climbed only if it begins higher than the first ended.
            if len(found) == 2 or (found and stage.whole and values[i] < found[0].at.value):
                break
            climbed = self._climb(
                stage,
                doubtful[i].x,
                limits,
                tolerance=_SETTLED_MANY if stage.whole else _SETTLED_PART,
                wary=doubtful[i].wary,
            )
            found += [] if climbed is None else [climbed]
        return sorted(found, key=lambda summit: -summit.at.value)

    def _climb(
        self, stage: _Stage, start: Vector, limits: tuple[Vector, Vector], **options: Any
    ) -> Ascent | None:
        lower, upper = limits
        for _ in range(_RAISES):
            first = stage.evaluate(start)
            if first is not None:
                break
            # More rows need more noise to be resolved.
            start = np.clip(np.append(start[:-1], start[-1] + np.log(30)), lower, upper)
        else:
            return None
        return ascend(
            stage.evaluate,
            start,
            lower,
            upper,
            max_evaluations=_MOST_EVALUATIONS,
            out_of_time=self._settings.late,
            first=first,
            **options,
        )

    def _stage(self, start: Start, rows: Rows) -> _Stage:
        objective = ExactObjective(
            start.kernel,
            self._mean,
            rows.X,
            rows.y,
            rows.weights,
            repeats=self._settings.repeats,
            num_threads=self._threads.num_threads if len(rows.X) >= _MANY_ROWS else 1,
        )
        return _Stage(objective, len(rows.X), self._threads, whole=rows is self._rows)


class _Stage:
    r"""The likelihood of some rows, counting how often it is evaluated.

    Its last parameter is η in

        σ² = (ε⁴ + (k(0) e^η)⁴)^¼

    with the smallest noise ε that is believed, whatever the data. It is the ratio e^η that double
    precision limits.
    """

    def __init__(
        self, objective: ExactObjective, size: int, threads: BlasThreads, *, whole: bool
    ) -> None:
        self.objective = objective
        self.size, self.whole = size, whole
        self.num_evaluations = 0
        self._threads = threads

    def value(self, x: Vector) -> float:
        """Return log p(y), or −∞ beyond double precision."""
        self.num_evaluations += 1
        try:
            with self._threads.limited(self.size, self._least):
                return self.objective.value(self.vector(x))
        except PrecisionError:
            return -np.inf

    def evaluate(self, x: Vector) -> Evaluation | None:
        """Return log p(y) with derivatives, or `None` beyond double precision."""
        self.num_evaluations += 1
        try:
            with self._threads.limited(self.size, self._least):
                found = self.objective.evaluate(self.vector(x))
        except PrecisionError:
            return None
        variance, moved = self.objective.prior_variance(x)
        # Of log k(0) e^η, and how much of the noise that is.
        slope = np.append(moved / variance, 1.0)
        share = 1 / (1 + (NOISE_FLOOR / variance) ** 4 * np.exp(-4 * x[-1]))
        J = np.eye(len(x))
        J[-1] = share * slope
        bend = found.bend

        def bent() -> NDArray[np.float64]:
            assert bend is not None
            # As log k(0) bends for a sum of variances.
            of_sum = np.diag(np.append(slope[:-1], 0.0))
            of_sum[:-1, :-1] -= np.outer(slope[:-1], slope[:-1])
            of_noise = share * of_sum + 4 * share * (1 - share) * np.outer(slope, slope)
            return J.T @ bend() @ J + found.gradient[-1] * of_noise

        return Evaluation(
            found.value,
            J.T @ found.gradient,
            J.T @ found.information @ J,
            None if bend is None else bent,
        )

    def vector(self, x: Vector) -> Vector:
        """Return the parameters of the objective, whose last is log σ²."""
        variance, _ = self.objective.prior_variance(x)
        own = np.log(variance) + x[-1]
        return np.append(x[:-1], np.logaddexp(4 * np.log(NOISE_FLOOR), 4 * own) / 4)

    def x_of(self, start: Start) -> Vector:
        """Return where a start lies."""
        x = np.append(pack(start.kernel, self.objective.slots), 0.0)
        x[-1] = np.log(start.noise_variance / self.objective.prior_variance(x)[0])
        return x

    def start_of(self, x: Vector) -> Start:
        """Return what lies at a place."""
        vector = self.vector(x)
        return Start(self.objective.kernel_at(vector), float(np.exp(vector[-1])))

    @property
    def _least(self) -> int:
        # Several threads are tried out on a part.
        return _MANY_ROWS if self.whole else _PARTS[-1]


def choose_starts(starts: list[Start], values: list[float], number: int) -> list[int]:
    """Return the best starts of different shapes, a user's own first."""
    chosen: dict[tuple[int, bool], int] = {}
    for i in np.argsort(values, kind="stable")[::-1].tolist():
        key = (starts[i].shape, starts[i].from_user)
        same = any(abs(values[i] - values[j]) < _SAME for j in chosen.values())
        if key not in chosen and not same and np.isfinite(values[i]):
            chosen[key] = i
    users = [i for i in chosen.values() if starts[i].from_user][:1]
    return list(dict.fromkeys([*users, *list(chosen.values())[:number]]))


def _joins(x: Vector, at: Evaluation, summit: Ascent) -> bool:
    """Return whether a search has come so close to a summit that it will end there."""
    away = x - summit.x
    close = np.max(np.abs(away)) < 1 and away @ summit.at.information @ away < 0.5
    return bool(close and summit.at.value - 1 < at.value < summit.at.value + 1e-3)


def _are_one(one: Ascent, other: Ascent) -> bool:
    """Return whether two searches have ended at the same summit, as far as they went."""
    away = one.x - other.x
    unlike = away @ (one.at.information + other.at.information) @ away
    return bool(unlike < 1 and abs(one.at.value - other.at.value) < 0.3)


def _choose_rows(X: NDArray[np.float64], size: int) -> NDArray[np.int64]:
    """Return a part of the rows: half of them from all over, half neighbours of a few."""
    order = np.random.default_rng(0).permutation(len(X))
    scale = X.std(axis=0)
    scaled = X / np.where(scale > 0, scale, 1.0)
    near = size // (2 * _CENTRES)
    chosen = np.zeros(len(X), dtype=bool)
    for centre in order[:_CENTRES]:
        distance = np.sum((scaled - scaled[centre]) ** 2, axis=1)
        chosen[np.argpartition(distance, near)[:near]] = True
    others = order[~chosen[order]]
    chosen[others[: size - np.count_nonzero(chosen)]] = True
    return np.flatnonzero(chosen)


def _take(rows: Rows, chosen: NDArray[np.int64]) -> Rows:
    weights = None if rows.weights is None else rows.weights[chosen]
    return Rows(np.asarray(rows.X[chosen], dtype=np.float64), rows.y[chosen], weights)
