"""``{cli-reference}``: the command line, read from the typer app at build time."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective


def commands(name: str = "locos-tl") -> Iterator[tuple[str, Any, Any]]:
    """Every command that does something: its full name, the command and a context."""
    import typer

    from locos_tl.cli import app

    yield from _walk(name, typer.main.get_command(app), None)


def _walk(name: str, command: Any, parent: Any) -> Iterator[tuple[str, Any, Any]]:
    context = command.context_class(command, info_name=name.split()[-1], parent=parent)
    if not hasattr(command, "list_commands"):
        yield name, command, context
        return
    for sub in command.list_commands(context):
        yield from _walk(f"{name} {sub}", command.get_command(context, sub), context)


def markdown() -> str:
    """The whole reference as Markdown."""
    return "\n\n".join(_command(*found) for found in commands())


def _command(name: str, command: Any, context: Any) -> str:
    told, examples = [], []
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        text = " ".join(paragraph.split())
        (examples if text.startswith("Example: ") else told).append(text)
    words = [name, *(param.name.upper() for param in command.params if param.param_type_name == "argument")]
    usage = " ".join([*words, "[OPTIONS]"])
    parts = [f"## {name}", *told, f"```text\n{usage}\n```"]
    for kind, title in (("argument", "Argument"), ("option", "Option")):
        rows = [_row(param, context) for param in command.params if param.param_type_name == kind]
        if rows:
            parts.append("\n".join([f"| {title} | Meaning |", "|---|---|", *rows]))
    parts += [f"```sh\n{text.removeprefix('Example: ')}\n```" for text in examples]
    return "\n\n".join(parts)


def _row(param: Any, context: Any) -> str:
    names, meaning = param.get_help_record(context)
    first = param.name.upper() if param.param_type_name == "argument" else names
    return f"| `{first}` | {_escape(meaning)} |"


def _escape(text: str) -> str:
    """Text that can stand in a cell of a table."""
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


class CliReference(SphinxDirective):
    """A section for each command."""

    def run(self) -> list[nodes.Node]:
        """Parse the generated Markdown in place."""
        return self.parse_text_to_nodes(markdown(), allow_section_headings=True)


def setup(app: Any) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("cli-reference", CliReference)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
