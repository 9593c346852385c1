"""How often the bundled model answers the bundled trials: by needle, relation, kind, length and kind of name."""

from __future__ import annotations

from collections import defaultdict
from typing import Any


def run(n: int = 260, seed: int = 7) -> list[dict[str, Any]]:
    """Gate only (no scoring): every needle in every kind, balanced over lengths, depths and names."""
    from locos_tl import load_model, load_trials
    from locos_tl.progress import progress_bar
    from locos_tl.scoring.answers import GATE_THRESHOLD, answer_steps, decode_text, rouge1_recall, settled
    from locos_tl.scoring.measure import decode_trial

    model = load_model("smollm2-135m")
    trials = load_trials("nonliteral", n, seed=seed, kinds=("onehop", "twohop", "literal"), tokenizer=model)
    found: dict[tuple[str, str], list[bool]] = defaultdict(list)
    with progress_bar("asking", len(trials)) as advance:
        tokenizer = model.tokenizer
        for trial in trials:

            def enough(ids: list[int], trial: Any = trial) -> bool:
                return settled(tokenizer, ids, trial.answer)

            _, said = decode_trial(model, trial, 50, rewind_to=trial.n_tokens - 1, enough=enough)
            text = decode_text(tokenizer, said.ids)
            ok = rouge1_recall(text, trial.answer) > GATE_THRESHOLD and bool(
                answer_steps(tokenizer, said.ids, trial.answer)
            )
            tokens = len(tokenizer(" " + trial.answer, add_special_tokens=False)["input_ids"])
            for by, value in (
                ("kind", trial.kind),
                ("kind, length", f"{trial.kind}, {trial.length}"),
                ("kind, relation", f"{trial.kind}, {trial.relation}"),
                ("depth", str(trial.depth)),
                ("tokens in the name", str(tokens)),
                ("name", trial.answer),
                ("needle", trial.needle_id),
            ):
                found[by, value].append(ok)
            advance("")
    return [
        {"by": by, "value": value, "passed": sum(oks), "trials": len(oks), "rate": sum(oks) / len(oks)}
        for (by, value), oks in sorted(found.items())
    ]


KINDS = ("onehop", "twohop", "literal")


def tables(rows: list[dict[str, Any]]) -> str:
    """The docs' tables: kinds as columns; lengths, relations, depths and name lengths as rows."""
    cells = {(row["by"], row["value"]): row for row in rows}

    def share(by: str, value: str) -> str:
        row = cells.get((by, value))
        return "" if row is None else f"{row['rate']:.0%} ({row['passed']}/{row['trials']})"

    def by_kind(what: str) -> str:
        by = f"kind, {what}"
        values = sorted(
            {v.split(", ")[1] for b, v in cells if b == by}, key=lambda v: (len(v) if v.isdigit() else 0, v)
        )
        lines = [f"| {what} | " + " | ".join(KINDS) + " |", "|---|---|---|---|"]
        lines += [f"| {v} | " + " | ".join(share(by, f"{kind}, {v}") for kind in KINDS) + " |" for v in values]
        return "\n".join(lines)

    overall = "| | " + " | ".join(KINDS) + " |\n|---|---|---|---|\n| all | "
    overall += " | ".join(share("kind", kind) for kind in KINDS) + " |"
    others = ["| | passed |", "|---|---|"]
    others += [f"| depth {value} | {share(by, value)} |" for by, value in sorted(cells) if by == "depth"]
    others += [f"| name of {v} token(s) | {share(by, v)} |" for by, v in sorted(cells) if by == "tokens in the name"]
    return "\n\n".join([overall, by_kind("length"), by_kind("relation"), "\n".join(others)])
