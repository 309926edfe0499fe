# SPDX-License-Identifier: Apache-2.0
"""What scripts/quickstart --failure shows, once everything is built: a GPT in PyTorch trains on eight ranks of four daemons, and
one machine dies with all that runs on it. Nobody types anything: training goes on with fewer ranks from the newest snapshot. Then its losses
and samples are compared with a run of one process that never heard of ptc. Failure: as of the resized training."""
import json
import re
import sys
import time

import curve
import picture
import quickstart_train
from cluster import ClusterError, wait_for
from quickstart_train import JOB, TOLERANCE, say

EVERY = 10 # steps between snapshots
COPIES = 2
LOST_NODE = "n2" # n0 keeps etcd of this small cluster; with etcd on three nodes any of them may go
RECOVERED = re.compile(r"the snapshot of step (\d+), under (\S+); step (\d+) had been reached")


class Failure(quickstart_train.Show):
    gpus = {8: "tp=2,pp=2,dp=2", 6: "tp=2,dp=3"}
    extra = ("--zero", "1") # each part of the optimizer's state is on one rank alone: without copies it would go with its machine
    picture = quickstart_train.Resized.picture.replace(".html", "-failure.html")

    def job(self):
        return {**super().job(), "snapshot_every": EVERY, "copies": {"count": COPIES}, "elastic": {"on_failure": "shrink"}}

    def train(self):
        self.run(8)
        self.kill()
        self.follow()
        self.wait_end()
        self.summary()
        self.check_repeated()

    # ---- the machine dies

    def kill(self):
        """Once a snapshot and its copies are complete, and some steps have been made since."""
        def ready():
            s = self.status()
            if s["run"]["state"] == "done":
                raise ClusterError("the training was over before a machine was killed: it needs more --steps")
            if s["run"]["state"] != "live":
                raise ClusterError(f"the job has {s['run']['state']}: {s['run'].get('text', '')}")
            since = s["run"].get("step", -1) - s["step"]
            # while a snapshot is made, copies are not counted
            return s if s["step"] >= 2 * EVERY and s.get("copies", {}).get("fewest", 0) >= COPIES and EVERY // 2 <= since <= EVERY // 2 + 1 else None

        self.before = wait_for(ready, 240, "a snapshot with its copies", 0.05)
        ranks = [r["pid"] for r in self.before["run"]["ranks"] if r["node"] == LOST_NODE]
        say(f"$ kill -9 <ptcd of {LOST_NODE}, its ranks {' and '.join(map(str, ranks))}, and all that they have started>")
        self.killed_at = time.time()
        processes = self.c.power_off(LOST_NODE, chunks=False)
        if not {*ranks} <= processes:
            raise ClusterError(f"ranks {ranks} of {LOST_NODE} were not among the processes that were killed: {sorted(processes)}")
        self.dead = f"ptcd, {len(ranks)} ranks and {len(processes) - 1 - len(ranks)} processes of theirs"
        say(f"  {LOST_NODE} is gone with its memory; nobody types anything from here on")

    def events(self):
        lines = self.c.ptcctl("events", JOB, "--format", "json").stdout.splitlines()
        return [e for e in map(json.loads, lines) if e["time_ms"] / 1000 >= self.killed_at]

    def follow(self):
        """Says what happens as it happens, until ranks of a new generation have ended a step."""
        told = []

        def recovered():
            for e in self.events()[len(told):]:
                told.append(e)
                say(f"  {e['time_ms'] / 1000 - self.killed_at:5.1f} s  {e['kind']}: {e['text'].split('; its log ends')[0]}")
                if e["kind"] == "gave_up":
                    raise ClusterError(e["text"])
            return any(e["kind"] == "recovered" for e in told)

        wait_for(recovered, 240, "a job that trains again", 0.2)
        wait_for(lambda: max(curve.runs(self.log)) > self.before["generation"], 60, "the first step", 0.05)
        self.moments(told, time.time())

    def moments(self, events, first_step):
        at = {"first_step": first_step}
        for e in events: # the first of each
            if e["kind"] in ("node_down", "recovering"):
                at.setdefault("detected", e["time_ms"] / 1000)
            elif e["kind"] in ("switch", "recovered"):
                at.setdefault({"switch": "decided", "recovered": "started"}[e["kind"]], e["time_ms"] / 1000)
        text = next(e["text"] for e in events if e["kind"] == "recovered")
        said = RECOVERED.search(text)
        if not said or not {"detected", "decided", "started"} <= set(at):
            raise ClusterError(f"the job went on, but its events do not tell how: {text}")
        parts, last = {}, self.killed_at
        for part, _ in picture.LOSS_PARTS:
            parts[part], last = 1000 * (at[part] - last), at[part]
        self.lost = {"node": LOST_NODE, "begun": int(said[1]), "reached": int(said[3]), "from": self.before["config"], "to": said[2],
                     "parts": parts}

    # ---- what came of it

    def summary(self):
        lost, s = self.lost, {part: ms / 1000 for part, ms in self.lost["parts"].items()}
        left = len(self.status()["ranks"])
        say(f"""
What happened:
  killed      node {LOST_NODE} at step {lost['reached']}, with kill -9: {self.dead}; its memory is gone
  went on     {sum(s.values()):.1f} s later, from step {lost['begun']}, with {left} ranks: {lost['from']} -> {lost['to']}
  of these    {s['detected']:5.1f} s  detected: the node's lease in etcd had to end (lease_ttl)
              {s['decided']:5.1f} s  decided: a rank elsewhere has failed, and the machine refuses connections for 1.5 s (else: node_lost_after)
              {s['started']:5.1f} s  started: {left} processes import PyTorch, build the model, and get their part of the snapshot
              {s['first_step']:5.1f} s  first step
  lost        {lost['reached'] - lost['begun']} steps, which were done again: step {lost['reached']} had been reached, and the newest snapshot was that of
              step {lost['begun']}. The job makes one every {EVERY} steps (snapshot_every) and keeps it on {COPIES} nodes (copies). What the
              other ranks had in memory is used by programs that promise to keep it (gen.survive())""")

    def check_repeated(self):
        twice = curve.repeated(self.log)
        worst = max((abs(loss - last) / abs(last) for *first, last in twice.values() for loss in first), default=0)
        if worst > TOLERANCE[self.o.dtype]:
            raise ClusterError(f"steps {sorted(twice)} were done twice, with losses that are {worst:.1e} apart")
        if twice:
            say(f"              Ranks had told the loss of steps {min(twice)} to {max(twice)} before: done again, it is at most {worst:.1e} "
                "apart")

    def page(self, reference, found):
        return picture.loss_page(reference, found, self.lost, TOLERANCE[self.o.dtype])


def main():
    options = quickstart_train.arguments(__doc__).parse_args()
    if options.build == "ahead":
        options.mode = "restart"
    options.steps = options.steps or 72
    return quickstart_train.perform(Failure, options)


if __name__ == "__main__":
    sys.exit(main())
