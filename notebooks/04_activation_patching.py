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
# # 4. Activation patching: what a head does, by every path
#
# Open and run: `pip install -c constraints.txt -e '.[notebooks]'`, then open this file as a notebook (JupyterLab
# with jupytext), or `jupytext --to ipynb notebooks/04_activation_patching.py`.
#
# LOCOS counts one path: from a head straight to the logits. A head may also work through later heads and MLPs. To
# measure all of that, put one clean activation into a run that lacks the fact, and see how much of the answer comes
# back. Then ask the question that LOCOS invites: are its heads late only because late heads have no other path?

# %%
import pandas as pd

import locos_tl as lt

model = lt.load_model("smollm2-135m")

# %% [markdown]
# ## Clean and corrupt
#
# Patching needs two prompts of equal length, token for token: in the *clean* one the answer is right, in the
# *corrupt* one it is not. Start with a pair that everybody in the field knows, because it is short: whom does the
# drink go to?

# %%
pair = lt.PromptPair.from_text(
    model,
    "When Mary and John went to the shop, John gave a drink to",
    "When Mary and John went to the shop, Mary gave a drink to",
    answer=" Mary",
    counterfactual=" John",
)
print("the prompts differ at", [model.tokenizer.decode([pair.clean_ids[i]]) for i in pair.differing])

# %% [markdown]
# The metric is a **logit difference**: the answer's logit minus that of the counterfactual. It looks at what tells
# the two answers apart, and leaves out all that raises both. `patch_heads` runs the corrupt prompt once for every
# head, with this head's output `z` taken from the clean run at all positions. The *effect* is the patched metric
# minus the corrupt one; the *recovery* is the effect as a share of what the corruption took away.

# %%
total = lt.patch_heads(model, pair)
print(f"logit difference: {total.clean[0]:.2f} clean, {total.corrupt[0]:.2f} corrupt, gap {total.gap[0]:.2f}")
assert total.clean[0] > 0 > total.corrupt[0]
total.top(5)[["layer", "head", "effect", "recovery"]].round(3)

# %%
lt.figures.heatmap(total, top_k=5)

# %% [markdown]
# Red heads are as real as blue ones: their clean activation moves the metric *away* from the clean answer. Nothing
# forces the effects to add up to the gap, either, because one head's effect may go through another head that is
# counted too.

# %%
added = float(total.mean_recovery.sum())
print(f"recoveries of all {total.mean.size} heads, added: {added:.2f} (1 would be the whole gap)")

# %% [markdown]
# ## The gradient's estimate
#
# Exact patching costs a run per head. **Attribution patching** takes one backward pass instead: the difference of
# the activations times the gradient of the metric, for all heads at once. It is the effect to first order, and
# misses what is not linear, such as a softmax that saturates. Never trust it unseen: compare it once on your model.

# %%
estimate = lt.attribution_patching(model, pair)
pd.Series(total.agreement(estimate, ks=(5, 10))).round(2)

# %% [markdown]
# ## A needle
#
# Now the trials of this library. Three things happen below: the model answers, `corrupt` replaces the needle by one
# of the same length about somebody else, and both prompts are continued with what the model said before the name.

# %%
trials = lt.load_trials("nonliteral", n=4, lengths=64, depths=1.0, seed=5, tokenizer=model)
scores = lt.score_heads(model, trials, ("locos", "attention_spatial"), max_new_tokens=14)
passed = [i for i, outcome in enumerate(scores.outcomes) if outcome.passed]
print(f"{len(passed)} of {scores.total} trials passed")
assert len(passed) >= 2

# %%
clean = trials[passed[0]].with_generation(scores.outcomes[passed[0]].generated_ids)
corrupted = lt.corrupt(clean, "swap", model)
needle = lt.PromptPair.from_trials(model, clean, corrupted)
print("clean:   ", clean.needle)
print("corrupt: ", corrupted.needle)
print("question:", clean.question)
print("both go on:", repr(model.tokenizer.decode(needle.clean_ids[clean.n_tokens : needle.answer_span[0]])))
print("and then, in the clean run:", repr(model.tokenizer.decode(needle.answer_ids)))

# %% [markdown]
# Two kinds of corruption ask two questions. `"swap"`: which heads tell *this* fact from another one? `"filler"`
# (plain prose in place of the needle): which heads need a fact at all? The counterfactual is the token that the
# corrupt run likes best after the gold one.
#
# All 270 heads of a prompt of this length take 15 to 30 seconds exactly. So estimate all of them, and be exact
# about a few.

# %%
estimate = lt.attribution_patching(model, needle)
direct = lt.direct_effects(model, needle)
gap = float(estimate.gap[0])
print(f"logit difference: {estimate.clean[0]:.2f} clean, {estimate.corrupt[0]:.2f} corrupt")
assert gap > 0
estimate.top(5)[["layer", "head", "effect", "recovery"]].round(3)

# %% [markdown]
# `direct_effects` restores the same activation, but lets it reach only the logits, over the residual stream. The
# difference is the **indirect effect**: what the head does by way of later layers.
#
# Exact total effects for the first three heads, for the one that works against the answer most, and for one from the
# middle of the list, which should be near zero:

# %%
order = estimate.ranking()
chosen = [*order[:3], order[-1], order[len(order) // 2]]
rows = []
for head in chosen:
    exact = float(lt.patch_together(model, needle, heads=[head])[0]) * gap
    rows.append(
        {
            "head": f"L{head[0]}H{head[1]}",
            "total, exact": exact,
            "total, estimated": estimate.mean[head],
            "direct": direct.mean[head],
            "indirect": exact - direct.mean[head],
        }
    )
table = pd.DataFrame(rows).set_index("head")
table.round(3)

# %%
error = (table["total, exact"] - table["total, estimated"]).abs().max()
print(f"largest error of the estimate among these heads: {error:.2f} logits, of a gap of {gap:.2f}")
for head, row in table.iloc[:3].iterrows():
    share = row["direct"] / row["total, exact"]
    how = "mostly direct" if share > 0.6 else "mostly through later layers" if share < 0.4 else "both ways"
    print(f"{head}: {share:.0%} of its total effect is direct ({how})")
assert table["total, exact"].iloc[:2].min() > 0

# %% [markdown]
# A head in the last layer has no later layer to go through (except the MLP of its own layer). The lower a head
# sits, the more of its effect can be indirect, and LOCOS cannot see that part.
#
# ## Together
#
# Restore the first heads in *one* run. If they did separate things, the recoveries would add up. If they do the
# same thing one for the other, or one through the other, the joint recovery is less than the sum.

# %%
first = order[:3]
together = float(lt.patch_together(model, needle, heads=first)[0])
alone = float(table["total, exact"].iloc[:3].sum()) / gap
print(f"one by one, added: {alone:.2f}   together: {together:.2f}   (1 is the whole gap)")
assert together > table["total, exact"].iloc[:3].max() / gap * 0.5

# %% [markdown]
# ## Late because of the score?
#
# `validate_late_layers` does the above on every trial that was scored, and compares layer profiles: LOCOS, attention,
# direct effect, and total effect. Exact patching is the default and the one to publish; the estimate is quick.

# %%
late = lt.validate_late_layers(model, trials, scores, total="attribution")
columns = ["method", "profile_last_third", "profile_centre_of_mass", "gini", "spearman"]
late.to_frame()[columns].round(2)

# %%
lt.figures.late_layers(late)

# %%
print(late.verdict, "-", late.reason)
assert late.n_trials == len(passed)
assert late.verdict == "undecided" or late.n_trials >= 10

# %% [markdown]
# The rule of the verdict was fixed before looking, and below ten trials it refuses to judge: this notebook runs on a
# handful so as to be quick. With 60 trials and exact patching it says what
# `docs/findings.md` reports.
#
# What to read off the table, however many trials there are:
#
# - *Direct* effect as late as LOCOS is no news: it is the same path, measured by intervention.
# - *Total* effect as late as LOCOS is the news. It counts every path and could lie anywhere.
# - A rank correlation near zero over all heads does not contradict that: most heads do nothing, in an order of noise.

# %%
lt.figures.locos_against_total(late, n_missed=5)

# %%
late.missed(n=5, within=10)

# %% [markdown]
# Heads in this list have a large estimated effect and a low LOCOS score. They write the answer from positions other
# than the needle, to which earlier heads have brought it, or they work through later layers. LOCOS is not wrong
# about them; it asks another question.

# %% [markdown]
# ## Exercises
#
# **Exercise 1.** Of the drink sentence: patch *where heads read* instead of what they output (`at="q"` restores a
# head's query). Are the heads the same as with `at="z"`? Take the estimate, which is quick.
#
# <details><summary>Solution</summary>
#
# ```python
# by_query = lt.attribution_patching(model, pair, at="q")
# shared = set(by_query.ranking()[:10]) & set(total.ranking()[:10])
# print(f"{len(shared)} of the first ten heads by query are among the first ten by output")
# assert by_query.mean.shape == total.mean.shape
# ```
#
# </details>

# %% [markdown]
# **Exercise 2.** Patch the *values* (`at="v"`). Why has the map three columns and not nine?
#
# <details><summary>Solution</summary>
#
# ```python
# by_value = lt.attribution_patching(model, pair, at="v")
# assert by_value.head_axis == "KV head"
# assert by_value.mean.shape == (model.n_layers, model.n_key_value_heads)  # values belong to key-value heads
# print(by_value.top(3))
# ```
#
# </details>

# %% [markdown]
# **Exercise 3.** Swap clean and corrupt. Is the effect of a head the same the other way round? (It need not be: the
# rest of the run is another one.)
#
# <details><summary>Solution</summary>
#
# ```python
# import numpy as np
#
# back = lt.PromptPair(
#     pair.corrupt_ids[:-1] + (pair.counterfactual,),
#     pair.clean_ids[:-1] + (pair.counterfactual,),
#     pair.answer_span,
#     counterfactual=pair.answer_ids[0],
# )
# there, reverse = lt.attribution_patching(model, pair), lt.attribution_patching(model, back)
# assert np.allclose(reverse.gap, there.gap, atol=0.05)  # the same two prompts
# print({name: round(value, 2) for name, value in there.agreement(reverse, ks=(5,)).items()})
# ```
#
# </details>
