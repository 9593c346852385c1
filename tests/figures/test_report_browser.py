"""The report in a real browser with the network off: it draws, switches, filters and stays quiet."""

from __future__ import annotations

import os
import shutil
from urllib.parse import urlparse

import pytest

from locos_tl.figures import write_report

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
DRAWN = "document.querySelectorAll('.js-plotly-plot .main-svg').length >= 3"
VISIBLE_PANELS = "[...document.querySelectorAll('[role=tabpanel]')].filter(p => !p.hidden).map(p => p.id)"


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory, make_scores):
    return write_report(make_scores(), tmp_path_factory.mktemp("report"))


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


def hover(page, layer, head):
    """Point at a head of the visible heatmap; returns the hover text."""
    plot = page.locator("[role=tabpanel]:not([hidden]) .plot")
    plot.scroll_into_view_if_needed()
    x, y = plot.evaluate(
        """(plot, [layer, head]) => {
            const box = plot.getBoundingClientRect(), {xaxis, yaxis} = plot._fullLayout;
            return [box.x + xaxis._offset + xaxis.d2p(head), box.y + yaxis._offset + yaxis.d2p(layer)];
        }""",
        [layer, head],
    )
    page.mouse.move(x - 3, y)
    page.mouse.move(x, y)
    label = plot.locator(".hoverlayer .hovertext")
    label.wait_for()
    return label.text_content()


def test_the_first_detector_is_drawn(open_page):
    page = open_page()
    assert page.evaluate(VISIBLE_PANELS) == ["panel-0"]
    assert page.locator("[role=tabpanel]:not([hidden]) .main-svg").count() > 0
    assert page.locator(".js-plotly-plot").count() == 3  # hidden ones wait until they are asked for


def test_clicking_a_tab_shows_that_detector(open_page):
    page = open_page()
    page.get_by_role("tab", name="wu").click()
    assert page.evaluate(VISIBLE_PANELS) == ["panel-3"]
    panel = page.locator("#panel-3")
    assert "strongest attention" in panel.inner_text()
    panel.locator(".main-svg").first.wait_for()
    assert panel.locator(".plot").bounding_box()["width"] > 300
    assert page.get_by_role("tab", name="wu").get_attribute("aria-selected") == "true"


def test_the_switch_works_by_keyboard(open_page):
    page = open_page()
    page.get_by_role("tab", name="locos").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate(VISIBLE_PANELS) == ["panel-1"]
    page.keyboard.press("End")
    assert page.evaluate(VISIBLE_PANELS) == ["panel-6"]
    page.keyboard.press("ArrowRight")
    assert page.evaluate(VISIBLE_PANELS) == ["panel-0"]
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.id") == "tab-6"


def test_hover_reads_a_head_and_a_gap(open_page, make_scores):
    page = open_page()
    layer, head = make_scores()["locos"].ranking()[0]
    text = hover(page, layer, head)
    assert f"L{layer}H{head}" in text
    assert "rank 1 of 252" in text
    assert "19 trials counted" in text
    assert "sliding-window layer" in hover(page, 4, 2)


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
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.querySelector('.js-plotly-plot').layout.font.color") == "#1f2328"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.querySelector('.js-plotly-plot').layout.font.color") == "#e6e9ee"
    assert page.locator(".js-plotly-plot").first.bounding_box()["height"] == pytest.approx(640, abs=2)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_causal_sections_are_drawn_and_fit(scheme, open_page, causal_report):
    page = open_page(scheme, causal_report)
    page.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length >= 14")
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
