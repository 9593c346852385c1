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
# # 2. Find retrieval heads, and compare detectors
#
# Open and run: `pip install -c constraints.txt -e '.[notebooks]'`, then open this file as a notebook (JupyterLab
# with jupytext), or `jupytext --to ipynb notebooks/02_find_retrieval_heads.py`.
#
# Notebook 1 looked at one prompt. One prompt is an anecdote: here several are scored, by several detectors at once.
# You will see which heads lead, how sure that is, whether literal questions use the same heads, and what a detector
# misses that waits for copies.

# %%
import numpy as np
import pandas as pd

import locos_tl as lt

pd.set_option("display.max_colwidth", 100)  # answers in full
model = lt.load_model("smollm2-135m")

# %% [markdown]
# ## Trials
#
# A trial is a needle in a page of prose, and a question about its meaning. The grid is balanced over lengths,
# places of the needle, needles and names. Eight short trials keep this notebook quick. **That is far too few for a
# result**; the figures of `docs/findings.md` rest on 87 answered trials.

# %%
trials = lt.load_trials("nonliteral", n=8, lengths=(64, 128), seed=42, tokenizer=model)
print(model.tokenizer.decode(trials[2].prompt_ids))

# %% [markdown]
# ## One pass, all detectors
#
# `score_heads` decodes every answer and gates it. Only trials that the model answers count: a head cannot be shown to
# retrieve what was not retrieved. (The decode limit is 50 tokens by default; 16 keep this quick.)

# %%
scores = lt.score_heads(model, trials, max_new_tokens=16)
scores

# %%
outcomes = scores.outcomes_frame()
outcomes[["passed", "gate_value", "length", "depth", "needle", "answer", "generated_text"]]

# %% [markdown]
# Read the answers before you read any score. The gate is a recall of words, and lenient: "it is not Felix" passes for
# Felix.

# %%
print(f"{scores.passed} of {scores.total} trials passed; {len(scores)} detectors: {', '.join(scores)}")
assert scores.passed >= 3

# %% [markdown]
# ## The map and the table

# %%
lt.figures.heatmap(scores["locos"])

# %%
top = scores["locos"].top(10)
top

# %% [markdown]
# The intervals come from resampling the trials. With so few trials they are rough (a percentile bootstrap over a
# handful of trials is too narrow), and they say nothing about other models, other kinds of needle or other lengths.
# What they do tell: which heads are apart from zero, and which of them overlap so much that their order means
# nothing.

# %%
clear = top[top["ci_low"] > 0]
neighbours = [(a, b) for a, b in zip(top.index[:-1], top.index[1:], strict=True)]
tied = sum(top.loc[b, "ci_high"] > top.loc[a, "ci_low"] for a, b in neighbours)
print(f"{len(clear)} of the first {len(top)} heads have an interval above zero.")
print(f"{tied} of {len(neighbours)} neighbours in the table have overlapping intervals: their order is open.")

# %% [markdown]
# And the mean hides the trials. Here are the first five heads, trial by trial.

# %%
best = scores["locos"].ranking()[:5]
pd.DataFrame(
    {f"L{layer}H{head}": scores["locos"].per_trial[:, layer, head] for layer, head in best},
    index=outcomes.loc[outcomes["passed"], "answer"],
).round(2)

# %% [markdown]
# ## One head in one trial
#
# A score says that a head writes the answer, `phi` says from where: here are the tokens of one trial from which the
# best head writes it.

# %%
layer, head = best[0]
number = int(np.flatnonzero(outcomes["passed"])[0])
trial = trials[number].with_generation(outcomes["generated_ids"][number])
phi = lt.phi(model, trial)[layer, head].mean(0)  # mean over the answer's tokens
start, end = trial.needle_span
ids = (*trial.prompt_ids, *trial.generated_ids)
positions = phi.argsort(descending=True)[:5].tolist()
pd.DataFrame(
    {
        "token": [repr(model.tokenizer.decode([ids[j]])) for j in positions],
        "phi": phi[positions].numpy().round(3),
        "in the needle": [start <= j < end for j in positions],
    }
)

# %% [markdown]
# The run kept a few trials token by token, for every head. The explorer links them with the map: click a head, or
# move with the arrow keys, and see where it reads, what it writes, and which tokens its output makes more likely.
# (Where widgets are missing, a still heatmap stands here.)

# %%
lt.explore(scores)

# %% [markdown]
# ## Other detectors, same trials
#
# All of them were measured in the same pass. Spearman correlation below the diagonal, overlap of the first ten
# heads above it. `random` is the control: whoever agrees with a detector no more than `random` does has found
# something else.

# %%
lt.figures.agreement(scores, k=10)

# %% [markdown]
# ### What a copy detector misses
#
# `wu` (Wu et al. 2025) counts the steps at which a head's strongest key lies in the needle *and holds the token
# that is being generated*. Watch what that asks for: the name in the needle and the name in the answer must be the
# same tokens. At the start of a sentence "Boris" may be cut as `B`, `oris`, and inside one as ` Boris`. Then
# nothing is copied, whatever the head writes.


# %%
def ranks_of(heads: list[tuple[int, int]], detector: str) -> pd.api.extensions.ExtensionArray:
    """The rank that a detector gives to each head; none to a score of exactly 0, among which there is no order."""
    held, order = scores[detector].mean, scores[detector].ranking()
    return pd.array([order.index(head) + 1 if held[head] != 0 else None for head in heads], dtype="Int64")


leaders = scores["locos"].ranking()[:10]
others = ["attention_spatial", "wu", "contrastive", "headkv"]
table = pd.DataFrame({"locos": range(1, 11)} | {name: ranks_of(leaders, name) for name in others})
table.index = pd.Index([f"L{layer}H{head}" for layer, head in leaders], name="rank by")
table["wu score"] = [scores["wu"].mean[head] for head in leaders]
table

# %%
silent = [head for head in leaders if scores["wu"].mean[head] == 0]
nonzero = int((scores["wu"].mean > 0).sum())
print(f"wu gives {nonzero} of {model.n_layers * model.n_heads} heads a score at all;")
print(f"{len(silent)} of the 10 heads that write most get none: {[f'L{a}H{b}' for a, b in silent]}")
for name in others:
    beyond = table[name].fillna(model.n_layers * model.n_heads) > 20
    print(f"beyond rank 20 by {name}: {beyond.sum()} of 10")
assert nonzero < model.n_layers * model.n_heads / 2

# %% [markdown]
# And the other way round: heads that look at the needle more than most, and write nothing towards the answer, or
# against it. Attention cannot tell them from the first kind; the write can.

# %%
spatial = scores["attention_spatial"]
readers = spatial.ranking()[:10]
pd.DataFrame(
    {
        "attention": [spatial.mean[head] for head in readers],
        "locos": [scores["locos"].mean[head] for head in readers],
        "rank by locos": ranks_of(readers, "locos"),
    },
    index=[f"L{layer}H{head}" for layer, head in readers],
).round(3)

# %% [markdown]
# ## Literal against non-literal
#
# The same needles, names and places, asked in the needle's own words. Grids that differ in `kinds` only are twins,
# trial by trial. Does the model use other heads when it could match words?

# %%
twins = lt.load_trials("nonliteral", n=8, lengths=(64, 128), kinds="literal", seed=42, tokenizer=model)
for one, other in zip(trials, twins, strict=True):
    assert one.needle == other.needle
    assert one.depth == other.depth
print("by meaning:", trials[0].question, "\nliterally: ", twins[0].question)

# %%
literal = lt.score_heads(model, twins[:6], "locos", max_new_tokens=24)  # literal answers are longer
print(f"answered: {literal.passed} of {literal.total} literally, {scores.passed} of {scores.total} by meaning")
agreement = lt.results.statistics.rank_agreement(scores["locos"].mean, literal["locos"].mean, ks=(5, 10))
pd.Series(agreement).round(2)

# %% [markdown]
# Two yardsticks are needed to read these numbers. The first: how well does the non-literal ranking agree with
# *itself*, half of the trials against the other half? More than that cannot be asked for. The second: chance.

# %%
itself = [scores["locos"].split_half(seed) for seed in range(20)]
chance = 10 / (model.n_layers * model.n_heads)
print(f"Spearman, literal against non-literal: {agreement['spearman']:.2f}")
print(f"Spearman, half against half of the non-literal trials: {np.mean(itself):.2f}")
print(f"of the first ten heads {agreement['overlap@10']:.0%} are shared; two random lists would share {chance:.0%}")

# %% [markdown]
# If the first ten are mostly the same although the correlation over all heads is low, then the few heads at the top
# are shared, and the order of the many that do nothing is noise. A correlation over all heads mostly measures that
# noise: look at the top, and at causes (notebooks 4 and 5).

# %% [markdown]
# ## Exercises
#
# **Exercise 1.** The score is signed. Which heads write *against* the answer, and do they do so in every trial?
#
# <details><summary>Solution</summary>
#
# ```python
# worst = scores["locos"].bottom(5)
# against = scores["locos"].per_trial[:, worst["layer"], worst["head"]]  # [trial, head]
# worst["share of trials below 0"] = (against < 0).mean(0)
# assert (worst["score"] < 0).all()
# print(worst[["layer", "head", "score", "ci_low", "ci_high", "share of trials below 0"]])
# ```
#
# </details>

# %% [markdown]
# **Exercise 2.** How different are two *single* trials? Rank the heads on each trial alone, and find the mean
# overlap of the first ten over all pairs of trials.
#
# <details><summary>Solution</summary>
#
# ```python
# from itertools import combinations
#
# tops = [scores["locos"].ranking(trial_id)[:10] for trial_id in scores["locos"].trial_ids]
# shared = [lt.results.statistics.overlap_at_k(a, b, 10) for a, b in combinations(tops, 2)]
# assert all(0 <= share <= 1 for share in shared)
# print(f"two trials share {np.mean(shared):.0%} of their first ten heads ({min(shared):.0%} to {max(shared):.0%})")
# ```
#
# </details>

# %% [markdown]
# **Exercise 3.** `dla` sums `phi` over all keys and does not contrast needle and rest. Which of its first ten heads
# does LOCOS not have among its own, and why?
#
# <details><summary>Solution</summary>
#
# ```python
# only_dla = [head for head in scores["dla"].ranking()[:10] if head not in leaders]
# for layer, head in only_dla:
#     total, contrast = scores["dla"].mean[layer, head], scores["locos"].mean[layer, head]
#     print(f"L{layer}H{head}: writes {total:.2f} in all, {contrast:.2f} by contrast: it writes from elsewhere too")
# assert not set(only_dla) & set(leaders)
# ```
#
# </details>
