# SPDX-License-Identifier: Apache-2.0
"""docs/timeouts.md against the source: each value, which one is longer than which, and that the words are said. Needs no daemon."""
import os
import re
import subprocess
import unittest

import harness

UNITS = {"ms": 1, "s": 1000, "m": 60000, "h": 3600000, "ns": 1e-6}


def ms(text):
    number, unit = re.fullmatch(r"(\d+)(ms|s|m|h)", text).groups()
    return int(number) * UNITS[unit]


def read(*path):
    with open(os.path.join(harness.ROOT, *path)) as f:
        return f.read()


def rows(heading):
    """{name: the cells after it} of the table below a heading."""
    page = read("docs", "timeouts.md").split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in page.splitlines() if line.startswith("| ")]
    return {cells[0].strip("`"): cells[1:] for cells in lines[2:]}


def constant(path, name):
    """In ms: of a macro that is a number, a product, or a number and a macro of the same file."""
    text = read(path)
    value = re.search(rf"#define\s+{name}\s+(.+)", text).group(1).split("/*")[0].strip()
    value = re.sub(r"\b(INT64_C|UINT64_C)\((\d+)\)", r"\2", value)
    value = re.sub(r"\bMS\b", "1000000", value)
    assert re.fullmatch(r"[\d\s*()]+", value), (path, name, value)
    number = eval(value) # digits, * and parentheses only
    return number * UNITS[name.rsplit("_", 1)[1].lower()]


class Timeouts(unittest.TestCase):
    def test_built_in(self):
        table = rows("Those that are built in")
        self.assertGreater(len(table), 15)
        values = {}
        for name, (value, where, *_) in table.items():
            path, macro = re.fullmatch(r"`(\S+)` `(\w+)`", where).groups()
            self.assertEqual(ms(value), constant(path, macro), name)
            values[name] = ms(value)
        for name, (*_, longer) in table.items():
            for other in filter(None, (x.strip() for x in longer.split(","))):
                self.assertGreater(values[name], values[other], f"{name}, {other}")
        hold = ("a rank ends its update", "a rank is frozen", "blobs of a frozen rank", "the last rank's blobs")
        gone = constant("daemon/workers/copier/copier.c", "GONE_MS") # a process that hangs is killed, and waited for so long
        self.assertGreater(values["ranks are asked for"], sum(values[name] for name in hold) + gone)
        self.assertEqual(values["keep-alive"] * 2 + 5000, values["a node that hangs is noticed"])
        self.assertIn(": PTC_JOB_NODE_WAIT_MS;", read("daemon", "core", "job_core.c")) # without options
        self.assertRegex(read("daemon", "config", "timeouts.c"), r"\bPTC_JOB_NODE_WAIT_MS, false")
        self.assertEqual(values["ranks are held"], constant("daemon/config/timeouts.c", "HELD_MAX_MS"))
        self.assertEqual(values["a rank that gives up"], constant("daemon/config/timeouts.c", "LEAVES_MS"))
        for name, path, doublings in (("copies again", "daemon/controller/copies/copy_keeper.c", "RETRY_MAX"),
                                      ("growth again", "daemon/controller/recovery/growth.c", "ETCD_LOG2")):
            most = int(re.search(r"doubles this time, up to (\d+) s", table[name][2]).group(1)) * 1000
            self.assertEqual(most, values[name] << int(re.search(rf"#define\s+{doublings}\s+(\d+)", read(path)).group(1)), name)

    def test_configured(self):
        table, built_in = rows("Those that you set"), rows("Those that are built in")
        config, job = read("daemon", "config", "daemon_config.c"), read("formats", "job", "job.h")
        macros = {"grace": "PTC_RUN_GRACE_MS", "boundary_timeout": "PTC_RUN_BOUNDARY_MS", "build_timeout": "PTC_RUN_BOUNDARY_MS",
                  "hang_after": "PTC_JOB_HANG_AFTER_MS", "join_after": "PTC_JOB_JOIN_AFTER_MS"}
        every = {m.group(1) for m in re.finditer(r'\{ "([a-z_.]+)", &k_ms, ', config)}
        for name, (default, where, _, must_be, said) in table.items():
            if where == "`ptcd.yaml`":
                self.assertEqual(default, re.search(rf'"{re.escape(name)}", &k_ms, [^"]*"(\w+)"', config).group(1), name)
                every.discard(name)
            else:
                self.assertIn(macros[name], job)
                self.assertEqual(ms(default), constant("formats/job/job.h", macros.pop(name)), name)
            for other in re.findall('"([^"]+)"', must_be):
                low, high = sorted((ms(default), ms(built_in[other][0])))
                self.assertEqual(ms(default), low if must_be.startswith("at most") else high, f"{name}, {other}")
            found = subprocess.run(["grep", "-rlF", "--include=*.c", said.strip("`"), os.path.join(harness.ROOT, "daemon"),
                                    os.path.join(harness.ROOT, "fusefs")], stdout=subprocess.PIPE, text=True).stdout
            self.assertTrue([path for path in found.split() if "/test_" not in path], f"nobody says {said}")
        self.assertEqual({"scrub.pause", "health.every", "node_quarantine"}, every, "a timeout that the page does not have") # pauses: they bound nothing
        self.assertEqual({}, macros)


if __name__ == "__main__":
    unittest.main()
