"""Unknown names are refused with the nearest known one."""

from __future__ import annotations

import pytest

from locos_tl.choices import did_you_mean, unknown


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("loco", "locos"),
        ("LOCOS", "locos"),
        ("attention", "attention_spatial"),
        ("attention-spatial", "attention_spatial"),
        ("contrast", "contrastive"),
        ("", ""),
        ("wx", ""),
        (None, ""),
        (7, ""),
    ],
)
def test_the_nearest_name(name, near):
    known = ["locos", "attention_spatial", "dla", "wu", "contrastive", "headkv", "random"]
    assert did_you_mean(name, known) == (f" (did you mean {near!r}?)" if near else "")


def test_a_refusal_names_value_and_choices():
    assert unknown("metric", "rogue_l", ("rouge_l", "contains")) == (
        "unknown metric 'rogue_l' (did you mean 'rouge_l'?); choose from rouge_l, contains"
    )
    assert unknown("metric", "bleu", ()) == "unknown metric 'bleu'; choose from "
