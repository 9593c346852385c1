"""`PairRuns`: the clean and the corrupt run of a pair, kept as far as patching needs them.

The prompts share their first positions, whose keys and values are computed once and never again. Of the rest, the
runs keep the clean activations, the corrupt residual stream that enters every layer, and both metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..models.hooked import HookedModel
from ..models.stack import Stack, prefix_cache, stack_for
from .pairs import PromptPair

METRICS = ("logit_diff", "answer_logprob")
POSITIONS = ("all", "needle", "answer")
ROW_TOKENS = 8192
"""Tokens that a batch of patched runs may hold together."""

Activations = dict[tuple[int, str], Tensor]
"""By layer and site: [pos head d_head]; a pattern as [query head key], so that both are indexed alike."""


class PairRuns:
    """One pair, run clean and corrupt.

    Attributes:
        start: leading positions that both prompts share; all tensors begin there.
        ids: input tokens of the corrupt run from ``start`` on, [1 pos]; the last answer token is never an input.
        clean, corrupt: activations of both runs at the sites asked for.
        streams: the corrupt residual stream entering each layer (n_layers: leaving the last), [1 pos d_model].
        counterfactual: token that the answer's first is compared with.
        clean_metric, corrupt_metric: the metric of both runs.
    """

    @torch.inference_mode()
    def __init__(self, model: HookedModel, pair: PromptPair, at: Sequence[str], metric: str) -> None:
        if metric not in METRICS:
            raise ValueError(f"metric must be one of {', '.join(METRICS)}, got {metric!r}")
        self.model, self.pair, self.metric_name = model, pair, metric
        self.stack: Stack = stack_for(model, at)
        self.start = pair.first_difference if self.stack.takes_cache else 0
        self.prefix = prefix_cache(model, self.stack, pair.clean_ids[: self.start])
        self.ids = model.tokens(pair.corrupt_ids)[:, self.start : -1]
        self.n_answer = len(pair.answer_ids)
        self.counterfactual = pair.counterfactual if pair.counterfactual is not None else -1
        clean_logits, self.clean, _ = self._run(model.tokens(pair.clean_ids)[:, self.start : -1], at, ())
        logits, self.corrupt, self.streams = self._run(self.ids, at, range(model.n_layers + 1))
        if pair.counterfactual is None:
            others = logits[0, 0].clone()
            others[pair.answer_ids[0]] = -torch.inf
            self.counterfactual = int(others.argmax())
        self.clean_metric = float(self.metric(clean_logits)[0])
        self.corrupt_metric = float(self.metric(logits)[0])
        self.corrupt_logits = logits[0].float()
        for name, value in (("clean", self.clean_metric), ("corrupt", self.corrupt_metric)):
            if not torch.isfinite(torch.tensor(value)):
                raise FloatingPointError(f"{pair.pair_id}: the {name} run's {metric} is not finite; load as float32")

    def _run(
        self, ids: Tensor, at: Sequence[str], layers: Sequence[int]
    ) -> tuple[Tensor, Activations, Mapping[int, Tensor]]:
        found: Activations = {}
        with ExitStack() as block:
            for layer in range(self.stack.n_layers):
                for site in at:
                    block.enter_context(self.stack.edit(layer, site, _keep(found, layer, site)))
            streams = block.enter_context(self.stack.streams(layers))
            logits = self.stack.run(ids, cache=self.prefix, keep=self.n_answer)
        missing = [(layer, site) for layer in range(self.stack.n_layers) for site in at if (layer, site) not in found]
        if missing:
            raise RuntimeError(f"hook_{missing[0][1]} of layer {missing[0][0]} did not fire: nothing to patch there")
        return logits, found, streams

    def metric(self, logits: Float[Tensor, "row answer d_vocab"]) -> Float[Tensor, "row"]:
        """The metric of each row of logits at the answer's queries, float32."""
        answer = torch.tensor(self.pair.answer_ids, device=logits.device)
        if self.metric_name == "logit_diff":
            first = logits[:, 0].float()
            return first[:, answer[0]] - first[:, self.counterfactual]
        log_probs = logits.float().log_softmax(-1)
        return log_probs.gather(-1, answer.expand(len(logits), -1)[..., None])[..., 0].mean(-1)

    def positions(self, which: str) -> Tensor:
        """Indices, counted from ``start``, of the positions to patch.

        Raises:
            ValueError: for an unknown name, or a pair whose prompts do not differ and name no needle.
        """
        n = self.ids.shape[1]
        if which == "all":
            return torch.arange(n)
        if which == "answer":
            return torch.arange(n - self.n_answer, n)
        if which != "needle":
            raise ValueError(f"positions must be one of {', '.join(POSITIONS)}, got {which!r}")
        if self.pair.needle_span is None:
            raise ValueError(f"{self.pair.pair_id}: the prompts are the same and name no needle")
        first, last = (max(0, edge - self.start) for edge in self.pair.needle_span)
        return torch.arange(first, last)

    def rows_at_once(self, batch_size: int | None) -> int:
        """How many patched runs go through together."""
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        return batch_size or max(1, ROW_TOKENS // max(1, self.ids.shape[1]))

    @torch.inference_mode()
    def patched(
        self,
        layer: int,
        streams: Float[Tensor, "row pos d_model"],
        edits: Sequence[tuple[int, str, Callable[[Tensor], Tensor | None]]],
    ) -> Float[Tensor, "row"]:
        """Metric of runs that enter at ``layer`` with the given streams, under edits (layer, site, function).

        Raises:
            RuntimeError: when an edit did not fire.
        """
        fired: set[int] = set()

        def counted(index: int, fn: Callable[[Tensor], Tensor | None]) -> Callable[[Tensor], Tensor | None]:
            def edit(value: Tensor) -> Tensor | None:
                fired.add(index)
                return fn(value)

            return edit

        with ExitStack() as block:
            for index, (where, site, fn) in enumerate(edits):
                block.enter_context(self.stack.edit(where, site, counted(index, fn)))
            logits = self.stack.run(self.ids, enter=(layer, streams), cache=self.prefix, keep=self.n_answer)
        silent = [edits[i] for i in range(len(edits)) if i not in fired]
        if silent:
            raise RuntimeError(f"hook_{silent[0][1]} of layer {silent[0][0]} did not fire: nothing was patched")
        return self.metric(logits)


def head_axis(value: Tensor, site: str) -> Tensor:
    """An activation as [row pos head ...], whatever the site."""
    return value.transpose(1, 2) if site == "pattern" else value


def _keep(found: Activations, layer: int, site: str) -> Any:
    def read(value: Tensor) -> None:
        found[layer, site] = head_axis(value, site)[0]

    return read
