# SPDX-License-Identifier: Apache-2.0
"""The page docs/source-files.md: a line for each source file, made of the first sentence of its head.

The head is the first comment after the licence, in Python the module's first string. A .c and its .h share a line: the header's
sentence, then the .c's own. A sentence that only refers to the other file ("Happy path: ...", "See a.h.") says no subject, so it
is left out; if nothing remains, the files have no subject, and `page` says so. Tables at the end are read from the code: the
file of each verb, call and event, and the constants that are times. Where a call writes an event whose text it only passes on,
EVENT_TEXTS names the functions that make the text; `page` says which of its rows are missing or out of date.
"""
import ast
import operator
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

Tables at the end name the files of each verb of `ptcctl`, of each call to a daemon and of each
event. The last table has the times that are constants.
"""
TIMES_INTRO = """
These are the constants of the product that are times: their names end in `_MS`, `_NS`, `_S`,
`_SECONDS` or `_FOREVER`. Search this table for a part of the name, such as `SHUTDOWN` or `RETRY`,
for a room, such as `daemon/coord`, or for the value as it stands here, such as `10 s` or `2 min`.
The last column has the comment in the source or, without a comment, functions that use the
constant. `docs/timeouts.md` says of the most important ones what follows when the time is over.
Several files have a constant of the same name, for different things. Times that are keys of
`ptcd.yaml` or `job.yaml` are not here.
"""
EVENTS_INTRO = """
The second column names the files that write the event. Some of them get its text from elsewhere:
then the third column names the functions that make the text, or that are called with it.
"""
EVENT_WRITERS = ("ptc_event", "ptc_event_with", "ptc_event_line_new", "will_tell", "tell", "say")  # the latter three hand on to them
EVENTS_PAGE = "docs/control.md"
RANK_EVENTS, KEEPER = "daemon/workers/state/rank_events.c", "daemon/controller/copies/copy_keeper.c"
EVENT_TEXTS = {  # of events whose text some call only passes on: who makes it
    "aborted": [("daemon/core/switch_phases.c", "ptc_job_reason_set")],
    "answers": [(RANK_EVENTS, "ptc_group_hangs_locked")],
    "blobs": [("formats/job/blob_rules.c", "put_review")],
    "copies": [(KEEPER, "tell_begin"), (KEEPER, "tell_reached")],
    "copies_failed": [(KEEPER, "tell_failed"), (KEEPER, "document_failed")],
    "copies_short": [(KEEPER, "tell_short")],
    "failed": [(RANK_EVENTS, "obituary"), (RANK_EVENTS, "failed_locked"), ("daemon/local_ranks.c", "judge_devices")],
    "hangs": [(RANK_EVENTS, "ptc_group_hangs_locked")],
    "healed": [("daemon/agent/healing/heal.c", "heal_one")],
    "joined": [("daemon/controller/recovery/growth.c", "stays")],
    "measured": [("daemon/planning/measuring.c", "tell")],
    "moves": [(RANK_EVENTS, "ptc_group_stalled_locked")],
    "rank_differs": [("daemon/controller/controller_live.c", "find_odd")],
    "recovering": [("daemon/controller/devices/odd_devices.c", "ptc_odd_devices_tick")],
    "stalled": [(RANK_EVENTS, "ptc_group_stalled_locked")],
    "standby": [(RANK_EVENTS, "ptc_group_standby_failed_locked")],
    "unhealed": [("daemon/agent/healing/heal.c", "heal_one")],
    "waits": [("daemon/controller/recovery/recovery.c", "wait_for")],
}
TIME = re.compile(r"(?m)^[ \t]*#[ \t]*define[ \t]+((\w*)_(MS|NS|S|SECONDS|FOREVER))[ \t]+([^\n]*?)[ \t]*(?:/\*[ \t]*(.*?)[ \t]*\*/)?$")
UNITS = {"MS": 1e-3, "NS": 1e-9, "S": 1.0, "SECONDS": 1.0, "FOREVER": 1.0}
DEFINE = r"(?m)^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+([^\n]*?)[ \t]*(?:/\*[^\n]*)?$"
STRING = r'"(?:[^"\\\n]|\\.)*"'
STATEMENT = re.compile(rf'(?:[^;"]|{STRING})*')  # up to its semicolon
FUNCTION = re.compile(r"(?m)^(?![ \t#/*}])(?:PTC_API_HANDLER\((\w+)\)|[^\n;=]*?\b(\w+)\([^;{}]*\))\n\{")
SPANS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


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
    """Word of an event, as docs/control.md lists them -> the files that write such events; words of which some call only passes
    the text on, that is, has no words of its own for it."""
    rows = re.search(r"(?m)^\| `node_lost` \|", control)
    table = control[control.rindex("\n\n", 0, rows.start()):control.index("\n\n", rows.start())] if rows else ""
    words, found, passed = {w for r in re.findall(r"(?m)^\|([^|]*)\|", table) for w in re.findall(r"`(\w+)`", r)}, {}, set()
    for name, text in sources:
        for m in re.finditer(r'"([a-z_]+)"', text) if name.startswith("daemon/") else ():
            statement = text[max(text.rfind(c, 0, m.start()) for c in ";{}") + 1:m.start()]
            if m.group(1) in words and set(re.findall(r"(\w+)\(", statement)) & set(EVENT_WRITERS):
                found.setdefault(m.group(1), set()).add(name)
                said = "".join(t for t in re.findall(STRING, STATEMENT.match(text, m.start()).group(0)) if t[1:-1] not in words)
                if not re.search(r"[a-z]", re.sub(r"%[-+ #0-9.*]*(?:ll|l|z)?[a-zA-Z]|\b(?:node|generation)\b", "", said)):
                    passed.add(m.group(1))
    return found, passed


def bad_texts(sources, passed):
    """What is wrong with EVENT_TEXTS."""
    texts = dict(sources)
    for word in sorted(passed | set(EVENT_TEXTS)):
        if word not in EVENT_TEXTS:
            yield f"the text of the event {word} is made elsewhere: EVENT_TEXTS in scripts/lib/source_files.py has to say where"
        elif word not in passed:
            yield f"EVENT_TEXTS in scripts/lib/source_files.py: no call passes on the text of the event {word}"
        for name, function in EVENT_TEXTS.get(word, ()):
            if not re.search(rf"(?m)^[a-z][^;\n]*\b{function}\(", texts.get(name, "")):
                yield f"EVENT_TEXTS in scripts/lib/source_files.py: {name} has no {function}()"


def number(value, defines, depth=0):
    """The value of a constant expression of C; None if it is none."""
    value = re.sub(r"U?INT64_C\(([^()]*)\)", r"(\1)", value)
    value = re.sub(r"(?i)\b(\d[\d.]*(?:e[+-]?\d+)?)[ul]+\b", r"\1", value)
    for name in set(re.findall(r"\b[A-Za-z_]\w*", re.sub(r"\d[\d.]*e[+-]?\d+", "", value))):
        inner = number(defines[name], defines, depth + 1) if name in defines and depth < 5 else None
        if inner is None:
            return None
        value = re.sub(rf"\b{name}\b", repr(inner), value)
    ops = {ast.Mult: operator.mul, ast.Div: operator.truediv, ast.Add: operator.add, ast.Sub: operator.sub}

    def of(node):
        if isinstance(node, ast.BinOp):
            return ops[type(node.op)](of(node.left), of(node.right))
        return float(node.value)
    try:
        return of(ast.parse(value.strip(), mode="eval").body)
    except (SyntaxError, AttributeError, KeyError, TypeError, ValueError):
        return None


def span(seconds):
    """3600 -> 1 h, 0.25 -> 250 ms, 90 -> 90 s."""
    fit = [(s, u) for s, u in SPANS if seconds >= s * 0.999999 and abs(seconds / s - round(seconds / s)) < 1e-6]
    return f"{seconds / fit[0][0]:.7g} {fit[0][1]}" if fit else f"{seconds:.6g} s"


def users(constant, sources):
    """Up to three functions that use it, or else two files."""
    found, files = {}, []
    for name, text in sources:
        functions = [(m.start(), m.group(1) or m.group(2)) for m in FUNCTION.finditer(text)] if constant in text else []
        files += [f"`{name}`"] if functions and re.search(rf"\b{constant}\b", text) else []
        for m in re.finditer(rf"\b{constant}\b", text) if functions else ():
            found.update({f: 1 for _, f in [f for f in functions if f[0] < m.start()][-1:]})
    return ", ".join([f"{f}()" for f in list(found)[:3]] or (files[:2] if len(sources) > 1 else []))


def times(sources):
    """(constant, value, file, comment) of the constants that are times; a simulation's are not of the product."""
    everywhere = {m.group(1): m.group(2) for _, text in sources for m in re.finditer(DEFINE, text)}
    for name, text in sources:
        defines = {**everywhere, **{m.group(1): m.group(2) for m in re.finditer(DEFINE, text)}}
        for m in TIME.finditer(text) if "/sim/" not in name else ():
            constant, stem, unit, value, comment = m.groups()
            if not value or "BYTES" in constant or stem in ("S", "MS", "DAY"):
                continue
            seconds = number(value, defines)
            yield constant, value if seconds is None else span(seconds * UNITS[unit]), name, comment or users(constant, [(name, text)] if name.endswith(".c") else sources)


def shown(text):
    """As text in a cell of a table."""
    return re.sub(r"([|<*])", r"\\\1", text)


def table(title, what, files, found):
    rows = "".join(f"| `{k}` | " + ", ".join(f"`{f}`" for f in sorted(v)) + " |\n" for k, v in sorted(found.items()))
    return f"\n## {title}\n\n| {what} | {files} |\n| --- | --- |\n{rows}" if found else ""


def page(names, read, control=""):
    """The page for the files `names`, and what is wrong with them; `control` is the text of docs/control.md."""
    rooms, wrong = {}, []
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
                wrong.append(f"{room}/{bases[0]}: the first sentence of its head says no subject")
            files = ", ".join(f"`{room}/{b}`" if not i else f"`{b}`" for i, b in enumerate(bases))
            text += f"| {files} | {re.sub(r'([|<*])', chr(92) * 3 + '1', said)} |\n"
    sources = [(n, read(n)) for n in sorted(names) if n.endswith((".c", ".h"))]
    found, passed = events(sources, control)
    wrong += bad_texts(sources, passed) if found else ()
    text += table("Verbs of ptcctl", "verb", "file", verbs(sources))
    text += table("Calls to a daemon", "call", "file of the handler", calls(sources))
    made = {w: ", ".join(f"`{f}()` in `{n}`" for n, f in EVENT_TEXTS.get(w, ()) if w in passed) for w in found}
    text += "\n## Events\n" + EVENTS_INTRO + "\n| event | files that write it | where its text is made |\n| --- | --- | --- |\n" if found else ""
    text += "".join(f"| `{w}` | " + ", ".join(f"`{f}`" for f in sorted(v)) + f" | {made[w]} |\n" for w, v in sorted(found.items()))
    rows = "".join(f"| `{c}` | {shown(v)} | `{n}` | {shown(said)} |\n" for c, v, n, said in sorted(times(sources), key=lambda t: (t[2], t[0])))
    text += f"\n## Times in the sources\n{TIMES_INTRO}\n| constant | value | file | comment, or who uses it |\n| --- | --- | --- | --- |\n{rows}" if rows else ""
    return text, wrong
