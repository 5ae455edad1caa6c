# %% [markdown]
# # Adding a family
#
# A family of features is an orthonormal basis of functions of frequency, and some thirty lines.
# Statistics, placement, learning, bounds, predictions and comparisons take it from there.
#
# Trig's cosines live on a band of frequencies that ends sharply. Here is one whose band fades out
# like a bell: with g = erf(u), a map of the line onto (−1, 1),
#
#     ψ_m(u) = cos(πm g(u)) √g'(u),      sin(πm g(u)) √g'(u)
#
# are orthonormal, since ∫ cos(πm g) cos(πm' g) g' du = ∫₋₁¹ cos(πmv) cos(πm'v) dv.

# %%
from typing import Any

import numpy as np
from scipy.special import erf

from orthogp import GPRegressor
from orthogp.features import SpectralFeatures
from orthogp.report import compare_families


class Bell(SpectralFeatures):
    """Cosines and sines of erf u: a band of frequencies that fades out like a Gaussian."""

    scale: Any = None  # the dilation c, ψ(ω) = √c ψ(cω); None until it is chosen
    dilation_field = "scale"
    compact = False  # the members decay, but do not end at `reach`

    def basis(self, u, count):
        """Return the first members at dimensionless frequencies u, (count, len(u))."""
        phases = np.pi * np.arange(1, count // 2 + 1)[:, None] * erf(u)
        values = np.full((count, len(u)), np.sqrt(0.5))
        values[1::2] = np.cos(phases)
        values[2::2] = np.sin(phases[: (count - 1) // 2])
        return values * np.sqrt(2 / np.sqrt(np.pi)) * np.exp(-(u**2) / 2)

    def is_odd(self, order):
        """Say which members are odd functions."""
        return (order > 0) & (order % 2 == 0)

    def reach(self, count):
        """Return the frequency beyond which all members are below rounding."""
        return 8.6


# %% [markdown]
# ## Check the basis
#
# Nothing checks that a basis is orthonormal, so do it once:

# %%
u = np.linspace(-9, 9, 20_001)
values = Bell(9).basis(u, 9)
gram = values @ values.T * (u[1] - u[0])
print("largest deviation from the identity:", f"{np.abs(gram - np.eye(9)).max():.1e}")

# %% [markdown]
# ## Use it
#
# The class is all there is. The dilation is chosen for the kernel and the range of the data, and
# the regressor treats it as its own families:

# %%
rng = np.random.default_rng(0)
X = rng.uniform(-1, 1, (50_000, 1))
truth = lambda x: np.sin(9 * x) + 0.5 * np.abs(x)  # noqa: E731
y = truth(X[:, 0]) + 0.3 * rng.standard_normal(len(X))

model = GPRegressor("matern52", features=Bell(81)).fit(X, y)
print(model.summary())
grid = np.linspace(-1, 1, 201)[:, None]
mean, sd = model.predict(grid, return_std=True)
rmse = np.sqrt(np.mean((mean - truth(grid[:, 0])) ** 2))
print(f"RMSE against the truth {rmse:.4f}, typical sd {sd.mean():.4f}")

# %% [markdown]
# Rows can be added and removed without the old ones, since a basis in frequency is summed from the
# statistics:

# %%
X_more = rng.uniform(-1, 1, (50_000, 1))
y_more = truth(X_more[:, 0]) + 0.3 * rng.standard_normal(len(X_more))
model.partial_fit(X_more, y_more)
_, sd_more = model.predict(grid, return_std=True)
print(f"typical sd with twice the rows {sd_more.mean():.4f}")

# %% [markdown]
# ## Compare it
#
# `compare_families` fits each family with each number of features to the same rows, at the same
# hyperparameters, and scores rows held out. `residual` is the share of the prior variance that the
# features cannot express: less is better.

# %%
found = compare_families(
    X,
    y,
    kernel="matern52",
    families=["lattice", "trig", "hermite", Bell],
    num_features=(21, 41),
    max_rows=10_000,
)
print(found.table())

# %% [markdown]
# On these rows the fading band leaves out less than Trig's, and about as little as Hermite's: its
# Gaussian window resembles theirs. That is a finding about this kernel and these inputs, not a law:
# compare on your own. [Feature families](../families.md) has measurements of them all, and the two
# other ways to write a family: coefficients on a lattice (`SeriesFeatures`, `MassSeries`), and
# functions of the inputs (`PointFeatures`).
#
# What this page claims, as checks:

# %%
assert np.abs(gram - np.eye(9)).max() < 1e-10
assert rmse < 4 * sd.mean()
assert sd_more.mean() < sd.mean()
left_out = {(each.family, each.asked): each.residual for each in found.results}
assert left_out["Bell", 41] < left_out["Bell", 21]
assert left_out["Bell", 41] < left_out["trig", 41]
elbos = [each.elbo for each in found.results if each.family == "Bell"]
assert max(elbos) <= min(each.upper for each in found.results) + 1e-6
