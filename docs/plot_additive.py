"""The table and the figure of docs/additive.md: `python docs/plot_additive.py flights.npz`.

The file holds X (rows, 8), y (rows,) and the names of the columns: month, day of month, day of
week, plane age, air time, distance, arrival time and departure time (minutes of the day); y is the
arrival delay in minutes.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from orthogp import GPRegressor
from orthogp.kernels import additive

IMAGE = Path(__file__).parent / "images" / "additive_components.png"
DAY = 1440.0
ARRIVAL, DEPARTURE, AIR_TIME = 6, 7, 4


def report(name: str, error: NDArray, std: NDArray | float, scale: float, seconds: float) -> None:
    """Print a row of the table."""
    squares = (error / std) ** 2
    nlpd = np.mean(0.5 * np.log(2 * np.pi * np.square(std)) + 0.5 * squares)
    print(f"| {name} | {np.sqrt(np.mean(error**2)) / scale:.3f} | {nlpd:.3f} | {seconds:.0f} s |")


def main(path: str) -> None:
    """Fit the models of the table, print it, and draw the components of one of them."""
    data = np.load(path)
    names = [str(name).replace("_", " ") for name in data["columns"]]
    frame, y = pd.DataFrame(data["X"], columns=names), data["y"]
    order = np.random.default_rng(0).permutation(len(y))
    test, training = order[: len(y) // 10], order[len(y) // 10 :]
    scale = y[training].std()
    known = {"categorical": {2: 7}, "periodic": {ARRIVAL: DAY, DEPARTURE: DAY}}
    pair, pairs = [(ARRIVAL, DEPARTURE)], [(ARRIVAL, DEPARTURE), (AIR_TIME, DEPARTURE)]

    design = np.column_stack([np.ones(len(y)), data["X"]])
    coefficients = np.linalg.lstsq(design[training], y[training], rcond=None)[0]
    residual = y - design @ coefficients
    report("linear", residual[test], residual[training].std(), scale, 0.0)
    models = {
        'kernel="matern32"': "matern32",
        "weekdays categorical, times periodic": additive("matern32", 8, **known),
        "… and arrival × departure": additive("matern32", 8, joint=pair, **known),
        "… and air time × departure": additive("matern32", 8, joint=pairs, **known),
    }
    for name, kernel in models.items():
        began = time.monotonic()
        model = GPRegressor(kernel).fit(frame.iloc[training], y[training])
        mean, std = model.predict(frame.iloc[test], return_std=True, include_noise=True)
        report(name, y[test] - mean, std, scale, time.monotonic() - began)
        if name == "… and arrival × departure":
            text = model.summary()
            model.plot_components(IMAGE, ylabel="effect (min)")
    print(text)


if __name__ == "__main__":
    main(sys.argv[1])
