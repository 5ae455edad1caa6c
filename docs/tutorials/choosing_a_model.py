# %% [markdown]
# # Choosing a model
#
# Which kernel? Do columns act jointly or add up? Dense or iterative? And how do you read what a
# model says about itself? Four questions, each with a number that answers it.

# %%
import numpy as np
from sklearn.datasets import make_friedman1

from orthogp import GPRegressor
from orthogp.kernels import RBF, Matern32
from orthogp.report import diagnose

rng = np.random.default_rng(0)


def nlpd(model, X, y):
    """Return the negative log predictive density of held-out rows, on average: less is better."""
    mean, sd = model.predict(X, return_std=True, include_noise=True)
    return np.mean((y - mean) ** 2 / sd**2 / 2 + np.log(sd) + np.log(2 * np.pi) / 2)


# %% [markdown]
# ## Which kernel?
#
# A curve with kinks, which smooth kernels take for curves. Two numbers compare kernels: the bound
# on log p(y) (`elbo_`), from the training rows alone, and the NLPD of rows held out. The first
# knows how well the model would have foretold each row from those before it; differences of a few
# nats count. If `elbo_` and `upper_bound_` are closer than the differences, the bounds decide for
# certain.

# %%
x = rng.uniform(0, 10, 8000)
y = np.abs(np.sin(2 * x)) + 0.3 * np.abs(x - 5) + 0.1 * rng.standard_normal(8000)
X_train, y_train, X_test, y_test = x[:6000, None], y[:6000], x[6000:, None], y[6000:]
kernels = {}
for name in ("rbf", "matern52", "matern32"):
    kernels[name] = model = GPRegressor(name, solver="dense").fit(X_train, y_train)
    print(
        f"{name:9} log p(y) {model.elbo_:9.1f} to {model.upper_bound_:9.1f}   "
        f"held out: NLPD {nlpd(model, X_test, y_test):.4f}   {model.num_features_} features"
    )

# %% [markdown]
# Both Matérn kernels are some thirty nats ahead of RBF, and their bounds lie closer together than
# that: proved. Two nats between the two of them mean little; the smoother needs fewer features.
#
# Rows held out need not agree with the evidence to the last digit: they are fewer, and they ask
# about predictions among the training rows only. Where you will predict across gaps or into the
# future, hold out gaps or the last stretch.
#
# ## Joint or additive?
#
# Up to three columns can act jointly; any number can add up, which is simpler to learn and to
# read. The function of Friedman has both: sin(π x₀x₁) is joint, the other columns add up, and five
# columns of ten say nothing. Evidence and held-out rows tell:

# %%
X, y = make_friedman1(6000, n_features=10, noise=1.0, random_state=0)
split = (X[:5000], y[:5000]), (X[5000:], y[5000:])
additive = GPRegressor("additive-matern32", max_features=400).fit(*split[0])
terms = [Matern32().on(column) for column in range(10)]
pair = GPRegressor(sum(terms, RBF().on(0, 1)), max_features=500).fit(*split[0])
for name, model in (("additive", additive), ("with 0 × 1", pair)):
    print(f"{name:11} log p(y) ≥ {model.elbo_:9.1f}   held out: NLPD {nlpd(model, *split[1]):.4f}")
for part in pair.components():
    if part.share > 0.005:
        print(f"  {part.name:20} {part.share:5.1%} of the variance")

# %% [markdown]
# ## Dense or iterative?
#
# You need not choose: `solver="auto"` takes the dense solver, with a proof of its accuracy, unless
# the data ask for more than `max_features`; the status says which and why.
#
# | | dense | iterative |
# |---|---|---|
# | features | up to `max_features` (2000) | up to two million |
# | for | smooth functions, any number of rows | rough functions with little noise |
# | means | exact for these features | to 0.01 standard deviations |
# | variances | exact for these features | from draws, to some percent, as the status says |
# | also | derivatives, integrals, files of any size | up to three columns, rows in memory |
#
# [Maps](maps.md) shows a field where it matters.
#
# ## How to read the certificate
#
# The certificate compares the model with the exact Gaussian process *of the same kernel*. With few
# features it does not hold, and says what is missing:

# %%
for number in (41, 161, "auto"):
    model = GPRegressor("matern52", solver="dense", num_features=number).fit(X_train, y_train)
    found = model.certificate_
    within = f"means within {found.mean_error:.2g} sd"
    print(f"{model.num_features_:5} features: holds {found.holds}, {within}")
    print(f"      {model.status_}")

# %% [markdown]
# A certificate that does not hold does not mean that predictions are bad: it means that nothing is
# *proved* about them. The next check tells more.
#
# ## Calibration
#
# `diagnose` predicts each row from all others. The share of rows in their 95 % interval should be
# 0.95, and standardised residuals should have a standard deviation of 1. Here the noise grows with
# x, which no kernel can say: on the whole the intervals are right, but not everywhere.

# %%
spread = 0.02 + 0.03 * X_train[:, 0]
uneven = np.sin(X_train[:, 0]) + spread * rng.standard_normal(6000)
model = GPRegressor("rbf").fit(X_train, uneven)
checks = diagnose(model, X_train, uneven)
print(f"in the 95 % interval: {checks.covered(0.95):.3f}")
along = checks.input_sd[0, 0]
print("sd of residuals along x:", np.round(along[[0, 8, 16, 24, 31]], 2))

# %% [markdown]
# From 0.1 to 1.6: bands are far too wide on the left, too narrow on the right. The remedy is a
# weight for each row, its precision, where it is known:

# %%
weighted = GPRegressor("rbf", weights="precisions").fit(
    X_train, uneven, sample_weight=1 / spread**2
)
checks_weighted = diagnose(weighted, X_train, uneven, 1 / spread**2)
along_weighted = checks_weighted.input_sd[0, 0]
print("sd of residuals along x:", np.round(along_weighted[[0, 8, 16, 24, 31]], 2))

# %% [markdown]
# The report (`orthogp report`, `write_report`) draws all of these checks.
#
# What this page claims, as checks:

# %%
assert kernels["matern52"].elbo_ > kernels["rbf"].upper_bound_ + 10
assert kernels["matern32"].elbo_ > kernels["rbf"].upper_bound_ + 10
assert nlpd(kernels["matern52"], X_test, y_test) < nlpd(kernels["rbf"], X_test, y_test)
assert pair.elbo_ > additive.elbo_ + 50
assert nlpd(pair, *split[1]) < nlpd(additive, *split[1])
assert along.max() > 3 * along.min()
assert along_weighted.max() < 1.5 * along_weighted.min()
