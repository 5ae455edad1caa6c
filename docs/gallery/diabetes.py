# %% [markdown]
# # Diabetes: which of ten measurements matter?
#
# 442 patients, ten measurements each, and how the disease went on after a year (scikit-learn's
# data). An additive model says what each measurement adds, with its band.

# %%
from sklearn.datasets import load_diabetes
from sklearn.model_selection import cross_val_score

from orthogp import GPRegressor

data = load_diabetes(as_frame=True, scaled=False)
X, y = data.data.rename(columns={"s3": "hdl", "s5": "log_triglycerides"}), data.target
model = GPRegressor("additive-matern52", solver="dense").fit(X, y)
for part in sorted(model.components(), key=lambda part: -part.share)[:4]:
    print(f"{part.name:20s} {100 * part.share:3.0f} % of the variance")
score = cross_val_score(GPRegressor("additive-matern52", solver="dense"), X, y, cv=3).mean()
print(f"R² by cross-validation: {score:.2f}")
model.plot_components(components=[2, 3, 7, 8], ylabel="progression").savefig("effects.png", dpi=60)

# %%
assert score > 0.4
