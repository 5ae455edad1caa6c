# %% [markdown]
# # Wine: three classes, and how sure one can be
#
# 178 wines from three growers (scikit-learn's data), told apart by alcohol and colour. The shade
# is the probability of the class that wins: where classes overlap it fades.

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_wine
from sklearn.model_selection import cross_val_score

from orthogp import GPClassifier

wine = load_wine(as_frame=True)
X = wine.data[["alcohol", "color_intensity"]].to_numpy()
y = wine.target.to_numpy()
model = GPClassifier("rbf").fit(X, y)
accuracy = cross_val_score(GPClassifier("rbf"), X, y, cv=5).mean()
print(f"accuracy by cross-validation: {accuracy:.2f}")
print(model.predict_proba([[13.5, 6.0], [12.0, 2.0], [13.0, 4.0]]).round(2))

# %%
a, b = np.meshgrid(np.linspace(11, 15, 160), np.linspace(1, 13, 160))
chance = model.predict_proba(np.column_stack([a.ravel(), b.ravel()])).reshape(160, 160, 3)
colours = np.array([[0.75, 0.2, 0.25], [0.2, 0.5, 0.75], [0.3, 0.65, 0.35]])
sure = (chance.max(axis=2, keepdims=True) - 1 / 3) * 1.5
figure, axes = plt.subplots(figsize=(5, 3.6), layout="constrained")
axes.imshow(
    1 - sure * (1 - colours[chance.argmax(axis=2)]),
    origin="lower", extent=(11, 15, 1, 13), aspect="auto",
)  # fmt: skip
axes.scatter(*X.T, c=colours[y], s=14, edgecolor="white", lw=0.5)
axes.set(xlabel="alcohol, %", ylabel="intensity of the colour")
figure.savefig("classes.png", dpi=90)

# %%
assert accuracy > 0.8
