"""The shape of the package: where imports may point, what is public, what is documented."""

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import orthogp

ROOT = Path(orthogp.__file__).resolve().parent

# What each part may import of orthogp. Data flow from left to right; imports point to the left.
# Parts that are not named here stand at the right end, and may import all that is named.
ORDER = (
    "errors",
    "rows",
    "persistence",
    "precision",
    "kernels",
    "statistics",
    "features",
    "inference",
    "learning",
    "exact",
)
ALLOWED = {part: set(ORDER[:i]) for i, part in enumerate(ORDER)} | {
    # Of files, only the cluster.
    "statistics": {"errors", "files", "persistence", "rows"},
    "neighbours": set(ORDER),
    "fields": set(ORDER),
    "likelihoods": set(ORDER),
    "stochastic": set(ORDER),
    "classification": {*ORDER, "likelihoods", "stochastic"},
}
# Files of a part that stand further to the right than the rest of it.
FURTHER_RIGHT = {
    # An estimator, which needs what estimators share.
    "stochastic/minibatch.py": "regressor",
    "likelihoods/intensity.py": "regressor",
}
# Packages that only one file may import.
ONE_FILE_ONLY = {
    "finufft": "statistics/nufft.py",
    "matplotlib": "report/plots.py",
    "jinja2": "report/page.py",
    "dask": "files/cluster.py",
    "distributed": "files/cluster.py",
    "pyarrow": "files/arrow.py",
    "xarray": "maps/formats.py",
    "rasterio": "maps/formats.py",
    "geopandas": "maps/formats.py",
    "shapely": "maps/formats.py",
}

# The number of lines of the longest file.
LONGEST_FILE = 700
# The largest number of files in a folder.
MOST_FILES = 17

FILES = sorted(ROOT.rglob("*.py"))
MODULES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text("utf-8")) for path in FILES}


def part_of(file: str) -> str:
    """The subpackage or top-level module that a file belongs to."""
    return FURTHER_RIGHT.get(file, file.split("/")[0].removesuffix(".py"))


def only_for_type_checkers(tree: ast.Module) -> set[ast.AST]:
    """Every node under `if TYPE_CHECKING:`."""
    return {
        node
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If)
        and isinstance(branch.test, ast.Name)
        and branch.test.id == "TYPE_CHECKING"
        for statement in branch.body
        for node in ast.walk(statement)
    }


@cache
def imports(file: str) -> tuple[str, ...]:
    """The dotted names that a file imports when it runs, also inside functions."""
    tree = MODULES[file]
    names: list[str] = []
    skipped = only_for_type_checkers(tree)
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} has a relative import in line {node.lineno}"
            assert node.module is not None
            if node.module == "orthogp":
                names += [f"orthogp.{alias.name}" for alias in node.names]
            else:
                names.append(node.module)
    return tuple(names)


def test_there_is_something_to_look_at() -> None:
    assert len(FILES) > 20
    assert {"errors.py", "kernels/base.py", "regressor.py"} <= MODULES.keys()
    assert "orthogp.kernels.base" in set(imports("kernels/stationary.py"))


@pytest.mark.parametrize("file", sorted(MODULES))
def test_imports_point_to_the_left_of_the_data_flow(file: str) -> None:
    part = part_of(file)
    allowed = ALLOWED.get(part)
    if allowed is None:
        return
    used = {name.split(".")[1] for name in imports(file) if name.startswith("orthogp.")}
    assert used <= allowed | {part}, f"{file} imports {sorted(used - allowed - {part})}"


def test_nothing_but_the_package_and_the_command_line_needs_the_estimators() -> None:
    users = {
        part_of(file)
        for file in MODULES
        # A comparison fits models; all else in report shows one that is given.
        if file != "report/comparison.py"
        if any(name.startswith("orthogp.regressor") for name in imports(file))
    }
    assert not users & {*ALLOWED, "validation", "report"}


def test_modules_import_each_other_in_no_circle() -> None:
    def module_file(name: str) -> str | None:
        stem = "/".join(name.split(".")[1:])
        for candidate in (f"{stem}.py", f"{stem}/__init__.py"):
            if candidate in MODULES:
                return candidate
        return None

    graph = {
        file: {
            target
            for name in imports(file)
            if name.startswith("orthogp.") and (target := module_file(name)) and target != file
        }
        for file in MODULES
    }
    # A package's __init__ imports its modules, which import from their siblings, not from it.
    finished: set[str] = set()

    def visit(file: str, path: tuple[str, ...]) -> None:
        assert file not in path, " → ".join((*path[path.index(file) :], file))
        if file not in finished:
            for target in sorted(graph[file]):
                visit(target, (*path, file))
            finished.add(file)

    for file in graph:
        visit(file, ())


@pytest.mark.parametrize(("package", "home"), ONE_FILE_ONLY.items())
def test_optional_and_foreign_packages_have_one_home(package: str, home: str) -> None:
    users = {file for file in MODULES if any(n.split(".")[0] == package for n in imports(file))}
    assert users <= {home}


@pytest.mark.parametrize("file", sorted(MODULES))
def test_nothing_private_of_other_packages_is_imported(file: str) -> None:
    names = [name for name in imports(file) if not name.startswith(("orthogp", "__future__"))]
    assert not [name for name in names if any(part.startswith("_") for part in name.split("."))]


def test_finufft_is_used_at_all() -> None:
    assert "finufft" in set(imports("statistics/nufft.py"))


def test_public_names_are_these() -> None:
    assert sorted(orthogp.__all__) == [
        "CrossValidation",
        "DriftRegressor",
        "FeatureError",
        "FileError",
        "FitWarning",
        "FourierStatistics",
        "FrequencyLattice",
        "GPClassifier",
        "GPIntensity",
        "GPRegressor",
        "GapTuning",
        "InputError",
        "KernelError",
        "LatticeMismatchError",
        "OrthogpError",
        "OutOfDomainWarning",
        "PrecisionError",
        "RowGaps",
        "StochasticGPRegressor",
        "TrainingSettings",
        "cross_validate",
        "keep_compiled",
        "map_table",
        "mirrored_gaps",
        "tune_for_gaps",
        "write_map",
    ]
    for name in orthogp.__all__:
        assert hasattr(orthogp, name)


def test_public_names_of_the_subpackages_are_these() -> None:
    from orthogp import features, inference, kernels, statistics, stochastic

    def public(package: ModuleType) -> set[str]:
        names = vars(package)
        return {n for n in names if n[0] != "_" and not isinstance(names[n], ModuleType)}

    assert public(kernels) == {
        "KERNEL_NAMES",
        "RBF",
        "Categorical",
        "Cyclic",
        "Gamma",
        "Kernel",
        "LogNormal",
        "Matern",
        "Matern12",
        "Matern32",
        "Matern52",
        "Noise",
        "On",
        "OnSphere",
        "Product",
        "QuasiPeriodic",
        "RationalQuadratic",
        "Rotated",
        "SpectralKernel",
        "SpectralMixture",
        "Sum",
        "additive",
        "components",
        "from_sklearn",
        "penalised_lengthscale",
        "penalised_variance",
        "resolve_kernel",
        "seasonal",
    }
    assert public(features) == {
        "EXACT",
        "FEATURE_NAMES",
        "Additive",
        "AdditiveLattice",
        "Box",
        "Eigenfunction",
        "Features",
        "Harmonic",
        "Hermite",
        "InducingPoints",
        "Lattice",
        "MassSeries",
        "MeanPrior",
        "PointFeatures",
        "Polynomial",
        "RandomFourier",
        "SeriesFeatures",
        "SpectralFeatures",
        "Trig",
        "TwoBlock",
        "VariationalFourier",
        "feature_names",
        "resolve_features",
        "takes_any_columns",
    }
    assert set(statistics.__all__) == {
        "AdditiveStatistics",
        "ComponentLattice",
        "FourierStatistics",
        "FrequencyLattice",
        "RealSums",
        "Statistics",
    }
    assert {"Bound", "Certificate", "Domain", "Moments", "Posterior"} <= set(inference.__all__)
    assert set(stochastic.__all__) == {
        "MeanField",
        "SparseVariational",
        "StochasticFit",
        "StochasticModel",
        "SubsampledBound",
        "TrainingSettings",
        "svgp_objective",
        "train_stochastic",
    }
    for package in (statistics, inference, stochastic):
        for name in package.__all__:
            assert hasattr(package, name)


def public_definitions(
    body: list[ast.stmt], prefix: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]]:
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if node.name.startswith("_"):
            continue
        yield prefix + node.name, node
        if isinstance(node, ast.ClassDef):
            yield from public_definitions(node.body, f"{prefix}{node.name}.")


def test_files_are_short() -> None:
    lengths = {file: len((ROOT / file).read_text("utf-8").splitlines()) for file in MODULES}
    assert not {file: length for file, length in lengths.items() if length > LONGEST_FILE}


def test_folders_are_small() -> None:
    sizes = Counter(path.parent.relative_to(ROOT).as_posix() for path in FILES)
    assert not {folder: size for folder, size in sizes.items() if size > MOST_FILES}


@pytest.mark.parametrize("file", sorted(MODULES))
def test_everything_public_has_a_docstring(file: str) -> None:
    tree = MODULES[file]
    missing = [] if ast.get_docstring(tree) else ["the module itself"]
    missing += [name for name, node in public_definitions(tree.body) if not ast.get_docstring(node)]
    assert not missing


def test_errors_are_a_tree_under_one_root() -> None:
    from orthogp import errors

    raised = {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, BaseException)
    }
    for name, value in raised.items():
        root = UserWarning if name.endswith("Warning") else orthogp.OrthogpError
        assert issubclass(value, root)
        assert name in str(errors.__doc__)
        assert name in orthogp.__all__
    assert issubclass(orthogp.InputError, ValueError)
    assert issubclass(orthogp.KernelError, ValueError)
    assert issubclass(orthogp.PrecisionError, ArithmeticError)


def test_oracles_import_nothing_from_orthogp() -> None:
    tree = ast.parse((Path(__file__).parent / "oracles.py").read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert not any(alias.name.startswith("orthogp") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not (node.module or "").startswith(("orthogp", "tests"))
