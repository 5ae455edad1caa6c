"""How the fit of an additive model ended, in words that say what to do."""

from __future__ import annotations

from typing import NamedTuple

from orthogp.inference.bounds import Certificate

_MOST_LISTED = 5


class AdditiveEnding(NamedTuple):
    """All that the status sentences depend on."""

    certificate: Certificate
    num_features: int
    #: How many features a certificate would take, and how many the sums hold.
    wanted_features: int
    available_features: int
    #: Whether the user set the number of features.
    as_asked: bool
    late: bool
    converged: bool
    #: Parameters that ended at a limit, each with its component.
    at_limit: tuple[str, ...]
    noise_at_floor: bool


def component_label(
    columns: tuple[int, ...], called: tuple[int, ...] | tuple[str, ...] = ()
) -> str:
    """Return what a component is called, by what all columns are."""
    own = [called[c] for c in columns] if called else list(columns)
    if isinstance(own[0], str):
        return " × ".join(map(str, own))
    plural = "s" if len(own) > 1 else ""
    return f"column{plural} {', '.join(map(str, own))}"


def describe_additive(ending: AdditiveEnding) -> str:
    """Return one sentence for the certificate, and one for everything a user should look at."""
    m, certificate = ending.num_features, ending.certificate
    gap = f"{certificate.gap:.3g} nats"
    if certificate.holds:
        sentences = [f"The certificate holds with {m} features."]
    elif ending.as_asked:
        sentences = [
            f"The {m} features asked for leave a gap of {gap}: use more, or "
            'num_features="auto", for a smaller one.'
        ]
    elif ending.wanted_features > m:
        wanted, available = ending.wanted_features, ending.available_features
        amount = f"more than {available}" if wanted > available else f"about {wanted}"
        sentences = [
            f"{m} features leave a gap of {gap}: a certificate would take {amount}, by a larger "
            "max_features or smoother kernels."
        ]
    else:
        sentences = [
            f"{m} features leave a gap of {gap}, from frequencies beyond the sums: a certificate "
            "takes smoother kernels."
        ]
    if ending.late:
        sentences.append("The time ran out: raise max_seconds to go on.")
    elif not ending.converged:
        sentences.append(
            "Learning stopped before it settled: the hyperparameters may still move a little."
        )
    sentences += describe_limits(ending.at_limit)
    if ending.noise_at_floor:
        sentences.append("The noise variance ended at the smallest that double precision resolves.")
    return " ".join(sentences)


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
        sentences.append(
            f"The lengthscale of {_listed(smooth)} is the longest that the covered domain holds: "
            "the effect is a gentle curve."
        )
    return sentences


def _listed(labels: list[str]) -> str:
    if len(labels) > _MOST_LISTED:
        labels = [*labels[:_MOST_LISTED], f"{len(labels) - _MOST_LISTED} more"]
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"
