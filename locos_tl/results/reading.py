"""`HeadReading`: what every head reads, writes and promotes in one trial, token by token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from .files import read_result, usable, write_arrays

Array = np.ndarray
READINGS = "readings"
"""Folder of the readings in a run folder."""
_INDICES = ("shared", "own", "promoted", "suppressed")
_VALUES = ("attention", "own_attention", "phi", "own_phi", "phi_total", "promoted_logits", "suppressed_logits")


def _indices(values: Any, name: str) -> Array:
    """Whole numbers as int32, or an error where that changes one."""
    given = np.asarray(values)
    with np.errstate(invalid="ignore"):
        whole = given.astype(np.int32)
    if not (whole == given).all():
        raise ValueError(f"{name} holds what is no index")
    return whole


@dataclass(frozen=True, eq=False)
class HeadReading:
    """One trial seen through every head, at the answer steps.

    Attention and phi are means over the answer steps (LOCOS, arXiv 2607.01002, section 2, averages its score the same
    way). Of a long context they are kept at the ``shared`` positions (its ends and around the needle) and, for each
    head, at the positions of its own that matter most (``own``); of a short one at every position.

    L layers, H heads, V variants, S shared and E own positions, K tokens.

    Attributes:
        trial_id: the trial.
        ids: token ids of prompt and generated text.
        tokens: their texts, one by one.
        n_prompt: tokens of the prompt.
        needle_span: [start, end) of the needle.
        answer_steps: indices of the answer steps among the generated tokens.
        n_keys: positions that the last answer step can attend to.
        variants: definitions of phi that were measured.
        about: question, needle, answer and further facts of the trial.
        shared: positions kept for all heads, ascending. [S]
        attention: attention probability at ``shared``. [L, H, S]
        phi: contribution at ``shared``. [V, L, H, S]
        own: further positions of each head, none of them in ``shared``; -1 where a head has fewer. [L, H, E]
        own_attention: attention at ``own``. [L, H, E]
        own_phi: phi at ``own``. [V, L, H, E]
        phi_total: phi summed over all positions. [V, L, H]
        promoted: tokens whose logits the head's output raises most at the first answer step, strongest first: its
            output through the frozen norms and the unembedding (logit lens). [L, H, K]
        promoted_logits: by how much, against the mean over the vocabulary, before any final soft cap. [L, H, K]
        suppressed, suppressed_logits: those it lowers most.
        vocabulary: texts of the promoted and suppressed tokens.
    """

    trial_id: str
    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    n_prompt: int
    needle_span: tuple[int, int]
    answer_steps: tuple[int, ...]
    n_keys: int
    variants: tuple[str, ...]
    shared: Int[Array, " S"]
    attention: Float[Array, "L H S"]
    phi: Float[Array, "V L H S"]
    own: Int[Array, "L H E"]
    own_attention: Float[Array, "L H E"]
    own_phi: Float[Array, "V L H E"]
    phi_total: Float[Array, "V L H"]
    promoted: Int[Array, "L H K"]
    promoted_logits: Float[Array, "L H K"]
    suppressed: Int[Array, "L H K"]
    suppressed_logits: Float[Array, "L H K"]
    vocabulary: Mapping[int, str]
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in _INDICES:
            object.__setattr__(self, name, _indices(getattr(self, name), name))
        for name in _VALUES:
            object.__setattr__(self, name, np.asarray(getattr(self, name), np.float32))
            if not np.isfinite(getattr(self, name)).all():
                raise ValueError(f"{name} of trial {self.trial_id!r} is not finite")
        if self.attention.ndim != 3 or self.own.ndim != 3 or self.promoted.ndim != 3 or not self.variants:
            raise ValueError("attention, own and promoted must be [layer, head, ...], of at least one variant of phi")
        n_layers, n_heads, n_shared = self.attention.shape
        n_own, n_variants, n_tokens = self.own.shape[-1], len(self.variants), self.promoted.shape[-1]
        cells = (n_layers, n_heads)
        shapes = {
            "shared": (n_shared,),
            "phi": (n_variants, *cells, n_shared),
            "own": (*cells, n_own),
            "own_attention": (*cells, n_own),
            "own_phi": (n_variants, *cells, n_own),
            "phi_total": (n_variants, *cells),
        } | dict.fromkeys((*_INDICES[2:], *_VALUES[5:]), (*cells, n_tokens))
        for name, shape in shapes.items():
            if getattr(self, name).shape != shape:
                raise ValueError(f"{name} must have the shape {shape}, got {getattr(self, name).shape}")
        start, end = self.needle_span
        if len(self.tokens) != len(self.ids):
            raise ValueError(f"{len(self.tokens)} token texts for {len(self.ids)} tokens")
        if not (0 <= start < end <= self.n_prompt <= self.n_keys <= len(self.ids)):
            raise ValueError(
                f"needle {self.needle_span}, prompt {self.n_prompt} and keys {self.n_keys} "
                f"do not fit {len(self.ids)} tokens"
            )
        for name, least in (("shared", 0), ("own", -1)):
            if (found := getattr(self, name)).size and not least <= found.min() <= found.max() < self.n_keys:
                raise ValueError(f"{name} holds a position outside the {self.n_keys} that can be attended to")
        for name in ("promoted", "suppressed"):
            if not set(np.unique(getattr(self, name)).tolist()) <= set(self.vocabulary):
                raise ValueError(f"{name} holds a token whose text is not in the vocabulary")
        if any(not 0 <= step < len(self.ids) - self.n_prompt for step in self.answer_steps):
            raise ValueError(f"answer steps {self.answer_steps} are outside the generated text")

    @property
    def n_layers(self) -> int:
        """Layers of the model."""
        return self.attention.shape[0]

    @property
    def n_heads(self) -> int:
        """Query heads a layer."""
        return self.attention.shape[1]

    @property
    def complete(self) -> bool:
        """Whether every position is kept."""
        return len(self.shared) == self.n_keys

    def __repr__(self) -> str:
        return f"HeadReading({self.trial_id!r}, {self.n_layers} layers x {self.n_heads} heads, {len(self.ids)} tokens)"

    # --- files ----------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write one safetensors file; returns its path."""
        path = Path(path)
        meta = {
            "kind": "HeadReading",
            **{
                name: getattr(self, name)
                for name in (
                    *("trial_id", "ids", "tokens", "n_prompt", "needle_span", "answer_steps", "n_keys", "variants"),
                    *("vocabulary", "about"),
                )
            },
        }
        write_arrays(path, {name: getattr(self, name) for name in (*_INDICES, *_VALUES)}, meta)
        return path

    @classmethod
    def load(cls, path: str | Path) -> HeadReading:
        """Read a file written by `save`.

        Raises:
            ResultFileError: when the file is missing, damaged or of another kind.
        """
        path = Path(path)
        arrays, meta = read_result(path, "HeadReading")
        with usable(path, "HeadReading"):
            start, end = meta["needle_span"]
            return cls(
                trial_id=str(meta["trial_id"]),
                ids=tuple(int(i) for i in meta["ids"]),
                tokens=tuple(str(t) for t in meta["tokens"]),
                n_prompt=int(meta["n_prompt"]),
                needle_span=(int(start), int(end)),
                answer_steps=tuple(int(s) for s in meta["answer_steps"]),
                n_keys=int(meta["n_keys"]),
                variants=tuple(str(v) for v in meta["variants"]),
                vocabulary={int(i): str(text) for i, text in meta["vocabulary"].items()},
                about=dict(meta["about"]),
                **{name: arrays[name] for name in (*_INDICES, *_VALUES)},
            )
