"""Text that comes from outside: requests, servers' messages, the directory, files. Any module may import this.

Its author decides its length and its characters. It is cut before anything else is done with it; before a person sees
it, whatever a terminal would obey is made visible.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

LONGEST: Final = 4096
"""Characters of a message that are kept: more than any server's sentence, little enough for every log line."""
LONGEST_QUOTE: Final = 200
"""Characters of a value that an error repeats: enough to recognise it."""

LONGEST_FILE: Final = 16 << 20
"""Bytes of a file that somebody names: documents that people write are smaller."""
_LONGEST_SECRET: Final = 4096

# C0, DEL and C1 move the cursor, change colours and titles; direction marks make a text look like another one; lone
# surrogates cannot be written to any stream.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

# Longer than any address or path that somebody has written.
_ENDLESS = re.compile(rf"\S{{{2 * LONGEST_QUOTE},}}")


def cut(text: str, longest: int = LONGEST) -> str:
    """The beginning of a text, and how much of it is left out."""
    if len(text) <= longest:
        return text
    return f"{text[:longest]}… ({len(text) - longest} more characters)"


def shortened(text: str, longest: int = LONGEST_QUOTE) -> str:
    """The beginning and the end of a text, and how much is left out: what stands around a long value is kept."""
    if len(text) <= longest:
        return text
    end = longest // 4
    return f"{text[: longest - end]}… ({len(text) - longest} more characters) …{text[len(text) - end :]}"


def short_words(text: str, given: Sequence[str] = ()) -> str:
    """A sentence that may repeat what somebody gave: those words, and any other endless ones, are shortened in it."""
    for word in given:
        for said in (word, repr(word)[1:-1]):
            if len(said) > LONGEST_QUOTE:
                text = text.replace(said, shortened(said))
    return _ENDLESS.sub(lambda match: shortened(match[0]), text)


def visible(text: str) -> str:
    """The text with control characters written out, as in `\\x1b`; line ends and tabs stay."""
    return _UNSAFE.sub(_escaped, text)


def visible_json(text: str) -> str:
    """JSON as it may be printed: the same document, with what a terminal would obey as escapes of JSON."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def one_line(text: str, longest: int = LONGEST) -> str:
    """A foreign message as part of a sentence: cut, on one line, nothing in it that a terminal obeys."""
    return visible(" ".join(cut(text, longest).split()))


def quoted(value: object) -> str:
    """A value in an error: between quotes, cut."""
    return repr(cut(value, LONGEST_QUOTE) if isinstance(value, str) else value)[: 2 * LONGEST_QUOTE]


def read_text_file(file: Path, most: int = LONGEST_FILE) -> str:
    """What a file says; `ValueError` with half a sentence, whatever is wrong with it. `FileNotFoundError` passes."""
    try:
        with file.open("rb") as opened:
            content = opened.read(most + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"cannot be read: {os.strerror(error.errno or 0)}") from None
    except ValueError:  # a NUL in its path, or a character that no path can have
        raise ValueError("cannot be read: its path has a character that no path can have") from None
    if len(content) > most:
        raise ValueError(f"cannot be read: it has more than {most} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"cannot be read: it is not UTF-8 text (byte {error.start})") from None


def read_secret_file(file: Path) -> str:
    """The one line of a file; `ValueError` with half a sentence that does not contain the secret."""
    try:
        secret = read_text_file(file, _LONGEST_SECRET).rstrip("\r\n")
    except FileNotFoundError:
        raise ValueError("cannot be read: No such file or directory") from None
    if _UNSAFE.search(secret) or "\n" in secret:
        raise ValueError("must contain the secret alone, on one line")
    return secret


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
