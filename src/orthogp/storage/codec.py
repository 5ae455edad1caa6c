"""Objects as records of a file: the registered name of a class, and what its constructor takes.

    {"$type": "Matern32", "variance": 1.2, "lengthscale": {"$numbers": [0.5]}, "fixed": []}

A class is registered with one line, `register(MyKernel)`, and needs no other description: names are
those of the constructor's parameters, values the attributes of the same names, and types those of
the annotations. A file can name registered classes only, so that loading runs no code but theirs.
"""

from __future__ import annotations

import inspect
import os
import types
import typing
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, NoReturn, TypeVar, Union

import jax
import numpy as np

from orthogp.errors import FileError, OrthogpError

Kind = TypeVar("Kind", bound=type)
Made = TypeVar("Made")

#: The entry of a record that names its class.
TYPE = "$type"
# The largest integer: larger ones are no counts, and not exact as floats.
_LARGEST = 2**53
# The largest depth of records within records: kernels within kernels are the deepest.
_MOST_DEPTH = 24


class RefusedError(FileError):
    """What is wrong with a value that a class was about to take, such as "must be positive"."""

    def __init__(self, what: str, name: str = "") -> None:
        super().__init__(what)
        self.what, self.name = what, name


class _Field(NamedTuple):
    hint: Any
    required: bool
    shape: tuple[str, ...] | None


class _Entry(NamedTuple):
    """How objects of a class are written and read."""

    name: str
    make: Callable[..., Any]
    fields: dict[str, _Field]
    keep: Callable[[Any], Mapping[str, Any]] | None
    infinite: frozenset[str]


_BY_NAME: dict[str, type] = {}
_BY_CLASS: dict[type, _Entry] = {}
_CHECKS: dict[type, Callable[[Any], None]] = {}


def register(
    kind: Kind,
    name: str | None = None,
    *,
    make: Callable[..., Any] | None = None,
    keep: Callable[[Any], Mapping[str, Any]] | None = None,
    infinite: tuple[str, ...] = (),
) -> Kind:
    """Let files hold objects of a class; also as a decorator, `@register`.

    Whoever loads the file registers the class first, under the same name.

    Parameters
    ----------
    kind : type
        A class whose constructor takes what attributes of the same names hold: dataclasses, named
        tuples, equinox modules, scikit-learn estimators and others that keep to the custom.
    name : str, optional
        What files call it: the name of the class unless given.
    make : callable, optional
        Makes an object of what a file holds, in place of the constructor. Its parameters and their
        annotations are what the file must hold; if it takes `**values`, those of the constructor
        too.
    keep : callable, optional
        Returns what `make` takes, by name, in place of the attributes.
    infinite : tuple of str
        The fields that may hold infinite numbers and NaN, which are refused elsewhere.
    """
    name = name or kind.__name__
    known = _BY_NAME.setdefault(name, kind)
    # A class may be defined again, as notebooks do.
    if (known.__module__, known.__qualname__) != (kind.__module__, kind.__qualname__):
        raise FileError(
            f"Files call another class {name} already, that of {known.__module__}: give this one "
            "another name, as in register(MyKernel, name='my-kernel')."
        )
    _BY_NAME[name] = kind
    fields = _fields(make or kind)
    if make is not None and _takes_any(make):
        fields = _fields(kind) | fields
    _BY_CLASS[kind] = _Entry(name, make or kind, fields, keep, frozenset(infinite))
    return kind


def registered_name(kind: type) -> str | None:
    """Return what files call a class, `None` if it is not registered."""
    return _BY_CLASS[kind].name if kind in _BY_CLASS else None


def check_every(base: type, check: Callable[[Any], None]) -> None:
    """Check all objects of a class, and of those derived from it, that are made from files."""
    _CHECKS[base] = check


def _fields(make: Any) -> dict[str, _Field]:
    """Return what a constructor or a function takes, with the types that it is annotated with."""
    signature = inspect.signature(make)
    hints = _hints(make.__init__) if isinstance(make, type) else {}
    # Fields know more than constructors, whose parameters a converter may widen.
    hints |= _hints(make)
    return {
        name: _Field(
            hints.get(name, Any), parameter.default is parameter.empty, _shape(hints.get(name))
        )
        for name, parameter in signature.parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD
    }


def _takes_any(make: Callable[..., Any]) -> bool:
    parameters = inspect.signature(make).parameters.values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def _hints(owner: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(owner, include_extras=True)
    except (NameError, TypeError, AttributeError):
        # Annotations that only a type checker can read.
        return {}


def _shape(hint: Any) -> tuple[str, ...] | None:
    """Return the shape of an array annotated as `Annotated[NDArray, "q p"]`, perhaps optional."""
    for arm in (hint, *typing.get_args(hint)):
        if typing.get_origin(arm) is Annotated and isinstance(arm.__metadata__[0], str):
            return tuple(arm.__metadata__[0].split())
    return None


def taken(kind: Callable[..., Made], source: Any, paths: Mapping[str, str], **given: Any) -> Made:
    """Return a record whose fields are attributes of an object, at `paths` if called otherwise."""
    names = (name for name in inspect.signature(kind).parameters if name not in given)
    held = {name: attrgetter(paths.get(name, name))(source) for name in names}
    return kind(**held, **given)


# ---------------------------------------------------------------------- writing


def encode(value: Any, where: str = "", owner: str = "") -> Any:
    """Return a value as a tree of JSON values and arrays; `FileError` if it is or holds code."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    entry = _BY_CLASS.get(type(value))
    if entry is not None:
        keep = entry.keep or (lambda own: {name: getattr(own, name) for name in entry.fields})
        kind = type(value).__name__
        held = {name: encode(own, f"{where}/{name}", kind) for name, own in keep(value).items()}
        return {TYPE: entry.name, **held}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return [encode(each, f"{where}/{i}", owner) for i, each in enumerate(value)]
    if isinstance(value, Mapping):
        return {str(key): encode(own, f"{where}/{key}", owner) for key, own in value.items()}
    if hasattr(value, "__array__") and not isinstance(value, type):
        array = np.asarray(value)
        if array.dtype.kind in "fiubc":
            return array
    what, kind = where.rpartition("/")[2] or "it", type(value).__name__
    if inspect.isroutine(value):
        within = f" of the class {owner}" if owner else ""
        raise FileError(
            f"A file holds no code, so it cannot hold {what}, a function{within}: write a class in "
            "its place, and register that by orthogp.storage.register."
        )
    raise FileError(
        f"A file holds no code, so it cannot hold {what}, of the class {kind}: register the class "
        f"by orthogp.storage.register({kind}), here and where the file is loaded, or set {what} to "
        "a number, a text or None before saving."
    )


# ---------------------------------------------------------------------- reading


@contextmanager
def decoding(path: str | os.PathLike[str]) -> Iterator[Decoder]:
    """Yield a decoder; every error of the body becomes a `FileError` about the file.

    The decoder checks types, the classes' constructors the rest; values that pass both and still
    make no model must not end in a traceback.
    """
    try:
        # Checks of finiteness find overflows; a user's class may make JAX arrays.
        with np.errstate(all="ignore"), jax.enable_x64(True):
            yield Decoder(str(path))
    except RefusedError as error:
        raise FileError(_sentence(str(path), error.name, error.what)) from error
    except FileError:
        raise
    except OrthogpError as error:
        raise FileError(f"{path} holds no valid model: {_one_line(error)}") from error
    except (MemoryError, RecursionError) as error:
        raise FileError(f"{path} holds a model that is too large for the memory.") from error
    except Exception as error:
        raise FileError(
            f"{path} holds no valid model ({type(error).__name__}: {_one_line(error)}): it is "
            "damaged or was not written by orthogp, so save it again."
        ) from error


class Decoder:
    """Makes objects of the records of a file, each checked against the type that is wanted."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._depth = 0

    def decode(self, node: Any, hint: Any, where: str = "", *, infinite: bool = False) -> Any:
        """Return the value of a node, which must be of the type that a hint names."""
        origin, arms = typing.get_origin(hint), typing.get_args(hint)
        if origin is Annotated:
            return self.decode(node, arms[0], where, infinite=infinite)
        if origin in (Union, types.UnionType):
            return self._either(node, arms, where, infinite)
        if origin is tuple:
            return self._tuple(node, arms, where, infinite)
        if origin is dict:
            values = self._record(node, where)
            return {
                name: self.decode(own, arms[1], f"{where}/{name}", infinite=infinite)
                for name, own in values.items()
            }
        if origin is np.ndarray:
            return self._array(node, typing.get_args(arms[1])[0], where, infinite)
        if hint in _SCALARS:
            return self._scalar(node, hint, where, infinite)
        if origin is Callable:
            self._fail(where, "is code, which no file holds")
        # Arrays of NumPy, of JAX, or as jaxtyping annotates them.
        if hint in (np.ndarray, jax.Array) or hasattr(hint, "array_type"):
            return self._array(node, Any, where, infinite)
        if isinstance(hint, type) and hint is not object:
            if any(issubclass(kind, hint) for kind in _BY_CLASS):
                return self._object(node, hint, where)
        return self._anything(node, where, infinite)

    def _either(self, node: Any, arms: tuple[Any, ...], where: str, infinite: bool) -> Any:
        """Return the value as the first of some types that it can be of."""
        if node is None and type(None) in arms:
            return None
        kind = _BY_NAME.get(str(node.get(TYPE))) if isinstance(node, dict) else None
        if kind is not None:
            # The complaint of the right class says more than that the node is of no other class.
            fitting = (own for own in arms if isinstance(own, type) and issubclass(kind, own))
            arms = tuple(fitting) or arms
        refusal: FileError | None = None
        for arm in arms:
            try:
                return self.decode(node, arm, where, infinite=infinite)
            except FileError as error:
                refusal = refusal or error
        assert refusal is not None
        raise refusal

    def _scalar(self, node: Any, hint: Any, where: str, infinite: bool) -> Any:
        if hint is float and type(node) in (int, float):
            try:
                number = float(node)
            except OverflowError:
                self._fail(where, "must be a number, got one too large")
            if not infinite and not np.isfinite(number):
                self._fail(where, f"must be finite, got {number}")
            return number
        # Not `isinstance`, for which true is a whole number.
        if hint is str and type(node) is str:
            return printable(node)
        if type(node) is not hint or (hint is int and abs(node) > _LARGEST):
            self._fail(where, f"must be {_SCALARS[hint]}, got {_short(node)}")
        return node

    def _tuple(self, node: Any, arms: tuple[Any, ...], where: str, infinite: bool) -> Any:
        if isinstance(node, np.ndarray) and node.ndim:
            # Tuples of numbers were written as arrays once.
            node = node.tolist()
        if not isinstance(node, list):
            self._fail(where, f"must be a list, got {_short(node)}")
        if len(arms) == 2 and arms[1] is Ellipsis:
            arms = (arms[0],) * len(node)
        if len(arms) != len(node):
            self._fail(where, f"must be a list of {len(arms)} values, got {len(node)}")
        return tuple(
            self.decode(own, arm, f"{where}/{i}", infinite=infinite)
            for i, (own, arm) in enumerate(zip(node, arms, strict=True))
        )

    def _array(self, node: Any, dtype: Any, where: str, infinite: bool) -> Any:
        array = node if isinstance(node, np.ndarray) else _as_array(node)
        if array is not None and dtype is np.float64 and array.dtype == np.int64 and array.size:
            # JSON does not tell 1.0 from 1 for every writer.
            array = array.astype(np.float64) if array.ndim <= 1 else array
        if array is None or (dtype is not Any and array.dtype != dtype):
            shown = "numbers" if dtype is Any else f"type {np.dtype(dtype).name}"
            self._fail(where, f"must be an array of {shown}, got {_short(node)}")
        self._check_finite(array, where, infinite)
        return array

    def _object(self, node: Any, hint: type, where: str) -> Any:
        """Return an object of a registered class, or of one derived from it."""
        values = dict(self._record(node, where))
        if TYPE in values:
            name = values.pop(TYPE)
            kind = _BY_NAME.get(name) if isinstance(name, str) else None
            if kind is None:
                self._fail(
                    where,
                    f"is of a class {_short(name)} that is not known here, register it first by "
                    "orthogp.storage.register",
                )
        else:
            kind = hint
        if kind not in _BY_CLASS or not issubclass(kind, hint):
            self._fail(where, f"must be a {hint.__name__}, got {_short(values.get(TYPE, kind))}")
        entry = _BY_CLASS[kind]
        if self._depth >= _MOST_DEPTH:
            self._fail(where, f"must be nested at most {_MOST_DEPTH} deep")
        self._depth += 1
        held = {}
        for name, field in entry.fields.items():
            if name in values:
                own, place = values.pop(name), f"{where}/{name}"
                infinite = name in entry.infinite
                held[name] = self.decode(own, field.hint, place, infinite=infinite)
            elif field.required:
                self._fail(f"{where}/{name}", "is missing")
        if values:
            self._fail(f"{where}/{_short(next(iter(values)))}", f"is no part of a {entry.name}")
        self._depth -= 1
        try:
            _check_shapes(entry, held)
            made = entry.make(**held)
            for check in (own for base, own in _CHECKS.items() if isinstance(made, base)):
                check(made)
        except RefusedError as error:
            self._fail(f"{where}/{error.name}" if error.name else where, error.what)
        return made

    def _anything(self, node: Any, where: str, infinite: bool) -> Any:
        if isinstance(node, list):
            return tuple(
                self.decode(own, Any, f"{where}/{i}", infinite=infinite)
                for i, own in enumerate(node)
            )
        if isinstance(node, dict):
            return self._object(node, object, where)
        if isinstance(node, np.ndarray):
            self._check_finite(node, where, infinite)
            return node
        if isinstance(node, float):
            return self._scalar(node, float, where, infinite)
        return node

    def _record(self, node: Any, where: str) -> dict[str, Any]:
        if not isinstance(node, dict):
            self._fail(where, f"must be a record of named values, got {_short(node)}")
        return node

    def _check_finite(self, array: Any, where: str, infinite: bool) -> None:
        if not infinite and array.dtype.kind in "fc" and not np.isfinite(array).all():
            self._fail(where, "holds numbers that are not finite")

    def _fail(self, where: str, what: str) -> NoReturn:
        raise FileError(_sentence(self._source, where, what))


_SCALARS: dict[Any, str] = {
    bool: "true or false",
    int: f"a whole number up to {_LARGEST}",
    float: "a number",
    str: "a text",
    type(None): "null",
}


def _check_shapes(entry: _Entry, held: dict[str, Any]) -> None:
    """Raise `RefusedError` unless arrays have their shapes, each letter standing for one length."""
    sizes: dict[str, int] = {}
    for name, value in held.items():
        shape = entry.fields[name].shape
        if shape is None or value is None:
            continue
        if value.ndim != len(shape) or any(
            sizes.setdefault(letter, size) != size
            for letter, size in zip(shape, value.shape, strict=True)
        ):
            wanted = ", ".join(str(sizes.get(letter, letter)) for letter in shape)
            raise RefusedError(f"must have shape ({wanted}), got {value.shape}", name)


def _as_array(node: Any) -> Any:
    """Return a list of numbers, or of equally long lists of numbers, as an array, else `None`."""
    flat = node if isinstance(node, list) else [node]
    if flat and all(isinstance(own, list) for own in flat):
        rows = [_as_array(own) for own in flat]
        if any(own is None or own.shape != rows[0].shape for own in rows):
            return None
        return np.stack(rows)
    if not all(type(own) in (int, float) for own in flat):
        return None
    whole = bool(flat) and all(type(own) is int for own in flat)
    try:
        return np.array(node, dtype=np.int64 if whole else np.float64)
    except OverflowError:
        return None


def printable(text: str) -> str:
    """Return a text without control characters, by which a file could speak to a terminal."""
    return "".join(char for char in text if char in "\n\t" or unicodedata.category(char) != "Cc")


def _sentence(source: str, where: str, what: str) -> str:
    return (
        f"{source} cannot be read: {where.strip('/') or 'the content'} {what}; it is damaged or "
        "was not written by orthogp, so save it again."
    )


def _short(value: object) -> str:
    text = repr(value) if isinstance(value, str | int | float | None) else type(value).__name__
    return text if len(text) <= 40 else text[:37] + "..."


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or "no details"
