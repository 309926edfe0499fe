# SPDX-License-Identifier: Apache-2.0
"""Optimizers that step attached parameters and are not attached themselves: inside another optimizer, forgotten, or made anew in
training. No snapshot would have their state.

Happy path: lost() gives None. Failure modes: none; what is lost is told as text, for the caller to refuse.
"""
from torch.optim import Optimizer


def options_of(group):
    """Options of a parameter group, to be compared. Those in device memory are left out: reading one would wait for the device."""
    return {k: repr(v) for k, v in group.items() if k not in ("params", "param_names") and not getattr(v, "is_cuda", False)}


def _full(state):
    return any(v is not None for v in state.values()) if isinstance(state, dict) else state is not None


def _has_own_state(optim, attached):
    """Wrappers may share the state of the optimizer in them, as a whole or for each parameter."""
    return any(_full(state) and not any(o.state.get(key) is state for o in attached) for key, state in optim.state.items())


def _inside(optim, path=""):
    """[(where, optimizer)] of those that an optimizer keeps in its attributes."""
    found = []
    for name, value in vars(optim).items():
        if name in ("state", "param_groups", "defaults"):
            continue
        several = value.values() if type(value) is dict else value if type(value) in (list, tuple) else (value,)
        for thing in several:
            if issubclass(type(thing), Optimizer) and thing is not optim:  # isinstance() would ask proxies, also dead ones
                found.append((f"{path}{name}", thing))
    return found


def _in_attached(attached):
    known, todo = {id(o) for o in attached}, [(type(o).__name__, o) for o in attached]
    for path, optim in todo:
        for where, inner in _inside(optim, f"{path}."):
            if id(inner) not in known:
                known.add(id(inner))
                todo.append((where, inner))
                yield where, inner


def lost(attached, names, stepped, first):
    """What would be lost, as text; or None. attached: optimizers; names: {id of what optimizers work on: names}; stepped: others that
    have stepped one of these; first: {id of a parameter: the options with which such a one first stepped it}."""
    for where, inner in _in_attached(attached):
        if _has_own_state(inner, attached):
            return (f"optimizer {where}: this {type(inner).__name__} has state of its own, inside an attached optimizer, and is not "
                    f"attached, so that its state would be lost; attach both, each by a name of its own: optim={{\"outer\": ..., "
                    f"\"inner\": ...}}")
    groups = {id(p): group for o in attached for group in o.param_groups for p in group["params"]}
    for optim in stepped:
        text = _lost_of(optim, attached, names, groups, first)
        if text:
            return text
    return None


def _lost_of(optim, attached, names, groups, first):
    own = _has_own_state(optim, attached)
    for group in optim.param_groups:
        for p in group["params"]:
            if id(p) not in names:
                continue
            name = names[id(p)][0]
            if own:
                return (f"optimizer {type(optim).__name__}: it steps {name}, has state of its own and is not attached, so that its state "
                        f"would be lost; give each optimizer that steps to attach(optim=), by a name of its own, and keep it")
            was = options_of(groups[id(p)]) if id(p) in groups else first.get(id(p), {})
            changed = [k for k, v in options_of(group).items() if was.get(k, v) != v]
            if changed:
                other = "that of the attached optimizer" if id(p) in groups else "what it was in the first step"
                return (f"optimizer {type(optim).__name__}: it steps {name}, is not attached, and its {changed[0]} is not {other}, so that "
                        f"it would be lost; give each optimizer that steps to attach(optim=), and change options in place")
            break  # the others of the group have the same options
    return None
