# SPDX-License-Identifier: Apache-2.0
"""Power cuts of nodes: kill -9, and then the node's files are put into a state that a disk could have after the cut.

    power = Power(c, rng)           # of a cluster that is not up yet
    c.start_node(node, power.env)   # each ptcd writes down what it syncs (power_shadow.c)
    power.cut(node)                 # after it has been killed

What was synced is there. Of what was written since, each sector of 512 bytes is old or new, and so is a file's length. A file that was
never synced may be missing. Names are otherwise as they were, which is what file systems with a journal do once a file in the directory
was synced. The files lie on a tmpfs: it never uses an inode's number twice, by which power_shadow.c names what it has written down."""
import os
import stat

import harness
import numpy as np

SECTOR, STEP = 512, 1 << 20


def data(f, end):
    """[(from, to)] of a file that are no holes."""
    at, found = 0, []
    while at < end:
        try:
            at = os.lseek(f, at, os.SEEK_DATA)
        except OSError:
            break
        hole = os.lseek(f, at, os.SEEK_HOLE)
        found.append((at // SECTOR * SECTOR, min(hole, end)))
        at = hole
    return found


class Power:
    def __init__(self, c, rng):
        self.c, self.rng = c, rng
        root = c.options["chunk_root"]
        self.shadow = os.path.join(root, "shadow")
        os.makedirs(self.shadow)
        self.state = {name: os.path.join(root, f"{name}-state") for name in c.nodes}
        for node in c.nodes.values():
            c.write_config(node, state_dir=self.state[node.name])
        self.env = {"LD_PRELOAD": harness.binary("tests/libpower_shadow.so"), "PTC_POWER_SHADOW": self.shadow,
                    "PTC_POWER_DIRS": ":".join([*self.state.values(), *(n.chunk_dir for n in c.nodes.values())])}

    def cut(self, node, percent):
        """percent: of the sectors that were not synced, so many are written."""
        assert not node.pid()
        files = [os.path.join(base, name) for root in (self.state[node.name], node.chunk_dir) for base, _, names in os.walk(root)
                 for name in names]
        for path in filter(lambda p: stat.S_ISREG(os.lstat(p).st_mode), files):
            shadow = os.path.join(self.shadow, str(os.stat(path).st_ino))
            if os.path.exists(shadow):
                self._mix(path, shadow, percent)
            elif self.rng.random() * 100 >= percent:
                os.unlink(path)

    def _mix(self, path, shadow, percent):
        size = os.path.getsize(path if self.rng.random() * 100 < percent else shadow)
        old, new = os.open(shadow, os.O_RDONLY), os.open(path, os.O_RDWR)
        try:
            for at, end in sorted({*data(old, size), *data(new, size)}):
                for off in range(at, end, STEP):
                    self._mix_at(old, new, off, min(STEP, end - off), percent)
            os.truncate(new, size)
        finally:
            os.close(old)
            os.close(new)

    def _mix_at(self, old, new, off, n, percent):
        sectors = [np.frombuffer(os.pread(f, n, off).ljust(-(-n // SECTOR) * SECTOR, b"\0"), np.uint8).reshape(-1, SECTOR)
                   for f in (old, new)]
        for i in np.flatnonzero((sectors[0] != sectors[1]).any(axis=1)):
            if self.rng.random() * 100 >= percent:
                os.pwrite(new, sectors[0][i].tobytes()[:n - i * SECTOR], off + int(i) * SECTOR)
