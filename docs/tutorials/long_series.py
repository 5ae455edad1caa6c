# %% [markdown]
# # Long time series
#
# A reading every ten seconds for thirty days, with a gap, and a forecast: 259,200 rows, of which
# the model keeps sums. The daily cycle and the weather are kernels that add up.
#
# The series is made up: a drift, a daily cycle that slowly changes its shape, weather that lasts
# for hours, and noise. The sensor is silent for two days, and the last three days are kept apart
# to be forecast.

# %%
import numpy as np

from orthogp import GPRegressor
from orthogp.cli.demo import draw_matern32
from orthogp.kernels import Matern32, QuasiPeriodic

rng = np.random.default_rng(0)
step = 10 / 86_400
day = np.arange(0, 30, step)
drift = 3 * np.sin(2 * np.pi * day / 90)
cycle = (2 + 0.02 * day) * np.sin(2 * np.pi * day) + 0.5 * np.sin(4 * np.pi * day + day / 10)
weather = 0.6 * draw_matern32(0.3 / 30, rng)(day / 30)
truth = 15 + drift + cycle + weather
y = truth + 0.5 * rng.standard_normal(len(day))
silent, future = (day > 13) & (day < 15), day > 27
seen = ~silent & ~future
print(
    f"{len(day):,} readings: {seen.sum():,} seen, {silent.sum():,} lost, {future.sum():,} to come"
)

# %% [markdown]
# ## A sum of kernels
#
# Each term is one story: `QuasiPeriodic` for a cycle that returns every day and changes over
# weeks, its daily average included (which here is the drift), and `Matern32` for the weather. The
# numbers are where learning starts; all of them are learned but the period, which is a day and is
# fixed. `domain` covers what is to be forecast: far beyond it, predictions would be the prior's.
# `solver="dense"` keeps to at most 2000 features (`max_features`), with which averages and
# derivatives are available too.

# %%
kernel = QuasiPeriodic(variance=4.0, lengthscale=20.0, period=1.0).fix("period") + Matern32(
    variance=0.3, lengthscale=0.3
)
model = GPRegressor(kernel, domain=(0, 31), solver="dense").fit(day[seen, None], y[seen])
print(model.summary())

# %% [markdown]
# ## The gap and the future
#
# Weather is forgotten within hours; the cycle goes on. So the bands widen to the weather's
# standard deviation at once, and then slowly.

# %%
mean, sd = model.predict(day[:, None], return_std=True)


def score(rows):
    z = (truth[rows] - mean[rows]) / sd[rows]
    rmse = np.sqrt(np.mean((truth - mean)[rows] ** 2))
    return rmse, sd[rows].mean(), np.mean(np.abs(z) < 2)


for name, rows in (("seen", seen), ("lost", silent), ("to come", future)):
    rmse, typical, inside = score(rows)
    print(f"{name:7}  RMSE {rmse:.3f}, typical sd {typical:.3f}, truth within 2 sd: {inside:.0%}")

model.plot().savefig("series.png", dpi=60)

# %% [markdown]
# What would a model without the cycle say? The same rows, one Matérn kernel:

# %%
plain = GPRegressor("matern32", domain=(0, 31), solver="dense").fit(day[seen, None], y[seen])
plain_mean = plain.predict(day[future, None])
plain_rmse = np.sqrt(np.mean((truth[future] - plain_mean) ** 2))
print(f"forecast without the cycle: RMSE {plain_rmse:.3f}")
gain = model.elbo_ - plain.elbo_
print(f"log p(y) with the cycle is larger by {gain:,.0f}")

# %% [markdown]
# ## Going on
#
# When the three days have come, they are added; nothing is read again. Old days can be taken out
# in the same way (`forget`), for a window that moves along.

# %%
model.partial_fit(day[future, None], y[future])
_, sd_now = model.predict(day[future, None], return_std=True)
print(f"{model.statistics_.rows:,.0f} rows; sd over the last days {sd_now.mean():.3f}")
average, average_sd = model.predict_integral([[29.0]], [[30.0]])
last_day = truth[day > 29].mean()
print(f"mean of the last day {average[0]:.3f} ± {average_sd[0]:.4f} (truth {last_day:.3f})")

# %% [markdown]
# Longer and rougher series, up to two million features, are in [fields](../fields.md); files that
# do not fit into memory in [files and clusters](files_and_clusters.md). Dates: a CSV column such
# as 2024-01-31T12:30:00 becomes numbers by itself, in a unit that is shown.
#
# What this page claims, as checks:

# %%
assert score(seen)[0] < 0.2
assert score(silent)[2] > 0.8
assert score(future)[2] > 0.8
assert score(future)[0] < 0.6 * plain_rmse
assert gain > 0
assert sd_now.mean() < 0.3 * score(future)[1]
assert abs(average[0] - last_day) < 5 * average_sd[0]
