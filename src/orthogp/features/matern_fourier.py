r"""The Fourier basis of a window under Matérn kernels (Hensman, Durrande, Solin 2018).

On a window of width P the inducing variables are RKHS inner products of f with the Fourier basis
of that window, c_m = cos ω_m(x−x₀) and s_m = sin ω_m(x−x₀), ω_m = 2πm/P, x₀ the middle:

    cov(u_m, f(x)) = basis_m(x),      cov(u_m, u_m') = ⟨basis_m, basis_m'⟩

For a half-integer Matérn kernel, λ = √(2ν)/ℓ and p = ν + ½, the process is white noise of density
2πS(ω)|λ + iω|^{2p} put through (λ + d/dx)^{−p}, started from its stationary state at the window's
left end α. Hence

    ⟨g, h⟩ = ∫ (Dg)(Dh) dx + [state of g at α]ᵀ cov(state)⁻¹ [state of h at α]
    D = (λ + d/dx)^p / √(2πS(ω)|λ + iω|^{2p}),      state = (f, f', …, f^{(p−1)})

The first term is diagonal over a full period, the second of rank one or two for the cosines and at
most one for the sines, which never meet: K_uu = diag(1/a_m²) + Σ_r b_r b_rᵀ with

    a_m² = (2 − δ_m0) h S(ω_m),  h = 2π/P,      b_m = (−1)^m state(ω_m/λ)/√v

              cosines                   sines
    ν = 1/2   1                         –
    ν = 3/2   1                         ω/λ
    ν = 5/2   1, (1 − 3(ω/λ)²)/√8       √3 ω/λ

So the whitened features are those of the lattice, a_m c_m and a_m s_m, with one rank-one
correction for each b, which undoes the wrap.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from orthogp.kernels import Matern12, Matern32, Matern52
from orthogp.precision import AnyArray

#: The kernels whose processes have finitely many derivatives as their state.
HalfIntegerMatern = Matern12 | Matern32 | Matern52


def whitened(
    kernel: HalfIntegerMatern,
    spacing: Float[AnyArray, ""],
    cosines: Float[AnyArray, "n c"],
    sines: Float[AnyArray, "n s"],
) -> Float[AnyArray, "n m"]:
    """Return K_uu^{−1/2} applied to cosines 0…c−1 and sines 1…s, as constant, cos, sin, cos, …."""
    num_cosines, num_sines = cosines.shape[1], sines.shape[1]
    index = np.arange(num_cosines)
    omegas = spacing * index
    densities = jax.vmap(kernel.spectral_density)(omegas[:, None])
    amplitudes = jnp.sqrt(np.where(index == 0, 1.0, 2.0) * spacing * densities)
    # b_m scaled by the diagonal of K_uu.
    ends = np.where(index % 2 == 0, 1.0, -1.0) * amplitudes / jnp.sqrt(kernel.prior_variance())
    even, odd = _states(kernel, omegas)
    cosines = _correct(cosines * amplitudes, [ends * state for state in even])
    some = slice(1, num_sines + 1)
    sines = _correct(sines * amplitudes[some], [(ends * state)[some] for state in odd])
    position = np.concatenate([[0], 2 * index[1:] - 1, 2 * np.arange(1, num_sines + 1)])
    return jnp.concatenate([cosines, sines], axis=1)[:, np.argsort(position)]


def _states(
    kernel: HalfIntegerMatern, omegas: Float[AnyArray, " c"]
) -> tuple[list[Float[AnyArray, " c"]], list[Float[AnyArray, " c"]]]:
    """Return cosines' and sines' values and derivatives at the window's end, whitened, v = 1."""
    ratio = omegas * jnp.reshape(kernel.lengthscale, ()) / np.sqrt(2 * kernel.nu)
    value = jnp.ones_like(ratio)
    if isinstance(kernel, Matern12):
        return [value], []
    if isinstance(kernel, Matern32):
        return [value], [ratio]
    return [value, (1 - 3 * ratio**2) / np.sqrt(8)], [np.sqrt(3) * ratio]


def _correct(
    values: Float[AnyArray, "n c"], vectors: Sequence[Float[AnyArray, " c"]]
) -> Float[AnyArray, "n c"]:
    """Return rows W v with W (I + Σ_r b_r b_rᵀ) Wᵀ = I, one vector b after the other.

    (I + bbᵀ)^{−1/2} = I − bbᵀ/(s + s²) with s² = 1 + |b|²; it turns the vectors that follow, too.
    """
    while vectors:
        b, *rest = vectors
        s = jnp.sqrt(1 + b @ b)
        values, *vectors = (x - (x @ b)[..., None] * b / (s + s**2) for x in (values, *rest))
    return values
