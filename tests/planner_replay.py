#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Published measurements against planner/, which planner-dump runs.

  tests/planner_replay.py [FILE] [--dump PROGRAM] [--json]

Rows that cannot be are named on standard error, one line each, and left out; exit 2: no such file. A figure that a file has no
rows for is not shown.

FILE is a JSON array of measured rows (fields: docs/planner.md, "The replay"); default: planner_dev.json in
shared/data beside the checkout, or $PTC_PLANNER_DATA. Splits are random with fixed seeds and stated with each
figure. The figures are this script's own; predictions are the library's.
"""
import json
import math
import os
import random
import statistics
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
GROUP_MIN = 4  # configurations of one model, batch and number of devices that make a ranking


def default_data():
    beside = [os.path.join(ROOT, *up, "shared", "data", "planner_dev.json") for up in ([".."], ["..", ".."])]
    for path in [os.environ.get("PTC_PLANNER_DATA"), *beside]:
        if path and os.path.exists(path):
            return path
    return None


def default_dump():
    return os.path.join(os.environ.get("PTC_BUILD", os.path.join(ROOT, "build", "release")), "tests", "planner-dump")


# Of a row, what is read here: whole numbers, numbers (both positive, or null: not known), and texts. An absent field is null.
COUNTS = ("gpus", "gpus_per_node", "dp", "tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch", "global_batch")
NUMBERS = ("step_time_s", "memory_gb")
TEXTS = ("evidence", "gpu_type", "precision", "recompute", "memory_what", "trust", "note")
OTHERS = ("seq_parallel", "zero_stage", "derived")
DIMS = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq")
HUGE = 1e15


def number_of(value, whole):
    """What is wrong with a value that is to be a positive number; None: nothing."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return f"is {value!r}, not a number"
    if not 0 < value <= HUGE:
        return f"is {value!r}; it must be above 0 and at most {HUGE:g}"
    if whole and value != int(value):
        return f"is {value!r}, not a whole number"
    return None


def row_error(row):
    """What is wrong with a row; None: nothing."""
    if not isinstance(row, dict):
        return f"is {type(row).__name__}, not an object"
    for key in ("id", "kind"):
        if not isinstance(row.get(key), str) or not row[key]:
            return f"has no {key}"
    model = row.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("name"), str):
        return "has no model with a name"
    checks = [(k, row.get(k), k in COUNTS) for k in COUNTS + NUMBERS] + [("model." + k, model.get(k), True) for k in DIMS]
    moe = model.get("moe")
    if moe is not None:
        if not isinstance(moe, dict):
            return "model.moe is no object"
        checks += [("model.moe." + k, moe.get(k), True) for k in ("experts", "topk", "moe_ffn")]
    for key, value, whole in checks:
        wrong = None if value is None else number_of(value, whole)
        if wrong:
            return f"{key} {wrong}"
    for key in TEXTS:
        if not isinstance(row.get(key), (str, type(None))):
            return f"{key} is {row[key]!r}, not a text"
    derived = row.get("derived")
    if derived is not None and (not isinstance(derived, dict) or (derived.get("step_time_s") is not None and
                                                                  number_of(derived["step_time_s"], False))):
        return "derived is no object with a positive step_time_s"
    if isinstance(row.get("zero_stage"), (list, dict)) or row.get("zero_stage") not in (None, 0, 1, 2, 3):
        return f"zero_stage is {row['zero_stage']!r}; it is 0, 1, 2 or 3"
    return None


def load(path):
    """Rows of a file and what is wrong with others, one line each. ValueError: not such a file."""
    try:
        with open(path, encoding="utf-8") as f:
            data = json.load(f)
    except OSError as e:
        raise ValueError(f"{path}: {e.strerror}") from e
    except ValueError as e:
        raise ValueError(f"{path}: not JSON: {e}") from e
    if not isinstance(data, list):
        raise ValueError(f"{path}: not a JSON array of rows")
    rows, wrong, seen = [], [], set()
    for i, row in enumerate(data):
        why = row_error(row)
        if not why and row["id"] in seen:
            why = "stands twice"
        name = row["id"] if isinstance(row, dict) and isinstance(row.get("id"), str) else "?"
        if why:
            wrong.append(f"{path}: row {i + 1} ({name}) {why}; it is left out")
            continue
        seen.add(row["id"])
        rows.append({**dict.fromkeys(COUNTS + NUMBERS + TEXTS + OTHERS), **row})
    return rows, wrong


class Planner:
    """planner-dump, asked line by line."""

    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, cases, **more):
        self.process.stdin.write(json.dumps({"cases": cases, **more}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("planner-dump ended; its message is above")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


# ---- rows as cases ----

DEVICES = [("h200", "H200-141GB"), ("h100", "H100-80GB"), ("gb200", "GB200"), ("gb300", "GB300"), ("b200", "B200"),
           ("b300", "B300"), ("gh", "GH200-96GB"), ("a100-40", "A100-40GB"), ("a100_40", "A100-40GB"), ("a100", "A100-80GB"),
           ("v100-16", "V100-16GB"), ("v100", "V100-32GB")]
# Bandwidth of a device within its node, and of a node, bytes/s: what the rows' own descriptions say, else what makers
# state for one direction. Starting points, which calibration scales.
LINKS = {"A100-80GB": (200e9, 80e9), "A100-40GB": (200e9, 160e9), "H100-80GB": (400e9, 400e9), "V100-16GB": (1.25e9, 1.25e9)}


def device_of(row):
    kind = (row["gpu_type"] or "").lower()
    for text, name in DEVICES:
        if text in kind:
            return name
    return None


def model_of(row, **more):
    m = row["model"]
    if any(m.get(k) is None for k in ("layers", "hidden", "heads", "seq")):
        return None
    out = {k: m[k] for k in ("layers", "hidden", "heads", "seq")}
    out["kv_heads"] = m.get("kv_heads") or m["heads"]
    out["ffn"] = m.get("ffn") or 4 * m["hidden"]
    out["vocab"] = m.get("vocab") or 50257
    return {**out, **more}


RECOMPUTE = {"none": 0, "full": 2}


def case_of(row, model, rules=None):
    device = device_of(row)
    if not model or not device:
        return None
    intra, node = LINKS.get(device, (400e9, 400e9))
    per_node = row["gpus_per_node"] or 8
    degrees = {k: row[k] or 1 for k in ("tp", "pp", "cp", "ep", "etp")}
    recompute = row["recompute"] or "none"
    dp = row["dp"] or 1
    config = {**degrees, "dp": dp, "vpp": row["vpp"] or 1, "mbs": row["micro_batch"] or 1, "zero": row["zero_stage"] or 0,
              "recompute": RECOMPUTE.get(recompute, 1)}
    case = {"model": model, "cluster": {"device": device, "per_node": per_node, "nodes": max(1, -(-(row["gpus"] or 8) // per_node)),
                                        "intra": intra, "node": node},
            "config": config, "rules": rules or {}, "batch": row["global_batch"] or config["mbs"] * dp,
            "step": row["step_time_s"] or (row["derived"] or {}).get("step_time_s") or 0}
    if row["memory_gb"]:
        case["peak"] = row["memory_gb"] * (2**30 if "GiB" in (row["memory_what"] or "") else 1e9)
    return case


# ---- figures ----

def split(n, share, seed):
    """Indices to calibrate on."""
    order = list(range(n))
    random.Random(seed).shuffle(order)
    return sorted(order[:int(n * share)])


def groups_of(rows, indices):
    groups = {}
    for i in indices:
        r = rows[i]
        groups.setdefault((r["model"]["name"], r["gpus"], r["global_batch"]), []).append(i)
    return {k: v for k, v in sorted(groups.items(), key=str) if len(v) >= GROUP_MIN}


def greedy(rows, group):
    """What a rule of thumb takes (SC'21): the least pp, then the least tp within a node, then the largest micro-batch."""
    return min(group, key=lambda i: (rows[i]["tp"] > (rows[i]["gpus_per_node"] or 8), rows[i]["pp"], rows[i]["tp"],
                                     -rows[i]["micro_batch"], i))


def mean(v):
    return sum(v) / len(v) if v else float("nan")


def error_bar(v):
    """Standard error of the mean."""
    return statistics.stdev(v) / math.sqrt(len(v)) if len(v) > 1 else 0.0


def ranking(rows, steps, indices):
    """Regret of the first choice in each group; how often the best is among the first three; baselines."""
    regrets, top3, median, by_rule = [], [], [], []
    for group in groups_of(rows, indices).values():
        t = {i: rows[i]["step_time_s"] for i in group}
        best = min(t.values())
        order = sorted(group, key=lambda i: (steps[i], i))
        regrets.append(t[order[0]] / best - 1)
        top3.append(best in [t[i] for i in order[:3]])
        median.append(sorted(t.values())[len(t) // 2] / best - 1)
        by_rule.append(t[greedy(rows, group)] / best - 1)
    return {"groups": len(regrets), "regret": mean(regrets), "regret_se": error_bar(regrets),
            "regret_max": max(regrets, default=0.0), "top3": mean(top3), "median_choice": mean(median), "greedy": mean(by_rule)}


def mape(rows, steps, indices):
    return mean([abs(steps[i] / rows[i]["step_time_s"] - 1) for i in indices])


def averaged(trials):
    """Means over seeds, of what each has; _sd is the spread between seeds."""
    known = {k: [t[k] for t in trials if t[k] == t[k] and t[k] != math.inf] for k in trials[0]}
    out = {k: mean(v) for k, v in known.items()}
    out.update({k + "_sd": statistics.pstdev(known[k]) if known[k] else math.nan for k in ("regret", "mape")})
    return out


def trial(planner, rows, cases, train, test, seen=None):
    """Calibrated on train. Ranked are all rows of `test`'s groups, or of seen's."""
    got = planner.ask(cases, train=train)["cases"]
    steps = [g.get("step", float("inf")) for g in got]
    inside = [i for i in test if steps[i] < math.inf and abs(math.log(rows[i]["step_time_s"] / steps[i])) <= got[i]["sd"]]
    return {**ranking(rows, steps, seen or test), "mape": mape(rows, steps, test), "within_sd": len(inside) / len(test)}


def possible(planner, rows, rules):
    """Rows that say enough and can be, with their cases."""
    needed = ("step_time_s", "gpus", "tp", "pp", "dp", "micro_batch", "global_batch")
    pairs = [(r, case_of(r, model_of(r), rules)) for r in rows if all(r[k] for k in needed)]
    pairs = [(r, c) for r, c in pairs if c]
    got = planner.ask([c for _, c in pairs])["cases"] if pairs else []
    pairs = [pair for pair, g in zip(pairs, got) if "error" not in g]
    return [r for r, _ in pairs], [c for _, c in pairs]


def vtrain(planner, data, kind):
    return possible(planner, [r for r in data if r["id"].startswith("vtrain-" + kind)], {"weight": 2, "grad": 2, "optim": 16})


def single_node(planner, data, seeds=5):
    rows, cases = vtrain(planner, data, "single")
    if len(rows) < 3 * GROUP_MIN:
        return {}
    trials = []
    for seed in range(seeds):
        train = split(len(rows), 1 / 3, seed)
        test = [i for i in range(len(rows)) if i not in set(train)]
        trials.append(trial(planner, rows, cases, train, test))
    plain = [g["model_step"] for g in planner.ask(cases)["cases"]]
    every = list(range(len(rows)))
    return {"calibrated on a third of the rows, tested on the rest": averaged(trials),
            "uncalibrated": {**ranking(rows, plain, every), "mape": mape(rows, plain, every)},
            **leave_one_out(planner, rows, cases, lambda r: r["model"]["name"], "leave one model out")}


def leave_one_out(planner, rows, cases, key, label):
    trials = []
    for name in sorted({key(r) for r in rows}, key=str):
        test = [i for i, r in enumerate(rows) if key(r) == name]
        train = [i for i, r in enumerate(rows) if key(r) != name]
        if train and len(test) >= GROUP_MIN:
            trials.append({**trial(planner, rows, cases, train, test), "what": str(name)})
    ranked = [t for t in trials if t["groups"]]
    if not ranked:
        return {}
    regrets, errors = [t["regret"] for t in ranked], [t["mape"] for t in ranked]
    each = {t["what"]: {"regret": t["regret"], "mape": t["mape"]} for t in ranked}
    return {label: {"regret": mean(regrets), "regret_se": error_bar(regrets), "regret_max": max(regrets), "mape": mean(errors),
                    "mape_se": error_bar(errors), "top3": mean([t["top3"] for t in ranked]), "each": each}}


def multi_node(planner, data, seeds=24):
    rows, cases = vtrain(planner, data, "multi")
    if len(rows) < 3 * GROUP_MIN:
        return {}
    every = list(range(len(rows)))
    out = {"calibrated on all rows of the cluster, in sample": trial(planner, rows, cases, every, every)}
    for share, label in ((0.5, "half"), (2 / 3, "two thirds")):
        trials = []
        for seed in range(seeds):
            train = split(len(rows), share, seed)
            test = [i for i in every if i not in set(train)]
            trials.append(trial(planner, rows, cases, train, test, seen=every))
        out[f"calibrated on {label} of the rows, error on the rest, ranked all"] = averaged(trials)
    out.update(leave_one_out(planner, rows, cases, lambda r: (r["model"]["name"], r["gpus"], r["global_batch"]),
                             "leave one group out"))
    out.update(leave_one_out(planner, rows, cases, lambda r: r["model"]["name"], "leave one model out"))
    single, more = vtrain(planner, data, "single")
    if single:
        got = planner.ask(cases + more, train=list(range(len(rows), len(rows) + len(single))))["cases"]
        steps = [g["step"] for g in got[:len(rows)]]
        out["calibrated on single nodes only"] = {**ranking(rows, steps, every), "mape": mape(rows, steps, every)}
    return out


def other_clusters(planner, data, seeds=12):
    """Every other source with measured steps of what it ran: half of its rows calibrate, errors are of the other half."""
    out = {}
    for source in sorted({r["id"].split("-")[0] for r in data} - {"vtrain", "mcore"}):
        rows, cases = possible(planner, [r for r in data if r["id"].split("-")[0] == source],
                               {k: v for k, v in PROGRAMS.get(source, ({}, {}))[1].items() if k in ("weight", "grad", "optim")})
        if len(rows) < 3 * GROUP_MIN or not groups_of(rows, range(len(rows))):
            continue
        trials = []
        for seed in range(seeds):
            train = split(len(rows), 0.5, seed)
            test = [i for i in range(len(rows)) if i not in set(train)]
            trials.append(trial(planner, rows, cases, train, test, seen=list(range(len(rows)))))
        out[source] = {"rows": len(rows), **averaged(trials)}
    return out


def idle_devices(planner, data, seeds=5):
    """Complete tables of (dp, pp) on one slow network: for every n the choice among all that take at most n devices."""
    out = {}
    rows, _ = possible(planner, [r for r in data if r["id"].startswith("parcae-")], {"weight": 2, "grad": 2, "optim": 12})
    for name in sorted({r["model"]["name"] for r in rows}):
        table = [r for r in rows if r["model"]["name"] == name]
        if len(table) < 2 * GROUP_MIN:
            continue
        cases = [case_of(r, model_of(r), {"weight": 2, "grad": 2, "optim": 12}) for r in table]
        regrets, idle, all_devices = [], [], []
        for seed in range(seeds):
            got = planner.ask(cases, train=split(len(table), 1 / 3, seed))["cases"]
            for n in range(min(r["gpus"] for r in table), max(r["gpus"] for r in table) + 1):
                fit = [i for i, r in enumerate(table) if r["gpus"] <= n]
                best = min(table[i]["step_time_s"] for i in fit)
                chosen = min(fit, key=lambda i: (got[i].get("step", math.inf), table[i]["gpus"], i))
                most = max(fit, key=lambda i: (table[i]["gpus"], table[i]["dp"]))
                regrets.append(table[chosen]["step_time_s"] / best - 1)
                all_devices.append(table[most]["step_time_s"] / best - 1)
                idle.append(table[chosen]["gpus"] < n)
        out[name] = {"rows": len(table), "choices": len(regrets), "regret": mean(regrets), "regret_se": error_bar(regrets),
                     "regret_max": max(regrets), "left_idle": mean(idle), "always_the_most_devices": mean(all_devices)}
    return out


# ---- memory ----

LLAMA = {"glu": True, "no_bias": True, "rope": True, "no_dropout": True, "flash": True}
# Where ZeRO cuts: two buckets of 5e8 16-bit values (DeepSpeed's defaults of reduce_bucket_size and allgather_bucket_size)
# beside what every program takes.
DEEPSPEED = {"bloom", "bloom-bf16", "sailor"}
DEEPSPEED_RESERVE = 4e9
# What the allocator gave out, without context, communicators and its own waste.
ALLOCATED = {"waste": 0, "reserve": 0}
# Bytes of a logit: Megatron's loss works in place on one fp32 copy of 16-bit logits; plain PyTorch makes a copy at each step.
IN_PLACE, EAGER = {"logit": 6}, {"logit": 14}
# What each source's program keeps of a parameter, and how its model differs from a GPT of 2021.
PROGRAMS = {
    "bloom": ({}, {"weight": 2, "grad": 2, "optim": 16, **IN_PLACE}),  # DeepSpeed: optimizer with gradients in fp32
    "bloom-bf16": ({}, {"weight": 2, "grad": 6, "optim": 12, **IN_PLACE}),  # and gradients are accumulated in fp32
    "sailor": ({}, {"weight": 2, "grad": 2, "optim": 16, **IN_PLACE}),
    "nanotron": ({**LLAMA, "eager_glu": True}, {"weight": 2, "grad": 4, "optim": 12, **EAGER, "sequence_parallel": True}),
    "torchtitan": ({**LLAMA, "untied": True}, {"weight": 4, "grad": 4, "optim": 8, **EAGER, "sequence_parallel": True}),
    "llmfoundry": ({"flash": True, "no_bias": True, "no_dropout": True},
                   {"weight": 4, "grad": 4, "optim": 8, "logit": 4}),  # its loss is one kernel over bf16 logits
    "mcore": ({}, {"weight": 2, "grad": 4, "optim": 12, **IN_PLACE, **ALLOCATED}),
    "sc21": ({}, {"weight": 2, "grad": 4, "optim": 12, **IN_PLACE}), "korth": ({}, {"weight": 2, "grad": 4, "optim": 12, **IN_PLACE}),
    "vtrain": ({}, {"weight": 2, "grad": 2, "optim": 16}), "parcae": ({}, {"weight": 2, "grad": 2, "optim": 12}),
}


def program_of(row):
    name = row["id"].split("-")[0]
    if name == "bloom" and ("fp32 grad" in (row["precision"] or "") or row["precision"] == "bf16"):
        return "bloom-bf16"
    return name if name in PROGRAMS else None


GPT2_VOCAB = 50304  # of Megatron's small tests, which name no tokenizer: GPT-2's 50,257, padded to a multiple of 128


def mcore_model(row):
    """Megatron's own tests: what the row's arguments say. None: of a kind that is not judged."""
    family, m, note = row["model"]["name"].split(":")[0], row["model"], row["note"] or ""
    if family not in ("gpt", "moe") or (row["trust"] == "high" and not m.get("vocab")) or "loss-fusion" in note:
        return None
    given = {key: f'"--{name}": true' in note for key, name in
             (("untied", "untie-embeddings-and-output-weights"), ("no_bias", "disable-bias-linear"), ("glu", "swiglu"))}
    model = model_of({**row, "model": {**m, "vocab": m.get("vocab") or GPT2_VOCAB}}, **given, rope='"rope"' in note,
                     flash='"--attention-backend": "unfused"' not in note)
    if model and m.get("moe"):
        model.update(ffn=0, experts=m["moe"]["experts"], topk=m["moe"]["topk"] or 2,
                     expert_ffn=m["moe"]["moe_ffn"] or m.get("ffn") or 4 * m["hidden"])
    return model


def memory_case(row):
    """A case whose memory can be judged: model, degrees and micro-batch are stated. None: they are not."""
    program = program_of(row)
    if not program or row["micro_batch"] is None or row["tp"] is None or row["pp"] is None:
        return None
    if row["model"].get("moe") and program != "mcore":
        return None
    if not row["dp"] and not row["gpus"] and program != "mcore":
        return None
    if program == "torchtitan" and row["pp"] > 1:  # the batch of a rank is stated, a pipeline's micro-batch is not
        return None
    model, rules = PROGRAMS[program]
    if program == "nanotron" and (row["model"].get("ffn") or 0) >= 10000:  # its benchmark ties the head below that
        model = {**model, "untied": True}
    if program in DEEPSPEED and row["zero_stage"]:
        rules = {**rules, "reserve": DEEPSPEED_RESERVE}
    described = mcore_model(row) if program == "mcore" else model_of(row, **model)
    case = case_of(row, described, {**rules, "sequence_parallel": bool(row["seq_parallel"]) or rules.get("sequence_parallel", False)})
    if not case:
        return None
    case["last"] = "LAST rank" in (row["evidence"] or "")
    if not row["dp"]:
        case["config"]["dp"] = (row["gpus"] or 8) // (case["config"]["tp"] * case["config"]["pp"] * case["config"]["cp"])
    return case


def relative(got, cases, indices):
    """Errors of peaks; of a row that says so, of its last rank."""
    return sorted(abs(got[i]["last_peak" if cases[i].get("last") else "peak"] / cases[i]["peak"] - 1) for i in indices)


def peaks(planner, data):
    """Measured peaks, program by program: as the formulas say, and with two numbers fitted on a third."""
    out, plain_all, fitted_all = {}, [], []
    for program in PROGRAMS:
        pairs = [(r, memory_case(r)) for r in data if r["memory_gb"] and program_of(r) == program
                 and r["kind"] != "memory-analytic" and "SUSPECT" not in (r["note"] or "")]
        cases = [c for _, c in pairs if c]
        if not cases:
            continue
        got = planner.ask(cases)["cases"]
        cases = [c for c, g in zip(cases, got) if "memory" in g]
        got = [g for g in got if "memory" in g]
        plain = relative(got, cases, range(len(cases)))
        row = {"rows": len(cases), "median_error": statistics.median(plain)}
        plain_all += plain
        if len(cases) >= 6:
            fitted = []
            for seed in range(5):
                train = split(len(cases), 1 / 3, seed)
                again = planner.ask(cases, peaks=train)["cases"]
                fitted += relative(again, cases, [i for i in range(len(cases)) if i not in set(train)])
            row["median_error_fitted_on_a_third"] = statistics.median(fitted)
            fitted_all += fitted
        out[program] = row
    out["all"] = {"rows": len(plain_all), "median_error": statistics.median(plain_all) if plain_all else float("nan"),
                  "median_error_fitted_on_a_third": statistics.median(fitted_all) if fitted_all else float("nan")}
    return out


WASTES = [i / 20 for i in range(9)]


def waste_left_out(planner, data):
    """The one number of the memory model that measurements might have chosen, the allocator's share: for each program the
    share that does best (mean over programs of the median error) on all others, and the error it then has on this one."""
    cases = {}
    for r in data:
        if r["memory_gb"] and r["kind"] != "memory-analytic" and "SUSPECT" not in (r["note"] or ""):
            c = memory_case(r)
            if c and "waste" not in c["rules"]:
                cases.setdefault(program_of(r), []).append(c)
    error = {}
    for program, group in cases.items():
        group = [c for c, g in zip(group, planner.ask(group)["cases"]) if "error" not in g]
        for waste in WASTES:
            got = planner.ask([{**c, "rules": {**c["rules"], "waste": waste}} for c in group])["cases"] if group else []
            error[program, waste] = relative(got, group, range(len(group)))
    out, every = {}, []
    programs = [p for p in cases if error[p, 0.0]]
    for left in programs if len(programs) > 1 else []:
        best = min(WASTES, key=lambda w, x=left: mean([statistics.median(error[p, w]) for p in programs if p != x]))
        out[left] = {"chosen": best, "median_error": statistics.median(error[left, best])}
        every += error[left, best]
    if every:
        out["all"] = {"rows": len(every), "median_error": statistics.median(every)}
    return out


# Device memory in bytes, as the driver gives it to programs: rows of other devices cannot be judged.
MEMORY = {"A100-80GB": 80e9 * 1.06, "A100-40GB": 40e9 * 1.06, "H100-80GB": 80e9 * 1.06, "H200-141GB": 141e9, "GB200": 186e9,
          "GB300": 279e9, "B200": 180e9, "B300": 270e9, "GH200-96GB": 96e9, "V100-16GB": 16e9 * 1.06, "V100-32GB": 32e9 * 1.06}


def memory_known(row):
    """The row names its device's memory (an "A100" has 40 or 80 GB)."""
    return device_of(row) and ("gb" in (row["gpu_type"] or "").lower() or device_of(row)[0] in "BG")


def least(row, case):
    """A row that does not say what it recomputed fits if it does with everything recomputed."""
    return case if row["recompute"] else {**case, "config": {**case["config"], "recompute": RECOMPUTE["full"]}}


def refusals(planner, data, kinds):
    """(judged, refused, taken, not judged) of rows of these kinds. Where a program has measured peaks, a third of them
    corrects the rules, as a running job's do."""
    judged, refused, taken, left = 0, [], [], 0
    for program in [None, *PROGRAMS]:
        rows = [r for r in data if r["kind"] in kinds and program_of(r) == program]
        pairs = [(r, memory_case(r)) for r in rows if memory_known(r)]
        pairs = [(r, least(r, c)) for r, c in pairs if c]
        left += len(rows) - len(pairs)
        if not pairs:
            continue
        measured = [memory_case(r) for r in data if program_of(r) == program and r["memory_gb"] and r["kind"] == "both"]
        measured = [c for c in measured if c]
        measured = [c for c, g in zip(measured, planner.ask(measured)["cases"]) if "error" not in g] if measured else []
        train = split(len(measured), 1 / 3, 0) if len(measured) >= 6 else []
        got = planner.ask(measured + [c for _, c in pairs], peaks=train)["cases"][len(measured):]
        for (r, c), g in zip(pairs, got):
            if "memory" not in g:
                left += 1
                continue
            judged += 1
            fits = g["memory"] <= MEMORY[c["cluster"]["device"]]
            (taken if fits else refused).append(f"{r['id']} ({g['memory'] / 1e9:.0f} GB)")
    return judged, refused, taken, left


def veto(planner, data):
    """Rows that ran and would be refused; rows that ran out of memory and would be taken."""
    ran, ran_refused, _, ran_left = refusals(planner, data, ("throughput", "both"))
    oom, _, oom_taken, oom_left = refusals(planner, data, ("oom",))
    return {"ran": ran, "ran_refused": ran_refused, "ran_not_judged": ran_left, "out_of_memory": oom,
            "out_of_memory_taken": oom_taken, "out_of_memory_not_judged": oom_left}


# ---- formulas ----

def formulas(planner, data):
    out = {"sc21_sizes": [], "korthikanti": [], "llama3_70b_gflop_token": None}
    for r in [r for r in data if r["id"].startswith("sc21-t1")]:
        case = case_of(r, model_of(r))
        case["config"] = {}  # sizes alone
        g = planner.ask([case])["cases"][0]
        printed = r["model"]["params_b"]
        digits = len(repr(float(printed)).split(".")[1]) if printed < 1000 else 1
        out["sc21_sizes"].append((r["id"], printed, round(g["params_sc21"] / 1e9, digits)))
    for r in [r for r in data if r["id"].startswith("korth-f1")]:
        # Figure 1's "selective" is with sequence parallelism (34 sbh / t), its "none" without.
        selective = r["recompute"] != "none"
        case = case_of(r, model_of(r), {"sequence_parallel": selective})
        case["config"].update(pp=1, vpp=1)  # of one layer
        g = planner.ask([case])["cases"][0]
        printed = float(r["memory_what"].rsplit(" ", 1)[1])
        vpp, pp = r["vpp"] or 1, r["pp"] or 1
        layers = r["model"]["layers"] * (1 + (pp - 1) / (pp * vpp) if vpp > 1 else 1)
        out["korthikanti"].append((r["id"], printed, g["layer_activations"] * layers / 2**30))
    llama = {"layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672, "vocab": 128256, "seq": 8192, **LLAMA}
    row = {"gpu_type": "H100", "gpus": 64, "gpus_per_node": 8, "global_batch": 64, "step_time_s": 1, "memory_gb": None,
           "zero_stage": 0, "recompute": "none", "micro_batch": 1, "vpp": 1, "cp": 1, "ep": 1, "etp": 1, "tp": 8, "pp": 4, "dp": 2}
    out["llama3_70b_gflop_token"] = planner.ask([case_of(row, llama)])["cases"][0]["flops_token"] / 1e9
    return out


# ---- report ----

def figures(planner, data):
    return {"rows": len(data), "formulas": formulas(planner, data), "single node": single_node(planner, data),
            "multi node": multi_node(planner, data), "other clusters, half of the rows": other_clusters(planner, data),
            "idle devices": idle_devices(planner, data),
            "peaks of memory": peaks(planner, data),
            "allocator's share chosen on other programs": waste_left_out(planner, data), "veto": veto(planner, data)}


def without_nan(value):
    """A figure that no row decides is null."""
    if isinstance(value, dict):
        return {k: without_nan(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def show(name, value, depth=0):
    pad = "  " * depth
    if isinstance(value, dict) and any(isinstance(v, dict) for v in value.values()):
        print(f"{pad}{name}")
        flat = {k: v for k, v in value.items() if not isinstance(v, dict)}
        if flat:
            show("", flat, depth + 1)
        for k, v in value.items():
            if isinstance(v, dict):
                show(k, v, depth + 1)
        return
    if isinstance(value, dict):
        text = "  ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in value.items())
        print(f"{pad}{name + ': ' if name else ''}{text}")
        return
    print(f"{pad}{name}: {value}")


def main():
    args = sys.argv[1:]
    as_json = "--json" in args
    args = [a for a in args if a != "--json"]
    dump = default_dump()
    if "--dump" in args:
        at = args.index("--dump")
        dump = args[at + 1]
        del args[at:at + 2]
    path = args[0] if args else default_data()
    if not path:
        print("planner_replay.py: no data; give a file", file=sys.stderr)
        return 2
    try:
        data, wrong = load(path)
        if not os.access(dump, os.X_OK):
            raise ValueError(f"{dump}: no such program; build planner-dump, or name one with --dump")
    except ValueError as e:
        print(f"planner_replay.py: {e}", file=sys.stderr)
        return 2
    for line in wrong:
        print(f"planner_replay.py: {line}", file=sys.stderr)
    planner = Planner(dump)
    result = without_nan({**figures(planner, data), "rows left out": len(wrong)})
    planner.close()
    if as_json:
        print(json.dumps(result, indent=1))
        return 0
    for name, value in result.items():
        show(name, value)
    return 0


if __name__ == "__main__":
    sys.exit(main())
