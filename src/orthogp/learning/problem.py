"""What every fit is told, what it gives, how it says that it ended, and the line that it shows."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

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


class Ending(NamedTuple):
    """All that the status sentences depend on."""

    certificate: Certificate
    num_features: int
    late: bool
    converged: bool
    #: Parameters that ended at a limit.
    at_limit: tuple[str, ...]
    #: The number of features that the lattice has.
    available_features: int = 0
    #: Whether the user set the number of features.
    as_asked: bool = False
    longest_period: bool = False
    noise_at_floor: bool = False
    wrap_tolerance: float = 0.0
    #: Whether all columns act jointly; else each name at a limit comes with its component.
    joint: bool = True


def describe(ending: Ending) -> str:
    """Return one sentence for the certificate, and one for everything a user should look at."""
    sentences = [_certificate(ending)]
    if not ending.converged and not ending.late:
        sentences.append(
            "Learning stopped before it settled: the hyperparameters may still move a little."
        )
    if ending.joint:
        sentences += _joint_limits(ending)
    else:
        sentences += describe_limits(ending.at_limit)
    if ending.noise_at_floor:
        sentences.append("The noise variance ended at the smallest that double precision resolves.")
    error = ending.certificate.wrap_error
    if ending.joint and error > 1.05 * ending.wrap_tolerance:
        sentences.append(of_short_period(error))
    return " ".join(sentences)


def _joint_limits(ending: Ending) -> list[str]:
    sentences = []
    lengthscales = [name for name in ending.at_limit if name.startswith("lengthscale")]
    short = [name for name in ending.at_limit if name.startswith("smallest lengthscale")]
    others = [name for name in ending.at_limit if name not in (*lengthscales, *short)]
    if short:
        sentences.append(
            f"The {listed_limits(short)} ended at the shortest that the lattice resolves: the "
            'function is rougher than that (try solver="neighbours"), or mostly noise.'
        )
    if lengthscales and ending.longest_period:
        sentences.append(
            f"The {listed_limits(lengthscales)} ended at the longest that the covered domain "
            "holds: give a larger `domain` or another mean function if that matters."
        )
    if others:
        sentences.append(
            f"The {listed_limits(others)} ended at a limit: the data ask for a simpler kernel."
        )
    return sentences


def listed_limits(names: Sequence[str]) -> str:
    """Return the parameters that `names_at_limit` gave, whichever limit it was."""
    owners: dict[str, list[str]] = {}
    for name in names:
        parameter, _, owner = name.removeprefix("smallest ").partition(" of ")
        owners.setdefault(parameter, []).append(owner)
    texts = []
    for parameter, known in owners.items():
        several = list(dict.fromkeys(known))
        of = f" of {_listed(several)}" if any(several) else ""
        texts.append(f"{parameter}{'s' * (len(known) > 1)}{of}")
    return " and the ".join(texts)


def of_short_period(error: float) -> str:
    """Return what to do about a periodic prior whose relative error is large."""
    return (
        f"The prior's period is short for the kernel (error {error:.1e} of its variance): "
        "give a larger `domain`."
    )


def describe_family(name: str, ending: Ending, left_out: float) -> str:
    """Return how the fit of a family ended; `left_out` is a share of the prior variance."""
    certificate, num_features = ending.certificate, ending.num_features
    if certificate.replaces_prior:
        sentences = [
            f"{name} features replace the kernel's prior by one of rank {num_features}: the bounds "
            "hold for that prior, and nothing is certified about the kernel's."
        ]
    elif certificate.holds:
        sentences = [f"The certificate holds with {num_features} features."]
    else:
        sentences = [
            f"{num_features} {name} features leave out {left_out:.1e} of the prior variance and a "
            f'gap of {certificate.gap:.3g} nats: use more, or features="auto".'
        ]
    if certificate.quadrature_error > 0.05:
        sentences.append(
            "The sums have few frequencies for these features, which differ from their integrals "
            f"by {certificate.quadrature_error:.2g} of the prior sd; the bounds hold all the same. "
            f"A larger `domain` gives more frequencies: about {_more_nodes(certificate)} times as "
            "many are enough."
        )
    if ending.late:
        sentences.append("The time ran out: raise max_seconds to go on.")
    elif not ending.converged:
        sentences.append(
            "Learning stopped before it settled: the hyperparameters may still move a little."
        )
    if ending.at_limit:
        sentences.append(f"The {listed_limits(ending.at_limit)} ended at a limit.")
    return " ".join(sentences)


def _more_nodes(certificate: Certificate) -> int:
    # The error of the midpoint rule falls with the square of the number of nodes.
    return math.ceil(math.sqrt(certificate.quadrature_error / 0.05))


def _certificate(ending: Ending) -> str:
    m = ending.num_features
    smoother = "a smoother kernel" if ending.joint else "smoother kernels"
    if ending.certificate.holds:
        return f"The certificate holds with {m} features."
    if ending.as_asked:
        return (
            f"The {m} features asked for are too few for a certificate: use more, or "
            'num_features="auto".'
        )
    if ending.late:
        return f"The time ran out with {m} features: raise max_seconds to go on."
    if m >= ending.available_features - 1:
        return (
            f"{m} features give no certificate, because the kernel has too much variance at "
            f"frequencies beyond those of the sums: {smoother} would have less."
        )
    return f"{m} features are too few for a certificate: raise max_features, or take {smoother}."


# The most components that a sentence lists.
_MOST_LISTED = 5


def component_label(
    columns: tuple[int, ...], called: tuple[int, ...] | tuple[str, ...] = ()
) -> str:
    """Return what a component is called, by what all columns are."""
    own = [called[c] for c in columns] if called else list(columns)
    if isinstance(own[0], str):
        return " × ".join(map(str, own))
    plural = "s" if len(own) > 1 else ""
    return f"column{plural} {', '.join(map(str, own))}"


def describe_limits(at_limit: tuple[str, ...]) -> list[str]:
    """Return what parameters that ended at a limit say of their components."""
    sentences = []
    silent = [
        name.removeprefix("smallest variance of ")
        for name in at_limit
        if name.startswith("smallest variance of ")
    ]
    if silent:
        sentences.append(f"The data show no effect of {_listed(silent)}.")
    smooth = [
        label
        for name in at_limit
        if name.startswith("longest lengthscale of ")
        and (label := name.removeprefix("longest lengthscale of ")) not in silent
    ]
    if smooth:
        one = len(smooth) == 1
        are, whose = ("is", "the") if one else ("are", "each")
        sentences.append(
            f"The lengthscale{'' if one else 's'} of {_listed(smooth)} {are} the longest that the "
            f"covered domain holds: {whose} effect is a gentle curve."
        )
    return sentences


def _listed(labels: list[str]) -> str:
    numbers = [label.removeprefix("column ") for label in labels]
    if len(labels) > 1 and all(label.startswith("column ") for label in labels):
        labels = [f"columns {numbers[0]}", *numbers[1:]]
    if len(labels) > _MOST_LISTED:
        labels = [*labels[:_MOST_LISTED], f"{len(labels) - _MOST_LISTED} more"]
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"
