"""Summing many rows takes a bounded amount of memory."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource
import numpy as np
from orthogp.statistics import FourierStatistics, FrequencyLattice

def peak():  # megabytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

n = 4_000_000
X = np.linspace(0.0, 1.0, n)[:, None]
y = np.sin(40 * X[:, 0])
lattice = FrequencyLattice.for_domain([0.0], [1.0], period=4.0, extent=200)
FourierStatistics.from_data(lattice, X[:1000], y[:1000])  # what loading costs
before = peak()
statistics = FourierStatistics.from_data(lattice, X, y)
assert statistics.count == n
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units elsewhere")
@pytest.mark.slow
def test_four_million_rows_take_a_few_hundred_megabytes() -> None:
    # The rows themselves are 64 MB; buffers that the module promises, about 200.
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 250
