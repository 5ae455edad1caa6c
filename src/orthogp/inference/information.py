r"""How much data tell of hyperparameters: the curvature for steps of the evidence.

With x = B⁻¹b̃ (`iterative.py`) and u_i = x ∂ log s/∂θ_i, the average of the observed and the
expected information (Gilmour, Thompson and Cullis 1995) is

    ½ yᵀK⁻¹ ∂_iK K⁻¹ ∂_jK K⁻¹y = ½ ⟨u_i, u_j − B⁻¹u_j⟩      for parameters of the masses
                                 ½ ⟨u_i, B⁻¹x⟩              for one of them and log s²
                                 ½ (‖y − Φx‖²/s² − ⟨x, B⁻¹x⟩)   for log s²

one more solution for each parameter. It knows how the rows lie, on grids or with gaps, and what was
observed. The expected information of evenly spread rows costs nothing, and mostly suffices.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.inference.conjugate_gradients import solve
from orthogp.inference.lattice_model import Model, ModePosterior
from orthogp.inference.mode_grid import ModeGrid
from orthogp.inference.mode_masses import masses_jacobian
from orthogp.inference.parameters import Slot
from orthogp.kernels import Kernel

# Relative errors of solutions that tell a curvature only, and the most iterations for them.
_TOLERANCE, _MOST_ITERATIONS = 0.03, 200


class Derivatives(NamedTuple):
    """Of log masses and of log s², in log kernel parameters θ and log σ².

    Attributes
    ----------
    relative : (…, p)
        ∂ log s_t/∂θ.
    chain : (p + 1, p + 1)
        The derivatives of (θ, log s²) in (θ, log σ²): what lies beyond the lattice depends on θ.
    """

    relative: NDArray[np.float64]
    chain: NDArray[np.float64]

    @classmethod
    def at(
        cls, vector: NDArray[np.float64], model: Model, kernel: Kernel, slots: tuple[Slot, ...]
    ) -> Derivatives:
        """Return the derivatives at a vector, which the model is that of."""
        grid, noise = model.system.grid, model.system.noise_variance
        lattice = model.system.density.lattice
        prior = masses_jacobian(np.asarray(vector[:-1]), kernel, slots, lattice, grid)
        relative = np.divide(
            prior.jacobian,
            model.masses[..., None],
            out=np.zeros_like(prior.jacobian),
            where=model.masses[..., None] > 0,
        )
        axes = list(range(grid.num_dims))
        weights = np.broadcast_to(grid.weights, grid.shape)
        resolved = np.tensordot(weights, prior.jacobian, axes=(axes, axes))
        unresolved = (prior.variance_jacobian - resolved) / noise
        if model.unresolved == 0:
            unresolved[:] = 0.0
        chain = np.eye(len(vector))
        chain[-1] = np.append(unresolved, model.noise_variance / noise)
        return cls(relative, chain)


class EvenRows(NamedTuple):
    """What evenly spread rows determine.

    Attributes
    ----------
    share : float
        How much of the domain they fill.
    shrinkage : (…)
        h = ρs/(1 + ρs), where they are.
    """

    share: float
    shrinkage: NDArray[np.float64]

    @property
    def fraction_of_modes(self) -> NDArray[np.float64]:
        """1 − (B⁻¹)_tt."""
        return self.share * self.shrinkage


def even_rows(model: Model) -> EvenRows:
    """Return what rows of the typical density determine."""
    density = model.preconditioner.typical_density
    share = model.system.density.count / (model.system.noise_variance * density)
    return EvenRows(share, density * model.masses / (1 + density * model.masses))


def expected_information(
    model: Model, derivatives: Derivatives, rows: float
) -> NDArray[np.float64]:
    """Return the expected information about log parameters and log σ², for one target.

    For data spread evenly over a fraction of the domain, K has the eigenvalues s²(1 + ρ s_t): with
    h = ρs/(1 + ρs) their derivatives are h ∂log s_t, and 1 − h with respect to log s².
    """
    grid = model.system.grid
    share, shrinkage = even_rows(model)
    weights = share * grid.weights
    flat = derivatives.relative.reshape(-1, derivatives.relative.shape[-1])
    by_mode = (weights * shrinkage**2).ravel()
    cross = (weights * shrinkage * (1 - shrinkage)).ravel()
    size = flat.shape[1] + 1
    information = np.empty((size, size))
    information[:-1, :-1] = flat.T @ (by_mode[:, None] * flat)
    information[:-1, -1] = information[-1, :-1] = flat.T @ cross
    noise_only = max(rows - share * grid.size, 0.0)
    information[-1, -1] = np.sum(weights * (1 - shrinkage) ** 2) + noise_only
    return derivatives.chain.T @ information @ derivatives.chain / 2


def average_information(
    model: Model,
    posterior: ModePosterior,
    yy: NDArray[np.float64],
    derivatives: Derivatives,
) -> NDArray[np.float64]:
    """Return the average information about log parameters and log σ², all targets together."""
    system, grid = model.system, model.system.grid
    size = len(derivatives.chain)
    total = np.zeros((size, size))
    for i, x in enumerate(posterior.modes):
        columns = np.concatenate([np.moveaxis(derivatives.relative, -1, 0) * x, x[None]])
        norms = np.sqrt(grid.inner(columns, columns))
        solution = solve(
            system,
            model.preconditioner,
            columns,
            tolerance=_TOLERANCE * norms,
            max_iterations=_MOST_ITERATIONS,
        )
        flat, images = _real_rows(grid, columns), _real_rows(grid, solution.x)
        products = flat @ images.T
        own = products.copy()
        own[:-1, :-1] = flat[:-1] @ flat[:-1].T - products[:-1, :-1]
        slopes = float(np.sum(posterior.slopes[:, i] ** 2))
        left = yy[i] / system.noise_variance - posterior.explained[i]
        own[-1, -1] = left - norms[-1] ** 2 - slopes - products[-1, -1]
        total += (own + own.T) / 4
    return derivatives.chain.T @ total @ derivatives.chain


def _real_rows(grid: ModeGrid, vectors: NDArray[np.complex128]) -> NDArray[np.float64]:
    """Return vectors as rows of real numbers with the same inner products."""
    rows = np.ascontiguousarray(vectors * np.sqrt(grid.weights)).reshape(len(vectors), -1)
    return rows.view(np.float64)
