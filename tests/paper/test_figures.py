"""Figures 1 to 3 on few points: what is computed, written, kept and drawn."""

import csv
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import quad

from orthogp.exact.process import ExactPosterior
from orthogp.features import MeanPrior
from orthogp.kernels import Matern32
from orthogp.paper import band, figure3
from orthogp.paper.band import Figure1, Figure2
from orthogp.paper.figure3 import INPUTS, Figure3, draw_data
from orthogp.paper.run import Approximation, Schedule, train
from orthogp.rows import Domain, Rows
from orthogp.stochastic import StochasticModel
from tests import oracles
from tests.paper.images import assert_drawn


def read(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text("utf-8").splitlines()))


# ---------------------------------------------------------------------- figure 1


def test_figure1_errors_are_those_of_the_matrices(tmp_path: Path) -> None:
    plan = Figure1(num_points=31, growing_m=(11, 61), growing_a=(2.0, 10.0))
    said: list[str] = []
    paths = plan.reproduce(tmp_path, said.append)
    assert [path.name for path in paths] == ["figure1.csv", "figure1.png"]
    assert_drawn(paths[1])
    rows = {(float(row["a"]), int(row["num_features"])): row for row in read(paths[0])}
    # M = 31 with a = 10 belongs to both rows of the figure.
    assert set(rows) == {(10.0, 11), (10.0, 61), (2.0, 31), (10.0, 31)}
    assert len(said) == 4

    x = np.linspace(-3, 3, 31)
    lags = (x[:, None] - x)[..., None]
    exact = oracles.matern32(lags, 1.0, 0.2)
    Q = band.approximation(Matern32(1.0, 0.2), x, 10.0, 11)
    assert float(rows[10.0, 11]["max_error"]) == pytest.approx(np.max(np.abs(Q - exact)), rel=1e-9)
    assert float(rows[10.0, 11]["mean_error"]) == pytest.approx(
        np.mean(np.abs(Q - exact)), rel=1e-9
    )
    # With few features Q vanishes at the ends; with many it is the kernel without its tails.
    assert float(rows[10.0, 11]["max_error"]) > 0.99
    assert float(rows[10.0, 61]["max_error_of_band"]) < 0.003


def test_band_limited_kernel_is_the_integral_up_to_a() -> None:
    def density(omega: float) -> float:
        return 2 / np.pi * 3**1.5 * 0.2 / (3 + (0.2 * omega) ** 2) ** 2

    x = np.array([0.0, 0.3, 5.0])
    found = band.band_limited(Matern32(1.0, 0.2), x, 7.0)
    for j, lag in enumerate(x):
        expected = 2 * quad(lambda w, lag=lag: density(w) * np.cos(w * lag), 0, 7, limit=200)[0]
        assert found[0, j] == pytest.approx(expected, abs=1e-9)


# ---------------------------------------------------------------------- figure 2


def test_rows_of_figure2() -> None:
    rng = np.random.default_rng(1)
    x = np.sort(rng.uniform(-3, 3, 80))
    K = oracles.matern52((x[:, None] - x)[..., None], 1.0, 0.2) + 1e-10 * np.eye(80)
    y = np.linalg.cholesky(K) @ rng.standard_normal(80) + 0.03 * rng.standard_normal(80)
    X, found = band.draw_data()
    np.testing.assert_array_equal(X[:, 0], x)
    np.testing.assert_allclose(found, y, atol=1e-7)


@pytest.mark.slow
def test_best_a_is_better_than_its_neighbours() -> None:
    data = band.draw_data()
    a = band.best_a(data, 31, "dense")
    assert a == pytest.approx(16, abs=0.5)
    bounds = [
        band.collapsed(data, 31, factor * a, "dense").elbo(*data)
        for factor in (0.9, 0.99, 1.0, 1.01, 1.1)
    ]
    assert max(bounds) == bounds[2]
    assert bounds[2] == pytest.approx(-1607, abs=1)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training replaced by its goal, with a bound that is known to be an estimate."""

    def stub(X, y, model, schedule):
        q = Approximation.collapsed(model.placed(Domain.around(X)), X, y)
        return q, q.elbo(X, y) + 0.5, 0.7

    monkeypatch.setattr(band, "train", stub)
    monkeypatch.setattr(figure3, "train", stub)


@pytest.mark.slow
@pytest.mark.usefixtures("trained")
def test_figure2_writes_bounds_and_curves(tmp_path: Path) -> None:
    plan = Figure2(num_features=11, trained=(band.BEST,), num_shown=21)
    said: list[str] = []
    paths = plan.reproduce(tmp_path, said.append)
    assert [p.name for p in paths] == ["figure2.csv", "figure2_curves.csv", "figure2.png"]
    assert_drawn(paths[2])
    rows, curves = read(paths[0]), read(paths[1])
    assert len(rows) == 2 * 4
    assert len(curves) == 21 * len(rows)
    dense, diagonal = ([r for r in rows if r["covariance"] == c] for c in ("dense", "diagonal"))
    bound = {(r["a"], r["training"]): float(r["elbo"]) for r in dense}
    best = next(r for r in dense if r["training"] == "stochastic")
    assert best["a"] not in ("5.0", "40.0")
    assert bound[best["a"], "collapsed"] > max(
        bound["5.0", "collapsed"], bound["40.0", "collapsed"]
    )
    assert float(best["average_elbo"]) == pytest.approx(float(best["elbo"]) + 0.5)
    assert best["max_steps"] == "30000"
    for row, other in zip(dense[:2], diagonal[:2]):
        assert row["a"] == other["a"]
        assert float(row["elbo"]) >= float(other["elbo"])

    said.clear()
    plan.reproduce(tmp_path, said.append)
    assert len(said) == len(rows)
    assert all(line.endswith(": kept") for line in said)
    # On other points the bounds stay and the curves are made again.
    plan._replace(num_shown=11, trained=()).reproduce(tmp_path, said.append)
    assert len(read(paths[0])) == len(rows)


# ---------------------------------------------------------------------- figure 3


@pytest.mark.parametrize(
    ("name", "sd"),
    [
        ("Gaussian, sd 3", 3.0),
        ("uniform, sd 3", 3.0),
        ("uniform, sd 6", 6.0),
        ("bimodal, sd 3", 3.0),
    ],
)
def test_inputs_have_the_moments_they_are_named_after(name: str, sd: float) -> None:
    x = INPUTS[name](np.random.default_rng(0), 200_000)
    # The mean has standard error sd/447; that of the deviation is smaller than with Gaussian tails.
    assert np.mean(x) == pytest.approx(0, abs=0.01 * sd)
    assert np.std(x) == pytest.approx(sd, rel=0.01)


def test_bimodal_inputs_are_two_gaussians() -> None:
    x = INPUTS["bimodal, sd 3"](np.random.default_rng(1), 200_000)
    left, right = x[x < 1.8], x[x > 1.8]
    assert len(left) / len(x) == pytest.approx(0.7, abs=0.01)
    assert np.var(left) == pytest.approx(1.0, abs=0.03)
    assert np.var(right) == pytest.approx(0.5, abs=0.03)


@pytest.mark.slow
@pytest.mark.usefixtures("trained")
def test_figure3_on_few_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Figure3(
        num_rows=60, num_features=(7,), inputs=("bimodal, sd 3",), stochastic_features=(7,)
    )
    said: list[str] = []
    paths = plan.reproduce(tmp_path, said.append)
    assert_drawn(paths[-1])
    rows, exact, points = map(read, paths[:3])
    assert len(rows) == 2 * 2
    assert len(points) == 2
    limits = {row["inputs"]: float(row["log_marginal_likelihood"]) for row in exact}
    for row in rows:
        assert float(row["elbo"]) <= limits[row["inputs"]]
        for truth in ("below_exact", "above_fewer_features", "above_diagonal"):
            assert row[truth] == "True"
    for dense, diagonal in zip(rows[::2], rows[1::2], strict=True):
        assert (dense["covariance"], diagonal["covariance"]) == ("dense", "diagonal")
        assert float(dense["elbo"]) >= float(diagonal["elbo"])
    for point in points:
        # At the stub's own hyperparameters its q(u) is the best, in both ways of computing it.
        assert float(point["collapsed_elbo"]) == pytest.approx(float(point["elbo"]), rel=1e-8)

    # More numbers of features begin where the others ended.
    more = plan._replace(num_features=(7, 9), stochastic_features=())
    monkeypatch.setattr(figure3, "FAMILIES", ("hermite",))
    said.clear()
    more.reproduce(tmp_path, said.append)
    assert sum(line.endswith(": kept") for line in said) == 1 + 2
    longer = [row for row in read(paths[0]) if row["num_features"] == "9"]
    assert len(longer) == 2
    assert all(row["elbo_from_fewer_features"] != "nan" for row in longer)


@pytest.mark.slow
def test_exact_likelihood_of_figure3_is_a_maximum() -> None:
    x, y = data = draw_data("uniform, sd 3", 60, 0)
    row = figure3.learn_exact(data)
    learned = [float(row[name]) for name in ("variance", "lengthscale", "noise_variance")]

    def likelihood(values: list[float]) -> float:
        kernel = figure3.KERNEL.with_parameters(variance=values[0], lengthscale=values[1])
        posterior = ExactPosterior(kernel, values[2], MeanPrior(), Rows(x[:, None], y))
        return posterior.log_marginal_likelihood

    best = float(row["log_marginal_likelihood"])
    assert likelihood(learned) == pytest.approx(best, rel=1e-9)
    for i in range(3):
        for factor in (0.9, 1.1):
            moved = [value * (factor if i == j else 1) for j, value in enumerate(learned)]
            assert likelihood(moved) < best


# ---------------------------------------------------------------------- training


@pytest.mark.slow
def test_training_raises_the_bound_and_averages_its_estimates() -> None:
    data = band.draw_data()
    features = band.trig(5, 3.0)
    schedule = Schedule(num_samples=20, max_steps=100, learning_rate=5e-2, repeats=400)
    model = StochasticModel(features, band.KERNEL, 0.1, "diagonal", learn=())
    q, average, error = train(*data, model, schedule)
    prior = q._replace(mean=np.zeros(5), covariance=np.eye(5))
    best = Approximation.collapsed(model, *data)
    assert prior.elbo(*data) + 10 < q.elbo(*data) <= best.elbo(*data)
    assert np.count_nonzero(q.covariance) == 5
    # Unbiased: 5 standard errors, a false-alarm rate of 1e-6.
    assert average == pytest.approx(q.elbo(*data), abs=5 * error)
    assert q.noise_variance == pytest.approx(0.1)
