"""Sentences about how a fit ended: which limit was met, and by which column's parameter."""

import numpy as np
import pytest

from orthogp.inference.bounds import Certificate
from orthogp.inference.parameters import learned_slots
from orthogp.kernels import RBF
from orthogp.learning.limits import names_at_limit
from orthogp.learning.problem import Ending, describe

SLOTS = learned_slots(RBF(1.0, [1.0, 1.0]))
LOWER, UPPER = np.full(4, -2.0), np.full(4, 2.0)


@pytest.mark.parametrize(
    ("called", "names"),
    [
        (("depth", "pressure"), ("lengthscale of depth", "smallest lengthscale of pressure")),
        ((0, 4), ("lengthscale of column 0", "smallest lengthscale of column 4")),
        ((), ("lengthscale 0", "smallest lengthscale 1")),
    ],
)
def test_parameters_at_limits_are_named_by_column_and_side(
    called: tuple[str, ...], names: tuple[str, ...]
) -> None:
    assert [slot.name for slot in SLOTS] == ["variance", "lengthscale"]
    found = names_at_limit(SLOTS, np.array([0.0, 2.0, -2.0, -2.0]), LOWER, UPPER, called)
    assert found == names


def ending(*at_limit: str) -> str:
    certificate = Certificate.exact(0.0)
    return describe(Ending(certificate, 9, False, True, at_limit, longest_period=True))


def test_each_limit_has_its_sentence() -> None:
    long = ending("lengthscale of depth")
    assert "The lengthscale of depth ended at the longest that the covered domain holds" in long
    short = ending("smallest lengthscale of depth")
    assert "The lengthscale of depth ended at the shortest that the lattice resolves" in short
    assert "longest" not in short
    assert "The variance ended at a limit: the data ask for" in ending("smallest variance")
