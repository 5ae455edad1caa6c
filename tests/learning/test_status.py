"""Sentences about how a fit ended: which limit was met, and by which column's parameter."""

import numpy as np
import pytest

from orthogp.inference.bounds import Certificate
from orthogp.inference.parameters import learned_slots
from orthogp.kernels import RBF
from orthogp.learning.limits import names_at_limit
from orthogp.learning.problem import Ending, describe, describe_limits, listed_limits

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


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (("lengthscale of column 0", "smallest lengthscale of column 2"), "s of columns 0 and 2"),
        (("lengthscale of lon", "lengthscale of lat", "lengthscale of t"), "s of lon, lat and t"),
        (("lengthscale of t", "lengthscale of t"), "s of t"),
        (("lengthscale", "smallest variance", "variance"), " and the variances"),
    ],
)
def test_several_limits_are_listed_as_one_would_say_them(names: tuple[str, ...], text: str) -> None:
    assert listed_limits(names) == f"lengthscale{text}"


def test_components_at_limits_are_listed_as_one_would_say_them() -> None:
    silent = [f"smallest variance of column {c}" for c in (1, 2, 5)]
    assert describe_limits(tuple(silent)) == ["The data show no effect of columns 1, 2 and 5."]
    (smooth,) = describe_limits(tuple(f"longest lengthscale of {name}" for name in ("a", "b")))
    assert smooth.startswith("The lengthscales of a and b are the longest that the covered domain")
