"""One pass over files: the sums of all rows, whatever the batches and wherever it was cut."""

import os
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sklearn.gaussian_process.kernels

from orthogp import FileError, GPRegressor, InputError, LatticeMismatchError
from orthogp.features import Trig
from orthogp.files.fitting import begin_like, fit_source
from orthogp.files.source import open_source
from orthogp.files.summing import (
    Pass,
    RowSample,
    Streamed,
    add_sketches,
    fingerprint,
    sum_files,
)
from orthogp.kernels import RBF, SpectralKernel, SpectralMixture
from orthogp.statistics import FourierStatistics
from orthogp.storage import save_sketch

ROWS = 900


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    for i in range(3):
        X, y, w = rows_of(i)
        columns = {"a": X[:, 0], "b": X[:, 1].astype(np.float32), "y": y, "w": w}
        pq.write_table(pa.table(columns), folder / f"part{i}.parquet", row_group_size=70)
    return folder


def rows_of(part: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(part)
    X = rng.uniform(-1, 2, (ROWS // 3, 2)).astype(np.float32).astype(float)
    y = 50 + np.sin(3 * X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(len(X))
    return X, y, rng.integers(0, 3, len(X)).astype(float)


def all_rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    X, y, w = zip(*map(rows_of, range(3)))
    return np.concatenate(X), np.concatenate(y), np.concatenate(w)


def streamed(
    folder: Path, *, mean: str | None = "constant", weights: str | None = None, **settings
):
    source = open_source([str(folder)], ["y"], ["a", "b"], weights=weights)
    estimator = GPRegressor(mean=mean, n_jobs=1)
    return sum_files(source, begin_like(estimator, 2), Pass(**settings))


def assert_same_sums(found: FourierStatistics, expected: FourierStatistics, rtol=1e-11) -> None:
    for name in ("point_sums", "target_sums", "yy", "covariate_sums", "covariate_targets"):
        one, other = getattr(found, name), getattr(expected, name)
        np.testing.assert_allclose(
            one, other, rtol=0, atol=rtol * max(1.0, np.abs(other).max(initial=0))
        )
    for name in ("rows", "count", "log_weights"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-12)


@pytest.mark.parametrize("weights", [None, "w"])
@pytest.mark.parametrize("mean", ["constant", "linear"])
def test_batches_give_the_sums_of_all_rows(folder: Path, mean: str, weights: str | None) -> None:
    found = streamed(folder, mean=mean, weights=weights, batch_rows=100)
    X, y, w = all_rows()
    prior = found.sketch.mean
    expected = FourierStatistics.from_data(
        found.sketch.statistics.lattice,
        X,
        y,
        w if weights else None,
        target_shift=found.sketch.shift,
        covariates=prior.covariates if mean == "linear" else None,
    )
    assert_same_sums(found.sketch.statistics, expected)
    assert found.tally.used == ROWS
    np.testing.assert_array_equal(found.sketch.extent.lower, X.min(axis=0))
    np.testing.assert_array_equal(found.sketch.extent.upper, X.max(axis=0))


def test_a_model_of_the_sums_is_the_model_of_the_rows(folder: Path) -> None:
    X, y, _ = all_rows()
    settings = {"solver": "dense", "num_features": 121, "n_jobs": 1}
    direct = GPRegressor("rbf", **settings).fit(X, y)
    summed = GPRegressor("rbf", **settings)
    source = open_source([str(folder)], ["y"], ["a", "b"])
    read = fit_source(summed, source, Pass(batch_rows=100), memory=1000)
    assert read.tally.used == ROWS
    assert "pass" in summed.timings_
    assert summed.elbo_ == pytest.approx(direct.elbo_, rel=1e-6)
    np.testing.assert_allclose(summed.predict(X[:50]), direct.predict(X[:50]), rtol=1e-4)
    assert summed.about_["inputs"] == ["a", "b"]
    whole = GPRegressor("rbf", **settings).fit_files(folder, "y", ["a", "b"])
    assert whole.elbo_ == pytest.approx(direct.elbo_, rel=1e-12)


def test_additive_models_are_summed_too(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (3000, 4))
    y = np.sin(5 * X[:, 0]) + X[:, 3] ** 2 + 0.1 * rng.standard_normal(3000)
    names = ["a", "b", "c", "d"]
    table = pa.table({**dict(zip(names, X.T)), "y": y})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=500)
    source = open_source([str(tmp_path)], ["y"], names)
    model = GPRegressor(num_features=60, n_jobs=1)
    fit_source(model, source, Pass(batch_rows=1000), memory=1)
    direct = GPRegressor(num_features=60, n_jobs=1).fit(X, y)
    assert model.statistics_.rows == 3000
    assert model.elbo_ == pytest.approx(direct.elbo_, rel=1e-3)


def test_what_needs_rows_says_so_before_the_pass(folder: Path) -> None:
    source = open_source([str(folder)], ["y"], ["a", "b"])
    for settings in (
        {"features": "exact"},
        {"solver": "iterative"},
        {"features": "inducing-points"},
    ):
        with pytest.raises(InputError, match=r"needs all rows at once, but 900 rows take 21.6 kB"):
            fit_source(GPRegressor(**settings), source, memory=1000)


def test_sums_for_another_mean_or_kernel_are_refused(folder: Path) -> None:
    sketch = streamed(folder).sketch
    with pytest.raises(InputError, match="sums are for a constant or no mean function"):
        GPRegressor(mean="linear").fit_sketch(sketch)
    with pytest.raises(InputError, match="needs sums on one lattice for each column"):
        GPRegressor("additive-rbf").fit_sketch(sketch)


def test_too_few_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b,y\n1,2,3\n4,,5\n")
    with pytest.raises(InputError, match=r"must have at least two rows .* of a, b, y, got 1"):
        streamed(tmp_path)


# ---------------------------------------------------------------------- pieces


def test_sums_of_pieces_add_up(folder: Path) -> None:
    whole = streamed(folder).sketch
    source = open_source([str(folder)], ["y"], ["a", "b"])
    total = None
    for piece in source.pieces:
        part = replace(source, pieces=(piece,))
        begin = begin_like(GPRegressor(), 2, whole)
        sketch = sum_files(part, begin, Pass(extent=whole.extent)).sketch
        total = sketch if total is None else add_sketches(total, sketch)
    assert total is not None
    assert_same_sums(total.statistics, whole.statistics)
    np.testing.assert_array_equal(total.extent, whole.extent)


def test_sketches_with_other_shifts_add_up(folder: Path) -> None:
    whole = streamed(folder).sketch
    first, second = (
        sum_files(
            open_source([str(folder / name)], ["y"], ["a", "b"]),
            begin_like(GPRegressor(), 2),
            Pass(extent=whole.extent),
        ).sketch
        for name in ("part0.parquet", "part1.parquet")
    )
    assert first.shift != second.shift
    both = add_sketches(first, second)
    rows = [rows_of(0), rows_of(1)]
    expected = FourierStatistics.from_data(
        first.statistics.lattice,
        np.concatenate([X for X, _, _ in rows]),
        np.concatenate([y for _, y, _ in rows]),
        target_shift=first.shift,
    )
    assert_same_sums(both.statistics, expected)
    other = sum_files(
        open_source([str(folder / "part2.parquet")], ["y"], ["a", "b"]),
        begin_like(GPRegressor(), 2),
    ).sketch
    with pytest.raises(LatticeMismatchError):
        add_sketches(first, other)


# ---------------------------------------------------------------------- checkpoints


class KilledError(Exception):
    """Stands for a process that is killed."""


class CutsAfter:
    """A watcher that ends the pass after some batches."""

    def __init__(self, batches: int) -> None:
        self.left, self.said = batches, []

    def begin(self, task: str, total: int | None) -> None:
        pass

    def advance(self, rows: int) -> None:
        self.left -= rows > 0
        if self.left < 0:
            raise KilledError

    def say(self, text: str) -> None:
        self.said.append(text)


def test_a_pass_that_was_cut_goes_on_to_the_same_sums(folder: Path, tmp_path: Path) -> None:
    expected = streamed(folder, batch_rows=100, sample_rows=40)
    path = tmp_path / "stats.checkpoint"

    def go_on(watcher: CutsAfter) -> Streamed:
        noted = {"checkpoint": path, "every": 0, "watcher": watcher}
        return streamed(folder, batch_rows=100, sample_rows=40, **noted)

    for _ in range(2):
        with pytest.raises(KilledError):
            # Resuming counts the rows before at once.
            go_on(CutsAfter(4))
    watcher = CutsAfter(100)
    found = go_on(watcher)
    (said,) = watcher.said
    assert said.startswith(f"Going on from {path} after ")
    assert_same_sums(found.sketch.statistics, expected.sketch.statistics, rtol=1e-14)
    assert found.tally == expected.tally
    np.testing.assert_array_equal(found.sample.columns, expected.sample.columns)


def test_a_checkpoint_of_other_rows_is_ignored(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "stats.checkpoint"

    def resumes(inputs: tuple[str, ...] = ("a", "b"), like=None, **settings) -> bool:
        """Whether a pass goes on from the checkpoint; it ends before it notes anything."""
        source = open_source(folder, "y", inputs)
        estimator = GPRegressor(mean=settings.pop("mean", "constant"), n_jobs=1)
        watcher = CutsAfter(0)
        noted = {"checkpoint": path, "every": 0, "watcher": watcher}
        with pytest.raises(KilledError):
            sum_files(source, begin_like(estimator, 2, like), Pass(**noted, **settings))
        return bool(watcher.said)

    sketch = streamed(folder, checkpoint=path, every=0).sketch
    assert resumes()
    assert not resumes(mean="linear")
    assert not resumes(("b", "a"))
    assert not resumes(batch_rows=100)
    assert not resumes(sample_rows=10)
    assert not resumes(extent=sketch.extent)
    assert not resumes(like=sketch)
    assert resumes()
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert not resumes()
    save_sketch(path, sketch, {"inputs": ["a", "b"]})
    assert not resumes()
    path.write_bytes(whole)
    assert resumes()
    (folder / "part1.parquet").touch()
    assert not resumes()


def test_only_the_owner_may_read_a_checkpoint(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "stats.checkpoint"
    for batch_rows in (300, 200):
        streamed(folder, batch_rows=batch_rows, sample_rows=20, checkpoint=path, every=0)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert os.listdir(tmp_path) == [path.name]
        path.chmod(0o644)


def test_a_checkpoint_that_cannot_be_written_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "no" / "stats.checkpoint"
    with pytest.raises(FileError, match=r"There is no directory .*no to write stats.checkpoint in"):
        streamed(folder, checkpoint=path, every=0)


def test_every_setting_counts_for_a_checkpoint(folder: Path) -> None:
    source = open_source([str(folder)], ["y"], ["a", "b"])
    weights, means = np.ones(200), np.linspace(0.1, 1, 200)

    def mixture(change: float) -> SpectralMixture:
        other = weights.copy()
        other[100] += change
        return SpectralMixture(other, means[:, None] + np.zeros(2), np.ones((200, 2)))

    def code(**settings: object) -> str:
        return fingerprint(source, {"estimator": GPRegressor(**settings)})

    first, second = mixture(0.0), mixture(1e-9)
    # Text that shows a model to people leaves out some of what it holds.
    assert repr(GPRegressor(first)) == repr(GPRegressor(second))
    assert code(kernel=first) == code(kernel=mixture(0.0))
    codes = [
        code(kernel=first),
        code(kernel=second),
        code(kernel=RBF()),
        code(kernel=RBF(lengthscale=1 + 1e-12)),
        code(kernel=RBF().on(0) + RBF().on(1)),
        code(kernel=sklearn.gaussian_process.kernels.RBF(1.0)),
        code(kernel=sklearn.gaussian_process.kernels.RBF(2.0)),
        code(),
        code(domain=([0.0, 0.0], [1.0, 1.0])),
        code(domain=(np.zeros(2), np.array([1.0, 1.5]))),
        code(wrap_tolerance=1e-5),
        code(features=Trig(9)),
        code(kernel=SpectralKernel(lambda w: 1 / (1 + w @ w))),
    ]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("row", [0, -1])
def test_other_content_of_the_same_size_and_time_has_no_checkpoint(
    tmp_path: Path, suffix: str, row: int
) -> None:
    path = tmp_path / f"rows.{suffix}"
    x = np.arange(10_000) % 10

    def code(values: np.ndarray) -> str:
        if suffix == "csv":
            path.write_text("x,y\n" + "".join(f"{value},1\n" for value in values))
        else:
            table = pa.table({"x": values, "y": values})
            pq.write_table(table, path, compression="none", use_dictionary=False)
        os.utime(path, (10**9, 10**9))
        return fingerprint(open_source([str(path)], ["y"]), {})

    first = code(x)
    size = path.stat().st_size
    assert code(x) == first
    changed = x.copy()
    changed[row] = 5
    assert code(changed) != first
    assert path.stat().st_size == size


# ---------------------------------------------------------------------- files that change


class ChangesAFile(CutsAfter):
    """A watcher in whose time somebody else writes to a file, when the sums begin.

    The time of change tells nothing: it is as coarse as the clock of the file system.
    """

    def __init__(self, path: Path, text: str) -> None:
        super().__init__(10**6)
        self.path, self.text = path, text

    def begin(self, task: str, total: int | None) -> None:
        if task == "summing":
            before = self.path.stat()
            self.path.write_text(self.text)
            os.utime(self.path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("change", ["appended", "shrunk", "columns swapped"])
def test_a_file_that_changes_after_the_scan_is_refused(tmp_path: Path, change: str) -> None:
    path = tmp_path / "rows.csv"
    lines = ["x,y", *(f"{i},{i % 7}" for i in range(500))]
    path.write_text("\n".join(lines))
    other = {
        "appended": [*lines, "900,3"],
        "shrunk": [*lines[:300], "301"],
        "columns swapped": ["y,x", *lines[1:]],
    }[change]
    watcher = ChangesAFile(path, "\n".join(other))
    source = open_source([str(path)], ["y"], ["x"])
    with pytest.raises(InputError) as caught:
        sum_files(source, begin_like(GPRegressor(), 1), Pass(watcher=watcher))
    assert str(caught.value) == (
        f"{path} must stay as it is while it is read, but it has changed since it was opened: run "
        "again when nothing writes to it."
    )
    path.unlink()
    with pytest.raises(InputError, match="There is no file "):
        sum_files(source, begin_like(GPRegressor(), 1))


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("x,y\n" + "1,2\n" * 100)
    blocks = open_source([str(path)], ["y"], ["x"]).blocks()
    next(blocks)
    with path.open("a") as stream:
        stream.write("3,4\n")
    with pytest.raises(InputError, match="has changed since it was opened"):
        list(blocks)


# ---------------------------------------------------------------------- samples


def test_samples_do_not_depend_on_batches() -> None:
    columns = np.random.default_rng(0).standard_normal((3, 5000))
    whole = RowSample.empty(100).with_rows(0, columns)
    parts = RowSample.empty(100)
    for start in range(0, 5000, 777):
        parts = parts.with_rows(start, columns[:, start : start + 777])
    np.testing.assert_array_equal(parts.columns, whole.columns)
    np.testing.assert_array_equal(parts.keys, whole.keys)


def test_every_row_is_as_likely_to_be_kept() -> None:
    numbers = np.arange(10_000.0)[None, :]
    kept = RowSample.empty(2000).with_rows(0, numbers).columns[0]
    assert len(np.unique(kept)) == 2000
    # Binomial counts in ten parts, 200 ± 13 each: six standard deviations.
    counts = np.histogram(kept, bins=10, range=(0, 10_000))[0]
    assert np.all(np.abs(counts - 200) < 80)
