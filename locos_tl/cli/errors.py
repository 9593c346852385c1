"""What a user reads when something went wrong: one line that names the value, the place and the fix."""

from __future__ import annotations

import errno
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..text import readable

EXPECTED = (ValueError, KeyError, RuntimeError, OSError, FloatingPointError, MemoryError)
"""Errors that a user can mend; any other is a fault of ours and keeps its traceback."""

_CAUSES = {
    errno.EACCES: "no permission; choose another place, or change who may use this one",
    errno.EPERM: "no permission; choose another place, or change who may use this one",
    errno.EROFS: "read-only; choose another place",
    errno.ENOENT: "no such file or folder",
    errno.EISDIR: "a folder, where a file is expected",
    errno.ENOTDIR: "a part of this path is a file, not a folder",
    errno.EEXIST: "a file of this name is in the way",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "larger than a file may be here",
}


def told(error: BaseException) -> str:
    """The message of an expected error, in which control characters are seen, not obeyed."""
    return "\n".join(map(visible, _told(error).split("\n")))


def visible(value: Any) -> str:
    """Text on one line in which control characters are seen, not obeyed: names come from anywhere."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in readable(str(value)))


def _told(error: BaseException) -> str:
    if isinstance(error, KeyError) and error.args:
        return str(error.args[0])  # str() of a KeyError is a repr
    if type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError):
        first = str(error).splitlines()[:1]
        return (
            f"out of memory{': ' + first[0] if first else ''}; try shorter contexts, --dtype bfloat16 or --device cpu"
        )
    if isinstance(error, OSError) and error.filename is not None and error.errno is not None:
        place = error.filename2 or error.filename  # of two, the second is the one that was asked for
        return f"{place}: {_CAUSES.get(error.errno) or error.strerror}"
    return str(error) or type(error).__name__


@contextmanager
def plain_notices() -> Iterator[None]:
    """Warnings and log messages of the block as plain lines on stderr, without source lines and module names."""
    handler = _Stderr()
    handler.setFormatter(logging.Formatter("%(message)s"))
    logging.getLogger().addHandler(handler)
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            yield
        finally:
            logging.getLogger().removeHandler(handler)


class _Stderr(logging.Handler):
    """Writes to whatever stderr is at that moment, so that a bar on the screen moves down instead of being torn."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        """Write one message."""
        print(visible(self.format(record)), file=sys.stderr)


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    print(f"warning: {visible(message)}", file=sys.stderr)
