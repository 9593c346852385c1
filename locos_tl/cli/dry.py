"""`score --dry-run`: what a run would take, from the model's config and tokenizer alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from .output import print_json, print_memory

if TYPE_CHECKING:
    from ..memory import MemoryEstimate


@dataclass(frozen=True)
class DryRun:
    """Prompt lengths of a run, the memory of its longest trial, and the memory there is."""

    lengths: tuple[int, ...]
    memory: MemoryEstimate
    free: int


def dry_run_of(model: str, trials: Any, max_new_tokens: int, device: str | None, dtype: str | None) -> DryRun:
    """Make the trials and count, without loading weights.

    Raises:
        ValueError: when a trial does not fit into the model's context; it is named.
    """
    from ..memory import Sizes, available, estimate
    from ..models.load import default_device, load_tokenizer
    from ..progress import working
    from ..runs import refuse_long
    from ..trials.trial import TrialGrid

    with working("making the trials"):
        sizes = Sizes.of(model, dtype)
        ready = list(trials.bind(load_tokenizer(model)) if isinstance(trials, TrialGrid) else trials)
        refuse_long(ready, max_new_tokens, sizes.limit, model)
        lengths = tuple(trial.n_tokens for trial in ready)
        found = estimate(sizes, max(lengths), max_new_tokens=max_new_tokens)
        return DryRun(lengths, found, available(device or default_device()))


def print_dry_run(found: DryRun, as_json: bool) -> None:
    """Trials, tokens and memory."""
    lengths = found.lengths
    if as_json:
        told: dict[str, Any] = {"trials": len(lengths), "prompt_tokens": sum(lengths), "longest": max(lengths)}
        print_json(told | {"memory": found.memory.to_dict(), "free_bytes": found.free})
        return
    from ..memory import told as size

    typer.echo(f"{len(lengths)} trials of {min(lengths)} to {max(lengths)} prompt tokens, {sum(lengths)} in all")
    print_memory(found.memory, False)
    fits = "it fits" if found.memory.total <= found.free else "it does not fit: shorter contexts, --dtype or --device"
    typer.echo(f"{size(found.free)} are free: {fits}. Nothing was run or written.")
