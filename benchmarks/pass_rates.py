"""How often the bundled model answers the bundled trials: by needle, relation, kind, length and kind of name."""

from __future__ import annotations

from collections import defaultdict
from typing import Any


def run(n: int = 584, seed: int = 7) -> list[dict[str, Any]]:
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
