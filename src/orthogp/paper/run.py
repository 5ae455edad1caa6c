r"""How experiments run, and the fits that they make of the paper's features.

Each experiment is a class whose fields are its settings: by default the paper's, and smaller ones
that show the way by `quick`. `reproduce` writes a figure and beside it CSV files whose rows are
kept from one run to the next.

With φ the features and d(x) = k(0) − Σ φ_m(x)² the variance that they leave out, any q(u) gives

    mean f(x) = φ(x)ᵀm,      var f(x) = d(x) + φ(x)ᵀ S φ(x)
    ELBO = Σ_n [−½ log 2πσ² − ((y_n − mean f(x_n))² + var f(x_n))/(2σ²)] − KL(N(m, S)‖N(0, I))

In the collapsed bound q(u) is at its optimum. With Φ the features of the rows, B = I + ΦᵀΦ/σ² and
c = L⁻¹Φᵀy/σ for B = LLᵀ, it is

    −N/2 log 2πσ² − ½ log|B| − (yᵀy − cᵀc)/(2σ²) − (N k(0) − tr ΦᵀΦ)/(2σ²)

for a dense S, and with Σ_m log B_mm in place of log|B| for a diagonal one. The features are those
of the paper, in their closed form or by quadrature, without a periodic prior.
"""

from __future__ import annotations

import csv
import time
from abc import abstractmethod
from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from orthogp.errors import InputError
from orthogp.features import SpectralFeatures, Trig
from orthogp.features.base import gauss_panels, prior_variance
from orthogp.features.hermite import Eigenfunction, traced_members
from orthogp.features.inducing import covariance_matrix
from orthogp.features.series import safe_sqrt
from orthogp.inference.moments import moments_from_rows
from orthogp.inference.predictive import Gaussian
from orthogp.kernels import RBF, Kernel
from orthogp.learning.optimise import Budget, search
from orthogp.paper import EXPERIMENTS
from orthogp.persistence import replacing
from orthogp.precision import AnyArray, in_double
from orthogp.report import plots
from orthogp.stochastic.bound import StochasticModel, train_stochastic
from orthogp.stochastic.normals import Covariance, DenseNormal, factorised_posterior
from orthogp.stochastic.training import TrainingSettings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Write = Callable[[str], object]
Value = str | int | float | bool
Row = dict[str, Value]

# Okabe and Ito's colours.
BLUE = "#0072B2"
GREEN = "#009E73"
VERMILLION = "#D55E00"
PURPLE = "#CC79A7"
BLACK = "#000000"
GREY = "#777777"
#: As in the paper's figure 3.
COVARIANCE_COLOURS = {"dense": BLUE, "diagonal": GREEN}
CURVES = (BLUE, VERMILLION, GREEN, PURPLE, "#56B4E9", "#E69F00", BLACK)
MARKERS = "osD^v<>"

# The width of one column of a legend, in inches.
_LEGEND_COLUMN = 2.7
_STYLE = {**plots.STYLE, "font.size": 9, "axes.titlesize": 9.5, "lines.linewidth": 1.4}


def run_experiments(names: Sequence[str], out: Path, *, quick: bool, write: Write) -> list[Path]:
    """Return the paths of all that some experiments write.

    Parameters
    ----------
    names : sequence of str
        Of `orthogp.paper.EXPERIMENTS`.
    out : path
        A directory, made if missing. Rows that are there already are not computed again.
    quick : bool
        Whether to take the smaller settings.
    write : callable
        Given a line of text when a run ends.
    """
    plots.require_matplotlib()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"The results cannot go to {out} ({error.strerror}): give another directory."
        ) from error
    paths = []
    for name in names:
        module, kind = EXPERIMENTS[name].split(".")
        experiment = getattr(import_module(f"orthogp.paper.{module}"), kind)
        paths += (experiment.quick() if quick else experiment()).reproduce(out, write)
    return paths


# ---------------------------------------------------------------------- results


class Ledger:
    """The rows of a CSV file, one for each finished run, found again by their settings.

    A row is in the file as soon as its run ends. What was interrupted is run again the next time,
    what is there is not, and runs with other settings stand beside it.

    Parameters
    ----------
    path : path
        Made when the first row is added.
    settings : sequence of str
        The columns that say which run it was.
    results : sequence of str
        The columns that say what came of it.
    write : callable
        Given a line that names each run and how long it took.
    """

    def __init__(
        self, path: Path, settings: Sequence[str], results: Sequence[str], write: Write
    ) -> None:
        self.path = path
        self._write = write
        self._settings = tuple(settings)
        self._names = (*settings, *results)
        self._rows = self._read()

    def find(self, settings: Mapping[str, Value]) -> Row | None:
        """Return the row of a run, or `None` if there is none yet."""
        return self._rows.get(self._key(settings))

    def add(self, *rows: Mapping[str, Value]) -> None:
        """Append rows, all of them at once."""
        lines = [[_as_text(row[name]) for name in self._names] for row in rows]
        is_new = not self.path.exists()
        with self.path.open("a", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            if is_new:
                writer.writerow(self._names)
            writer.writerows(lines)
        for row in rows:
            self._rows[self._key(row)] = {name: row[name] for name in self._names}

    def run(self, settings: Mapping[str, Value], compute: Callable[[], Mapping[str, Value]]) -> Row:
        """Return the row of a run, which is computed only if it is not there.

        `compute` returns the results; `seconds`, if it is a column, is added to them.
        """
        return self.run_together([settings], lambda: [compute()])[0]

    def run_together(
        self,
        settings: Sequence[Mapping[str, Value]],
        compute: Callable[[], Sequence[Mapping[str, Value]]],
    ) -> list[Row]:
        """Return the rows of runs that are computed all at once, unless all are there."""
        names = [", ".join(f"{key} {_as_text(run[key])}" for key in run) for run in settings]
        kept = [row for run in settings if (row := self.find(run)) is not None]
        if len(kept) == len(settings):
            for name in names:
                self._write(f"{self.path.stem}: {name}: kept")
            return kept
        began = time.perf_counter()
        results = compute()
        seconds = (time.perf_counter() - began) / len(settings)
        rows = [
            {"seconds": round(seconds, 3), **run, **result}
            for run, result in zip(settings, results, strict=True)
        ]
        self.add(*rows)
        for name in names:
            self._write(f"{self.path.stem}: {name}: {seconds:.1f} s")
        return rows

    def _key(self, settings: Mapping[str, Value]) -> tuple[str, ...]:
        return tuple(_as_text(settings[name]) for name in self._settings)

    def _read(self) -> dict[tuple[str, ...], Row]:
        if not self.path.exists():
            return {}
        text = self.path.read_text("utf-8")
        # A run that was cut short while it wrote leaves half a line, which would spoil the next.
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            with replacing(self.path) as stream:
                stream.write(whole.encode())
        header, *lines = csv.reader(whole.splitlines()) if whole else [list(self._names)]
        if tuple(header) != self._names:
            raise InputError(
                f"{self.path} has other columns than this version writes: move it away, or give "
                "another directory."
            )
        if not whole:
            self.path.unlink()
        rows = (dict(zip(self._names, map(_as_value, line), strict=True)) for line in lines)
        return {self._key(row): row for row in rows}


def number(row: Mapping[str, Value], name: str) -> float:
    """Return a result as a number."""
    return float(row[name])


def column(rows: Sequence[Mapping[str, Value]], name: str) -> list[float]:
    """Return a result of each row as a number."""
    return [number(row, name) for row in rows]


def _as_text(value: Value) -> str:
    """Return the shortest text that reads back as the same value."""
    if isinstance(value, bool | str | int):
        return str(value)
    return repr(float(value))


def _as_value(text: str) -> Value:
    """Return the number or the truth value that a text stands for, or the text itself."""
    try:
        return literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def power_law(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Return exponent p and factor c of the least-squares line log y = log c + p log x."""
    exponent, intercept = np.polyfit(np.log(x), np.log(y), 1)
    return float(exponent), float(np.exp(intercept))


# ---------------------------------------------------------------------- figures


@contextmanager
def drawn(
    path: Path, shape: tuple[int, int], *, size: tuple[float, float], title: str, **shared: Any
) -> Iterator[NDArray[Any]]:
    """Give a grid of axes to draw on, then write the figure with a title and one legend."""
    matplotlib = plots.require_matplotlib()
    with matplotlib.rc_context(_STYLE):
        figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
        yield figure.subplots(*shape, squeeze=False, **shared)
        # Every label once.
        handles: dict[str, Any] = {}
        for axes in figure.axes:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
        if handles:
            figure.legend(
                list(handles.values()),
                list(handles),
                loc="outside lower center",
                ncols=max(1, min(len(handles), int(figure.get_figwidth() / _LEGEND_COLUMN))),
            )
    plots.save(figure, path)


def draw_points(
    axes: Axes, x: Sequence[float], y: Sequence[float], number: int, label: str
) -> None:
    """Draw measured points joined by a line, in the looks of the `number`-th curve."""
    axes.plot(
        x,
        y,
        color=CURVES[number % len(CURVES)],
        marker=MARKERS[number % len(MARKERS)],
        markersize=5,
        markeredgecolor="white",
        markeredgewidth=0.5,
        label=label,
    )


def set_log_ticks(axes: Axes, numbers: Sequence[int]) -> None:
    """Make the x axis logarithmic, with these numbers printed below it."""
    axes.set_xscale("log")
    axes.set_xticks(numbers, [f"{number:,}" for number in numbers])
    axes.set_xticks([], minor=True)


# The smallest variance, lengthscale, noise variance and scale; no sensible value is near.
_LOWER = (1e-3, 1e-2, 1e-7, 0.1)
# The largest variance, lengthscale and noise variance; no sensible value is near.
_UPPER = (1e3, 20.0, 10.0)
# The largest standard deviation of the inputs that Hermite features stand for.
_LARGEST_SD = 100.0
# The largest a for few features; it bounds the number of quadrature nodes.
_LARGEST_A = 12.0
# The factor of which the number of quadrature nodes is a multiple.
_NODES_MULTIPLE = 128
# The largest number of iterations of L-BFGS.
_MAX_ITERATIONS = 300


# ---------------------------------------------------------------------- rows and q(u)


def draw_targets(
    kernel: Kernel, noise_variance: float, X: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return targets drawn from the model at the rows of X, (n,)."""
    K = np.asarray(covariance_matrix(kernel, X, X)) + 1e-10 * np.eye(len(X))
    f = np.linalg.cholesky(K) @ rng.standard_normal(len(X))
    return f + np.sqrt(noise_variance) * rng.standard_normal(len(X))


class Approximation(NamedTuple):
    """q(u) = N(m, S) of some features: what stochastic training estimates."""

    features: SpectralFeatures
    kernel: Kernel
    noise_variance: float
    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]

    @classmethod
    def collapsed(
        cls, start: StochasticModel, X: NDArray[np.float64], y: NDArray[np.float64]
    ) -> Self:
        """Return the best q(u) of a model, in closed form."""
        features, kernel = start.features, start.kernel
        moments = moments_from_rows(features, kernel, X, y)
        size = features.num_features if start.covariance == "dense" else 1
        best = factorised_posterior(moments, start.noise_variance, size)
        return cls(features, kernel, start.noise_variance, best.mean[:, 0], best.covariance)

    def predict(self, X: NDArray[np.float64]) -> Gaussian:
        """Return mean and variance of f at the rows of X, each (n,)."""
        Phi = self.features.evaluate(self.kernel, X)
        left_out = np.maximum(prior_variance(self.kernel) - np.sum(Phi**2, axis=1), 0.0)
        return Gaussian(Phi @ self.mean, left_out + np.sum(Phi @ self.covariance * Phi, axis=1))

    @in_double
    def elbo(self, X: NDArray[np.float64], y: NDArray[np.float64]) -> float:
        """Return the evidence lower bound."""
        mean, variance = self.predict(X)
        squares = (y - mean) ** 2 + variance
        data_fit = -0.5 * np.sum(
            np.log(2 * np.pi * self.noise_variance) + squares / self.noise_variance
        )
        return float(data_fit - DenseNormal.of(self.mean, self.covariance).divergence())


# ---------------------------------------------------------------------- the collapsed bound


class Hyperparameters(NamedTuple):
    """Those of the kernel and the likelihood, and the one of the features: a, or the inputs' sd."""

    variance: float
    lengthscale: float
    noise_variance: float
    scale: float

    @property
    def kernel(self) -> RBF:
        """The kernel."""
        return RBF(self.variance, self.lengthscale)


class TracedFamily(eqx.Module):
    """Features of an RBF kernel in one column around zero, as JAX functions of its parameters.

    Attributes
    ----------
    first_scale, largest_scale : ()
        A scale that suits the inputs, to begin with, and the largest.
    """

    num_features: int = eqx.field(static=True)
    first_scale: NDArray[np.float64]
    largest_scale: NDArray[np.float64]

    @abstractmethod
    def phi(
        self, kernel: RBF, scale: Float[AnyArray, ""], x: Float[AnyArray, " n"]
    ) -> Float[AnyArray, "n m"]:
        """Return φ_m(x_n)."""


class TracedHermite(TracedFamily):
    """Hermite features by the standard deviation of the inputs they are eigenfunctions for.

    So did the paper; every value of it is admissible, which is not so for r.
    """

    def phi(self, kernel, scale, x) -> Float[AnyArray, "n m"]:
        """Return φ_m(x_n) in closed form."""
        terms = Eigenfunction.terms(kernel.variance, kernel.lengthscale, scale, x)
        return traced_members(terms, self.num_features)


class TracedTrig(TracedFamily):
    """Trig features by Gaussian quadrature over [0, 1]: its nodes, and the basis with weights."""

    nodes: NDArray[np.float64]
    table: NDArray[np.float64]

    def phi(self, kernel, scale, x) -> Float[AnyArray, "n m"]:
        """Return φ_m(x_n) = 2 ∫₀^a ψ_m √S trig(ωx) dω."""
        omegas = scale * self.nodes
        densities = jax.vmap(kernel.spectral_density)(omegas[:, None])
        table = self.table * safe_sqrt(scale * densities)
        phases = x[:, None] * omegas
        odd = Trig(self.num_features).is_odd(np.arange(self.num_features))
        Phi = jnp.empty((len(x), self.num_features))
        Phi = Phi.at[:, ~odd].set(jnp.cos(phases) @ table[~odd].T)
        return Phi.at[:, odd].set(jnp.sin(phases) @ table[odd].T)


def traced_family(name: str, num_features: int, x: NDArray[np.float64]) -> TracedFamily:
    """Return "trig" or "hermite" features for inputs (n,)."""
    if name == "hermite":
        return TracedHermite(num_features, np.asarray(float(np.std(x))), np.asarray(_LARGEST_SD))
    radius = float(np.max(np.abs(x)))
    # The outermost features lie at the edge of the inputs.
    first = np.pi * (num_features // 2) / radius
    # Few features may want to see more of the spectrum over less of the inputs.
    largest = max(np.pi * num_features / radius, _LARGEST_A)
    # A Gauss rule sees an oscillation from two nodes a turn on; panels need half as many more.
    size = int(0.75 * (largest * radius + np.pi * num_features / 2)) + 40
    # Few different sizes, for each of which the bound is compiled.
    size = _NODES_MULTIPLE * -(-size // _NODES_MULTIPLE)
    nodes, weights = gauss_panels(0.0, 1.0, size)
    table = 2 * weights * Trig(num_features).basis(nodes, num_features)
    return TracedTrig(num_features, np.asarray(first), np.asarray(largest), nodes, table)


class Learned(NamedTuple):
    """Where a search ended, the bound there, and whether a parameter pressed against its limit."""

    hyperparameters: Hyperparameters
    value: float
    at_limit: bool


class CollapsedObjective:
    """The bound as a function of the logarithms of `Hyperparameters`, for rows x (n,), y (n,)."""

    def __init__(
        self,
        family: TracedFamily,
        covariance: Covariance,
        x: NDArray[np.float64],
        y: NDArray[np.float64],
    ) -> None:
        self.family = family
        self._covariance: Covariance = covariance
        self._x, self._y = x, y
        self._lower = np.log(_LOWER)
        self._upper = np.log([*_UPPER, float(family.largest_scale)])

    def value_and_gradient(self, vector: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Return the bound and its gradient in the logarithms."""
        value, gradient = _value_and_gradient(
            vector, self.family, self._covariance, self._x, self._y
        )
        return float(value), np.asarray(gradient)

    def value(self, hyperparameters: Hyperparameters) -> float:
        """Return the bound."""
        return self.value_and_gradient(np.log(hyperparameters))[0]

    def learn(self, start: Hyperparameters) -> Learned:
        """Return where L-BFGS ends from a start."""
        found = search(
            self.value_and_gradient,
            np.clip(np.log(start), self._lower, self._upper),
            (self._lower, self._upper),
            Budget(_MAX_ITERATIONS),
        )
        margin = np.minimum(found.x - self._lower, self._upper - found.x)
        return Learned(
            Hyperparameters(*np.exp(found.x).tolist()), found.value, bool(np.any(margin < 1e-9))
        )


@in_double
@eqx.filter_jit
def _value_and_gradient(
    vector: NDArray, family: TracedFamily, covariance: Covariance, x: NDArray, y: NDArray
) -> tuple[AnyArray, AnyArray]:
    inputs, targets = jnp.asarray(x), jnp.asarray(y)

    def bound(vector: Float[AnyArray, "4"]) -> Float[AnyArray, ""]:
        variance, lengthscale, noise, scale = jnp.exp(vector)
        kernel = RBF(1.0, 1.0).with_parameters(variance=variance, lengthscale=lengthscale)
        Phi = family.phi(kernel, scale, inputs)
        gram = Phi.T @ Phi
        B = jnp.eye(len(gram)) + gram / noise
        chol = jnp.linalg.cholesky(B)
        c = jax.scipy.linalg.solve_triangular(chol, Phi.T @ targets / jnp.sqrt(noise), lower=True)
        if covariance == "dense":
            log_det = 2 * jnp.sum(jnp.log(jnp.diag(chol)))
        else:
            log_det = jnp.sum(jnp.log(jnp.diag(B)))
        left_out = len(x) * variance - jnp.trace(gram)
        return -0.5 * (
            len(x) * jnp.log(2 * jnp.pi * noise)
            + log_det
            + (targets @ targets - c @ c) / noise
            + left_out / noise
        )

    return jax.value_and_grad(bound)(jnp.asarray(vector))


# ---------------------------------------------------------------------- stochastic training


class Schedule(NamedTuple):
    """How a fit trains: T, steps of Adam with all rows, and the number of estimates in the end.

    As in the paper unless told otherwise: 2T samples for the mean and T² for the variance.
    """

    num_samples: int = 50
    max_steps: int = 30_000
    learning_rate: float = 5e-4
    repeats: int = 5000


def train(
    X: NDArray[np.float64], y: NDArray[np.float64], model: StochasticModel, schedule: Schedule
) -> tuple[Approximation, float, float]:
    """Return what Adam ends with, the average of estimates of its bound, and their standard error.

    The model is where training begins.
    """
    settings = TrainingSettings(
        num_samples=schedule.num_samples,
        max_steps=schedule.max_steps,
        learning_rate=schedule.learning_rate,
        stop_early=False,
    )
    fit = train_stochastic(X, y, model, settings)
    average, error = fit.average_elbo(
        X, y, num_samples=schedule.num_samples, repeats=schedule.repeats, seed=1
    )
    q = Approximation(fit.features, fit.kernel, fit.noise_variance, fit.mean, fit.covariance)
    return q, average, error
