"""What an ablated head is replaced by: its mean over calibration prompts, or single activations from them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..models.backends import CHUNK
from ..models.hooked import HookedModel
from ..models.stack import Stack, stack_for
from ..progress import progress_bar
from ..results.files import ResultFileError, read_result, usable, write_arrays
from ..runs import bound_trials
from ..trials.trial import Trial, TrialGrid

ABLATED = ("q", "z")
"""Sites of an ablation: the query before rotary embedding and query norm, the head's output before W_O."""


@dataclass(frozen=True, eq=False)
class HeadMeans:
    """Calibration activations of every head.

    Attributes:
        mean: by site ("q", "z"), the mean over all positions of all calibration prompts, float32.
        sample: by site, activations at single random positions of those prompts, float32 (for "resample").
        n_tokens: positions the means are over.
        prompts: digests of the calibration prompts, so that they can be kept apart from evaluated ones.
        weights: fingerprint of the model they came from.
        seed: drew the positions of ``sample``.
        interventions: ablations that were in force meanwhile.
    """

    mean: Mapping[str, Float[Tensor, "layer head d_head"]]
    sample: Mapping[str, Float[Tensor, "sample layer head d_head"]]
    n_tokens: int
    prompts: tuple[str, ...]
    weights: str
    seed: int = 42
    interventions: tuple[str, ...] = ()

    def __repr__(self) -> str:
        layers, heads, width = next(iter(self.mean.values())).shape
        return (
            f"HeadMeans({', '.join(self.mean)}; {layers} layers x {heads} heads x {width}; "
            f"{self.n_tokens} positions of {len(self.prompts)} prompts)"
        )

    def _repr_html_(self) -> str:
        from .. import html

        rows = [
            {
                "site": at,
                "layer x head x d_head": " x ".join(map(str, mean.shape)),
                "norm of the means": float(mean.norm(dim=-1).mean()),
                "kept samples": len(self.sample[at]),
            }
            for at, mean in self.mean.items()
        ]
        prompts = f"{self.n_tokens} positions of {len(self.prompts)} prompts"
        about = html.line(prompts, f"weights {self.weights}", f"seed {self.seed}", *self.interventions)
        return html.card("Means of heads, for ablation", about, html.table(rows))

    def digest(self) -> str:
        """Short hash of what made the means; the same on every machine, as their last bits are not."""
        n_samples = {at: len(bank) for at, bank in sorted(self.sample.items())}
        made_of = (self.weights, self.prompts, self.n_tokens, n_samples, self.seed, self.interventions)
        return hashlib.sha256(repr(made_of).encode()).hexdigest()[:24]

    def save(self, path: str | Path) -> Path:
        """Write one safetensors file with the JSON metadata inside."""
        arrays = {f"mean/{at}": value.numpy() for at, value in self.mean.items()}
        arrays |= {f"sample/{at}": value.numpy() for at, value in self.sample.items()}
        about = {name: getattr(self, name) for name in ("n_tokens", "prompts", "weights", "seed", "interventions")}
        write_arrays(Path(path), arrays, {"kind": "HeadMeans", **about})
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> HeadMeans:
        """Read a file written by `save`.

        Raises:
            ResultFileError: when it is missing, damaged or of another kind.
        """
        arrays, meta = read_result(Path(path), "HeadMeans")
        with usable(Path(path), "HeadMeans"):
            mean, sample = (
                {at: torch.from_numpy(arrays[f"{part}/{at}"]).float() for at in ABLATED} for part in ("mean", "sample")
            )
            if any(m.dim() != 3 or sample[at].shape[1:] != m.shape for at, m in mean.items()):
                raise ResultFileError(f"{path}: its arrays do not fit each other")
            if not all(torch.isfinite(values).all() for values in (*mean.values(), *sample.values())):
                raise ResultFileError(f"{path}: holds values that are not finite")
            return cls(
                mean,
                sample,
                int(meta["n_tokens"]),
                tuple(map(str, meta["prompts"])),
                str(meta["weights"]),
                int(meta["seed"]),
                tuple(map(str, meta["interventions"])),
            )


def calibrate_means(
    model: HookedModel,
    trials: TrialGrid | Sequence[Trial] | Trial,
    n: int = 50,
    *,
    batch_size: int = 1,
    n_samples: int = 64,
    seed: int = 42,
    progress: bool | None = None,
) -> HeadMeans:
    """Mean query and mean output of every head over calibration prompts (50 of them in arXiv 2607.01002, section 4).

    Every position of every prompt counts once, so long prompts weigh more; padding counts nowhere.

    Args:
        model: from `load_model`.
        trials: their prompts are used; not the trials that will be evaluated.
        n: at most this many prompts, the first ones.
        batch_size: prompts per run; they are padded on the right, which a causal model cannot see.
        n_samples: single activations to keep for the "resample" mode.
        seed: draws the positions of those.
        progress: show a bar; default: on a terminal.

    Raises:
        ValueError: for no trials, or a prompt that does not fit the model.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    bound = bound_trials(model, trials, "calibration trials")[:n]
    if batch_size < 1 or n_samples < 1:
        raise ValueError(f"batch_size and n_samples must be at least 1, got {batch_size} and {n_samples}")
    lengths = [trial.n_tokens for trial in bound]
    drawn = np.random.default_rng(seed).choice(sum(lengths), min(n_samples, sum(lengths)), replace=False)
    gatherers = {at: _Gatherer(at, model, sorted(drawn.tolist())) for at in ABLATED}
    stack = stack_for(model, ABLATED)
    with progress_bar("calibrating", len(bound), show=progress) as advance:
        for first in range(0, len(bound), batch_size):
            batch = bound[first : first + batch_size]
            with ExitStack() as edits:
                for gatherer in gatherers.values():
                    gatherer.begin(lengths[first : first + batch_size], sum(lengths[:first]))
                    for layer in range(model.n_layers):
                        edits.enter_context(stack.edit(layer, gatherer.at, gatherer.reader(layer)))
                _run_padded(model, stack, [trial.prompt_ids for trial in batch])
            for _ in batch:
                advance("")
    for gatherer in gatherers.values():
        gatherer.require_all(sum(lengths))
    return HeadMeans(
        mean={at: (g.total / sum(lengths)).float() for at, g in gatherers.items()},
        sample={at: g.sample for at, g in gatherers.items()},
        n_tokens=sum(lengths),
        prompts=tuple(trial.prompt_digest() for trial in bound),
        weights=model.weights_fingerprint(),
        seed=seed,
        interventions=tuple(model.interventions),
    )


@torch.inference_mode()
def _run_padded(model: HookedModel, stack: Stack, prompts: Sequence[Sequence[int]]) -> None:
    width = max(map(len, prompts))
    for prompt in prompts:
        model.tokens(prompt)  # refuses what does not fit
    ids = torch.tensor([[*prompt, *[0] * (width - len(prompt))] for prompt in prompts], device=model.device)
    if not stack.takes_cache:
        stack.run(ids, keep=1)
        return
    cache = model.new_cache().native
    for part in ids.split(CHUNK, dim=1):
        stack.run(part, cache=cache, keep=1)


class _Gatherer:
    """Sums the activations of one site over the real positions of a batch, and keeps the drawn ones."""

    def __init__(self, at: str, model: HookedModel, drawn: Sequence[int]) -> None:
        g = model.geometry
        self.at = at
        self.drawn = drawn
        self.total = torch.zeros(g.n_layers, g.n_heads, g.d_head, dtype=torch.float64)
        self.sample = torch.zeros(len(drawn), g.n_layers, g.n_heads, g.d_head)
        self.counted = [0] * g.n_layers

    def begin(self, lengths: Sequence[int], before: int) -> None:
        """A batch of prompts of these lengths follows; ``before`` positions have been counted so far."""
        self.lengths = lengths
        self.starts = [before + sum(lengths[:row]) for row in range(len(lengths))]
        self.at_position = [0] * len(self.counted)

    def reader(self, layer: int) -> Any:
        """An edit that changes nothing and adds up what it sees."""

        def read(value: Tensor) -> None:
            begin = self.at_position[layer]
            self.at_position[layer] += value.shape[1]
            for row, length in enumerate(self.lengths):
                real = value[row, : max(0, min(length - begin, value.shape[1]))].float()
                self.total[layer] += real.sum(0).double().cpu()
                self.counted[layer] += real.shape[0]
                first = self.starts[row] + begin
                for index, position in enumerate(self.drawn):
                    if first <= position < first + real.shape[0]:
                        self.sample[index, layer] = real[position - first].cpu()

        return read

    def require_all(self, n_tokens: int) -> None:
        """Every layer must have shown every position once."""
        missed = [layer for layer, n in enumerate(self.counted) if n != n_tokens]
        if missed:
            raise RuntimeError(
                f"hook_{self.at} of layer {missed[0]} fired for {self.counted[missed[0]]} of {n_tokens} positions: "
                "means would be wrong"
            )
