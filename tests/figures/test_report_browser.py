"""The report in a real browser with the network off: it draws, switches, filters and stays quiet."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlparse

import pytest

from locos_tl.figures import explore, write_report
from locos_tl.results.statistics import by_kv_group

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium found (set CHROMIUM to its path)")

QUIET = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--no-first-run",
    "--disable-gpu",
)
DRAWN = """() => document.querySelector(".lx-panel")
    && [...document.querySelectorAll(".plot, .lx-plot")].every(plot => plot.querySelector(".main-svg"))"""
SCREENSHOT = Path(__file__).parents[2] / "build" / "screenshots" / "report.png"
"""Kept to be looked at."""


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def run(make_scores, make_reading):
    """A scoring run with two trials token by token."""
    scores = make_scores()
    return replace(scores, readings=tuple(make_reading(i) for i in scores["locos"].trial_ids[:2]))


@pytest.fixture(scope="module")
def report(tmp_path_factory, run):
    return write_report(run, tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def causal_report(tmp_path_factory, make_scores, make_sweep, make_late):
    """A report that also holds two ablations and a late-layer result."""
    sweeps = {"non-literal": make_sweep(), "literal": make_sweep(strength=0.25, level=0.85, seed=1)}
    return write_report(make_scores(), tmp_path_factory.mktemp("causal"), sweeps=sweeps, late=make_late())


@pytest.fixture
def open_page(browser, report):
    """Opens the report offline; at the end, nothing may have been logged as an error or asked for."""
    troubles, contexts = [], []

    def open_(scheme="light", path=report):
        context = browser.new_context(color_scheme=scheme, offline=True, viewport={"width": 1280, "height": 900})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on(
            "request",
            lambda request: (
                troubles.append(request.url) if urlparse(request.url).scheme not in ("file", "data", "blob") else None
            ),
        )
        page.goto(path.as_uri())
        page.wait_for_function(DRAWN)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert troubles == []


def cell(page, layer, head):
    """Where the head's cell is on the page."""
    plot = page.locator(".lx-plot").first
    plot.scroll_into_view_if_needed()
    return plot.evaluate(
        """(plot, [layer, head]) => {
            const box = plot.getBoundingClientRect(), {xaxis, yaxis} = plot._fullLayout;
            return [box.x + xaxis._offset + xaxis.d2p(head), box.y + yaxis._offset + yaxis.d2p(layer)];
        }""",
        [layer, head],
    )


def hover(page, layer, head):
    """Point at a head of the map; returns the hover text."""
    x, y = cell(page, layer, head)
    page.mouse.move(x - 3, y)
    page.mouse.move(x, y)
    label = page.locator(".lx-plot").first.locator(".hoverlayer .hovertext")
    label.wait_for()
    return label.text_content()


def heads_shown(page):
    return page.locator(".lx-panel").evaluate_all("all => all.map(panel => panel.dataset.head)")


def click_cell(page, layer, head):
    """Click a head; Plotly takes a click only after the pointer has come to the cell."""
    hover(page, layer, head)
    page.mouse.click(*cell(page, layer, head))
    page.wait_for_function("name => document.querySelector('.lx-panel').dataset.head === name", arg=f"L{layer}H{head}")


# --- the explorer ---------------------------------------------------------------------------------


def test_it_opens_at_the_best_head(open_page, make_scores):
    page = open_page()
    layer, head = make_scores()["locos"].ranking()[0]
    assert heads_shown(page) == [f"L{layer}H{head}"]
    text = page.locator(".lx-panel").inner_text()
    assert f"Layer {layer}, head {head}" in text
    assert "1 of 252" in text


def test_clicking_a_cell_shows_its_head_and_tokens(open_page, make_reading):
    page = open_page()
    click_cell(page, 29, 8)
    panel = page.locator(".lx-panel")
    strips = panel.locator(".lx-strip")
    assert strips.count() == 2
    needle = strips.nth(1).locator(".lx-needle")
    assert needle.inner_text().split() == [f"word{i}" for i in range(40, 48)]
    up = panel.get_by_role("table").filter(has_text="Push the answer up").locator("tbody tr")
    assert up.count() == 10
    first = up.first.inner_text()
    assert "word40" in first
    assert "+3" in first, "phi of the needle's first token in the last layer"
    promoted = panel.locator(".lx-words").first.locator("li")
    reading = make_reading()
    assert promoted.count() == 10
    assert promoted.first.inner_text().strip().startswith(reading.vocabulary[int(reading.promoted[29, 8, 0])].strip())
    assert page.locator(".lx-live").text_content().startswith("L29H8: locos")


def test_the_map_works_by_keyboard_alone(open_page, make_scores):
    page = open_page()
    ranking = make_scores()["locos"].ranking()
    best = ranking[0]
    page.locator(".lx-plot").first.focus()
    moves = [
        ("n", ranking[1]),
        ("p", best),
        ("Home", (best[0], 0)),
        ("ArrowRight", (best[0], 1)),
        ("ArrowDown", (best[0] - 1, 1)),
        ("ArrowUp", (best[0], 1)),
        ("End", (best[0], 8)),
        ("ArrowRight", (best[0], 8)),
    ]
    for key, (layer, head) in moves:
        page.keyboard.press(key)
        assert heads_shown(page) == [f"L{layer}H{head}"], key
        assert page.locator(".lx-live").text_content().startswith(f"L{layer}H{head}: locos")
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowLeft")
    assert heads_shown(page) == [f"L{best[0]}H7", f"L{best[0]}H8"]
    page.get_by_role("button", name="Unpin").click()
    assert heads_shown(page) == [f"L{best[0]}H7"]


def test_going_to_a_head_by_name(open_page):
    page = open_page()
    box = page.get_by_label("Go to head")
    box.fill("l3h2")
    box.press("Enter")
    assert heads_shown(page) == ["L3H2"]
    box.fill("L30H0")
    box.press("Enter")
    assert heads_shown(page) == ["L3H2"]
    assert "0 to 29" in box.evaluate("node => node.validationMessage")


def test_switches_change_the_map(open_page, make_scores):
    page = open_page()
    drawn = "document.querySelector('.lx-plot')"
    z = f"{drawn}.data[0].z"
    scores = make_scores()
    page.get_by_label("Map", exact=True).select_option("wu")
    assert page.locator(".lx-caption").inner_text().startswith("wu, 19 of 48 trials")
    assert page.evaluate(f"{z}[29][8]") == pytest.approx(float(scores["wu"].mean[29, 8]), abs=1e-6)
    page.get_by_text("rank", exact=True).click()
    best = scores["wu"].ranking()[0]
    assert page.evaluate(f"{z}[{best[0]}][{best[1]}]") == 0, "log of rank 1"
    page.get_by_text("score", exact=True).first.click()
    page.get_by_text("KV groups", exact=True).click()
    groups = page.evaluate(z)
    assert len(groups[0]) == 3
    summed = by_kv_group(scores["wu"].mean, 3)
    assert groups[29] == pytest.approx(summed[29].tolist(), abs=1e-6)
    page.get_by_text("query heads", exact=True).click()
    trial = scores["wu"].trial_ids[0]
    page.get_by_label("Values", exact=True).select_option(trial)
    assert page.evaluate(z)[29] == pytest.approx(scores["wu"].per_trial[0, 29].tolist(), abs=1e-6)
    assert "one trial" in page.locator(".lx-caption").inner_text()


def test_the_map_has_a_table_with_the_same_heads(open_page, make_scores):
    page = open_page()
    page.get_by_text("The map as a table").click()
    ranking = make_scores()["locos"].ranking()
    names = page.locator(".lx-table tbody button").all_inner_texts()
    assert names == [f"L{layer}H{head}" for layer, head in ranking[:30]]
    page.locator(".lx-table tbody button").nth(4).click()
    assert heads_shown(page) == [names[4]]


def test_marking_in_the_scatter_rings_the_heads_in_the_map(open_page, make_scores):
    page = open_page()
    scores = make_scores()
    page.get_by_role("button", name="top 10 up").click()
    rung = page.evaluate(
        "(({x, y}) => x.map((head, i) => `L${y[i]}H${head}`))(document.querySelector('.lx-plot').data[2])"
    )
    assert set(rung) == {f"L{layer}H{head}" for layer, head in scores["locos"].ranking()[:10]}
    assert page.locator(".lx-brushed").inner_text().startswith("10 marked")
    page.get_by_role("button", name="clear").click()
    area = page.locator(".lx-scatter .nsewdrag").first
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    page.mouse.move(box["x"] + 2, box["y"] + 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + box["height"] - 2, steps=5)
    page.mouse.up()
    page.wait_for_function("() => document.querySelector('.lx-brushed').textContent.includes('marked')")
    names = page.locator(".lx-brushed button").all_inner_texts()
    page.locator(".lx-brushed button").first.click()
    assert heads_shown(page) == [names[0]]


def test_a_long_context_is_folded_until_asked(open_page):
    page = open_page()
    strip = page.locator(".lx-strip").first
    assert strip.locator(".lx-gap").count() >= 1
    folded = strip.locator(".lx-token").count()
    assert folded < 100
    page.get_by_role("button", name="Unfold the context").click()
    assert page.locator(".lx-strip").first.locator(".lx-token").count() == 120


def test_foreign_tokens_are_shown_not_run(open_page, make_scores, make_reading, tmp_path):
    scores = make_scores()
    word = "<img src=x onerror=alert(1)>\u202e"
    reading = make_reading(scores["locos"].trial_ids[0], word=word)
    path = write_report(replace(scores, readings=(reading,)), tmp_path)
    page = open_page(path=path)
    assert page.locator("img").count() == 0
    assert "<img src=x onerror=alert(1)>[U+202E]" in page.locator(".lx-strip").first.inner_text()


def test_hover_reads_a_head_and_a_gap(open_page, make_scores):
    page = open_page()
    layer, head = make_scores()["locos"].ranking()[0]
    text = hover(page, layer, head)
    assert f"L{layer}H{head}" in text
    assert "rank 1 of 252" in text
    assert "sliding-window layer" in hover(page, 4, 2)


def test_a_point_of_another_figure_shows_its_head(open_page):
    page = open_page()
    plot = page.locator("[data-figure=distribution]")
    plot.scroll_into_view_if_needed()
    name, x, y = plot.evaluate(
        """(plot) => {
            const trace = plot._fullData.find(t => t.type === "scatter"), {xaxis, yaxis} = plot._fullLayout;
            const at = trace.customdata.length - 1, box = plot.getBoundingClientRect();
            const [x, y] = [xaxis._offset + xaxis.d2p(trace.x[at]), yaxis._offset + yaxis.d2p(trace.y[at])];
            return [trace.customdata[at], box.x + x, box.y + y];
        }"""
    )
    page.mouse.move(x - 2, y)
    page.mouse.move(x, y)
    plot.locator(".hoverlayer .hovertext").wait_for()
    page.mouse.click(x, y)
    page.wait_for_function("name => document.querySelector('.lx-panel').dataset.head === name", arg=name)


def test_a_page_of_the_explorer_alone_works(open_page, run, tmp_path):
    page = open_page(path=explore(run).save(tmp_path / "explorer.html"))
    page.get_by_label("Go to head").fill("L7H1")
    page.get_by_label("Go to head").press("Enter")
    assert heads_shown(page) == ["L7H1"]


def test_a_picture_of_the_report_is_kept(open_page):
    page = open_page()
    SCREENSHOT.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOT, full_page=True)
    assert SCREENSHOT.stat().st_size > 50_000


# --- the rest of the page -------------------------------------------------------------------------


def test_the_filter_shows_what_it_says(open_page):
    page = open_page()
    for state, count in (("passed", 19), ("failed", 29), ("all", 48)):
        page.get_by_text(f"{state} ({count})").click()
        shown = page.locator(".answers tbody tr:visible")
        assert shown.count() == count


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_figures_are_readable_in_light_and_dark(scheme, open_page):
    page = open_page(scheme)
    ink, background, scale = page.evaluate(
        """() => {
            const plot = document.querySelector('.js-plotly-plot');
            return [plot.layout.font.color, getComputedStyle(document.body).backgroundColor, plot.data[0].colorscale];
        }"""
    )
    brightness = int(ink[1:3], 16)
    assert (brightness > 200) == (scheme == "dark")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")
    other = "dark" if scheme == "light" else "light"
    page.emulate_media(color_scheme=other)
    page.wait_for_function("old => document.querySelector('.js-plotly-plot').layout.font.color !== old", arg=ink)
    assert page.evaluate("document.querySelector('.js-plotly-plot').data[0].colorscale") != scale


def test_the_page_does_not_scroll_sideways(open_page):
    page = open_page()
    for width in (1280, 768, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_there_is_no_button_that_uploads(open_page):
    page = open_page()
    titles = page.locator(".modebar-btn").evaluate_all("all => all.map(b => b.dataset.title || '')")
    assert titles
    assert not any("share" in title.lower() or "cloud" in title.lower() for title in titles)


def test_paper_is_light_and_the_page_recovers(open_page):
    page = open_page("dark")
    before = page.locator("[data-figure=profile]").bounding_box()["height"]
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("#best").get_attribute("open") is not None
    assert page.evaluate("document.querySelector('.js-plotly-plot').layout.font.color") == "#1f2328"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.querySelector('.js-plotly-plot').layout.font.color") == "#e6e9ee"
    assert page.locator("#best").get_attribute("open") is None, "opened for paper only"
    height = page.locator("[data-figure=profile]").bounding_box()["height"]
    assert height == pytest.approx(before, abs=2)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_causal_sections_are_drawn_and_fit(scheme, open_page, causal_report):
    page = open_page(scheme, causal_report)
    page.wait_for_function("() => document.querySelectorAll('.js-plotly-plot .main-svg').length >= 14")
    for section, figures in (("#ablation", ["sweep-0", "sweep-1"]), ("#late", ["late", "against"])):
        assert page.locator(section).get_by_role("heading", level=2).is_visible()
        drawn = page.locator(f"{section} .js-plotly-plot")
        assert drawn.evaluate_all("all => all.map(plot => plot.dataset.figure)") == figures
        assert page.locator(f"{section} table").count() == 2
    ink = page.evaluate("document.querySelector('[data-figure=late]').layout.font.color")
    assert (int(ink[1:3], 16) > 200) == (scheme == "dark")
    for width in (1280, 768, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_pointing_at_a_curve_tells_all_methods(open_page, causal_report):
    page = open_page(path=causal_report)
    plot = page.locator("[data-figure=sweep-0]")
    plot.scroll_into_view_if_needed()
    box = plot.locator(".nsewdrag").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2 - 3, box["y"] + box["height"] / 2)
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    label = plot.locator(".hoverlayer .legend")
    label.wait_for()
    text = label.text_content()
    assert text.startswith("10")
    assert "locos :" in text
    assert "random heads" in text
    assert "40 trials; drop" in text
