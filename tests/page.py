"""HTML as a test reads it."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any


class Page(HTMLParser):
    """Parsed HTML: its tags and text; fails where tags do not close each other."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.styles: list[str] = []
        self.words: list[str] = []
        self.marked: list[str] = []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.styles += [value for name, value in attrs if name == "style"]
        assert {name for name, _ in attrs} <= {"style"}, attrs
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if "mark" in self.open:
            self.marked.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)
