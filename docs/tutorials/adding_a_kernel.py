# %% [markdown]
# # Adding a kernel
#
# A kernel is a covariance k(τ) and its spectral density S(ω), side by side, with k(τ) = ∫ S(ω)
# e^{iωτ} dω. Write both, and everything else follows: learning, sums with other kernels, every
# family of features, bounds and certificates. Nothing is registered, but for files.
#
# The hyperbolic secant is its own Fourier transform, and makes a kernel that the library has not:
# smooth as RBF near zero, with tails as long as Matérn's,
#
#     k(τ) = v sech(τ/ℓ),      S(ω) = v ℓ/2 sech(πℓω/2)

# %%
import jax.numpy as jnp
import numpy as np
from scipy.integrate import quad

from orthogp import FileError, GPRegressor
from orthogp.kernels import RBF, Kernel, SpectralKernel, resolve_kernel
from orthogp.storage import register


def sech(z):
    """Return 1/cosh z without overflow: far away, value and gradient are 0, not NaN."""
    decay = jnp.exp(-jnp.abs(z))
    return 2 * decay / (1 + decay**2)


class Sech(Kernel):
    """k = v sech(τ/ℓ), in one column."""

    variance: np.ndarray
    lengthscale: np.ndarray

    def k(self, lag):
        return self.variance * sech(lag[0] / self.lengthscale)

    def spectral_density(self, omega):
        half = self.lengthscale / 2
        return self.variance * half * sech(jnp.pi * half * omega[0])

    def prior_variance(self):
        return jnp.asarray(self.variance)

    def derivative_variance(self, num_dims):
        return jnp.broadcast_to(self.variance / self.lengthscale**2, (num_dims,))


# %% [markdown]
# Array fields are positive parameters, to be learned unless `.fix("name")` says otherwise. `k` and
# `spectral_density` take one lag and one frequency, of shape (d,), and are written with
# `jax.numpy`, so that gradients come by themselves: they must be finite at every lag and
# frequency, hence `sech` above. `derivative_variance`, −k''(0), is asked for by
# `predict_derivative` only.
#
# Check that the two belong together, by quadrature:

# %%
kernel = Sech(np.array(2.0), np.array(0.7))
for lag in (0.0, 0.5, 2.0):
    integral, _ = quad(
        lambda w, lag=lag: 2 * float(kernel.spectral_density(jnp.array([w]))) * np.cos(w * lag),
        0,
        40,
    )
    value = float(kernel.k(jnp.array([lag])))
    print(f"lag {lag}: k = {value:.5f}, ∫ S cos = {integral:.5f}")
    assert abs(value - integral) < 1e-5

# %% [markdown]
# ## It works with everything
#
# Learn its parameters; add another kernel; use another family; take derivatives:

# %%
rng = np.random.default_rng(0)
x = rng.uniform(0, 10, 20_000)
y = np.sin(3 * x) / (1 + (x - 5) ** 2) + 0.05 * rng.standard_normal(20_000)

start = Sech(np.array(1.0), np.array(0.5))
model = GPRegressor(start).fit(x[:, None], y)
print(model.summary())
slope, slope_sd = model.predict_derivative([[5.0]])
truth = 3 * np.cos(15.0)
print(f"slope at 5: {slope[0]:.3f} ± {slope_sd[0]:.3f} (truth {truth:.3f})")

both = GPRegressor(start + RBF(lengthscale=5.0)).fit(x[:, None], y)
trig = GPRegressor(start, features="trig", num_features=121).fit(x[:, None], y)
for name, each in (("alone", model), ("with RBF", both), ("by Trig features", trig)):
    print(f"log p(y) ≥ {each.elbo_:,.2f} {name}")

# %% [markdown]
# ## Is it any better?
#
# The bounds on log p(y) compare kernels on the same rows: differences of a few nats and more
# count.

# %%
names = ("matern32", "matern52", "rbf")
evidence = {name: GPRegressor(name, solver="dense").fit(x[:, None], y).elbo_ for name in names}
evidence["Sech"] = model.elbo_
for name in sorted(evidence, key=evidence.__getitem__, reverse=True):
    print(f"{name:20} {evidence[name]:12,.2f}")

# %% [markdown]
# ## Shorter still
#
# A kernel with one variance and one lengthscale needs no class: `SpectralKernel` takes the two
# shapes, S at v = ℓ = 1 and k there. (Without `covariance` it integrates S in every evaluation,
# which takes minutes.)

# %%
short = SpectralKernel(
    lambda u: 0.5 * sech(jnp.pi * u[0] / 2), lambda z: sech(z[0]), variance=1.0, lengthscale=0.5
)
same = GPRegressor(short).fit(x[:, None], y)
print(f"log p(y) ≥ {same.elbo_:,.2f}")

# %% [markdown]
# ## Saved
#
# Files hold no code, and name classes that are registered only. Whoever loads the file needs the
# class, and the same line. To make a kernel part of the library, see
# [CONTRIBUTING](../../CONTRIBUTING.md).

# %%
try:
    model.save("sech.orthogp")
except FileError as error:
    refusal = str(error)
    print(refusal)
register(Sech)
model.save("sech.orthogp")
loaded = GPRegressor.load("sech.orthogp")

# %% [markdown]
# What this page claims, as checks:

# %%
assert model.certificate_.holds
assert abs(slope[0] - truth) < 5 * slope_sd[0]
assert both.elbo_ > model.elbo_ - 0.5
assert trig.elbo_ <= model.upper_bound_ + 1
assert abs(same.elbo_ - model.elbo_) < 0.1
assert "Sech" in refusal
assert np.array_equal(loaded.predict(x[:, None]), model.predict(x[:, None]))
assert resolve_kernel(start).kernel is start
