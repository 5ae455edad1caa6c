"""What a step of training costs, and how noisy its estimate is."""

import csv
from pathlib import Path

import jax
import numpy as np
import pytest

from orthogp.paper import costs
from orthogp.paper.band import collapsed, draw_data
from orthogp.paper.costs import Complexity, Noise, Size
from tests.paper.images import assert_drawn


def read(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text("utf-8").splitlines()))


# ---------------------------------------------------------------------- complexity


@pytest.mark.slow
@pytest.mark.parametrize("method", costs.METHODS)
def test_step_has_a_gradient_in_all_that_is_learned(method: costs.Method) -> None:
    step = costs.compile_step(method, Size(8, 16, 20))
    value, gradient = step.call()
    assert np.isfinite(value)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(gradient)]
    assert all(np.all(np.isfinite(leaf)) for leaf in leaves)
    # Mean and covariance of q(u), kernel, noise, and a or Z; at q(u) = p(u) the last does not act.
    assert len(leaves) >= 5
    assert sum(bool(np.any(leaf != 0)) for leaf in leaves) >= 4
    assert step.temporary_bytes > 0


@pytest.mark.slow
def test_diagonal_step_never_holds_a_matrix_of_features() -> None:
    few, many = (
        costs.compile_step("diagonal", Size(m, 16, 20)).temporary_bytes for m in (100, 1000)
    )
    # One M×M matrix of doubles alone would be 8 MB.
    assert many < 1e6
    assert many < 10 * few


@pytest.mark.slow
def test_complexity_measures_every_size_once(tmp_path: Path, monkeypatch) -> None:
    compiled = []

    def stub(method: str, size: Size) -> costs.Step:
        compiled.append((method, size))
        return costs.Step(lambda: None, size.num_features**2 * size.batch_size)

    monkeypatch.setattr(costs, "compile_step", stub)
    monkeypatch.setattr(costs, "_LEAST_SECONDS", 0.0)
    monkeypatch.setattr(costs.Step, "seconds", lambda step: 1e-9 * step.temporary_bytes)
    plan = Complexity(Size(8, 16, 16), (4, 8, 16), (16, 32), (16, 64))
    paths = plan.reproduce(tmp_path, lambda line: None)
    assert_drawn(paths[2])
    assert len(set(compiled)) == len(compiled) == len(read(paths[0]))
    exponents = {(row["over"], row["method"]): row for row in read(paths[1])}
    assert float(exponents["M", "dense"]["time_exponent"]) == pytest.approx(2)
    assert float(exponents["batch size", "diagonal"]["memory_exponent"]) == pytest.approx(1)
    assert float(exponents["T", "dense"]["time_exponent"]) == pytest.approx(0, abs=1e-9)
    assert ("T", "inducing points") not in exponents


# ---------------------------------------------------------------------- noise


@pytest.mark.slow
@pytest.mark.parametrize("sampler", costs.SAMPLERS)
def test_estimates_vary_around_the_bound(sampler: costs.Sampler) -> None:
    data = draw_data()
    q = collapsed(data, 5, 3.0, "dense")
    values = costs.estimates(q, data, costs.Draws(sampler, 16, 200, seed=3))
    assert values.shape == (200,)
    error = np.std(values) / np.sqrt(200)
    assert error > 0
    # 5 standard errors: a false-alarm rate of 1e-6.
    assert np.mean(values) == pytest.approx(q.elbo(*data), abs=5 * error)


def rows(count: int, needed: float) -> list[dict]:
    """Deviations that fall as 1/T², to a hundredth of the slack at `needed` samples."""
    return [
        {"num_samples": t, "slack": 50.0, "standard_deviation": 0.5 * (needed / t) ** 2}
        for t in (count, 3 * count, 9 * count)
    ]


def test_rule_is_where_the_deviation_falls_to_its_target() -> None:
    curves: costs.Curves = {
        (sampler, count): rows(count, 2.5 * count**0.8 * (1 if sampler == "stratified" else 9))
        for count in (10, 20, 40)
        for sampler in costs.SAMPLERS
    }
    # A rise before the fall changes nothing.
    first = curves["stratified", 40][0]
    low = {**first, "num_samples": 30, "standard_deviation": first["standard_deviation"] / 2}
    curves["stratified", 40].insert(0, low)
    # One that reaches the target nowhere says nothing.
    curves["stratified", 80] = rows(80, 1e6)
    rule = costs.fit_rule(curves)
    assert [count for count, _ in rule.points] == [10, 20, 40]
    assert rule.exponent == pytest.approx(0.8)
    assert rule.factor == pytest.approx(2.5)
    assert "1% of the slack at T = 2.5 M^0.8" in str(rule)


@pytest.mark.slow
def test_noise_is_measured_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stub(q, data, draws) -> np.ndarray:
        scale = 400 / draws.num_samples if draws.sampler == "stratified" else 5000
        return q.elbo(*data) + scale * np.linspace(-1, 1, draws.repeats)

    monkeypatch.setattr(costs, "estimates", stub)
    plan = Noise(num_features=(5,), ratios=(1.0, 4.0), most_independent=5, repeats=20)
    paths = plan.reproduce(tmp_path, lambda line: None)
    assert_drawn(paths[2])
    found = {(row["sampler"], row["num_samples"]): row for row in read(paths[0])}
    assert set(found) == {("stratified", "5"), ("stratified", "20"), ("independent", "5")}
    few, many = (float(found["stratified", t]["standard_deviation"]) for t in ("5", "20"))
    assert few == pytest.approx(80 * np.std(np.linspace(-1, 1, 20), ddof=1))
    assert many == pytest.approx(few / 4)
    for row in found.values():
        assert float(row["slack"]) == pytest.approx(15.31 - float(row["elbo"]), abs=0.01)
        assert float(row["standard_errors_off"]) == pytest.approx(0, abs=1e-6)
