# SPDX-License-Identifier: Apache-2.0
"""Campaigns that take hours, in rounds. With PTC_TEST_ROUNDS=DIR each round appends a line to DIR/NAME.jsonl: its commit, its seed,
what it did, and how it ended. A run that was cut goes on behind the rounds of its commit that are there, and the figures are those of
all of them. PTC_TEST_SEED=SEED repeats a round: the first one has the test's own seed."""
import contextlib
import json
import os
import random
import subprocess
import time

import harness


class Rounds:
    def __init__(self, case, name, what, wanted):
        """wanted: how many of `what`, a number in each line, there are to be."""
        directory = os.environ.get("PTC_TEST_ROUNDS")
        self.path = os.path.join(directory, f"{name}.jsonl") if directory else None
        self.case, self.name, self.what, self.wanted, self.first = case, name, what, wanted, True
        said = subprocess.run(["git", "-C", harness.ROOT, "describe", "--always", "--dirty", "--abbrev=12"], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True, check=False)
        self.commit = said.stdout.strip() or "unknown"
        self.rows = []
        with contextlib.suppress(FileNotFoundError):
            with open(self.path or os.devnull, encoding="utf-8") as f:
                self.rows = [row for row in map(json.loads, f) if row["commit"] == self.commit]

    def total(self, key):
        """Over the rounds that ended well."""
        return sum(row.get(key, 0) for row in self.rows if not row["failed"])

    def left(self):
        return max(self.wanted - self.total(self.what), 0)

    def seed(self):
        """Of the next round: the test's own, if it is the first; and none of a round that has ended well."""
        seed, had = self.case.seed, {row["seed"] for row in self.rows if not row["failed"]}
        if not self.first:
            seed = self.case.random.randrange(1 << 32)
        self.first = False
        while seed in had:
            seed = self.case.random.randrange(1 << 32)
        return seed

    @contextlib.contextmanager
    def round(self):
        """One round, with random numbers of its own (case.random). The block fills in what it has done. If it fails, the round is
        written down as failed, and counts for nothing."""
        seed, outer, began = self.seed(), self.case.random, time.monotonic()
        row = {"commit": self.commit, "seed": seed, "at": time.strftime("%Y-%m-%dT%H:%M:%S"), "failed": "it was cut"}
        self.case.random = random.Random(seed)
        print(f"{self.name}: a round with seed {seed}; {self.total(self.what)} of {self.wanted} {self.what} are done", flush=True)
        try:
            yield row
            row["failed"] = ""
        except Exception as e:
            row["failed"] = f"{type(e).__name__}: {e}"[:400]
            raise
        finally:
            self.case.random = outer
            row["seconds"] = round(time.monotonic() - began, 1)
            self.add(row)

    def add(self, row):
        self.rows.append(row)
        if not self.path:
            return
        with open(self.path, "a", encoding="utf-8") as f:
            f.write(json.dumps(row) + "\n")
            f.flush()
            os.fsync(f.fileno())

    def report(self):
        """One line: all numbers of the rounds that ended well, added up."""
        good = [row for row in self.rows if not row["failed"]]
        keys = dict.fromkeys(k for row in good for k, v in row.items() if isinstance(v, (int, float)) and k != "seed")
        print(f"{self.name}, {len(good)} rounds of {self.commit} ({len(self.rows) - len(good)} failed): " +
              ", ".join(f"{k} {self.total(k):g}" for k in keys), flush=True)
