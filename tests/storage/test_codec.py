"""Objects as records: what classes can be held, what comes back, and what is refused."""

import dataclasses
import inspect
from typing import Annotated, Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from orthogp import FileError, GPRegressor, features, kernels
from orthogp.features import Features, InducingPoints, Lattice, Trig
from orthogp.kernels import RBF, Kernel, Matern32, SpectralKernel
from orthogp.statistics import FrequencyLattice
from orthogp.storage import load_model, register
from orthogp.storage.codec import Decoder, encode
from tests.storage.small_models import POINTS, rows, small_lattices

LATTICE = FrequencyLattice([0.5, 0.7], [3, 2], 1.0)
ROUND = RBF(1.0, 2.0)
#: One object of each class that the packages list, with what its constructor must be given.
KERNELS = {
    "Categorical": lambda kind: kind(3),
    "Cyclic": lambda kind: kind(ROUND, 4.0),
    "On": lambda kind: ROUND.on(2, 0),
    "OnSphere": lambda kind: Matern32(1.0, [5.0, 1.0]).on_sphere(1, 0, 2, radius=100.0),
    "Product": lambda kind: ROUND.on(0) * Matern32().on(1),
    "Rotated": lambda kind: kind(Matern32(1.0, [1.0, 2.0]), 0.7, fixed=("angle",)),
    "SpectralMixture": lambda kind: kind([1.0, 0.5], [[1.0], [2.0]], [[2.0], [3.0]]),
    "Sum": lambda kind: ROUND.fix("variance") + Matern32(),
}
FAMILIES = {
    "Additive": lambda kind: kind((Trig(3), Trig(4)), ((0,), (2, 1))),
    "AdditiveLattice": lambda kind: kind((Lattice(LATTICE, LATTICE.half_indices()),), ((1, 0),)),
    "InducingPoints": lambda kind: kind(Z=[[0.0, 1.0], [2.0, 3.0]]),
    "Lattice": lambda kind: kind(LATTICE, LATTICE.half_indices()),
    "MassSeries": lambda kind: kind(
        LATTICE, LATTICE.half_indices()[:2], np.array([False, True]), np.eye(2)
    ),
    "TwoBlock": lambda kind: kind(Trig(5), InducingPoints(4)),
    "VariationalFourier": lambda kind: kind(5, -1.0, [2.0], orders=((0,), (1,))),
}


def concrete(package: Any, base: type) -> list[type]:
    return [
        kind
        for kind in vars(package).values()
        if isinstance(kind, type) and issubclass(kind, base) and not inspect.isabstract(kind)
    ]


def back(value: Any, hint: Any) -> Any:
    return Decoder("a test").decode(encode(value), hint)


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, tuple):
        for mine, theirs in zip(one, other, strict=True):
            assert_same(mine, theirs)
    elif isinstance(one, Kernel | Features | FrequencyLattice):
        for name in inspect.signature(type(one)).parameters:
            assert_same(getattr(one, name), getattr(other, name))
    else:
        np.testing.assert_array_equal(one, other)


# ---------------------------------------------------------------------- classes of the library


@pytest.mark.parametrize("kind", concrete(kernels, Kernel), ids=lambda kind: kind.__name__)
def test_every_listed_kernel_comes_back_by_being_listed(kind):
    if kind is SpectralKernel:
        with pytest.raises(
            FileError, match="cannot hold density, a function of the class Spectral"
        ):
            encode(kind(lambda u: u[0]))
        return
    kernel = KERNELS.get(kind.__name__, lambda own: own())(kind)
    assert type(kernel) is kind
    again = back(kernel, Kernel)
    assert_same(again, kernel)
    assert repr(again) == repr(kernel)


@pytest.mark.parametrize("kind", concrete(features, Features), ids=lambda kind: kind.__name__)
def test_every_listed_family_comes_back_by_being_listed(kind):
    family = FAMILIES.get(kind.__name__, lambda own: own(7))(kind)
    assert type(family) is kind
    assert_same(back(family, Features), family)


# ---------------------------------------------------------------------- classes of a user's own


class Sech(Kernel):
    """The kernel of the tutorial, with a field that shares a name with the format, and a tuple."""

    variance: np.ndarray
    lengthscale: np.ndarray
    name: str = eqx.field(default="mine", static=True)
    orders: tuple[int, ...] = eqx.field(default=(1, 2), static=True)

    def k(self, lag):
        return self.variance / jnp.cosh(lag[0] / self.lengthscale)

    def spectral_density(self, omega):
        half = self.lengthscale / 2
        return self.variance * half / jnp.cosh(jnp.pi * half * omega[0])

    def prior_variance(self):
        return jnp.asarray(self.variance)


class Wide(Trig):
    """A family of a user's own."""


@pytest.fixture
def forgotten(monkeypatch):
    """Whatever a test registers is forgotten after it."""
    from orthogp.storage import codec

    monkeypatch.setattr(codec, "_BY_NAME", dict(codec._BY_NAME))
    monkeypatch.setattr(codec, "_BY_CLASS", dict(codec._BY_CLASS))
    return codec


def fitted():
    X, y = rows()
    kernel = Sech(np.array(1.0), np.array(1.0), "theirs", (3, 1, 2))
    with small_lattices():
        return GPRegressor(kernel, features=Wide(9), learn=False, n_jobs=1).fit(X, y)


def test_a_kernel_and_a_family_of_ones_own_are_saved_after_one_line_each(forgotten, tmp_path):
    model = fitted()
    with pytest.raises(FileError, match=r"hold features, of the class Wide: .*register\(Wide\)"):
        model.save(tmp_path / "m.orthogp")
    assert not list(tmp_path.iterdir())
    assert register(Sech) is Sech
    register(Wide, name="wide-trig")
    model.save(tmp_path / "m.orthogp")
    loaded = load_model(tmp_path / "m.orthogp")
    for one, other in zip(
        model.predict(POINTS, return_std=True), loaded.predict(POINTS, return_std=True), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert (loaded.kernel.name, loaded.kernel.orders) == ("theirs", (3, 1, 2))
    assert type(loaded.features) is Wide
    # A process that has not registered them is told which class it lacks.
    del forgotten._BY_NAME["wide-trig"]
    with pytest.raises(FileError, match="'wide-trig' that is not known here, register it first"):
        load_model(tmp_path / "m.orthogp")


def test_a_name_stands_for_one_class(forgotten):
    class Trig(Kernel):
        pass

    with pytest.raises(FileError, match=r"another class Trig already, .* give this one another"):
        register(Trig)
    register(Trig, name="my-trig")


def test_a_kernel_of_ones_own_is_checked_as_all_kernels_are(forgotten):
    register(Sech)
    content = encode(Sech(np.array(1.0), np.array(1.0)))
    for change, match in (
        ({"variance": np.array(-1.0)}, "variance must be positive"),
        ({"variance": "large"}, "variance must be an array"),
        ({"fixed": ["name"]}, "fixed must be some of lengthscale, variance"),
        ({"orders": [1.5]}, "orders/0 must be a whole number"),
        ({"more": 1}, "'more' is no part of a Sech"),
    ):
        with pytest.raises(FileError, match=match):
            Decoder("a test").decode(content | change, Kernel)


# ---------------------------------------------------------------------- types


class Point(NamedTuple):
    """A record of every type that annotations name."""

    where: Annotated[NDArray[np.float64], "n d"]
    weights: Annotated[NDArray[np.float64], "n"] | None
    count: int
    scale: float
    labels: tuple[str, ...]
    pair: tuple[int, bool]
    times: dict[str, float]
    anything: Any = None


@dataclasses.dataclass(frozen=True)
class Derived:
    """A record of what is computed, made of what is kept."""

    total: float

    @classmethod
    def of_parts(cls, parts: tuple[float, ...]) -> "Derived":
        return cls(sum(parts))


@pytest.fixture
def point(forgotten):
    register(Point, "point", infinite=("scale",))
    where = np.arange(6.0).reshape(2, 3)
    return Point(where, np.ones(2), 3, 0.5, ("a", "b"), (2, True), {"all": 1.0}, (1, (2.5, None)))


def test_values_of_all_types_come_back(point):
    again = back(point, Point)
    np.testing.assert_array_equal(again.where, point.where)
    assert again[2:] == point[2:]
    assert back(point._replace(weights=None, scale=np.inf), Point).scale == np.inf


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"where": np.zeros((2, 3, 1))}, r"where must have shape \(n, d\), got \(2, 3, 1\)"),
        ({"weights": np.ones(3)}, r"weights must have shape \(2\), got \(3,\)"),
        ({"where": np.zeros((2, 3), dtype=bool)}, "where must be an array of type float64"),
        ({"where": np.full((2, 3), np.nan)}, "where holds numbers that are not finite"),
        ({"count": True}, "count must be a whole number"),
        ({"count": 2**60}, "count must be a whole number"),
        ({"count": 1.0}, "count must be a whole number"),
        ({"scale": "1"}, "scale must be a number"),
        ({"scale": 10**400}, "scale must be a number, got one too large"),
        ({"labels": ["a", 1]}, "labels/1 must be a text"),
        ({"labels": "ab"}, "labels must be a list"),
        ({"pair": [1]}, "pair must be a list of 2 values, got 1"),
        ({"times": {"all": np.inf}}, "times/all must be finite"),
        ({"anything": np.nan}, "anything must be finite"),
        ({"anything": {"$type": "os.system"}}, "anything is of a class 'os.system' that is not"),
        ({"anything": {"a": 1}}, "anything must be a"),
        ({"$type": "RBF"}, "must be a Point"),
    ],
)
def test_values_of_other_types_are_refused_with_their_place(point, change, match):
    with pytest.raises(FileError, match=match) as caught:
        Decoder("a test").decode(encode(point) | change, Point)
    assert str(caught.value).startswith("a test cannot be read: ")
    assert "\n" not in str(caught.value)


def test_what_is_made_otherwise_says_so_by_the_parameters_of_its_maker(forgotten):
    register(Derived, make=Derived.of_parts, keep=lambda own: {"parts": [own.total, 0.0]})
    assert encode(Derived(3.0)) == {"$type": "Derived", "parts": [3.0, 0.0]}
    assert back(Derived(3.0), Derived) == Derived(3.0)


def test_records_within_records_have_an_end():
    kernel: Any = encode(ROUND)
    for _ in range(40):
        kernel = {"$type": "Sum", "terms": [kernel], "fixed": []}
    with pytest.raises(FileError, match="nested at most 24 deep"):
        Decoder("a test").decode(kernel, Kernel)
