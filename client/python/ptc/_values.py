# SPDX-License-Identifier: Apache-2.0
"""Python values as JSON without loss. What cannot be carried is refused by name."""
import base64
import collections
import json
import sys

import torch

from ptc._held import DTYPES, refuse

_TORCH = {name: dtype for dtype, name in DTYPES.items()}


def _array(value):
    """What only a loader's state may have: {kind: type, data, shape} of bytes, tensors and NumPy arrays."""
    if type(value) in (bytes, bytearray):
        return {type(value).__name__: base64.b64encode(value).decode()}
    if type(value) is torch.Tensor and value.device.type in ("cpu", "cuda") and value.layout == torch.strided and value.dtype in DTYPES:
        data = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        return {"array": DTYPES[value.dtype], "data": base64.b64encode(data).decode(), "shape": list(value.shape)}
    if "numpy" in sys.modules and type(value) is sys.modules["numpy"].ndarray and value.dtype.kind in "biufc":
        return {"numpy": value.dtype.str, "data": base64.b64encode(value.tobytes()).decode(), "shape": list(value.shape)}
    return None


def _encode(what, value, arrays=False):
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is torch.Tensor and value.dim() == 0 and value.dtype in DTYPES and not value.is_complex():
        return {"tensor": DTYPES[value.dtype], "value": value.item()}
    if type(value) in (list, tuple):
        return {type(value).__name__: [_encode(f"{what}[{i}]", v, arrays) for i, v in enumerate(value)]}
    if type(value) in (dict, collections.OrderedDict, collections.defaultdict, collections.Counter):
        items = [[_encode(f"{what}, a key", k), _encode(f"{what}.{k}", v, arrays)] for k, v in value.items()]
        return {"counter" if type(value) is collections.Counter else "dict": items}
    if isinstance(value, (bool, int, float, str)):  # NumPy's float64 is a float; an enum may be an int
        refuse(f"{what}: a {type(value).__module__}.{type(value).__name__} cannot be carried; make it a plain "
               f"{next(t for t in (bool, int, float, str) if isinstance(value, t)).__name__}")
    array = _array(value) if arrays else None
    return array or refuse(f"{what}: a {type(value).__name__} cannot be carried; numbers, strings, lists, tuples, dicts and "
                           f"{'bytes, tensors and NumPy arrays' if arrays else 'scalar tensors'} can")


def _decode(value):
    if not isinstance(value, dict):
        return value
    (kind, inside), *more = value.items()
    if kind == "tensor":
        return torch.tensor(more[0][1], dtype=_TORCH[inside])
    if kind in ("bytes", "bytearray"):
        return (bytes if kind == "bytes" else bytearray)(base64.b64decode(inside))
    if kind in ("array", "numpy"):
        (_, data), (_, shape) = more
        data = bytearray(base64.b64decode(data))
        if kind == "array":
            whole = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
            return whole.view(_TORCH[inside]).reshape(shape)
        import numpy
        return numpy.frombuffer(data, dtype=inside).reshape(shape)
    if kind in ("list", "tuple"):
        return (list if kind == "list" else tuple)(_decode(v) for v in inside)
    pairs = {_decode(k): _decode(v) for k, v in inside}
    return collections.Counter(pairs) if kind == "counter" else pairs


def dumps(what, value, arrays=False):
    return json.dumps(_encode(what, value, arrays)).encode()


def loads(data):
    return _decode(json.loads(data))
