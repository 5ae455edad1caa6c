"""Two non-uniform FFTs side by side: finufft, which orthogp uses, and that of ducc0.

    python benchmarks/nufft.py        # in an environment that has both; neither needs orthogp

Sums Σ c e^{iωx} over scattered rows (type 1) and Fourier series at scattered points (type 2), with
one thread, at the accuracy that orthogp asks for. The two take turns in one process; what is shown
is the ratio of medians, and the largest difference of each from direct sums over some frequencies.
"""

from __future__ import annotations

import time

import ducc0
import finufft
import numpy as np

ACCURACY = 1e-12
TURNS = 5
CASES = [(1_000_000, (2049,)), (200_000, (129, 129)), (100_000, (33, 33, 33))]


def spent(function) -> tuple[float, np.ndarray]:
    """Seconds that a call takes, and what it returns."""
    begun = time.perf_counter()
    result = function()
    return time.perf_counter() - begun, result


def compare(rows: int, modes: tuple[int, ...]) -> None:
    """Print a row of the table for sums, and one for series."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-np.pi, np.pi, (rows, len(modes)))
    c = rng.standard_normal(rows) + 1j * rng.standard_normal(rows)
    F = rng.standard_normal(modes) + 1j * rng.standard_normal(modes)
    columns = tuple(np.ascontiguousarray(column) for column in x.T)
    dims = len(modes)
    settings = {"eps": ACCURACY, "nthreads": 1}
    plans = {
        "type 1": (
            lambda: getattr(finufft, f"nufft{dims}d1")(*columns, c, modes, isign=1, **settings),
            lambda: ducc0.nufft.nu2u(
                points=c, coord=x, forward=False, epsilon=ACCURACY, nthreads=1,
                out=np.zeros(modes, dtype=complex),
            ),
        ),
        "type 2": (
            lambda: getattr(finufft, f"nufft{dims}d2")(*columns, F, isign=1, **settings),
            lambda: ducc0.nufft.u2nu(
                grid=F, coord=x, forward=False, epsilon=ACCURACY, nthreads=1
            ),
        ),
    }  # fmt: skip
    grids = np.meshgrid(*(np.arange(-(m // 2), (m + 1) // 2) for m in modes), indexing="ij")
    frequencies = np.stack([grid.ravel() for grid in grids], axis=1)
    for kind, (first, second) in plans.items():
        turns = [(spent(first), spent(second)) for _ in range(TURNS)]
        ratio = np.median([b[0] for _, b in turns]) / np.median([a[0] for a, _ in turns])
        if kind == "type 1":
            some = rng.choice(len(frequencies), 20)
            direct = np.exp(1j * (frequencies[some] @ x.T)) @ c
            found = [side[1].ravel()[some] for side in turns[0]]
            size = np.abs(c).sum()
        else:
            some = rng.choice(rows, 20)
            direct = np.exp(1j * (x[some] @ frequencies.T)) @ F.ravel()
            found = [side[1][some] for side in turns[0]]
            size = np.abs(F).sum()
        errors = [np.abs(values - direct).max() / size for values in found]
        shape = "×".join(map(str, modes))
        print(
            f"| {kind}, {rows:,} rows, {shape} modes | {ratio:.2f} × | {errors[0]:.0e} "
            f"| {errors[1]:.0e} |"
        )


def main() -> None:
    """Print the table."""
    print(f"ducc0 {ducc0.__version__}, finufft {finufft.__version__}\n")
    print("| what | seconds of ducc0 / finufft | error of finufft | error of ducc0 |")
    print("|---|---|---|---|")
    for rows, modes in CASES:
        compare(rows, modes)


if __name__ == "__main__":
    main()
