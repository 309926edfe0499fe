# SPDX-License-Identifier: Apache-2.0
"""Job states shaped like a transformer's, of a stated size, written as safetensors files. Standard library only.

Parameters are BF16, exp_avg and exp_avg_sq F32, so 10 bytes of state for each parameter. Layers have a fused qkv and an
MLP cut by columns and by rows, and norms that are replicated; an embedding on the first stage fills up to the size.
"""
import json
import os
import struct

SIZES = {"BF16": 2, "F32": 4}
FIELDS = {"param": "BF16", "exp_avg": "F32", "exp_avg_sq": "F32"}
BYTES_PER_PARAMETER = sum(SIZES[d] for d in FIELDS.values())
BLOCK = os.urandom(4 << 20)


def rules(hidden):
    return [{"match": "h.*.attn.qkv.weight", "split": {"axis": "tp", "dim": 0, "blocks": [hidden] * 3}, "layer": "h.{}.*"},
            {"match": "h.*.attn.qkv.bias", "split": {"axis": "tp", "dim": 0, "blocks": [hidden] * 3}, "layer": "h.{}.*"},
            {"match": "h.*.attn.out.weight", "split": {"axis": "tp", "dim": 1}, "layer": "h.{}.*"},
            {"match": "h.*.mlp.up.*", "split": {"axis": "tp", "dim": 0}, "layer": "h.{}.*"},
            {"match": "h.*.mlp.down.weight", "split": {"axis": "tp", "dim": 1}, "layer": "h.{}.*"},
            {"match": "h.*", "layer": "h.{}.*"},
            {"match": "embed.weight", "split": {"axis": "tp", "dim": 0}, "layer": "first"},
            {"match": "norm.weight", "layer": "last"}]


def layer_shapes(i, h):
    p = f"h.{i}."
    return {p + "norm1.weight": [h], p + "attn.qkv.weight": [3 * h, h], p + "attn.qkv.bias": [3 * h],
            p + "attn.out.weight": [h, h], p + "norm2.weight": [h], p + "mlp.up.weight": [4 * h, h],
            p + "mlp.up.bias": [4 * h], p + "mlp.down.weight": [h, 4 * h], p + "mlp.down.bias": [h]}


def elements(shape):
    n = 1
    for extent in shape:
        n *= extent
    return n


def shapes(size):
    """(hidden, {name: shape}): at most `size` bytes of state, an even number of layers."""
    hidden = next(h for limit, h in ((1 << 26, 128), (1 << 28, 512), (3 << 29, 1024), (1 << 62, 2048)) if size <= limit)
    per_layer = sum(elements(s) for s in layer_shapes(0, hidden).values()) * BYTES_PER_PARAMETER
    out, layers = {"norm.weight": [hidden]}, max(2, size // per_layer // 2 * 2)
    for i in range(layers):
        out.update(layer_shapes(i, hidden))
    rest = size - layers * per_layer - hidden * BYTES_PER_PARAMETER
    out["embed.weight"] = [max(64, rest // (hidden * BYTES_PER_PARAMETER) // 64 * 64), hidden]
    return hidden, out


class State:
    def __init__(self, size, directory):
        self.dir = directory
        self.hidden, self.shapes = shapes(size)
        self.bytes = sum(elements(s) for s in self.shapes.values()) * BYTES_PER_PARAMETER
        self.files = {f: os.path.join(directory, f"{f}.safetensors") for f in FIELDS}

    def write(self):
        """One file per field. Every tensor begins at another place of one random block, so that no two are equal."""
        turn = 0
        for field, dtype in FIELDS.items():
            header, at = {}, 0
            for name, shape in self.shapes.items():
                n = elements(shape) * SIZES[dtype]
                header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + n]}
                at += n
            text = json.dumps(header).encode()
            with open(self.files[field], "wb") as f:
                f.write(struct.pack("<Q", len(text)) + text)
                for e in header.values():
                    begin, end = e["data_offsets"]
                    turn += 1
                    write_random(f, end - begin, turn * 4099)

    def job(self, name):
        """Writes job.yaml (JSON is YAML); returns its path."""
        path = os.path.join(self.dir, "job.yaml")
        with open(path, "w") as f:
            json.dump({"version": 1, "name": name, "tensors": {"from": os.path.basename(self.files["param"])},
                       "fields": {k: {"dtype": v} for k, v in FIELDS.items() if k != "param"},
                       "rules": rules(self.hidden)}, f)
        return path

    def import_args(self, name, config):
        out = ["import", name, self.files["param"]]
        for field, path in self.files.items():
            if field != "param":
                out += ["--field", f"{field}={path}"]
        return [*out, "--config", config]

    def remove(self):
        for path in self.files.values():
            os.unlink(path)


def write_random(f, n, start):
    start %= len(BLOCK)
    while n > 0:
        part = memoryview(BLOCK)[start:start + n]
        f.write(part)
        n -= len(part)
        start = (start + len(part) + 7) % len(BLOCK)
