"""What training is told, what it draws its batches from, and the state that it keeps."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from orthogp.errors import InputError
from orthogp.precision import AnyArray


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
        whenever their noise, rather than that of the batches, hides the progress.
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
    sampler: str = "stratified"
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


class State(eqx.Module):
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

    def changed(self, **changes: Any) -> State:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)


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


def keep(state: State, settings: TrainingSettings) -> None:
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
        "last_phase": state.last_phase,
        "seed": settings.seed,
    }
    with unfinished.open("wb") as file:
        file.write((json.dumps(header) + "\n").encode())
        eqx.tree_serialise_leaves(file, (state.parameters, state.optimiser))
    unfinished.replace(path)


def restored(fresh: State, settings: TrainingSettings) -> State:
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
    return State(
        parameters,
        optimiser,
        [Progress(*entry) for entry in header["history"]],
        **{name: header[name] for name in ("num_samples", "decays", "judged", "last_phase")},
    )
