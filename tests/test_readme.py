"""The documentation's code runs and prints what is shown; its messages are those that come."""

import contextlib
import io
import re
import shlex
import warnings
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from orthogp import GPClassifier, GPRegressor, OrthogpError, OutOfDomainWarning
from orthogp.cli import main
from orthogp.engines import ENGINES
from orthogp.features import Trig
from orthogp.kernels import RBF, Kernel, QuasiPeriodic, additive

ROOT = Path(__file__).parents[1]


PAGES = [
    "README.md",
    "docs/families.md",
    "docs/covariates.md",
    "docs/kriging.md",
    "docs/sphere.md",
    pytest.param("docs/guide.md", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("page", PAGES)
def test_first_example_prints_what_the_page_shows(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before, shown = (ROOT / page).read_text(encoding="utf-8").split("```text\n")[:2]
    code = "\n".join(re.findall(r"```python\n(.*?)```", before, re.DOTALL))
    check(code, shown.split("```")[0], page)


@pytest.mark.slow
@pytest.mark.parametrize("example", [0, 1], ids=["drift", "tuning"])
def test_examples_of_gaps_print_what_the_page_shows(example):
    text = (ROOT / "docs" / "gaps.md").read_text(encoding="utf-8")
    pairs = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, re.DOTALL)
    assert len(pairs) == 2
    code, shown = pairs[example]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "docs/gaps.md", "exec"), {"__name__": "page"})
    # Solutions are iterative, and where a search ends depends on their last digits.
    number = r"-?\d[\d,]*\.?\d*"
    assert re.sub(number, "#", printed.getvalue()) == re.sub(number, "#", shown)
    found, expected = (
        [float(own.replace(",", "")) for own in re.findall(number, output)]
        for output in (printed.getvalue(), shown)
    )
    np.testing.assert_allclose(found, expected, rtol=0.05, atol=0.03)


@pytest.mark.slow
def test_commands_print_what_the_page_shows(tmp_path, monkeypatch):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(tmp_path)
    printed = ""
    for line in shown.splitlines():
        if line.startswith("$ orthogp "):
            done = CliRunner().invoke(main, shlex.split(line)[2:])
            assert done.exit_code == 0, done.output
            printed += f"{line}\n{done.output}"
    assert_same(printed, shown)


def test_links_between_pages_lead_somewhere():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    missing = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert not missing


# ---------------------------------------------------------------------- troubleshooting


def rows(number=300, columns=1):
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (number, columns))
    return X, np.sin(X[:, 0]) + 0.1 * rng.standard_normal(number)


X, y = rows()
NOISE = 0.1 * np.random.default_rng(1).standard_normal(300)
RBF_FIT = {"kernel": "rbf"}


class Steep(Kernel):
    """1/cosh, written so that its derivative overflows."""

    variance: np.ndarray
    lengthscale: np.ndarray

    def k(self, lag):
        return self.variance / jnp.cosh(lag[0] / self.lengthscale)

    def spectral_density(self, omega):
        half = jnp.pi * self.lengthscale / 2
        return self.variance * half / jnp.pi / jnp.cosh(half * omega[0])

    def prior_variance(self):
        return jnp.asarray(self.variance)


def fitted(**parameters):
    return GPRegressor(**{**RBF_FIT, **parameters}).fit(X, y)


def with_nan():
    bad = X.copy()
    bad[3] = np.nan
    return GPRegressor().fit(bad, y)


def damaged():
    fitted().save("bad.orthogp")
    content = bytearray(Path("bad.orthogp").read_bytes())
    content[-9] ^= 1
    Path("bad.orthogp").write_bytes(content)
    return GPRegressor.load("bad.orthogp")


def foreign():
    Path("t.txt").write_text("hello world, this is no model")
    return GPRegressor.load("t.txt")


def latin():
    Path("latin.csv").write_text("größe,y\n1,2\n", encoding="latin-1")
    return command("fit latin.csv --target y --out o")


def other_kind():
    fitted().save("m.orthogp")
    return GPClassifier.load("m.orthogp")


def command(text, **files):
    for name, content in files.items():
        Path(f"{name}.csv").write_text(content)
    done = CliRunner().invoke(main, shlex.split(text))
    assert done.exit_code == 1
    raise OrthogpError(done.output.removeprefix("Error: ").strip())


NUMBERS = "".join(f"{i},{i % 7}\n" for i in range(50))
# What to do, and words of the message that follows, which the page must show.
PROVOKED = {
    "nan": (with_nan, "NaN or infinite values"),
    "text": (lambda: GPRegressor().fit(pd.DataFrame({"c": ["u"] * 300}), y), "but holds text ("),
    "levels": (
        lambda: GPRegressor(additive("matern32", 2, categorical={1: 3})).fit(
            np.c_[X, np.arange(300) % 5], y
        ),
        "encode its categories as whole numbers from 0, and give Categorical as many levels.",
    ),
    "joint": (
        lambda: GPRegressor(RBF(), solver="dense").fit(np.tile(X, 4), y),
        "The kernel acts on 4 columns, but can act on at most 3 jointly:",
    ),
    "one class": (
        lambda: GPClassifier().fit(X, np.zeros(300)),
        "A classifier needs rows of at least two classes, got one class only: 0.0.",
    ),
    "kernel": (lambda: GPRegressor("rfb").fit(X, y), "Unknown kernel 'rfb'; known names are rbf,"),
    "negative": (
        lambda: RBF(lengthscale=-1),
        "lengthscale must be positive and finite, got -1.",
    ),
    "lengthscales": (
        lambda: GPRegressor(RBF(lengthscale=[1, 2, 3])).fit(np.tile(X, 2), y),
        "RBF has 3 lengthscales but acts on 2 input columns: give one lengthscale, or one per",
    ),
    "noise": (
        lambda: fitted(noise_variance=1e-30, learn=False),
        "for double precision: use a larger noise_variance.",
    ),
    "lattice noise": (
        lambda: fitted(noise_variance=1e-30, learn=False, solver="dense"),
        "for double precision: use a larger noise_variance or fewer features.",
    ),
    "overflow": (
        lambda: GPRegressor(Steep(variance=np.ones(()), lengthscale=np.full((), 1e-3))).fit(X, y),
        "of Steep or their derivatives with respect to its parameters are not finite at all lags",
    ),
    "never fitted": (
        lambda: fitted().forget(X[:20], y[:20] + 1),
        "20 of 20 rows are not among those that were fitted: forget takes out rows with the same",
    ),
    "never summed": (
        lambda: fitted(solver="dense").forget(X[:5] + 0.01, y[:5]),
        "Only rows that were fitted can be forgotten, but row",
    ),
    "integral": (
        lambda: fitted(solver="neighbours").predict_integral([[0.0]], [[1.0]]),
        'Integrals need a lattice: fit with solver="dense" or solver="iterative".',
    ),
    "covariances": (
        lambda: fitted(solver="neighbours").predict(np.linspace(0, 9, 5001)[:, None], False, True),
        "Covariances are formed between up to 5000 points, got 5001: ask for return_std, or for",
    ),
    "family": (lambda: fitted(features="fourier"), "features must be one of auto, lattice, trig,"),
    "eigenfunction": (
        lambda: fitted(kernel="matern32", features="eigenfunction"),
        "Eigenfunction needs the RBF kernel, whose eigenfunctions are known, got Matern32:",
    ),
    "points": (
        lambda: fitted(features="inducing-points", num_features=10).partial_fit(X, y),
        "InducingPoints needs all rows at once: fit again with all of them, or use a family on",
    ),
    "exact": (
        lambda: GPRegressor(features="exact").fit(*rows(6000)),
        'An exact fit takes up to 5000 rows, got 6000: use solver="auto" and features="auto".',
    ),
    "twice": (
        lambda: fitted(features=Trig(21), num_features=11),
        "num_features is 11, but the features have 21: give the number in one place.",
    ),
    "damaged": (damaged, "bad.orthogp is damaged: its checksum does not match its content;"),
    "foreign": (foreign, "t.txt is not a file that orthogp wrote: give one made by save, or by"),
    "kind": (other_kind, "m.orthogp holds a GPRegressor, but a GPClassifier is wanted:"),
    "lattices": (
        lambda: (
            fitted(solver="dense").statistics_
            + GPRegressor("rbf", solver="dense").fit(2 * X, y).statistics_
        ),
        "Statistics combine on one lattice only, got",
    ),
    "derivative": (
        lambda: fitted(kernel="matern12", num_features=21).predict_derivative(X),
        "Functions of this kernel have no derivative:",
    ),
    "family derivative": (
        lambda: fitted(features="trig").predict_derivative(X),
        'Derivatives need the lattice: fit with features="lattice".',
    ),
    "many draws": (
        lambda: fitted(features="trig").sample_y(np.linspace(0, 10, 9000)[:, None]),
        "Functions of these features are drawn at up to 5000 points at once, got 9000:",
    ),
    "components": (
        lambda: fitted().components(),
        "This model is not a sum of components: fit with",
    ),
    "category": (
        lambda: command("fit c.csv --target kind --inputs x --out o", c="x,kind,y\n1,a,2\n2,b,3\n"),
        "Column 'kind' of c.csv holds words, but must hold numbers:",
    ),
    "date": (
        lambda: command("fit d.csv --target y --out o", d="t,y\n01/02/2020,1\n02/02/2020,2\n"),
        "got '01/02/2020' in line 2 of d.csv: write dates as 2024-01-31 or 2024-01-31T12:30:00,",
    ),
    "domain": (
        lambda: command(
            "sketch e.csv --target y --domain 0:24 --out o", e="time,y\n2024-01-01,1\n"
        ),
        "The domain of 'time' must be in dates as its column is, got numbers whose unit is yet to",
    ),
    "encoding": (
        latin,
        "latin.csv is not text in UTF-8: save it as CSV in UTF-8, or convert it, for instance by",
    ),
    "inputs": (
        lambda: command("fit many.csv --target y --out o", many="a,b,c,d,y\n1,2,3,4,5\n"),
        "many.csv has 4 columns besides 'y': name those to predict from by --inputs (a, b, c, d);",
    ),
    "header": (
        lambda: command("fit h.csv --target y --out o", h="1,2\n3,4\n"),
        "h.csv must begin with a line of column names, but that line holds numbers only:",
    ),
    "memory": (
        lambda: command(
            "fit g.csv --target y --features exact --memory 100 --out o", g=f"x,y\n{NUMBERS}"
        ),
        'more than the 100 bytes allowed: allow more memory, or use features="auto".',
    ),
    "names": (
        lambda: [
            fitted().save("m.orthogp"),
            command("predict m.orthogp g.csv --out p.csv", g=f"x,y\n{NUMBERS}"),
        ],
        "m.orthogp names none of its input columns (1): name them by --inputs.",
    ),
}
WARNED = {
    "column": (lambda: fitted_to(np.c_[X, np.ones(300)], y), "is constant and says nothing about"),
    "target": (lambda: fitted_to(X, np.ones(300)), "y is constant: there is nothing to learn,"),
    "outside": (
        lambda: fitted(solver="dense").predict([[50.0]]),
        "there the prediction is the prior. Fit with",
    ),
}
LATTICE = {"solver": "dense"}
STATUS = {
    "late": ({"max_seconds": 1e-3}, y, "The time ran out: raise max_seconds to go on learning."),
    "late lattice": (
        {"kernel": "matern12", "max_seconds": 1e-3, **LATTICE},
        y,
        "raise max_seconds to go on.",
    ),
    "few": (
        {"kernel": "matern12", "num_features": 21},
        y,
        "features asked for are too few",
    ),
    "floor": (LATTICE, np.sin(X[:, 0]), "ended at the smallest that double precision resolves."),
    "rough": (LATTICE, np.sin(X[:, 0]), "too few for a certificate: raise max_features"),
    "line": (LATTICE, X[:, 0] + NOISE, "ended at the longest that the covered domain holds:"),
    "limit": (
        {"kernel": QuasiPeriodic(lengthscale=100, period=1.0), **LATTICE},
        y,
        "ended at a limit: the data ask for a simpler kernel.",
    ),
}


def fitted_to(inputs, targets):
    return GPRegressor("rbf", num_features=21).fit(inputs, targets)


def slow_if(names, slow):
    return [pytest.param(n, marks=pytest.mark.slow if n == slow else []) for n in names]


@pytest.fixture(scope="module")
def troubleshooting():
    return (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", slow_if(PROVOKED, "points"))
def test_errors_are_those_of_the_troubleshooting_page(name, troubleshooting, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    provoke, words = PROVOKED[name]
    with pytest.raises(OrthogpError) as caught:
        provoke()
    assert words in str(caught.value)
    assert words in troubleshooting


@pytest.mark.parametrize("name", WARNED)
def test_warnings_are_those_of_the_troubleshooting_page(name, troubleshooting):
    provoke, words = WARNED[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        provoke()
    assert any(words in str(warning.message) for warning in caught)
    assert words in troubleshooting
    assert (name == "outside") == any(w.category is OutOfDomainWarning for w in caught)


@pytest.mark.parametrize("name", slow_if(STATUS, "limit"))
def test_statuses_are_those_of_the_troubleshooting_page(name, troubleshooting):
    parameters, targets, words = STATUS[name]
    status = GPRegressor(**{**RBF_FIT, **parameters}).fit(X, targets).status_
    assert words in status
    assert words in troubleshooting


# ---------------------------------------------------------------------- comparing


def check(code, shown, page):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, page, "exec"), {"__name__": "page"})
    assert_same(printed.getvalue(), shown)


_NUMBER = r"-?\d[\d,]*\.?\d*(?:e-?\d+)?"


def assert_same(printed: str, shown: str) -> None:
    """The same words, and the same numbers but for rounding, which machines do differently."""
    found, expected = (
        [_without_seconds(line) for line in text.splitlines() if not line.startswith("  seconds")]
        for text in (printed, shown)
    )
    words = [[re.sub(_NUMBER, "#", line) for line in lines] for lines in (found, expected)]
    assert words[0] == words[1]
    for one, other in zip(found, expected, strict=True):
        # Errors that are certified may be little more than rounding.
        factor = 3.0 if one.startswith(("  certificate", "  prior", "  quadrature")) else 1.005
        for number, wanted in zip(_numbers(one), _numbers(other), strict=True):
            assert number == wanted or 1 / factor <= number / wanted <= factor, one


def _numbers(line: str) -> list[float]:
    return [float(number.replace(",", "")) for number in re.findall(_NUMBER, line)]


def _without_seconds(line: str) -> str:
    """A line on an engine that was tried, without the time that it took."""
    trial = re.match(rf" +({'|'.join(ENGINES)}) +[-\d.–]+", line)
    return line if trial is None else trial.group()
