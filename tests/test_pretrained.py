# SPDX-License-Identifier: Apache-2.0
"""A job's files as Hugging Face's from_pretrained opens them: the model it makes is the one that was saved, whatever the job was cut into.

What was saved is the oracle: Hugging Face's own classes wrote it, safetensors reads it, and the model itself computes what its answers are.
"""
import errno
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import unittest

import harness
from harness import skip_unless_root
from test_fuse import CAN_MOUNT, Mount

# A line in, [what the model has, what it answers, its padding] or an error out. Lines: ["save", seed, folder, greatest file], ["load", folder].
PROGRAM = """
import hashlib, json, sys, warnings
warnings.simplefilter("ignore")
import torch, transformers
transformers.logging.set_verbosity_error()
torch.use_deterministic_algorithms(True)
def told(model):
    model.eval()
    state = {n: hashlib.sha256(t.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest() for n, t in model.state_dict().items()}
    with torch.no_grad():
        logits = model(torch.arange(40).reshape(2, 20)).logits
    return [state, hashlib.sha256(logits.numpy().tobytes()).hexdigest(), model.generation_config.pad_token_id]
def save(seed, folder, size):
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(num_hidden_layers=2, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                                      intermediate_size=96, vocab_size=128, pad_token_id=5)
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(folder, max_shard_size=size)
    return told(model)
def load(folder):
    return told(transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True))
for line in sys.stdin:
    what, *args = json.loads(line)
    try:
        answer = {"save": save, "load": load}[what](*args)
    except Exception as e:
        answer = f"{type(e).__name__}: {e}"
    print(json.dumps(answer), flush=True)
"""


@unittest.skipUnless(CAN_MOUNT, "FUSE cannot be mounted here")
@unittest.skipUnless(importlib.util.find_spec("transformers"), "no transformers: scripts/venv --torch")
@harness.labels("repeats")
class Pretrained(harness.Case):
    def start(self):
        """One process for all questions: importing transformers takes most of the time."""
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": self.path("hf")}
        p = subprocess.Popen([sys.executable, "-c", PROGRAM], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for clean in (p.stdout.close, p.wait, p.kill, p.stdin.close):
            self.addCleanup(clean)
        return p

    def ask(self, p, *args):
        p.stdin.write(json.dumps(args) + "\n")
        p.stdin.flush()
        return json.loads(p.stdout.readline())

    def job(self, c, name, of, carry):
        files = {"files": {"carry": [os.path.join(of, f) for f in carry]}} if carry else {}
        source = os.path.join(of, "model.safetensors")
        source = source if os.path.exists(source) else of
        with open(self.path(f"{name}.yaml"), "w") as f:
            json.dump({"version": 1, "name": name, "tensors": {"from": source}, "rules": [{"use": "llama", "head": 16}], **files}, f)
        c.ptcctl("job", "create", "-f", self.path(f"{name}.yaml"))
        c.ptcctl("import", name, source, "--config", "tp=2")

    def beside(self, folder, saved, names):
        """What docs/files.md tells those to do whose job carries nothing: a folder of their own, with a link to the model."""
        os.mkdir(self.path("beside"))
        for name in names:
            shutil.copy(os.path.join(saved, name), self.path("beside"))
        os.symlink(os.path.join(os.path.realpath(folder), "model.safetensors"), self.path("beside", "model.safetensors"))
        return self.path("beside")

    def test_opened(self):
        """One file, and several with an index, imported at tp=2; opened there and at tp=1,pp=2: the same tensors and the same answers as
        of the models that were saved. A job that carries no config.json has none, and Hugging Face says so."""
        p = self.start()
        want = [self.ask(p, "save", self.seed % 2**31 + i, self.path("saved", str(i)), size) for i, size in enumerate(("1GB", "60KB"))]
        self.assertGreater(len(os.listdir(self.path("saved", "1"))), 4)
        self.assertNotEqual(want[0][1], want[1][1])
        carried = ["config.json", "generation_config.json"]
        with self.cluster(nodes=2, devices=1) as c:
            for i in range(2):
                self.job(c, f"of-{i}", self.path("saved", str(i)), carried)
            self.job(c, "bare", self.path("saved", "0"), [])
            m = Mount(self, c)
            folders = [m.path(f"of-{i}", "state", "latest") for i in range(2)]
            bare = m.path("bare", "state", "latest")
            for config in ("tp=2", "pp=2"):
                self.assertEqual(want, [self.ask(p, "load", folder) for folder in folders], config)
                for i, folder in enumerate(folders):
                    self.assertLessEqual({*carried, "model.safetensors"}, set(os.listdir(folder)))
                    for name in carried:
                        with open(os.path.join(folder, name), "rb") as a, open(self.path("saved", str(i), name), "rb") as b:
                            self.assertEqual(b.read(), a.read(), name)
                    if config == "tp=2":
                        c.ptcctl("resize", f"of-{i}", "--config", "pp=2", "--wait")
            self.assertRegex(self.ask(p, "load", bare), "Unrecognized model in .*config.json")
            self.assertEqual(want[0], self.ask(p, "load", self.beside(bare, self.path("saved", "0"), carried)))
            self.assertNotIn("config.json", os.listdir(bare))
            with self.assertRaises(OSError) as caught:
                os.stat(os.path.join(bare, "config.json"))
            self.assertEqual(errno.ENOENT, caught.exception.errno)
            m.stop()


@skip_unless_root
@unittest.skipUnless(CAN_MOUNT, "FUSE cannot be mounted here")
class Carried(harness.Case):
    def create(self, c, name, carry):
        with open(self.path(f"{name}.yaml"), "w") as f:
            json.dump({"version": 1, "name": name, "tensors": [{"name": "w", "dtype": "F32", "shape": [4]}], "rules": [{"match": "*"}],
                       "files": {"carry": carry}}, f)
        return ("job", "create", "-f", self.path(f"{name}.yaml"))

    def test_refused(self):
        """What cannot be carried is refused where the job is made, in one line that names the file."""
        for name, data in (("config.json", b"{}"), ("big.json", b" " * (1 << 18)), ("binary", b"\xff\xfe"), ("nul", b"a\0b")):
            with open(self.path(name), "wb") as f:
                f.write(data)
        with self.cluster(nodes=1, devices=1) as c:
            for carry, text in ((["none.json"], "none.json"), (["config.json", "big.json"], "keep large ones"), (["binary"], "is not UTF-8 text"),
                                (["nul"], "is not text"), ({"model.safetensors": "x"}, "under another one"), ({".x": "x"}, "cannot be the name"),
                                ({"a/b": "x"}, "cannot be the name"), (["config.json", "./config.json"], "two carried files"), ([], "0 files")):
                self.refused(c, *self.create(c, "bad", carry), contains=text)
            c.ptcctl(*self.create(c, "good", {"note.txt": "käse\n", "empty": ""}))
            with open(self.path("empty.json"), "wb"):
                pass
            c.ptcctl(*self.create(c, "list", ["config.json", self.path("empty.json")]))
            self.assertEqual({"good", "list"}, {j["job"] for j in c.json("status")["jobs"]})
