"""Versions of the package and of the program in it."""

from __future__ import annotations

import importlib
import importlib.util

MASTER = ""  # a checkout: any version of the program
if importlib.util.find_spec("trainmaster._build"):  # a wheel
    MASTER = importlib.import_module("trainmaster._build").MASTER

VERSION = "0.1.0"
