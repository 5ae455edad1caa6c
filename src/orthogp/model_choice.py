"""What a fit begins with: the kernel on so many columns, the sums of the rows, starting values."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import FeatureError, InputError
from orthogp.exact.row_starts import starts_for_rows
from orthogp.features import EXACT, Features, resolve_features, takes_any_columns
from orthogp.inference import Domain
from orthogp.kernels import Kernel
from orthogp.kernels.convert import KernelChoice
from orthogp.kernels.cyclic import categorical_columns
from orthogp.kernels.sphere import Embedding, is_on_sphere, latitudes
from orthogp.kernels.terms import (
    ADDITIVE_PREFIX,
    is_additive,
    join_terms,
    resolve_additive,
    split_terms,
)
from orthogp.learning.layout import Setup
from orthogp.learning.problem import Start
from orthogp.learning.sketches import Sketch
from orthogp.learning.starts import additive_starts, starts_for_kernel, starts_for_name
from orthogp.rows import Rows, Units
from orthogp.statistics.lattice import MAX_DIMS
from orthogp.statistics.nufft import available_threads
from orthogp.validation import check_columns, check_domain, refuse_sphere


class Model(NamedTuple):
    """What an estimator's `kernel` argument stands for, given the number of columns.

    Attributes
    ----------
    choice : KernelChoice
        The kernel, its columns counted among those of X.
    columns : (d,)
        The columns that it sees.
    additive : bool
        Whether each of its terms has a lattice of its own.
    """

    choice: KernelChoice
    columns: NDArray[np.int64]
    additive: bool

    @property
    def seen(self) -> Kernel:
        """The kernel with its columns counted among those that it sees."""
        renamed = {int(column): i for i, column in enumerate(self.columns)}
        return self.choice.kernel.with_columns(renamed)

    @property
    def embedding(self) -> Embedding | None:
        """Where points of spheres lie in space, if the kernel acts on any."""
        return Embedding.of(self.seen, len(self.columns))

    @property
    def inner(self) -> KernelChoice:
        """The kernel as engines see it: on the columns of `see`."""
        embedding = self.embedding
        kernel = self.seen if embedding is None else embedding.kernel(self.seen)
        return self.choice._replace(kernel=kernel)

    def see(self, rows: Rows) -> Rows:
        """Return the rows as engines see them: of the kernel's columns, spheres in space."""
        seen = rows.on(self.columns)
        check_categories(self.seen, seen.X, self.columns)
        check_latitudes(self.seen, seen.X, self.columns)
        embedding = self.embedding
        return seen if embedding is None else seen._replace(X=embedding.rows(seen.X))

    def as_given(self, kernel: Kernel) -> Kernel:
        """Return an engine's kernel as the user wrote it, on the columns of X."""
        if self.embedding is None:
            return kernel.with_columns(dict(enumerate(self.columns.tolist())))
        return self.choice.kernel.with_primitives(own for own, _ in kernel.primitives())


def choose_model(kernel: Any, features: Any, num_columns: int, *, joint: bool = False) -> Model:
    """Return the model that a `kernel` argument stands for, on rows of so many columns.

    Parameters
    ----------
    joint : bool
        For engines whose kernels may act on any number of columns at once: a plain name is then one
        kernel on all of them. Features that take any number of columns need not ask.
    """
    if joint:
        choice = resolve_additive(kernel, num_columns, num_columns)
        choice.kernel.check(num_columns)
        columns = np.array(choice.kernel.columns(num_columns))
        return Model(choice, columns, additive=False)
    if features not in ("auto", "lattice", EXACT):
        whole = choose_model(kernel, features, num_columns, joint=True)
        if len(whole.columns) > MAX_DIMS and takes_any_columns(features):
            return whole
        if not is_additive(whole.choice.kernel, num_columns, MAX_DIMS):
            _check_few_columns(features, len(whole.columns))
    choice = resolve_additive(kernel, num_columns, MAX_DIMS)
    refuse_sphere(choice.kernel)
    named = isinstance(kernel, str) and kernel.startswith(ADDITIVE_PREFIX)
    choice.kernel.check(num_columns)
    if not (named or is_additive(choice.kernel, num_columns, MAX_DIMS)):
        return Model(choice, check_columns(choice.kernel, num_columns), additive=False)
    if features not in ("auto", "lattice"):
        raise FeatureError(
            "Models with a lattice for each term of their kernel have lattice features: use "
            'features="auto".'
        )
    terms = split_terms(choice.kernel, num_columns)
    for term in terms:
        if len(term.columns) > MAX_DIMS:
            raise InputError(
                f"A term of the kernel acts on {len(term.columns)} columns {term.columns}, but can "
                f"act on at most {MAX_DIMS} jointly: split it into a sum, for example of "
                "kernel.on(0) and kernel.on(1, 2)."
            )
    joined = join_terms(terms)
    columns = np.array(joined.columns(num_columns))
    return Model(choice._replace(kernel=joined), columns, additive=True)


def _check_few_columns(features: str | Features, num_columns: int) -> None:
    """Raise `FeatureError` if there are more columns than a family that needs a lattice takes."""
    if num_columns > MAX_DIMS:
        family = resolve_features(features, "auto", 1)
        raise FeatureError(
            f"{type(family).__name__} features act on at most {MAX_DIMS} columns jointly, got "
            f'{num_columns}: use "inducing-points" or "random-fourier", which take any number, or '
            'features="auto", or a kernel on fewer columns such as kernel.on(0, 2).'
        )


def begin_sketch(
    estimator: Any,
    rows: Rows,
    model: Model,
    extent: Domain | None = None,
    total_rows: int | None = None,
) -> Sketch:
    """Return the sums of the first rows, on lattices that suit them.

    Parameters
    ----------
    extent, total_rows
        The box around all rows in the columns that the kernel sees, and how many there are, if
        more are to come.
    """
    seen, choice = model.see(rows), model.inner
    domain = check_domain(estimator.domain, len(model.columns))
    domain = extent if domain is None else domain.with_box(extent)
    mean = "constant" if estimator.mean == "auto" else estimator.mean
    number = estimator.num_features
    setup = Setup(
        mean=mean,
        domain=domain,
        kernel=None if choice.from_name else choice.kernel,
        terms=split_terms(choice.kernel, len(model.columns)) if model.additive else (),
        learn=estimator.learn,
        repeats=estimator.weights == "repeats",
        wrap_tolerance=estimator.wrap_tolerance,
        most_features=estimator.max_features if number == "auto" else int(number),
        num_threads=available_threads(estimator.n_jobs),
        total_rows=total_rows or 0,
    )
    return Sketch.begin(seen, setup)


def called(estimator: Any, columns: NDArray[np.int64]) -> tuple[int, ...] | tuple[str, ...]:
    """Return what a user calls columns of X: by the names of a data frame, or their numbers."""
    names = getattr(estimator, "feature_names_in_", None)
    if names is None:
        return tuple(columns.tolist())
    return tuple(str(names[c]) for c in columns)


def check_categories(kernel: Kernel, X: NDArray, columns: NDArray[np.int64]) -> None:
    """Raise `InputError` unless columns of categories hold their codes.

    X has the columns that the kernel sees, `columns` their numbers for the user.
    """
    for column, levels in categorical_columns(kernel, X.shape[1]):
        values = X[:, column]
        bad = (values < 0) | (values > levels - 1) | (values != np.round(values))
        if bad.any():
            raise InputError(
                f"Column {columns[column]} is categorical with codes 0 to {levels - 1}, but "
                f"{np.count_nonzero(bad)} of its values are others, such as "
                f"{values[np.argmax(bad)]:g}: encode its categories as whole numbers from 0, and "
                "give Categorical as many levels."
            )


def check_latitudes(kernel: Kernel, X: NDArray, columns: NDArray[np.int64]) -> None:
    """Raise `InputError` unless columns of latitudes hold some.

    X has the columns that the kernel sees, `columns` their numbers for the user.
    """
    for column in latitudes(kernel):
        bad = np.abs(X[:, column]) > 90
        if bad.any():
            raise InputError(
                f"Column {columns[column]} holds latitudes in degrees, but "
                f"{np.count_nonzero(bad)} of {len(X)} rows are beyond ±90, such as "
                f"{X[np.argmax(bad), column]:g}: name longitude first, then latitude, in "
                "kernel.on_sphere(0, 1)."
            )


def starting_values(
    estimator: Any,
    sketch: Sketch,
    units: Units,
    choice: KernelChoice,
    previous: Start | None,
    rows: Rows | None = None,
) -> list[Start]:
    """Return the hyperparameters to start from, in standardised units.

    Those of a kernel given by name are read off the `rows` if these are given, else off the sums.
    """
    unit = units.scale[0] ** 2
    noise = choice.noise_variance if estimator.noise_variance is None else estimator.noise_variance
    noise = None if noise is None else noise / unit
    statistics = None if rows is not None else sketch.standardised(units)
    if rows is not None and choice.from_name:
        y = (rows.y - units.offset) / units.scale
        starts = starts_for_rows(choice.kernel, rows.X, y, noise)
    elif not sketch.joint and statistics is not None and (estimator.learn or choice.from_name):
        scaled = choice.kernel if choice.from_name else choice.kernel.scaled(1 / unit)
        # The more parameters, the less can a user's guess be relied on.
        starts = additive_starts(scaled, statistics, sketch.width, noise)
        if not choice.from_name:
            starts = [*starts_for_kernel(scaled, noise), *starts]
    elif choice.from_name and statistics is not None:
        starts = starts_for_name(choice.kernel, statistics, sketch.width)
        if noise is not None:
            starts = [Start(start.kernel, noise, start.shape) for start in starts]
    elif estimator.learn:
        scaled = choice.kernel.scaled(1 / unit)
        starts = starts_for_kernel(scaled, noise)
        if rows is not None and is_on_sphere(scaled):
            # A lengthscale of one, which kernels have if none is given, is no guess in kilometres.
            y = (rows.y - units.offset) / units.scale
            starts += starts_for_rows(scaled, rows.X, y, noise)
    else:
        starts = [Start(choice.kernel.scaled(1 / unit), 1e-2 if noise is None else noise)]
    if previous is None or not estimator.learn or estimator._sketch.units(shared=True).constant:
        # From a constant nothing was learned, not even a scale.
        return starts
    ratio = estimator.target_scale_[0] ** 2 / unit
    kernel, noise = previous.kernel.scaled(ratio), previous.noise_variance * ratio
    # A shape of its own; first, for the fit to go on from if it has seen most of the rows.
    return [Start(kernel, noise, -1, starts[0].from_user, previous.rows), *starts]
