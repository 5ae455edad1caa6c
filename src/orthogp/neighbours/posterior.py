r"""Predictions from the nearest rows.

Given the rows R nearest to a point x, with K = k(R, R) + noise, k = k(R, x) and w = K⁻¹k, and with
a mean function h(x)ᵀβ whose coefficients have the posterior N(β̂, C),

    mean f(x) = h(x)ᵀβ̂ + wᵀ(y_R − H_R β̂)
    var f(x)  = k(0) − kᵀw + gᵀCg,      g = h(x) − H_Rᵀw

Points close to each other form a group: it looks at all rows that are among the nearest of one of
its points, and K is factorised once for the group. A group sees so many rows that half as many for
each point are enough, where three times as many as of a point alone come together. Jointly, points
come one after the other, each given its nearest rows and its nearest points before it: f = Bf + e
is then a triangular system, for draws as for covariances.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, identity
from scipy.sparse.linalg import spsolve_triangular
from scipy.spatial import KDTree

from orthogp.errors import InputError
from orthogp.exact.pairs import MergedRows
from orthogp.exact.process import slope_variance, slopes
from orthogp.features.base import as_rows, prior_variance
from orthogp.features.series import MeanPrior
from orthogp.inference.predictive import Gaussian, PredictivePosterior
from orthogp.kernels import Kernel
from orthogp.neighbours.conditionals import SetKernel, solve, whiten
from orthogp.neighbours.nearest import NearestRows, OrderedRows, metric_lengths, widths_of
from orthogp.precision import in_threads, one_thread
from orthogp.statistics.nufft import chunks

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

# The smallest variance that double precision resolves, relative to the prior's.
_ROUNDING = 1e-15
# The most points that may share rows, a power of two.
_LARGEST_GROUP = 64
# The numbers of points in a block of queries and of those that a thread groups at a time, which
# bound memory: multiples of the largest group.
_BLOCK = 320 * _LARGEST_GROUP
_SHARE = 32 * _LARGEST_GROUP
# The rows, in numbers of rows of one point, of a group for whose points half of them are enough:
# means and sds are then as close to those from all rows as those of points alone.
_AMPLE = 3
# The number of groups of each size that are tried before all are formed.
_TRIED = 40
# The share of the tried groups that must be cheaper than points alone for the others to be formed.
_FEW_FIT = 0.1
# The nanoseconds of a core that a group takes: for each m³ of its m rows (to factorise), each m²
# (covariances), each m² of a point (to solve), each m of a point, and in any case.
_PRICES = (1 / 135, 4.2, 1 / 30, 3.0, 10_000.0)
# The share of the cost of points alone that a group may have, for it has to be formed too.
_WORTH_SHARING = 0.8
# The number of rows in a leaf of the tree that puts rows in order.
_LEAF = 32
# The step to which numbers of rows are rounded up: groups of equal numbers are solved together.
_STEP = 16
# The number of entries of covariance matrices in a batch: more than a core's cache holds, because
# threads wait for each other at every call from Python.
_ENTRIES = 2**19
# The number of earlier points that a point is conditioned on when points are drawn jointly.
_EARLIER = 40
# The most points for which a joint covariance is formed.
_MOST_JOINT = 5000


class Trend(NamedTuple):
    """The mean function's coefficients (q, p), their covariance (q, q), and their prior."""

    coefficients: Array
    covariance: Array
    prior: MeanPrior


class NeighbourPosterior(PredictivePosterior):
    """The posterior of f at any point, given its nearest rows; see the module's docstring.

    Parameters
    ----------
    kernel, noise_variance
        The model.
    rows : MergedRows
    trend : Trend
    num_neighbours : int
        Rows that a prediction looks at.

    Attributes
    ----------
    lengths : (d,)
        Distances between rows are in units of these.
    """

    def __init__(
        self,
        kernel: Kernel,
        noise_variance: float,
        rows: MergedRows,
        trend: Trend,
        num_neighbours: int,
        num_threads: int = 1,
    ) -> None:
        self.kernel = kernel
        self.noise_variance = float(noise_variance)
        self.prior_variance = prior_variance(kernel)
        self.residual = 0.0
        self.rows = rows
        self.trend = trend
        self.num_neighbours = min(int(num_neighbours), len(rows.X))
        self._threads = num_threads
        inputs = trend.prior.inputs(rows.X)
        self._within = SetKernel(kernel, inputs.shape[1])
        self.lengths = metric_lengths(kernel, widths_of(inputs))
        self._origin = inputs.mean(axis=0)
        # All that a prediction needs of a row is fetched at once, and rows that are near each other
        # lie near each other in memory.
        columns = trend.prior.features(rows.X)
        parts = (
            inputs,
            (self.noise_variance / rows.weights)[:, None],
            rows.y - columns @ trend.coefficients,
            columns,
        )
        self._table = np.concatenate(parts, axis=1)[_in_leaves(self._scaled(inputs))]
        edges = np.cumsum([part.shape[1] for part in parts])[:-1]
        self._X, noise, self._centred, self._mean_columns = np.split(self._table, edges, axis=1)
        self._noise = noise[:, 0]
        self._nearest = NearestRows(self._scaled(self._X), num_threads)

    @property
    def num_rows(self) -> int:
        """The number of rows of different inputs."""
        return len(self.rows.X)

    def _scaled(self, inputs: Array) -> Array:
        """Return points where distances are looked for, less the rows' mean: it costs digits."""
        return (inputs - self._origin) / self.lengths

    def with_neighbours(self, count: int) -> NeighbourPosterior:
        """Return the same posterior with predictions from another number of rows."""
        other = copy(self)
        other.num_neighbours = min(count, len(self.rows.X))
        return other

    # ------------------------------------------------------------------ marginals

    def predict(self, X: NDArray) -> Gaussian:
        """Return mean and variance of f at the rows of X."""
        return self._predict_in_blocks(as_rows(X), self._prior_part)

    def predict_rows(self) -> Gaussian:
        """Return mean and variance of f at all rows."""
        return self.predict(self.rows.X)

    def predict_left_out(self, chosen: Indices) -> Gaussian:
        """Return mean and variance of f at some of the rows, each given the others."""
        return self.predict_without(self.rows.X[chosen])

    def predict_without(self, X: NDArray) -> Gaussian:
        """Return mean and variance of f at the rows of X, from rows with other inputs."""
        X = as_rows(X)
        if self.num_rows == 1:
            return self.predict(X)
        found = self._nearest.query(self._scaled(self._inputs(X)), self.num_neighbours + 1)[1]
        # Equal rows are merged: at most one has the same inputs and mean function's columns, and it
        # is among the nearest.
        own = np.concatenate([self._inputs(X), self.trend.prior.features(X)], axis=1)
        have = np.concatenate([self._X, self._mean_columns], axis=1)
        same = np.all(have[found] == own[:, None], axis=2)
        same[:, -1] |= ~same.any(axis=1)
        return Gaussian(*self._predict(X, self._prior_part, found[~same].reshape(len(X), -1)))

    def _inputs(self, X: Array) -> Array:
        """Return the columns that the kernel acts on."""
        return self.trend.prior.inputs(X)

    def derivative(self, X: NDArray, dim: int = 0) -> Gaussian:
        """Return mean and variance of ∂f/∂x_dim at the rows of X."""
        X = as_rows(X)
        own = slope_variance(self.kernel, len(self.lengths), dim)
        columns = self.trend.prior.slopes(X.shape[1])[dim]

        def prior(points: Array, rows: Array, at: Array) -> tuple[Array, float, Array]:
            lags = points[:, :, None, :] - rows[:, None, :, :]
            cross = slopes(self.kernel, lags.reshape(-1, len(self.lengths)), dim)
            return cross.reshape(lags.shape[:3]), own, np.tile(columns, (len(at), 1))

        return self._predict_in_blocks(X, prior)

    def integral(self, lower: NDArray, upper: NDArray) -> Gaussian:
        """Raise `InputError`: rows near one point do not give an integral."""
        raise InputError('Integrals need a lattice: fit with solver="dense" or solver="iterative".')

    def _prior_part(self, points: Array, rows: Array, at: Array) -> tuple[Array, float, Array]:
        cross = self._within.cross(points, rows)
        return cross, self.prior_variance, self.trend.prior.features(at)

    def _predict_in_blocks(self, X: Array, prior: Callable) -> Gaussian:
        """Return means and variances at the rows of X; see `_predict`."""
        mean = np.empty((len(X), self._centred.shape[1]))
        variance = np.empty(len(X))
        order = _in_cells(self._scaled(self._inputs(X)))
        for block in chunks(len(X), _BLOCK):
            part = order[block]
            mean[part], variance[part] = self._predict(X[part], prior)
        return Gaussian(mean, variance)

    def _predict(
        self, X: Array, prior: Callable, nearest: Indices | None = None
    ) -> tuple[Array, Array]:
        """Return means and variances of functionals of f, given by their covariances with f.

        `prior` gives the covariances with the rows, the prior variance, and the mean function's
        columns. Each point looks at the rows in `nearest` and no others, if that is given.
        """
        grouping = nearest is None
        if nearest is None:
            nearest = self._nearest.query(self._scaled(self._inputs(X)), self.num_neighbours)[1]
        mean = np.empty((len(X), self._centred.shape[1]))
        variance = np.empty(len(X))
        inputs = self._inputs(X)
        d = inputs.shape[1]

        def work(groups: _Groups) -> None:
            points, rows = groups
            there = rows >= 0
            centre = inputs[points[:, :1]]
            table = self._table[rows]
            at, noise, rest = np.split(table, [d, d + 1], axis=2)
            at = at - centre
            K = self._within.values(at)
            # Of some groups the last rows are not there.
            last = slice(int(there.sum(axis=1).min()), None)
            K[:, last] *= there[:, last, None]
            K[:, :, last] *= there[:, None, last]
            np.einsum("cii->ci", K)[:] += np.where(there, noise[:, :, 0], 1.0)
            flat = X[points.reshape(-1)]
            cross, own, columns = prior(inputs[points] - centre, at, flat)
            columns = columns.reshape(*points.shape, -1)
            right = np.concatenate([cross, rest.transpose(0, 2, 1)], axis=1)
            right[:, :, last] *= there[:, None, last]
            whitened = whiten(K, right)
            k = whitened[:, : points.shape[1]]
            # kᵀK⁻¹ times the targets, and times the mean's columns.
            products = k @ whitened[:, points.shape[1] :].transpose(0, 2, 1)
            targets = self._centred.shape[1]
            g = columns - products[:, :, targets:]
            mean[points] = products[:, :, :targets] + columns @ self.trend.coefficients
            variances = (
                own
                - np.einsum("cgm,cgm->cg", k, k)
                + np.einsum("cgq,cgq->cg", g @ self.trend.covariance, g)
            )
            # Rounding leaves no less.
            variance[points] = np.maximum(variances, _ROUNDING * own)

        def share(part: slice) -> None:
            own = nearest[part]
            alone = [_Groups(np.arange(len(own))[:, None], own)]
            for batch in _batches(_grouped(own) if grouping else alone):
                work(_Groups(part.start + batch.points, batch.rows))

        with one_thread():
            in_threads(share, list(chunks(len(X), _SHARE)), self._threads)
        return mean, variance

    # ------------------------------------------------------------------ jointly

    def covariance(self, X: NDArray) -> NDArray[np.float64]:
        """Return the covariance of f between the rows of X, (n, n)."""
        X = as_rows(X)
        if len(X) > _MOST_JOINT:
            raise InputError(
                f"Covariances are formed between up to {_MOST_JOINT} points, got {len(X)}: ask for "
                "return_std, or for fewer points."
            )
        chain, back = self._chain(X)
        root = chain.solved(np.diag(np.sqrt(chain.variance)))
        g = chain.mean_columns - chain.solved(chain.from_rows @ self._mean_columns)
        joint = root @ root.T + g @ self.trend.covariance @ g.T
        return joint[np.ix_(back, back)]

    def draw(self, num_draws: int, rng: np.random.Generator) -> _Draws:
        """Return functions drawn from the posterior, jointly at the points they are asked for."""
        return _Draws(self, num_draws, int(rng.integers(2**31)))

    def drawn(self, X: Array, num_draws: int, rng: np.random.Generator) -> Array:
        """Return joint draws of f at the rows of X, (n, draws, p)."""
        chain, back = self._chain(X)
        n, p, q = len(chain.variance), self._centred.shape[1], len(self.trend.coefficients)
        eigenvalues, vectors = np.linalg.eigh(self.trend.covariance)
        root = vectors * np.sqrt(np.maximum(eigenvalues, 0.0))
        shift = (root @ rng.standard_normal((q, num_draws * p))).reshape(q, num_draws, p)
        right = np.sqrt(chain.variance)[:, None, None] * rng.standard_normal((n, num_draws, p))
        right += np.asarray(chain.from_rows @ self._centred)[:, None, :]
        moved = chain.from_rows @ self._mean_columns
        right -= np.tensordot(moved, shift, axes=1)
        values = chain.solved(right.reshape(n, -1)).reshape(n, num_draws, p)
        values += np.tensordot(chain.mean_columns, self.trend.coefficients[:, None, :] + shift, 1)
        return values[back]

    def _chain(self, X: Array) -> tuple[_Chain, Indices]:
        """Return the points as a triangular system, and where each row of X is in it."""
        unique, back = np.unique(X, axis=0, return_inverse=True)
        points = np.asarray(unique, dtype=np.float64)
        order = np.random.default_rng(0).permutation(len(points))
        points, back = points[order], np.argsort(order)[back.reshape(-1)]
        mean_columns, points = self.trend.prior.features(points), self._inputs(points)
        scaled = self._scaled(points)
        rows = self._nearest.query(scaled, self.num_neighbours)[1]
        count = min(_EARLIER, max(len(points) - 1, 1))
        earlier = OrderedRows(scaled, self._threads).query(np.arange(len(points)), count)
        m = rows.shape[1]
        weights = np.zeros((len(points), m + count))
        variance = np.empty(len(points))

        def work(part: slice) -> None:
            own, before = rows[part], earlier[part]
            there = np.concatenate([np.ones_like(own, dtype=bool), before >= 0], axis=1)
            at = np.concatenate([self._X[own], points[before]], axis=1)
            noise = np.concatenate([self._noise[own], np.zeros(before.shape)], axis=1)
            itself = points[part, None, :]
            at = np.concatenate([at, itself], axis=1) - itself
            A = self._within.values(at)
            K, k = A[:, :-1, :-1], A[:, :-1, -1] * there
            K = K * there[:, :, None] * there[:, None, :]
            # An ulp for points that lie so close that their values are the same.
            tiny = 1e-14 * self.prior_variance
            np.einsum("cii->ci", K)[:] += np.where(there, noise + tiny, 1.0)
            w = solve(K, k[:, :, None])[:, :, 0]
            form = -2 * np.einsum("cm,cm->c", k, w)
            form += np.einsum("cm,cm->c", w, np.einsum("cij,cj->ci", K, w))
            variance[part] = np.maximum(self.prior_variance + form, 0.0)
            weights[part] = w * there

        size = max(1, _ENTRIES // (m + count + 1) ** 2)
        with one_thread():
            in_threads(work, list(chunks(len(points), size)), self._threads)
        chain = _Chain(
            from_rows=_sparse(weights[:, :m], rows, len(self.rows.X)),
            from_points=_sparse(weights[:, m:], earlier, len(points)),
            variance=variance,
            mean_columns=mean_columns,
        )
        return chain, back


class _Draws:
    """Posterior functions, drawn jointly at whatever points they are asked for."""

    def __init__(self, posterior: NeighbourPosterior, num_draws: int, seed: int) -> None:
        self._posterior = posterior
        self._num_draws = num_draws
        self._seed = seed

    def __call__(self, X: NDArray) -> NDArray[np.float64]:
        """Return the functions at the rows of X, (n, draws, p)."""
        rng = np.random.default_rng(self._seed)
        return self._posterior.drawn(as_rows(X), self._num_draws, rng)


class _Chain(NamedTuple):
    """f − hᵀβ = P (y − Hβ) + Q (f − hᵀβ) + e, Q strictly lower triangular and var e diagonal."""

    from_rows: csr_array
    from_points: csr_array
    variance: Array
    mean_columns: Array

    def solved(self, right: Array) -> Array:
        """Return (I − Q)⁻¹ R."""
        lower = csr_array(identity(len(self.variance), format="csr") - self.from_points)
        return np.asarray(spsolve_triangular(lower, np.ascontiguousarray(right), lower=True))


def _sparse(weights: Array, columns: Indices, size: int) -> csr_array:
    there = columns >= 0
    rows = np.broadcast_to(np.arange(len(columns))[:, None], columns.shape)[there]
    return csr_array((weights[there], (rows, columns[there])), shape=(len(columns), size))


# ---------------------------------------------------------------------- groups of points


class _Groups(NamedTuple):
    """Points (c, g) and the rows that each group looks at, (c, m), −1 where there are fewer."""

    points: Indices
    rows: Indices


def _in_leaves(scaled: Array) -> Indices:
    """Return an order in which rows of one leaf of a k-d tree follow each other."""
    if len(scaled) < 2:
        return np.arange(len(scaled))
    return np.asarray(KDTree(scaled, leafsize=_LEAF, balanced_tree=False).indices)


def _in_cells(scaled: Array) -> Indices:
    """Return an order in which every few points, up to the largest group, lie in a cell."""
    order = np.arange(len(scaled))
    cells = [slice(0, len(scaled))]
    while cells:
        cell = cells.pop()
        size = cell.stop - cell.start
        if size < 3:
            continue
        # Ends of cells are ends of groups: of the largest ones, and then of halves of them.
        unit = min(_LARGEST_GROUP, 1 << ((size - 1).bit_length() - 1))
        half = -(-size // (2 * unit)) * unit
        points = scaled[order[cell]]
        column = int(np.argmax(np.ptp(points, axis=0)))
        order[cell] = order[cell][np.argpartition(points[:, column], half)]
        middle = cell.start + half
        cells += [slice(cell.start, middle), slice(middle, cell.stop)]
    return order


def _grouped(nearest: Indices) -> list[_Groups]:
    """Return groups of points that share rows.

    Points come in the order of cells. They form the groups that are cheapest on a sample, and where
    points alone are cheaper than their group, it is halved.
    """
    sizes = [1 << k for k in range(1, _LARGEST_GROUP.bit_length()) if 1 << k <= len(nearest)]
    alone = _WORTH_SHARING * float(_cost(np.array(nearest.shape[1]), 1))
    prices = {}
    for size in sizes:
        points = _whole(np.arange(len(nearest)), size)
        costs = _shared(nearest, points[:: max(1, len(points) // _TRIED)])[1] / size
        if np.mean(costs < alone) > _FEW_FIT:
            prices[size] = float(np.mean(np.minimum(costs, alone)))
    found, rest = [], np.arange(len(nearest))
    best = min(prices, key=prices.__getitem__, default=1)
    for size in (size for size in reversed(sizes) if size <= best and len(rest) >= size):
        points = _whole(rest, size)
        rows, costs = _shared(nearest, points)
        cheap = costs < alone * size
        if cheap.any():
            kept = rows[cheap]
            found.append(_Groups(points[cheap], kept[:, (kept >= 0).any(axis=0)]))
        rest = np.concatenate([points[~cheap].reshape(-1), rest[points.size :]])
    if len(rest):
        found.append(_Groups(rest[:, None], nearest[rest]))
    return found


def _whole(points: Indices, size: int) -> Indices:
    """Return the groups of a size that points in their order form, (c, size)."""
    return points[: len(points) // size * size].reshape(-1, size)


def _shared(nearest: Indices, points: Indices) -> tuple[Indices, Array]:
    """Return the rows that groups (c, g) look at, −1 where there are fewer, and their costs (c,).

    The nearer half of the nearest rows of each point, or all, if these are few.
    """
    m, size = nearest.shape[1], points.shape[1]
    rows, counts = _union(nearest[points, : (m + 1) // 2])
    short = counts < _AMPLE * m
    if short.any():
        more, counts[short] = _union(nearest[points[short]])
        rows = np.pad(rows, ((0, 0), (0, more.shape[1] - rows.shape[1])), constant_values=-1)
        rows[short] = more
    return rows, _cost(counts, size)


def _union(nearest: Indices) -> tuple[Indices, Indices]:
    """Return the different rows of each group (c, g, m), then −1, and their numbers (c,)."""
    rows = np.sort(nearest.reshape(len(nearest), -1), axis=1)
    rows[:, 1:][rows[:, 1:] == rows[:, :-1]] = -1
    return -np.sort(-rows, axis=1), np.count_nonzero(rows >= 0, axis=1)


def _cost(rows: Indices, points: int) -> Array:
    """Return the nanoseconds that groups of so many points take which look at so many rows."""
    cubes, squares, solving, lines, always = _PRICES
    return rows**2 * (cubes * rows + squares + solving * points) + lines * rows * points + always


def _batches(groups: list[_Groups]) -> list[_Groups]:
    """Return batches of groups of about the same number of rows, whose matrices fit a cache."""
    batches = []
    for points, rows in groups:
        counts = np.sum(rows >= 0, axis=1)
        rounded = np.minimum(-(-counts // _STEP) * _STEP, rows.shape[1])
        for number in np.unique(rounded):
            own = np.flatnonzero(rounded == number)
            size = max(1, _ENTRIES // int(number) ** 2)
            for part in chunks(len(own), size):
                batches.append(_Groups(points[own[part]], rows[own[part], :number]))
    return batches
