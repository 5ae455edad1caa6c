# %% [markdown]
# # Quick start
#
# Fit a curve to noisy readings, see how sure the model is, check what it promises, keep it in a
# file, and write a report. Half a minute.
#
# A sensor swings and comes to rest. There are 3000 readings of it, at random times, with noise:

# %%
import numpy as np

from orthogp import GPRegressor
from orthogp.report import diagnose, write_report

rng = np.random.default_rng(0)


def swing(t):
    return 2 * np.exp(-t / 4) * np.cos(2 * np.pi * t / 1.5)


t = rng.uniform(0, 10, 3000)
y = swing(t) + 0.2 * rng.standard_normal(3000)

# %% [markdown]
# ## Fit
#
# Inputs are a table with a row for each reading, hence `t[:, None]`. The kernel says what
# functions are likely beforehand: Matérn-5/2 means smooth ones, and how smooth, how large and how
# noisy is learned.

# %%
model = GPRegressor(kernel="matern52").fit(t[:, None], y)
print(model.summary())

# %% [markdown]
# Line by line: the learned *kernel* says that the curve varies by about √variance and bends within
# a lengthscale; the *noise* has a standard deviation near the true 0.2; the *engine* is the way
# to compute it that suits these rows (up to 2000 it would be the exact one); the *features* are
# what the model is made of, cosines and sines here, as many as were needed; *covers* is the range
# in which predictions mean something. The first fit of a process takes a few seconds longer, for
# compiling.
#
# ## Predict, with bands
#
# `predict` gives the mean of the curve and how sure the model is of it. A new reading has the
# noise on top of that: `include_noise=True`.

# %%
t_new = np.array([[0.5], [2.25], [9.0]])
mean, sd = model.predict(t_new, return_std=True)
_, reading_sd = model.predict(t_new, return_std=True, include_noise=True)
for row in zip(t_new[:, 0], swing(t_new[:, 0]), mean, sd, reading_sd):
    print("t = {:.2f}: truth {:6.3f}, curve {:6.3f} ± {:.3f}, a reading ± {:.3f}".format(*row))

model.plot(t[:, None], y).savefig("fit.png", dpi=60)

# %% [markdown]
# ## The certificate, in plain words
#
# The exact Gaussian process of 3000 readings takes a 3000 × 3000 matrix; of a million, one with
# 10¹² entries. The model above has some hundred features instead, and the line *certificate* of
# its summary says what that may cost: *every mean is within so many standard deviations of the
# exact one*. It is a proof, not an estimate, and it is made without computing the exact answer.
# With 3000 rows we can afford to look:

# %%
exact = GPRegressor(
    model.kernel_, noise_variance=model.noise_variance_, learn=False, features="exact"
).fit(t[:, None], y)
grid = np.linspace(0, 10, 500)[:, None]
exact_mean, exact_sd = exact.predict(grid, return_std=True)
mean, sd = model.predict(grid, return_std=True)
difference = np.max(np.abs(mean - exact_mean) / exact_sd)
promised = model.certificate_.mean_error
print(f"promised: at most {promised:.1e} exact posterior sd")
print(f"actually: {difference:.1e}")

# %% [markdown]
# The certificate is about the *computation*: it says that this is the Gaussian process you asked
# for. Whether a Gaussian process with this kernel suits the data is another question, which the
# next section asks.
#
# ## Does it fit the data?
#
# `diagnose` predicts each row from all the others. If the model is right, 95 % of the rows lie in
# their 95 % interval:

# %%
model.diagnostics_ = diagnose(model, t[:, None], y)
inside = model.diagnostics_.covered(0.95)
print(f"{inside:.1%} of the readings lie in the 95 % interval that all others give them")

# %% [markdown]
# ## More readings
#
# The model keeps sums of its rows. New rows are added to the sums; the old ones are not needed
# again.

# %%
t_more = rng.uniform(0, 10, 100_000)
y_more = swing(t_more) + 0.2 * rng.standard_normal(100_000)
model.partial_fit(t_more[:, None], y_more)
mean, sd_more = model.predict(grid, return_std=True)
print(f"{len(t_more):,} rows more: the mean sd falls from {sd.mean():.4f} to {sd_more.mean():.4f}")

# %% [markdown]
# ## Keep it, and report
#
# A saved model is numbers and texts, never code: loading runs nothing. The report is one HTML page
# with plots, the certificate and the checks, that works without a network.

# %%
model.save("swing.orthogp")
same = GPRegressor.load("swing.orthogp")
print("predictions are equal:", np.array_equal(same.predict(grid), mean))

model.diagnostics_ = diagnose(model, t_more[:, None], y_more)
page = write_report(model, "swing.html", title="A swinging sensor")
print(f"report: {page}, {page.stat().st_size // 1000} kB")

# %% [markdown]
# The same from a CSV file without Python: `orthogp fit`, `orthogp predict`, `orthogp report`, in
# [files and clusters](files_and_clusters.md).
#
# What this page claims, as checks:

# %%
assert model.certificate_.holds
assert difference < promised
assert abs(inside - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 3000)
assert np.all(np.abs(mean - swing(grid[:, 0])) < 5 * sd_more)
assert np.array_equal(same.predict(grid), mean)
