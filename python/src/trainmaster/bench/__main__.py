"""Command line of the benchmarks: `python -m trainmaster.bench`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from typing import Any

from .measure import MEASUREMENTS, Figure
from .processes import machine

_EXAMPLES = """examples:
  python -m trainmaster.bench                                # a table, in about a minute
  python -m trainmaster.bench -o json > bench.json
  python -m trainmaster.bench --only agent --only killed --runs 10

Each figure comes with a limit. docs/benchmarks-python.md in the source has figures and explains them. The program is that of the package,
or TRAINMASTER_BIN."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m trainmaster.bench",
        description="Measure this package on this machine, with a master, parameter servers and trainers of its own on the loopback interface.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    lines = [f"{name}: {(f.__doc__ or '').splitlines()[0]}" for name, f in MEASUREMENTS.items()]
    parser.add_argument(
        "--only", metavar="NAME", action="append", choices=list(MEASUREMENTS), help="measure this only; can be repeated. " + " ".join(lines)
    )
    parser.add_argument("--runs", metavar="N", type=int, default=5, help="runs of each measurement, whose median counts (5)")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table", help="format (table)")
    parser.add_argument("--dir", help="directory for the records, removed afterwards (that of temporary files)")
    arguments = parser.parse_args()
    if arguments.runs < 1:
        parser.error(f"--runs: expected at least 1, found {arguments.runs}")
    return arguments


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _meets(f: Figure, bound: float) -> bool:
    return f.value <= bound if f.is_most else f.value >= bound


def _row(f: Figure) -> dict[str, Any]:
    bounds = {"limit": f.limit, "aim": f.aim, "meets_limit": _meets(f, f.limit), "meets_aim": _meets(f, f.aim)}
    return {"name": f.name, "value": float(f"{f.value:.4g}"), "unit": f.unit, **bounds, "detail": f.detail}


def _text(detail: dict[str, Any]) -> str:
    return ", ".join(f"{k}: {_text(v) if isinstance(v, dict) else v}".replace("_", " ") for k, v in detail.items())


def _print_table(figures: list[Figure]) -> None:
    head = ("measurement", "value", "unit", "limit", "aim")
    rows = [(f.name, _number(f.value) + ("" if _meets(f, f.limit) else " !"), f.unit, _number(f.limit), _number(f.aim)) for f in figures]
    widths = [max(len(r[i]) for r in (head, *rows)) for i in range(len(head))]
    print("  ".join(h.upper().ljust(w) for h, w in zip(head, widths)).rstrip())
    for row, f in zip(rows, figures):
        print("  ".join(c.ljust(w) for c, w in zip(row, widths)).rstrip())
        print(f"    {_text(f.detail)}")


def main() -> None:
    """Measure, and print the figures."""
    arguments = _arguments()
    before, figures = machine(), []
    for name, measure in MEASUREMENTS.items():
        if arguments.only and name not in arguments.only:
            continue
        print(f"measuring {name}", file=sys.stderr)
        with tempfile.TemporaryDirectory(prefix="trainmaster-bench-", dir=arguments.dir) as directory:
            try:
                figures += measure(directory, arguments.runs)
            except ModuleNotFoundError as e:
                print(f"{name}: expected the package {e.name}, found none: pip install '.[torch]', or leave it out with --only", file=sys.stderr)
                sys.exit(1)
    if arguments.output == "json":
        print(json.dumps({"runs": arguments.runs, "machine": before, "figures": [_row(f) for f in figures]}, indent=1))
    else:
        _print_table(figures)


if __name__ == "__main__":
    main()
