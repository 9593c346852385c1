# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # 5. Ablation: is the answer gone without these heads?
#
# Open and run: `pip install -c constraints.txt -e '.[notebooks]'`, then open this file as a notebook (JupyterLab
# with jupytext), or `jupytext --to ipynb notebooks/05_ablation.py`.
#
# Patching gave something to a run that lacked it. Ablation takes away. It is the bluntest test of a list of heads,
# and the easiest to fool oneself with: take enough heads from a model and everything is gone. So this notebook is
# mostly about controls.

# %%
import pandas as pd

import locos_tl as lt

pd.set_option("display.max_colwidth", 100)  # answers in full
model = lt.load_model("smollm2-135m")

# %% [markdown]
# ## Three sets of trials that share nothing
#
# Heads are *ranked* on some trials, what they are replaced by is *calibrated* on others, and the effect is
# *evaluated* on a third set. No needle is in two of them. A head that was chosen because it worked on a trial will
# look good on that trial.

# %%
trials = lt.load_trials("nonliteral", n=16, lengths=64, depths=(0.5, 1.0), seed=5, tokenizer=model)
ranking, calibration, evaluation = lt.split_by_needle(trials, (6, 6, 4))
needles = [{trial.needle_id for trial in part} for part in (ranking, calibration, evaluation)]
assert sum(map(len, needles)) == len(set.union(*needles))
print(len(ranking), "rank,", len(calibration), "calibrate,", len(evaluation), "evaluate")

# %%
scores = lt.score_heads(model, ranking, "locos", max_new_tokens=14)
print(f"{scores.passed} of {scores.total} ranking trials passed")
locos = scores["locos"]
locos.top(5)[["layer", "head", "score", "ci_low", "ci_high"]].round(2)

# %% [markdown]
# ## One answer, with and without five heads
#
# What does it mean to take a head away? Its activation has to become *something*. Zero also takes away what the
# head adds to every prompt alike, on which later layers count, and so breaks more than the head's work here. The
# **mean** over calibration prompts keeps that constant part and takes away only what the head says about *this*
# prompt.
#
# And which activation? At `"q"`, the query: the head then attends as it would on average, and still writes values. At
# `"z"`, its output: it then writes the same everywhere.

# %%
means = lt.calibrate_means(model, calibration)
means.n_tokens

# %%
asked = trials[[t.trial_id for t in trials].index(locos.trial_ids[0])]  # one that the model answers
five = locos.top(5)


def answer(trial: lt.Trial, **how: object) -> str:
    """What the model says, with the five heads ablated if told how."""
    if not how:
        return model.tokenizer.decode(lt.generate(model, trial, 14).generated_ids)
    with lt.ablation(model, five, **how) as ablated:
        text = model.tokenizer.decode(lt.generate(model, trial, 14).generated_ids)
    assert all(ablated.firings.values())  # every ablated layer was really replaced
    return text


print("needle:  ", asked.needle, "\nquestion:", asked.question)
answers = pd.Series(
    {
        "query, mean": answer(asked, at="q", mode="mean", means=means),
        "output, mean": answer(asked, at="z", mode="mean", means=means),
        "output, zero": answer(asked, at="z", mode="zero"),
        "whole model, afterwards": answer(asked),
    },
    name="answer",
)
answers.to_frame()

# %% [markdown]
# After each block the model is whole again: the last row is what it said when it was scored. A context manager that
# left something behind would spoil every later cell.

# %%
(scored,) = [outcome for outcome in scores.outcomes if outcome.trial_id == asked.trial_id]
assert answers["whole model, afterwards"].startswith(scored.generated_text)
assert model.interventions == []
print(scored.generated_text)

# %% [markdown]
# ## A sweep, with controls
#
# `ablate_sweep` answers every evaluation trial without the first k heads of a ranking, for each k, and beside it
# without
#
# - k heads at **random**: how much does *any* k heads cost?
# - the k **lowest** of the ranking: LOCOS is signed, so these write against the answer. Do they act the other way?
#
# The metric is read off the generated text. `contains`: the name occurs. `rouge_l`: overlap with the gold answer.

# %%
sweep = lt.ablate_sweep(model, evaluation, locos, ks=(1, 5), means=means, random_seeds=(42,), max_new_tokens=12)
lt.figures.sweep(sweep, metric="contains")

# %%
summary = sweep.summary()
summary[summary["metric"] == "contains"][["method", "k", "mean", "ci_low", "ci_high", "drop"]].round(2)

# %% [markdown]
# Read the answers behind the numbers. A metric that falls because the model now rambles, or says nothing, is another
# finding than one that falls because it names somebody else.

# %%
frame = sweep.to_frame()
first = frame["trial_id"] == frame["trial_id"].iloc[0]
frame[first & frame["k"].isin([0, 5])][["method", "k", "contains", "text", "answer"]]

# %%
before = sweep.baseline("contains").mean()
left = {name: float(sweep.values(name, 5, "contains").mean()) for name in sweep.methods}
print(f"of {len(sweep.trial_ids)} trials, the whole model answers {before:.0%}; without 5 heads of")
for name, share in left.items():
    print(f"  {name:13} {share:.0%}")
assert before > 0
assert left["locos"] < left["random"]

# %% [markdown]
# **What a fair comparison needs**, and whether this one has it:
#
# | | here |
# |---|---|
# | evaluated on prompts that ranked nothing and calibrated nothing | yes; the library refuses otherwise |
# | the same k for every method | yes |
# | random heads, several seeds | one seed: too few, take three or more |
# | a baseline that is not zero: what is not answered cannot be lost | see the printed share |
# | enough trials | **no**: with four, one trial is 25 points |
#
# With 100 trials, three seeds and other detectors beside LOCOS, the same call gives the tables of
# `docs/findings.md`.
#
# The library insists on the first row:

# %%
try:
    lt.ablate_sweep(model, ranking, locos, ks=1, means=means)
except ValueError as refusal:
    print(refusal)

# %% [markdown]
# ## Do these heads do anything else?
#
# A model that has lost all abilities has lost retrieval too. So ask something that needs no context, without the same
# heads: the country of a city, from memory. **Dissociation** compares the two relative drops:
#
#     DS(k) = (R0 - Rk) / R0 - (P0 - Pk) / P0
#
# 1 when retrieval is gone and the control untouched, 0 when both fall alike, below 0 when the control suffers more.

# %%
cities = lt.load_trials("city_country", n=6, seed=1, tokenizer=model)
control = lt.ablate_sweep(
    model, cities, locos, ks=5, means=means, controls=(), metrics=("contains",), max_new_tokens=14
)
control.to_frame()[["method", "k", "contains", "text", "answer"]].iloc[:6]

# %%
dissociation = lt.dissociation(sweep, control, metric="contains", method="locos")
columns = ["k", "score", "score_low", "score_high", "retrieval_drop", "control_drop", "n_trials", "n_control_trials"]
dissociation.to_frame()[columns].round(2)

# %% [markdown]
# Look at the width of the interval before the score. And look at both drops: a score near zero may mean that
# nothing fell or that everything did.

# %%
row = dissociation.best("locos")
if row.score_low > 0:
    told = "these heads serve retrieval more than recall, as far as these trials can tell"
elif row.score_high < 0:
    told = "these heads serve recall more than retrieval, as far as these trials can tell"
else:
    told = "the interval holds zero, so nothing can be said"
print(f"k = {row.k}: DS {row.score:.2f} ({row.score_low:.2f} to {row.score_high:.2f}): {told}")

# %% [markdown]
# In a model this small, the heads that write answers may well write answers of every kind: `docs/findings.md` has
# this on 60 questions of each kind. Report it as it comes out.

# %% [markdown]
# ## Exercises
#
# **Exercise 1.** Ablate the single *lowest* head by LOCOS. Does the model say the right name more readily? Compare
# the name's logit on one trial, at the step at which the whole model says it.
#
# <details><summary>Solution</summary>
#
# ```python
# said = lt.generate(model, asked, 14)
# step = scored.answer_steps[0]
# ids = [*asked.prompt_ids, *said.generated_ids[:step]]
# name = said.generated_ids[step]
# assert model.forward(ids)[-1].argmax() == name
# logprob = {"whole": float(model.forward(ids)[-1].log_softmax(-1)[name])}
# for label, heads in {"without the lowest": locos.bottom(1), "without the first": locos.top(1)}.items():
#     with lt.ablation(model, heads, means=means):
#         logprob[label] = float(model.forward(ids)[-1].log_softmax(-1)[name])
# print({label: round(value, 3) for label, value in logprob.items()})
# assert logprob["without the first"] != logprob["whole"]
# ```
#
# </details>

# %% [markdown]
# **Exercise 2.** Show that ablating the query changes where a head looks, and ablating its output does not.
#
# <details><summary>Solution</summary>
#
# ```python
# import torch
#
# layer, head = locos.ranking()[0]
# hook = f"blocks.{layer}.attn.hook_pattern"
#
#
# def pattern() -> torch.Tensor:
#     """Where the head looks from the last prompt token."""
#     with torch.inference_mode():
#         _, cache = model.hooked.run_with_cache(model.tokens(asked.prompt_ids), names_filter=hook)
#     return cache[hook][0, head, -1]
#
#
# usual = pattern()
# with lt.ablation(model, [(layer, head)], at="z", means=means):
#     at_output = pattern()
# with lt.ablation(model, [(layer, head)], at="q", means=means):
#     at_query = pattern()
# assert torch.allclose(at_output, usual, atol=1e-6)
# assert not torch.allclose(at_query, usual, atol=1e-3)
# ```
#
# </details>

# %% [markdown]
# **Exercise 3.** How many of the heads that a random control draws are by accident among the first ten of LOCOS?
# What does that do to the control as k grows?
#
# <details><summary>Solution</summary>
#
# ```python
# drawn = sweep.rankings["random-42"]
# leaders = set(locos.ranking()[:10])
# hit = [head for head in drawn if head in leaders]
# n_heads = model.n_layers * model.n_heads
# print(f"{len(hit)} of {len(drawn)}; expected {len(drawn) * 10 / n_heads:.2f}, and at k = 50 {50 * 10 / n_heads:.1f}")
# assert len(hit) < len(drawn)
# ```
#
# </details>
