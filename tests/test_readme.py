# SPDX-License-Identifier: Apache-2.0
"""The commands that READMEs show, run as they stand there."""
import json
import os
import re
import shutil
import subprocess

import harness
from harness import PATIENCE

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")


def blocks(path, heading=None, language=""):
    """The code blocks of a Markdown file, below a heading if one is given."""
    with open(os.path.join(ROOT, path)) as f:
        text = f.read()
    if heading:
        text = text.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.S | re.M)


@harness.labels("repeats")
class Readme(harness.Case):
    def shell(self, lines, cwd, **env):
        r = subprocess.run(["bash", "-euo", "pipefail", "-c", lines], cwd=cwd, env={**os.environ, **env}, text=True,
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120 * PATIENCE)
        self.assertEqual(0, r.returncode, r.stdout)
        return r.stdout

    def test_try_things_yourself(self):
        """The block of the top README, in a tree that has its files and this build; what comes out is what went in."""
        tree = self.path("tree")
        os.makedirs(os.path.join(tree, "build"))
        os.symlink(os.path.join(ROOT, "scripts"), os.path.join(tree, "scripts"))
        # a copy, because job.yaml names the model by where the file itself lies
        shutil.copytree(os.path.join(ROOT, "examples", "state"), os.path.join(tree, "examples", "state"))
        block, = blocks("README.md", "Try things yourself")
        up = "scripts/local-cluster up"
        self.assertIn(f"{up} --nodes 4", block)
        block = block.replace(up, f"{up} --build {harness.BUILD} --transport unix")
        cluster = self.path("cluster")
        self.addCleanup(subprocess.run, ["scripts/local-cluster", "down"], cwd=tree, check=True,
                        env={**os.environ, "PTC_LOCAL_CLUSTER": cluster})
        said = self.shell(block, tree, PTC_LOCAL_CLUSTER=cluster)
        for text in ("n3", "between nodes", "job gpt: ", "verified"):
            self.assertIn(text, said)
        example = os.path.join(tree, "build", "example")
        for before, after in (("model", "out"), ("exp_avg", "out-exp_avg")):
            self.assertEqual(self.tensors(example, before), self.tensors(example, after), after)

    def tensors(self, directory, name):
        """{name: (dtype, shape, bytes)} of a safetensors file: the order of tensors is the writer's."""
        with open(os.path.join(directory, f"{name}.safetensors"), "rb") as f:
            data = f.read()
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start])
        return {n: (v["dtype"], v["shape"], data[start + v["data_offsets"][0]:start + v["data_offsets"][1]])
                for n, v in header.items() if n != "__metadata__"}

    def test_c_trainer(self):
        """The job.yaml beside the C trainer is the one that its README shows; its commands run, but for building."""
        with open(os.path.join(ROOT, "examples", "c-trainer", "job.yaml")) as f:
            shown, = blocks("examples/c-trainer/README.md", language="yaml")
            self.assertEqual(shown, "".join(line for line in f if not line.startswith("#")))
        directory = self.path("c-trainer")
        os.makedirs(os.path.join(directory, "build"))
        shutil.copy(os.path.join(ROOT, "examples", "c-trainer", "job.yaml"), directory)
        os.symlink(harness.binary("examples/c-trainer/c-trainer"), os.path.join(directory, "build", "c-trainer"))
        lines = [line.split("#")[0] for line in blocks("examples/c-trainer/README.md")[0].splitlines() if line.startswith("ptcctl")]
        self.assertEqual(3, len(lines))
        with self.cluster(nodes=2, devices=3) as c:
            said = self.shell("\n".join(lines), directory, PTC_SOCKET=c.nodes["n0"].socket,
                              PATH=f"{os.path.join(harness.BUILD, 'client')}:{os.environ['PATH']}")
            self.assertIn("tp=2,dp=2", said)
            self.assertIn('"loss"', said)
            c.ptcctl("stop", "--now")
