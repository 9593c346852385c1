"""A slow and obvious scorer: one uncached run with every pattern and value, then loops over heads and keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from locos_tl.models.hooked import HookedModel
from locos_tl.trials.trial import Trial


class Reference:
    def __init__(self, model: HookedModel, trial: Trial, answer_steps: tuple[int, ...]) -> None:
        self.model, self.trial, self.steps = model, trial, answer_steps
        self.generated = list(trial.generated_ids or ())
        self.ids = [*trial.prompt_ids, *self.generated]
        with torch.inference_mode():
            _, cache = model.hooked.run_with_cache(torch.tensor([self.ids]))
        self.pattern = [cache[f"blocks.{layer}.attn.hook_pattern"][0].double() for layer in range(model.n_layers)]
        self.values = [
            cache[f"blocks.{layer}.attn.hook_v"][0]
            .double()
            .reshape(len(self.ids), model.n_key_value_heads, model.d_head)
            for layer in range(model.n_layers)
        ]

    def phi(self, layer: int, head: int, step: int, key: int) -> float:
        query = self.trial.n_tokens - 1 + step
        u = self.model.unembed([self.generated[step]])[0].double()
        W_O = self.model.W_O(layer)[head].double()
        group = self.model.n_heads // self.model.n_key_value_heads
        alpha = float(self.pattern[layer][head, query, key])
        return alpha * float(self.values[layer][key, head // group] @ W_O @ u)

    def per_head(self, score: Any) -> np.ndarray:
        return np.array(
            [[score(layer, head) for head in range(self.model.n_heads)] for layer in range(self.model.n_layers)]
        )

    def _contrast(self, weight: Any) -> float:
        start, end = self.trial.needle_span
        total = 0.0
        for step in self.steps:
            n_keys = self.trial.n_tokens + step
            each = [weight(step, key) for key in range(n_keys)]
            inside = sum(each[start:end])
            outside = sum(each) - inside
            total += inside - (end - start) / (n_keys - (end - start)) * outside
        return total / len(self.steps)

    def locos(self, layer: int, head: int) -> float:
        return self._contrast(lambda step, key: self.phi(layer, head, step, key))

    def attention_spatial(self, layer: int, head: int) -> float:
        return self._contrast(lambda s, key: float(self.pattern[layer][head, self.trial.n_tokens - 1 + s, key]))

    def dla(self, layer: int, head: int) -> float:
        each = [sum(self.phi(layer, head, s, k) for k in range(self.trial.n_tokens + s)) for s in self.steps]
        return sum(each) / len(each)

    def wu(self, layer: int, head: int) -> float:
        start, end = self.trial.needle_span
        score = 0.0
        for step, token in enumerate(self.generated):
            key = int(self.pattern[layer][head, self.trial.n_tokens - 1 + step].argmax())
            if start <= key < end and self.ids[key] == token:
                score += 1 / (end - start)
        return score

    def contrastive(self, layer: int, head: int) -> float:
        start, end = self.trial.needle_span

        def share(step: int) -> float:
            row = self.pattern[layer][head, self.trial.n_tokens - 1 + step]
            best = row.float().topk(10).indices.tolist()
            return sum(start <= k < end and float(row[k]) > 0 for k in best) / 10

        others = [s for s in range(len(self.generated)) if s not in self.steps]
        plus = sum(map(share, self.steps)) / len(self.steps)
        return max(plus - sum(map(share, others)) / len(others), 0.0) if others else plus

    def headkv(self, layer: int, head: int) -> float:
        start, end = self.trial.needle_span
        n = self.trial.n_tokens
        return max(float(self.pattern[layer][head, q, start:end].sum()) for q in range(n - 8, n))
