"""Draw the pictures of covariates.md, maps_and_arrays.md and forecasting.md, and print numbers.

    python docs/plot_uses.py DIR

DIR holds household_1d.npz and usprecip_1948.npz.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.dates as mdates
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from orthogp import GPRegressor
from orthogp.kernels import Matern12, Matern32, seasonal
from orthogp.report.plots import BLUE, GREY, STYLE, VERMILLION, Band, require_matplotlib

IMAGES = Path(__file__).parent / "images"


def covariates(folder: Path) -> None:
    """Draw what a house's own power does to its voltage, for a week of minutes."""
    with np.load(folder / "household_1d.npz") as data:
        week = slice(700_000, 710_080)
        minutes, power, voltage = data["X"][week, 0], data["y"][week], data["voltage"][week]
    days = (minutes - minutes[0]) / 1440
    X, Z = days[:, None], pd.DataFrame({"power": power})
    model = GPRegressor("matern12").fit(X, voltage, covariates=Z)
    print(model.summary())
    slope = np.polyfit(power, voltage, 1)[0]
    print(f"least squares: {slope:.2f} V per kW")
    alone = GPRegressor("matern12").fit(X, voltage)
    print(
        f"noise sd with {model.noise_variance_**0.5:.2f}, without {alone.noise_variance_**0.5:.2f}"
    )
    part = (days >= 2) & (days < 3)
    zero = pd.DataFrame({"power": np.zeros(part.sum())})
    supply, sd = model.predict(X[part], return_std=True, covariates=zero)
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    hours = 24 * (days[part] - 2)
    top.plot(hours, voltage[part], color=GREY, linewidth=0.6, label="voltage measured in the house")
    Band(hours, supply, sd).fill(top, "95 % band of the supply", alpha=0.4)
    top.plot(hours, supply, color=BLUE, linewidth=1.2, label="supply: what would be without load")
    top.set(ylabel="voltage (V)")
    top.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.2), frameon=False)
    bottom.plot(hours, power[part], color=VERMILLION, linewidth=0.6)
    bottom.set(xlabel="hour of the day", ylabel="power (kW)", xlim=(0, 24))
    figure.savefig(IMAGES / "covariates.png", dpi=130)


def maps(folder: Path) -> None:
    """Draw the precipitation of 1948 as a grid, and means over two regions."""
    import shapely

    with np.load(folder / "usprecip_1948.npz") as data:
        X, y = data["X"], data["y"]
    frame = pd.DataFrame(X, columns=["lon", "lat"])
    model = GPRegressor("matern32").fit(frame, y)
    print(model.summary())
    grid = model.predict_grid(0.25)
    print(grid)
    plains = shapely.Polygon([(-104, 37), (-96, 36), (-95, 43), (-103, 44)])
    south = shapely.box(-90, 31, -82, 35)
    found = model.predict_blocks([plains, south])
    print(found.mean, found.std, found.covariance)
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    panels = figure.subplots(1, 2)
    kinds = (("mean", "RdBu", "mean"), ("sd", "viridis", "standard deviation"))
    for axes, (name, colours, title) in zip(panels, kinds, strict=True):
        values = grid[name].values.T
        high = np.abs(values).max()
        limits = {"vmin": -high, "vmax": high} if name == "mean" else {}
        image = axes.pcolormesh(grid["lon"], grid["lat"], values, cmap=colours, **limits)
        figure.colorbar(image, ax=axes, shrink=0.85)
        axes.set(title=title, xlabel="lon", ylabel="lat")
        axes.grid(visible=False)
    panels[1].plot(*X.T, ".", color="white", markersize=0.4)
    for polygon, mean, sd in zip((plains, south), found.mean, found.std, strict=True):
        panels[0].plot(*polygon.exterior.xy, color="black", linewidth=1)
        at = polygon.centroid
        text = f"{mean:+.2f}\n± {sd:.3f}"
        panels[0].text(at.x, at.y, text, ha="center", va="center", fontsize=8)
    figure.savefig(IMAGES / "maps_and_arrays.png", dpi=130)


def forecast(folder: Path) -> None:
    """Draw hourly power of a house, four weeks and the week to come."""
    with np.load(folder / "household_1d.npz") as data:
        hours, y = (data["X"][:, 0] // 60).astype(np.int64), data["y"]
    counts, sums = np.bincount(hours), np.bincount(hours, y)
    hour = np.flatnonzero(counts > 30)
    kw = sums[hour] / counts[hour]
    frame = pd.DataFrame({"hour": pd.Timestamp("2006-12-16 17:24") + pd.to_timedelta(hour, "h")})
    past, ahead = (hour >= 12_824) & (hour < 14_000), (hour >= 14_000) & (hour < 14_168)

    v = kw[past].var()
    kernel = Matern32(v, 30.0) + Matern12(v / 3, 0.2) + seasonal("daily", "weekly", variance=v / 3)
    model = GPRegressor(kernel, mean="linear").fit(frame[past], kw[past])
    mean, sd = model.predict(frame[ahead], return_std=True, include_noise=True)

    truth = kw[ahead]
    look = dict(zip(hour, kw, strict=True))
    naive = np.array([look[h - 168] for h in hour[ahead]])
    inside = np.abs(truth - mean) < 1.96 * sd
    print(model.summary())
    for name, found in (("process", mean), ("last week again", naive)):
        print(f"{name}: RMSE {np.sqrt(np.mean((truth - found) ** 2)):.2f} kW")
    print(f"{inside.mean():.0%} inside")
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    axes = figure.subplots()
    recent = past & (hour >= 13_664)
    numbers = mdates.date2num(frame["hour"][ahead])
    Band(numbers, mean, sd).fill(axes, "95 % of new observations", alpha=0.3)
    axes.plot(numbers, mean, color=BLUE, linewidth=1.4, label="forecast")
    axes.plot(frame["hour"][recent], kw[recent], color=GREY, linewidth=0.7, label="before")
    axes.plot(frame["hour"][ahead], truth, color=VERMILLION, linewidth=0.7, label="what came")
    axes.set(ylabel="power (kW)")
    axes.margins(x=0)
    axes.set_ylim(top=3.6)
    axes.legend(loc="upper left", ncols=4, frameon=False)
    figure.savefig(IMAGES / "forecasting.png", dpi=130)


if __name__ == "__main__":
    with require_matplotlib().rc_context(STYLE):
        for draw in (covariates, maps, forecast):
            draw(Path(sys.argv[1]))
