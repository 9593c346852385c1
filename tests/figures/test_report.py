"""The report is one safe file: whole, offline, escaped, small, and honest about what passed."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

from locos_tl.figures import tables, write_report
from locos_tl.figures.report import CONFIG, render
from locos_tl.results.late_layers import LateLayers
from locos_tl.results.scores import Scores
from locos_tl.results.sweep import Sweep
from locos_tl.text import number

PLOTLY_MARKER = "Licensed under the MIT license\n*/"
EVIL = "<script>alert(1)</script>"


class Page(HTMLParser):
    """Tags with their attributes, script texts by id, and all visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.text = self.style = ""
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._open = tag
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag):
        self._open = ""

    def handle_data(self, data):
        if self._open == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)
        elif self._open == "style":
            self.style += data
        else:
            self.text += data

    def json_blocks(self):
        return {
            attributes["id"]: json.loads(text, parse_constant=pytest.fail)
            for attributes, text in self.scripts
            if attributes.get("type") == "application/json"
        }


@pytest.fixture(scope="module")
def page(make_scores):
    return Page(render(make_scores()))


def with_text(scores: Scores, text: str) -> Scores:
    """The same run with the text in every place that foreign text reaches."""
    first, *rest = scores.outcomes
    spoilt = dataclasses.replace(
        first,
        trial_id=text,
        answer=text,
        generated_text=f"so {text}!",
        trial=dict.fromkeys(("needle", "question", "kind", "relation", "length", "depth"), text),
    )
    provenance = {"date": text, "model": {"name": text, "revision": text, "dtype": text}, text: [text]}
    heads = {text if name == "dla" else name: held for name, held in scores.items()}
    return Scores(heads, (spoilt, *rest), provenance)


def test_file_is_written_and_its_path_returned(tmp_path, make_scores):
    scores = make_scores(4, 4, 2, detectors=("locos",))
    path = write_report(scores, tmp_path / "deep" / "page.html")
    assert path == tmp_path / "deep" / "page.html"
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert write_report(scores, tmp_path) == tmp_path / "report.html"
    assert [entry.name for entry in (tmp_path / "deep").iterdir()] == ["page.html"]


def test_many_detectors_stay_below_8_mb_with_one_library(make_scores):
    text = render(make_scores(detectors=[f"detector {i}" for i in range(10)]))
    parsed = Page(text)
    assert {name for name in parsed.json_blocks() if name.startswith("figure-")} == {
        "figure-profile",
        "figure-distribution",
        "figure-agreement",
    }
    assert len(parsed.json_blocks()["explorer-data"]["maps"]) == 10
    assert text.count(PLOTLY_MARKER) == 1
    assert len(text.encode()) < 8e6


def test_a_64_by_64_model_with_long_readings_stays_below_8_mb(make_scores, make_reading):
    run = make_scores(64, 64, 8)
    kept = [*range(8), *range(28, 60), *range(7900, 8000)]
    reading = make_reading(run["locos"].trial_ids[0], 64, 64, n_keys=8000, kept=kept, n_own=30)
    assert len(render(dataclasses.replace(run, readings=(reading,) * 3)).encode()) < 8e6


def test_nothing_is_loaded_from_elsewhere(page):
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "img", "object", "base")
        assert not {"src", "srcset", "action"} & set(attributes)
        assert attributes.get("href", "#").startswith("#")
    assert not re.search(r"https?:|@import|url\(", page.style)
    policy = next(a["content"] for t, a in page.tags if t == "meta" and "http-equiv" in a)
    assert "default-src 'none'" in policy


def test_the_share_button_is_off(page):
    assert page.json_blocks()["config"] == CONFIG
    assert CONFIG == {"showSendToCloud": False, "displaylogo": False, "responsive": True}


def test_every_plot_has_its_data_and_a_text_alternative(page):
    plots = [attributes for _, attributes in page.tags if "data-figure" in attributes]
    assert len(plots) == 3
    blocks = page.json_blocks()
    for attributes in plots:
        assert blocks[f"figure-{attributes['data-figure']}"]["data"]
        assert attributes["role"] == "img"
        assert len(attributes["aria-label"]) > 40


def test_ids_are_unique(page):
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))


def test_every_detector_is_told_in_text_too(page, make_scores):
    for name, held in make_scores().items():
        layer, head = held.ranking()[0]
        assert f"L{layer}H{head}" in page.text, name
    assert "strongest attention" in page.text


def test_page_tells_model_passes_and_reasons(page):
    for text in (
        "SmolLM2-135M-Instruct",
        "7e27bd9f95328f0f3b08261d1252705110c806f8",
        "2026-11-30",
        "19 of 48 trials passed",
        "gate 0 ≤ 50",
        "gate 100 > 50",
        "the answer was not found in the text",
        "close call",
        "stopped at the step limit",
        "By length",
        "By depth",
        "By kind",
        "passed (19)",
        "failed (29)",
        "3 seeds",
        "transformer_lens",
    ):
        assert text in page.text, text


def test_pass_rates_count_right(make_scores):
    scores = make_scores()
    table = re.sub(r"<[^>]+>", " ", tables.pass_rates(scores.outcomes))
    for kind in ("literal", "onehop", "twohop"):
        rows = [o.passed for o in scores.outcomes if o.trial["kind"] == kind]
        assert re.search(rf"{kind}\s+{sum(rows)} / {len(rows)}", table)
    assert table.index("literal") < table.index("onehop") < table.index("twohop")
    rows = [o.passed for o in scores.outcomes if o.trial["depth"] == 0.5]
    assert re.search(rf"50\s%\s+{sum(rows)} / {len(rows)}", table)


@pytest.mark.parametrize(("key", "factor"), [("depth_asked", 1), ("depth", 1), ("depth", 100)])
def test_depth_is_a_share_or_percent_under_either_name(key, factor, make_scores):
    outcomes = [dataclasses.replace(o, trial={key: o.trial["depth"] * factor}) for o in make_scores().outcomes]
    shown = re.sub(r"<[^>]+>", " ", tables.pass_rates(outcomes))
    assert [f"{percent}\u00a0%  " in shown for percent in (0, 25, 50, 75, 100)] == [True] * 5


def test_a_trial_that_names_no_kind_has_no_empty_group(make_scores):
    outcomes = [dataclasses.replace(o, trial=dict(o.trial, kind="")) for o in make_scores().outcomes]
    assert "By kind" not in tables.pass_rates(outcomes)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"passed": True, "gate_value": 66.67}, "gate 66.7 > 50"),
        ({"passed": False, "gate_value": 50.0}, "gate 50 ≤ 50"),
        ({"passed": False, "gate_value": 100.0, "answer_steps": ()}, "but the answer was not found in the text"),
        ({"passed": False, "gate_value": 100.0, "answer_steps": (1,)}, "not counted"),
    ],
)
def test_verdict_says_why(change, why, make_scores):
    assert why in tables.verdict(dataclasses.replace(make_scores().outcomes[0], **change))


def test_very_many_lengths_fall_into_ranges(make_scores):
    outcomes = [dataclasses.replace(o, trial={"length": 1000 + 37 * i}) for i, o in enumerate(make_scores().outcomes)]
    table = tables.pass_rates(outcomes)
    assert table.count("<tr>") == 1 + 8
    assert "1,000 to" in table


def test_trials_without_fields_are_shown_too(make_scores):
    scores = make_scores(4, 4, 2)
    bare = Scores(scores.heads, tuple(dataclasses.replace(o, trial={}) for o in scores.outcomes), {})
    text = Page(render(bare)).text
    assert "neither length nor depth nor kind" in text
    assert "unnamed model" in text
    assert "Page written" in text


def test_foreign_text_cannot_become_markup(make_scores):
    text = render(with_text(make_scores(4, 4, 2), EVIL))
    clean = Page(render(make_scores(4, 4, 2)))
    assert EVIL not in text
    assert [tag for tag, _ in Page(text).tags].count("script") == [tag for tag, _ in clean.tags].count("script")
    assert "alert(1)" in Page(text).text  # shown, as text


@pytest.mark.parametrize(
    "text", ["\"' onload=alert(1) x='", "{{plotly}} {{answers}}", "</script><!--", "]]>&lt;", "\\u003c"]
)
def test_foreign_text_stays_as_it_is(text, make_scores):
    parsed = Page(render(with_text(make_scores(4, 4, 2, detectors=("locos", "dla")), text)))
    assert text in parsed.text
    assert not any("onload" in attributes for _, attributes in parsed.tags)
    assert parsed.json_blocks()


def test_control_characters_do_not_reach_the_page(make_scores):
    text = render(with_text(make_scores(4, 4, 2, detectors=("locos", "dla")), "a\x00\x08\x1b\u202e\ud800b"))
    body = text[: text.index("/**\n* plotly.js")]
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e\ud800-\udfff]", body)
    assert "a␀␈␛[U+202E][U+D800]b" in body
    text.encode()


def test_degenerate_scores_make_strict_json(make_scores, head_scores):
    values = np.zeros((3, 2, 4))
    values[:, 0, 0], values[:, 0, 1] = np.nan, np.inf
    scores = make_scores(2, 4, 2, detectors=("locos",))
    run = Scores({"locos": head_scores(values, n_key_value_heads=2)}, scores.outcomes, {"loss": float("nan")})
    parsed = Page(render(run))
    assert parsed.json_blocks()
    assert "No head has a score above or below 0" in parsed.text


def test_no_pass_and_no_scores_are_said_plainly(make_scores):
    scores = make_scores(4, 4, 2, n_passed=0)
    assert set(scores) == {"headkv", "random"}
    assert "0 of 48 trials passed" in Page(render(scores)).text
    empty = Page(render(Scores({}, (), {})))
    assert "No trial was run" in empty.text
    assert "no head scores" in empty.text


def test_long_runs_show_an_even_sample(make_scores):
    scores = make_scores(2, 4, 2, detectors=("locos",), n_total=3000, n_passed=1500)
    text = render(scores)
    assert text.count("<tr data-state=") == tables.MAX_ANSWERS
    assert "400 of 3,000 trials" in text
    assert "1500 of 3000 trials passed" in text
    assert len(text.encode()) < 8e6


def test_long_texts_are_cut(make_scores):
    scores = make_scores(2, 4, 2, detectors=("locos",))
    first = dataclasses.replace(scores.outcomes[0], generated_text="word " * 1_000_000)
    assert len(render(Scores(scores.heads, (first, *scores.outcomes[1:]), {})).encode()) < 5.2e6


def test_ties_at_zero_are_not_listed(head_scores):
    table = tables.top_heads(head_scores([[0.0, 3.0, 0.0, -1.0]]))
    assert "L0H1" in table
    assert "L0H0" not in table
    assert "score 0 or less" in table


# --- causal evidence ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(make_scores):
    return make_scores(detectors=("locos",))


def test_without_causal_results_there_are_no_causal_sections(page):
    assert "What happens without these heads" not in page.text
    assert "Are they late" not in page.text


def test_the_ablation_section_holds_figure_and_table(small, make_sweep):
    held = make_sweep()
    text = render(small, sweeps=held)
    parsed = Page(text)
    assert "What happens without these heads" in parsed.text
    assert "q is replaced by its mean" in parsed.text
    assert "mean of 3 seeds" in parsed.text
    assert "figure-sweep-0" in parsed.json_blocks()
    curve = held.curve("locos", "rouge_l").set_index("k").loc[20]
    cell = f"{curve['mean']:.2f}<br><small>{curve['ci_low']:.2f} to {curve['ci_high']:.2f}</small>"
    assert cell in text
    assert "locos, worst heads" in parsed.text


def test_sweeps_without_names_are_refused():
    """As users have it, without run-time type checks."""
    code = (
        "from locos_tl.figures.sections import ablation_section\n"
        "try:\n    ablation_section([], {})\nexcept ValueError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert done.stdout == "sweeps must be one Sweep, or several by name {name: sweep}, got list\n", done.stderr


def test_several_sweeps_are_named_and_unfinished_ones_say_so(small, make_sweep):
    whole = make_sweep()
    rows = tuple(r for r in whole.rows if not (r.k == 100 and r.trial_id > "nonliteral-010"))
    part = dataclasses.replace(whole, rows=rows)
    baseline = Sweep(tuple(r for r in whole.rows if r.method == "baseline"))
    parsed = Page(render(small, sweeps={"non-literal": part, "literal": whole, "bare": baseline}))
    for name in ("non-literal", "literal", "bare"):
        assert name in parsed.text
    assert parsed.text.count("11 trials") == len(whole.methods)
    assert "holds no answers with ablated heads" in parsed.text
    assert {"figure-sweep-0", "figure-sweep-1"} <= set(parsed.json_blocks())


@pytest.mark.parametrize(
    ("centre", "headline"),
    [(0.82, "No: the total effect is as late."), (0.45, "At least in part: the total effect is not as late.")],
)
def test_the_late_section_tells_the_verdict_with_its_numbers(small, make_late, centre, headline):
    result = make_late(centre)
    parsed = Page(render(small, late=result))
    assert headline in parsed.text
    assert result.reason in parsed.text
    assert {"figure-late", "figure-against"} <= set(parsed.json_blocks())
    assert number(result.agreement("locos")["spearman"], 2, aligned=True) in parsed.text
    for name in result.missed()["head"]:
        assert name in parsed.text


def test_a_model_without_late_heads_does_not_raise_the_question(small, make_late):
    early = make_late(0.45)
    swapped = LateLayers(
        {"locos": early.maps["total"], "total": early.maps["total"]}, n_resamples=50, n_permutations=500
    )
    parsed = Page(render(small, late=swapped))
    assert "The question does not arise: locos is not late here." in parsed.text


def test_a_gradient_estimate_is_not_called_patching(small, make_late):
    late = make_late(0.45)
    maps = {name: late.maps[name] for name in ("locos", "attribution")}
    parsed = Page(render(small, late=LateLayers(maps, causal="attribution", n_resamples=50, n_permutations=500)))
    told = " ".join(parsed.text.split())
    assert "the attribution estimate of the total effect, a gradient estimate of what" in told
    assert "not as late" in told
    assert "At least in part: the attribution estimate of the total effect is not as late." in told
    assert "measured by putting" not in told
    assert "measured by putting" in " ".join(Page(render(small, late=late)).text.split())


def test_too_few_trials_are_undecided(small, make_late):
    parsed = Page(render(small, late=make_late(n_trials=4)))
    assert "Undecided. 4 trials are too few" in " ".join(parsed.text.split())


def test_text_in_causal_results_is_shown_not_run(small, make_sweep, make_late):
    held = make_sweep(("locos",), metrics=(EVIL,))
    rows = tuple(
        dataclasses.replace(r, method=EVIL if r.k else r.method, trial_id=EVIL + r.trial_id) for r in held.rows
    )
    spoilt = Sweep(rows, {}, {"ablation": {"at": EVIL, "mode": EVIL}, "model": EVIL})
    late = make_late()
    maps = {EVIL: late.maps["locos"], "total": late.maps["total"]}
    text = render(small, sweeps={EVIL: spoilt}, late=LateLayers(maps, EVIL, n_resamples=20, n_permutations=20))
    assert EVIL not in text
    parsed = Page(text)
    assert "alert(1)" in parsed.text
    assert not any("alert(1)" in script for attributes, script in parsed.scripts if not attributes)
    assert text.count("<script") == render(small).count("<script") + 3


def test_everything_together_stays_below_8_mb(make_scores, make_sweep, make_late):
    sweeps = {name: make_sweep(n_trials=200) for name in ("non-literal", "literal")}
    text = render(make_scores(36, 33, 3), sweeps=sweeps, late=make_late(n_layers=36, n_heads=33, n_trials=12))
    assert len(text.encode()) < 8e6
    assert text.count(PLOTLY_MARKER) == 1
