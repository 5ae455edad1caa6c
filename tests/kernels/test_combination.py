"""Sums, multiples, kernels on some columns, fixed parameters, and how kernels print."""

import numpy as np
import pytest

from orthogp.errors import KernelError
from orthogp.inference.parameters import (
    learned_slots,
    pack,
    stretched,
    unpack,
    with_lengthscale_per_column,
)
from orthogp.kernels import (
    RBF,
    Kernel,
    Matern,
    Matern12,
    Matern32,
    Matern52,
    On,
    QuasiPeriodic,
    SpectralMixture,
    Sum,
)
from tests.problems import Entry, covariances, label, prior_variance, zoo

LAGS = np.random.default_rng(0).normal(size=(20, 3))


def names(kernel: Kernel) -> list[tuple[int, str]]:
    return [(slot.primitive, slot.name) for slot in learned_slots(kernel)]


def test_sum_adds_covariances() -> None:
    a, b, c = RBF(1.3, 0.5), Matern32(0.7, [1.0, 2.0, 3.0]), Matern12(0.2, 4.0).on(1)
    total = covariances(a + b + c, LAGS)
    np.testing.assert_allclose(total, sum(covariances(k, LAGS) for k in (a, b, c)), rtol=1e-14)


def test_sums_of_sums_are_flat() -> None:
    kernels = [RBF(), Matern12(), Matern32(), Matern52()]
    combined = (kernels[0] + kernels[1]) + (kernels[2] + kernels[3])
    assert isinstance(combined, Sum)
    assert [type(term) for term in combined.terms] == [type(k) for k in kernels]


@pytest.mark.parametrize("entry", zoo(3), ids=label)
def test_multiple_scales_covariance_from_either_side(entry: Entry) -> None:
    expected = 2.5 * covariances(entry.kernel, LAGS)
    np.testing.assert_allclose(covariances(2.5 * entry.kernel, LAGS), expected, rtol=1e-13)
    np.testing.assert_allclose(covariances(entry.kernel * 2.5, LAGS), expected, rtol=1e-13)
    assert prior_variance(2.5 * entry.kernel) == pytest.approx(2.5 * prior_variance(entry.kernel))


def test_multiple_keeps_what_is_fixed() -> None:
    assert (2 * RBF().fix("variance")).fixed == ("variance",)


@pytest.mark.parametrize("factor", [0, -1.0, np.nan])
def test_multiple_must_be_positive(factor: float) -> None:
    with pytest.raises(KernelError, match="factor of a kernel must be positive"):
        factor * RBF()


@pytest.mark.parametrize("other", ["rbf", 1.0, None])
def test_sum_with_anything_but_a_kernel_is_a_type_error(other: object) -> None:
    with pytest.raises(TypeError):
        RBF() + other  # type: ignore[operator]


def test_kernel_on_some_columns_sees_those_only() -> None:
    kernel = Matern32(1.3, [0.5, 2.0])
    for on in (kernel.on(2, 0), kernel.on((2, 0)), kernel.on([2, 0])):
        assert isinstance(on, On)
        np.testing.assert_allclose(
            covariances(on, LAGS), covariances(kernel, LAGS[:, [2, 0]]), rtol=1e-14
        )


def test_columns_of_nested_kernels_compose() -> None:
    kernel = (RBF().on(1) + Matern12()).on(2, 0)
    assert [dims for _, dims in kernel.primitives()] == [(0,), (2, 0)]
    expected = covariances(RBF(), LAGS[:, :1]) + covariances(Matern12(), LAGS[:, [2, 0]])
    np.testing.assert_allclose(covariances(kernel, LAGS), expected, rtol=1e-14)


# ---------------------------------------------------------------------- parameters


def test_fix_takes_named_parameters_out_of_learning() -> None:
    kernel = QuasiPeriodic()
    assert names(kernel.fix("period")) == [
        (0, "variance"),
        (0, "lengthscale"),
        (0, "shape_lengthscale"),
    ]
    assert names(kernel.fix("period").fix("variance")) == [
        (0, "lengthscale"),
        (0, "shape_lengthscale"),
    ]
    assert names(kernel) == [(0, name) for name in kernel.parameters()]


def test_fix_without_names_fixes_all() -> None:
    assert names(Matern().fix()) == []
    assert names((RBF() + Matern()).fix()) == []
    assert names(RBF().on(1).fix()) == []


def test_fix_reaches_every_term_that_has_the_parameter() -> None:
    kernel = (RBF() + Matern().on(1)).fix("nu", "variance")
    assert names(kernel) == [(0, "lengthscale"), (1, "lengthscale")]


@pytest.mark.parametrize("kernel", [RBF(), RBF() + Matern12(), RBF().on(0)])
def test_fixing_an_unknown_parameter_is_refused(kernel: Kernel) -> None:
    with pytest.raises(KernelError, match="'nu'"):
        kernel.fix("nu")


def test_error_of_unknown_parameter_lists_the_known_ones() -> None:
    with pytest.raises(KernelError, match="it has variance, lengthscale"):
        RBF().fix("width")


@pytest.mark.parametrize("entry", zoo(2), ids=label)
def test_unpack_is_the_inverse_of_pack(entry: Entry) -> None:
    slots = learned_slots(entry.kernel)
    vector = pack(entry.kernel, slots)
    moved = vector + np.linspace(-0.3, 0.4, len(vector))
    np.testing.assert_allclose(pack(unpack(entry.kernel, slots, moved), slots), moved, rtol=1e-14)
    lags = LAGS[:, :2]
    np.testing.assert_allclose(
        covariances(unpack(entry.kernel, slots, vector), lags),
        covariances(entry.kernel, lags),
        rtol=1e-12,
    )


def test_unpack_leaves_fixed_parameters() -> None:
    kernel = Matern(1.2, 0.7, 0.5).fix("nu")
    slots = learned_slots(kernel)
    changed = unpack(kernel, slots, pack(kernel, slots) + 1)
    assert isinstance(changed, Matern)
    assert float(changed.nu) == 1.2
    assert float(changed.variance) == pytest.approx(0.7 * np.e)


def test_stretched_kernel_is_the_kernel_of_shrunken_lags() -> None:
    kernel = RBF(1.3, [0.5, 2.0, 1.0]) + Matern12(0.4, 0.3).on(1)
    np.testing.assert_allclose(
        covariances(stretched(kernel, 3.0), 3 * LAGS), covariances(kernel, LAGS), rtol=1e-13
    )


def test_lengthscale_is_spread_over_the_kernels_own_columns() -> None:
    spread = with_lengthscale_per_column(RBF() + Matern12().on(0, 2) + Matern32().on(1), 3)
    shapes = [primitive.parameters()["lengthscale"].shape for primitive, _ in spread.primitives()]
    assert shapes == [(3,), (2,), ()]


# ---------------------------------------------------------------------- printing


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (RBF(1.5, 0.25), "RBF(variance=1.5, lengthscale=0.25)"),
        (Matern12().fix("variance"), "Matern12(variance=1, lengthscale=1, fixed=('variance',))"),
        (
            RBF().on(0) + Matern12().on(1, 2),
            "RBF(variance=1, lengthscale=1).on(0) + Matern12(variance=1, lengthscale=1).on(1, 2)",
        ),
        (
            (RBF() + RBF()).on(1),
            "(RBF(variance=1, lengthscale=1) + RBF(variance=1, lengthscale=1)).on(1)",
        ),
    ],
)
def test_repr_is_what_one_would_type(kernel: Kernel, text: str) -> None:
    assert repr(kernel) == text


def test_spectral_mixture_takes_flat_lists_as_one_column() -> None:
    kernel = SpectralMixture([0.5, 0.8], [3.0, 8.0], [0.6, 0.9])
    assert kernel.means.shape == kernel.lengthscale.shape == (2, 1)
