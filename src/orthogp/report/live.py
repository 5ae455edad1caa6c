r"""What a page needs to compute posteriors by itself: the sums of the rows, not the rows.

The sums are those of the model's lattice, and of lattices with longer periods for longer
lengthscales, up to the indices of `MOST_FEATURES` features. posterior.js turns them into

    elbo = Titsias' bound,   f(x) | y ~ N(mean, variance)

for any RBF or half-integer Matérn kernel and noise, as `moments_from_statistics`, `titsias_bound`
and `Posterior` do; explore.js shows the results.
"""

from __future__ import annotations

import base64
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.features import Lattice
from orthogp.files.columns import time_scales
from orthogp.inference.parameters import learned_slots
from orthogp.kernels import RBF, Kernel, Matern12, Matern32, Matern52
from orthogp.learning.limits import choose_decimation, lengthscale_limits
from orthogp.learning.sketches import KeptRows, Sketch
from orthogp.report.plots import BAND_SDS, palette
from orthogp.rows import Rows
from orthogp.statistics import FourierStatistics, FrequencyLattice

if TYPE_CHECKING:
    from orthogp.report.figures import Figures

#: The kernels to choose from: what users call them, and their labels.
KERNELS: dict[str, tuple[type[Kernel], str]] = {
    "rbf": (RBF, "RBF"),
    "matern52": (Matern52, "Matérn 5/2"),
    "matern32": (Matern32, "Matérn 3/2"),
    "matern12": (Matern12, "Matérn 1/2"),
}
#: The most features of a posterior in a page, once the sliders rest.
MOST_FEATURES = 1001
# The largest share of the prior variance that they may leave out at the learned values.
_LARGEST_RESIDUAL = 0.05
# The most rows of a model that keeps them whose sums go into a page.
_MOST_ROWS = 2500
# The most columns.
_MOST_COLUMNS = 2
# The number of lattices, by number of columns: each has a period twice as long as the one before.
_NUM_LEVELS = {1: 3, 2: 2}
# How much longer than the learned kernel's an axis of the ellipse of modes may become.
_STRETCH = 1.4
# The factor of a hyperparameter from one step of its slider to the next,
_STEP = 1.01
# and the steps to each end: a factor of 20.
_STEPS = 300
# The parts of which one can be left out, along each column.
_PARTS = {1: 4, 2: 2}
# Points along each side of the grid on which the figure's range is found.
_GRID = {1: 401, 2: 48}
# The share of the range that is left free above and below a curve.
_MARGIN = 0.05


class Slider(NamedTuple):
    """A hyperparameter: its name in the page, its label, and its steps to both ends."""

    parameter: str
    label: str
    lowest: int
    highest: int


class Live(NamedTuple):
    """What the page shows and moves; without `data` there is a `reason` for a page at rest.

    `parts` names the parts of the rows that can be left out, if any.
    """

    data: dict[str, Any] | None = None
    sliders: tuple[Slider, ...] = ()
    kernels: tuple[tuple[str, str], ...] = ()
    parts: tuple[str, ...] = ()
    reason: str = ""


class _Source(NamedTuple):
    """Sums of a model's rows, the lattice that suits its kernel, and the rows where it has them."""

    sketch: Sketch
    step: NDArray[np.int64]
    rows: Rows | None


def live_content(figures: Figures) -> Live:
    """Return what the page of a model can compute by itself, or why it cannot."""
    model = figures.model
    reason = _obstacle(model)
    if not reason and np.any(figures.shown.upper <= figures.shown.lower):
        reason = "There are sliders where inputs vary; here one is constant."
    if reason:
        return Live(reason=reason)
    kernel = _plain_kernel(model.posterior_.kernel)
    assert kernel is not None
    source = _source(model, kernel)
    if isinstance(source, str):
        return Live(reason=source)
    levels = _levels(model, kernel, source)
    share = _left_out(kernel, levels[0].statistics[0].lattice)
    if share > _LARGEST_RESIDUAL:
        return Live(
            reason=f"The page has room for {MOST_FEATURES:,} features, which would leave out "
            f"{100 * share:.0f} % of this model's prior variance."
        )
    scale, offset = float(model.target_scale_[0]), float(model.target_offset_[0])
    lengthscale = np.ravel(np.asarray(kernel.parameters()["lengthscale"]))
    mean, names = source.sketch.mean, figures.names
    data = {
        "learned": {
            "kernel": kernel.known_as,
            "lengthscale": np.broadcast_to(lengthscale, len(model.columns_)).tolist(),
            "variance": float(np.asarray(kernel.parameters()["variance"])),
            "noise": float(model.posterior_.noise_variance),
        },
        "step": _STEP,
        "most_features": MOST_FEATURES,
        "scale": scale,
        "offset": offset,
        "mean": {
            "offset_variance": mean.offset_variance,
            "slope_variance": mean.slope_variance,
            "origin": np.broadcast_to(mean.origin, len(model.columns_)).tolist(),
            "width": np.broadcast_to(mean.width, len(model.columns_)).tolist(),
        },
        "levels": [level.to_json(model.weights == "repeats") for level in levels],
        "inputs": [_axis_label(figures, column) for column in figures.columns],
        # In milliseconds, as browsers count.
        "times": [
            own and {"unit": own.unit_microseconds / 1e3, "origin": own.origin_microseconds / 1e3}
            for own in (time_scales(model)[column] for column in figures.columns)
        ],
        "target": names.target().replace("\\$", "$"),
        "target_unit": names.unit(names.targets[0]),
        **_frame(figures),
    }
    return Live(
        data,
        _sliders(figures, lengthscale, levels[-1]),
        tuple((name, label) for name, (_, label) in KERNELS.items()),
        _part_names(figures, source),
    )


def _axis_label(figures: Figures, column: int) -> str:
    """Return what stands along the axis of an input: no unit where it has dates."""
    names = figures.names
    if time_scales(figures.model)[column] is not None:
        return names.inputs[column]
    return names.input(column).replace("\\$", "$")


def _obstacle(model: Any) -> str:
    """Return why there are no sliders for a model, or nothing."""
    if hasattr(model, "classes_"):
        return "There are sliders for regressions only; this model is a classifier."
    if model.likelihood_ is not None:
        return "There are sliders for Gaussian noise; this model has another likelihood."
    if len(model.target_scale_) > 1:
        return f"There are sliders for one target; this model has {len(model.target_scale_)}."
    if model.posterior_.additive:
        return "There are sliders for one joint kernel; this model is a sum of components."
    if len(model.columns_) > _MOST_COLUMNS:
        return f"There are sliders for one or two inputs; this model has {len(model.columns_)}."
    if model._sketch.mean.num_covariates:
        return "There are sliders for models of inputs alone; this model has covariates."
    if model._embedding is not None or _plain_kernel(model.posterior_.kernel) is None:
        return (
            "There are sliders for a single RBF or Matérn kernel (1/2, 3/2 or 5/2); this model has "
            "another."
        )
    return ""


def _plain_kernel(kernel: Any) -> Kernel | None:
    """Return the kernel if it is one of those that the page knows."""
    inner = getattr(kernel, "kernel", kernel)
    return inner if type(inner) in [kind for kind, _ in KERNELS.values()] else None


def _source(model: Any, kernel: Kernel) -> _Source | str:
    """Return the sums of a model's rows, or why there are none that would serve."""
    sketch = model._sketch
    if isinstance(sketch, KeptRows):
        if len(sketch.X) > _MOST_ROWS:
            number = f"{len(sketch.X):,}"
            return f"There are sliders where sums suffice; this model needs its {number} rows."
        sums = sketch.sums()
        lattice = sums.statistics.parts[0].lattice
        step = choose_decimation(kernel, lattice, sums.width, model.wrap_tolerance)
        return _Source(sums, step, sketch.rows)
    if not isinstance(model.features_, Lattice) or model.engine_ != "dense":
        return (
            "There are sliders for models of up to some thousand lattice features, and for small "
            "data."
        )
    statistics = sketch.statistics
    if statistics.target_sums.size == 0:
        return "There are sliders where a model keeps its sums; this file holds none."
    step = np.rint(model.features_.lattice.spacing / statistics.lattice.spacing).astype(np.int64)
    return _Source(sketch, step, None)


def _left_out(kernel: Kernel, lattice: FrequencyLattice) -> float:
    """Return the share of the prior variance that the page's features leave out."""
    features = Lattice.select(kernel, lattice, MOST_FEATURES)
    return features.residual(kernel) / float(np.asarray(kernel.parameters()["variance"]))


# ---------------------------------------------------------------------- sums


class Level(NamedTuple):
    """Sums on one lattice: of all rows, then of each part that can be left out.

    `limits` has the longest lengthscales of each kernel for which the lattice's period is right.
    """

    statistics: list[FourierStatistics]
    limits: dict[str, list[float]]

    def to_json(self, repeats: bool) -> dict[str, Any]:
        """Return what goes into the page."""
        lattice = self.statistics[0].lattice
        return {
            "spacing": lattice.spacing.tolist(),
            "extent": lattice.extent.tolist(),
            "centre": lattice.centre.tolist(),
            "limits": self.limits,
            "sums": [_sums_to_json(own, repeats) for own in self.statistics],
        }


def _sums_to_json(sums: FourierStatistics, repeats: bool) -> dict[str, Any]:
    return {
        "count": sums.count,
        "factors": sums.count if repeats else sums.rows,
        "log_weights": 0.0 if repeats else sums.log_weights,
        "yy": float(sums.yy[0]),
        "points": _half(sums.point_sums),
        "targets": _half(sums.target_sums[0]),
        "covariates": [_half(own) for own in sums.covariate_sums],
        "covariate_gram": sums.covariate_gram.tolist(),
        "covariate_targets": sums.covariate_targets[:, 0].tolist(),
    }


def _half(sums: NDArray[np.complex128]) -> str:
    """Return the sums from index zero on, in base64; those at −t are their conjugates."""
    flat = np.ravel(sums)[sums.size // 2 :]
    return base64.b64encode(flat.astype("<c16").tobytes()).decode("ascii")


def _levels(model: Any, kernel: Kernel, source: _Source) -> list[Level]:
    """Return the model's lattice, and those with longer periods."""
    sketch, num_dims = source.sketch, len(source.step)
    parts = [] if source.rows is None else _parts(source.rows)
    sums = [sketch, *(sketch.alone(part, 1) for part in parts)]
    units = (model.target_offset_ - sketch.shift, model.target_scale_)
    levels: list[Level] = []
    for halving in range(_NUM_LEVELS[num_dims]):
        step = np.maximum(source.step >> halving, 1)
        if halving and np.all(step == np.maximum(source.step >> (halving - 1), 1)):
            break
        lattice = sketch.statistics.parts[0].lattice.decimate(step)
        extent = np.minimum(lattice.extent, _extent(kernel, lattice))
        statistics = [
            own.statistics.parts[0].decimate(step).within(extent).standardised(*units)
            for own in sums
        ]
        limits = _limits(model, kernel, lattice, sketch.width, own_lattice=not halving)
        levels.append(Level(statistics, limits))
    return levels


def _extent(kernel: Kernel, lattice: FrequencyLattice) -> NDArray[np.int64]:
    """Return the largest indices of the features: an interval, or about an ellipse's."""
    if lattice.num_dims == 1:
        return np.array([MOST_FEATURES // 2])
    lengthscale = np.asarray(kernel.parameters()["lengthscale"])
    # Modes of equal mass lie on ellipses whose axes are inverse to ℓ_d h_d.
    axes = 1 / np.broadcast_to(lengthscale * lattice.spacing, 2)
    radius = axes * np.sqrt(MOST_FEATURES / (np.pi * axes.prod()))
    return np.ceil(_STRETCH * radius).astype(np.int64)


def _limits(
    model: Any,
    kernel: Kernel,
    lattice: FrequencyLattice,
    width: NDArray[np.float64],
    *,
    own_lattice: bool,
) -> dict[str, list[float]]:
    """Return the longest lengthscales of each kernel on a lattice, the learned ones among them."""
    limits = {}
    learned = np.broadcast_to(np.asarray(kernel.parameters()["lengthscale"]), width.shape)
    for name, (kind, _) in KERNELS.items():
        tried: Any = kind(1.0, learned.copy())  # type: ignore[call-arg]
        slot = next(own for own in learned_slots(tried) if own.name == "lengthscale")
        longest = lengthscale_limits(tried, slot, lattice.period, width, model.wrap_tolerance)
        if own_lattice and name == kernel.known_as:
            longest = np.maximum(longest, learned)
        limits[name] = longest.tolist()
    return limits


def _cuts(rows: Rows) -> list[NDArray[np.float64]]:
    """Return where the rows are cut, along each column: into parts with as many rows each."""
    number = _PARTS[rows.X.shape[1]]
    shares = np.arange(1, number) / number
    return [np.quantile(column, shares) for column in np.asarray(rows.X, dtype=float).T]


def _parts(rows: Rows) -> list[Rows]:
    """Return the parts of the rows that can be left out: intervals, or quarters of a map."""
    number = _PARTS[rows.X.shape[1]]
    place = np.zeros(len(rows.X), dtype=np.int64)
    for column, cuts in zip(np.asarray(rows.X, dtype=float).T, _cuts(rows), strict=True):
        place = place * number + np.searchsorted(cuts, column, side="right")
    parts = [rows.part(place == own) for own in range(number ** rows.X.shape[1])]
    return parts if all(len(own.X) > 0 for own in parts) else []


def _part_names(figures: Figures, source: _Source) -> tuple[str, ...]:
    """Return the names of the parts that can be left out, in the order of `_parts`."""
    if source.rows is None or not _parts(source.rows):
        return ()
    places: list[list[str]] = []
    for column, cuts in zip(figures.columns, _cuts(source.rows), strict=True):
        name, values = figures.names.inputs[column], [f"{own:.4g}" for own in cuts]
        between = [f"{name} from {a} to {b}" for a, b in pairwise(values)]
        places.append([f"{name} below {values[0]}", *between, f"{name} from {values[-1]} on"])
    if len(places) == 1:
        return tuple(places[0])
    return tuple(f"{first}, {second}" for first in places[0] for second in places[1])


# ---------------------------------------------------------------------- the figure and its sliders


def _sliders(figures: Figures, lengthscale: NDArray[np.float64], last: Level) -> tuple[Slider, ...]:
    """Return the sliders; lengthscales end where the longest period does."""
    longest = np.max(list(last.limits.values()), axis=0)
    if len(lengthscale) < len(longest):
        longest = longest.min(keepdims=True)
    steps = np.floor(np.log(np.maximum(longest / lengthscale, 1.0)) / np.log(_STEP))
    ends = np.minimum(steps, _STEPS).astype(int).tolist()
    several = len(lengthscale) > 1
    labels = [
        f"lengthscale of {figures.names.inputs[column]}" if several else "lengthscale"
        for column in figures.columns[: len(lengthscale)]
    ]
    moving = [
        Slider(f"lengthscale{d}", label, -_STEPS, end)
        for d, (label, end) in enumerate(zip(labels, ends, strict=True))
    ]
    return (
        *moving,
        Slider("variance", "variance of the function", -_STEPS, _STEPS),
        Slider("noise", "noise, standard deviation", -_STEPS, _STEPS),
    )


def _frame(figures: Figures) -> dict[str, Any]:
    """Return the figure's box and range, what is known of the rows, and colours of maps."""
    box, found = figures.shown, figures.found
    count = _GRID[len(figures.columns)]
    axes = [np.linspace(*ends, count) for ends in zip(*box, strict=True)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(count ** len(axes), -1)
    mean, variance = figures.predict(points, 0)
    frame: dict[str, Any] = {"lower": box.lower.tolist(), "upper": box.upper.tolist()}
    if len(axes) == 2:
        return frame | {
            "range": [float(mean.min()), float(mean.max()) + (np.ptp(mean) == 0)],
            "largest_sd": float(np.sqrt(variance.max())),
            "colours": {"mean": palette("viridis"), "sd": palette("cividis")},
        }
    model = figures.model
    noise = model.posterior_.noise_variance * model.target_scale_[0] ** 2
    reach = BAND_SDS * np.sqrt(variance + noise)
    ends = [float(np.min(mean - reach)), float(np.max(mean + reach))]
    frame["rows"] = None
    if found is not None:
        seen = found.data_count > 0
        low, high = found.data_low[0, seen], found.data_high[0, seen]
        ends = [min(ends[0], float(low.min())), max(ends[1], float(high.max()))]
        rows = {"x": found.data_x[seen], "low": low, "high": high}
        frame["rows"] = {name: own.tolist() for name, own in rows.items()}
    margin = _MARGIN * (ends[1] - ends[0]) or 1.0
    return frame | {"range": [ends[0] - margin, ends[1] + margin]}
