"""Files as files: damage, foreign content, full disks, and what stays when saving fails."""

import os
import stat
import subprocess
import tracemalloc

import numpy as np
import pytest

from orthogp import FileError, FourierStatistics, FrequencyLattice, GPRegressor
from orthogp.rows import Rows
from orthogp.statistics import AdditiveStatistics, ComponentLattice
from orthogp.storage import load_model, load_sketch, read_header, save_sketch
from orthogp.storage.container import VERSION, read_file, write_file
from tests.storage.resealed import put_together, seal, take_apart
from tests.storage.small_models import joint_sketch, rows

SUMS = (
    "point_sums",
    "target_sums",
    "yy",
    "covariate_sums",
    "covariate_gram",
    "covariate_targets",
)


def statistics(num_columns=1, extent=5):
    X, y = rows(num_columns, 30)
    lattice = FrequencyLattice(np.full(num_columns, 0.7), extent, 3.0)
    return FourierStatistics.from_data(
        lattice, X, np.column_stack([y, 2 * y]), covariates=lambda part: part - 3.0
    )


@pytest.fixture
def path(tmp_path):
    statistics().save(tmp_path / "s.orthogp")
    return tmp_path / "s.orthogp"


def assert_refused(path, match):
    """What is said of a file, after checking that it is one sentence."""
    with pytest.raises(FileError, match=match) as caught:
        FourierStatistics.load(path)
    text = str(caught.value).replace(str(path), "FILE")
    assert text.endswith(".")
    assert "\n" not in text
    assert ". " not in text
    assert text.startswith(("FILE", "There is no"))


# ---------------------------------------------------------------------- statistics and sketches


@pytest.mark.parametrize("num_columns", [1, 2, 3])
def test_statistics_come_back_bit_for_bit(num_columns, tmp_path):
    saved = statistics(num_columns, 3)
    saved.save(tmp_path / "s.orthogp")
    loaded = FourierStatistics.load(tmp_path / "s.orthogp")
    assert loaded.lattice == saved.lattice
    for name in SUMS:
        np.testing.assert_array_equal(getattr(loaded, name), getattr(saved, name))
    assert (loaded.rows, loaded.count, loaded.log_weights) == (30, 30, 0)
    assert (loaded + saved).rows == 60


def test_additive_statistics_come_back_bit_for_bit(tmp_path):
    X, y = rows(3, 30)
    one = FrequencyLattice([0.7], 6, 3.0)
    two = FrequencyLattice([0.7, 0.9], 3, 3.0)
    components = [
        ComponentLattice((0,), one, one.half_indices()[:4]),
        ComponentLattice((1, 2), two, two.half_indices()[:6]),
        ComponentLattice((2,), one, one.half_indices()),
    ]
    saved = AdditiveStatistics.from_data(components, Rows(X, y))
    saved.save(tmp_path / "s.orthogp")
    loaded = AdditiveStatistics.load(tmp_path / "s.orthogp")
    assert loaded.components == saved.components
    assert loaded.cross.keys() == saved.cross.keys()
    for pair, block in saved.cross.items():
        np.testing.assert_array_equal(loaded.cross[pair], block)
    assert (loaded - saved).rows == 0


def test_sketches_come_back_with_what_was_noted(tmp_path):
    sketch = joint_sketch()
    notes = {"inputs": ["lon", "lat"], "target": "depth", "units": {"lon": "°"}}
    save_sketch(tmp_path / "s.orthogp", sketch, notes)
    loaded, about = load_sketch(tmp_path / "s.orthogp")
    assert about == notes
    np.testing.assert_array_equal(loaded.shift, sketch.shift)
    np.testing.assert_array_equal(loaded.extent.upper, sketch.extent.upper)
    np.testing.assert_array_equal(loaded.mean.width, sketch.mean.width)
    np.testing.assert_array_equal(loaded.statistics.target_sums, sketch.statistics.target_sums)
    header = read_header(tmp_path / "s.orthogp")
    assert (header.kind, header.version, header.about) == ("sketch", VERSION, notes)
    assert header.shapes["statistics/covariate_gram"] == (2, 2)


# ---------------------------------------------------------------------- what cannot be read


def test_files_that_are_not_there_or_not_files(tmp_path):
    assert_refused(tmp_path / "missing", "There is no file")
    assert_refused(tmp_path, "no regular file")
    os.mkfifo(tmp_path / "pipe")
    assert_refused(tmp_path / "pipe", "no regular file")


def test_foreign_files(tmp_path):
    from safetensors.numpy import save_file

    foreign = tmp_path / "foreign"
    for data in (b"", b"x,y\n1,2\n", b"\x00" * 100, b"PK\x03\x04" + bytes(200), b"\x80\x04" * 50):
        foreign.write_bytes(data)
        assert_refused(foreign, "not a file that orthogp wrote")
    save_file({"a": np.zeros(3)}, foreign)
    assert_refused(foreign, "not a file that orthogp wrote")


def test_a_cut_is_noticed_wherever_it_is(path):
    data = path.read_bytes()
    for length in range(0, len(data), 7):
        path.write_bytes(data[:length])
        assert_refused(path, "cut off|not a file that orthogp wrote")
    path.write_bytes(data + b"\0")
    assert_refused(path, "1 bytes too many")


def test_a_flipped_bit_is_noticed_wherever_it_is(path):
    data = bytearray(path.read_bytes())
    for position in range(0, len(data), 3):
        data[position] ^= 1 << (position % 8)
        path.write_bytes(data)
        with pytest.raises(FileError):
            FourierStatistics.load(path)
        data[position] ^= 1 << (position % 8)
    path.write_bytes(data)
    FourierStatistics.load(path)


def test_newer_files_ask_for_an_upgrade(path):
    parts = take_apart(path.read_bytes())
    parts.header["__metadata__"]["version"] = str(VERSION + 1)
    # A newer format may look different behind its version.
    parts.header["later"] = {"dtype": "BF16", "bits": 3}
    path.write_bytes(put_together(parts))
    assert_refused(path, "upgrade orthogp")


@pytest.mark.parametrize(
    ("entry", "match"),
    [
        ({"shape": [2**40]}, "shape that does not fit its bytes"),
        ({"shape": [2**31, 2**31, 0]}, "no valid shape|does not fit"),
        ({"shape": [-2]}, "no valid shape"),
        ({"shape": [1.0, 2]}, "no valid shape"),
        ({"shape": [1] * 9}, "no valid shape"),
        ({"dtype": "F32"}, "a type other than"),
        ({"dtype": "O"}, "a type other than"),
        ({"data_offsets": [0, 2**60]}, "does not fit"),
        ({"data_offsets": [0, 8]}, "does not follow"),
        ({"shape": [2**37], "data_offsets": [0, 2**40]}, "cut off|does not follow"),
        ({"more": 1}, "not described as it must be"),
    ],
)
def test_arrays_that_the_file_cannot_hold_allocate_nothing(path, entry, match):
    parts = take_apart(path.read_bytes())
    parts.header["covariate_gram"] |= entry
    path.write_bytes(put_together(parts))
    tracemalloc.start()
    try:
        assert_refused(path, match)
        assert tracemalloc.get_traced_memory()[1] < 3e6
    finally:
        tracemalloc.stop()


def test_a_header_longer_than_any_is_not_read(path):
    path.write_bytes((2**62).to_bytes(8, "little") + b"{" * 100)
    assert_refused(path, "not a file that orthogp wrote")
    path.write_bytes((2**24).to_bytes(8, "little") + b" " * 2**24)
    assert_refused(path, "not a file that orthogp wrote")


def test_headers_that_are_nested_or_repeated(path):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, arrays = data[8 : 8 + length], data[8 + length :]
    path.write_bytes(seal(b"[" * 100_000, b""))
    assert_refused(path, "not a file that orthogp wrote")
    path.write_bytes(
        seal(header.replace(b'"target_sums":{', b'"target_sums":{},"target_sums":{', 1), arrays)
    )
    assert_refused(path, "not a file that orthogp wrote")
    path.write_bytes(seal(header.replace(b'"content":"', b'"content":"' + b"[" * 50_000), arrays))
    assert_refused(path, "no record in JSON")
    path.write_bytes(seal(header.replace(b'"content":"{', b'"content":"{\\"a\\": NaN, '), arrays))
    assert_refused(path, "no record in JSON")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda content: content.pop("rows"), "rows is missing"),
        (lambda content: content.update(rows="many"), "rows must be a number"),
        (lambda content: content.update(rows=-1.0), "rows must be at least 0"),
        (lambda content: content.update(count={"$float": "nan"}), "count must be finite"),
        (lambda content: content["lattice"].update(extent=[10**9]), "not as many sums"),
        (lambda content: content["lattice"].update(extent=[4]), "not as many sums"),
        (lambda content: content["lattice"].update(spacing=[0.0]), "spacing > 0"),
        (lambda content: content["lattice"].update(spacing=[1e400]), "no record in JSON"),
        (lambda content: content["lattice"].update(centre=[1, 2]), "no valid model"),
        (lambda content: content.update(yy={"$array": "target_sums"}), "names it twice"),
        (lambda content: content.update(yy={"$array": "covariate_gram"}), "names it twice"),
        (
            lambda content: content.update(yy={"$numbers": [1.0, "2"]}),
            "numbers holds something else",
        ),
        (lambda content: content.update(yy={"$numbers": [1.0, 10**400]}), "too large"),
        (lambda content: content.update(more=1), ".more. is no part of"),
        (lambda content: content.update(yy=["a", 2.0]), "yy must be an array"),
    ],
)
def test_content_that_makes_no_sense(path, change, match):
    parts = take_apart(path.read_bytes())
    change(parts.content)
    path.write_bytes(put_together(parts))
    assert_refused(path, match)


def test_numbers_that_are_not_finite_are_found(path):
    parts = take_apart(path.read_bytes())
    start = parts.header["covariate_gram"]["data_offsets"][0]
    for number in (np.nan, np.inf):
        data = bytearray(parts.data)
        data[start : start + 8] = np.float64(number).tobytes()
        path.write_bytes(put_together(parts._replace(data=bytes(data))))
        assert_refused(path, "covariate_gram holds numbers that are not finite")


def test_truth_is_zero_or_one(tmp_path):
    file = tmp_path / "b.orthogp"
    write_file(file, "test", {"odd": np.array([True, False, True]), "z": np.array([1 + 2j])})
    _, read = read_file(file, ("test",))
    assert read["odd"].tolist() == [True, False, True]
    assert read["z"].tolist() == [1 + 2j]
    parts = take_apart(file.read_bytes())
    file.write_bytes(put_together(parts._replace(data=parts.data[:-1] + b"\x02")))
    with pytest.raises(FileError, match="other than true and false"):
        read_file(file, ("test",))


def test_the_rows_of_someone_elses_file_run_nothing(tmp_path):
    """A pickle that would run code when loaded is refused by its first bytes."""
    import pickle

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    (tmp_path / "trap").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(FileError, match="not a file that orthogp wrote"):
        load_model(tmp_path / "trap")
    assert not (tmp_path / "sprung").exists()


# ---------------------------------------------------------------------- what cannot be written


def test_saving_over_a_file_replaces_it_and_keeps_its_mode(path):
    path.chmod(0o640)
    link = path.with_name("link")
    link.symlink_to(path)
    statistics(2).save(link)
    assert link.is_symlink()
    assert FourierStatistics.load(path).lattice.num_dims == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert {entry.name for entry in path.parent.iterdir()} == {"link", path.name}


def test_new_files_have_the_mode_of_any_new_file(path, tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("name", ["missing/s.orthogp", "s.orthogp/s.orthogp"])
def test_saving_into_no_directory(path, name):
    with pytest.raises(FileError, match="There is no directory"):
        statistics().save(path.parent / name)


def test_saving_onto_what_is_no_file(path):
    before = os.stat("/dev/null")
    for name in ("/dev/null", path.parent):
        with pytest.raises(FileError, match="no regular file"):
            statistics().save(name)
    assert os.stat("/dev/null").st_mode == before.st_mode


def test_an_interrupted_save_leaves_the_old_file_and_nothing_else(path, monkeypatch):
    before = path.read_bytes()

    def interrupt(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        statistics(2).save(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def large():
    """Statistics whose file takes more than a megabyte."""
    lattice = FrequencyLattice([1.0], 2**15)
    return FourierStatistics.from_data(lattice, np.zeros((3, 1)), np.ones(3))


def test_a_limit_on_file_sizes_is_one_sentence_and_keeps_the_old_file(path):
    resource = pytest.importorskip("resource")
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        with pytest.raises(FileError, match=f"^There is no room to write {path}"):
            large().save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="mounting needs root")
def test_a_full_disk_is_one_sentence_and_keeps_the_old_file(path, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)]
    try:
        mounted = subprocess.run(mount, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("file systems cannot be mounted here")
    try:
        old = small / "s.orthogp"
        old.write_bytes(path.read_bytes())
        with pytest.raises(FileError, match=r"^There is no room .*No space left on device"):
            large().save(old)
        assert old.read_bytes() == path.read_bytes()
        assert list(small.iterdir()) == [old]
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_model_can_be_saved_where_it_was_loaded_from(tmp_path):
    X, y = rows(1, 50)
    model = GPRegressor(features="exact", learn=False).fit(X, y)
    model.save(tmp_path / "m.orthogp")
    first = (tmp_path / "m.orthogp").read_bytes()
    GPRegressor.load(tmp_path / "m.orthogp").save(tmp_path / "m.orthogp")
    assert (tmp_path / "m.orthogp").read_bytes() == first
