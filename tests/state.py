# SPDX-License-Identifier: Apache-2.0
"""Random job states, and safetensors files written and read by hand: nothing here shares code with ptc.

Every tensor is a NumPy array of raw elements (dtype V<n>), so that bytes are compared, never values. Elements of F4
and F6 are smaller than a byte: their arrays are of bytes, with the last dim in bytes.
"""
import json
import os
import struct

import numpy as np

# All dtypes of the format, with their size in bits.
BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E5M2FNUZ": 8, "F8_E4M3FNUZ": 8, "F8_E8M0": 8,
        "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64,
        "U64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
WHOLE = [d for d, bits in BITS.items() if bits % 8 == 0]


def random_array(rng, dtype, shape):
    """Random elements; distinct enough that a wrong cut cannot go unseen. BOOL bytes are 0 or 1."""
    bits = BITS[dtype]
    if bits % 8:
        if not shape or shape[-1] * bits % 8:
            raise ValueError(f"{dtype} {shape} has no whole bytes in its last dim")
        shape, bits = (*shape[:-1], shape[-1] * bits // 8), 8
    size = bits // 8
    count = int(np.prod(shape, dtype=np.int64))
    raw = rng.bytes(count * size) if dtype != "BOOL" else rng.integers(0, 2, count, dtype=np.uint8).tobytes()
    return np.frombuffer(raw, dtype=f"V{size}").reshape(shape)


class Tensor:
    def __init__(self, dtype, shape, array):
        self.dtype, self.shape, self.array = dtype, tuple(shape), array

    def tobytes(self):
        return self.array.tobytes()


class State:
    """Parameters, and for each field one tensor of the parameter's shape."""

    def __init__(self, fields=None):
        self.fields = dict(fields or {}) # name -> dtype
        self.tensors = {"param": {}, **{f: {} for f in self.fields}}
        self.metadata = {"format": "pt", "note": "käse"}

    def add(self, rng, name, dtype, shape):
        self.tensors["param"][name] = Tensor(dtype, shape, random_array(rng, dtype, shape))
        for field, field_dtype in self.fields.items():
            self.tensors[field][name] = Tensor(field_dtype, shape, random_array(rng, field_dtype, shape))

    def write(self, directory):
        """One file per field; returns {field: path}. Data lies in the order tensors were added, not in name order."""
        paths = {}
        for field, tensors in self.tensors.items():
            paths[field] = os.path.join(directory, "model.safetensors" if field == "param" else f"{field}.safetensors")
            write_file(paths[field], tensors, self.metadata if field == "param" else None)
        return paths

    def bytes(self):
        return sum(t.array.nbytes for tensors in self.tensors.values() for t in tensors.values())


def header_bytes(entries, metadata=None):
    header = {"__metadata__": metadata} if metadata else {}
    header.update(entries)
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write_file(path, tensors, metadata=None):
    entries, offset = {}, 0
    for name, t in tensors.items():
        end = offset + t.array.nbytes
        entries[name] = {"dtype": t.dtype, "shape": list(t.shape), "data_offsets": [offset, end]}
        offset = end
    with open(path, "wb") as f:
        f.write(header_bytes(entries, metadata))
        for t in tensors.values():
            f.write(t.tobytes())


def read_file(path):
    """{name: Tensor}; checks that the header covers the data exactly."""
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(n))
        data = np.frombuffer(f.read(), dtype=np.uint8)
    header.pop("__metadata__", None)
    tensors, covered = {}, 0
    for name, e in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = e["data_offsets"]
        bits, shape = BITS[e["dtype"]], tuple(e["shape"])
        elements = int(np.prod(shape, dtype=np.int64))
        if begin != covered or (end - begin) * 8 != elements * bits:
            raise ValueError(f"{path}: {name}: offsets {begin}..{end} do not fit {e['dtype']} {shape} after {covered}")
        covered = end
        raw_shape = shape if bits % 8 == 0 else (*shape[:-1], shape[-1] * bits // 8)
        array = data[begin:end].tobytes()
        tensors[name] = Tensor(e["dtype"], shape, np.frombuffer(array, dtype=f"V{max(bits, 8) // 8}").reshape(raw_shape))
    if covered != len(data):
        raise ValueError(f"{path}: {len(data) - covered} bytes after the last tensor")
    return tensors


# ---- what is random about a random state ----------------------------------------------------------------------------

LAYERS = 5

# One rule of each sort; the oracle reads the same list (JSON is YAML, so it goes into job.yaml as it is). Which degrees
# of tp fit depends on the numbers of heads, so there are two variants.
def rules(heads):
    return [
        {"match": "emb", "split": {"axis": "tp", "dim": 0, "kind": "ceil"}, "layer": "first"},
        {"match": "vocab", "split": {"axis": "tp", "dim": 0, "pad_to": 8}, "layer": "first"},
        {"match": "tied", "split": {"axis": "tp", "dim": 0, "kind": "balanced"}, "layer": "ends"},
        {"match": "head", "split": {"axis": "tp", "dim": 1, "kind": "balanced"}, "layer": "last"},
        {"match": "h.*.qkv", "split": {"axis": "tp", "dim": 0, "kind": "even", "blocks": [4 * n for n in heads],
                                       "unit": 4}, "layer": "h.{}.*"},
        {"match": "h.*.gate_up", "split": {"axis": "tp", "dim": 0, "kind": "even", "blocks": [48, 48]}, "layer": "h.{}.*"},
        {"match": "h.*.row", "split": {"axis": "tp", "dim": 1, "kind": "even"}, "layer": "h.{}.*"},
        {"match": "h.*.odd", "split": {"axis": "tp", "dim": 0, "kind": "ceil"}, "layer": "h.{}.*"},
        {"match": "h.*.bal3", "split": {"axis": "tp", "dim": 1, "kind": "balanced"}, "layer": "h.{}.*"},
        {"match": "h.*.nested", "split": [{"axis": "tp", "dim": 0, "kind": "ceil"}, {"axis": "dp", "dim": 0, "kind": "ceil"}],
         "layer": "h.{}.*"},
        {"match": "h.*.turns", "split": {"axis": "tp", "dim": 0, "kind": "ceil", "blocks": [24, 12, 12], "interleave": 4},
         "layer": "h.{}.*"},
        {"match": "h.*.experts.*", "split": {"axis": "etp", "dim": 0, "kind": "ceil"}, "layer": "h.{}.*",
         "expert": {"match": "*.experts.{}.w", "order": [2, 0, 3, 1]}},
        {"match": "h.*.grouped", "split": [{"axis": "ep", "dim": 0, "kind": "ceil"}, {"axis": "etp", "dim": 2, "kind": "balanced"}],
         "layer": "h.{}.*", "shard": {"dim": 1}},
        {"match": "h.*", "layer": "h.{}.*"},
        {"match": "*"},
    ]


# (heads of q, k and v; degrees of tp that they allow): grouped-query with 8 and 2 heads, multi-query with 12 and 1.
VARIANTS = [((8, 2, 2), (1, 2, 4, 8)), ((12, 1, 1), (1, 2, 3, 4, 6))]


def random_state(rng, heads, tiny=2000, fields=("exp_avg", "exp_avg_sq")):
    """All dtypes of whole bytes; scalars, empty and odd shapes; thousands of tiny tensors; a rule of each sort."""
    s = State({f: "F32" for f in fields})
    todo = [("emb", "BF16", (97, 24)), ("vocab", "BF16", (101, 3)), ("tied", "F32", (50, 3)), ("head", "F16", (3, 101))]
    for layer in range(LAYERS):
        p = f"h.{layer}."
        todo += [(p + "qkv", "BF16", (4 * sum(heads), 32)), (p + "gate_up", "F32", (96, 16)), (p + "row", "F64", (7, 24)),
                 (p + "odd", "F16", (13, 5)), (p + "bal3", "F32", (2, 11, 3)), (p + "norm", "F32", (33,)),
                 (p + "nested", "BF16", (21, 2)), (p + "turns", "F32", (48, 3)), (p + "grouped", "F32", (4, 5, 7)),
                 *((f"{p}experts.{e}.w", "BF16", (9, 2)) for e in range(4)), (p + "scalar", "F32", ()), (p + "empty.odd", "F32", (0, 4)), (p + "none", "I64", (3, 0, 2))]
    for i, dtype in enumerate(WHOLE):
        todo += [(f"h.{i % LAYERS}.{dtype}.odd", dtype, (int(rng.integers(1, 40)), int(rng.integers(1, 9)))),
                 (f"buffers.{dtype}", dtype, tuple(int(n) for n in rng.integers(1, 5, int(rng.integers(0, 5))))),]
    todo += [(f"h.{i % LAYERS}.tiny.{i}" + (".odd" if i % 3 == 0 else ""), WHOLE[i % len(WHOLE)],
              (int(rng.integers(1, 6)),)) for i in range(tiny)]
    for i in rng.permutation(len(todo)):
        s.add(rng, *todo[i])
    return s
