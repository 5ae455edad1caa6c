# %% [markdown]
# # Maps
#
# A field over two columns, with a hole in the measurements: means, standard deviations, what can
# be said about the hole, and what changes when the field is rough.
#
# 20,000 measurements of a field over a square; none of them lies in a disc that clouds covered:

# %%
import numpy as np
from matplotlib.figure import Figure

from orthogp import GPRegressor

rng = np.random.default_rng(0)
centres, heights = rng.uniform(0, 10, (60, 2)), rng.standard_normal(60)


def field(X):
    squares = ((X[:, None, :] - centres) ** 2).sum(axis=2)
    return np.exp(-squares / 2) @ heights


def in_gap(X):
    return np.hypot(X[:, 0] - 6, X[:, 1] - 4) < 1.5


X = rng.uniform(0, 10, (22_000, 2))
X = X[~in_gap(X)][:20_000]
y = field(X) + 0.1 * rng.standard_normal(len(X))
model = GPRegressor("rbf").fit(X, y)
print(model.summary())

# %% [markdown]
# One lengthscale for each column is learned, since the field may vary faster to the north than to
# the east.
#
# ## Mean and standard deviation
#
# `model.plot()` draws both maps; for other figures, predict on a grid. The standard deviation
# grows towards the middle of the hole, where only the prior speaks.

# %%
model.plot().savefig("maps.png", dpi=55)

side = np.linspace(0, 10, 101)
grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
mean, sd = model.predict(grid, return_std=True)
gap, truth = in_gap(grid), field(grid)
print(f"sd: {sd[~gap].mean():.3f} among the rows, {sd[gap].max():.3f} at most in the hole")
z = (truth - mean) / sd
print(f"the truth lies within 2 sd at {np.mean(np.abs(z) < 2):.0%} of the points")

# %% [markdown]
# ## Draws: questions about areas
#
# How large is the mean of the field over the hole, and how high is its peak in there? Standard
# deviations of single points cannot tell, since neighbours go together. Draws can: each is one
# whole field that agrees with the measurements.

# %%
draws = model.sample_y(grid[gap], n_samples=300, random_state=0)
averages, peaks = draws.mean(axis=0), draws.max(axis=0)
for name, values, true in (
    ("mean over the hole", averages, truth[gap].mean()),
    ("peak in the hole", peaks, truth[gap].max()),
):
    print(f"{name:18} {values.mean():.3f} ± {values.std():.3f} (truth {true:.3f})")

figure = Figure(figsize=(9, 3), layout="constrained")
for i, panel in enumerate(figure.subplots(1, 3)):
    whole = model.sample_y(grid, n_samples=1, random_state=i)
    panel.imshow(whole.reshape(101, 101), origin="lower", extent=(0, 10, 0, 10), cmap="RdBu_r")
    panel.set_title(f"draw {i + 1}")
figure.savefig("draws.png", dpi=60)

# %% [markdown]
# ## Rough fields
#
# Terrain and rain are rough: every scale down to the distance of neighbours has its say, and a few
# thousand smooth features cannot hold it. The regressor notices when that happens, and turns to
# another engine: predictions from the nearest rows, or an iterative solver with tens of thousands
# of features, whichever predicts hidden rows better. You need not ask for it; `engine_` and the
# summary say so. Here is a rough field with little noise, a Matérn-1/2 process made by the FFT:

# %%
size = 256
frequency = np.fft.fftfreq(2 * size, 10 / size) * 2 * np.pi
power = (1 + 4 * (frequency[:, None] ** 2 + frequency**2)) ** -1.5
noise = rng.standard_normal((2 * size, 2 * size)) + 1j * rng.standard_normal((2 * size, 2 * size))
rough = np.fft.fft2(np.sqrt(power) * noise).real[:size, :size]
rough /= rough.std()
cells = rng.choice(size * size, 8000, replace=False)
X_all = np.stack(np.divmod(cells, size), axis=1) * 10 / size
y_all = rough.ravel()[cells] + 0.05 * rng.standard_normal(8000)
X_rough, y_rough, X_test, y_test = X_all[:6000], y_all[:6000], X_all[6000:], y_all[6000:]

many = GPRegressor("matern12").fit(X_rough, y_rough)
print(f"{many.engine_}: {many.status_}")
few = GPRegressor("matern12", solver="dense", num_features=401).fit(X_rough, y_rough)


def scores(model):
    mean, sd = model.predict(X_test, return_std=True, include_noise=True)
    error = y_test - mean
    nlpd = np.mean(error**2 / sd**2 / 2 + np.log(sd) + np.log(2 * np.pi) / 2)
    return np.sqrt(np.mean(error**2)), nlpd, np.mean(np.abs(error) < 1.96 * sd)


for each in (few, many):
    rmse, nlpd, inside = scores(each)
    print(
        f"{each.engine_:10}  held out: RMSE {rmse:.3f}, NLPD {nlpd:.3f}, "
        f"{inside:.0%} in the 95 % interval"
    )

# %% [markdown]
# With 401 features the detail of the field is taken for noise. [Fields](../fields.md) has
# measurements of larger fields and the limits of the iterative solver; `max_memory=` and
# `max_seconds=` keep it within yours.
#
# What this page claims, as checks:

# %%
assert model.certificate_.holds
assert sd[gap].max() > 5 * sd[~gap].mean()
assert np.mean(np.abs(z[~gap]) < 2) > 0.9
assert abs(truth[gap].mean() - averages.mean()) < 4 * averages.std()
assert few.engine_ == "dense"
assert many.engine_ in ("neighbours", "iterative")
assert scores(many)[0] < 0.97 * scores(few)[0]
assert scores(many)[1] < scores(few)[1]
assert abs(scores(many)[2] - 0.95) < 0.025
