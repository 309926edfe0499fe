# SPDX-License-Identifier: Apache-2.0
"""The page docs/source-files.md: a line for each source file, made of the first sentence of its head.

The head is the first comment after the licence, in Python the module's first string. A .c and its .h share a line: the header's
sentence, then the .c's own. A sentence that only refers to the other file ("Happy path: ...", "See a.h.") says no subject, so it
is left out; if nothing remains, the files have no subject, and `page` names them. Tables at the end are read from the code: the
file of each verb, call and event.
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
`tests/README.md` has the others. Three tables at the end name the files of each verb of `ptcctl`, of
each call to a daemon, and of each event.
"""
EVENT_WRITERS = ("ptc_event", "ptc_event_with", "ptc_event_line_new", "will_tell", "tell", "say")  # the latter three hand on to them
EVENTS_PAGE = "docs/control.md"


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


def verbs(sources):
    """Verb of ptcctl -> its file."""
    return {m.group(1): {n} for n, text in sources if n.startswith("client/ctl/")
            for m in re.finditer(r'const struct ctl_verb \w+ = \{\s*\.name = "([^"]+)"', text)}


def calls(sources):
    """Call of the control API (Control/NAME) or between daemons (Peer/NAME) -> the file of its handler."""
    defined, found = {}, {}
    for name, text in sources:
        for m in re.finditer(r"(?m)^(?:PTC_API_HANDLER\(|(?!static)[a-z][\w *]*?\b)(ptc_(?:api|agent_on)_\w+)[^;{]*\)\n\{", text):
            defined[m.group(1)] = name
    for name, text in sources:
        for m in re.finditer(r'\{ "/ptc\.v1\.((?:Control|Peer)/\w+)", (\w+)', text):
            if m.group(2) in defined:
                found.setdefault(m.group(1), set()).add(defined[m.group(2)])
        for m in re.finditer(r'ptc_rpc_server_method\(\w+, "/ptc\.v1\.((?:Control|Peer)/\w+)"', text):
            found.setdefault(m.group(1), set()).add(name)
    return found


def events(sources, control):
    """Word of an event, as docs/control.md lists them -> the files that write such events."""
    rows = re.search(r"(?m)^\| `node_lost` \|", control)
    table = control[control.rindex("\n\n", 0, rows.start()):control.index("\n\n", rows.start())] if rows else ""
    words, found = {w for r in re.findall(r"(?m)^\|([^|]*)\|", table) for w in re.findall(r"`(\w+)`", r)}, {}
    for name, text in sources:
        for m in re.finditer(r'"([a-z_]+)"', text) if name.startswith("daemon/") else ():
            statement = text[max(text.rfind(c, 0, m.start()) for c in ";{}") + 1:m.start()]
            if m.group(1) in words and set(re.findall(r"(\w+)\(", statement)) & set(EVENT_WRITERS):
                found.setdefault(m.group(1), set()).add(name)
    return found


def table(title, what, files, found):
    rows = "".join(f"| `{k}` | " + ", ".join(f"`{f}`" for f in sorted(v)) + " |\n" for k, v in sorted(found.items()))
    return f"\n## {title}\n\n| {what} | {files} |\n| --- | --- |\n{rows}" if found else ""


def page(names, read, control=""):
    """The page for the files `names`, and those of them without a subject; `control` is the text of docs/control.md."""
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
            text += f"| {files} | {re.sub(r'([|<*])', chr(92) * 3 + '1', said)} |\n"
    sources = [(n, read(n)) for n in sorted(names) if n.endswith(".c")]
    text += table("Verbs of ptcctl", "verb", "file", verbs(sources))
    text += table("Calls to a daemon", "call", "file of the handler", calls(sources))
    return text + table("Events", "event", "files that write it", events(sources, control)), missing
