r"""Stochastic ascent of a bound: mini-batches, Adam, natural gradients, and when to stop.

Steps run in compiled blocks (`lax.scan`), so that Python is not in their loop. After each block the
mean of its estimates and their standard error are known; training ends when the mean has stopped
rising by more than its noise, after having lowered the learning rate a few times. With natural
gradients a last phase holds all but q(u) and averages its steps, for q(u) follows moving
hyperparameters at a distance, and noise keeps it from rest. Everything random follows from the seed
and the number of the block, so that a run can be repeated, or interrupted and resumed, to the same
end.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray

from orthogp.errors import FitWarning, InputError
from orthogp.persistence import PRIVATE, replacing
from orthogp.precision import AnyArray, in_double, one_thread

# The fewest blocks over which the rise of the estimates is judged.
_WINDOW = 5
# The number of times that the learning rate falls before training ends.
_DECAYS = 4
# The factor by which the learning rate falls.
_DECAY = 0.3
# The share of all steps at which the last phase begins at the latest.
_LAST_PHASE = 0.9
# The number of draws that the noise of the frequencies is measured with.
_DRAWS = 16
# The largest noise of a block's mean, in nats, at which T stays.
_NEGLIGIBLE_NOISE = 0.05
# The largest rise over the blocks judged, in nats, at which steps become smaller.
_NEGLIGIBLE_RISE = 0.01
# The fields of the state that the first line of a checkpoint holds.
_KEPT = ("history", "num_samples", "decays", "judged", "last_phase")


# ---------------------------------------------------------------------- settings and state


class Batch(NamedTuple):
    """Rows of one step."""

    X: Float[AnyArray, "b d"]
    y: Float[AnyArray, " b"]


#: An unbiased estimate of the bound over all rows, differentiable in the parameters, from
#: parameters, a batch and a random key; of 64-bit type.
Objective = Callable[[Any, Batch, jax.Array], Float[AnyArray, ""]]


@dataclass(frozen=True)
class TrainingSettings:
    """How to train.

    Attributes
    ----------
    batch_size : int or None
        Rows of a step; `None` takes all.
    num_samples : int or None
        T, frequencies of either set; `None` starts at the number of features and doubles T
        whenever the noise of the frequencies, not of the batches, hides the progress.
    sampler : {"stratified", "independent"}
    max_steps : int
    max_seconds : float or None
        Training ends with the block in which they run out.
    learning_rate : float or callable
        Adam's, or a schedule from the step to it (such as optax offers).
    natural : float or None
        Step size of natural gradients for q(u); `None` leaves q(u) to Adam.
    stop_early : bool
        Whether to lower the learning rate, and in the end to stop, when the estimates no longer
        rise by more than their noise; if not, the learning rate is as given, and T stays.
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
    sampler: Literal["stratified", "independent"] = "stratified"
    max_steps: int = 20_000
    max_seconds: float | None = None
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


class TrainingState(NamedTuple):
    """All that a run needs to go on, and in the end what came of it.

    Attributes
    ----------
    parameters
        Those of the last block without a NaN.
    judged : int
        The number of blocks at which the rise of the bound was last judged.
    last_phase : int or None
        The step at which the last phase began, if it has.
    reason : str
        Why training ended, a sentence.
    converged : bool
        Whether the estimates had stopped rising.
    """

    parameters: Any
    optimiser: Any
    history: list[Progress]
    num_samples: int
    decays: int = 0
    judged: int = 0
    last_phase: int | None = None
    reason: str = ""
    converged: bool = False

    @property
    def step(self) -> int:
        """The number of steps done."""
        return self.history[-1].step if self.history else 0

    def ended(self, reason: str, *, converged: bool = False) -> TrainingState:
        """Return the state at the end, its parameters as NumPy arrays."""
        parameters = jax.tree.map(np.asarray, self.parameters)
        return self._replace(parameters=parameters, reason=reason, converged=converged)


class BatchSource:
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


# ---------------------------------------------------------------------- training


@in_double
def train(
    objective_with: Callable[[int], Objective],
    parameters: Any,
    rows: BatchSource,
    settings: TrainingSettings,
    samples: tuple[int, int] = (2, 2),
) -> TrainingState:
    """Return the parameters that maximise the expectation of an objective.

    Parameters
    ----------
    objective_with : callable
        Gives the objective that uses T frequencies.
    parameters : pytree
        To start from; a field `q` holds q(u).
    samples : (int, int)
        The smallest and the largest T to choose from if the settings leave it open.
    """
    parameters = jax.tree.map(jnp.asarray, parameters)
    optimiser = optax.scale_by_adam().init(parameters)
    state = TrainingState(parameters, optimiser, [], settings.num_samples or samples[0])
    state = _restored(state, settings)

    # One T at a time.
    @lru_cache(maxsize=1)
    def compiled(num_samples: int) -> tuple[Callable, Callable]:
        objective = objective_with(num_samples)
        return _compiled_block(objective, rows, settings.natural), compiled_estimates(objective)

    began = time.monotonic()
    # Small factorisations: threads of LAPACK would only wait for each other.
    with one_thread():
        while True:
            done = state.step
            if done >= settings.max_steps:
                return state.ended(f"all {settings.max_steps} steps are done")
            state = _in_phase(state, settings)
            run, noise = compiled(state.num_samples)
            count = min(settings.block, settings.max_steps - done)
            rng = np.random.default_rng([settings.seed, done])
            batches = rows.batches(count, rng)
            key = jax.random.key(int(rng.integers(2**31)))
            parameters, optimiser, estimates = run(
                state.parameters,
                state.optimiser,
                batches,
                (jax.random.split(key, count), *_step_sizes(state, settings, count)),
            )
            estimates = np.asarray(estimates)
            if not all(
                np.isfinite(leaf).all() for leaf in jax.tree.leaves((estimates, parameters))
            ):
                reason = (
                    f"the estimate of the bound became NaN or infinite after step {done}: lower "
                    "the learning rate, or raise num_samples"
                )
                warnings.warn(f"Training stopped, {reason}.", FitWarning, stacklevel=5)
                return state.ended(reason)
            block = *_mean_and_error(estimates), state.num_samples
            progress = Progress(done + count, settings.max_steps, *block)
            history = [*state.history, progress]
            state = state._replace(parameters=parameters, optimiser=optimiser, history=history)
            if settings.progress is not None:
                settings.progress(progress)
            stop = False
            if settings.stop_early and _stalled(state):
                one = Batch(*(part if rows.batch_size is None else part[0] for part in batches))
                keys = jax.random.split(key, _DRAWS)
                spread = partial(noise, parameters, one, keys)
                state, stop = _judged(state, settings, spread, samples[1])
            _save_checkpoint(state, settings)
            if settings.max_seconds is not None and time.monotonic() - began > settings.max_seconds:
                return state.ended(f"the time of {settings.max_seconds:.3g} s ran out")
            if stop:
                return state.ended(
                    "the bound no longer rises by more than its noise", converged=True
                )


# ---------------------------------------------------------------------- blocks of steps


def _compiled_block(objective: Objective, rows: BatchSource, natural: float | None) -> Callable:
    """Return a compiled function that runs one step for each key, rate and natural step."""
    adam = optax.scale_by_adam()

    def step(carry, inputs):
        parameters, optimiser = carry
        batch, (key, rate, rho) = inputs
        estimate, ascent = jax.value_and_grad(objective)(parameters, batch, key)
        if natural is not None:
            share = 1 - (1 - natural) ** (optimiser.count + 1)
            start = parameters
            moved = start.q.natural_step(
                lambda q: objective(_with_q(start, q), batch, key), ascent.q, rho, share
            )
            parameters = _with_q(start, moved)
            # The gradient of the other parameters at the new q(u), from new frequencies: at the
            # best q(u) it is the gradient of the collapsed bound; elsewhere q(u) holds them back.
            again = jax.grad(objective)(parameters, batch, jax.random.fold_in(key, 1))
            ascent = _with_q(again, jax.tree.map(jnp.zeros_like, again.q))
            # The rest waits until q(u) has seen the data.
            rate = share * rate
        # Per row, for Adam's guard against division by zero to mean the same at every size.
        descent = jax.tree.map(lambda leaf: -leaf / len(rows), ascent)
        updates, optimiser = adam.update(descent, optimiser)
        parameters = jax.tree.map(lambda old, update: old - rate * update, parameters, updates)
        return (parameters, optimiser), estimate

    @jax.jit
    def run(parameters, optimiser, batches, steps):
        # All rows, if they are the batch of every step, are not stacked.
        full = rows.batch_size is None

        def one(carry, inputs):
            return step(carry, (batches, inputs) if full else inputs)

        inputs = steps if full else (batches, steps)
        carry, estimates = lax.scan(one, (parameters, optimiser), inputs)
        return *carry, estimates

    return run


def _with_q(parameters: Any, q: Any) -> Any:
    """Return a copy of all parameters with another q(u)."""
    return eqx.tree_at(lambda tree: tree.q, parameters, q)


def compiled_estimates(objective: Objective) -> Callable:
    """Return a compiled function that gives the estimates of one batch for several keys."""

    @jax.jit
    def estimates(parameters, batch, keys):
        return lax.map(lambda key: objective(parameters, batch, key), keys)

    return estimates


def _in_phase(state: TrainingState, settings: TrainingSettings) -> TrainingState:
    """Return the state, in its last phase if that is to begin."""
    if settings.natural is None or state.last_phase is not None:
        return state
    if state.decays > _DECAYS or state.step >= _LAST_PHASE * settings.max_steps:
        return state._replace(last_phase=state.step, judged=len(state.history))
    return state


def _step_sizes(
    state: TrainingState, settings: TrainingSettings, count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return Adam's learning rates and the sizes of natural steps, for the next `count` steps."""
    done = state.step
    natural = np.full(count, settings.natural or 0.0)
    if state.last_phase is not None:
        # Steps of size 1/k are an average.
        return np.zeros(count), 1 / (1 / natural + np.arange(count) + done - state.last_phase)
    schedule = settings.learning_rate
    if callable(schedule):
        rates = np.array([float(schedule(step)) for step in range(done, done + count)])
    else:
        rates = np.full(count, float(schedule))
    return rates * _DECAY**state.decays, natural


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


def _stalled(state: TrainingState) -> bool:
    """Return whether the bound has risen little, or not above its noise, since last judged.

    Its means over two halves of the blocks are compared. The halves grow until they are judged
    again, so that a slow rise is told from noise.
    """
    recent = state.history[state.judged :]
    half = len(recent) // 2
    if half < _WINDOW:
        return False
    early, late = ([p.elbo for p in part] for part in (recent[-2 * half : -half], recent[-half:]))
    within = sum(p.standard_error**2 for p in recent[-2 * half :]) / half
    # Blocks may wander more than the steps within them tell.
    between = np.var(early, ddof=1) + np.var(late, ddof=1)
    error = np.sqrt(max(within, between) / half)
    return bool(np.mean(late) - np.mean(early) <= max(2 * error, _NEGLIGIBLE_RISE))


def _judged(
    state: TrainingState, settings: TrainingSettings, noise: Callable[[], AnyArray], most: int
) -> tuple[TrainingState, bool]:
    """Return the state of a run that has stalled, with more samples or smaller steps.

    And whether to stop: with natural gradients after the last phase, else after some lowerings of
    the learning rate.
    """
    state = state._replace(judged=len(state.history))
    if settings.num_samples is None and 2 * state.num_samples <= most:
        # Whether the noise of the frequencies hides the progress, rather than that of the batches.
        spread = float(np.std(noise()))
        total = state.history[-1].standard_error * np.sqrt(settings.block)
        matters = spread / np.sqrt(settings.block) > _NEGLIGIBLE_NOISE
        if matters and spread**2 > 0.5 * total**2:
            return state._replace(num_samples=2 * state.num_samples), False
    lowered = state._replace(decays=state.decays + 1)
    if settings.natural is None:
        return lowered, lowered.decays > _DECAYS
    return lowered, state.last_phase is not None


# ---------------------------------------------------------------------- checkpoints


def _save_checkpoint(state: TrainingState, settings: TrainingSettings) -> None:
    """Write the state to the checkpoint, whole or not at all."""
    if settings.checkpoint is None:
        return
    header = {name: getattr(state, name) for name in _KEPT} | {"seed": settings.seed}
    with replacing(settings.checkpoint, PRIVATE) as file:
        file.write((json.dumps(header) + "\n").encode())
        eqx.tree_serialise_leaves(file, (state.parameters, state.optimiser))


def _restored(fresh: TrainingState, settings: TrainingSettings) -> TrainingState:
    """Return the state of the checkpoint if there is one, else the fresh one."""
    if settings.checkpoint is None or not Path(settings.checkpoint).exists():
        return fresh
    try:
        with Path(settings.checkpoint).open("rb") as file:
            header = json.loads(file.readline())
            kept = {name: header[name] for name in _KEPT}
            kept["history"] = [Progress(*entry) for entry in kept["history"]]
            like = (fresh.parameters, fresh.optimiser)
            parameters, optimiser = eqx.tree_deserialise_leaves(file, like)
            seed = header["seed"]
    except (RuntimeError, ValueError, TypeError, KeyError, EOFError) as error:
        raise InputError(
            f"The checkpoint {settings.checkpoint} is of another model: give another path."
        ) from error
    if seed != settings.seed:
        raise InputError(
            f"The checkpoint {settings.checkpoint} is of a run with seed {seed}, not "
            f"{settings.seed}: give that seed, or another path."
        )
    return fresh._replace(parameters=parameters, optimiser=optimiser, **kept)
