"""How a fit with very many features ended, in words."""

from __future__ import annotations

from orthogp.inference.bounds import Certificate
from orthogp.inference.iterative import Evidence
from orthogp.inference.lattice_choice import LatticeChoice
from orthogp.inference.scoring import Scored
from orthogp.inference.status import of_short_period
from orthogp.inference.variance_field import VarianceField

# Errors of the wrapped prior worth a word; the solver's lattices are shorter than the dense one's.
_WRAPPED = 0.05


def describe_iterative(
    choice: LatticeChoice,
    certificate: Certificate,
    scored: Scored,
    evidence: Evidence,
    variance: VarianceField,
    at_limit: tuple[str, ...],
    *,
    late: bool,
    asked: bool,
) -> str:
    """Return how the fit ended, and why it is as it is."""
    m = f"{choice.num_modes:,}"
    sentences = [
        f"Solved iteratively with {m} features, {evidence.iterations} iterations each time, "
        + ("as asked." if asked else "since the noise level asks for more than max_features.")
    ]
    if certificate.holds:
        sentences.append("The certificate holds.")
    if choice.limited_by:
        sentences.append(
            f"It asks for {choice.wanted:,}; the number is limited by {choice.limited_by}, and "
            "what is left out counts as noise."
        )
    sentences.append(f"Variances have a relative error of about {variance.relative_error:.0%}.")
    if late:
        sentences.append("The time ran out: raise max_seconds to go on.")
    elif not scored.converged:
        sentences.append("Learning stopped before it settled.")
    if not evidence.converged:
        sentences.append("The solver stopped before it converged: results are approximate.")
    if at_limit:
        sentences.append(f"The {' and '.join(at_limit)} ended at a limit.")
    if certificate.wrap_error > _WRAPPED:
        sentences.append(of_short_period(certificate.wrap_error))
    return " ".join(sentences)
