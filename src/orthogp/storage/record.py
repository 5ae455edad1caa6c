"""What a file holds, asked for by name: each question says what it takes, and is refused if not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import FileError

Value = TypeVar("Value")
Kind = Literal["float", "int", "bool", "complex"]

_TYPES: dict[str, type] = {
    "float": np.float64,
    "int": np.int64,
    "bool": np.bool_,
    "complex": np.complex128,
}
# Integers beyond are no counts, and no longer exact as floats.
_LARGEST = 2**53


class Record:
    """Named values of a file, checked as they are asked for.

    Parameters
    ----------
    values : mapping
        Names to JSON values, in which arrays may stand.
    source : str
        The file, for messages.
    where : str
        Where in the file the record stands.
    """

    def __init__(self, values: object, source: str, where: str = "") -> None:
        self.source = source
        self.where = where
        if not isinstance(values, Mapping):
            self.fail("must be a record of named values")
        self._values = values

    def fail(self, what: str, name: str = "") -> NoReturn:
        """Raise `FileError`: what is named is not `what`."""
        path = "/".join(part for part in (self.where, name) if part) or "the content"
        raise FileError(
            f"{self.source} cannot be read: {path} {what}; it is damaged or was not written by "
            "orthogp, so save it again."
        )

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    # ------------------------------------------------------------------ values

    def value(self, name: str) -> Any:
        """Return any value."""
        if name not in self._values:
            self.fail("is missing", name)
        return self._values[name]

    def maybe(self, name: str, question: Callable[..., Value], *args: Any, **kw: Any) -> Any:
        """Return the answer to a question such as `record.number`, `None` if there is no value."""
        return question(name, *args, **kw) if name in self else None

    def text(self, name: str, among: tuple[str, ...] | None = None) -> str:
        """Return a string."""
        value = self.value(name)
        if not isinstance(value, str) or (among is not None and value not in among):
            known = "a text" if among is None else f"one of {', '.join(among)}"
            self.fail(f"must be {known}, got {_short(value)}", name)
        return value

    def texts(self, name: str) -> list[str]:
        """Return a list of strings."""
        value = self.value(name)
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            self.fail("must be a list of texts", name)
        return value

    def flag(self, name: str) -> bool:
        """Return true or false."""
        value = self.value(name)
        if not isinstance(value, bool):
            self.fail(f"must be true or false, got {_short(value)}", name)
        return value

    def integer(self, name: str, *, least: int = 0, most: int = _LARGEST) -> int:
        """Return a whole number between two limits."""
        value = self.value(name)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or not least <= value <= most:
            self.fail(f"must be a whole number from {least} to {most}, got {_short(value)}", name)
        return value

    def integers(self, name: str, *, least: int = 0, most: int = _LARGEST) -> tuple[int, ...]:
        """Return a list of whole numbers between two limits."""
        value = self.value(name)
        if not isinstance(value, list) or not all(
            isinstance(i, int) and not isinstance(i, bool) and least <= i <= most for i in value
        ):
            self.fail(f"must be a list of whole numbers from {least} to {most}", name)
        return tuple(value)

    def number(self, name: str, *, least: float | None = None, finite: bool = True) -> float:
        """Return a number, at least `least` if that is given."""
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail(f"must be a number, got {_short(value)}", name)
        try:
            number = float(value)
        except OverflowError:
            self.fail("must be a number, got one too large", name)
        if finite and not np.isfinite(number):
            self.fail(f"must be finite, got {number}", name)
        if least is not None and not number >= least:
            self.fail(f"must be at least {least:g}, got {number:g}", name)
        return number

    def positive(self, name: str) -> float:
        """Return a finite number > 0."""
        number = self.number(name)
        if number <= 0:
            self.fail(f"must be positive, got {number:g}", name)
        return number

    # ------------------------------------------------------------------ arrays

    def array(
        self, name: str, kind: Kind, shape: tuple[int | None, ...], *, finite: bool = True
    ) -> NDArray[Any]:
        """Return an array of that type and shape; `None` in the shape is any length."""
        value = self.value(name)
        dtype = _TYPES[kind]
        if not isinstance(value, np.ndarray) or value.dtype != dtype:
            self.fail(f"must be an array of type {kind}", name)
        fits = value.ndim == len(shape) and all(
            wanted in (None, got) for wanted, got in zip(shape, value.shape, strict=True)
        )
        if not fits:
            shown = ", ".join("any" if n is None else str(n) for n in shape)
            self.fail(f"must have shape ({shown}), got {value.shape}", name)
        if finite and value.dtype.kind in "fc" and not np.isfinite(value).all():
            self.fail("holds numbers that are not finite", name)
        return value

    def vector(self, name: str, *, size: int | None = None, finite: bool = True) -> NDArray[Any]:
        """Return a list of numbers as a vector of floats, without NaN."""
        value = self.value(name)
        numbers = isinstance(value, list) and all(
            isinstance(entry, int | float) and not isinstance(entry, bool) for entry in value
        )
        if not numbers or (size is not None and len(value) != size):
            count = "a list of" if size is None else f"a list of {size}"
            self.fail(f"must be {count} numbers", name)
        try:
            vector = np.array(value, dtype=np.float64)
        except OverflowError:
            self.fail("holds a number that is too large", name)
        if np.isnan(vector).any() or (finite and not np.isfinite(vector).all()):
            self.fail("holds numbers that are not finite", name)
        return vector

    # ------------------------------------------------------------------ records

    def record(self, name: str) -> Record:
        """Return a record inside this one."""
        return Record(self.value(name), self.source, self._inside(name))

    def records(self, name: str, *, count: int | None = None) -> list[Record]:
        """Return a list of records."""
        value = self.value(name)
        if not isinstance(value, list) or (count is not None and len(value) != count):
            size = "" if count is None else f"{count} "
            self.fail(f"must be a list of {size}records", name)
        return [
            Record(entry, self.source, self._inside(f"{name}/{i}")) for i, entry in enumerate(value)
        ]

    def _inside(self, name: str) -> str:
        return f"{self.where}/{name}" if self.where else name


def _short(value: object) -> str:
    text = repr(value) if isinstance(value, str | int | float | None) else type(value).__name__
    return text if len(text) <= 40 else text[:37] + "..."
