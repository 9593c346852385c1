"""``python -m benchmarks [name ...]``: run, print, and keep the numbers under benchmarks/results/."""

from __future__ import annotations

import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from . import naive, one_pass, pass_rates
from .common import save, table

ALL = {"one_pass": one_pass.run, "naive": naive.run, "pass_rates": pass_rates.run}


def main(names: list[str]) -> None:
    for name in names or list(ALL):
        if name not in ALL:
            raise SystemExit(f"no benchmark {name!r}; there are: {', '.join(ALL)}")
        rows = ALL[name]()
        save(name, rows)
        print(f"\n{name}\n{table(rows)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
