"""Double precision inside, whatever JAX's global switch says, and the switch left alone."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np

from orthogp.kernels import RationalQuadratic
from orthogp.precision import in_double
from tests.problems import fit, make_lattice, make_rows, mean_prior

PROGRAM = """
import sys
import jax
assert not jax.config.jax_enable_x64, "the test needs JAX's default"
import numpy as np
import orthogp
from orthogp.features import Lattice
from orthogp.inference import Domain, Posterior, moments_from_statistics
from orthogp.inference.objective import LatticeObjective
from orthogp.inference.parameters import pack
from orthogp.kernels import Matern
assert not jax.config.jax_enable_x64, "importing orthogp flipped the switch"
assert "matplotlib" not in sys.modules, "an extra was imported with the package"

X = np.linspace(0.0, 1.0, 50)[:, None]
y = np.sin(9 * X[:, 0])
lattice = orthogp.FrequencyLattice.for_domain([0.0], [1.0], period=4.0, extent=50)
statistics = orthogp.FourierStatistics.from_data(lattice, X, y)
kernel = Matern(1.7, 1.0, 0.3)
features = Lattice.select(kernel, lattice, 41)
moments = moments_from_statistics(features, kernel, statistics)
posterior = Posterior(features, kernel, 0.1, moments, Domain(np.zeros(1), np.ones(1)))
prediction = posterior.predict(X)
objective = LatticeObjective(features, kernel, statistics)
vector = np.append(pack(kernel, objective.slots), np.log(0.1))
value, gradient = objective.value_and_gradient(vector)
for array in (
    features.masses(kernel), moments.gram, prediction.mean, prediction.variance,
    posterior.covariance(X), posterior.derivative(X).variance, gradient,
    posterior.draw(2, np.random.default_rng(0))(X),
):
    assert array.dtype == np.float64, array.dtype
assert not jax.config.jax_enable_x64, "using orthogp flipped the switch"
assert jax.numpy.ones(1).dtype == jax.numpy.float32
"""


def test_using_the_library_leaves_the_switch_alone_and_gives_double_precision() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_switch_is_off_in_these_tests_too() -> None:
    assert jnp.ones(1).dtype == jnp.float32


def test_results_do_not_depend_on_the_switch() -> None:
    kernel = RationalQuadratic(1.3, 0.5, 1.4)
    rows, lattice = make_rows(0, 20, 1), make_lattice(1, 6.0, 30)

    def results() -> list[np.ndarray]:
        posterior = fit(kernel, rows, lattice, 31, 0.1, mean_prior("linear", 1)).posterior
        return [
            posterior.predict(rows.X).mean,
            posterior.covariance(rows.X),
            posterior.derivative(rows.X).variance,
        ]

    without = results()
    with jax.enable_x64(True):
        with_switch = results()
    for left, right in zip(without, with_switch):
        np.testing.assert_array_equal(left, right)


def test_function_in_double_computes_and_returns_double() -> None:
    third = in_double(lambda: jnp.asarray(1.0) / 3)()
    assert third.dtype == jnp.float64
    assert float(third) == 1 / 3
    assert (jnp.asarray(1.0) / 3).dtype == jnp.float32
