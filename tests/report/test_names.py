"""What inputs and targets are called in figures and pages."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from orthogp import GPClassifier
from orthogp.inference import Domain
from orthogp.kernels import RBF
from orthogp.report.figures import covered_range, grid_points
from orthogp.report.summary import describe_domain, names_of, plain


def model(**attributes: Any) -> Any:
    given = {"n_features_in_": 2, "target_scale_": np.ones(1), **attributes}
    return SimpleNamespace(**given)


def test_names_come_from_the_file_then_the_frame_then_nowhere() -> None:
    about = {"inputs": ["a", "b"], "targets": ["c"], "units": {"a": "m"}, "source": "f.csv"}
    frame = np.array(["p", "q"])
    named = names_of(model(about_=about, feature_names_in_=frame))
    assert (named.inputs, named.targets, named.source) == (("a", "b"), ("c",), "f.csv")
    assert [named.input(0), named.input(1), named.target()] == ["a (m)", "b", "c"]
    assert names_of(model(feature_names_in_=frame)).inputs == ("p", "q")
    assert names_of(model()).inputs == ("x0", "x1")
    assert names_of(model(n_features_in_=1)).inputs == ("x",)
    assert names_of(model(target_scale_=np.ones(2))).targets == ("y0", "y1")


def test_times_say_what_their_numbers_are() -> None:
    about = {"inputs": ["t", "b"], "times": [{"unit": "days", "origin": "2024-01-31"}, None]}
    labels = names_of(model(about_=about))
    assert labels.input(0) == "t (days since 2024-01-31)"
    assert labels.input(1) == "b"


def test_what_is_covered_is_told_in_dates_where_inputs_are_times() -> None:
    domain = Domain(np.array([-1.5, 0.25]), np.array([30.0, 1e6]))
    times = [{"unit": "days", "origin": "2024-01-31"}, None]
    known = {"columns_": np.array([0, 1]), "domain_": domain}
    assert describe_domain(model(**known)) == "[-1.5, 30] × [0.25, 1e+06]"
    dated = describe_domain(model(about_={"times": times}, **known))
    assert dated == "[2024-01-29, 2024-03-01] × [0.25, 1e+06]"
    hours = [{"unit": "hours", "origin": "2024-01-31"}, None]
    assert describe_domain(model(about_={"times": hours}, **known)).startswith(
        "[2024-01-30T22:30:00, 2024-02-01T06:00:00]"
    )


def test_dollars_are_no_mathematics_and_a_unit_that_is_the_name_is_not_repeated() -> None:
    about = {"inputs": ["$a$", "year"], "units": {"year": "year"}}
    labels = names_of(model(about_=about))
    assert labels.input(0) == r"\$a\$"
    assert labels.input(1) == "year"


def test_grids_run_along_the_first_column_first() -> None:
    points = grid_points(np.array([0.0, 10.0]), np.array([1.0, 12.0]), (2, 3))
    np.testing.assert_array_equal(points, [[0, 10], [1, 10], [0, 11], [1, 11], [0, 12], [1, 12]])


def test_a_classifier_knows_the_range_of_its_rows() -> None:
    X = np.linspace(2, 5, 40)[:, None]
    classifier = GPClassifier(RBF(4.0, 1.0), learn=False, num_features=11)
    box = covered_range(classifier.fit(X, X[:, 0] > 3))
    np.testing.assert_allclose([box.lower[0], box.upper[0]], [2, 5])


def test_dollars_are_escaped_once() -> None:
    assert plain("a$b") == plain(plain("a$b")) == r"a\$b"
    assert plain(3) == "3"
