# SPDX-License-Identifier: Apache-2.0
"""The page docs/source-files.md: a line for each source file, made of the first sentence of its head.

The head is the first comment after the licence, in Python the module's first string. A .c and its .h share a line: the header's
sentence, then the .c's own. A sentence that only refers to the other file ("Happy path: ...", "See a.h.") says no subject, so it
is left out; if nothing remains, the files have no subject, and `page` names them.
"""
import os
import re

PAGE = "docs/source-files.md"
REFERS = re.compile(r"(Happy path|Failure modes?|See )\b")
INTRO = """# Source files

This page says the subject of each source file of the product, room by room. Search it for a word of
your change: a verb, a key, an event, a call. `scripts/source-files` writes the page from the first
sentence of each file's head comment, so change it there. `scripts/check` compares them. A `.c` file
and its header share a line. Tests are not listed: each room has its own in `test_*.c`, and
`tests/README.md` has the others.
"""


def head(name, text):
    """The first paragraph of a file's head, on one line."""
    if name.endswith(".py"):
        m = re.match(r'(?:#[^\n]*\n|\s)*"""(.*?)"""', text, re.S)
        comment = m.group(1) if m else ""
    elif name.endswith(".proto"):
        m = re.match(r"//[^\n]*\n(?://[ \t]*\n)?((?://[^\n]*\n)+)", text)
        comment = re.sub(r"(?m)^// ?", "", m.group(1)) if m else ""
    else:
        m = re.match(r"/\* SPDX[^\n]*\*/\s*(?:#(?:pragma|ifndef|define|include)[^\n]*\s+)*/\*(.*?)\*/", text, re.S)
        comment = re.sub(r"(?m)^[ \t]*\*", "", m.group(1)) if m else ""
    return " ".join(re.split(r"\n\s*\n", comment.strip())[0].split())


def first_sentence(paragraph):
    """Up to the first full stop that is not an initial's or an abbreviation's."""
    return re.split(r"(?<=[.!?])(?<![\s(][A-Z]\.)(?<!e\.g\.)(?<!i\.e\.)\s", paragraph)[0]


def subject(names, read):
    """What the files of one name (a.h, a.c) are about; "" if no head says it."""
    said = [first_sentence(head(n, read(n))) for n in sorted(names, key=lambda n: not n.endswith(".h"))]
    return " ".join(dict.fromkeys(s for s in said if s and not REFERS.match(s)))


def page(names, read):
    """The page for the files `names`, and those of them without a subject."""
    rooms, missing = {}, []
    for name in sorted(names):
        room, base = os.path.split(name)
        stem = base[:-2] if base.endswith((".c", ".h")) else base
        rooms.setdefault(room, {}).setdefault(stem, []).append(base)
    text = INTRO
    for room, stems in sorted(rooms.items()):
        text += f"\n## {room}/\n\n| file | subject |\n| --- | --- |\n"
        for _, bases in sorted(stems.items()):
            said = subject([f"{room}/{b}" for b in bases], read)
            if not said:
                missing.append(f"{room}/{bases[0]}")
            files = ", ".join(f"`{room}/{b}`" if not i else f"`{b}`" for i, b in enumerate(bases))
            text += f"| {files} | {re.sub(r'([|<*])', chr(92) + chr(92) + '1', said)} |\n"
    return text, missing
