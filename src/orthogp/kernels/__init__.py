"""Stationary kernels: a covariance k(τ) and its spectral density S(ω), side by side."""

from orthogp.kernels.base import Kernel, On, Sum
from orthogp.kernels.convert import KERNEL_NAMES, from_sklearn, resolve_kernel
from orthogp.kernels.cyclic import Categorical, Cyclic
from orthogp.kernels.densities import QuasiPeriodic, SpectralKernel, SpectralMixture
from orthogp.kernels.product import Product
from orthogp.kernels.rotated import Rotated
from orthogp.kernels.sphere import OnSphere
from orthogp.kernels.stationary import RBF, Matern, Matern12, Matern32, Matern52, RationalQuadratic
from orthogp.kernels.terms import additive, components

__all__ = [
    "KERNEL_NAMES",
    "RBF",
    "Categorical",
    "Cyclic",
    "Kernel",
    "Matern",
    "Matern12",
    "Matern32",
    "Matern52",
    "On",
    "OnSphere",
    "Product",
    "QuasiPeriodic",
    "RationalQuadratic",
    "Rotated",
    "SpectralKernel",
    "SpectralMixture",
    "Sum",
    "additive",
    "components",
    "from_sklearn",
    "resolve_kernel",
]
