"""Models in notebooks: plot() and the HTML representation."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn
from sklearn.exceptions import NotFittedError

from orthogp import GPClassifier, GPRegressor, InputError
from orthogp.kernels import RBF
from orthogp.report import diagnose
from tests.oracles import Array
from tests.report.test_page import fit_additive, fit_classifier, fit_curve, fit_field, fit_many


def test_a_curve_has_mean_bands_and_the_rows_given() -> None:
    model, X, y = fit_curve()
    (axes,) = model.plot(X, y).axes
    labels = [text for artist in axes.get_lines() if (text := str(artist.get_label()))]
    assert {"mean", "rows"} <= set(labels)
    mean = next(line for line in axes.get_lines() if line.get_label() == "mean")
    x = np.asarray(mean.get_xdata(), dtype=float)
    np.testing.assert_allclose(mean.get_ydata(), model.predict(x[:, None]))
    rows = next(line for line in axes.get_lines() if line.get_label() == "rows")
    assert len(np.asarray(rows.get_xdata())) == len(X)
    # Two bands, of the function and of new observations.
    assert len(axes.collections) == 2


def test_a_curve_shows_the_rows_that_diagnostics_remember() -> None:
    model, X, y = fit_curve()
    without = len(model.plot().axes[0].collections) + len(model.plot().axes[0].get_lines())
    model.diagnostics_ = diagnose(model, X, y)  # type: ignore[attr-defined]
    axes = model.plot().axes[0]
    assert len(axes.collections) + len(axes.get_lines()) > without


def test_a_field_has_maps_of_mean_and_deviation() -> None:
    model, _, _ = fit_field(2)
    figure = model.plot()
    images = [image for axes in figure.axes for image in axes.get_images()]
    assert len(images) == 2
    mean = np.asarray(images[0].get_array())
    left, right, low, high = images[0].get_extent()
    # The corner where both inputs are largest.
    expected = model.predict([[right, high]])[0]
    assert mean[-1, -1] == pytest.approx(expected)
    assert mean[0, -1] == pytest.approx(model.predict([[right, low]])[0])
    assert mean[-1, 0] == pytest.approx(model.predict([[left, high]])[0])


def test_three_inputs_are_cut_in_the_middle_of_the_third() -> None:
    model, X, _ = fit_field(3)
    figure = model.plot()
    middle = (X[:, 2].min() + X[:, 2].max()) / 2
    assert f"= {middle:.4g}" in figure.axes[0].get_title(loc="left")


def test_many_inputs_are_shown_one_by_one_the_others_in_the_middle() -> None:
    model, X, _ = fit_many()
    panels = model.plot().axes
    assert [axes.get_xlabel() for axes in panels if axes.get_visible()] == [
        f"x{i}" for i in range(5)
    ]
    line = panels[3].get_lines()[0]
    x = np.asarray(line.get_xdata(), dtype=float)
    at = np.tile((X.min(axis=0) + X.max(axis=0)) / 2, (len(x), 1))
    at[:, 3] = x
    np.testing.assert_allclose(line.get_ydata(), model.predict(at))


def test_an_additive_model_shows_its_components() -> None:
    model, _, _ = fit_additive()
    titles = [axes.get_title(loc="left") for axes in model.plot().axes]
    assert sum("of the variance" in title for title in titles) == 3
    model.about_ = {"inputs": ["hour", "wind", "lon", "lat"]}  # type: ignore[attr-defined]
    titles = " ".join(axes.get_title(loc="left") for axes in model.plot().axes)
    assert "hour: " in titles
    assert "lon × lat: " in titles


@pytest.mark.parametrize(("num_columns", "num_classes"), [(1, 2), (1, 3), (2, 2), (2, 3)])
def test_a_classifier_shows_probabilities(num_columns: int, num_classes: int) -> None:
    model, _, _ = fit_classifier(num_columns, num_classes)
    axes = model.plot().axes[0]
    shown = model.classes_[1] if num_classes == 2 else model.classes_[0]
    if num_columns == 1:
        line = axes.get_lines()[0]
        assert line.get_label() == shown
        at = np.asarray(line.get_xdata(), dtype=float)[:, None]
        values: Array = np.asarray(line.get_ydata(), dtype=float)
    else:
        (image,) = axes.get_images()
        at = np.array([[image.get_extent()[1], image.get_extent()[3]]])
        values = np.asarray(image.get_array())[-1, -1:]
    number = list(model.classes_).index(shown)
    np.testing.assert_allclose(values, model.predict_proba(at)[:, number], rtol=1e-6)


def test_figures_are_written(tmp_path: Path) -> None:
    model, _, _ = fit_curve()
    model.plot(path=tmp_path / "fit.png")
    assert (tmp_path / "fit.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"X": [[1.0]]}, "both"),
        ({"target": 3}, "target"),
        ({"path": "fit.txt"}, "png"),
    ],
)
def test_bad_arguments_are_explained(arguments: dict[str, Any], message: str) -> None:
    model, _, _ = fit_curve()
    with pytest.raises(InputError, match=message):
        model.plot(**arguments)


def test_rows_go_with_a_single_input_only() -> None:
    model, X, y = fit_field(2)
    with pytest.raises(InputError, match="single input"):
        model.plot(X, y)


def test_an_unfitted_model_has_no_plot() -> None:
    with pytest.raises(NotFittedError):
        GPRegressor().plot()


def shown(model: Any) -> str:
    return model._repr_mimebundle_()["text/html"]


@pytest.mark.parametrize("kind", [GPRegressor, GPClassifier])
def test_an_unfitted_model_is_shown_as_scikit_learn_does(kind: Any) -> None:
    html = shown(kind())
    assert "sk-" in html
    assert "<td" not in html.split("sk-", 1)[0]


@pytest.mark.parametrize(
    ("solver", "own"),
    [
        ("auto", ("exact: all rows", "not needed")),
        ("dense", ("dense lattice", "elbo", "of the exact Gaussian process")),
    ],
)
def test_a_fitted_regressor_shows_what_it_has_learned_above_its_parameters(
    solver: str, own: tuple[str, ...]
) -> None:
    model, _, _ = fit_curve(solver=solver)
    html = shown(model)
    table, rest = html.split("</table>", 1)
    assert "sk-" in rest
    for wanted in ("kernel", "RBF: ", "noise", "0.2", "engine", "certificate", "seconds", *own):
        assert wanted in table
    assert (f"M = {model.num_features_}" in table) == (solver == "dense")
    assert model._repr_html_().count("certificate") >= 1


def test_a_fitted_classifier_shows_what_it_has_learned() -> None:
    model, _, _ = fit_classifier(1, 3)
    table = shown(model).split("</table>", 1)[0]
    assert re.findall(r">class</th><td[^>]*>(\w)</td>", table) == ["a", "b", "c"]
    assert table.count(">kernel</th>") == 3


def test_the_table_escapes_labels() -> None:
    X = np.linspace(0, 1, 40)[:, None]
    y = np.where(X[:, 0] > 0.5, "<b>", "&c")
    model = GPClassifier(RBF(4.0, 1.0), learn=False, num_features=11).fit(X, y)
    assert "<b>" not in shown(model).split("</table>", 1)[0]


def test_the_text_display_stays_as_configured() -> None:
    model, _, _ = fit_curve()
    with sklearn.config_context(display="text"):
        assert "text/html" not in model._repr_mimebundle_()


def test_looking_at_all_attributes_of_a_joint_model_finds_no_component() -> None:
    X = np.linspace(0, 1, 30)[:, None]
    model = GPRegressor("rbf").fit(X, np.sin(6 * X[:, 0]))
    assert not hasattr(model, "residual_share_")
    assert all(hasattr(model, name) or name == "residual_share_" for name in dir(model))


def test_a_second_fit_forgets_what_was_known_of_the_first_rows() -> None:
    X = np.linspace(0, 1, 30)[:, None]
    model = GPRegressor("rbf").fit(X, np.sin(6 * X[:, 0]))
    model.about_, model.diagnostics_ = {"source": "first.csv"}, None  # type: ignore[attr-defined]
    model.partial_fit(X, np.sin(6 * X[:, 0]))
    assert model.about_ == {"source": "first.csv"}  # type: ignore[attr-defined]
    assert not hasattr(model, "diagnostics_")
    model.fit(X, np.cos(6 * X[:, 0]))
    assert not hasattr(model, "about_")
