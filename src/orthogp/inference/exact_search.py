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
from orthogp.features import MeanPrior
from orthogp.inference.ascent import Ascent, Evaluation, ascend
from orthogp.inference.exact import ExactObjective, Solution
from orthogp.inference.family_fit import FamilyRows
from orthogp.inference.limits import NOISE_FLOOR, row_limits
from orthogp.inference.parameters import pack
from orthogp.inference.settings import FitSettings, Start
from orthogp.inference.threads import BlasThreads

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
_SETTLED, _SETTLED_PART, _SETTLED_MANY = 1e-4, 1e-2, 5e-2
# The last step, taken without looking back, is not worth a factorisation if it promises less.
_NEGLIGIBLE = 1e-2
# Starts whose values differ by less are the same: lengthscales so short that all rows are apart.
_SAME = 0.02
# Summits of a part that are so many nats below the highest may be the highest of all rows.
_DOUBT = 10.0
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
    rows : FamilyRows
        With standardised targets.
    """

    def __init__(
        self, rows: FamilyRows, mean: MeanPrior, settings: FitSettings, threads: BlasThreads
    ) -> None:
        there = np.arange(len(rows.X))
        if rows.weights is not None:
            there = np.flatnonzero(rows.weights > 0)
        self._rows = _take(rows, there)
        self._mean = mean
        self._settings = settings
        self._threads = threads

    def run(self, starts: list[Start]) -> Found:
        """Return the best hyperparameters found."""
        X = self._rows.X
        sizes = [size for size in _PARTS if len(X) > _FEW_ROWS and size < _SHARE * len(X)]
        parts = [_take(self._rows, _choose_rows(X, size)) for size in sizes]
        stages = [self._stage(starts[0], part) for part in (*parts, self._rows)]
        limits = row_limits(starts[0].kernel, stages[0].objective.slots, X, NOISE_FLOOR)
        summits = self._explore(stages[0], starts, limits)
        for stage in stages[1:]:
            summits = self._go_on(stage, summits, limits)
        top, objective = summits[0], stages[-1].objective
        onwards = top.converged and top.promised > _NEGLIGIBLE
        return Found(
            best=_as_start(objective, top.x),
            value=top.at.value,
            solution=objective.solution_at(top.x),
            beyond=_as_start(objective, np.clip(top.x + top.step, *limits)) if onwards else None,
            converged=top.converged,
            num_evaluations=sum(stage.num_evaluations for stage in stages),
        )

    def _explore(
        self, stage: _Stage, starts: list[Start], limits: tuple[Vector, Vector]
    ) -> list[Ascent]:
        """Return the summits found from the best starts of different shapes, the highest first."""
        vectors = [np.clip(_as_vector(stage.objective, start), *limits) for start in starts]
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
            known = any(abs(summit.at.value - other.at.value) < _SAME for other in doubtful)
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
            )
            found += [] if climbed is None else [climbed]
        return sorted(found, key=lambda summit: -summit.at.value)

    def _climb(
        self, stage: _Stage, start: Vector, limits: tuple[Vector, Vector], **options: Any
    ) -> Ascent | None:
        return ascend(
            stage.evaluate,
            start,
            *limits,
            max_evaluations=_MOST_EVALUATIONS,
            out_of_time=self._settings.late,
            **options,
        )

    def _stage(self, start: Start, rows: FamilyRows) -> _Stage:
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
    """The likelihood of some rows, counting how often it is evaluated."""

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
            with self._threads.limited(self.size, _MANY_ROWS if self.whole else _PARTS[-1]):
                return self.objective.value(x)
        except PrecisionError:
            return -np.inf

    def evaluate(self, x: Vector) -> Evaluation | None:
        """Return log p(y) with derivatives, or `None` beyond double precision."""
        self.num_evaluations += 1
        try:
            with self._threads.limited(self.size, _MANY_ROWS if self.whole else _PARTS[-1]):
                return self.objective.evaluate(x)
        except PrecisionError:
            return None


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


def _take(rows: FamilyRows, chosen: NDArray[np.int64]) -> FamilyRows:
    weights = None if rows.weights is None else rows.weights[chosen]
    return FamilyRows(np.asarray(rows.X[chosen], dtype=np.float64), rows.y[chosen], weights)


def _as_vector(objective: ExactObjective, start: Start) -> Vector:
    return np.append(pack(start.kernel, objective.slots), np.log(start.noise_variance))


def _as_start(objective: ExactObjective, x: Vector) -> Start:
    return Start(objective.kernel_at(x), float(np.exp(x[-1])))
