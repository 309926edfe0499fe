# SPDX-License-Identifier: Apache-2.0
"""The Python package under real daemons and real ranks: what PyTorch's own parallelism has put where, and what whole tensors in
one process (torch_state.py) say that it must be."""
import ast
import difflib
import functools
import glob
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import unittest
import warnings
import weakref

import harness  # first: it says where the others are
import curve
import live
import order_oracle
import torch_carried
import torch_gradients
from harness import LONG, PATIENCE, wait_for

HAS_TORCH = importlib.util.find_spec("torch") is not None
VERSION = tuple(map(int, importlib.metadata.version("torch").split(".")[:2])) if HAS_TORCH else ()


class Job(live.Job):
    """A job of tests/torch_rank.py, or of another program."""

    def __init__(self, c, directory, case, mode="rebuild", program=None, warnings="ignore", run=None, **options):
        super().__init__(c, directory, name=case, mode=mode, run=run)
        with open(self.yaml) as f:
            spec = json.load(f)
        self.case = case
        argv = program or ["torch_rank.py", case, "--log", self.logs]
        for key, value in options.items():
            argv += [f"--{key}", str(value)]
        spec["run"]["argv"] = [sys.executable, "-B", "-W", warnings, os.path.join(harness.ROOT, "tests", argv[0]), *argv[1:]]
        spec["run"]["env"]["OMP_NUM_THREADS"] = "1"
        spec["run"]["env"]["TORCHINDUCTOR_CACHE_DIR"] = os.environ["TORCHINDUCTOR_CACHE_DIR"]
        with open(self.yaml, "w") as f:
            json.dump(spec, f)

    def logged(self):
        """{(generation, rank): [line]}"""
        out = {}
        for path in glob.glob(os.path.join(self.logs, f"{self.case}-g*.jsonl")):
            g, r = os.path.basename(path)[len(self.case) + 1:-6].split("-")
            with open(path) as f:
                out[int(g[1:]), int(r[1:])] = [json.loads(line) for line in f if line.endswith("\n")]
        return out

    def wait_step(self, step, timeout_s=60):
        def there():
            s = self.status()
            if s["run"]["state"] == "failed":
                raise AssertionError(s["run"]["text"] + "\n" + self.c.ptcctl("events", self.name).stdout)
            return s["run"].get("step", -1) >= step or None
        return wait_for(there, timeout_s * PATIENCE, f"step {step}", 0.05)

    def wait_run(self, state, timeout_s=120):
        def there():
            s = self.status()
            if s["run"]["state"] == "failed" and state != "failed":
                raise AssertionError(s["run"]["text"] + "\n" + self.c.ptcctl("events", self.name).stdout)
            return s if s["run"]["state"] == state and s["phase"] == "idle" else None
        return wait_for(there, timeout_s * PATIENCE, f"job {state}", 0.05)

    def check_export(self, case, step, path):
        """Every tensor of the snapshot equals plain PyTorch's on whole tensors. Returns the file's bytes."""
        import torch
        import torch_state
        from safetensors.torch import load_file
        self.c.ptcctl("export", self.name, path, timeout_s=60 * PATIENCE)
        found, want = load_file(path), torch_state.whole(self.case, step)
        case.assertEqual(sorted(want), sorted(found))
        for name, t in want.items():
            case.assertEqual((t.dtype, t.shape), (found[name].dtype, found[name].shape), name)
            case.assertTrue(torch.equal(t, found[name]), f"{name} at step {step}: {found[name]} is not {t}")
        with open(path, "rb") as f:
            return f.read()


@unittest.skipUnless(HAS_TORCH, "no PyTorch: scripts/venv --torch")
@harness.labels("repeats")
class Torch(torch_gradients.Gradients, torch_carried.Carried, harness.Case):
    def layouts(self, case, configs, nodes=2, devices=2, **options):
        """Runs on each configuration in turn; the state at each switch is exact."""
        with self.cluster(nodes=nodes, devices=devices) as c:
            job = Job(c, self.dir, case, **options)
            job.run(configs[0])
            at = 0
            for config in configs[1:]:
                job.wait_step(at + 3)
                at = job.resize(config)["step"]
                job.check_export(self, at, self.path("now.safetensors"))
            job.wait_step(at + 3)
            job.do("stop")
            at = job.wait_run("stopped")["step"]
            job.check_export(self, at, self.path("now.safetensors"))
            logged = job.logged()
            self.assertEqual({g for g, _ in logged}, set(range(min(logged)[0], min(logged)[0] + len(configs))))
            return logged

    def test_layouts(self):
        """Tensor parallelism, FSDP2 (uneven, empty, strided over TP), HSDP, replicated, tied, scalars, integers, bfloat16."""
        self.layouts("zoo", ["tp=2,dp=2", "dp=3", "tp=4", "tp=2,dp=2"])

    def test_names(self):
        """DDP, torch.compile, pipeline stages and tied parameters: the same names throughout."""
        self.layouts("wrap", ["dp=2", "pp=2", "dp=1", "dp=2"], nodes=1)

    @unittest.skipUnless(harness.LONG, "new processes at each switch: PTC_TEST_LONG=1")
    def test_restart(self):
        self.layouts("zoo", ["tp=2,dp=2", "dp=3", "tp=4", "tp=2,dp=2"], mode="restart")

    @unittest.skipUnless(harness.LONG, "new processes at each switch: PTC_TEST_LONG=1")
    def test_ahead(self):
        self.layouts("zoo", ["tp=2,dp=2", "dp=3", "tp=4", "tp=2,dp=2"], mode="restart", run={"build": "ahead"})

    def test_declared_on_meta(self):
        """A model on meta is declared, and gets memory later, while the other ranks train: the loss of every step is that of one process
        without ptc. An optimizer made before to_empty() is named."""
        import torch_rank
        with self.cluster(nodes=2, devices=2) as c:
            job = Job(c, self.dir, "meta", mode="restart", run={"build": "ahead"}, sleep=0.02)
            job.run("dp=2")
            job.wait_step(5)
            with job.hold("place"):
                resize = subprocess.Popen([harness.program("ptcctl"), "resize", job.name, "--config", "dp=3", "--wait", "--format", "json"],
                                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                          env=c.environment({"PTC_SOCKET": c.nodes["n0"].socket}))
                wait_for(lambda: job.status()["phase"] == "building" or None, 60 * PATIENCE, "new ranks that build", 0.02)
                job.wait_step(job.status()["run"]["step"] + 5)
            out, err = resize.communicate(timeout=180 * PATIENCE)
            self.assertEqual(0, resize.returncode, err)
            self.assertGreater(json.loads(out)["built_ahead_ms"], 0)
            job.wait_step(json.loads(out)["step"] + 5)
            job.wait_step(job.resize("dp=1")["step"] + 5)
            job.do("stop")
            last = job.wait_run("stopped")["step"]
            found = {line["step"]: line["loss"] for (_, rank), lines in job.logged().items() if rank == 0 for line in lines}
        model = torch_rank.net()
        for name, p in model.named_parameters():
            torch_rank.fill(name, p)
        optim = torch_rank.meta_optimizer(model)
        self.assertEqual(list(range(last)), sorted(found)[:last])
        for step in range(last):
            loss = torch_rank.loss_at(model, step)
            self.assertAlmostEqual(1.0, loss.item() / float.fromhex(found[step]), delta=1e-9, msg=f"step {step}")
            optim.zero_grad()
            loss.backward()
            optim.step()

    def test_warm(self):
        """Two jobs go on from a snapshot, one with a warm step before it: every step has the same bits in both, wherever they stopped."""
        curves = []
        with self.cluster(nodes=1, devices=2) as c:
            for warm in (0, 1):
                job = Job(c, self.path(f"warm{warm}"), "warm", mode="restart", warm=warm, sleep=0.02)
                job.run("dp=2")
                job.wait_step(6 + 3 * warm)
                job.do("stop")
                stopped = job.wait_run("stopped")["step"]
                job.run("dp=2")
                job.wait_step(stopped + 8)
                job.do("stop", timeout_s=60 * PATIENCE)
                job.wait_run("stopped")
                c.ptcctl("job", "delete", job.name)
                logged = job.logged()
                self.assertEqual({False, bool(warm)}, {line.pop("warmed") for lines in logged.values() for line in lines})
                again = [line for (g, r), lines in logged.items() for line in lines if g == max(logged)[0]]
                self.assertEqual(stopped, min(line["step"] for line in again))
                curves.append({(r, line["step"]): line for (_, r), lines in logged.items() for line in lines})
        both = curves[0].keys() & curves[1].keys()
        self.assertGreater(len(both), 20)
        self.assertEqual({k: curves[0][k] for k in both}, {k: curves[1][k] for k in both})
        self.assertGreater(len({line["scale"] for line in curves[1].values()}), 2)

    def test_cycles(self):
        """Rebuilt in the same process over and over, with tensor parallelism and FSDP2: nothing piles up."""
        cycles = harness.size(6, 10, 30)
        logged = self.layouts("zoo", ["tp=2", "dp=2"] * (cycles // 2) + ["tp=2"], nodes=1, sleep=0.2)
        for rank in (0, 1):
            lines = [log[0] for (_, r), log in sorted(logged.items()) if r == rank]
            self.assertEqual(1, len({line["pid"] for line in lines}))
            for what in ("fds", "threads"):
                used = [line[what] for line in lines]
                print(f"rank {rank}: {what} {used}")
                self.assertLessEqual(max(used), used[0] + 2, f"rank {rank}: {what} {used}")

    def test_forget_meshes(self):
        """Caches of PyTorch's are found among whatever else the user's process has, and nothing of that is touched."""
        import ptc.torch

        class Odd:
            __class__ = property(lambda self: 1 / 0)

        @functools.lru_cache(None)
        def mine(n):
            return n

        @functools.lru_cache(None)
        def theirs(n):
            return n
        theirs.__module__ = "torch.distributed.test"
        keep = [Odd(), weakref.proxy(type("Gone", (), {})()), mine(1), theirs(1)]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ptc.torch._forget_meshes()
        self.assertEqual((1, 0), (mine.cache_info().currsize, theirs.cache_info().currsize))
        del keep

    # ---- what is refused

    REFUSED = {
        "partial": "weight: placement Partial(sum) cannot be carried",
        "extra state": "extra._extra_state.f: a object cannot be carried",
        "copy in state dict": "weight: the model's state dict has a copy there",
        "unknown optimizer": "optimizer SparseAdam has no state yet",
        "lbfgs": "optimizer LBFGS: its state is lists of tensors",
        "list in optimizer": "weight: optimizer state 'old' is a list, which cannot be carried",
        "state of nobody": "optimizer AdamW: it has state for 'all', which is none of its parameters",
        "keys of two types": "weight: the optimizer's state has two keys '0' that differ in type only",
        "state beside state": "its state dict has step beside state and param_groups",
        "averaging": "optimizer PostLocalSGDOptimizer: its state dict has step beside",
        "redundancy": "optimizer ZeroRedundancyOptimizer: its state_dict() cannot be had",
        "two optimizers": "bias: two optimizers, or one and zero1=, have a state 'step' of it",
        "unlike optimizers": "optimizer: number 1 of the list has other parameter groups or options than number 0",
        "unlike schedulers": "scheduler: objects of the list have different states",
        "no scheduler": "scheduler: a list_iterator has no state_dict()",
        "no module": "model a: a dict is no torch.nn.Module",
        "same names": "weight: two modules have a tensor of that name",
        "dropped name": "dropped wieght: no parameter has this name",
        "taken name": "stateful scheduler: that name is taken",
        "left out": "bias: the model's state dict leaves it out",
        "fsdp1": "weight: the model's state dict has a copy there",
        "power sgd": "DDP's communication hook powerSGD_hook has a PowerSGDState, which cannot be carried",
        "subclass": "a Quantized cannot be carried, only plain tensors",
        "lazy": "weight: it is not initialized; call the module once before attach",
        "no optimizer": "optim: a Linear is no torch.optim.Optimizer",
        "damped": "SGD with dampening",
        "foreign parameter": "optimizer AdamW: a parameter of shape (3, 2) is none of the model's",
        "dtype": "tensor z: dtype torch.complex128 cannot be carried",
        "sparse": "tensor z: layout torch.sparse_coo cannot be carried",
        "device": "tensor weight: it is on meta",
        "not a tensor": "extra ema: a int cannot be carried",
        "name taken": "extra weight: the model's state dict has that name already",
        "group option": "a builtin_function_or_method cannot be carried",
        "complex option": "optimizer.groups[0].phase: a Tensor cannot be carried",
        "numpy number": "numpy.float64 cannot be carried; make it a plain float",
        "optimizer state": "weight: optimizer state 'step' is a int64",
        "state's shape": "tensor weight (row): a piece of 7 elements for the range 0..3 of 6",
        "scheduler": "scheduler.f.g: a object cannot be carried",
        "too large": "history: its state takes 300",
        "too many": "blobs beside tensors, at most 64 can be carried (41 of optimizers, schedulers and objects, 2 of the model's "
                    "description, ",
        "zero1 range": "for the range 0..9 of 6",
        "zero1 name": "zero1 wieght: the model has no parameter of that name",
        "master": "weight: two optimizers, or one and zero1=, have a state 'master' of it",
        "inner optimizer": "optimizer Sharp.base_optimizer: this AdamW has state of its own, inside an attached optimizer, and is not attached, "
                           "so that its state would be lost; attach both, each by a name of its own",
        "early loader": "dataset data: where it goes on is not known before gen.attach",
        "twice": "attached already",
    }

    def test_refused_at_attach(self):
        with self.cluster(nodes=1, devices=1) as c:
            job = Job(c, self.dir, "refuse")
            job.run("dp=1")
            job.wait_run("done")
            said = {line["name"]: line["text"] for line in job.logged()[1, 0]}
        self.assertEqual(set(self.REFUSED), set(said))
        for name, text in self.REFUSED.items():
            self.assertIn(text, said[name], name)
            self.assertNotIn("\n", said[name], name)

    @unittest.skipIf(harness.SANITIZED, "this process is not started for a sanitized library")
    def test_import(self):
        """What a rank imports before it knows what it is: DTensor and checkpoints, a second of CPU, wait until a model is attached."""
        program = ("import sys, ptc.torch\n"
                   "heavy = ('torch.distributed.tensor', 'torch.distributed.checkpoint', 'sympy')\n"
                   "print([m for m in sys.modules if m.startswith(heavy)])\n"
                   "import torch\n"
                   "held = ptc._held.of_model(torch.nn.Linear(3, 2), (), {})\n"
                   "print(sorted(held), all(m in sys.modules for m in heavy[:2]))\n")
        env = {**os.environ, "PYTHONPATH": os.path.join(harness.ROOT, "client", "python"),
               "PTC_LIBRARY": harness.binary("client/lib/libptc.so.1")}
        out = subprocess.run([sys.executable, "-W", "ignore", "-c", program], env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
        self.assertEqual(["[]", "['bias', 'weight'] True"], out.splitlines())

    @unittest.skipIf(harness.SANITIZED, "this process is not started for a sanitized library")
    def test_without_daemon(self):
        """What can be seen in one process, whose client is a stand-in; one test, as PyTorch is slow to import."""
        os.environ["PTC_LIBRARY"] = harness.binary("client/lib/libptc.so.1")
        os.environ["PTC_SEED"] = "1"
        ran = self.record_checks()
        self.check_refused_before_declared()
        self.check_blobs()
        self.check_given()
        self.check_divided()
        self.check_external()
        self.check_gradients()
        self.check_any_order()
        self.check_two_optimizers()
        self.check_alone()
        self.check_unattached()
        self.check_sharp_elsewhere()
        self.check_warm()
        self.check_survive()
        if LONG:
            self.check_compiled()
        self.check_fsdp_gradients()
        self.check_fsdp_places()
        self.check_started()
        self.check_program_changed()
        self.check_names_changed()
        self.check_extra_state_divided()
        self.check_table(ran)

    def record_checks(self):
        """The names of those that have run to their end, from now on."""
        ran = set()

        def recorded(name, check):
            def call(*args, **kw):
                check(*args, **kw)
                ran.add(name)
            return call
        for name in dir(self):
            if name.startswith("check_"):
                setattr(self, name, recorded(name, getattr(self, name)))
        return ran

    def check_table(self, ran):
        """docs/training-state.md names a test in each row, and every kind and refusal that is tested. ran: checks that have run here;
        kinds run in test_kinds, and ctest runs each test."""
        import inspect
        import torch_kinds
        with open(os.path.join(harness.ROOT, "docs", "training-state.md"), encoding="utf-8") as f:
            text = f.read()
        kinds = {k for k, v in vars(torch_kinds).items() if inspect.isclass(v) and issubclass(v, torch_kinds.Kind)}
        trained = {type(kind).__name__ for kind in torch_kinds.make().values()}
        tests = set(unittest.defaultTestLoader.getTestCaseNames(type(self)))
        tests -= {name for name in tests if getattr(getattr(self, name), "__unittest_skip__", False)}
        self.assertEqual(trained, kinds - {"Kind", "Micro"})
        later = set() if LONG else {"check_compiled"}
        named = set()
        for row in (line for line in text.splitlines() if line.startswith("|") and not line.startswith(("|---", "| State |"))):
            cell = row.split("|")[3]
            for name in re.findall(r"`(\w+)`", cell):
                self.assertIn(name, trained | tests | ran | later, row)
            self.assertRegex(cell, r'[`"]\w', row)
            named |= set(re.findall(r'"([^"]+)"', cell))
        self.assertEqual(set(self.REFUSED), named)
        for kind in kinds - {"Kind", "Micro"}:
            self.assertIn(f"`{kind}`", text)

    def check_failed(self, job, text):
        failed = job.wait_run("failed")
        events = job.c.ptcctl("events", job.name).stdout
        self.assertRegex(failed["run"]["text"], "exited with status 1: .*" + re.escape(text))
        self.assertIn(text, events)

    def test_refused_later(self):
        """What shows at a switch only: the switch comes to nothing and training goes on; exceptions end the job."""
        with self.cluster(nodes=2, devices=2) as c:
            def told(what, name="do"):
                harness.replace_file(os.path.join(job.logs, name), what)

            def train_on():
                step = wait_for(lambda: job.status()["run"].get("step"), 60 * PATIENCE, "a step", 0.05)
                job.wait_step(step + 3)

            job = Job(c, self.dir, "later")
            told('{"1": 21, "2": 20}', "samples")
            job.run("dp=2")
            job.wait_step(2)
            for what, text in (("differ", 'tensor "weight": ranks 0 and 1 hold the same part of it with different bytes'),
                               ("buffer", "rank 1 refuses at step"), ("buffer", "buffer angles is not persistent"),
                               ("moved", "tensor weight: it is not where it was at attach")):
                told(what)
                train_on()
                self.refused(c, "resize", job.name, "--config", "dp=1", "--wait", contains=text, timeout_s=60 * PATIENCE)
                train_on()
                self.assertEqual(1, job.status()["generation"])
            told("")
            train_on()
            self.refused(c, "resize", job.name, "--config", "dp=1", "--wait", timeout_s=60 * PATIENCE,
                         contains="dataset data: the snapshot's position is for n=20,seed=0, this is n=21,seed=0")
            train_on()  # generation 1 goes on
            self.assertEqual(1, job.status()["generation"])
            told('{"1": 20, "2": 20}', "samples")
            self.refused(c, "resize", job.name, "--config", "dp=1", "--wait", timeout_s=60 * PATIENCE,
                         contains="dataset stream: the snapshot has the state of a Stream under dp=2, this is dp=1, and only the "
                                  "loader can convert it")
            train_on()
            self.assertEqual(1, job.status()["generation"])
            job.do("snapshot")
            told("raise")
            self.check_failed(job, "ValueError: as told by the test")
            told("leave")
            c.ptcctl("run", job.name, "--config", "dp=2", timeout_s=60 * PATIENCE)
            self.check_failed(job, "the with block was left, but the generation has not ended")

    def test_refused_while_built(self):
        """A name on two stages that is not tied; an exception, whose last line is what is said."""
        with self.cluster(nodes=1, devices=2) as c:
            job = Job(c, self.dir, "wrap", tied=0)
            r = job.run("pp=2", check=False)
            self.assertEqual(1, r.returncode, r.stderr)
            self.assertRegex(r.stderr, "\"(count|mask|module.scale)\".*stage")
            r = Job(c, self.dir, "broken").run("dp=2", check=False)
            self.assertEqual(1, r.returncode, r.stderr)
            self.assertRegex(r.stderr.strip(), "exited with status 1: ValueError: as told by the test$")

    # ---- what is carried beside tensors, and samples

    def test_carried(self):
        """Random states by coordinates, schedule, parameter groups, gradient scaler; each sample once, loaders reading ahead."""
        import rng_oracle
        import torch_state
        with self.cluster(nodes=2, devices=2) as c:
            job, at = Job(c, self.dir, "carry", warnings="default", run={"seed": 7}), 0
            job.run("dp=2")
            for config in ("dp=3", "dp=1", "dp=2"):
                job.wait_step(at + 6)
                at = job.resize(config)["step"]
            job.wait_step(max(20, at + 6))  # an epoch ends at step 14.3
            job.do("stop")
            steps = job.wait_run("stopped")["step"]
            self.assertNotRegex(c.ptcctl("logs", job.name, "--rank", "all").stdout, r"ptc/\w+\.py:\d+: \w*Warning")
            logged = {key: [line for line in log if "step" in line] for key, log in job.logged().items()}
        self.assertEqual({1: 2, 2: 3, 3: 1, 4: 2}, {g: sum(1 for k in logged if k[0] == g) for g in range(1, 5)})
        for runs, number in (((1, 2, 3, 4), 0), ((1, 2), 1), ((4,), 1), ((2,), 2)):
            lines = [line for g in runs for line in logged[g, number]]
            parts = torch_state.trainer(number)
            if runs[0] > 1:  # new where it begins
                rng_oracle.seed_all(7, lines[0]["step"], (0, 0, number, 0))
            for line, step in zip(lines, range(steps if number == 0 else len(lines))):
                want = torch_state.train(line["step"], *parts)
                carried = ("torch", "random", "numpy") if line["step"] == lines[0]["step"] + step else ()
                for what in (*carried, *(("groups", "last", "calls", "scale", "weight") if number == 0 else ())):
                    self.assertEqual(want[what], line[what], f"rank {number} step {line['step']}: {what}")
        order = lambda p: order_oracle.at(100, 5, *divmod(p, 100))
        for step in range(steps):
            found = sorted(i for log in logged.values() for line in log if line["step"] == step for i in line["ids"])
            self.assertEqual(sorted(order(p) for p in range(7 * step, 7 * step + 7)), found, f"step {step}")
        items = sorted((line["step"], line["item"]) for log in logged.values() for line in log)
        self.assertEqual(list(range(len(items))), [item for _, item in items])  # of the loader that ptc knows nothing of

    @unittest.skipUnless(LONG, "set PTC_TEST_LONG=1; PyTorch takes its time to be imported")
    @harness.needs(modules=("torchdata",))
    def test_stateful_loader(self):
        """torchdata's StatefulDataLoader: stopped, run again and resized under the same dp its ranks go on where they were, each
        with what comes next; a change of dp is refused, and training goes on."""
        with self.cluster(nodes=2, devices=2) as c:
            job = Job(c, self.dir, "stateful")
            job.run("dp=2")
            job.wait_step(5)
            job.do("stop")
            job.run("dp=2")
            job.wait_step(job.status()["step"] + 4)
            job.wait_step(job.resize("tp=2,dp=2")["step"] + 4)
            self.refused(c, "resize", job.name, "--config", "dp=3", "--wait", timeout_s=60 * PATIENCE,
                         contains="the state of a StatefulDataLoader under dp=2, this is dp=3")
            job.wait_step(job.status()["step"] + 3)
            job.do("stop")
            steps, logged = job.wait_run("stopped")["step"], job.logged()
        self.assertEqual({*((g, r) for g in (1, 2) for r in range(2)), *((3, r) for r in range(4))}, set(logged))
        for dp_rank in range(2):
            for tp_rank in range(2):  # both have the same
                lines = [*logged[1, dp_rank], *logged[2, dp_rank], *logged[3, 2 * dp_rank + tp_rank]]
                self.assertEqual(list(range(steps)), [line["step"] for line in lines])
                self.assertEqual(list(range(dp_rank, 6 * steps, 2)), [i for line in lines for i in line["ids"]])

    # ---- every kind of state, and gradients

    def test_kinds(self):
        """Each kind of state that docs/training-state.md calls carried trains on as if it had never been stopped, to the last bit."""
        import torch
        import torch_kinds
        with self.cluster(nodes=1, devices=2) as c:
            job, at = Job(c, self.dir, "kinds"), 0
            job.run("dp=1")
            for config in ("dp=2", "dp=1"):
                job.wait_step(at + 7)
                at = job.resize(config)["step"]
            job.wait_step(at + 7)
            job.do("stop")
            steps, logged = job.wait_run("stopped")["step"], job.logged()
        self.assertEqual({(1, 0), (2, 0), (2, 1), (3, 0)}, set(logged))
        torch.set_num_threads(1)
        kinds = torch_kinds.make()
        lines = {rank: {line["step"]: line["values"] for (_, r), log in logged.items() if r == rank for line in log} for rank in (0, 1)}
        self.assertEqual(set(range(steps)), set(lines[0]))
        for step in range(steps):
            want = {name: kind.step(step) for name, kind in kinds.items()}
            for rank in (0, 1):
                self.assertEqual(want, lines[rank].get(step, want), f"rank {rank} step {step}")

    def micro(self, c, how, **options):
        job = Job(c, self.dir, "micro", **options)
        with open(os.path.join(job.logs, "do"), "w") as f:
            f.write(how)
        return job

    def test_gradients(self):
        """A stop is where no gradient is lost, whenever it was wanted: the curve is that of a program that never stops."""
        import torch
        import torch_kinds
        torch.set_num_threads(1)
        with self.cluster(nodes=2, devices=1) as c:
            job, at = self.micro(c, "all", run={"snapshot_every": 7}), 0
            job.run("dp=2")
            for config in ("dp=1", "dp=2"):
                job.wait_step(at + 9)
                at = job.resize(config)["step"]
                self.assertEqual(0, at % 4)
            job.wait_step(at + 9)
            job.do("stop")
            steps, logged = job.wait_run("stopped")["step"], job.logged()
        plain = torch_kinds.micros("all", 0)
        want = {step: {how: kind.step(step) for how, kind in plain.items()} for step in range(steps)}
        for (g, rank), lines in logged.items():
            for line in lines:
                self.assertEqual(want[line["step"]], line["losses"], f"generation {g} rank {rank} step {line['step']}")

    def test_gradients_refused(self):
        """Where there is no boundary without live gradients, as ranks differ, the switch comes to nothing, says why, and training
        goes on."""
        with self.cluster(nodes=2, devices=1) as c:
            job = self.micro(c, "ranks differ", sleep=0)
            job.run("dp=2")
            job.wait_step(9)
            line = self.refused(c, "resize", job.name, "--config", "dp=1", "--wait", timeout_s=120 * PATIENCE,
                             contains="the stop has moved on by 1024 boundaries")
            self.assertRegex(line, r"rank [01]: gradients of ranks differ\.0\.weight and 3 more have been computed and not been applied")
            job.wait_step(job.step() + 3)
            self.assertEqual(1, job.status()["generation"])

    # ---- the GPT

    def test_damaged_row(self):
        """The losses of a GPT that is resized are those of one process, and would not be if a row of its optimizer was lost."""
        options = ["--steps", "16", "--zero", "1"]
        reference = self.path("reference")
        subprocess.run([sys.executable, "-B", "-W", "ignore", os.path.join(harness.ROOT, "examples", "gpt", "train_plain.py"),
                        *options, "--out", reference], check=True, stdin=subprocess.DEVNULL)
        with self.cluster(nodes=1, devices=2) as c:
            for name, more in (("whole", []), ("damaged", ["--damage"])):
                out = self.path(name)
                os.makedirs(out, mode=0o777)
                job = Job(c, self.dir, name, program=["gpt_live.py", *more, *options, "--out", out])
                job.run("dp=2")
                job.wait_step(3)
                self.assertGreater(job.resize("tp=2")["step"], 3)
                self.assertEqual(16, job.wait_run("done", 400)["step"])
        whole, damaged = (curve.difference(curve.read(reference), curve.read(self.path(n))) for n in ("whole", "damaged"))
        print(f"relative difference {whole:.1e}, damaged {damaged:.1e}")
        self.assertLessEqual(whole, 2e-6)
        self.assertGreater(damaged, 2e-6)


@harness.labels("repeats")
class Package(harness.Case):
    def test_install(self):
        """As a user installs it: no compiler, no dependency; what is missing is said in a line."""
        env = {k: v for k, v in os.environ.items() if k not in ("PTC_LIBRARY", "PYTHONPATH")}
        env.update(CC="/nonexistent", PYTHONDONTWRITEBYTECODE="1", PIP_NO_INDEX="1", PIP_DISABLE_PIP_VERSION_CHECK="1")
        subprocess.run([sys.executable, "-m", "venv", self.path("venv")], check=True)
        python = self.path("venv", "bin", "python")
        subprocess.run([python, "-m", "pip", "-q", "install", os.path.join(harness.ROOT, "client", "python")], check=True, env=env)

        def run(code, **more):
            return subprocess.run([python, "-c", code], env={**env, **harness.sanitizer_env(), **more}, cwd=self.dir, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True)
        library = harness.binary("client/lib/libptc.so.1")
        sample = "import ptc; print(ptc.Sampling(100, 1, 10, 2, 2).micro_steps)"
        self.assertEqual("3\n", run(sample, PTC_LIBRARY=library).stdout)
        self.assertEqual("3\n", run(sample, LD_LIBRARY_PATH=os.path.dirname(library)).stdout)
        missing = run(sample, PTC_LIBRARY="/nonexistent/libptc.so.1").stderr.splitlines()[-1]
        self.assertRegex(missing, r"^ptc\.Error: cannot load libptc from '/nonexistent/libptc.so.1' .*set PTC_LIBRARY to its file$")
        other = run("import ptc; ptc.Client()", PTC_LIBRARY="libm.so.6").stderr.splitlines()[-1]
        self.assertRegex(other, r"^ptc\.Error: the library 'libm.so.6' has no ptc_open\(\): it is not libptc, or older than this package; ")
        alone = run("import ptc; ptc.Client()", PTC_LIBRARY=library).stderr.splitlines()[-1]
        self.assertRegex(alone, r"^ptc\.Error: .*PTC_WORKER_SOCKET")
        self.assertRegex(run("import ptc.torch", PTC_LIBRARY=library).stderr.splitlines()[-1], "^ImportError: ptc.torch needs PyTorch")

    def test_example(self):
        """Making a job of ptc of the GPT changes twelve lines, those that its README shows."""
        gpt = os.path.join(harness.ROOT, "examples", "gpt")
        code = []
        for name in ("train_plain.py", "train.py"):
            with open(os.path.join(gpt, name)) as f:
                code.append(f.read().split('"""', 2)[2].splitlines())  # after what it says of itself
        diff = [line for line in difflib.unified_diff(*code, n=0, lineterm="") if line[:3] not in ("+++", "---", "@@ ")]
        self.assertLessEqual(sum(line.startswith("+") for line in diff), 12)
        with open(os.path.join(gpt, "README.md")) as f:
            self.assertIn("```diff\n" + "\n".join(diff) + "\n```\n", f.read())

    def test_syntax(self):
        """Python 3.9 reads it."""
        for path in glob.glob(os.path.join(harness.ROOT, "client", "python", "ptc", "*.py")):
            with open(path) as f:
                ast.parse(f.read(), path, feature_version=(3, 9))
