# SPDX-License-Identifier: Apache-2.0
"""What is counted of campaigns (results.py, campaign): the figures of known lines; pieces that failed, or have no end; lines cut off."""
import os
import subprocess
import sys
import unittest
from unittest import mock

import harness
import results


def kill(took, lost=0, config="dp=4", way="killed", back=False):
    """As test_gpt_live writes one; `took` seconds in all."""
    return {"test": "GptLive.test_machines_killed", "config": config, "kind": "fsdp", "way": way, "lost": lost, "back": back,
            "seconds": dict(zip(results.PARTS, (took / 2, took / 4, took / 8, took / 8)))}


def cells(text):
    """{first three cells of a row: the others}"""
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines() if line.startswith("|")]
    return {tuple(row[:3]): row[3:] for row in rows}


class Campaign(harness.Case):
    def setUp(self):
        super().setUp()
        self.file = self.path("results")
        env = mock.patch.dict(os.environ, {results.FILE: self.file})
        env.start()
        self.addCleanup(env.stop)

    def piece(self, campaign, *lines, end=None):
        """Writes one that ends so."""
        try:
            with results.Piece(campaign, self.seed) as piece:
                piece.name += f"-{self.random.random()}" # one process is one piece, but for us
                for line in lines:
                    piece.line(**line)
                if end:
                    raise end
        except (AssertionError, SystemExit):
            pass

    def table(self, code):
        argv = [sys.executable, "-B", os.path.join(harness.ROOT, "tests", "campaign"), "table", self.file]
        r = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False)
        self.assertEqual(code, r.returncode, r.stdout)
        return r.stdout

    def test_kills(self):
        self.piece("kills", kill(8), kill(4, lost=7), kill(16, lost=2, back=True))
        self.piece("kills", kill(2, config="tp=2,dp=2", way="cut off"))
        self.piece("kills", kill(400, lost=100), end=SystemExit(1))
        rows = cells(self.table(0))
        self.assertEqual(["3", "1 (33 %)", "7", "1", "8.0 s", "16.0 s", "4.0 + 2.0 + 1.0 + 1.0"], rows["dp=4", "fsdp", "killed"])
        self.assertEqual(["1", "1 (100 %)", "0", "0", "2.0 s", "2.0 s", "1.0 + 0.5 + 0.2 + 0.2"], rows["tp=2,dp=2", "fsdp", "cut off"])
        self.assertEqual(["4", "2 (50 %)", "7", "1", "6.0 s", "16.0 s", "3.0 + 1.5 + 0.8 + 0.8"], rows["all", "", ""])

    def test_a_piece_that_failed(self):
        """It is named with its seed, and nothing of it is counted."""
        self.piece("kills", kill(8))
        self.piece("kills", kill(4, lost=7), end=AssertionError("losses are 1e-3 apart"))
        said = self.table(1)
        self.assertIn(f"seed {self.seed}: AssertionError: losses are 1e-3 apart", said)
        self.assertEqual("1", cells(said)["all", "", ""][0])

    def test_soak(self):
        looks = [{"look": {"fds": fds}, "operations": n} for n, fds in ((1, 9), (4, 11), (8, 10))]
        self.piece("soak", *({"operation": "drain", "refused": why} for why in ("", "busy", "busy", "no devices")), *looks)
        rows = cells(self.table(0))
        self.assertEqual(["busy: 2; no devices: 1"], rows["drain", "4", "1"])
        self.assertEqual(["10"], rows["fds", "9", "11"])

    def test_callers_of_the_fence(self):
        """fence_mutants knows every one: whoever adds one names it there."""
        r = subprocess.run([sys.executable, "-B", os.path.join(harness.ROOT, "tests", "fence_mutants"), "--list"],
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        self.assertEqual(0, r.returncode, r.stdout)
        self.assertGreaterEqual(len(r.stdout.splitlines()), 23)

    def test_cut_off(self):
        """The machine of the campaign lost power within a line: what came before and what comes after it counts."""
        self.piece("kills", kill(8))
        with open(self.file, "a", encoding="utf-8") as f:
            f.write('{"campaign": "kills", "pie')
        self.piece("kills", kill(4))
        said = self.table(0)
        self.assertIn("1 lines cannot be read", said)
        self.assertEqual("2", cells(said)["all", "", ""][0])
        os.unlink(self.file)
        self.table(1)


if __name__ == "__main__":
    unittest.main()
