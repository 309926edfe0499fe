# SPDX-License-Identifier: Apache-2.0
"""One process of test_gpt.py: runs one training job after the other, rebuilding everything in between.

  gpt_rank.py RANK FOLDER    FOLDER/jobs.json: [[name, [option of train_plain.py ...], damage], ...]

Rank 0 hosts the store that all groups are made over and leaves its port in FOLDER/port. After each job each process
writes a line of what it uses to FOLDER/use-RANK.jsonl.
"""
import gc
import json
import os
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "examples", "gpt"))


def connect(dist, rank, folder):
    port = os.path.join(folder, "port")
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        with open(port + ".new", "w", encoding="ascii") as f:
            f.write(str(store.port))
        os.rename(port + ".new", port)
        return store
    while not os.path.exists(port):
        time.sleep(0.05)
    with open(port, encoding="ascii") as f:
        return dist.TCPStore("127.0.0.1", int(f.read()), is_master=False, wait_for_workers=False)


def meet(store, name, ranks):
    store.add(name, 1)
    while store.add(name, 0) < ranks:
        time.sleep(0.02)


def use():
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as f:
        pages = int(f.read().split()[1])
    return {"rss_mib": pages * os.sysconf("SC_PAGESIZE") >> 20, "fds": len(os.listdir("/proc/self/fd")),
            "threads": len(os.listdir("/proc/self/task"))}


def damage(torch, what):
    """Makes the optimizer lose one row of one moment of the parameter with this shape, at step 5."""
    step, calls = torch.optim.AdamW.step, []

    def damaged(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 5:
            state = next(s for p, s in self.state.items() if list(p.shape) == what)
            state["exp_avg"][0] = 0
        return step(self, *args, **kwargs)
    torch.optim.AdamW.step = damaged
    return lambda: setattr(torch.optim.AdamW, "step", step)


def main():
    rank, folder = int(sys.argv[1]), sys.argv[2]
    import torch
    import torch.distributed as dist

    import parallel
    import train_plain
    torch.set_num_threads(1)
    with open(os.path.join(folder, "jobs.json"), encoding="ascii") as f:
        ranks, jobs = json.load(f)
    store = connect(dist, rank, folder)
    for number, (name, options, hurt) in enumerate(jobs):
        args = train_plain.options(options + ["--out", os.path.join(folder, name)])
        os.makedirs(args.out, exist_ok=True)
        job = parallel.Job(args.tp, args.pp, args.dp, rank, number, store, one_device=args.one_device)
        meet(store, f"start {number}", ranks)
        started = time.time(), time.process_time()
        heal = damage(torch, hurt) if hurt else None
        if rank < job.world:
            train_plain.train(args, job)
        if heal:
            heal()
        meet(store, f"end {number}", ranks)
        line = {"job": name, "wall_s": round(time.time() - started[0], 2),
                "cpu_s": round(time.process_time() - started[1], 2), **use()}
        with open(os.path.join(folder, f"use-{rank}.jsonl"), "a", encoding="ascii") as f:
            f.write(json.dumps(line) + "\n")
    if rank == 0:
        meet(store, "left", ranks)
    else:
        store.add("left", 1)  # the last thing this rank asks of the store, which answers one after the other


if __name__ == "__main__":
    main()
