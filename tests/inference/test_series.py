"""Posterior functions as Fourier series: products of series and their derivatives."""

import numpy as np
import pytest

from orthogp.inference.fourier_series import Blocks, SeriesBox
from orthogp.statistics import FrequencyLattice
from tests import oracles
from tests.problems import DIMS


class Setup:
    """A few frequencies, a symmetric matrix over their cosines and sines, and points."""

    def __init__(self, num_dims: int) -> None:
        rng = np.random.default_rng(num_dims)
        self.lattice = FrequencyLattice(rng.uniform(0.5, 1.5, num_dims), 2, 0.3)
        self.indices = self.lattice.half_indices()[::2]
        self.s = len(self.indices)
        self.omegas = self.indices * self.lattice.spacing
        size = 2 * self.s - 1
        half = rng.normal(size=(size, size))
        self.V = half + half.T
        self.vector = rng.normal(size=size)
        self.X = rng.normal(size=(7, num_dims))
        self.box = SeriesBox(2 * self.lattice.extent)

    def basis(self, X: np.ndarray) -> np.ndarray:
        return oracles.cosines_and_sines(X, self.omegas, self.lattice.centre)

    def evaluate(self, coefficients: np.ndarray) -> np.ndarray:
        spacing, centre = self.lattice.spacing, self.lattice.centre
        values = oracles.trigonometric_series(coefficients, spacing, centre, self.X)
        np.testing.assert_allclose(values.imag, 0, atol=1e-10)
        return values.real


@pytest.mark.parametrize("num_dims", DIMS)
def test_function_is_its_cosines_and_sines(num_dims: int) -> None:
    setup = Setup(num_dims)
    cosines = setup.vector[: setup.s]
    sines = np.concatenate([[0.0], setup.vector[setup.s :]])
    series = setup.box.function(setup.indices, cosines, sines)
    expected = setup.basis(setup.X) @ setup.vector
    np.testing.assert_allclose(setup.evaluate(series), expected, atol=1e-10)


@pytest.mark.parametrize("num_dims", DIMS)
def test_quadratic_form_in_the_basis_is_one_series(num_dims: int) -> None:
    setup = Setup(num_dims)
    series = setup.box.quadratic(setup.indices, Blocks.split(setup.V, setup.s))
    basis = setup.basis(setup.X)
    expected = np.einsum("ni,ij,nj->n", basis, setup.V, basis)
    np.testing.assert_allclose(setup.evaluate(series), expected, atol=1e-9)


@pytest.mark.parametrize("num_dims", DIMS)
def test_differentiated_blocks_are_the_form_of_the_derivatives(num_dims: int) -> None:
    setup = Setup(num_dims)
    for dim in range(num_dims):
        blocks = Blocks.split(setup.V, setup.s).differentiated(setup.omegas[:, dim])
        series = setup.box.quadratic(setup.indices, blocks)
        move = 1e-6 * np.eye(num_dims)[dim]
        slopes = (setup.basis(setup.X + move) - setup.basis(setup.X - move)) / 2e-6
        expected = np.einsum("ni,ij,nj->n", slopes, setup.V, slopes)
        scale = np.abs(expected).max()
        np.testing.assert_allclose(setup.evaluate(series), expected, atol=1e-7 * scale)
