"""Stationary kernels: a covariance k(τ) and its spectral density S(ω), side by side.

A line here makes a kernel public, lets files hold it, and makes its `known_as` a name of it.
"""

from orthogp.kernels.base import KERNEL_NAMES as KERNEL_NAMES
from orthogp.kernels.base import Gamma as Gamma
from orthogp.kernels.base import Kernel as Kernel
from orthogp.kernels.base import LogNormal as LogNormal
from orthogp.kernels.base import Noise as Noise
from orthogp.kernels.base import penalised_lengthscale as penalised_lengthscale
from orthogp.kernels.base import penalised_variance as penalised_variance
from orthogp.kernels.composite import On as On
from orthogp.kernels.composite import Product as Product
from orthogp.kernels.composite import Sum as Sum
from orthogp.kernels.stationary import RBF as RBF
from orthogp.kernels.stationary import Matern as Matern
from orthogp.kernels.stationary import Matern12 as Matern12
from orthogp.kernels.stationary import Matern32 as Matern32
from orthogp.kernels.stationary import Matern52 as Matern52
from orthogp.kernels.stationary import QuasiPeriodic as QuasiPeriodic
from orthogp.kernels.stationary import RationalQuadratic as RationalQuadratic
from orthogp.kernels.stationary import SpectralKernel as SpectralKernel
from orthogp.kernels.stationary import SpectralMixture as SpectralMixture
from orthogp.kernels.terms import additive as additive
from orthogp.kernels.terms import components as components
from orthogp.kernels.terms import from_sklearn as from_sklearn
from orthogp.kernels.terms import resolve_kernel as resolve_kernel
from orthogp.kernels.terms import seasonal as seasonal
from orthogp.kernels.transformed import Categorical as Categorical
from orthogp.kernels.transformed import Cyclic as Cyclic
from orthogp.kernels.transformed import OnSphere as OnSphere
from orthogp.kernels.transformed import Rotated as Rotated
