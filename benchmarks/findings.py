"""What the bundled model says: scores, ablations with controls, and the late-layer question, on held-out trials.

Needles that rank heads, calibrate means and evaluate are three disjoint groups. Every stage writes as it goes under
``runs/findings`` and resumes; with two quiet cores all of it takes about an hour and a half.

    python -m benchmarks.findings            # all stages, in order
    python -m benchmarks.findings sweep-q    # one of them
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from .common import DOCS, RESULTS, fill_docs, save, table

FOLDER = Path("runs/findings")
OUT = RESULTS / "findings"
KS = (1, 5, 10, 20, 40)
METHODS = ("locos", "attention_spatial", "wu", "headkv")
POOL = {"n": 400, "lengths": (64, 128), "seed": 11}
N_RANKING, N_CALIBRATION, N_EVALUATION = 180, 50, 100
MAX_NEW_TOKENS = 24
"""The paper generates up to 50; ablated, this model rambles, and its answers do not come later than this."""
CLOSED_BOOK = ("contains", "exact")
N_CONTROLS = 60
"""Trials of each control, of the literal twins and of the other task."""
N_PATCHED = 60
"""Trials that are patched head by head: about 20 seconds each."""


@cache
def model() -> Any:
    from locos_tl import load_model

    return load_model("smollm2-135m")


@cache
def parts() -> tuple[list[Any], list[Any], list[Any]]:
    """Trials for ranking, calibration and evaluation; no needle is in two of them."""
    from locos_tl import load_trials
    from locos_tl.trials.split import split_by_needle

    drawn = load_trials("nonliteral", **POOL, tokenizer=model())
    pool = list({trial.prompt_ids: trial for trial in drawn}.values())  # the draw may repeat a prompt
    ranking, calibration, evaluation = split_by_needle(pool, (180, 50, 110))
    return ranking[:N_RANKING], calibration[:N_CALIBRATION], evaluation[:N_EVALUATION]


def literal_twins() -> list[Any]:
    """The evaluated needles, names, places and depths, asked in the needle's own words."""
    from locos_tl import load_trials

    def place(trial: Any) -> str:
        return trial.trial_id.rsplit("-", 1)[0]

    wanted = {place(trial) for trial in parts()[2]}
    literal = load_trials("nonliteral", **POOL, kinds=("literal",), tokenizer=model())
    return [trial for trial in literal if place(trial) in wanted]


@cache
def scores() -> Any:
    from locos_tl import Scores, score_heads

    if (FOLDER / "scores" / "run.json").exists():
        return Scores.load(FOLDER / "scores")
    return score_heads(model(), parts()[0], out=FOLDER / "scores")


@cache
def means() -> Any:
    from locos_tl import calibrate_means

    return calibrate_means(model(), parts()[1])


def sweep(
    name: str, trials: Any, at: str, methods: tuple[str, ...] = METHODS, ks: tuple[int, ...] = KS, **more: Any
) -> Any:
    from locos_tl import ablate_sweep

    chosen = {method: scores()[method] for method in methods}
    return ablate_sweep(
        model(),
        trials,
        chosen,
        ks,
        at=at,
        means=means(),
        max_new_tokens=MAX_NEW_TOKENS,
        batch_size=48,
        out=FOLDER / f"{name}-{at}",
        **more,
    )


def closed_book(name: str, at: str) -> Any:
    """Two sweeps over the same questions, few heads and many, joined."""
    from dataclasses import replace

    from locos_tl import load_trials

    trials = load_trials(name, 100, tokenizer=model())[:N_CONTROLS]
    few, many = (
        sweep(
            f"{name}-{part}", trials, at, ("locos", "attention_spatial"), ks, controls=("random",), metrics=CLOSED_BOOK
        )
        for part, ks in (("few", (5,)), ("many", (10, 20, 40)))
    )
    return replace(many, rows=(*many.rows, *(row for row in few.rows if row.k)))


def literal(at: str) -> Any:
    return sweep(
        "literal",
        literal_twins()[:N_CONTROLS],
        at,
        ("locos",),
        (5, 10, 20, 40),
        controls=("random",),
        random_seeds=(42,),
    )


def downstream(at: str) -> Any:
    from locos_tl import load_trials

    trials = load_trials("babi", N_CONTROLS, kinds="two_facts", tokenizer=model())
    return sweep(
        "babi",
        trials,
        at,
        ("locos", "attention_spatial"),
        (20, 40),
        controls=("random",),
        metrics=("subspan", "em", "f1"),
    )


def patched_trials() -> list[Any]:
    """The first of the ranking trials that the model answered."""
    passed = {outcome.trial_id for outcome in scores().outcomes if outcome.passed}
    return [trial for trial in parts()[0] if trial.trial_id in passed][:N_PATCHED]


def late() -> Any:
    from locos_tl import validate_late_layers

    return validate_late_layers(model(), patched_trials(), scores(), out=FOLDER / "late")


def attribution() -> Any:
    from locos_tl import patch_trials

    told = {outcome.trial_id: outcome.generated_ids for outcome in scores().outcomes}
    trials = [trial.with_generation(told[trial.trial_id]) for trial in patched_trials()]
    return patch_trials(model(), trials, ("attribution",), out=FOLDER / "attribution")["attribution"]


STAGES: dict[str, Callable[[], Any]] = {
    "scores": scores,
    "sweep-q": lambda: sweep("nonliteral", parts()[2], "q"),
    "late": late,
    "sweep-z": lambda: sweep("nonliteral", parts()[2], "z"),
    "attribution": attribution,
    "city_country-q": lambda: closed_book("city_country", "q"),
    "arithmetic-q": lambda: closed_book("arithmetic", "q"),
    "literal-q": lambda: literal("q"),
    "babi-q": lambda: downstream("q"),
    "city_country-z": lambda: closed_book("city_country", "z"),
    "arithmetic-z": lambda: closed_book("arithmetic", "z"),
    "literal-z": lambda: literal("z"),
    "babi-z": lambda: downstream("z"),
}


def pages() -> dict[str, str]:
    """The tables of docs/findings.md that the finished stages allow, by name."""
    from locos_tl import LateLayers, Scores, Sweep

    def done(name: str) -> Any:
        return Sweep.load(FOLDER / name) if (FOLDER / name / "sweep.jsonl").exists() else None

    found = {}
    if (FOLDER / "scores" / "run.json").exists():
        found["top"] = top_heads(Scores.load(FOLDER / "scores"))
    for at in ("q", "z"):
        main_sweep = done(f"nonliteral-{at}")
        if main_sweep is None:
            continue
        for metric in ("rouge_l", "contains"):
            found[f"sweep-{at}-{metric}"] = by_k(main_sweep, metric)
        for name in ("city_country", "arithmetic"):
            if done(f"{name}-few-{at}") and done(f"{name}-many-{at}"):
                control = closed_book(name, at)
                found[f"{name}-{at}"] = by_k(control, "contains") + "\n\n" + dissociations(main_sweep, control)
        if (literal := done(f"literal-{at}")) is not None:
            found[f"literal-{at}"] = by_k(literal, "rouge_l") + "\n\n" + by_k(literal, "contains")
        if (babi := done(f"babi-{at}")) is not None:
            found[f"babi-{at}"] = by_k(babi, "subspan")
    if (FOLDER / "late" / "late_layers.safetensors").exists():
        late = LateLayers.load(FOLDER / "late")
        found["late"] = late_table(late)
        found["verdict"] = f"**{late.verdict}.** {late.reason}"
        found["missed"] = table(late.missed(10).round(3).to_dict("records"))
    return found


def top_heads(scores: Any) -> str:
    rows = []
    for row in scores["locos"].top(10).to_dict("records"):
        head = (row["layer"], row["head"])
        ranks = {name: scores[name].ranking().index(head) + 1 for name in METHODS[1:]}
        interval = f"{row['ci_low']:.2f} to {row['ci_high']:.2f}"
        rows.append({"head": f"L{head[0]}H{head[1]}", "LOCOS": row["score"], "interval": interval} | ranks)
    return table(rows)


def by_k(sweep: Any, metric: str) -> str:
    """Methods down, numbers of heads across: mean with its interval."""
    summary = sweep.summary()
    of_metric = summary[summary["metric"] == metric]
    rows = []
    for method in dict.fromkeys(of_metric["method"]):
        cells = {row["k"]: row for row in of_metric[of_metric["method"] == method].to_dict("records")}
        if method == "baseline":
            base = cells[0]
            continue
        rows.append(
            {"without the heads of": method, "0": _cell(base)} | {str(k): _cell(cells[k]) for k in sorted(cells) if k}
        )
    return table(rows)


def _cell(row: dict[str, Any]) -> str:
    return f"{row['mean']:.2f} ({row['ci_low']:.2f}–{row['ci_high']:.2f})"


def dissociations(retrieval: Any, control: Any) -> str:
    from locos_tl import dissociation

    found = dissociation(retrieval, control, metric="rouge_l", control_metric="contains")
    frame = found.to_frame()
    rows = []
    for method in found.methods:
        cells = {row["k"]: row for row in frame[frame["method"] == method].to_dict("records")}
        shown = {
            str(k): f"{row['score']:.2f} ({row['score_low']:.2f}–{row['score_high']:.2f})" for k, row in cells.items()
        }
        rows.append({"DS(k)": method} | shown)
    return table(rows)


def late_table(late: Any) -> str:
    rows = []
    for row in late.to_frame().to_dict("records"):
        cells: dict[str, Any] = {"map": row["method"]}
        for name, title in (
            ("profile_last_third", "last third"),
            ("profile_centre_of_mass", "centre of mass"),
            ("last_third", "last third, plain"),
            ("gini", "Gini, plain"),
        ):
            cells[title] = f"{row[name]:.2f} ({row[f'{name}_low']:.2f}–{row[f'{name}_high']:.2f})"
        cells["p"] = f"{row['p_value']:.4f}"
        same = row["method"] == late.causal
        for name, title in (("spearman", "Spearman"), ("kendall", "Kendall")):
            cells[title] = "" if same else f"{row[name]:.2f}"
        for k in (10, 20, 50):
            cells[f"overlap {k}"] = "" if same else f"{row[f'overlap@{k}']:.0%}"
        rows.append(cells)
    return table(rows)


def main(names: list[str]) -> None:
    """Run stages and keep their numbers under benchmarks/results/findings."""
    from locos_tl.results.sweep import Sweep

    OUT.mkdir(parents=True, exist_ok=True)
    for name in names or list(STAGES):
        found = STAGES[name]()
        if isinstance(found, Sweep):
            save(f"findings/{name}", found.summary().to_dict("records"))
        elif hasattr(found, "save"):
            found.save(OUT / f"{name}.safetensors") if name != "scores" else None
        print(f"{name}: done\n{found!r}", flush=True)
        page = (DOCS / "findings.md").read_text(encoding="utf-8")
        for mark, text in pages().items():
            if f"<!-- {mark} -->" in page:
                fill_docs("findings.md", mark, text)


if __name__ == "__main__":
    main(sys.argv[1:])
