# SPDX-License-Identifier: Apache-2.0
"""docs/tutorial.md, typed as it stands there: each command succeeds and prints what the page says."""
import os
import re
import subprocess

import harness
from harness import PATIENCE, ROOT

# Daemons know after a moment that they are on one machine, so whether a first switch has this line is chance; the page says so.
NEAR = re.compile(r"^  of these, in memory .*\n", re.M)
# What differs from run to run; where one stands between words, the page and the program may differ in it.
VOLATILE = [r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",      # identifiers of jobs
            r"\d{4}-\d\d-\d\dT[\d:]+Z", r"127\.0\.0\.1:\d+",
            r"\d+\.\d+ s\b", r"\d+\.\d+ ms\b", r"\d+ %", r"(?<=incarnation )\d+",
            r"(?<=step )\d+", r"(?<=every element is )\d+", r"\{\d+\.0\}", r"(?<=live idle \d \d )\d+"]
PHASE = r"(?<=[a-z12] )\d+\.\d(?=,|$)"


def blocks(text):
    """[(commands, what they print or None)] of a page, in order."""
    found = re.findall(r"^```(sh|text)\n(.*?)^```$", text, re.S | re.M)
    after = [*found[1:], ("", "")]
    return [(body, next_body if following == "text" else None)
            for (language, body), (following, next_body) in zip(found, after, strict=True) if language == "sh"]


def lines_of(text):
    """Its lines without what varies. How wide columns are depends on that, so spaces count as one."""
    for line in text.strip("\n").split("\n"):
        line = re.sub(r"\s+", " ", line).strip()
        for pattern in [*VOLATILE, *([PHASE] if "time per phase" in line else [])]:
            line = re.sub(pattern, "#", line)
        yield line


def as_said(page, printed):
    """The first line of the page that was not printed, or None. A line "..." of the page is any number of lines."""
    said, found = list(lines_of(page)), list(lines_of(printed))

    def fits(i, j):
        if i == len(said):
            return None if j == len(found) else f"nothing more, but \"{found[j]}\" was printed"
        if said[i] == "...":
            failures = [fits(i + 1, k) for k in range(j, len(found) + 1)]
            return None if None in failures else failures[0]
        if j == len(found) or said[i] != found[j]:
            return f"\"{said[i]}\", but \"{found[j] if j < len(found) else 'nothing more'}\" was printed"
        return fits(i + 1, j + 1)

    return fits(0, 0)


@harness.labels("repeats")
class Docs(harness.Case):
    def shell(self, script, cwd, **env):
        r = subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=cwd, env={**os.environ, **harness.sanitizer_env(), **env},
                           text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           timeout=240 * PATIENCE)
        self.assertEqual(0, r.returncode, r.stdout)
        return r.stdout

    def test_tutorial(self):
        """Its shell blocks, one after the other in one shell; a block's output is what the page shows below it."""
        with open(os.path.join(ROOT, "docs", "tutorial.md")) as f:
            page = blocks(f.read())
        tree, cluster = self.path("tree"), self.path("cluster")
        os.makedirs(os.path.join(tree, "build"))
        for name, target in (("scripts", "scripts"), ("client", "client"), ("deploy", "deploy"), ("build/release", harness.BUILD)):
            os.symlink(os.path.join(ROOT, target), os.path.join(tree, name))
        up = "scripts/local-cluster up"
        self.assertIn(up, page[0][0])
        commands = [block.replace(up, f"{up} --build {harness.BUILD}") for block, _ in page]
        self.addCleanup(subprocess.run, ["scripts/local-cluster", "down"], cwd=tree, check=True,
                        env={**os.environ, "PTC_LOCAL_CLUSTER": cluster})
        mark = "---- end of a block ----"
        printed = self.shell(f"\necho '{mark}'\n".join(commands), tree, PTC_LOCAL_CLUSTER=cluster).split(f"{mark}\n")
        self.assertEqual(len(page), len(printed))
        self.assertGreater(sum(shown is not None for _, shown in page), 8)
        for (block, shown), text in zip(page, printed, strict=True):
            if shown is not None:
                text = NEAR.sub("", text)
                self.assertIsNone(as_said(shown, text), f"{block}\nThe page shows:\n{shown}\nprinted was:\n{text}")

        all_of_it = "".join(printed)  # what the page claims of these numbers
        for step, value in re.findall(r"^step (\d+) done: every element is (\d+)$", all_of_it, re.M):
            self.assertEqual(int(step) + 1, int(value))
        stopped, = re.findall(r"^job counter: stop at .* step (\d+),", all_of_it, re.M)
        self.assertIn(f"{{{stopped}.0}}", all_of_it)

    def test_comparison_of_output(self):
        """What compares a page with a run can fail."""
        page = "job a: step 3, in 0.1 s\n  moved   1 MiB\n...\n  end  2.0 ms\n"
        same = "job a: step 44, in 12.25 s\n  moved 1 MiB\nx\ny\n  end  13.5 ms\n"
        self.assertIsNone(as_said(page, same))
        for wrong in (same.replace("1 MiB", "2 MiB"), same.replace("job a", "job b"), same + "more\n", "", same[:same.index("  end")]):
            self.assertIsNotNone(as_said(page, wrong), wrong)
