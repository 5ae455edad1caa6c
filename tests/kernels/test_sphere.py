"""Kernels on the sphere: covariances, symmetry, what engines see, and what is refused."""

import jax
import numpy as np
import pytest

from orthogp import KernelError
from orthogp.exact.process import ExactObjective
from orthogp.features import MeanPrior
from orthogp.inference.parameters import learned_slots, pack
from orthogp.kernels import RBF, Matern, Matern32, QuasiPeriodic, RationalQuadratic, Sum
from orthogp.kernels.base import EARTH_RADIUS
from orthogp.kernels.transformed import Embedding
from orthogp.neighbours.conditionals import SetKernel
from orthogp.neighbours.nearest import metric_lengths, widths_of
from orthogp.precision import in_double
from orthogp.rows import Rows

POLES = np.array([[0.0, 90.0], [123.0, 90.0], [0.0, -90.0], [180.0, 0.0], [-180.0, 0.0]])
NO_MEAN = MeanPrior(0.0, 0.0, np.zeros(1), np.ones(1))


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def points(rng, count):
    latitude = np.degrees(np.arcsin(rng.uniform(-1, 1, count)))
    return np.column_stack([rng.uniform(-180, 180, count), latitude])


def great_circle_angles(X):
    """θ between all points by the haversine formula."""
    longitude, latitude = np.radians(X.T)
    up, along = latitude[:, None] - latitude, longitude[:, None] - longitude
    across = np.cos(latitude[:, None]) * np.cos(latitude)
    half = np.sin(up / 2) ** 2 + across * np.sin(along / 2) ** 2
    return 2 * np.arcsin(np.sqrt(np.clip(half, 0, 1)))


@in_double
def evaluate(kernel, lags):
    return np.asarray(jax.vmap(kernel.k)(lags))


def covariance(kernel, X):
    """All covariances, by the embedding."""
    embedding = Embedding.of(kernel, X.shape[1])
    rows = embedding.rows(X)
    lags = rows[:, None, :] - rows[None, :, :]
    flat = evaluate(embedding.kernel(kernel), lags.reshape(-1, rows.shape[1]))
    return flat.reshape(len(X), len(X))


@pytest.mark.parametrize(
    "kernel", [Matern32(2.0, 900.0), RBF(0.5, 3000.0), RationalQuadratic(1.0, 500.0, 0.7)]
)
@pytest.mark.parametrize("radius", [EARTH_RADIUS, 1737.4])
def test_covariance_is_that_of_the_chord(rng, kernel, radius):
    X = np.concatenate([points(rng, 20), POLES])
    chord = 2 * radius * np.sin(great_circle_angles(X) / 2)
    expected = evaluate(kernel, chord.reshape(-1, 1)).reshape(chord.shape)
    found = covariance(kernel.on_sphere(0, 1, radius=radius), X)
    # The haversine formula loses half of the digits at antipodes.
    np.testing.assert_allclose(found, expected, atol=1e-6 * float(kernel.variance))


def test_further_columns_have_lengthscales_of_their_own(rng):
    X = np.column_stack([points(rng, 15), rng.uniform(0, 100, 15)])
    kernel = Matern32(1.5, [800.0, 24.0]).on_sphere(0, 1, 2)
    chord = 2 * EARTH_RADIUS * np.sin(great_circle_angles(X[:, :2]) / 2)
    distance = np.hypot(chord / 800, (X[:, None, 2] - X[:, 2]) / 24)
    expected = evaluate(Matern32(1.5), distance.reshape(-1, 1)).reshape(distance.shape)
    np.testing.assert_allclose(covariance(kernel, X), expected, atol=1e-9)


def test_one_lengthscale_becomes_one_for_the_sphere_and_each_further_column():
    (primitive, dims), *_ = Matern32(1.0, 7.0).on_sphere(3, 1, 0, 4).primitives()
    assert dims == (3, 1, 0, 4)
    np.testing.assert_array_equal(primitive.parameters()["lengthscale"], [7.0, 7.0, 7.0])


def test_covariance_is_positive_definite_also_at_the_poles(rng):
    # Without repeated points: POLES names the north pole and the date line twice.
    X = np.concatenate([points(rng, 200), POLES[[0, 2, 3]]])
    for kernel in (Matern32(1.0, 2000.0), RBF(1.0, 300.0)):
        values = np.linalg.eigvalsh(covariance(kernel.on_sphere(0, 1), X))
        assert values.min() > 0


def test_nothing_depends_on_where_the_poles_are(rng):
    X = np.concatenate([points(rng, 30), POLES])
    embedding = Embedding.of(Matern32().on_sphere(0, 1), 2)
    rotation = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    turned = embedding.degrees(embedding.rows(X) @ rotation)
    kernel = Matern32(1.0, 1500.0).on_sphere(0, 1)
    np.testing.assert_allclose(covariance(kernel, turned), covariance(kernel, X), atol=1e-12)


def test_the_date_line_and_the_poles_are_single_places():
    rows = Embedding.of(RBF().on_sphere(0, 1), 2).rows(POLES)
    np.testing.assert_array_equal(rows[0], rows[1])
    np.testing.assert_array_equal(rows[3], rows[4])


def test_degrees_come_back_from_space(rng):
    kernel = Matern32().on_sphere(2, 0, 1) + RBF().on(2)
    X = points(rng, 25)[:, ::-1]
    X = np.column_stack([X[:, 0], rng.uniform(size=25), X[:, 1]])
    embedding = Embedding.of(kernel, 3)
    assert embedding.size == 5
    np.testing.assert_allclose(embedding.degrees(embedding.rows(X)), X, atol=1e-12)


def test_sums_and_products_share_one_embedding(rng):
    X = np.column_stack([points(rng, 12), rng.uniform(0, 10, 12)])
    sphere, time = Matern32(2.0, 900.0).on_sphere(0, 1), RBF(1.0, 3.0).on(2)
    along = np.exp(-((X[:, None, 2] - X[:, 2]) ** 2) / 18)
    on_sphere = covariance(sphere, X)
    np.testing.assert_allclose(covariance(sphere + time, X), on_sphere + along, atol=1e-12)
    np.testing.assert_allclose(covariance(sphere * time, X), on_sphere * along, atol=1e-12)
    both = (Matern32(1.0, 900.0) + RBF(1.0, 90.0)).on_sphere(0, 1)
    assert isinstance(both, Sum)
    assert Embedding.of(both, 2).size == 3


@pytest.mark.parametrize(
    "kernel",
    [
        Matern32(1.3, 2500.0).on_sphere(0, 1),
        Matern32(1.3, [2500.0, 30.0]).on_sphere(0, 1, 2),
        Matern(1.2, 1.3, [2500.0, 30.0]).on_sphere(0, 1, 2) + RBF(0.4, 20.0).on(2),
    ],
)
def test_gradients_of_both_engines_are_finite_differences(rng, kernel):
    X = np.column_stack([points(rng, 12), rng.uniform(0, 100, 12)])
    embedding = Embedding.of(kernel, 3)
    rows, inner = embedding.rows(X), embedding.kernel(kernel)
    objective = ExactObjective(inner, NO_MEAN, Rows(rows, rng.standard_normal(12)))
    vector = np.append(pack(inner, objective.slots), np.log(0.1))
    step = 1e-6 * np.eye(len(vector))
    expected = [(objective.value(vector + e) - objective.value(vector - e)) / 2e-6 for e in step]
    found = objective.evaluate(vector)
    np.testing.assert_allclose(found.gradient, expected, rtol=1e-5, atol=1e-6)
    assert np.linalg.eigvalsh(found.information).min() > 0

    weights = rng.standard_normal((12, 12))
    weights += weights.T
    sets = SetKernel(inner, rows.shape[1]).values_and_pull(rows[None])
    pulled = [
        np.sum(
            weights
            * (
                SetKernel(objective.kernel_at(vector + e), rows.shape[1]).values(rows[None])[0]
                - SetKernel(objective.kernel_at(vector - e), rows.shape[1]).values(rows[None])[0]
            )
        )
        / 2e-6
        for e in step[:-1]
    ]
    np.testing.assert_allclose(sets.values[0], covariance(kernel, X), atol=1e-9)
    np.testing.assert_allclose(sets.pull(weights[None])[0], pulled, rtol=1e-5, atol=1e-5)


def test_neighbours_are_near_by_the_chord(rng):
    kernel = Matern32(1.0, [500.0, 24.0]).on_sphere(0, 1, 2)
    embedding = Embedding.of(kernel, 3)
    rows = embedding.rows(np.column_stack([points(rng, 9), rng.uniform(size=9)]))
    lengths = metric_lengths(embedding.kernel(kernel), widths_of(rows))
    np.testing.assert_array_equal(lengths, [500.0, 500.0, 500.0, 24.0])


def test_fixing_scaling_and_printing_reach_the_kernel_inside():
    kernel = 2.0 * Matern32(3.0, 500.0).fix("lengthscale").on_sphere(1, 0)
    assert repr(kernel) == (
        "Matern32(variance=6, lengthscale=500, fixed=('lengthscale',)).on_sphere(1, 0)"
    )
    assert [slot.name for slot in learned_slots(kernel)] == ["variance"]
    assert learned_slots(kernel.fix()) == ()
    assert repr(RBF().on_sphere(0, 1, radius=2.0)).endswith(".on_sphere(0, 1, radius=2)")


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: QuasiPeriodic().on_sphere(0, 1), "can act on the sphere"),
        (lambda: RBF().on_sphere(0, 1).on_sphere(0, 1), "can act on the sphere"),
        (lambda: RBF().on_sphere(0, 0), "distinct"),
        (lambda: RBF().on_sphere(-1, 0), "counted from 0"),
        (lambda: RBF(1.0, [1.0, 2.0]).on_sphere(0, 1), "2 lengthscales on the sphere and 0"),
        (lambda: RBF(1.0, [1.0, 2.0, 3.0]).on_sphere(0, 1, 2), "3 lengthscales"),
        (lambda: RBF().on_sphere(0, 1, radius=-1.0), "radius"),
        (lambda: RBF().on_sphere(0, 1).check(1), "X has 1 columns"),
        (lambda: RBF().on_sphere(0, 1).k(np.zeros(2)), "no function of differences"),
    ],
)
def test_what_makes_no_sense_is_refused(make, sentence):
    with pytest.raises(KernelError, match=sentence):
        make()


def test_a_kernel_on_the_sphere_on_other_columns_is_refused():
    kernel = RBF().on_sphere(0, 1).on(2, 3)
    with pytest.raises(KernelError, match="names its columns itself"):
        Embedding.of(kernel, 4).kernel(kernel)
