r"""What a step of stochastic training costs: value and gradient of the bound, compiled.

The paper claims O(ÑT + M²T) for a dense S and O(ÑT + MT) for a diagonal one, against O(ÑM² + M³) of
inducing points. Seconds and the temporary memory of the compiled step are measured over M, over the
batch size Ñ and over T, each with the others held fixed, and over M with T = 2M, which the noise of
the estimate asks for. Exponents are slopes of log seconds over all points alike; where costs add up
they lie between those of the terms.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from orthogp.features.bands import Trig
from orthogp.files.writing import write_rows
from orthogp.inference.likelihoods import Gaussian
from orthogp.inference.parameters import learned_slots, pack
from orthogp.kernels import Matern52
from orthogp.paper.run import (
    Ledger,
    Row,
    Value,
    Write,
    add_legend,
    draw_points,
    figure_style,
    make_panels,
    number,
    power_law,
    save_figure,
    set_log_ticks,
    set_title,
)
from orthogp.precision import in_double
from orthogp.stochastic.bound import Parameters, StochasticModel
from orthogp.stochastic.svgp import SparseVariational
from orthogp.stochastic.training import Batch
from orthogp.stochastic.variational import Covariance, prior_normal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Trig features with either covariance, and inducing points with a dense one.
Method = Literal["dense", "diagonal", "inducing points"]
METHODS: tuple[Method, ...] = get_args(Method)
_KERNEL = Matern52(1.0, 0.2)
_NOISE_VARIANCE = 0.01
# The number of rows in the data for each row of a mini-batch.
_ROWS_PER_BATCH = 1000
# The least time for which a step is repeated; the fastest counts, for others share the machine.
_LEAST_SECONDS = 0.3
# The least number of times that a step is repeated.
_LEAST_CALLS = 5


class Size(NamedTuple):
    """M, Ñ and T."""

    num_features: int
    batch_size: int
    num_samples: int


class Plan(NamedTuple):
    """The sizes that are timed: one that stays, and what each of its numbers is replaced by."""

    held: Size = Size(128, 1024, 256)
    num_features: tuple[int, ...] = (32, 64, 128, 256, 512, 1024)
    batch_sizes: tuple[int, ...] = (256, 1024, 4096, 16384)
    num_samples: tuple[int, ...] = (64, 128, 256, 512, 1024)

    @property
    def sweeps(self) -> dict[str, list[Size]]:
        """The sizes of each sweep, by its name."""
        return {
            "M": [self.held._replace(num_features=m) for m in self.num_features],
            "M, T = 2M": [
                self.held._replace(num_features=m, num_samples=2 * m) for m in self.num_features
            ],
            "batch size": [self.held._replace(batch_size=n) for n in self.batch_sizes],
            "T": [self.held._replace(num_samples=t) for t in self.num_samples],
        }


FULL = Plan()
QUICK = Plan(
    held=Size(32, 256, 64), num_features=(32, 128), batch_sizes=(256, 2048), num_samples=(64, 256)
)


def reproduce(out: Path, plan: Plan, write: Write) -> list[Path]:
    """Return the paths of the figure, of the timings, and of the exponents."""
    ledger = Ledger(
        out / "complexity.csv",
        ["method", *Size._fields],
        ["seconds_per_step", "temporary_bytes", "seconds"],
        write,
    )
    sweeps: dict[tuple[str, str], list[Row]] = {}
    exponents = []
    for name, sizes in plan.sweeps.items():
        for method in METHODS:
            if method == "inducing points" and "T" in name:
                # They have no T: this is the sweep over M again.
                continue
            rows = [_measure(ledger, method, size) for size in sizes]
            sweeps[name, method] = rows
            exponents.append((name, method, *_exponents(name, rows)))
    path = out / "complexity_exponents.csv"
    write_rows(path, ["over", "method", "time_exponent", "memory_exponent"], exponents)
    for name, method, of_time, of_memory in exponents:
        write(f"complexity: {method} over {name}: time^{of_time:.2f}, memory^{of_memory:.2f}")
    return [ledger.path, path, save_figure(_draw(sweeps, plan), out / "complexity.png")]


def _measure(ledger: Ledger, method: Method, size: Size) -> Row:
    # Inducing points have no T.
    known = size._replace(num_samples=0) if method == "inducing points" else size

    def compute() -> dict[str, Value]:
        step = compile_step(method, size)
        return {"seconds_per_step": step.seconds(), "temporary_bytes": step.temporary_bytes}

    return ledger.run({"method": method, **known._asdict()}, compute)


class Step(NamedTuple):
    """A compiled value and gradient."""

    call: Callable[[], Any]
    temporary_bytes: int

    def seconds(self) -> float:
        """Return the time of the fastest of several calls."""
        self.call()
        times: list[float] = []
        while len(times) < _LEAST_CALLS or sum(times) < _LEAST_SECONDS:
            began = time.perf_counter()
            self.call()
            times.append(time.perf_counter() - began)
        return min(times)


@in_double
def compile_step(method: Method, size: Size) -> Step:
    """Return the step of a method, on rows that are uniform over a range that grows with M."""
    rng = np.random.default_rng(0)
    # As many features for a lengthscale however many there are, as when they are needed.
    x = rng.uniform(-1.0, 1.0, size.batch_size) * size.num_features / 10
    batch = Batch(x[:, None], np.sin(x) + 0.1 * rng.standard_normal(size.batch_size))
    if method == "inducing points":
        objective, parameters = _inducing_points(size, batch)
    else:
        objective, parameters = _orthogonal_features(method, size, x)
    parameters = jax.tree.map(jnp.asarray, parameters)
    batch, key = jax.tree.map(jnp.asarray, batch), jax.random.key(0)
    compiled = jax.jit(jax.value_and_grad(objective)).lower(parameters, batch, key).compile()
    analysis = compiled.memory_analysis()
    return Step(
        lambda: jax.block_until_ready(compiled(parameters, batch, key)),
        int(analysis.temp_size_in_bytes) if analysis is not None else 0,
    )


def _orthogonal_features(
    covariance: Covariance, size: Size, x: np.ndarray
) -> tuple[Callable[..., Any], Parameters]:
    a = np.pi * (size.num_features // 2) / np.max(np.abs(x))
    features = Trig(size.num_features, a=a, centre=0.0)
    model = StochasticModel(features, _KERNEL, _NOISE_VARIANCE, covariance).placed(x[:, None])
    num_rows = _ROWS_PER_BATCH * size.batch_size
    objective = partial(model.estimate, num_samples=size.num_samples, num_rows=num_rows)
    return objective, model.start()


def _inducing_points(size: Size, batch: Batch) -> tuple[Callable[..., Any], SparseVariational]:
    spread = float(np.max(np.abs(batch.X)))
    slots = learned_slots(_KERNEL)
    model = SparseVariational(
        template=_KERNEL,
        slots=slots,
        log_parameters=pack(_KERNEL, slots),
        likelihood=Gaussian(np.log(_NOISE_VARIANCE)),
        Z=np.linspace(-spread, spread, size.num_features)[:, None],
        q=prior_normal("dense", size.num_features),
    )
    num_rows = _ROWS_PER_BATCH * size.batch_size
    return (lambda model, batch, key: model.elbo(batch.X, batch.y, num_rows)), model


# ---------------------------------------------------------------------- results


def _size_along(name: str, row: Mapping[str, Value]) -> float:
    """Return the number that a sweep varies."""
    column = {"batch size": "batch_size", "T": "num_samples"}.get(name, "num_features")
    return number(row, column)


def _exponents(name: str, rows: Sequence[Row]) -> tuple[float, float]:
    """Return the slopes of log seconds and of log memory."""
    sizes = [_size_along(name, row) for row in rows]
    of_time, of_memory = (
        power_law(sizes, [number(row, column) for row in rows])[0]
        for column in ("seconds_per_step", "temporary_bytes")
    )
    return of_time, of_memory


def _draw(sweeps: Mapping[tuple[str, str], Sequence[Row]], plan: Plan) -> Figure:
    names = list(plan.sweeps)
    with figure_style():
        figure, grid = make_panels(
            2, len(names), size=(3.3 * len(names), 5.6), sharex="col", sharey="row"
        )
        m, n, t = plan.held
        set_title(
            figure, f"One step, value and gradient; unless varied M = {m}, Ñ = {n:,}, T = {t}"
        )
        columns = (("seconds_per_step", "seconds"), ("temporary_bytes", "temporary memory / MB"))
        for axes_row, (column, label) in zip(grid, columns, strict=True):
            for axes, name in zip(axes_row, names, strict=True):
                for index, method in enumerate(METHODS):
                    # What has no T does not depend on it.
                    key = "M" if name == "M, T = 2M" and method == METHODS[-1] else name
                    rows = sweeps.get((key, method))
                    if rows is None:
                        continue
                    scale = 1.0 if column == "seconds_per_step" else 1e-6
                    shown = f"Trig, {method} S" if method != METHODS[-1] else f"{method}, dense S"
                    draw_points(
                        axes,
                        [_size_along(name, row) for row in rows],
                        [scale * number(row, column) for row in rows],
                        index,
                        shown,
                    )
                axes.set_yscale("log")
            axes_row[0].set_ylabel(label)
        for axes, (name, sizes) in zip(grid[1], plan.sweeps.items(), strict=True):
            axes.set_xlabel(name)
            set_log_ticks(axes, [int(_size_along(name, size._asdict())) for size in sizes])
        add_legend(figure)
    return figure
