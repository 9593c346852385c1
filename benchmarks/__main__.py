"""``python -m benchmarks [name ...]``: run, print, keep the numbers under benchmarks/results/ and in the docs."""

from __future__ import annotations

import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from . import naive, one_pass, pass_rates, patching, prefixes, sweep
from .common import fill_docs, save, table

ALL = {
    "one_pass": (one_pass.run, table, "benchmarks.md"),
    "patching": (patching.run, table, "benchmarks.md"),
    "naive": (naive.run, table, "benchmarks.md"),
    "sweep": (sweep.run, table, "benchmarks.md"),
    "prefixes": (prefixes.run, table, "benchmarks.md"),
    "pass_rates": (pass_rates.run, pass_rates.tables, "trials.md"),
}


def main(names: list[str]) -> None:
    for name in names or list(ALL):
        if name not in ALL:
            raise SystemExit(f"no benchmark {name!r}; there are: {', '.join(ALL)}")
        run, show, page = ALL[name]
        rows = run()
        save(name, rows)
        fill_docs(page, name, show(rows))
        print(f"\n{name}\n{show(rows)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
