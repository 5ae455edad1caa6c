"""Kernels from names and from scikit-learn: the same covariance matrices, or a clear refusal."""

from collections.abc import Callable

import numpy as np
import pytest
from sklearn.gaussian_process import kernels as sk

from orthogp.errors import KernelError
from orthogp.inference.parameters import learned_slots
from orthogp.kernels import KERNEL_NAMES, RBF, Matern12, Matern32, Matern52, resolve_kernel
from tests.problems import covariances

X = np.random.default_rng(0).uniform(-1, 1, (12, 2))

CONVERTIBLE: dict[str, Callable[[], sk.Kernel]] = {
    "rbf": lambda: sk.RBF(0.4),
    "rbf ard": lambda: sk.RBF([0.4, 0.9]),
    "matern 1/2": lambda: sk.Matern(0.4, nu=0.5),
    "matern 3/2": lambda: sk.Matern([0.4, 0.9], nu=1.5),
    "matern 5/2": lambda: sk.Matern(0.4, nu=2.5),
    "matern of any order": lambda: sk.Matern([0.4, 0.9], nu=0.8),
    "matern of infinite order": lambda: sk.Matern(0.4, nu=np.inf),
    "rational quadratic": lambda: sk.RationalQuadratic(0.4, alpha=0.7),
    "constant times rbf": lambda: sk.ConstantKernel(2.3) * sk.RBF(0.4),
    "rbf times constant": lambda: sk.RBF(0.4) * sk.ConstantKernel(2.3),
    "number times rbf": lambda: 2.3 * sk.RBF(0.4),
    "constant times constant times matern": lambda: (
        sk.ConstantKernel(2.0) * (sk.ConstantKernel(0.3) * sk.Matern(0.4))
    ),
    "constant times sum": lambda: sk.ConstantKernel(2.0) * (sk.RBF(0.4) + sk.Matern(0.7)),
    "sum of three": lambda: sk.RBF(0.4) + 0.5 * sk.Matern(0.7) + sk.RationalQuadratic(2.0),
    "with noise": lambda: sk.RBF(0.4) + sk.WhiteKernel(0.25),
    "constant times noisy": lambda: sk.ConstantKernel(2.0) * (sk.RBF(0.4) + sk.WhiteKernel(0.25)),
    "rbf times matern": lambda: 2.0 * sk.RBF(0.4) * sk.Matern([0.7, 0.3]),
    "constant times matern times sum": lambda: (
        3.0 * sk.Matern(0.4) * (sk.RBF(0.5) + 2.0 * sk.RationalQuadratic(0.4))
    ),
    "sum with a product": lambda: sk.RBF(0.4) + 0.5 * sk.RBF(0.2) * sk.Matern(0.7),
    "two noises": lambda: sk.WhiteKernel(0.1) + sk.RBF(0.4) + sk.WhiteKernel(0.25),
}


@pytest.mark.parametrize("make", CONVERTIBLE.values(), ids=CONVERTIBLE.keys())
def test_converted_kernel_has_scikit_learns_matrix(make: Callable[[], sk.Kernel]) -> None:
    kernel = make()
    choice = resolve_kernel(kernel)
    assert not choice.from_name
    noise = choice.noise.value or 0.0
    ours = covariances(choice.kernel, X[:, None, :] - X) + noise * np.eye(len(X))
    np.testing.assert_allclose(ours, np.asarray(kernel(X)), rtol=1e-8, atol=1e-10)


def test_noise_is_none_without_a_white_kernel() -> None:
    assert resolve_kernel(sk.RBF()).noise.value is None


@pytest.mark.parametrize(
    ("nu", "kind"), [(0.5, Matern12), (1.5, Matern32), (2.5, Matern52), (np.inf, RBF)]
)
def test_half_integer_matern_becomes_the_elementary_kernel(nu: float, kind: type) -> None:
    assert type(resolve_kernel(sk.Matern(nu=nu)).kernel) is kind


def test_noise_within_a_product_is_refused() -> None:
    with pytest.raises(KernelError, match="add a WhiteKernel to it"):
        resolve_kernel(sk.RBF() * (sk.Matern() + sk.WhiteKernel()))


def learned(kernel: sk.Kernel) -> set[str]:
    return {slot.name for slot in learned_slots(resolve_kernel(kernel).kernel)}


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: sk.RBF(0.4), {"lengthscale"}),
        (lambda: 2.0 * sk.RBF(0.4), {"variance", "lengthscale"}),
        (lambda: sk.RBF(0.4, "fixed"), set()),
        (lambda: 2.0 * sk.RBF(0.4, "fixed"), {"variance"}),
        (lambda: sk.ConstantKernel(2.0, "fixed") * sk.RBF(0.4), {"lengthscale"}),
        (
            lambda: (
                sk.ConstantKernel(2.0, "fixed") * (sk.ConstantKernel(0.3) * sk.RBF(0.4, "fixed"))
            ),
            {"variance"},
        ),
        (lambda: sk.Matern(0.4, nu=0.8), {"lengthscale"}),
        (lambda: sk.RBF(0.4, "fixed") * sk.Matern(0.7), {"lengthscale"}),
        (lambda: 2.0 * sk.RBF(0.4, "fixed") * sk.Matern(0.7, "fixed"), {"variance"}),
        (lambda: sk.Matern(0.4, "fixed", nu=1.5), set()),
        (lambda: sk.RationalQuadratic(0.4, alpha=0.7), {"lengthscale", "alpha"}),
        (lambda: sk.RationalQuadratic(0.4, alpha_bounds="fixed"), {"lengthscale"}),
        (lambda: sk.RationalQuadratic(0.4, length_scale_bounds="fixed"), {"alpha"}),
    ],
)
def test_scikit_learns_fixed_parameters_stay_fixed(
    make: Callable[[], sk.Kernel], expected: set[str]
) -> None:
    assert learned(make()) == expected


@pytest.mark.parametrize(
    "make",
    [
        lambda: sk.DotProduct(),
        lambda: sk.RBF() + sk.DotProduct(),
        lambda: sk.ConstantKernel() * sk.DotProduct(),
        lambda: sk.Exponentiation(sk.RBF(), 2),
        lambda: sk.ConstantKernel(),
        lambda: sk.WhiteKernel(),
        lambda: sk.PairwiseKernel(),
    ],
)
def test_kernels_without_counterpart_are_refused(make: Callable[[], sk.Kernel]) -> None:
    with pytest.raises(KernelError):
        resolve_kernel(make())


def test_refusal_says_which_kernel_and_what_to_use() -> None:
    with pytest.raises(KernelError, match=r"DotProduct has no stationary counterpart.*use RBF"):
        resolve_kernel(sk.RBF() + sk.DotProduct())


# ---------------------------------------------------------------------- names


@pytest.mark.parametrize("name", KERNEL_NAMES)
def test_names_give_their_kernels(name: str) -> None:
    choice = resolve_kernel(name)
    assert type(choice.kernel) is KERNEL_NAMES[name]
    assert choice.from_name


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(KernelError) as caught:
        resolve_kernel("matern33")
    assert "'matern33'" in str(caught.value)
    for name in ("rbf", "matern", "matern12", "matern32", "matern52", "rational-quadratic"):
        assert name in str(caught.value)


@pytest.mark.parametrize("kernel", [RBF, 3.0, None, ["rbf"], len])
def test_anything_else_is_refused(kernel: object) -> None:
    with pytest.raises(KernelError, match="kernel must be a name"):
        resolve_kernel(kernel)


def test_kernel_objects_pass_unchanged() -> None:
    kernel = RBF() + Matern12()
    assert resolve_kernel(kernel).kernel is kernel


def test_a_kernel_is_known_by_the_name_in_its_class() -> None:
    class Named(RBF):
        known_as = "named-in-a-test"

    class Heir(Named):
        pass

    assert type(resolve_kernel("named-in-a-test").kernel) is Named
    assert Heir not in KERNEL_NAMES.values()
    del KERNEL_NAMES["named-in-a-test"]
