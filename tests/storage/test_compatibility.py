"""Files of every version of the format so far, kept in the repository, and the guide to them.

Predictions agree with those noted when the files were written: to rounding, since posteriors that
are computed again depend on the machine's linear algebra by a little.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import orthogp
from orthogp import FourierStatistics
from orthogp.storage import load_model, load_sketch, read_header
from tests.storage import small_models
from tests.storage.make_data import DATA, expected

VERSIONS = sorted(int(path.stem.split("-")[1]) for path in DATA.glob("expected-*.json"))
GUIDE = Path(orthogp.__file__).parents[2] / "docs" / "format.md"


@pytest.fixture(params=VERSIONS)
def version(request):
    return request.param


def said(version):
    return json.loads((DATA / f"expected-{version}.json").read_text("utf-8"))


def test_there_are_files_of_the_first_version():
    assert VERSIONS[0] == 1
    assert all(path.stat().st_size < 50_000 for path in DATA.iterdir())


@pytest.mark.parametrize("name", [*small_models.KINDS, *small_models.MORE_KINDS])
def test_old_models_predict_what_they_predicted(version, name):
    path = DATA / f"{name}-{version}.orthogp"
    model = load_model(path)
    now, then = expected(model), said(version)[name]
    assert now.keys() == then.keys()
    if name == "neighbours":
        # Groups of points look at more rows than when these files were written, here at all.
        np.testing.assert_allclose(now["mean"], then["mean"], atol=0.01)
        np.testing.assert_allclose(now["std"], then["std"], atol=0.005)
        then = expected(small_models.neighbours())
    for key, value in then.items():
        np.testing.assert_allclose(now[key], value, rtol=1e-8, atol=1e-10, err_msg=key)
    assert read_header(path).version == version
    assert model.about_["columns"] == ["x", "y"]
    if hasattr(model, "summary"):
        assert model.summary()


def test_exact_models_of_files_without_kept_rows_say_what_they_need():
    model = load_model(DATA / "exact-1.orthogp")
    with pytest.raises(orthogp.InputError, match="needs all rows at once: fit again with all"):
        model.partial_fit([[1.0], [2.0]], [0.1, 0.2])


def test_old_statistics_hold_what_they_held(version):
    statistics = FourierStatistics.load(DATA / f"statistics-{version}.orthogp")
    then = said(version)["statistics"]
    assert statistics.rows == then["rows"]
    assert statistics.yy.tolist() == then["yy"]
    assert statistics.point_sums[5, 9] == complex(*then["point"])
    assert statistics.target_sums[0, 1, 4] == complex(*then["target"])


def test_old_sketches_hold_what_they_held(version):
    sketch, about = load_sketch(DATA / f"sketch-{version}.orthogp")
    then = said(version)["sketch"]
    assert about == {"inputs": ["a", "b"], "target": "c"}
    assert sketch.shift.tolist() == then["shift"]
    assert sketch.extent.upper.tolist() == then["upper"]
    np.testing.assert_allclose(sketch.units(shared=False).scale, then["scale"], rtol=1e-14)


def test_the_guide_reads_a_file_without_orthogp(tmp_path, monkeypatch):
    (block,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), flags=re.DOTALL)
    assert "orthogp" not in re.sub(r'"[^"]*"', "", block)
    assert len(block.strip().splitlines()) <= 12
    (tmp_path / "model.orthogp").write_bytes((DATA / "regressor-2.orthogp").read_bytes())
    monkeypatch.chdir(tmp_path)
    found: dict = {}
    exec(block, found)
    model = load_model("model.orthogp")
    assert found["metadata"]["kind"] == "GPRegressor"
    assert found["content"]["fit"]["kernel"]["$type"] == "RBF"
    assert found["content"]["fit"]["elbo"] == model.elbo_
    pairs = found["arrays"]["fit/sketch/statistics/target_sums"]
    half = pairs[0, :, 0] + 1j * pairs[0, :, 1]
    np.testing.assert_array_equal(half, model.statistics_.target_sums[0, 256:])


def test_the_guide_names_all_kinds_and_forms():
    text = GUIDE.read_text("utf-8")
    kinds = {read_header(path).kind for path in DATA.glob("*.orthogp")}
    for kind in (*kinds, "AdditiveStatistics", "StochasticGPRegressor"):
        assert f"`{kind}`" in text
    for form in ("lattice", "additive", "iterative", "exact", "neighbours", "features"):
        assert f"`{form}`" in text
