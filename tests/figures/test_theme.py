"""Shared colours, scales, ticks and the cleaning of foreign text."""

from __future__ import annotations

import subprocess
import sys

import pytest

from locos_tl.figures import theme
from locos_tl.text import clean, html_text, label_text, number, percent, script_text


def test_a_detector_has_one_colour_everywhere():
    assert len(set(theme.DETECTOR_COLORS.values())) == len(theme.DETECTOR_COLORS)
    assert theme.detector_color("my own") == theme.detector_color("my own")
    assert theme.detector_color("my own") not in theme.DETECTOR_COLORS.values()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(("low", "high"), [(-1, 5), (0, 1), (-2, 0), (-1e-9, 1e-9), (-1e6, 3)])
def test_scales_run_from_0_to_1_with_a_neutral_zero(low, high, dark):
    scale = theme.zero_centred_scale(low, high, dark=dark)
    places = [place for place, _ in scale]
    assert (places[0], places[-1]) == (0, 1)
    assert places == sorted(places)
    at_zero = [color for place, color in scale if place == pytest.approx(-low / (high - low), abs=1e-12)]
    assert (theme.DARK_NEUTRAL if dark else theme.NEUTRAL) in at_zero


def test_bar_ticks_keep_the_real_ends_and_do_not_crowd():
    assert theme.bar_ticks(-1, 5, 300) == [-1, 0, 2, 4, 5]
    assert theme.bar_ticks(-0.01, 5, 300)[:2] == [-0.01, 2]
    assert theme.bar_ticks(0, 0, 300) == [0]


def test_control_and_direction_characters_are_seen_not_obeyed():
    assert clean("a\x00\x1b[31m\u202eb\ud800\n") == "a␀␛[31m[U+202E]b[U+D800]\n"
    assert clean(None) == "\N{EN DASH}"
    assert clean("abcdef", 3) == "abc …"
    clean("\ud800").encode()


def test_markup_is_escaped():
    assert html_text("<script>\"'&") == "&lt;script&gt;&quot;&#x27;&amp;"
    assert label_text("<b>%{x}\n") == "&lt;b&gt;% {x} "
    assert "<" not in script_text('{"a": "</script><!--"}')


def test_numbers_read_well():
    assert number(-0.012345) == "\N{MINUS SIGN}0.0123"
    assert number(0.5, 3, aligned=True) == "0.500"
    assert number(123.0, 3, aligned=True) == "123"
    assert percent(0.395) == "40\u00a0%"


def test_figures_do_not_load_torch():
    code = "import sys, locos_tl.figures; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
