"""Kernels from names and from scikit-learn's kernel objects."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from orthogp.errors import KernelError
from orthogp.kernels.base import Kernel, Sum
from orthogp.kernels.densities import QuasiPeriodic
from orthogp.kernels.stationary import RBF, Matern, Matern12, Matern32, Matern52, RationalQuadratic

KERNEL_NAMES: dict[str, type[Kernel]] = {
    "rbf": RBF,
    "matern": Matern,
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
    "rational-quadratic": RationalQuadratic,
    "quasi-periodic": QuasiPeriodic,
}


class KernelChoice(NamedTuple):
    """What a user's `kernel` argument says."""

    kernel: Kernel
    noise_variance: float | None
    from_name: bool


def resolve_kernel(kernel: object) -> KernelChoice:
    """Return the kernel that a name, a `Kernel` or a scikit-learn kernel stands for."""
    if isinstance(kernel, Kernel):
        return KernelChoice(kernel, None, from_name=False)
    if isinstance(kernel, str):
        if kernel not in KERNEL_NAMES:
            raise KernelError(
                f"Unknown kernel {kernel!r}; known names are {', '.join(KERNEL_NAMES)}, "
                "or pass a kernel object."
            )
        return KernelChoice(KERNEL_NAMES[kernel](), None, from_name=True)
    if hasattr(kernel, "get_params") and hasattr(kernel, "theta"):
        return from_sklearn(kernel)
    raise KernelError(
        "kernel must be a name, an orthogp kernel or a scikit-learn kernel, "
        f"got {type(kernel).__name__}."
    )


def from_sklearn(kernel: object) -> KernelChoice:
    """Return the equal of a scikit-learn kernel; a WhiteKernel becomes the noise to start from.

    Parameters of the kernel whose bounds are "fixed" stay fixed.
    """
    terms, noise = _terms(kernel)
    if not terms:
        raise KernelError("A scikit-learn kernel needs a term besides WhiteKernel.")
    return KernelChoice(terms[0] if len(terms) == 1 else Sum(tuple(terms)), noise, from_name=False)


def _terms(kernel) -> tuple[list[Kernel], float | None]:
    from sklearn.gaussian_process import kernels as sk

    if isinstance(kernel, sk.Sum):
        left, left_noise = _terms(kernel.k1)
        right, right_noise = _terms(kernel.k2)
        noises = [noise for noise in (left_noise, right_noise) if noise is not None]
        return left + right, float(sum(noises)) if noises else None
    if isinstance(kernel, sk.WhiteKernel):
        return [], float(kernel.noise_level)
    if isinstance(kernel, sk.Product):
        factors = _factors(kernel, sk)
        constants = [f for f in factors if isinstance(f, sk.ConstantKernel)]
        others = [f for f in factors if not isinstance(f, sk.ConstantKernel)]
        if len(others) != 1:
            raise KernelError(
                f"Of scikit-learn's products only ConstantKernel * kernel converts, got {kernel}."
            )
        factor = float(np.prod([constant.constant_value for constant in constants]))
        held = all(constant.hyperparameter_constant_value.fixed for constant in constants)
        terms, noise = _terms(others[0])
        scaled = [
            term.scaled(factor) if held else _free_variance(term.scaled(factor)) for term in terms
        ]
        return scaled, None if noise is None else noise * factor
    return [_primitive(kernel, sk)], None


def _factors(kernel, sk) -> list:
    if isinstance(kernel, sk.Product):
        return _factors(kernel.k1, sk) + _factors(kernel.k2, sk)
    return [kernel]


def _primitive(kernel, sk) -> Kernel:
    # scikit-learn's stationary kernels have unit variance, and nothing that learns it unless a
    # ConstantKernel multiplies them.
    fixed = ["variance"]
    if isinstance(kernel, sk.Matern | sk.RBF) and kernel.hyperparameter_length_scale.fixed:
        fixed.append("lengthscale")
    if isinstance(kernel, sk.Matern):  # before RBF: scikit-learn's Matern is a subclass of it
        halves = {0.5: Matern12, 1.5: Matern32, 2.5: Matern52}
        if kernel.nu in halves:
            return halves[kernel.nu](lengthscale=kernel.length_scale).fix(*fixed)
        if np.isinf(kernel.nu):
            return RBF(lengthscale=kernel.length_scale).fix(*fixed)
        return Matern(nu=kernel.nu, lengthscale=kernel.length_scale).fix("nu", *fixed)
    if isinstance(kernel, sk.RBF):
        return RBF(lengthscale=kernel.length_scale).fix(*fixed)
    if isinstance(kernel, sk.RationalQuadratic):
        if kernel.hyperparameter_length_scale.fixed:
            fixed.append("lengthscale")
        if kernel.hyperparameter_alpha.fixed:
            fixed.append("alpha")
        return RationalQuadratic(lengthscale=kernel.length_scale, alpha=kernel.alpha).fix(*fixed)
    raise KernelError(
        f"scikit-learn's {type(kernel).__name__} has no stationary counterpart here: use RBF, "
        "Matern, RationalQuadratic, ConstantKernel products, WhiteKernel and their sums."
    )


def _free_variance(kernel: Kernel) -> Kernel:
    from dataclasses import replace

    return kernel.with_primitives(
        replace(primitive, fixed=tuple(name for name in primitive.fixed if name != "variance"))
        for primitive, _ in kernel.primitives()
    )
