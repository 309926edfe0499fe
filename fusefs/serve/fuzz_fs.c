/* SPDX-License-Identifier: Apache-2.0 */
/* Requests over a socket, chosen by the input: opcode, node, handle, offset,
 * size and name are whatever it says, or one that was answered before. The
 * input is read in records of 8 bytes and, where a name follows, its bytes.
 * What must hold: every request but FORGET and INTERRUPT is answered within
 * the bound, and nothing is read or written that is not ours (sanitizers). One
 * file system serves all inputs, as one does in life. */
#include "fusefs/serve/test_peer.h"

#define KNOWN         64
#define FIRST_NODES   13 /* known from the beginning */
#define FIRST_HANDLES 9
#define OP_MAX        64
#define ROUND         4096 /* inputs after which a new file system begins */
#define TIME_MS       2000

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static struct {
	struct memory m;
	struct peer p;
	uint64_t nodes[KNOWN], handles[KNOWN];
	size_t nnodes, nhandles, inputs;
	bool running;
} fuzz;

/* libfuse keeps interrupts of what it does not know until requests come, each of which takes one off; at its end it
 * forgets them. */
static void end(void)
{
	for (int i = 0; i <= OP_MAX; i++)
		peer_call(&fuzz.p, FUSE_STATFS, FUSE_ROOT_ID, NULL, 0, NULL, 0);
	peer_stop(&fuzz.p);
}

static void begin(void)
{
	if (fuzz.running && ++fuzz.inputs % ROUND)
		return;
	if (fuzz.running)
		end();
	memory_init(&fuzz.m);
	peer_start(&fuzz.p, &fuzz.m, TIME_MS, PTC_FS_CACHE_MIN);
	fuzz.nodes[0] = FUSE_ROOT_ID;
	fuzz.nodes[1] = peer_walk(&fuzz.p, "job/state/snap-1-step-7", NULL);
	fuzz.nodes[2] = peer_walk(&fuzz.p, "job/state/snap-1-step-7/model.safetensors", NULL);
	fuzz.nodes[3] = peer_walk(&fuzz.p, "data/data", NULL);
	fuzz.nodes[4] = peer_walk(&fuzz.p, "data/data/text/gen-1/dp-0/epoch-0", NULL);
	fuzz.nodes[5] = peer_walk(&fuzz.p, "data/data/text/gen-1/dp-0/epoch-0/samples.bin", NULL);
	fuzz.nodes[6] = peer_walk(&fuzz.p, "data/data/pics/gen-2/dp-1/epoch-0/files", NULL);
	fuzz.nodes[7] = peer_walk(&fuzz.p, "job/state/snap-1-step-7/tensors", NULL);
	fuzz.nodes[8] = peer_walk(&fuzz.p, "job/state/snap-1-step-7/tensors/b.npy", NULL);
	fuzz.nodes[9] = peer_walk(&fuzz.p, "data/data/long/gen-1/dp-0/epoch-0/samples.bin", NULL);
	fuzz.nodes[10] = peer_walk(&fuzz.p, "data/data/long/gen-2/dp-1/epoch-0/ids.npy", NULL);
	fuzz.nodes[11] = peer_walk(&fuzz.p, "data/data/long/gen-2/dp-0/epoch-0/samples.idx", NULL);
	fuzz.nodes[12] = peer_walk(&fuzz.p, "data/data/fast/gen-1/dp-0/epoch-0/weights.npy", NULL);
	fuzz.nnodes = FIRST_NODES;
	fuzz.handles[0] = peer_open(&fuzz.p, fuzz.nodes[2], false);
	fuzz.handles[1] = peer_open(&fuzz.p, fuzz.nodes[5], false);
	fuzz.handles[2] = peer_open(&fuzz.p, fuzz.nodes[6], true);
	fuzz.handles[3] = peer_open(&fuzz.p, fuzz.nodes[7], true);
	fuzz.handles[4] = peer_open(&fuzz.p, fuzz.nodes[8], false);
	for (int i = 0; i < 4; i++)
		fuzz.handles[5 + i] = peer_open(&fuzz.p, fuzz.nodes[9 + i], false);
	fuzz.nhandles = FIRST_HANDLES;
	for (int i = 0; i < FIRST_NODES; i++)
		ptc_require(fuzz.nodes[i]);
	fuzz.running = true;
}

/* Known ones, and wild ones. */
static uint64_t pick(const uint64_t *known, size_t n, uint8_t byte)
{
	return byte < 0xf0 ? known[byte % n] : UINT64_C(0x123456789abcdef) * (byte & 15);
}

/* The first ones stay, so that an input finds state and data whatever came before it. */
static void learn(uint64_t *known, size_t *n, size_t first, uint64_t value)
{
	known[*n < KNOWN ? (*n)++ : first + value % (KNOWN - first)] = value;
}

static const uint32_t opcodes[] = {
	FUSE_LOOKUP,    FUSE_FORGET,       FUSE_GETATTR,     FUSE_READLINK,   FUSE_OPEN,   FUSE_READ,  FUSE_STATFS,
	FUSE_RELEASE,   FUSE_OPENDIR,      FUSE_READDIR,     FUSE_RELEASEDIR, FUSE_ACCESS, FUSE_FLUSH, FUSE_GETXATTR,
	FUSE_SETATTR,   FUSE_WRITE,        FUSE_MKDIR,       FUSE_UNLINK,     FUSE_LSEEK,  FUSE_IOCTL, FUSE_POLL,
	FUSE_INTERRUPT, FUSE_BATCH_FORGET, FUSE_READDIRPLUS, FUSE_LISTXATTR,  FUSE_CREATE,
};

static bool unanswered(uint32_t opcode)
{
	return opcode == FUSE_FORGET || opcode == FUSE_INTERRUPT || opcode == FUSE_BATCH_FORGET;
}

/* The request's arguments: all of ours have a handle first, an offset second, a size third, or zeros do. */
static size_t build(uint32_t opcode, const uint8_t r[8], uint8_t arg[256])
{
	uint64_t fh = pick(fuzz.handles, fuzz.nhandles, r[2]), off = (uint64_t)r[3] << (r[4] & 63);
	uint32_t size = (uint32_t)r[5] << (r[6] & 15);

	memset(arg, 0, 256);
	memcpy(arg, &fh, 8);
	memcpy(arg + 8, &off, 8);
	memcpy(arg + 16, &size, 4);
	if (opcode == FUSE_LOOKUP || opcode == FUSE_UNLINK || opcode == FUSE_READLINK || opcode == FUSE_STATFS)
		return 0;
	if (opcode == FUSE_FORGET) {
		memcpy(arg, &off, 8);
		return sizeof(struct fuse_forget_in);
	}
	if (opcode == FUSE_BATCH_FORGET) { /* as many as it says: libfuse trusts the kernel in that */
		memset(arg, 0, 16);
		arg[0] = r[5] % 8;
		memcpy(arg + 8, &fh, 8);
		return 128 + 8;
	}
	if (opcode == FUSE_OPEN || opcode == FUSE_OPENDIR) {
		memset(arg, 0, 8);
		arg[0] = r[5];
		return sizeof(struct fuse_open_in);
	}
	if (opcode == FUSE_INTERRUPT) {
		fh = fuzz.p.unique - 2 * (r[5] & 3);
		memcpy(arg, &fh, 8);
		return sizeof(struct fuse_interrupt_in);
	}
	return opcode == FUSE_WRITE || opcode == FUSE_SETATTR || opcode == FUSE_CREATE || opcode == FUSE_MKDIR ? 128
													       : 48;
}

static void note(uint32_t opcode)
{
	const struct peer *p = &fuzz.p;
	struct fuse_entry_out entry;
	struct fuse_open_out open;

	if (p->error)
		return;
	if (opcode == FUSE_LOOKUP && p->len == sizeof(entry)) {
		memcpy(&entry, p->reply, sizeof(entry));
		learn(fuzz.nodes, &fuzz.nnodes, FIRST_NODES, entry.nodeid);
	}
	if ((opcode == FUSE_OPEN || opcode == FUSE_OPENDIR) && p->len == sizeof(open)) {
		memcpy(&open, p->reply, sizeof(open));
		learn(fuzz.handles, &fuzz.nhandles, FIRST_HANDLES, open.fh);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	char name[260];
	uint8_t arg[256];
	int requests = 0;

	begin();
	while (len >= 8 && requests++ < OP_MAX) {
		const uint8_t *r = data;
		uint32_t opcode = opcodes[r[0] % PTC_ARRAY_LEN(opcodes)];
		size_t n = PTC_MIN(len - 8, (size_t)r[7]), arg_len;
		uint64_t node = pick(fuzz.nodes, fuzz.nnodes, r[1]);

		memcpy(name, data + 8, n);
		memset(name + n, 0, 2); /* a name, and an empty second one */
		data += 8 + n;
		len -= 8 + n;
		arg_len = build(opcode, r, arg);
		fuzz.p.uid = r[6] & 16 ? 1000 : 0;
		if (unanswered(opcode)) {
			peer_send(&fuzz.p, opcode, node, arg, arg_len, NULL, 0);
			continue;
		}
		peer_call(&fuzz.p, opcode, node, arg, arg_len, name, n + 2);
		note(opcode);
	}
	return 0;
}
