# SPDX-License-Identifier: Apache-2.0
"""ptc-bench planner: searches for up to 10,240 devices, the frontier and the mapping on one core (ptc-bench-planner); the
least of the rounds. Each round gives the same answers. Failure modes: the program's one line, or answers that differ."""
import json
import os
import subprocess

HEAD = ("what", "devices", "s", "answer")


def run(args):
    argv = [os.path.join(args.build, "tests", "bench", "ptc-bench-planner"), *(["64"] if args.scale == "small" else [])]
    r = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if r.returncode:
        raise subprocess.SubprocessError(r.stderr.strip() or f"{argv[0]} ended with {r.returncode}")
    return json.loads(r.stdout)


def bench_planner(args, work): # pylint: disable=unused-argument
    rounds = [run(args) for _ in range(args.rounds)]
    for same in zip(*rounds):
        if len({r["answer"] for r in same}) > 1:
            raise AssertionError(f"{same[0]['what']} on {same[0]['devices']} devices: two rounds gave different answers")
        least = min(same, key=lambda r: r["seconds"])
        yield {"scenario": "planner", "rounds": args.rounds, **least}


def cells(r):
    return (r["what"], str(r["devices"]), f"{r['seconds']:.3f}", r["answer"])
