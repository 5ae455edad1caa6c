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

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from numpy.typing import NDArray

from orthogp.errors import FitWarning
from orthogp.inference.natural import natural_step
from orthogp.inference.threads import one_thread
from orthogp.inference.training_state import (
    Batch,
    Objective,
    Progress,
    Rows,
    State,
    TrainingSettings,
    keep,
    restored,
)
from orthogp.precision import AnyArray, in_double

# The fewest blocks over which the rise of the estimates is judged, and how often the learning rate
# falls before training ends.
_WINDOW = 5
_DECAYS, _DECAY = 4, 0.3
# The share of all steps at which the last phase begins at the latest.
_LAST_PHASE = 0.9
# Draws that the noise of the frequencies is measured with.
_DRAWS = 16
# Noise of a block's mean, in nats, that is worth no more samples, and a rise over the blocks judged
# that is worth no more steps of this size.
_NEGLIGIBLE, _SETTLED = 0.05, 0.01


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
    state = restored(state, settings)
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
        keep(state, settings)
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
            parameters = natural_step(objective, parameters, ascent, batch, key, rho, share)
            # The others' gradient where q(u) is now, from frequencies that it has not seen: at the
            # best q(u) it is that of the collapsed bound, elsewhere q(u) holds the others back.
            again = jax.grad(objective)(parameters, batch, jax.random.fold_in(key, 1))
            ascent = eqx.tree_at(lambda tree: tree.q, again, jax.tree.map(jnp.zeros_like, again.q))
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


def _compiled_noise(objective: Objective) -> Callable:
    """Return a compiled function that gives the estimates of one batch for several keys."""

    @jax.jit
    def estimates(parameters, batch, keys):
        return lax.map(lambda key: objective(parameters, batch, key), keys)

    return estimates


def _in_phase(state: State, settings: TrainingSettings) -> State:
    """Return the state, in its last phase if that is to begin."""
    if settings.natural is None or state.last_phase is not None:
        return state
    if state.decays > _DECAYS or state.step >= _LAST_PHASE * settings.max_steps:
        return state.changed(last_phase=state.step, judged=len(state.history))
    return state


def _step_sizes(
    state: State, settings: TrainingSettings, count: int
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


def _stalled(state: State) -> bool:
    """Return whether the bound has risen little, or not above its noise, since last judged."""
    if len(state.history) - state.judged < 2 * _WINDOW:
        return False
    gain, error = _gain(state)
    return gain <= max(2 * error, _SETTLED)


def _judged(
    state: State, settings: TrainingSettings, noise: Callable[[], AnyArray], most: int
) -> tuple[State, bool]:
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


def _gain(state: State) -> tuple[float, float]:
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


def _too_few_samples(state: State, spread: float, block: int, most: int) -> bool:
    """Return whether it is the noise of the frequencies that hides the progress.

    `spread` is the standard deviation of an estimate due to them alone.
    """
    total = state.history[-1].standard_error * np.sqrt(block)
    matters = spread / np.sqrt(block) > _NEGLIGIBLE and spread**2 > 0.5 * total**2
    return matters and 2 * state.num_samples <= most


def _finite(parameters: Any) -> bool:
    return all(bool(np.all(np.isfinite(leaf))) for leaf in jax.tree.leaves(parameters))


def _ended(state: State, reason: str, converged: bool) -> Trained:
    parameters = jax.tree.map(np.asarray, state.parameters)
    return Trained(parameters, state.history, reason, converged)
