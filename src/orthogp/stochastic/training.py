r"""Stochastic ascent of a bound: minibatches, Adam, natural gradients, and when to stop.

Steps run in compiled blocks (`lax.scan`), so that Python is not in their loop. After each block the
mean of its estimates and their standard error are known; training ends when the mean has stopped
rising by more than its noise, after having lowered the learning rate a few times. With natural
gradients a last phase holds all but q(u) and averages its steps, for q(u) follows moving
hyperparameters at a distance, and noise keeps it from rest. Everything random follows from the seed
and the number of the block, so that a run can be repeated, or interrupted and resumed, to the same
end.
"""

from __future__ import annotations

import dataclasses
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray

from orthogp.atomic import PRIVATE, replacing
from orthogp.errors import FitWarning, InputError
from orthogp.inference.threads import one_thread
from orthogp.precision import AnyArray, in_double

# The fewest blocks over which the rise of the estimates is judged.
_WINDOW = 5
# How often the learning rate falls before training ends.
_DECAYS = 4
# The factor by which the learning rate falls.
_DECAY = 0.3
# The share of all steps at which the last phase begins at the latest.
_LAST_PHASE = 0.9
# The number of draws that the noise of the frequencies is measured with.
_DRAWS = 16
# The largest noise of a block's mean, in nats, that is not worth more samples.
_NEGLIGIBLE_NOISE = 0.05
# The largest rise over the blocks judged, in nats, that is not worth more steps of this size.
_NEGLIGIBLE_RISE = 0.01


# ---------------------------------------------------------------------- settings and state


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


class TrainingState(eqx.Module):
    """All that a run needs to go on."""

    parameters: Any
    optimiser: Any
    history: list[Progress] = eqx.field(static=True, default_factory=list)
    num_samples: int = eqx.field(static=True, default=0)
    decays: int = eqx.field(static=True, default=0)
    judged: int = eqx.field(static=True, default=0)
    #: The step at which the last phase began, if it has.
    last_phase: int | None = eqx.field(static=True, default=None)

    @property
    def step(self) -> int:
        """The steps done."""
        return self.history[-1].step if self.history else 0

    def changed(self, **changes: Any) -> TrainingState:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)


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


@in_double
def train(
    objective_with: Callable[[int], Objective],
    parameters: Any,
    rows: BatchSource,
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
    state = TrainingState(parameters, optax.scale_by_adam().init(parameters), num_samples=start)
    state = _restored(state, settings)
    # Small factorisations: threads of LAPACK would only wait for each other.
    with one_thread():
        return _train(objective_with, state, rows, settings, most_samples)


def _train(
    objective_with: Callable[[int], Objective],
    state: TrainingState,
    rows: BatchSource,
    settings: TrainingSettings,
    most_samples: int,
) -> Trained:
    """Run block after block until there is a reason to stop."""
    compiled: _Compiled | None = None
    began = time.monotonic()
    while True:
        done = state.step
        if done >= settings.max_steps:
            return _ended(state, f"all {settings.max_steps} steps are done", False)
        state = _in_phase(state, settings)
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
        rates, steps = _step_sizes(state, settings, count)
        new_parameters, optimiser, estimates = compiled.run(
            state.parameters,
            state.optimiser,
            batches,
            jax.random.split(key, count),
            rates,
            steps,
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
        state = state.changed(
            parameters=new_parameters, optimiser=optimiser, history=[*state.history, step]
        )
        if settings.progress is not None:
            settings.progress(step)
        stop = False
        if settings.stop_early and _stalled(state):
            one = Batch(*(part if rows.batch_size is None else part[0] for part in batches))
            noise = partial(compiled.noise, state.parameters, one, jax.random.split(key, _DRAWS))
            state, stop = _judged(state, settings, noise, most_samples)
        _save_checkpoint(state, settings)
        if settings.max_seconds is not None and time.monotonic() - began > settings.max_seconds:
            return _ended(state, f"the time of {settings.max_seconds:.3g} s ran out", False)
        if stop:
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
        descent = jax.tree.map(lambda leaf: -leaf / num_rows, ascent)
        updates, optimiser = adam.update(descent, optimiser)
        parameters = jax.tree.map(lambda old, update: old - rate * update, parameters, updates)
        return (parameters, optimiser), estimate

    @jax.jit
    def run(parameters, optimiser, batches, keys, rates, steps):
        def one(carry, inputs):
            return step(carry, (batches, *inputs) if full_batch else inputs)

        inputs = (keys, rates, steps) if full_batch else (batches, keys, rates, steps)
        (parameters, optimiser), estimates = lax.scan(one, (parameters, optimiser), inputs)
        return parameters, optimiser, estimates

    return run


def _with_q(parameters: Any, q: Any) -> Any:
    """Return a copy of all parameters with another q(u)."""
    return eqx.tree_at(lambda tree: tree.q, parameters, q)


def _compiled_noise(objective: Objective) -> Callable:
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
        return state.changed(last_phase=state.step, judged=len(state.history))
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
    """Return whether the bound has risen little, or not above its noise, since last judged."""
    if len(state.history) - state.judged < 2 * _WINDOW:
        return False
    gain, error = _gain(state)
    return gain <= max(2 * error, _NEGLIGIBLE_RISE)


def _judged(
    state: TrainingState, settings: TrainingSettings, noise: Callable[[], AnyArray], most: int
) -> tuple[TrainingState, bool]:
    """Return the state of a run that has stalled, with more samples or smaller steps.

    And whether to stop: with natural gradients after the last phase, else after some lowerings of
    the learning rate.
    """
    state = state.changed(judged=len(state.history))
    if settings.num_samples is None:
        spread = float(np.std(noise()))
        if _too_few_samples(state, spread, settings.block, most):
            return state.changed(num_samples=2 * state.num_samples), False
    lowered = state.changed(decays=state.decays + 1)
    if settings.natural is None:
        return lowered, lowered.decays > _DECAYS
    return lowered, state.last_phase is not None


def _gain(state: TrainingState) -> tuple[float, float]:
    """Return the rise of the mean between the halves of the blocks last judged, and its error.

    The halves grow until they are judged again, so that a slow rise is told from noise.
    """
    recent = state.history[state.judged :]
    half = len(recent) // 2
    early, late = ([p.elbo for p in part] for part in (recent[-2 * half : -half], recent[-half:]))
    within = sum(p.standard_error**2 for p in recent[-2 * half :]) / half
    # Blocks may wander more than the steps within them tell.
    between = np.var(early, ddof=1) + np.var(late, ddof=1)
    error = np.sqrt(max(within, between) / half)
    return float(np.mean(late) - np.mean(early)), float(error)


def _too_few_samples(state: TrainingState, spread: float, block: int, most: int) -> bool:
    """Return whether it is the noise of the frequencies that hides the progress.

    `spread` is the standard deviation of an estimate due to them alone.
    """
    total = state.history[-1].standard_error * np.sqrt(block)
    matters = spread / np.sqrt(block) > _NEGLIGIBLE_NOISE and spread**2 > 0.5 * total**2
    return matters and 2 * state.num_samples <= most


def _finite(parameters: Any) -> bool:
    return all(bool(np.all(np.isfinite(leaf))) for leaf in jax.tree.leaves(parameters))


def _ended(state: TrainingState, reason: str, converged: bool) -> Trained:
    parameters = jax.tree.map(np.asarray, state.parameters)
    return Trained(parameters, state.history, reason, converged)


# ---------------------------------------------------------------------- checkpoints


def _save_checkpoint(state: TrainingState, settings: TrainingSettings) -> None:
    """Write the state to the checkpoint, whole or not at all."""
    if settings.checkpoint is None:
        return
    header = {
        "history": state.history,
        "num_samples": state.num_samples,
        "decays": state.decays,
        "judged": state.judged,
        "last_phase": state.last_phase,
        "seed": settings.seed,
    }
    with replacing(settings.checkpoint, PRIVATE) as file:
        file.write((json.dumps(header) + "\n").encode())
        eqx.tree_serialise_leaves(file, (state.parameters, state.optimiser))


def _restored(fresh: TrainingState, settings: TrainingSettings) -> TrainingState:
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
    return TrainingState(
        parameters,
        optimiser,
        [Progress(*entry) for entry in header["history"]],
        **{name: header[name] for name in ("num_samples", "decays", "judged", "last_phase")},
    )
