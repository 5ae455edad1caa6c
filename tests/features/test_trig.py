"""Trigonometric features: the paper's corrected form, and how good they are."""

import numpy as np
import pytest
from scipy.integrate import quad

from orthogp.errors import FeatureError
from orthogp.features import Lattice
from orthogp.features.bands import Trig
from orthogp.kernels import RBF, Kernel, Matern32
from orthogp.statistics import FrequencyLattice

A = 3.0


def cosine(m: int, omega: float) -> float:
    return np.cos(np.pi * m * omega / A) / np.sqrt(A if m else 2 * A)


def sine(m: int, omega: float) -> float:
    return np.sin(np.pi * m * omega / A) / np.sqrt(A)


def printed(m: int, omega: float) -> float:
    """The paper's cos(πmω/(2a))."""
    return np.cos(np.pi * m * omega / (2 * A)) / np.sqrt(A if m else 2 * A)


def inner(f, m: int, g, n: int) -> float:
    return quad(lambda omega: f(m, omega) * g(n, omega), -A, A, epsabs=1e-12)[0]


def test_cosines_and_sines_are_orthonormal() -> None:
    for m in range(4):
        for n in range(4):
            assert inner(cosine, m, cosine, n) == pytest.approx(float(m == n), abs=1e-12)
            if m and n:
                assert inner(sine, m, sine, n) == pytest.approx(float(m == n), abs=1e-12)
                assert inner(cosine, m, sine, n) == pytest.approx(0, abs=1e-12)


def test_the_printed_form_of_the_paper_is_not_orthogonal() -> None:
    assert inner(printed, 0, printed, 1) == pytest.approx(2 * np.sqrt(2) / np.pi, abs=1e-12)
    assert inner(printed, 1, printed, 2) == pytest.approx(4 / (3 * np.pi), abs=1e-12)


def test_members_alternate_cosines_and_sines() -> None:
    omega = np.linspace(-A, A, 9)
    values = Trig(7, A).basis(omega / A, 7) / np.sqrt(A)
    expected = [cosine(0, omega)]
    for m in (1, 2, 3):
        expected += [cosine(m, omega), sine(m, omega)]
    np.testing.assert_allclose(values, expected, atol=1e-14)


def test_as_many_features_as_nodes_explain_all_that_the_lattice_holds() -> None:
    kernel, lattice = Matern32(1.3, 0.3), FrequencyLattice(0.9, 10, 0.2)
    X = np.linspace(-1, 1.2, 12)[:, None]
    family = Trig(21, 0.9 * 10.5).placed(kernel, X[0], X[-1], lattice)
    Phi = family.on(lattice).evaluate(kernel, X)
    modes = Lattice.select(kernel, lattice, 21).evaluate(kernel, X)
    np.testing.assert_allclose(Phi @ Phi.T, modes @ modes.T, atol=1e-12)


def test_a_lattice_that_tiles_the_band_needs_no_orthonormalisation() -> None:
    kernel, lattice = RBF(1.0, 0.5), FrequencyLattice(0.3, 40, 0.0)
    family = Trig(15).placed(kernel, np.array([-1.0]), np.array([1.0]), lattice)
    a = float(np.asarray(family.dilation)[0])
    assert (a / 0.3 - 0.5) % 1 == pytest.approx(0, abs=1e-9)
    series = family.on(lattice)
    omega = series.omegas[:, 0]
    assert np.all(omega < a)
    sampled = np.sqrt(0.3 / a) * 2 * np.sin(np.pi * 3 * omega / a)
    np.testing.assert_allclose(series.weights[6], sampled, atol=1e-13)


@pytest.mark.parametrize(
    ("kernel", "num_features", "reference"),
    [
        (Matern32(1.0, 0.1), 41, 1.09e-2),
        (Matern32(1.0, 0.1), 81, 1.74e-3),
        (RBF(1.0, 0.1), 41, 2.3e-7),
    ],
    ids=["matern32-41", "matern32-81", "rbf-41"],
)
def test_variance_left_out_is_that_of_the_reference_table(
    kernel: Kernel, num_features: int, reference: float
) -> None:
    # The reference comes from a coarse search over a; the one here is finer, hence a little better.
    X = np.linspace(-1, 1, 201)[:, None]
    Phi = Trig(num_features).evaluate(kernel, X)
    left_out = 1 - np.mean(np.sum(Phi**2, axis=1))
    assert 0.79 * reference < left_out < 1.005 * reference


@pytest.mark.parametrize("a", [0.0, -1.0, np.inf, "wide", [[1.0]], []])
def test_impossible_bands_are_refused(a: object) -> None:
    with pytest.raises(FeatureError, match="a must be"):
        Trig(5, a)


@pytest.mark.parametrize("num_features", [0, -3, 2.5, True, "many"])
def test_impossible_numbers_of_features_are_refused(num_features: object) -> None:
    with pytest.raises(FeatureError, match="num_features must be a whole number"):
        Trig(num_features)
