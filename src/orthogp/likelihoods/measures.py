r"""What stands for the rows when functions of f are summed over them.

On a lattice f is a Fourier series on a torus, and so is every function g of it. The rows enter by

    Σ_n w_n g(x_n) e^{iω_s·x_n}    and    Σ_n w_n y_n g(x_n) e^{iω_s·x_n}

`TorusMeasure` has these from sums alone. Put weights on a grid of the torus,

    ρ(x_j) = L^{-d} Σ_{|u| ≤ U} point_sums[u] e^{−iω_u·x_j},

and Σ_j ρ(x_j) g(x_j) e^{iω_s·x_j} is the sum over the rows for every g without frequencies beyond
U − |s|: a rule of quadrature for the rows, with as many nodes as sums. Where no rows are, ρ is as
small as rounding, but e^f may be huge. Then g is multiplied by a window, which is one in the box of
the rows and falls to zero beyond: at the rows nothing has changed. What else g has is cut,

    |Σ_{|t| > U−|s|} ĝ_t point_sums[s+t]| ≤ Σ_n w_n Σ_{|t| > U−|s|} |ĝ_t|,

and the grid, on which it looks like lower frequencies, adds as much.

`RowMeasure` has them from the rows themselves, in a pass for each sum.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfftn, next_fast_len, rfftn
from scipy.special import erfc

from orthogp.rows import Domain, Rows
from orthogp.statistics import FourierStatistics, FrequencyLattice
from orthogp.statistics.nufft import ColumnSums, chunks, evaluate_series

Floats = NDArray[np.float64]
Series = NDArray[np.complex128]

# Coefficients as small as this, relative to the largest, are the rounding of a transform.
_ROUNDING = 1e-15
# Where erfc is cut at either end of a window's fall: 1e-14 is missing there.
_TAPER = 5.5
# The width of the fall, in periods, times the largest index of the window that matters.
_WINDOW_REACH = 2 * _TAPER**2 / np.pi
# That index by the number of columns: a steep fall leaves f no room to rise, but costs points,
# which three columns do not have.
_STEEPEST = (1024, 128, 0)
# The factor by which the sums that are used reach further where too much is cut.
_FURTHER = 1.6
# Rows that are summed at once.
_CHUNK_ROWS = 2**20


class Measure(Protocol):
    """Points with weights, by which functions of f are summed over the rows."""

    #: Σ w_n.
    total: float
    #: w at the points, and w y.
    weights: Floats
    targets: Floats
    #: What functions of f are multiplied by at the points: one at the rows.
    window: Floats

    def values(self, series: list[Series]) -> list[Floats]:
        """Return real series, index zero in the middle, at the points."""
        ...

    def sums(self, reach: NDArray[np.int64], weights: Floats, slopes: Floats) -> FourierStatistics:
        """Return Σ weights e^{iω·x} up to 2·reach, and Σ slopes e^{iω·x} up to `reach`."""
        ...


def empty_statistics(lattice: FrequencyLattice) -> FourierStatistics:
    """Return the sums of no rows."""
    return FourierStatistics(
        lattice=lattice,
        rows=0.0,
        count=0.0,
        log_weights=0.0,
        point_sums=np.zeros(lattice.point_shape, dtype=np.complex128),
        target_sums=np.zeros((1, *lattice.target_shape), dtype=np.complex128),
        yy=np.zeros(1),
        covariate_sums=np.zeros((0, *lattice.target_shape), dtype=np.complex128),
        covariate_gram=np.zeros((0, 0)),
        covariate_targets=np.zeros((0, 1)),
    )


def _inner(box: Series, reach: NDArray[np.int64]) -> Series:
    """Return the middle of a box of sums."""
    middle = [size // 2 for size in box.shape]
    return box[tuple(slice(m - r, m + r + 1) for m, r in zip(middle, reach, strict=True))]


def _grid_shape(reach: NDArray[np.int64]) -> tuple[int, ...]:
    """Return the shape of a grid whose functions have the indices up to `reach`, and no fewer."""
    return tuple(int(next_fast_len(int(2 * u + 1), True) or 0) for u in reach)


class TorusMeasure:
    """A quadrature on the torus that stands for rows of which sums are known.

    Parameters
    ----------
    statistics : FourierStatistics
        Of weights, and of one target.
    reach : (d,)
        U: the largest index of the sums that are used.
    box : Domain, optional
        The box around the rows.
    fall : (d,), optional
        The width over which the window falls to zero outside of the box, if there is one.
    """

    def __init__(
        self,
        statistics: FourierStatistics,
        reach: NDArray[np.int64],
        box: Domain | None = None,
        fall: Floats | None = None,
    ) -> None:
        self.statistics, self.box, self.fall = statistics, box, fall
        self.reach = np.minimum(reach, 2 * statistics.lattice.extent)
        self.shape = _grid_shape(self.reach)
        self.total = statistics.count
        self.window = self._window()
        self.weights = self.density(statistics.point_sums)
        self.targets = self.density(statistics.target_sums[0])

    def finer(self) -> TorusMeasure:
        """Return the grid of twice as many points along each column, without weights."""
        finer = TorusMeasure.__new__(TorusMeasure)
        finer.statistics, finer.box, finer.fall = self.statistics, self.box, self.fall
        finer.reach = 2 * self.reach
        finer.shape = _grid_shape(finer.reach)
        finer.window = finer._window()
        return finer

    def further(self, furthest: NDArray[np.int64]) -> TorusMeasure | None:
        """Return the measure with a window, or by further sums; `None` if there are none."""
        if self.box is not None and self.fall is None:
            period = self.statistics.lattice.period
            steepest = np.minimum(furthest - self.reach, _STEEPEST[len(period) - 1])
            fall = _WINDOW_REACH * period / np.maximum(steepest, 1)
            if np.all(fall <= (period - self.box.width) / 2):
                return TorusMeasure(self.statistics, self.reach + steepest, self.box, fall)
        if np.all(self.reach >= furthest):
            return None
        reach = np.minimum(np.ceil(_FURTHER * self.reach), furthest).astype(np.int64)
        return TorusMeasure(self.statistics, reach, self.box, self.fall)

    def _window(self) -> Floats:
        """Return one at the points in the box, falling to zero on the way to its next image."""
        window = np.ones(())
        if self.box is None or self.fall is None:
            return window
        lattice = self.statistics.lattice
        for period, centre, lower, upper, n, fall in zip(
            lattice.period, lattice.centre, *self.box, self.shape, self.fall, strict=True
        ):
            place = np.mod(centre + period * np.arange(n) / n - lower, period)
            width = upper - lower
            beyond = np.minimum(np.maximum(place - width, 0.0), period - place)
            own = erfc(_TAPER * (2 * beyond / fall - 1)) / 2
            window = window[..., None] * np.where(place <= width, 1.0, own)
        return window

    def density(self, sums: Series) -> Floats:
        """Return the weights at the grid's points that have the given sums."""
        reach = np.minimum(self.reach, [size // 2 for size in sums.shape])
        return self._at_points(np.conj(self._placed(_inner(sums, reach))))

    def _at_points(self, half: Series) -> Floats:
        """Return the inverse of a real transform."""
        return np.asarray(irfftn(half, s=self.shape, workers=1), dtype=np.float64)

    def _placed(self, box: Series) -> Series:
        """Return coefficients as real transforms have them, the last axis from index zero."""
        *first, last = (size // 2 for size in box.shape)
        half = np.zeros((*self.shape[:-1], self.shape[-1] // 2 + 1), dtype=np.complex128)
        axes = [np.arange(-r, r + 1) % n for r, n in zip(first, self.shape, strict=False)]
        half[np.ix_(*axes, np.arange(last + 1))] = box[..., last:]
        return half

    def values(self, series: list[Series]) -> list[Floats]:
        """Return real series at the grid's points, by one FFT each."""
        size = float(np.prod(self.shape))
        return [size * self._at_points(self._placed(own)) for own in series]

    def sums(self, reach: NDArray[np.int64], weights: Floats, slopes: Floats) -> FourierStatistics:
        """Return the sums over the grid, by one FFT each."""
        lattice = self.statistics.lattice
        narrow = FrequencyLattice(lattice.spacing, reach, lattice.centre)
        return replace(
            empty_statistics(narrow),
            count=float(weights.sum()),
            point_sums=self._transformed(weights, 2 * reach),
            target_sums=self._transformed(slopes, reach)[None],
        )

    def _transformed(self, values: Floats, reach: NDArray[np.int64]) -> Series:
        """Return Σ_j v_j e^{iω_s·x_j} for |s| ≤ reach."""
        half = np.conj(np.asarray(rfftn(values, workers=1)))
        *first, last = reach
        axes = [np.arange(-r, r + 1) % n for r, n in zip(first, self.shape, strict=False)]
        upper = half[np.ix_(*axes, np.arange(last + 1))]
        # What is at −s is conjugate to what is at s.
        lower = np.conj(np.flip(upper, axis=tuple(range(upper.ndim))))
        return np.concatenate([lower[..., :-1], upper], axis=-1)

    def cut(self, values: Floats, reach: NDArray[np.int64]) -> float:
        """Return Σ |ĝ_t| of a function on the grid, beyond `reach` along any column."""
        coefficients = np.abs(np.asarray(rfftn(values, workers=1))) / np.prod(self.shape)
        coefficients[coefficients < _ROUNDING * coefficients.max()] = 0.0
        # Every coefficient but those of index zero along the last column stands for two.
        coefficients[..., 1:] *= 2
        indices = [np.abs(np.fft.fftfreq(n, 1 / n)) for n in self.shape[:-1]]
        indices.append(np.arange(coefficients.shape[-1], dtype=float))
        beyond = np.zeros(coefficients.shape, dtype=bool)
        for axis, (own, edge) in enumerate(zip(indices, reach, strict=True)):
            shape = [1] * coefficients.ndim
            shape[axis] = -1
            beyond |= (own > edge).reshape(shape)
        return float(coefficients[beyond].sum())


class RowMeasure:
    """The rows themselves, in passes over them.

    Parameters
    ----------
    lattice : FrequencyLattice
        Gives the spacing and the centre.
    rows : Rows
        As they are summed: targets y, weights w.
    """

    def __init__(self, lattice: FrequencyLattice, rows: Rows, num_threads: int | None) -> None:
        self.lattice = lattice
        self._X = np.asarray(rows.X, dtype=np.float64)
        self.weights = np.ones(len(self._X)) if rows.weights is None else rows.weights
        self.targets = self.weights * np.asarray(rows.y, dtype=np.float64)[:, 0]
        self.total = float(self.weights.sum())
        self.window = np.ones(())
        self._num_threads = num_threads

    def values(self, series: list[Series]) -> list[Floats]:
        """Return real series at the rows, by one non-uniform FFT for two of them."""
        shape = tuple(np.max([own.shape for own in series], axis=0))
        boxes = np.zeros((len(series), *shape), dtype=np.complex128)
        for i, own in enumerate(series):
            _inner(boxes[i], np.array(own.shape) // 2)[...] = own
        values = evaluate_series(boxes, self.lattice, self._X, num_threads=self._num_threads)
        return list(values.T)

    def sums(self, reach: NDArray[np.int64], weights: Floats, slopes: Floats) -> FourierStatistics:
        """Return the sums over the rows, by one non-uniform FFT."""
        narrow = FrequencyLattice(self.lattice.spacing, reach, self.lattice.centre)
        size = min(len(self._X), _CHUNK_ROWS)
        sums = ColumnSums(narrow, 2, num_threads=self._num_threads, max_rows=size)
        for part in chunks(len(self._X), size):
            own = [weights[part], slopes[part]]
            sizes = np.array([np.sqrt(np.mean(column**2)) for column in own])
            sums.add(self._X[part], list(own), None, sizes)
        totals = sums.totals()
        return replace(
            empty_statistics(narrow),
            count=float(weights.sum()),
            point_sums=totals[0],
            target_sums=_inner(totals[1], reach)[None],
        )
