"""Writes the files in tests/storage/data, and what was predicted from them.

Run for each version of the format and for each new kind of model, by
`python -m tests.storage.make_data`; files that are there stay as they are, and must stay readable.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from orthogp import GPClassifier
from orthogp.statistics import FourierStatistics, FrequencyLattice
from orthogp.storage import save_sketch
from orthogp.storage.container import VERSION
from tests.storage import small_models

DATA = Path(__file__).parent / "data"


def expected(model: Any) -> dict[str, Any]:
    """What a model says at a few points."""
    X = np.repeat(small_models.POINTS, model.n_features_in_, axis=1)
    if isinstance(model, GPClassifier):
        return {"probabilities": model.predict_proba(X).tolist(), "elbo": model.elbo_}
    mean, std = model.predict(X, return_std=True)
    return {"mean": mean.tolist(), "std": std.tolist(), "elbo": model.elbo_}


def small_statistics() -> FourierStatistics:
    X, y = small_models.rows(2)
    lattice = FrequencyLattice([0.7, 0.9], [4, 3], 3.0)
    return FourierStatistics.from_data(lattice, X, y, covariates=lambda part: part - 3.0)


def main() -> None:
    noted = DATA / f"expected-{VERSION}.json"
    said: dict[str, Any] = json.loads(noted.read_text("utf-8")) if noted.exists() else {}
    for name in (*small_models.KINDS, *small_models.MORE_KINDS):
        if name in said:
            continue
        model = getattr(small_models, name)()
        model.about_ = {"made by": "tests/storage/make_data.py", "columns": ["x", "y"]}
        model.save(DATA / f"{name}-{VERSION}.orthogp")
        said[name] = expected(model)
    if "sketch" not in said:
        write_sums(said)
    noted.write_text(json.dumps(said, indent=1) + "\n", "utf-8")


def write_sums(said: dict[str, Any]) -> None:
    """Write statistics and a sketch, and note what they hold."""
    statistics = small_statistics()
    statistics.save(DATA / f"statistics-{VERSION}.orthogp")
    said["statistics"] = {
        "rows": statistics.rows,
        "yy": statistics.yy.tolist(),
        "point": [statistics.point_sums[5, 9].real, statistics.point_sums[5, 9].imag],
        "target": [statistics.target_sums[0, 1, 4].real, statistics.target_sums[0, 1, 4].imag],
    }
    sketch = small_models.joint_sketch()
    save_sketch(DATA / f"sketch-{VERSION}.orthogp", sketch, {"inputs": ["a", "b"], "target": "c"})
    said["sketch"] = {
        "shift": sketch.shift.tolist(),
        "upper": sketch.extent.upper.tolist(),
        "scale": sketch.units(shared=False).scale.tolist(),
    }


if __name__ == "__main__":
    main()
