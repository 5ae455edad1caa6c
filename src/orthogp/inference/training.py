r"""Stochastic ascent of a bound: minibatches, Adam, natural gradients, and when to stop.

Steps run in compiled blocks (`lax.scan`), so that Python is not in their loop. After each block the
mean of its estimates and their standard error are known; training ends when the mean has stopped
rising by more than its noise, after having lowered the learning rate a few times. Everything random
follows from the seed and the number of the block, so that a run can be repeated, or interrupted and
resumed, to the same end.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray

from orthogp.errors import FitWarning, InputError
from orthogp.inference.natural import natural_step
from orthogp.inference.threads import one_thread
from orthogp.precision import AnyArray, in_double

# The fewest blocks over which the rise of the estimates is judged, and how often the learning rate
# falls before training ends.
_WINDOW = 5
_DECAYS, _DECAY = 4, 0.3
# Every so many blocks the noise of the frequencies is measured, with so many draws.
_MEASURE_EVERY, _DRAWS = 5, 16
# The largest ratio of that noise, averaged over a block, to the rise over a window.
_NOISE_TO_PROGRESS = 0.3
# Noise of a block's mean, in nats, that is worth no more samples.
_NEGLIGIBLE = 0.05


class Batch(NamedTuple):
    """Rows of one step."""

    X: Float[AnyArray, "b d"]
    y: Float[AnyArray, " b"]


class Objective(Protocol):
    """An unbiased estimate of the bound over all rows from a batch of them."""

    def __call__(self, parameters: Any, batch: Batch, key: jax.Array) -> Float[AnyArray, ""]:
        """Return the estimate, of 64-bit type and differentiable in the parameters."""
        ...


@dataclass(frozen=True)
class TrainingSettings:
    """How to train.

    Attributes
    ----------
    batch_size : int or None
        Rows of a step; `None` takes all.
    num_samples : int or None
        T, frequencies of either set; `None` starts at the number of features and doubles T while
        their noise, not that of the batches, hides the progress.
    sampler : {"stratified", "independent"}
    max_steps : int
    learning_rate : float or callable
        Adam's, or a schedule from the step to it (such as optax offers).
    natural : float or None
        Step size of natural gradients for q(u); `None` leaves q(u) to Adam.
    stop_early : bool
        Whether to stop when the estimates no longer rise by more than their noise.
    block : int
        Steps that are compiled together.
    seed : int
    checkpoint : path or None
        Where the state is kept after every block, and found again by a later run.
    progress : callable or None
        Called after each block with a `Progress`.
    """

    batch_size: int | None = None
    num_samples: int | None = None
    sampler: str = "stratified"
    max_steps: int = 20_000
    learning_rate: float | Callable[[int], Any] = 1e-2
    natural: float | None = None
    stop_early: bool = True
    block: int = 100
    seed: int = 0
    checkpoint: str | Path | None = None
    progress: Callable[[Progress], object] | None = None


class Progress(NamedTuple):
    """Where training stands after a block: its mean estimate, and the standard error of that."""

    step: int
    max_steps: int
    elbo: float
    standard_error: float
    num_samples: int


class State(eqx.Module):
    """All that a run needs to go on."""

    parameters: Any
    optimiser: Any
    history: list[Progress] = eqx.field(static=True, default_factory=list)
    num_samples: int = eqx.field(static=True, default=0)
    decays: int = eqx.field(static=True, default=0)
    judged: int = eqx.field(static=True, default=0)


@dataclass(frozen=True)
class Trained:
    """Where training ended.

    Attributes
    ----------
    parameters
        Those of the last block without a NaN.
    history : list of Progress
        After each block.
    reason : str
        Why it ended, a sentence.
    converged : bool
        Whether the estimates had stopped rising.
    """

    parameters: Any
    history: list[Progress] = field(repr=False)
    reason: str
    converged: bool


class Rows:
    """Rows to draw batches from: arrays in memory, or mapped from files."""

    def __init__(self, X: ArrayLike, y: ArrayLike, batch_size: int | None) -> None:
        self.X, self.y = np.asanyarray(X), np.asanyarray(y)
        if batch_size is not None:
            whole = isinstance(batch_size, int | np.integer) and not isinstance(batch_size, bool)
            if not whole or not 1 <= batch_size <= len(self.y):
                raise InputError(
                    f"batch_size must be a whole number between 1 and the {len(self.y)} rows, got "
                    f"{batch_size!r}."
                )
        self.batch_size = batch_size

    def __len__(self) -> int:
        return len(self.y)

    def batches(self, count: int, rng: np.random.Generator) -> Batch:
        """Return `count` batches stacked, or all rows once if that is what a batch is."""
        if self.batch_size is None:
            return Batch(np.asarray(self.X), np.asarray(self.y))
        chosen = rng.integers(len(self), size=(count, self.batch_size))
        # In ascending order files are read forwards; rows of a batch may come in any order.
        flat, back = np.unique(chosen, return_inverse=True)
        back = back.reshape(chosen.shape)
        return Batch(np.asarray(self.X[flat])[back], np.asarray(self.y[flat])[back])


@in_double
def train(
    objective_with: Callable[[int], Objective],
    parameters: Any,
    rows: Rows,
    settings: TrainingSettings,
    *,
    first_samples: int = 2,
    most_samples: int = 2,
) -> Trained:
    """Return the parameters that maximise the expectation of an objective.

    Parameters
    ----------
    objective_with : callable
        Gives the objective that uses T frequencies.
    parameters : pytree
        To start from.
    first_samples, most_samples : int
        The smallest and the largest T to choose from if the settings leave it open.
    """
    start = settings.num_samples or first_samples
    parameters = jax.tree.map(jnp.asarray, parameters)
    state = State(parameters, optax.scale_by_adam().init(parameters), num_samples=start)
    state = _restored(state, settings)
    # Small factorisations: threads of LAPACK would only wait for each other.
    with one_thread():
        return _train(objective_with, state, rows, settings, most_samples)


def _train(
    objective_with: Callable[[int], Objective],
    state: State,
    rows: Rows,
    settings: TrainingSettings,
    most_samples: int,
) -> Trained:
    """Run block after block until there is a reason to stop."""
    compiled: _Compiled | None = None
    while True:
        done = state.history[-1].step if state.history else 0
        if done >= settings.max_steps:
            return _ended(state, f"all {settings.max_steps} steps are done", False)
        if compiled is None or state.num_samples != compiled.num_samples:
            objective = objective_with(state.num_samples)
            compiled = _Compiled(
                state.num_samples,
                _compiled_block(objective, len(rows), rows.batch_size is None, settings.natural),
                _compiled_noise(objective),
            )
        count = min(settings.block, settings.max_steps - done)
        rng = np.random.default_rng([settings.seed, done])
        batches = rows.batches(count, rng)
        key = jax.random.key(int(rng.integers(2**31)))
        rates = _rates(settings, done, count) * _DECAY**state.decays
        new_parameters, optimiser, estimates = compiled.run(
            state.parameters,
            state.optimiser,
            batches,
            jax.random.split(key, count),
            rates,
            (settings.natural or 0.0) * _DECAY**state.decays,
        )
        estimates = np.asarray(estimates)
        if not (np.all(np.isfinite(estimates)) and _finite(new_parameters)):
            reason = (
                f"the estimate of the bound became NaN or infinite after step {done}: lower the "
                "learning rate, or raise num_samples"
            )
            warnings.warn(f"Training stopped, {reason}.", FitWarning, stacklevel=6)
            return _ended(state, reason, False)
        step = Progress(
            done + count, settings.max_steps, *_mean_and_error(estimates), state.num_samples
        )
        state = State(
            new_parameters,
            optimiser,
            [*state.history, step],
            state.num_samples,
            state.decays,
            state.judged,
        )
        if settings.progress is not None:
            settings.progress(step)
        if settings.num_samples is None and len(state.history) % _MEASURE_EVERY == 0:
            one = Batch(*(part if rows.batch_size is None else part[0] for part in batches))
            draws = jax.random.split(key, _DRAWS)
            spread = float(np.std(compiled.noise(state.parameters, one, draws)))
            state = _with_enough_samples(state, spread, settings.block, most_samples)
        state, stop = _judged(state)
        _keep(state, settings)
        if stop and settings.stop_early:
            return _ended(state, "the bound no longer rises by more than its noise", True)


# ---------------------------------------------------------------------- blocks of steps


class _Compiled(NamedTuple):
    """What is compiled for one T."""

    num_samples: int
    run: Callable
    noise: Callable


def _compiled_block(
    objective: Objective, num_rows: int, full_batch: bool, natural: float | None
) -> Callable:
    """Return a compiled function that runs one step for each key and rate."""
    adam = optax.scale_by_adam()

    def step(carry, inputs):
        parameters, optimiser = carry
        batch, key, rate, rho = inputs
        estimate, ascent = jax.value_and_grad(objective)(parameters, batch, key)
        moved = parameters
        if natural is not None:
            share = 1 - (1 - natural) ** (optimiser.count + 1)
            moved, ascent = natural_step(objective, parameters, ascent, batch, key, rho, share)
            # The rest waits until q(u) has seen the data.
            rate = share * rate
        # Per row, for Adam's guard against division by zero to mean the same at every size.
        descent = jax.tree.map(lambda leaf: -leaf / num_rows, ascent)
        updates, optimiser = adam.update(descent, optimiser)
        parameters = jax.tree.map(lambda old, update: old - rate * update, moved, updates)
        return (parameters, optimiser), estimate

    @jax.jit
    def run(parameters, optimiser, batches, keys, rates, rho):
        def one(carry, inputs):
            if full_batch:
                return step(carry, (batches, *inputs, rho))
            return step(carry, (*inputs, rho))

        inputs = (keys, rates) if full_batch else (batches, keys, rates)
        (parameters, optimiser), estimates = lax.scan(one, (parameters, optimiser), inputs)
        return parameters, optimiser, estimates

    return run


def _compiled_noise(objective: Objective) -> Callable:
    """Return a compiled function that gives the estimates of one batch for several keys."""

    @jax.jit
    def estimates(parameters, batch, keys):
        return lax.map(lambda key: objective(parameters, batch, key), keys)

    return estimates


def _rates(settings: TrainingSettings, done: int, count: int) -> NDArray[np.float64]:
    if callable(settings.learning_rate):
        schedule = settings.learning_rate
        return np.array([float(schedule(step)) for step in range(done, done + count)])
    return np.full(count, float(settings.learning_rate))


# ---------------------------------------------------------------------- judgements


def _mean_and_error(estimates: NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean of a block and its standard error, a linear trend taken out."""
    count = len(estimates)
    if count < 4:
        return float(np.mean(estimates)), float(np.std(estimates) / np.sqrt(count))
    time = np.arange(count) - (count - 1) / 2
    slope = time @ estimates / (time @ time)
    left = estimates - estimates.mean() - slope * time
    return float(np.mean(estimates)), float(np.sqrt(left @ left / (count - 2) / count))


def _judged(state: State) -> tuple[State, bool]:
    """Return the state, its learning rate lowered unless the bound has risen; whether to stop."""
    blocks = len(state.history) - state.judged
    if blocks < 2 * _WINDOW:
        return state, False
    gain, error = _gain(state)
    if gain > 2 * error:
        return state, False
    lowered = State(
        state.parameters,
        state.optimiser,
        state.history,
        state.num_samples,
        state.decays + 1,
        len(state.history),
    )
    return lowered, lowered.decays > _DECAYS


def _gain(state: State) -> tuple[float, float]:
    """Return the rise of the mean between the halves of the blocks last judged, and its error.

    The halves grow until they are judged again, so that a slow rise is told from noise.
    """
    recent = state.history[state.judged :]
    half = len(recent) // 2
    late, early = recent[-half:], recent[-2 * half : -half]
    gain = np.mean([p.elbo for p in late]) - np.mean([p.elbo for p in early])
    error = np.sqrt(sum(p.standard_error**2 for p in (*late, *early))) / half
    return float(gain), float(error)


def _with_enough_samples(state: State, spread: float, block: int, most: int) -> State:
    """Return the state with twice the samples if their noise hides the progress."""
    if len(state.history) - state.judged < 2 * _WINDOW or 2 * state.num_samples > most:
        return state
    gain, _ = _gain(state)
    total = state.history[-1].standard_error * np.sqrt(block)
    allowed = max(_NOISE_TO_PROGRESS * gain, _NEGLIGIBLE)
    if spread / np.sqrt(block) < allowed or spread**2 < 0.5 * total**2:
        return state
    return State(
        state.parameters,
        state.optimiser,
        state.history,
        2 * state.num_samples,
        state.decays,
        state.judged,
    )


def _finite(parameters: Any) -> bool:
    return all(bool(np.all(np.isfinite(leaf))) for leaf in jax.tree.leaves(parameters))


def _ended(state: State, reason: str, converged: bool) -> Trained:
    parameters = jax.tree.map(np.asarray, state.parameters)
    return Trained(parameters, state.history, reason, converged)


# ---------------------------------------------------------------------- to be resumed


def _keep(state: State, settings: TrainingSettings) -> None:
    """Write the state to the checkpoint, whole or not at all."""
    if settings.checkpoint is None:
        return
    path = Path(settings.checkpoint)
    unfinished = path.with_name(path.name + ".part")
    header = {
        "history": state.history,
        "num_samples": state.num_samples,
        "decays": state.decays,
        "judged": state.judged,
        "seed": settings.seed,
    }
    with unfinished.open("wb") as file:
        file.write((json.dumps(header) + "\n").encode())
        eqx.tree_serialise_leaves(file, (state.parameters, state.optimiser))
    unfinished.replace(path)


def _restored(fresh: State, settings: TrainingSettings) -> State:
    """Return the state of the checkpoint if there is one, else the fresh one."""
    if settings.checkpoint is None or not Path(settings.checkpoint).exists():
        return fresh
    with Path(settings.checkpoint).open("rb") as file:
        header = json.loads(file.readline())
        if header["seed"] != settings.seed:
            raise InputError(
                f"The checkpoint {settings.checkpoint} is of a run with seed {header['seed']}, not "
                f"{settings.seed}: give that seed, or another path."
            )
        try:
            like = (fresh.parameters, fresh.optimiser)
            parameters, optimiser = eqx.tree_deserialise_leaves(file, like)
        except (RuntimeError, ValueError, TypeError, EOFError) as error:
            raise InputError(
                f"The checkpoint {settings.checkpoint} is of another model: give another path."
            ) from error
    history = [Progress(*entry) for entry in header["history"]]
    return State(
        parameters, optimiser, history, header["num_samples"], header["decays"], header["judged"]
    )
