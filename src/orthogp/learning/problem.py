"""What every fit is told, what it gives, and the line on the terminal that it shows."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from orthogp.features import Features
from orthogp.inference.bounds import TOLERANCE, Bound, Certificate
from orthogp.inference.parameters import NO_BELIEFS, Beliefs, Start
from orthogp.inference.predictive import PredictivePosterior
from orthogp.inference.separable import Likelihood
from orthogp.kernels import Kernel
from orthogp.rows import Domain

__all__ = ["MAX_FEATURES", "Fit", "FitSettings", "Start"]

#: The most features that the dense solver takes by default: about a second per stage.
MAX_FEATURES = 2000


@dataclass(frozen=True)
class FitSettings:
    """How to fit.

    Attributes
    ----------
    num_features : int or None
        The size of the final feature set; `None` grows it until the certificate holds or
        `max_features` is reached.
    learn : bool
        Whether hyperparameters are learned.
    wrap_tolerance : float
        The largest relative error of the wrapped prior over the data.
    repeats : bool
        Whether weights count rows (else they divide the noise variance).
    deadline : float or None
        `time.monotonic()` at which to be done.
    solver : {"auto", "dense", "iterative"}
        How systems in lattice features are solved.
    max_memory : float or None
        Bytes that the iterative solver may take.
    columns : tuple of int or str
        What the columns that the kernel sees are called, for sentences; by their own numbers if
        empty.
    tolerance : float
        Of the certificate: of means in posterior sd, and relative of posterior sd.
    beliefs : Beliefs
        Bounds and priors of hyperparameters, in the units of the targets that are learned from.
    noise_unit : float
        The average weight of rows whose noise variances are σ²/w: what starts and limits of σ² are
        relative to, so that nothing depends on the unit of weights.
    """

    num_features: int | None = None
    max_features: int = MAX_FEATURES
    learn: bool = True
    wrap_tolerance: float = 1e-4
    repeats: bool = True
    deadline: float | None = None
    solver: str = "auto"
    max_memory: float | None = None
    columns: tuple[int, ...] | tuple[str, ...] = ()
    tolerance: float = TOLERANCE
    beliefs: Beliefs = NO_BELIEFS
    noise_unit: float = 1.0

    @property
    def most_features(self) -> int:
        """The largest feature set allowed."""
        return self.max_features if self.num_features is None else self.num_features

    @property
    def seconds_left(self) -> float:
        """The time until the deadline."""
        return float("inf") if self.deadline is None else self.deadline - time.monotonic()

    def late(self, ahead: float = 0.0) -> bool:
        """Return whether less time is left than the seconds of work ahead."""
        return self.seconds_left < ahead


@dataclass(frozen=True)
class Fit:
    """A fitted model, in the units of the statistics' targets.

    Attributes
    ----------
    elbo, tightened, upper : Bound
        Titsias' lower bound, that of the posterior which predicts, the tightened one, and the
        upper bound.
    rows : float
        The number of Gaussian factors, as in `Moments`.
    posterior : callable
        Returns the posterior over a domain, for a number of threads.
    num_features : int
        The number of features; of rows, if these are kept.
    features : Features or None
        `None` if the rows are kept.
    period : (d,), tuple of them, or None
        The period of the prior, or of each component's prior, if it has one.
    check : Check, optional
        What twice as many neighbours would change, if predictions look at the nearest rows.
    standard_errors : (p,), optional
        Of the logarithms of the learned parameters, the noise variance's last, by a sample of
        terms, if learning took a sample.
    likelihood : Likelihood, optional
        The likelihood with its dispersion, if the noise is not Gaussian.
    passes : int
        How often all rows were read.
    noise : Fit, optional
        Of the process of the noise variance's logarithm, if the noise varies; `noise_variance` is
        then the variance around which that process varies.
    """

    kernel: Kernel
    noise_variance: float
    elbo: Bound
    tightened: Bound
    upper: Bound
    certificate: Certificate
    status: str
    converged: bool
    num_evaluations: int
    rows: float
    posterior: Callable[[Domain, int], PredictivePosterior]
    num_features: int
    features: Features | None = None
    period: Any = None
    check: Any = None
    standard_errors: NDArray[np.float64] | None = None
    likelihood: Likelihood | None = None
    passes: int = 1
    noise: Fit | None = None


# Seconds before anything is shown.
_PATIENCE = 2.0


class Progress:
    """Writes one line to the terminal, over and over, once a computation takes more than a moment.

    Nothing is written where standard error is not a terminal.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._shown = 0
        self._terminal = sys.stderr.isatty()

    def say(self, text: str) -> None:
        """Show what is being done."""
        elapsed = time.monotonic() - self._began
        if not self._terminal or elapsed < _PATIENCE:
            return
        line = f"orthogp: {text} ({elapsed:.0f} s)"
        sys.stderr.write("\r" + line.ljust(self._shown))
        sys.stderr.flush()
        self._shown = len(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Wipe the line."""
        if self._shown:
            sys.stderr.write("\r" + " " * self._shown + "\r")
            sys.stderr.flush()
            self._shown = 0
