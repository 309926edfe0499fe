# SPDX-License-Identifier: Apache-2.0
"""What campaigns have found that take longer than one sitting: lines in the file that PTC_TEST_RESULTS names, and tables of them.

A line is a JSON object with `campaign` and `piece`: one run of a test, which has a seed. A piece writes a line for each thing that it
tries, as soon as its outcome is known. Its last line has `ended`: "checked", after every comparison at the end of the test has held;
else what was wrong. Lines of a piece without such an end are not counted: it was killed, or it goes on.
Failure modes: a file that is not there is an OSError; a line that was cut off by a crash is passed over and counted. Needs the standard
library only."""
import json
import os
import statistics
import traceback

FILE = "PTC_TEST_RESULTS"


def append(line, path=None):
    """One line more, durably. Where no file is named, nothing."""
    path = path or os.environ.get(FILE)
    if not path:
        return
    with open(path, "ab+") as f:
        f.seek(max(0, f.seek(0, os.SEEK_END) - 1))
        cut_off = f.read(1) not in (b"", b"\n")  # a crash came into the last one
        f.write(b"\n" * cut_off + json.dumps(line).encode() + b"\n")
        f.flush()
        os.fsync(f.fileno())


def read(path):
    """([line], how many cannot be read)"""
    lines, bad = [], 0
    with open(path, encoding="utf-8", errors="replace") as f:
        for text in f:
            try:
                line = json.loads(text)
                line["campaign"], line["piece"]  # noqa: B018  a line without them is none of ours
                lines.append(line)
            except (ValueError, KeyError, TypeError):
                bad += 1
    return lines, bad


class Piece:
    """One run of a test that belongs to a campaign.

        with results.Piece("kills", self.seed) as piece:
            piece.line(lost=0)
    """

    def __init__(self, campaign, seed):
        self.campaign, self.seed = campaign, seed
        self.name = f"{seed}-{os.getpid()}"

    def line(self, **members):
        append({"campaign": self.campaign, "piece": self.name, "seed": self.seed, **members})

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        if kind is None or issubclass(kind, Exception): # else somebody has ended it: nothing is known of what it tried
            self.line(ended="checked" if kind is None else traceback.format_exception_only(kind, error)[-1].strip()[:2000])


def pieces(lines, campaign):
    """(lines of pieces that were checked, [(piece, seed, what was wrong, or None: it has no end)] of the others)"""
    ended, seeds = {}, {}
    mine = [line for line in lines if line["campaign"] == campaign]
    for line in mine:
        seeds[line["piece"]] = line.get("seed")
        if "ended" in line:
            ended[line["piece"]] = line["ended"]
    wrong = [(piece, seed, ended.get(piece)) for piece, seed in seeds.items() if ended.get(piece) != "checked"]
    return [line for line in mine if ended.get(line["piece"]) == "checked" and "ended" not in line], wrong


# ---- tables ---------------------------------------------------------------------------------------------------------


def table(head, rows):
    """Lines of a Markdown table, whose columns are as wide as their widest cell."""
    cells = [list(map(str, row)) for row in (head, *rows)]
    wide = [max(len(row[i]) for row in cells) for i in range(len(head))]
    cells.insert(1, ["-" * n for n in wide])
    return ["| " + " | ".join(cell.ljust(n) for cell, n in zip(row, wide)) + " |" for row in cells]


def grouped(lines, *keys):
    out = {}
    for line in lines:
        out.setdefault(tuple(line[k] for k in keys), []).append(line)
    return sorted(out.items())


PARTS = ("detected", "decided", "started", "stepped")  # of the time from a kill to the end of the next step


def kill_row(name, kills):
    took = [sum(k["seconds"].values()) for k in kills]
    parts = " + ".join(f"{statistics.median(k['seconds'][part] for k in kills):.1f}" for part in PARTS)
    none = sum(k["lost"] == 0 for k in kills)
    return [*name, len(kills), f"{none} ({100 * none // len(kills)} %)", max(k["lost"] for k in kills), sum(k["back"] for k in kills),
            f"{statistics.median(took):.1f} s", f"{max(took):.1f} s", parts]


def kills_table(lines):
    head = ["configuration", "kind", "way", "kills", "no step lost", "longest loss", "back to the bridge", "median", "worst",
            " + ".join(PARTS)]
    rows = [kill_row(name, kills) for name, kills in grouped(lines, "config", "kind", "way")]
    rows += [kill_row(("all", "", way), kills) for (way,), kills in grouped(lines, "way")]
    return table(head, rows + [kill_row(("all", "", ""), lines)])


def soak_table(lines):
    """Of operations: how often each succeeded, and for which reasons it was refused. Of looks: the first and the last of each piece."""
    done = [line for line in lines if "operation" in line]
    rows = []
    for (what,), of in grouped(done, "operation"):
        refused = [line for line in of if line["refused"]]
        rows.append([what, len(of), len(of) - len(refused), "; ".join(f"{reason}: {len(some)}" for (reason,), some in grouped(refused, "refused"))])
    rows.append(["all", len(done), sum(not line["refused"] for line in done), ""])
    out = table(["operation", "tried", "done", "refused, and why"], rows)
    for (piece,), looks in grouped([line for line in lines if "look" in line], "piece"):
        first, last = looks[0]["look"], looks[-1]["look"]
        out += ["", f"piece {piece}: {len(looks)} looks, the last after {looks[-1]['operations']} operations"]
        out += table(["", "at first", "most until half", "at last"],
                     [[k, first[k], max(look["look"][k] for look in looks[:(len(looks) + 1) // 2]), last[k]] for k in last])
    return out


def fence_table(lines):
    return table(["caller", "what is left out", "found by"],
                 [[line["caller"], line["left_out"], ", ".join(line["found_by"]) or "NOTHING"] for line in lines])


TABLES = {"kills": kills_table, "soak": soak_table, "fence": fence_table}


def show(path):
    """(lines of text about the whole file, whether no piece has failed)"""
    lines, bad = read(path)
    out, well = [f"{bad} lines cannot be read"] if bad else [], True
    for campaign, make in TABLES.items():
        counted, wrong = pieces(lines, campaign)
        if counted or wrong:
            out += ["", f"{campaign}: {len({line['piece'] for line in counted})} pieces checked"]
            out += make(counted) if counted else []
            out += [f"not counted: piece {piece}, seed {seed}: {why or 'it was ended, or goes on'}" for piece, seed, why in wrong]
            well = well and not any(why for _, _, why in wrong)
    return out, well
