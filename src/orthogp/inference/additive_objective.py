"""The bound of an additive model and its gradient."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from orthogp.features import AdditiveLattice
from orthogp.inference.bounds import factorise_in_place
from orthogp.inference.objective import MassObjective
from orthogp.inference.parameters import PriorJacobian, learned_slots, masses_and_jacobian
from orthogp.inference.posterior import potri
from orthogp.kernels.additive import term_kernels
from orthogp.statistics import AdditiveStatistics


class AdditiveObjective(MassObjective[AdditiveLattice, AdditiveStatistics]):
    """The bound of features on a lattice for each component.

    The parameters of a sum stand one component after the other, and so do the masses: their
    Jacobian has one block for each.
    """

    def curvature(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        r"""Return the expected curvature of the bound, eigenvalues ≥ 1, from one factorisation.

        That of log N(y | 0, Q + σ²I): with a_i the prior variances of the columns, and J their
        derivatives in log parameters,

            ½ ((I − B⁻¹)_ij)² in log a_i, log a_j,   ½ (B⁻¹ − B⁻²)_ii in log a_i, log σ²,
            ½ (N − m + tr B⁻²) in log σ²

        Differences of gradients would cost an evaluation for each of many parameters.
        """
        noise = float(np.exp(vector[-1]))
        prior = self._prior(vector[:-1])
        squared = self.features.squared_amplitudes(prior.masses)
        scaled = np.sqrt(squared / noise)
        with self._threads.limited(len(scaled)):
            chol = factorise_in_place(scaled[:, None] * self._sums.gram * scaled)
            inverse = potri(chol, lower=1)[0]
            inverse = np.tril(inverse) + np.tril(inverse, -1).T
            squares = np.einsum("ij,ij->i", inverse, inverse)
            diagonal = np.einsum("ii->i", inverse)
            # Linear in the masses, but for the mean function's part.
            fixed = self.features.squared_amplitudes(np.zeros_like(prior.masses))
            slopes = [self.features.squared_amplitudes(own) - fixed for own in prior.jacobian.T]
            J = np.array(slopes).reshape(len(slopes), len(squared)).T
            J = np.divide(J, squared[:, None], out=np.zeros_like(J), where=squared[:, None] > 0)
            H = np.empty((len(vector), len(vector)))
            H[-1, -1] = (self._rows - len(squared) + squares.sum()) / 2
            H[:-1, -1] = H[-1, :-1] = J.T @ (diagonal - squares) / 2
            np.subtract(0.0, inverse, out=inverse)
            np.einsum("ii->i", inverse)[:] += 1
            H[:-1, :-1] = J.T @ (np.square(inverse, out=inverse) @ J) / 2
        eigenvalues, vectors = np.linalg.eigh(self._num_targets * H)
        return (vectors * np.maximum(eigenvalues, 1.0)) @ vectors.T

    def _prior(self, vector: NDArray[np.float64]) -> PriorJacobian:
        masses = np.empty(len(self._multiplicity))
        jacobian = np.zeros((len(masses), len(vector)))
        variance, variance_jacobian, start = 0.0, np.empty(len(vector)), 0
        for part, kernel, at in zip(
            self.features.parts,
            term_kernels(self.kernel),
            self.features.mass_slices,
            strict=True,
        ):
            slots = learned_slots(kernel)
            own = slice(start, start + sum(slot.size for slot in slots))
            prior = masses_and_jacobian(vector[own], kernel, slots, part.lattice, part.indices)
            masses[at], jacobian[at, own] = prior.masses, prior.jacobian
            variance += prior.variance
            variance_jacobian[own] = prior.variance_jacobian
            start = own.stop
        return PriorJacobian(masses, jacobian, variance, variance_jacobian)
