"""The one law: moments from statistics are moments from rows."""

import numpy as np
import pytest

from orthogp.features import Lattice
from orthogp.inference import moments as moments_module
from orthogp.inference import moments_from_rows, moments_from_statistics
from tests.problems import Entry, all_entries, design, label, make_lattice, make_rows, mean_prior

EXTENTS = {1: 20, 2: 5, 3: 3}


@pytest.mark.parametrize(("num_dims", "entry"), all_entries(), ids=label)
def test_moments_from_statistics_are_moments_from_rows(num_dims: int, entry: Entry) -> None:
    lattice = make_lattice(num_dims, 6.0, EXTENTS[num_dims])
    for seed, kind in enumerate((None, "constant", "linear")):
        mean = mean_prior(kind, num_dims)
        features = Lattice.select(entry.kernel, lattice, 25, mean)
        for weights in (None, "real", "whole"):
            rows = make_rows(seed, 40, num_dims, num_targets=2, weights=weights)
            statistics = rows.statistics(lattice, mean)
            for repeats in (True, False):
                fast = moments_from_statistics(features, entry.kernel, statistics, repeats=repeats)
                slow = moments_from_rows(
                    features, entry.kernel, rows.X, rows.y, rows.weights, repeats=repeats
                )
                for name, left, right in zip(fast._fields, fast, slow):
                    scale = max(1.0, float(np.max(np.abs(right))))
                    np.testing.assert_allclose(
                        left, right, rtol=0, atol=1e-10 * scale, err_msg=f"{kind} {weights} {name}"
                    )


@pytest.mark.parametrize("num_dims", [1, 2, 3])
def test_moments_are_products_of_features_written_out(num_dims: int) -> None:
    entry = next(e for d, e in all_entries(num_dims) if e.name == "rbf")
    lattice = make_lattice(num_dims, 6.0, EXTENTS[num_dims])
    mean = mean_prior("linear", num_dims)
    features = Lattice.select(entry.kernel, lattice, 15, mean)
    rows = make_rows(0, 30, num_dims, num_targets=2, weights="real")
    masses = features.masses(entry.kernel)
    amplitudes = np.concatenate(
        [
            [np.sqrt(masses[0] + mean.offset_variance)],
            np.tile(np.sqrt(2 * masses[1:]), 2),
            np.full(num_dims, np.sqrt(mean.slope_variance)),
        ]
    )
    Phi = design(features, rows.X) * amplitudes
    w = rows.precisions
    moments = moments_from_rows(features, entry.kernel, rows.X, rows.y, rows.weights, repeats=False)
    np.testing.assert_allclose(moments.gram, Phi.T @ (w[:, None] * Phi), atol=1e-10)
    np.testing.assert_allclose(moments.projection, Phi.T @ (w[:, None] * rows.y), atol=1e-10)
    np.testing.assert_allclose(moments.yy, w @ rows.y**2, rtol=1e-13)
    residual = 1.3 - masses[0] - 2 * masses[1:].sum()
    assert moments.residual_trace == pytest.approx(w.sum() * residual, rel=1e-9)
    assert moments.rows == 30
    assert moments.log_weights == pytest.approx(np.log(w).sum(), rel=1e-13)


def test_weights_as_repeats_are_repeated_rows() -> None:
    entry = next(e for d, e in all_entries(1) if e.name == "rbf")
    features = Lattice.select(entry.kernel, make_lattice(1, 6.0, 20), 15)
    rows = make_rows(3, 30, 1, num_targets=2, weights="whole")
    counts = rows.precisions.astype(int)
    weighted = moments_from_rows(features, entry.kernel, rows.X, rows.y, rows.weights)
    repeated = moments_from_rows(
        features, entry.kernel, np.repeat(rows.X, counts, axis=0), np.repeat(rows.y, counts, axis=0)
    )
    for left, right in zip(weighted, repeated):
        np.testing.assert_allclose(left, right, rtol=1e-12, atol=1e-12)


def test_rows_are_summed_in_chunks_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = next(e for d, e in all_entries(1) if e.name == "rbf")
    features = Lattice.select(entry.kernel, make_lattice(1, 6.0, 20), 15)
    rows = make_rows(4, 30, 1, weights="real")
    arguments = (features, entry.kernel, rows.X, rows.y, rows.weights)
    whole = moments_from_rows(*arguments)
    monkeypatch.setattr(moments_module, "ROWS_PER_CHUNK", 7)
    for left, right in zip(moments_from_rows(*arguments), whole):
        np.testing.assert_allclose(left, right, rtol=1e-12, atol=1e-12)
