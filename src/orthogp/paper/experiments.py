"""All experiments by name.

Each writes a figure, and beside it CSV files whose rows are kept from one run to the next. The
settings are the paper's (`FULL` of each module), or smaller ones that show the way (`QUICK`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from orthogp.errors import InputError
from orthogp.paper import complexity, figure1, figure2, figure3, noise
from orthogp.paper.runs import Write
from orthogp.report.plots import require_matplotlib


class _Reproduce(Protocol):
    def __call__(self, out: Path, plan: Any, write: Write) -> list[Path]: ...


class Experiment(NamedTuple):
    """A function that runs an experiment, and the settings to run it with."""

    reproduce: _Reproduce
    full: Any
    quick: Any


#: By the names that the command line takes.
EXPERIMENTS = {
    module.__name__.rpartition(".")[2]: Experiment(module.reproduce, module.FULL, module.QUICK)
    for module in (figure1, figure2, figure3, complexity, noise)
}


def run_experiments(names: Sequence[str], out: Path, *, quick: bool, write: Write) -> list[Path]:
    """Return the paths of all that some experiments write.

    Parameters
    ----------
    names : sequence of str
        Of `EXPERIMENTS`.
    out : path
        A directory, made if missing. Rows that are there already are not computed again.
    quick : bool
        Whether to take the smaller settings.
    write : callable
        Given a line of text when a run ends.
    """
    require_matplotlib()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"The results cannot go to {out} ({error.strerror}): give another directory."
        ) from error
    paths = []
    for name in names:
        experiment = EXPERIMENTS[name]
        plan = experiment.quick if quick else experiment.full
        paths += experiment.reproduce(out, plan, write)
    return paths
