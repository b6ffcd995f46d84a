"""Checks of arguments."""

from __future__ import annotations

import operator
from typing import Any


def whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return a whole number as an int. It can be of NumPy or torch. ValueError: it is another value."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or (most is not None and number > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name}: expected a whole number {bounds}, found {value!r}")
    return number


def functions(**named: object) -> None:
    """Refuse arguments that are neither None nor functions."""
    for name, value in named.items():
        if value is not None and not callable(value):
            raise TypeError(f"{name}: expected a function, found {value!r}")
