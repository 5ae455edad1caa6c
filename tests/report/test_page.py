"""The HTML page: every section, nothing from elsewhere, readable by machines and in Chromium."""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from orthogp import GPClassifier, GPRegressor, InputError, StochasticGPRegressor
from orthogp.kernels import RBF, Matern12, Matern32
from orthogp.report import RegressionDiagnostics, diagnose, render_report, write_report
from orthogp.report.figures import Figures
from orthogp.report.live import live_content
from orthogp.report.plots import compose
from orthogp.report.summary import guarantee
from tests.oracles import Array

SECTIONS = (
    "summary",
    "fit",
    "explore",
    "residuals",
    "calibration",
    "spectrum",
    "certificate",
    "timings",
    "load",
)
# Elements that stand alone.
VOID = {"meta", "br", "hr", "img", "input", "link"}


class Reader(HTMLParser):
    """What a page consists of, with complaints about what is wrong with it."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.addresses: list[str] = []
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.figures: dict[str, int] = dict.fromkeys(SECTIONS, 0)
        self.words: dict[str, str] = dict.fromkeys(SECTIONS, "")
        self.tags: set[str] = set()
        self._section = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        own = {name: value or "" for name, value in attrs}
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        if "id" in own:
            self.ids.append(own["id"])
        if tag == "section":
            self._section = own.get("id", "")
        if tag == "svg":
            self.figures[self._section] += 1
            if own.get("role") != "img" or len(own.get("aria-label", "")) < 15:
                self.wrong.append(f"an svg without words: {own}")
        if tag == "img" and not own.get("alt"):
            self.wrong.append("an img without words")
        if tag == "th" and own.get("scope") not in ("row", "col"):
            self.wrong.append("a th without scope")
        if tag == "html" and not own.get("lang"):
            self.wrong.append("no language")
        for name in ("href", "src", "xlink:href"):
            if name in own:
                target = self.links if own[name].startswith("#") else self.addresses
                target.append(own[name].removeprefix("#"))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        if self._section:
            self.words[self._section] += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    return reader


def words(model: Any, section: str, **options: Any) -> str:
    """The words of one section of a model's page."""
    return read(render_report(model, **options)).words[section]


def curve(n: int = 200) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (n, 1))
    return X, np.sin(X[:, 0]) + 0.2 * rng.standard_normal(n)


def fit_curve(**settings: Any) -> tuple[GPRegressor, Array, Array]:
    X, y = curve()
    model = GPRegressor(RBF(1.0, 1.0), noise_variance=0.04, learn=False, **settings)
    return model.fit(X, y), X, y


def fit_field(num_columns: int) -> tuple[GPRegressor, Array, Array]:
    rng = np.random.default_rng(1)
    X = rng.uniform(0, 3, (400, num_columns))
    y = np.sin(2 * X[:, 0]) * X[:, 1] + 0.2 * rng.standard_normal(400)
    kernel = RBF(1.0, [1.0] * num_columns)
    return GPRegressor(kernel, noise_variance=0.04, learn=False, num_features=61).fit(X, y), X, y


def fit_many() -> tuple[GPRegressor, Array, Array]:
    rng = np.random.default_rng(6)
    X = rng.uniform(0, 1, (150, 5))
    y = X.sum(axis=1) + 0.1 * rng.standard_normal(150)
    kernel = RBF(1.0, [1.0] * 5)
    return GPRegressor(kernel, noise_variance=0.01, learn=False).fit(X, y), X, y


def fit_additive() -> tuple[GPRegressor, Array, Array]:
    rng = np.random.default_rng(2)
    X = rng.uniform(-1, 1, (300, 4))
    y = X[:, 0] ** 2 + np.sin(3 * X[:, 1]) + 0.2 * rng.standard_normal(300)
    kernel = Matern32(0.5, 1.0).on(0) + RBF(0.5, 1.0).on(1) + RBF(0.5, 1.0).on(2, 3)
    model = GPRegressor(kernel, noise_variance=0.04, learn=False, num_features=61)
    return model.fit(X, y), X, y


def fit_classifier(num_columns: int, num_classes: int) -> tuple[GPClassifier, Array, Array]:
    rng = np.random.default_rng(3)
    X = rng.uniform(-2, 2, (300, num_columns))
    edges = [0.0] if num_classes == 2 else [-0.7, 0.7]
    y = np.array(["a", "b", "c"])[np.digitize(X[:, 0] + 0.5 * rng.standard_normal(300), edges)]
    kernel = RBF(4.0, [1.0] * num_columns)
    return GPClassifier(kernel, learn=False, num_features=41).fit(X, y), X, y


def fit_additive_classifier(num_classes: int) -> tuple[GPClassifier, Array, Array]:
    rng = np.random.default_rng(5)
    X = rng.uniform(-1, 1, (200, 4))
    edges = [0.0] if num_classes == 2 else [-0.4, 0.4]
    y = np.array(["a", "b", "c"])[np.digitize(np.sin(3 * X[:, 0]) + X[:, 1], edges)]
    kernel = RBF(4.0, 1.0).on(0) + RBF(4.0, 1.0).on(1) + RBF(0.5, 1.0).on(2, 3)
    return GPClassifier(kernel, learn=False, num_features=41).fit(X, y), X, y


def fit_two_targets() -> tuple[GPRegressor, Array, Array]:
    X, y = curve()
    both = np.stack([y, 30 * y], axis=1)
    return GPRegressor(RBF(1.0, 1.0), noise_variance=0.04, learn=False).fit(X, both), X, both


def fit_iterative() -> tuple[GPRegressor, Array, Array]:
    X, y = curve()
    model = GPRegressor(Matern12(1.0, 2.0), noise_variance=0.04, learn=False, solver="iterative")
    return model.fit(X, y), X, y


MODELS: dict[str, Callable[[], Any]] = {
    "curve": fit_curve,
    "map": lambda: fit_field(2),
    "slices": lambda: fit_field(3),
    "many columns": fit_many,
    "additive": fit_additive,
    "two targets": fit_two_targets,
    "iterative": fit_iterative,
    "exact": lambda: fit_curve(features="exact"),
    "classifier": lambda: fit_classifier(2, 2),
    "three classes": lambda: fit_classifier(1, 3),
    "additive classifier": lambda: fit_additive_classifier(2),
    "three additive classes": lambda: fit_additive_classifier(3),
}
# Figures of the fit, of which curves have one for screens and one for phones.
FIT_FIGURES = {
    "curve": 2,
    "map": 2,
    "slices": 6,
    "many columns": 5,
    "additive": 3,
    "two targets": 4,
    "iterative": None,
    "exact": 2,
    "classifier": 1,
    "three classes": 2,
    "additive classifier": 3,
    "three additive classes": 9,
}


@cache
def checked_page(name: str) -> str:
    """The page of a model with its diagnostics, made once."""
    model, X, y = MODELS[name]()
    model.diagnostics_ = diagnose(model, X, y)
    return render_report(model)


def some_slow(names: Iterable[str]) -> list[Any]:
    quick = ("curve", "many columns", "additive", "classifier")
    return [own if own in quick else pytest.param(own, marks=pytest.mark.slow) for own in names]


@pytest.mark.parametrize("name", some_slow(MODELS))
def test_every_section_is_there_and_the_page_is_whole(name: str) -> None:
    text = checked_page(name)
    page = read(text)
    assert page.wrong == []
    assert page.open == []
    assert [own for own in page.ids if own in SECTIONS] == list(SECTIONS)
    assert len(set(page.ids)) == len(page.ids)
    assert set(page.links) <= set(page.ids)
    assert all(len(words.split()) > 5 for words in page.words.values())
    assert page.figures["fit"] >= 1
    assert page.figures["calibration"] >= 1
    # More than three columns that act jointly have no lattice of frequencies.
    assert (page.figures["spectrum"] >= 1) == (name != "many columns")
    if FIT_FIGURES[name] is not None:
        assert page.figures["fit"] == FIT_FIGURES[name]
    assert len(text) < 1_500_000


@pytest.mark.parametrize("name", ["curve", "classifier"])
def test_nothing_comes_from_elsewhere(name: str) -> None:
    text = checked_page(name)
    page = read(text)
    assert "http://" not in text
    assert "https://" not in text
    assert all(address.startswith("data:image/png;base64,") for address in page.addresses)
    assert not page.tags & {"link", "iframe", "object", "embed"}
    assert not re.search(r"@import|url\((?!#)|\bfetch\(|XMLHttpRequest|import\(", text)
    # And every reference inside a figure is to that figure.
    for reference in re.findall(r"url\(#([^)]*)\)", text):
        assert reference in page.ids


@pytest.fixture(scope="module")
def plain_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page without diagnostics, whose names are to be escaped."""
    model, _, _ = fit_curve()
    model.about_ = {  # type: ignore[attr-defined]
        "inputs": ["<time>"],
        "target": "price & $ in $",
        "units": {"<time>": "s"},
        "source": "a<b>.csv",
    }
    path = tmp_path_factory.mktemp("page") / "report.html"
    assert write_report(model, path, title="<script>alert(1)</script>") == path
    return path.read_text("utf-8")


def test_without_diagnostics_the_sections_say_how_to_get_them(plain_page: str) -> None:
    page = read(plain_page)
    for section in ("residuals", "calibration"):
        assert "model.diagnose(X, y)" in page.words[section]
        assert page.figures[section] == 0
    assert page.figures["fit"] == 2


def test_names_and_units_are_the_users_and_are_escaped(plain_page: str) -> None:
    page = read(plain_page)
    assert page.wrong == []
    assert "<script>alert" not in plain_page
    assert "<h1>&lt;script&gt;" in plain_page
    assert "&lt;time&gt; (s)" in plain_page
    assert "price & $ in $" in page.words["fit"]
    assert "a<b>.csv" in page.words["summary"]


NAMES = ["$a$ <script>alert(1)</script>", "$b_{", "c$\\$", '"d" & $e$']


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["additive", "map", "additive classifier", "three classes"])
def test_no_name_is_taken_for_mathematics_or_markup(kind: str) -> None:
    model, X, y = MODELS[kind]()
    if hasattr(model, "classes_"):
        odd = dict(zip("abc", ["$p$", "<script>", "$q_{"], strict=True))
        model.classes_ = np.array([odd[label] for label in model.classes_])
        y = np.array([odd[label] for label in y])
    model.about_ = {"inputs": NAMES[: X.shape[1]], "target": "$t^{", "units": {"$t^{": "$"}}
    model.diagnose(X, y)
    # A pair of dollars that is taken for mathematics fails here, or is set in italics.
    text = render_report(model)
    page = read(text)
    assert page.wrong == []
    assert page.open == []
    assert "<script>alert" not in text
    shown = "".join(re.findall(r"<text[^>]*>([^<]*)</text>", text))
    assert "$a$" in shown
    assert not re.search(r"\\\$", shown)
    model.plot()


def test_the_numbers_are_those_of_the_model_and_its_diagnostics() -> None:
    model, X, y = fit_curve()
    found = diagnose(model, X, y)
    assert isinstance(found, RegressionDiagnostics)
    page = read(checked_page("curve"))
    assert f"{model.elbo_:,.3f}" in page.words["certificate"]
    assert "Exact." in page.words["certificate"]
    assert f"{100 * found.covered(0.95):.1f} %" in page.words["calibration"]
    assert f"{found.rmse[0]:.4g}" in page.words["calibration"]
    assert "GPRegressor.load" in page.words["load"]
    assert "orthogp predict" in page.words["load"]


def test_a_model_with_enough_features_is_called_certified() -> None:
    model, _, _ = fit_curve(solver="dense")
    assert model.certificate_.holds
    section = words(model, "certificate")
    assert "Certified." in section
    assert guarantee(model)[1:] in section
    assert f"{model.elbo_:,.3f}" in section
    assert f"{model.upper_bound_:,.3f}" in section


def test_a_model_with_too_few_features_is_not_called_certified() -> None:
    model, _, _ = fit_curve(num_features=5)
    assert not model.certificate_.holds
    assert "Not certified." in words(model, "certificate")
    assert guarantee(model)[1:] in words(model, "certificate")


def test_checks_are_mentioned_where_there_are_any() -> None:
    model, X, y = fit_curve(num_features=5)
    assert "checks above" not in words(model, "certificate")
    model.diagnose(X, y)
    assert "checks above" in words(model, "certificate")


def test_no_speed_is_claimed_of_a_pass_that_was_not_made() -> None:
    model, _, _ = fit_curve()
    model.timings_ = {"pass": 1.0, "learn": 1.0, "total": 2.0}
    assert "200 rows per second" in words(model, "timings")
    model.timings_ = {"learn": 1.0, "total": 1.0}
    assert "per second" not in words(model, "timings")
    model.timings_ = {"pass": 0.004, "learn": 1.0, "total": 1.004}
    assert "per second" not in words(model, "timings")


def test_the_model_is_loaded_from_its_own_file() -> None:
    model, _, _ = fit_curve()
    text = words(model, "load", model_file='wet "days".orthogp')
    assert r'GPRegressor.load("wet \"days\".orthogp")' in text
    assert "orthogp predict 'wet \"days\".orthogp' new.csv" in text


@pytest.mark.slow
def test_names_of_several_targets_are_escaped() -> None:
    model, _, _ = fit_two_targets()
    model.about_ = {"targets": ["<b>", "c"]}  # type: ignore[attr-defined]
    assert "<h3>&lt;b&gt;</h3>" in render_report(model)


def test_additive_models_are_checked_along_their_largest_components_first() -> None:
    text = checked_page("additive")
    along = re.findall(
        r'aria-label="Mean and standard deviation of the residuals along (x\d)', text
    )
    spectra = re.findall(r'aria-label="Learned spectral density over [^,]* of (x\d)', text)
    assert along[:2] == spectra[:2] == ["x1", "x0"]
    assert sorted(along) == ["x0", "x1", "x2", "x3"]


def test_the_page_knows_phones_paper_and_the_dark() -> None:
    text = checked_page("curve")
    for wanted in ("max-width: 40rem", "@media print", "prefers-color-scheme: dark", "viewport"):
        assert wanted in text
    # Figures take their colours from the page, so that they can be read in the dark.
    figures = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))
    assert "var(--ink)" in figures
    assert "var(--blue)" in figures
    assert "#000000" not in figures


def test_a_model_writes_its_own_page(tmp_path: Path) -> None:
    model, X, y = fit_curve()
    found = model.diagnose(X, y)
    assert model.diagnostics_ is found
    path = model.report(tmp_path / "page.html", title="Waves", model_file="waves.orthogp")
    assert path == tmp_path / "page.html"
    text = path.read_text("utf-8")
    assert "<h1>Waves</h1>" in text
    assert "waves.orthogp" in read(text).words["load"]
    assert read(text).figures["calibration"] == 2


@pytest.mark.parametrize("name", ["curve", "additive"])
def test_targets_are_drawn_against_their_predictions(name: str) -> None:
    assert "against its prediction from all other rows" in checked_page(name)


def test_maps_show_where_the_rows_are() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (40, 2))
    X[:, 1] *= X[:, 0] < 0.5
    kernel = RBF(1.0, 0.5)
    model = GPRegressor(kernel, learn=False, noise_variance=0.1).fit(X, X[:, 0])
    np.testing.assert_array_equal(Figures(model, None).locations, X)
    sums = GPRegressor(kernel, learn=False, noise_variance=0.1, solver="dense").fit(X, X[:, 0])
    assert Figures(sums, None).locations is None
    cells = Figures(sums, diagnose(sums, X, X[:, 0])).locations
    assert cells is not None
    # A dot within half a cell of each row, and a row for each dot.
    near = np.abs(cells[:, None] - X) <= 0.5 * np.ptp(X, axis=0) / 24 + 1e-12
    assert near.all(axis=2).any(axis=0).all()
    assert near.all(axis=2).any(axis=1).all()
    assert "Dots: where rows are." in render_report(model, live=False)


def test_dates_stand_along_components_and_sliders() -> None:
    days = pd.date_range("2024-01-01", periods=120)
    other = np.random.default_rng(0).uniform(0, 1, 120)
    X = pd.DataFrame({"day": days, "other": other})
    y = np.sin(np.arange(120) / 20)
    fixed = {"learn": False, "noise_variance": 0.1}
    kernel = Matern32(1.0, 30.0).on("day")
    figure = GPRegressor(kernel + RBF().on("other"), solver="dense", **fixed).fit(X, y)
    figures = Figures(figure, None)
    drawn = compose(figures.effects() if figures.additive else figures.fit(0))
    assert drawn.axes[0].get_xlabel() == "day"
    assert "Feb" in [text.get_text() for text in drawn.axes[0].get_xticklabels()]
    data = live_content(Figures(GPRegressor(kernel, **fixed).fit(X, y), None)).data
    assert data is not None
    assert data["inputs"] == ["day"]
    assert data["times"] == [{"unit": 864e5, "origin": 1704067200e3}]


def test_a_classifier_forgets_the_checks_of_other_rows() -> None:
    model, X, y = fit_classifier(1, 3)
    model.diagnose(X, y)
    assert not hasattr(model.fit(X[:200], y[:200]), "diagnostics_")


def test_a_stochastic_model_has_no_page() -> None:
    X, y = curve(50)
    model = StochasticGPRegressor(RBF(1.0, 1.0), num_features=8, max_steps=5).fit(X, y)
    with pytest.raises(InputError, match="no page about a StochasticGPRegressor"):
        render_report(model)  # type: ignore[arg-type]


def test_a_missing_folder_is_explained(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no directory"):
        write_report(fit_curve()[0], tmp_path / "missing" / "report.html")


def test_diagnostics_of_another_kind_are_refused() -> None:
    model, X, y = fit_curve()
    with pytest.raises(InputError, match="ClassificationDiagnostics"):
        render_report(fit_classifier(1, 3)[0], diagnostics=diagnose(model, X, y))


needs_chromium = pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")


def run_chromium(folder: Path, *arguments: str) -> str:
    command = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"]
    command += ["--disable-extensions", f"--user-data-dir={folder / 'profile'}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@needs_chromium
def test_chromium_renders_every_section(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(checked_page("curve"), "utf-8")
    page = read(run_chromium(tmp_path, "--dump-dom", path.as_uri()))
    assert [own for own in page.ids if own in SECTIONS] == list(SECTIONS)
    assert page.figures == read(checked_page("curve")).figures


@needs_chromium
@pytest.mark.slow
def test_chromium_prints_the_page(tmp_path: Path) -> None:
    path, pdf = tmp_path / "report.html", tmp_path / "report.pdf"
    path.write_text(checked_page("curve"), "utf-8")
    run_chromium(tmp_path, f"--print-to-pdf={pdf}", path.as_uri())
    assert pdf.read_bytes().startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", pdf.read_bytes())) >= 3
