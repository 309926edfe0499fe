#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Chooses the settings of planner/fit (PTC_FIT_SETTINGS) by nested cross-validation over published measurements.

  tests/planner_settings.py [FILE] [--dump PROGRAM]

A fold is one or more models of a cluster. For each fold the settings are those that do best on all other folds, without one
row of this fold in any calibration; what they then reach on it is the honest figure. The last line is chosen on all folds:
of those within one standard error of the best, the most cautious. Takes ten minutes.
"""
import itertools
import sys

import planner_replay as replay

REACH, SIZE, NOISE, PRIOR = (0.5, 0.7, 1.0), (0.08, 0.15, 0.25), (0.05, 0.08, 0.12), (0.02, 0.1, 0.5)
FOLDS = 4  # of a cluster, at most


def clusters(planner, data):
    """(rows, cases, folds): measurements of one cluster, with the folds that its models fall into."""
    out = []
    deepspeed = {"weight": 2, "grad": 2, "optim": 16}
    for prefix, rules in (("vtrain-single", deepspeed), ("vtrain-multi", deepspeed), ("bloom", deepspeed),
                          ("parcae", {"weight": 2, "grad": 2, "optim": 12})):
        rows, cases = replay.possible(planner, [r for r in data if r["id"].startswith(prefix)], rules)
        models = sorted({r["model"]["name"] for r in rows})
        folds = [[i for i, r in enumerate(rows) if models.index(r["model"]["name"]) % FOLDS == k] for k in range(FOLDS)]
        folds = [f for f in folds if len(f) >= replay.GROUP_MIN]
        if folds:
            out.append((rows, cases, folds))
    return out


def score(planner, cluster, fold, without, settings):
    """Error and regret on a fold that the rest of the cluster calibrates, and with a third of the fold, too."""
    rows, cases, folds = cluster
    rest = [i for f in folds if f not in (fold, without) for i in f]
    third = [fold[i] for i in replay.split(len(fold), 1 / 3, 0)]
    errors = []
    for train, test in ((rest, fold), (rest + third, [i for i in fold if i not in set(third)])):
        if not train:
            continue
        got = planner.ask(cases, train=train, settings=settings)["cases"]
        steps = [g.get("step", float("inf")) for g in got]
        errors.append(replay.mape(rows, steps, test))
        ranked = replay.ranking(rows, steps, test)
        if ranked["groups"]:
            errors.append(ranked["regret"])
    return replay.mean(errors)


def choose(scores, grid):
    """Of the settings that are not worse than the best by more than a standard error of the difference, the most cautious:
    those that hold the prior most, believe a measurement least, and take errors for small and local. scores: by fold."""
    best = min(grid, key=lambda s: replay.mean(scores[s]))
    worse = {s: [a - b for a, b in zip(scores[s], scores[best])] for s in grid}
    good = [s for s in grid if replay.mean(worse[s]) <= replay.error_bar(worse[s])]
    return min(good, key=lambda s: (-s[3], -s[2], s[1], s[0])), best


def main():
    args = sys.argv[1:]
    dump = replay.default_dump()
    if "--dump" in args:
        at = args.index("--dump")
        dump = args[at + 1]
        del args[at:at + 2]
    data, _ = replay.load(args[0] if args else replay.default_data())
    planner = replay.Planner(dump)
    found = clusters(planner, data)
    grid = list(itertools.product(REACH, SIZE, NOISE, PRIOR))
    folds = [(c, k) for c in range(len(found)) for k in range(len(found[c][2]))]
    inner = {}
    for s in grid:
        for c, k in folds:
            for w in [None] + [j for d, j in folds if d == c and j != k]:
                without = None if w is None else found[c][2][w]
                inner[s, c, k, w] = score(planner, found[c], found[c][2][k], without, list(s))
        print(s, *(f"{inner[s, c, k, None]:.4f}" for c, k in folds), flush=True)
    outer = []
    for c, k in folds:
        others = [(d, j) for d, j in folds if (d, j) != (c, k)]
        by = {s: [v for v in (inner[s, d, j, k if d == c else None] for d, j in others) if v == v] for s in grid}
        picked, _ = choose(by, grid)
        outer.append(inner[picked, c, k, None])
        print(f"left out {found[c][0][0]['id'].split('-')[0]} fold {k}: chosen {picked}, then {outer[-1]:.4f}")
    print(f"nested: {replay.mean(outer):.4f} +- {replay.error_bar(outer):.4f}")
    every = {s: [inner[s, c, k, None] for c, k in folds] for s in grid}
    picked, best = choose(every, grid)
    print(f"all folds: best {best} {replay.mean(every[best]):.4f}, chosen {picked} {replay.mean(every[picked]):.4f}")
    planner.close()


if __name__ == "__main__":
    main()
