"""Date-times as numbers: units, origins, zones, and back."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orthogp.files.columns import SINCE_1970, TimeScale, scale_from_json
from orthogp.files.source import read_table


@pytest.mark.parametrize(
    ("span", "unit"),
    [("90 D", "days"), ("60 h", "hours"), ("70 m", "minutes"), ("40 s", "seconds")],
)
def test_the_unit_follows_the_span(span: str, unit: str) -> None:
    number, code = span.split()
    begin = np.datetime64("2024-01-31T10:20:30", "us")
    end = begin + np.timedelta64(int(number), code)
    scale = TimeScale.spanning(float(begin.astype(int)), float(end.astype(int)))
    assert scale == TimeScale(unit, "2024-01-31")
    assert scale.describe() == f"{unit} since 2024-01-31"
    assert scale_from_json(scale._asdict()) == scale


def test_numbers_and_date_times_are_each_other() -> None:
    scale = TimeScale("hours", "2024-01-31")
    times = np.array(["2024-01-31T06:00", "1969-07-20T20:17:40.000001", "NaT"], dtype="M8[us]")
    numbers = np.array([6.0, scale.number("1969-07-20T20:17:40.000001"), np.nan])
    np.testing.assert_array_equal(scale.datetimes(numbers), times)
    assert scale.number("2024-01-31T06:00+05:30") == 0.5
    np.testing.assert_array_equal(
        scale.rescaled(SINCE_1970.rescaled(numbers, scale), SINCE_1970), numbers
    )


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("statistics", [True, False])
def test_columns_of_every_resolution(tmp_path: Path, unit: str, statistics: bool) -> None:
    times = np.array(["2024-01-31T06:00", "2024-02-01T18:00", "NaT", "2024-05-01"], dtype="M8[s]")
    column = pa.array(times, type=pa.timestamp(unit))
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"t": column, "y": np.arange(4.0)}), path, write_statistics=statistics)
    table = read_table(path, "y")
    np.testing.assert_array_equal(table.X[:, 0], [0.25, 1.75, 91.0])
    assert table.times == (TimeScale("days", "2024-01-31"),)


def test_nanoseconds_survive(tmp_path: Path) -> None:
    column = pa.array(np.array([0, 1, 2], dtype=np.int64) + 1_700_000_000 * 10**9)
    table = pa.table({"t": column.cast(pa.timestamp("ns", "UTC")), "y": [1.0, 2, 3]})
    pq.write_table(table, tmp_path / "a.parquet")
    x = read_table(tmp_path / "a.parquet", "y").X[:, 0]
    # Seconds of a day, in double precision.
    np.testing.assert_allclose(np.diff(x), 1e-9, atol=2e-11)


def test_dates_are_days(tmp_path: Path) -> None:
    days = np.arange("2023-12-01", "2024-03-01", dtype="M8[D]")
    pq.write_table(pa.table({"t": days, "y": np.zeros(len(days))}), tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text("t,y\n" + "".join(f"{day},0\n" for day in days))
    for name in ("a.parquet", "b.csv"):
        table = read_table(tmp_path / name, "y")
        np.testing.assert_array_equal(table.X[:, 0], np.arange(len(days)))
        assert table.times == (TimeScale("days", "2023-12-01"),)


def test_zones_are_respected(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("t,y\n2024-01-31T01:00:00+01:00,1\n2024-01-31T00:00:30Z,2\n")
    np.testing.assert_array_equal(read_table(path, "y").X[:, 0], [0, 30])


def test_what_is_no_date_time_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("t,y\n2024-01-31,1\nyesterday,2\n")
    with pytest.raises(ValueError, match=r"must hold date-times as .*, got 'yesterday' in line 3 "):
        read_table(path, "y")


def test_targets_are_no_date_times(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x,y\n1,2024-01-31\n")
    with pytest.raises(ValueError, match=r"'y' of .* holds date-times, but only inputs may"):
        read_table(path, "y")
