"""Checks of arguments. Each returns the value, and raises TypeError or ValueError with the name of the argument."""

from __future__ import annotations

import numbers
import operator
import os
import re
from collections.abc import Iterable
from typing import Any, TypeVar

T = TypeVar("T")

_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_TRAINER = re.compile(r"[A-Za-z0-9._-]{1,128}")
_ADDRESS = re.compile(r"(?:\[[^\[\]/\s]+\]|[^:\[\]/\s]+):([0-9]{1,5})")


def whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return a whole number as an int. It can be of NumPy or torch. ValueError: it is another value."""
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or (most is not None and number > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name}: expected a whole number {bounds}, found {value!r}")
    return number


def seconds(name: str, value: Any) -> float:
    """Return a number of seconds above 0."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"{name}: expected a number of seconds, found {value!r}")
    if not float(value) > 0:
        raise ValueError(f"{name}: expected more than 0 seconds, found {value}")
    return float(value)


def number(name: str, value: Any) -> float:
    """Return a number, also of a tensor or an array with one element."""
    try:
        if not isinstance(value, (str, bytes)):
            return float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError):
        pass
    raise TypeError(f"{name}: expected a number, found {value!r}")


def flag(name: str, value: Any) -> bool:
    """Return True or False. None is False, as in PyTorch."""
    try:
        if value is None or value in (True, False):
            return bool(value)
    except ValueError:  # an array
        pass
    raise TypeError(f"{name}: expected True or False, found {value!r}")


def functions(**named: object) -> None:
    """Refuse arguments that are neither None nor functions."""
    for name, value in named.items():
        if value is not None and not callable(value):
            raise TypeError(f"{name}: expected a function, found {value!r}")


def at_most_one(**named: object) -> None:
    """Refuse two arguments that are not None."""
    if all(value is not None for value in named.values()):
        raise ValueError(f"{', '.join(named)}: expected one of them, found both")


def instance(name: str, value: Any, kind: type[T], expected: str) -> T:
    """Return a value of a class."""
    if not isinstance(value, kind):
        raise TypeError(f"{name}: expected {expected}, found {value!r}")
    return value


def several(name: str, value: Iterable[T], expected: str) -> Iterable[T]:
    """Return a list or another iterable."""
    try:
        iter(value)
    except TypeError:
        raise TypeError(f"{name}: expected {expected}, found {value!r}") from None
    return value


def path(name: str, value: Any) -> str:
    """Return a path as text."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        raise TypeError(f"{name}: expected a path, found {value!r}")
    if not text:
        raise ValueError(f"{name}: expected a path, found {value!r}")
    return text


def paths(name: str, value: Any) -> list[str]:
    """Return the paths, globs and URLs of a dataset."""
    values = [value] if isinstance(value, (str, bytes, os.PathLike)) else value
    found = [path(name, v) for v in several(name, values, "a path, glob or URL, or a list of them")]
    if not found:
        raise ValueError(f"{name}: expected at least one path, found none")
    return found


def job(name: str, value: Any) -> str:
    """Return the name of a job."""
    if not _JOB.fullmatch(instance(name, value, str, "a name")):
        raise ValueError(
            f"{name}: expected a name of up to 128 letters, digits, '.', '_' and '-', which begins with a letter or digit, found {value!r}"
        )
    return str(value)


def trainer(name: str, value: Any) -> str:
    """Return the name of a trainer."""
    if not _TRAINER.fullmatch(instance(name, value, str, "a name")):
        raise ValueError(f"{name}: expected 1 to 128 letters, digits, '.', '_' and '-', found {value!r}")
    return str(value)


def address(name: str, value: Any) -> str:
    """Return `host:port`."""
    found = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if found is None or not 0 < int(found[1]) < 1 << 16:
        raise ValueError(f"{name}: expected host:port, found {value!r}")
    return str(value)
