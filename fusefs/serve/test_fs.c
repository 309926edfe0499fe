/* SPDX-License-Identifier: Apache-2.0 */
/* The file system over a socket, with the kernel's side and the source in the
 * test: no mount, no daemon, no privileges. */
#include "fusefs/serve/test_peer.h"

#include <signal.h>
#include <sys/time.h>

/* cmocka wants these first */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define CACHE   (8u << 20)
#define A_BYTES (768u * 1024 * 4)
#define SNAP    "job/state/snap-1-step-7"
#define PART    "data/data/text/gen-1/dp-0/epoch-0"
#define PICS    "data/data/pics/gen-2/dp-1/epoch-0"

struct fixture {
	struct memory m;
	struct peer p;
	int64_t live;
};

static int setup_with(void **state, uint32_t timeout_ms)
{
	struct fixture *f = calloc(1, sizeof *f);

	f->live = ptc_alloc_live();
	memory_init(&f->m);
	peer_start(&f->p, &f->m, timeout_ms, CACHE);
	*state = f;
	return 0;
}

static int setup(void **state)
{
	return setup_with(state, 5000);
}

static int setup_hasty(void **state)
{
	return setup_with(state, 1000);
}

/* Nothing is left of what was allocated, states are closed, leases given up. */
static int teardown(void **state)
{
	struct fixture *f = *state;

	f->m.away = f->m.unpin_waits = false; /* of a test that failed */
	peer_stop(&f->p);
	assert_int_equal(0, f->m.states);
	if (!f->m.hung) /* else they end by themselves */
		assert_int_equal(0, f->m.pinned);
	assert_int_equal(f->live, ptc_alloc_live());
	free(f);
	return 0;
}

/* Where the first tensor's bytes begin. */
static uint64_t head_bytes(struct peer *p, uint64_t node, uint64_t fh)
{
	uint64_t n;

	assert_int_equal(0, peer_read(p, node, fh, 0, 8));
	assert_int_equal(8, p->len);
	memcpy(&n, p->reply, 8);
	return n + 8;
}

static void check_bytes(struct fixture *f, const uint8_t *got, uint64_t off, size_t len, uint32_t item)
{
	for (size_t i = 0; i < len; i++)
		if (got[i] != memory_byte(&f->m, item, off + i))
			fail_msg("item %u, byte %llu", item, (unsigned long long)off + i);
}

static void test_reads(void **state)
{
	struct fixture *f = *state;
	struct peer *p = &f->p;
	struct fuse_attr attr;
	uint64_t node = peer_walk(p, SNAP "/model.safetensors", &attr), fh, head;

	assert_int_not_equal(0, node);
	assert_int_equal(1000, attr.uid);
	assert_int_equal(S_IFREG | 0400, attr.mode);
	fh = peer_open(p, node, false);
	assert_int_not_equal(0, fh);
	assert_int_equal(1, f->m.pinned);
	head = head_bytes(p, node, fh);
	assert_int_equal(head + A_BYTES + 4 + 20, attr.size);
	for (uint64_t off = 0; off < A_BYTES; off += 1 << 20) {
		assert_int_equal(0, peer_read(p, node, fh, head + off, 1 << 20));
		assert_int_equal(1 << 20, p->len);
		check_bytes(f, p->reply, off, p->len, 0);
	}
	assert_int_equal(0, peer_read(p, node, fh, head + A_BYTES + 4, 4096)); /* c/d, up to the end */
	assert_int_equal(20, p->len);
	check_bytes(f, p->reply, 0, 20, 4);
	assert_int_equal(0, peer_read(p, node, fh, attr.size, 4096));
	assert_int_equal(0, p->len);
	assert_int_equal(0, peer_read(p, node, fh, UINT64_MAX / 4, 4096));
	assert_int_equal(0, p->len);
	assert_int_equal(0, peer_release(p, node, fh, false));
	assert_int_equal(EBADF, peer_read(p, node, fh, 0, 8));
}

/* What every path begins with is asked for no more often than the list of jobs is. */
static void test_beginnings(void **state)
{
	struct fixture *f = *state;
	struct fuse_getattr_in in = { 0 };
	struct fuse_attr_out root;
	struct fuse_entry_out job = { 0 };

	assert_int_equal(0, peer_call(&f->p, FUSE_GETATTR, FUSE_ROOT_ID, &in, sizeof(in), NULL, 0));
	memcpy(&root, f->p.reply, sizeof(root));
	assert_true(root.attr_valid >= 86400);
	for (int i = 0; !job.entry_valid_nsec && i < 100;
	     i++) { /* again: a busy machine takes longer than it is believed */
		assert_int_equal(0, peer_call(&f->p, FUSE_LOOKUP, FUSE_ROOT_ID, "job", 4, NULL, 0));
		memcpy(&job, f->p.reply, sizeof(job));
		assert_int_equal(0, job.entry_valid);
	}
	assert_in_range(job.entry_valid_nsec, 1, 20000000);
}

/* How many names an open directory has, a few at a time; counted in *ret_wanted: those that are this one. */
static size_t list(struct peer *p, uint64_t node, uint64_t fh, const char *wanted, size_t *ret_wanted)
{
	struct fuse_read_in in = { .fh = fh, .size = 128 };
	size_t names = 0;

	*ret_wanted = 0;
	while (!peer_call(p, FUSE_READDIR, node, &in, sizeof(in), NULL, 0) && p->len) {
		for (size_t at = 0; at < p->len;) {
			const struct fuse_dirent *d = (const void *)(p->reply + at);

			names++;
			*ret_wanted += d->namelen == strlen(wanted) && !memcmp(d->name, wanted, d->namelen);
			in.offset = d->off;
			at += FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + d->namelen);
		}
	}
	assert_int_equal(0, p->error);
	return names;
}

/* One reader from the beginning to the end asks for each byte once, and for many at a time; one that jumps for no more
 * than he reads. */
static void test_reads_ahead(void **state)
{
	struct fixture *f = *state;
	struct peer *p = &f->p;
	uint64_t node = peer_walk(p, SNAP "/model.safetensors", NULL), fh = peer_open(p, node, false), head, off;

	head = head_bytes(p, node, fh);
	assert_int_equal(0, f->m.reads);
	for (off = 0; off < head + A_BYTES + 24; off += p->len) {
		assert_int_equal(0, peer_read(p, node, fh, off, 128 << 10));
		assert_int_not_equal(0, p->len);
	}
	assert_in_range(f->m.reads, 2, 8); /* of 25 */
	assert_int_equal(A_BYTES + 24, f->m.read_bytes);
	peer_release(p, node, fh, false);
	node = peer_walk(p, SNAP "/tensors/a.npy", NULL);
	fh = peer_open(p, node, false);
	f->m.reads = 0;
	f->m.read_bytes = 0;
	for (off = 3; off--;)
		assert_int_equal(0, peer_read(p, node, fh, off * (5u << 18) + 65536,
					      4096)); /* 1.25 MiB apart, backwards */
	assert_int_equal(3, f->m.reads);
	assert_in_range(f->m.read_bytes, 3 * 4096, 3 * (128 << 10));
	peer_release(p, node, fh, false);
}

/* Until the path is another node, which takes as long as the list of jobs is believed. */
static uint64_t walk_until_other(struct peer *p, const char *path, uint64_t than)
{
	int64_t end_ns = ptc_sys_now_ns() + 5000000000;
	uint64_t node;

	do
		node = peer_walk(p, path, NULL);
	while ((node == than || !node) && ptc_sys_now_ns() < end_ns);
	return node;
}

/* rsync and make go by them: another snapshot, another time; the same one, the same, whatever is looked at and when. */
static void test_times(void **state)
{
	struct fixture *f = *state;
	struct peer *p = &f->p;
	static const char *const paths[] = { "", "/model.safetensors", "/tensors/a.npy", "/gen-%u/ranks/0.safetensors",
					     "/tensors" };
	struct fuse_attr attr;
	char name[40], path[80];

	for (unsigned snap = 1; snap <= 2; snap++) {
		f->m.snapshot = f->m.generation = snap;
		snprintf(path, sizeof(path), "job/state/snap-%u-step-7", snap);
		assert_int_not_equal(0, walk_until_other(p, path, 0));
		for (size_t i = 0; i < PTC_ARRAY_LEN(paths); i++) {
			snprintf(name, sizeof(name), paths[i], snap);
			snprintf(path, sizeof(path), "job/state/snap-%u-step-7%s", snap, name);
			assert_int_not_equal(0, peer_walk(p, path, &attr));
			assert_int_equal(1000 + snap, attr.mtime); /* 1000 s: when the job was made */
			assert_int_equal(attr.mtime, attr.ctime);
		}
		assert_int_not_equal(0, peer_walk(p, "job/generation.json", &attr));
		assert_int_equal(1000 + snap, attr.mtime);
	}
	assert_int_not_equal(0, peer_walk(p, PART "/samples.bin", &attr)); /* of data: each generation */
	assert_int_equal(1001, attr.mtime);
	assert_int_not_equal(0, peer_walk(p, "data/data/text/gen-2/dp-0/epoch-0/samples.bin", &attr));
	assert_int_equal(1002, attr.mtime);
}

/* How long the kernel may believe a name and what it stands for: what changes, or may not be seen by all, not at all.
 */
static void test_believed(void **state)
{
	struct fixture *f = *state;
	struct peer *p = &f->p;
	const uint64_t ever = 86400 * 365;
	const struct {
		const char *folder, *name;
		uint64_t name_s, attr_s;
	} rows[] = { { "", "job", 0, 0 },
		     { "job", "generation.json", 0, 0 },
		     { "job", "state", ever, ever },
		     { "job/state", "latest", 0, ever },
		     { "job/state", "snap-1-step-7", 1, ever },
		     { SNAP, "tensors", ever, ever },
		     { SNAP, "gen-1", 1, ever },
		     { SNAP "/gen-1", "ranks", ever, ever },
		     { SNAP "/gen-1/ranks", "1.safetensors", ever, ever },
		     { "data", "data", ever, ever },
		     { "data/data", "text", 1, ever },
		     { "data/data/text", "gen-1", 1, ever },
		     { "data/data/text/gen-1", "dp-1", ever, ever },
		     { PART, "samples.bin", ever, ever } };

	for (size_t i = 0; i < PTC_ARRAY_LEN(rows); i++) {
		uint64_t dir = peer_walk(p, rows[i].folder, NULL);
		struct fuse_getattr_in in = { 0 };
		struct fuse_entry_out entry;
		struct fuse_attr_out attr;

		assert_int_equal(0, peer_call(p, FUSE_LOOKUP, dir, rows[i].name, strlen(rows[i].name) + 1, NULL, 0));
		memcpy(&entry, p->reply, sizeof(entry));
		assert_int_equal(0, peer_call(p, FUSE_GETATTR, entry.nodeid, &in, sizeof(in), NULL, 0));
		memcpy(&attr, p->reply, sizeof(attr));
		if (entry.entry_valid != rows[i].name_s || entry.attr_valid != rows[i].attr_s ||
		    attr.attr_valid != rows[i].attr_s)
			fail_msg("%s: %llu %llu %llu", rows[i].name, (unsigned long long)entry.entry_valid,
				 (unsigned long long)entry.attr_valid, (unsigned long long)attr.attr_valid);
	}
}

/* ---- small tensors ---- */

#define HEAD 128 /* of these .npy files */

/* The node that a listing of tensors/ brings for a name; 0: it brings none. Each such node is a lookup. */
static uint64_t listed_node(struct peer *p, const char *name)
{
	uint64_t dir = peer_walk(p, SNAP "/tensors", NULL), fh = peer_open(p, dir, true), found = 0, off = 0;
	struct fuse_direntplus e;

	for (bool more = true; more;) {
		struct fuse_read_in in = { .fh = fh, .offset = off, .size = 4096 };

		assert_int_equal(0, peer_call(p, FUSE_READDIRPLUS, dir, &in, sizeof(in), NULL, 0));
		more = p->len > 0;
		for (size_t at = 0; at < p->len; at += FUSE_DIRENTPLUS_SIZE(&e)) {
			const char *text = (const char *)p->reply + at + FUSE_NAME_OFFSET_DIRENTPLUS;

			memcpy(&e, p->reply + at, sizeof(e));
			off = e.dirent.off;
			if (e.dirent.namelen == strlen(name) && !memcmp(text, name, e.dirent.namelen))
				found = e.entry_out.nodeid;
			if (e.entry_out.nodeid) {
				assert_int_equal(e.dirent.ino, e.entry_out.attr.ino);
				assert_int_equal(S_IFREG | 0400, e.entry_out.attr.mode);
				assert_true(e.entry_out.attr_valid >= 86400 && e.entry_out.entry_valid >= 86400);
			}
		}
	}
	peer_release(p, dir, fh, true);
	return found;
}

/* Opens a small tensor's file and reads all of it; the error. */
static int read_small(struct fixture *f, const char *path, uint32_t item, size_t bytes)
{
	struct peer *p = &f->p;
	struct fuse_attr attr;
	uint64_t node = peer_walk(p, path, &attr), fh = peer_open(p, node, false);
	int e;

	assert_int_equal(HEAD + bytes, attr.size);
	assert_int_not_equal(0, fh);
	e = peer_read(p, node, fh, 0, 4096);
	if (!e) {
		assert_int_equal(attr.size, p->len);
		assert_memory_equal("\x93NUMPY", p->reply, 6);
		check_bytes(f, p->reply + HEAD, 0, bytes, item);
		assert_int_equal(0, peer_read(p, node, fh, HEAD - 5, 7)); /* a part of the head, and of them */
		assert_int_equal(7, p->len);
		assert_int_equal('\n', p->reply[4]);
		check_bytes(f, p->reply + 5, 0, 2, item);
		assert_int_equal(0, peer_read(p, node, fh, HEAD + bytes - 3, 4096));
		assert_int_equal(3, p->len);
		check_bytes(f, p->reply, bytes - 3, 3, item);
	}
	peer_release(p, node, fh, false);
	return e;
}

/* All small tensors are asked for with one call; what is there when a file is opened comes with it, once. */
static void test_small(void **state)
{
	struct fixture *f = *state;
	struct peer *p = &f->p;
	uint64_t node, fh;

	assert_int_equal(0, read_small(f, SNAP "/tensors/b.npy", 2, 4));
	assert_int_equal(1, f->m.reads);
	assert_int_equal(2 * (4 + 20), f->m.read_bytes);
	assert_int_equal(0, p->nstored);
	node = peer_walk(p, SNAP "/tensors/c%2Fd.npy", NULL);
	fh = peer_open(p, node, false);
	assert_int_equal(1, p->nstored);
	assert_int_equal(node, p->stored.nodeid);
	assert_int_equal(HEAD + 20, p->stored.size);
	assert_memory_equal("\x93NUMPY", p->stored_data, 6);
	check_bytes(f, p->stored_data + HEAD, 0, 20, 4);
	peer_release(p, node, fh, false);
	assert_int_equal(0, read_small(f, SNAP "/tensors/c%2Fd.npy", 4, 20));
	assert_int_equal(0, read_small(f, SNAP "/tensors/c%2Fd:exp.npy", 5, 20));
	assert_int_equal(2, p->nstored); /* not again of what was open before: its pages may be locked */
	assert_int_equal(1, f->m.reads);
}

/* A listing looks up what it lists: the same nodes as by name, and as many lookups as are then forgotten. */
static void test_listed(void **state)
{
	struct fixture *f = *state;
	struct peer *p = &f->p;
	uint64_t node = listed_node(p, "c%2Fd.npy"), by_name;
	struct fuse_forget_in forget = { .nlookup = 1 };
	struct fuse_getattr_in getattr = { 0 };

	assert_int_not_equal(0, node);
	assert_int_equal(0, listed_node(p, "."));
	by_name = peer_walk(p, SNAP "/tensors/c%2Fd.npy", NULL);
	assert_int_equal(by_name, node);
	for (int lookups = 3; lookups; lookups--) {
		assert_int_equal(0, peer_call(p, FUSE_GETATTR, node, &getattr, sizeof(getattr), NULL, 0));
		peer_send(p, FUSE_FORGET, node, &forget, sizeof(forget), NULL, 0);
	}
	assert_int_equal(ESTALE, peer_call(p, FUSE_GETATTR, node, &getattr, sizeof(getattr), NULL, 0));
}

/* One of the many is damaged: it is EIO, and the others are right, each by itself. */
static void test_small_damaged(void **state)
{
	struct fixture *f = *state;

	f->m.bad = 5;
	assert_int_equal(0, read_small(f, SNAP "/tensors/b.npy", 2, 4));
	assert_int_equal(EIO, read_small(f, SNAP "/tensors/c%2Fd:exp.npy", 5, 20));
	assert_int_equal(0, read_small(f, SNAP "/tensors/c%2Fd.npy", 4, 20));
	assert_int_equal(0, f->p.nstored);
	f->m.bad = -1;
	assert_int_equal(0, read_small(f, SNAP "/tensors/c%2Fd:exp.npy", 5, 20));
}

/* One of the many is on a node that hangs: others are there all the same, long before the time is over. */
static void test_small_slow(void **state)
{
	struct fixture *f = *state;
	int64_t began = ptc_sys_now_ns();

	f->m.slow = 5;
	assert_int_equal(0, read_small(f, SNAP "/tensors/b.npy", 2, 4));
	assert_int_equal(0, read_small(f, SNAP "/tensors/c%2Fd.npy", 4, 20));
	assert_true(ptc_sys_now_ns() - began < INT64_C(4500) * 1000000); /* of 5000 ms */
	f->m.slow = -1;
}

/* ---- leases ---- */

static void wait_for(const _Atomic int *value, int least)
{
	int64_t end_ns = ptc_sys_now_ns() + INT64_C(30) * 1000000000;

	while (*value < least && ptc_sys_now_ns() < end_ns)
		usleep(5000);
	assert_true(*value >= least);
}

/* The lease was given up, and the source is away: what is cached can be opened and read. The source is asked for the
 * lease again and again, but not at once, and gives it when it is back. */
static void test_source_away(void **state)
{
	struct fixture *f = *state;
	struct peer *p = &f->p;
	uint64_t node = peer_walk(p, SNAP "/tensors/c%2Fd.npy", NULL), fh;
	int64_t began_ns;
	int asked;

	assert_int_equal(0, read_small(f, SNAP "/tensors/b.npy", 2, 4));
	wait_for(&f->m.unpins, 1);
	f->m.away = true;
	assert_int_equal(0, read_small(f, SNAP "/tensors/c%2Fd:exp.npy", 5, 20));
	fh = peer_open(p, node, false);
	assert_int_not_equal(0, fh);
	asked = f->m.pins;
	began_ns = ptc_sys_now_ns();
	wait_for(&f->m.pins, asked + 3);
	assert_true(ptc_sys_now_ns() - began_ns > INT64_C(1900) * 1000000);
	assert_int_equal(0, peer_read(p, node, fh, 0, 4096));
	check_bytes(f, p->reply + HEAD, 0, 20, 4);
	assert_int_equal(0, f->m.pinned);
	f->m.away = false;
	wait_for(&f->m.pinned, 1);
	peer_release(p, node, fh, false);
}

/* A file is opened just as the lease is given up, and the source hears of the opening first: it is asked again. */
static void test_opened_as_lease_ends(void **state)
{
	struct fixture *f = *state;
	struct peer *p = &f->p;
	uint64_t node = peer_walk(p, SNAP "/model.safetensors", NULL), fh = peer_open(p, node, false);

	f->m.unpin_waits = true;
	peer_release(p, node, fh, false);
	wait_for(&f->m.unpins, 1);
	fh = peer_open(p, node, false);
	assert_int_not_equal(0, fh);
	assert_int_equal(2, f->m.pins);
	f->m.unpin_waits = false;
	wait_for(&f->m.pins, 3);
	wait_for(&f->m.pinned, 1);
	peer_release(p, node, fh, false);
}

static void test_statfs(void **state)
{
	struct fixture *f = *state;
	struct peer *p = &f->p;
	struct fuse_statfs_out out;
	const uint64_t bytes = 2 * (A_BYTES + 4 + 20);

	for (int known = 0; known < 2; known++) {
		assert_int_equal(0, peer_call(p, FUSE_STATFS, FUSE_ROOT_ID, NULL, 0, NULL, 0));
		assert_int_equal(sizeof(out), p->len);
		memcpy(&out, p->reply, sizeof(out));
		assert_int_equal(known ? (bytes + 4095) / 4096 : 0,
				 out.st.blocks); /* of snapshots that somebody knows */
		assert_int_equal(0, out.st.bfree + out.st.bavail + out.st.ffree);
		assert_int_equal(4096, out.st.frsize);
		assert_int_equal(255, out.st.namelen);
		assert_int_not_equal(0, peer_walk(p, SNAP, NULL));
	}
}

static void test_data_names(void **state)
{
	struct fixture *f = *state;
	struct peer *p = &f->p;
	static const char *const there[] = { PART "/samples.bin",
					     PART "/samples.idx",
					     PART "/ids.npy",
					     PART "/weights.npy",
					     PART "/partition.json",
					     "data/data/text/gen-2/dp-1/epoch-0",
					     "data/data/text/gen-2/dp-1/epoch-77",
					     "data/data/vague",
					     PICS "/files",
					     "data/state" };
	static const char *const missing[] = { "data/data/nothing",
					       "data/data/text/gen-3",
					       "data/data/text/gen-0",
					       "data/data/text/gen-01",
					       "data/data/text/gen-",
					       "data/data/text/gen-1x",
					       "data/data/text/gen-18446744073709551617",
					       "data/data/text/gen-1/dp-2",
					       "data/data/text/gen-1/dp-00",
					       "data/data/text/gen-1/dp-4294967296",
					       "data/data/text/gen-1/dp-0/epoch--1",
					       "data/data/text/gen-1/dp-0/epoch-999999999999999999",
					       PART "/files",
					       PART "/samples",
					       PICS "/files/x",
					       "empty/data/text",
					       "data/generation.json" };
	size_t wanted;
	uint64_t node, fh;

	for (size_t i = 0; i < PTC_ARRAY_LEN(there); i++)
		if (!peer_walk(p, there[i], NULL))
			fail_msg("%s: %s", there[i], strerror(p->error));
	for (size_t i = 0; i < PTC_ARRAY_LEN(missing); i++) {
		if (peer_walk(p, missing[i], NULL))
			fail_msg("%s is there", missing[i]);
		assert_int_equal(ENOENT, p->error);
	}
	assert_int_equal(0, peer_walk(p, "data/data/vague/gen-2", NULL)); /* nobody says its batches */
	assert_int_equal(EIO, p->error);
	node = peer_walk(p, "data/data/text", NULL);
	fh = peer_open(p, node, true);
	assert_int_equal(2 + 2, list(p, node, fh, "gen-1", &wanted));
	assert_int_equal(1, wanted);
	peer_release(p, node, fh, true);
}

/* Each slot's file: its name in the listing is found, is at most as long as a name may be, and has the sample's bytes.
 */
static void test_slots(void **state)
{
	struct fixture *f = *state;
	struct peer *p = &f->p;
	uint64_t dir = peer_walk(p, PICS "/files", NULL), fh = peer_open(p, dir, true), slots = 0;
	struct fuse_read_in in = { .fh = fh, .size = 4096 };
	uint8_t listing[4096];
	struct fuse_attr attr;
	bool seen[DATA_PICS] = { false };
	size_t len;

	assert_int_equal(0, peer_call(p, FUSE_READDIR, dir, &in, sizeof(in), NULL, 0));
	len = p->len;
	memcpy(listing, p->reply, len);
	for (size_t at = 0; at < len;) {
		const struct fuse_dirent *d = (const void *)(listing + at);
		char name[256] = "";
		uint64_t node, slot_fh, sample = 0;
		const char *own;

		at += FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + d->namelen);
		if (d->name[0] == '.')
			continue;
		assert_in_range(d->namelen, 11, 255);
		memcpy(name, d->name, d->namelen);
		own = name + 10; /* "000000012-" */
		while (sample < DATA_PICS - 1 &&
		       strcmp(own, strrchr(data_pics[sample], '/') ? "b.jpg" : data_pics[sample]))
			sample++;
		if (sample == DATA_PICS - 1) /* cut at its beginning */
			assert_string_equal(own, data_pics[sample] + 10);
		seen[sample] = true;
		node = peer_lookup(p, dir, name, &attr);
		assert_int_equal(d->ino, node);
		assert_int_equal(data_pic_bytes(sample), attr.size);
		slot_fh = peer_open(p, node, false);
		assert_int_equal(0, peer_read(p, node, slot_fh, 0, 4096));
		assert_int_equal(attr.size, p->len);
		for (size_t i = 0; i < p->len; i++)
			assert_int_equal(data_byte(false, sample, i), p->reply[i]);
		peer_release(p, node, slot_fh, false);
		name[8]++; /* the same file of another slot */
		assert_int_equal(0, peer_lookup(p, dir, name, NULL));
		slots++;
	}
	assert_int_equal(4, slots); /* 2 steps of ceil(3 / 2) each: 5 samples over 2 ranks, and padding */
	assert_true(seen[0] + seen[1] + seen[2] + seen[3] + seen[4] >= 2);
	peer_release(p, dir, fh, true);
}

static uint64_t ids_of(struct peer *p, const char *folder, uint64_t *ids)
{
	char path[128];
	uint64_t node, fh, n;

	snprintf(path, sizeof(path), "%s/ids.npy", folder);
	node = peer_walk(p, path, NULL);
	fh = peer_open(p, node, false);
	assert_int_equal(0, peer_read(p, node, fh, 128, 8 * DATA_TEXTS));
	n = p->len / 8;
	memcpy(ids, p->reply, p->len);
	peer_release(p, node, fh, false);
	return n;
}

/* Both ranks' samples are the epoch's, each once; a rank's file has them in its order, and is asked for in few calls;
 * what comes next is asked for ahead, and nothing else is. */
static void test_samples(void **state)
{
	struct fixture *f = *state;
	struct peer *p = &f->p;
	uint64_t ids[2 * DATA_TEXTS], n = ids_of(p, PART, ids), node, fh, off;
	bool seen[DATA_TEXTS] = { false };
	struct fuse_attr attr;

	assert_int_equal(DATA_TEXTS / 2, n);
	n += ids_of(p, "data/data/text/gen-1/dp-1/epoch-0", ids + n);
	assert_int_equal(DATA_TEXTS, n);
	for (size_t i = 0; i < n; i++) {
		assert_in_range(ids[i], 0, DATA_TEXTS - 1);
		assert_false(seen[ids[i]]);
		seen[ids[i]] = true;
	}
	node = peer_walk(p, PART "/samples.bin", &attr);
	fh = peer_open(p, node, false);
	assert_int_equal(DATA_STRIDE * DATA_TEXTS / 2, attr.size);
	f->m.samples.calls = 0;
	for (off = 0; off < attr.size; off += p->len) {
		assert_int_equal(0, peer_read(p, node, fh, off, 32 << 10));
		for (size_t i = 0; i < p->len; i++) {
			uint64_t sample = ids[(off + i) / DATA_STRIDE], at = (off + i) % DATA_STRIDE;

			if (p->reply[i] != (at < data_text_bytes(sample) ? data_byte(true, sample, at) : 0))
				fail_msg("byte %llu", (unsigned long long)off + i);
		}
	}
	assert_in_range(f->m.samples.calls, 1, 8); /* of 38 */
	assert_in_range(f->m.samples.ahead_calls, 1, 8);
	memset(seen, 0, sizeof(seen));
	for (size_t i = 0; i < n; i++)
		seen[ids[i]] = i >= 3 && i < n / 2; /* what was read when it was asked for is not ahead */
	for (size_t i = 0; i < DATA_TEXTS; i++)
		assert_true(!f->m.samples.ahead[i] || seen[i]);
	assert_true(f->m.samples.ahead[ids[n / 2 - 1]]); /* up to the end, no further */
	f->m.samples.error = PTC_EPEER;
	assert_int_equal(EIO, peer_read(p, node, fh, 0, 4096)); /* a jump: asked for as it is */
	f->m.samples.error = 0;
	peer_release(p, node, fh, false);
}

/* One user's dead disk, all of whose samples are waited for: names and state are there for the others. */
static void test_data_hangs(void **state)
{
	static const char *const parts[] = { "gen-1/dp-0", "gen-1/dp-1", "gen-2/dp-0", "gen-2/dp-1" };
	struct fixture *f = *state;
	struct peer *p = &f->p;
	uint64_t nodes[4], fhs[4], node, fh, pics = peer_walk(p, PICS "/files", NULL);
	int64_t began;
	char path[128];

	for (size_t i = 0; i < PTC_ARRAY_LEN(parts); i++) {
		snprintf(path, sizeof(path), "data/data/text/%s/epoch-0/samples.bin", parts[i]);
		nodes[i] = peer_walk(p, path, NULL);
		fhs[i] = peer_open(p, nodes[i], false);
		assert_int_equal(0, peer_read(p, nodes[i], fhs[i], 0, 64 << 10));
	}
	f->m.samples.hung = true;
	for (size_t i = 0; i < PTC_ARRAY_LEN(parts); i++)
		for (uint64_t off = 64 << 10; off < 512 << 10; off += 64 << 10)
			peer_send_read(p, nodes[i], fhs[i], off, 64 << 10); /* in order: through the cache, and ahead */
	for (int i = 0; i < 8; i++)
		peer_send(p, FUSE_LOOKUP, pics, "000000000-a.jpg", 16, NULL, 0);
	usleep(50 * 1000); /* so that many hang: how many can is not said, and none comes back */
	began = ptc_sys_now_ns();
	node = peer_walk(p, SNAP "/model.safetensors", NULL);
	fh = peer_open(p, node, false);
	assert_int_equal(0, peer_read(p, node, fh, 1 << 20, 4096));
	assert_in_range(ptc_sys_now_ns() - began, 0, INT64_C(1500) * 1000000);
	peer_release(p, node, fh, false);
	f->m.samples.hung = false;
}

static void test_tree(void **state)
{
	struct fixture *f = *state;
	struct peer *p = &f->p;
	static const char *const there[] = { "job/generation.json",
					     "job/state/latest",
					     SNAP "/optimizer.safetensors",
					     SNAP "/tensors/a.npy",
					     SNAP "/tensors/a:exp.npy",
					     SNAP "/tensors/b.npy",
					     SNAP "/tensors/c%2Fd.npy",
					     SNAP "/gen-1/ranks/0.safetensors",
					     SNAP "/gen-1/ranks/1.safetensors",
					     "empty/state" };
	static const char *const missing[] = { "nojob",
					       "job/nothing",
					       "job/state/snap-1-step-8",
					       "job/state/snap-01-step-7",
					       SNAP "/model",
					       SNAP "/tensors/c%2fd.npy",
					       SNAP "/tensors/a:exp",
					       SNAP "/tensors/.npy",
					       SNAP "/tensors/a:none.npy",
					       SNAP "/gen-1/ranks/2.safetensors",
					       SNAP "/gen-1/ranks/00.safetensors",
					       SNAP "/gen-1/tensors",
					       SNAP "/gen-1/model.safetensors",
					       SNAP "/gen-01",
					       SNAP "/gen-2",
					       SNAP "/gen-0",
					       SNAP "/ranks",
					       "empty/generation.json",
					       "empty/state/latest",
					       "empty/state/snap-0-step-0" };

	for (size_t i = 0; i < PTC_ARRAY_LEN(there); i++)
		if (!peer_walk(p, there[i], NULL))
			fail_msg("%s: %s", there[i], strerror(p->error));
	for (size_t i = 0; i < PTC_ARRAY_LEN(missing); i++) {
		if (peer_walk(p, missing[i], NULL))
			fail_msg("%s is there", missing[i]);
		assert_int_equal(ENOENT, p->error);
	}
}

static void forget(struct peer *p, uint64_t node)
{
	struct fuse_forget_in in = { .nlookup = 1 };

	peer_send(p, FUSE_FORGET, node, &in, sizeof(in), NULL, 0);
}

/* Somebody else's job is not there, unless he has its directory in use: then it must not be taken away from under him.
 */
static void test_other_user(void **state)
{
	struct fixture *f = *state;
	struct peer *p = &f->p;
	uint64_t job;

	p->uid = 1001;
	assert_int_equal(0, peer_walk(p, "job", NULL));
	assert_int_equal(ENOENT, p->error);
	assert_int_not_equal(0, peer_walk(p, "empty", NULL));
	p->uid = 1000;
	job = peer_walk(p, "job", NULL);
	assert_int_not_equal(0, job);
	p->uid = 1001;
	assert_int_equal(job, peer_walk(p, "job", NULL));
	forget(p, job);
	forget(p, job);
	for (int i = 0; i < 1000 && (job = peer_walk(p, "job", NULL));
	     i++) { /* nobody answers a forget: another thread may not be done */
		forget(p, job);
		usleep(1000);
	}
	assert_int_equal(0, job);
	assert_int_equal(ENOENT, p->error);
}

static void test_lists(void **state)
{
	struct fixture *f = *state;
	struct peer *p = &f->p;
	uint64_t node = peer_walk(p, SNAP "/tensors", NULL), fh = peer_open(p, node, true);
	struct fuse_read_in in = { .fh = fh, .size = 128 };
	size_t wanted;

	assert_int_not_equal(0, fh);
	assert_int_equal(2 + 6, list(p, node, fh, "a:exp.npy", &wanted));
	assert_int_equal(1, wanted);
	assert_int_equal(0, peer_release(p, node, fh, true));
	assert_int_equal(EBADF, peer_call(p, FUSE_READDIR, node, &in, sizeof(in), NULL, 0));
}

static size_t listed_to(struct peer *p, uint32_t uid, uint32_t gid, uint32_t pid)
{
	uint64_t fh;
	size_t wanted;

	p->uid = uid;
	p->gid = gid;
	p->pid = pid;
	fh = peer_open(p, FUSE_ROOT_ID, true);
	list(p, FUSE_ROOT_ID, fh, "job", &wanted);
	peer_release(p, FUSE_ROOT_ID, fh, true);
	p->uid = p->gid = p->pid = 0;
	return wanted;
}

/* A job shared with a group: the kernel is told which, and names are listed to its members, as far as they are known.
 */
static void test_group(void **state)
{
	struct fixture *f = *state;
	struct peer *p = &f->p;
	static const char *const files[] = { SNAP "/model.safetensors", SNAP "/tensors/b.npy", "job/generation.json" };
	static const char *const dirs[] = { "job", "job/state", SNAP, SNAP "/gen-1/ranks" };
	int64_t end_ns = ptc_sys_now_ns() + 5000000000;
	struct fuse_attr attr;

	assert_int_equal(0, listed_to(p, 1002, 500, 0));
	f->m.shared = true;
	while (!listed_to(p, 1002, 500, 0) && ptc_sys_now_ns() < end_ns)
		; /* as long as the list of jobs is believed */
	for (size_t i = 0; i < PTC_ARRAY_LEN(files); i++) {
		assert_int_not_equal(0, peer_walk(p, files[i], &attr));
		assert_int_equal(S_IFREG | 0440, attr.mode);
		assert_int_equal(500, attr.gid);
	}
	for (size_t i = 0; i < PTC_ARRAY_LEN(dirs); i++) {
		assert_int_not_equal(0, peer_walk(p, dirs[i], &attr));
		assert_int_equal(S_IFDIR | 0550, attr.mode);
		assert_int_equal(500, attr.gid);
	}
	peer_walk(p, "empty", &attr);
	assert_int_equal(S_IFDIR | 0500, attr.mode);
	assert_int_equal(1, listed_to(p, 0, 0, 0));
	assert_int_equal(1, listed_to(p, 1000, 0, 0));
	assert_int_equal(1, listed_to(p, 1002, 500, 0));
	assert_int_equal(0, listed_to(p, 1002, 50, (uint32_t)getpid()));
	assert_int_equal(0, listed_to(p, 1002, 50, UINT32_MAX));
}

static void test_changes_are_refused(void **state)
{
	struct fixture *f = *state;
	struct peer *p = &f->p;
	uint64_t node = peer_walk(p, SNAP "/model.safetensors", NULL);
	uint8_t zeros[256] = { 0 };
	struct fuse_open_in open_in = { .flags = O_RDWR };
	static const struct {
		uint32_t opcode;
		size_t len;
	} calls[] = { { FUSE_SETATTR, sizeof(struct fuse_setattr_in) },
		      { FUSE_WRITE, sizeof(struct fuse_write_in) },
		      { FUSE_MKNOD, sizeof(struct fuse_mknod_in) },
		      { FUSE_MKDIR, sizeof(struct fuse_mkdir_in) },
		      { FUSE_CREATE, sizeof(struct fuse_create_in) },
		      { FUSE_UNLINK, 0 },
		      { FUSE_RMDIR, 0 },
		      { FUSE_RENAME, sizeof(struct fuse_rename_in) },
		      { FUSE_LINK, sizeof(struct fuse_link_in) },
		      { FUSE_SYMLINK, 0 },
		      { FUSE_FALLOCATE, sizeof(struct fuse_fallocate_in) } };

	assert_int_equal(EROFS, peer_call(p, FUSE_OPEN, node, &open_in, sizeof(open_in), NULL, 0));
	for (size_t i = 0; i < PTC_ARRAY_LEN(calls); i++)
		if (peer_call(p, calls[i].opcode, node, zeros, calls[i].len, "a\0b", 4) != EROFS)
			fail_msg("opcode %u: %s", calls[i].opcode, strerror(p->error));
}

static void test_hung_source(void **state)
{
	struct fixture *f = *state;
	struct peer *p = &f->p;
	uint64_t node = peer_walk(p, SNAP "/model.safetensors", NULL), fh = peer_open(p, node, false), waiting, killed;
	struct fuse_interrupt_in interrupt;
	struct fuse_getattr_in getattr = { 0 };
	int64_t began = ptc_sys_now_ns();

	memory_hang(&f->m, true);
	waiting = peer_send_read(p, node, fh, 1 << 20, 65536);
	killed = peer_send_read(p, node, fh, 2 << 20, 65536);
	assert_int_equal(0, peer_call(p, FUSE_GETATTR, node, &getattr, sizeof(getattr), NULL, 0));
	interrupt.unique = killed;
	peer_send(p, FUSE_INTERRUPT, 0, &interrupt, sizeof(interrupt), NULL, 0);
	assert_int_equal(killed, peer_receive(p, 400)); /* at once: its caller is gone */
	assert_int_equal(EINTR, p->error);
	assert_int_equal(waiting, peer_receive(p, 4000));
	assert_int_equal(EIO, p->error);
	assert_int_equal(EIO, peer_read(p, node, fh, (1 << 20) + 4096, 4096)); /* the same again, at once */
	assert_in_range(ptc_sys_now_ns() - began, 950 * 1000000, 1900 * 1000000);
	assert_int_equal(0, peer_walk(p, "job/state/latest", NULL)); /* names, too */
	memory_hang(&f->m, false);
	while (peer_read(p, node, fh, 1 << 20, 65536)) /* once the calls that hung have ended */
		assert_int_equal(EIO, p->error);
	assert_int_equal(65536, p->len);
	peer_release(p, node, fh, false);
}

static _Atomic unsigned alarms;

static void on_alarm(int signal)
{
	(void)signal;
	alarms++;
}

/* Signals, such as a fuzzer's alarm, come while a reply is waited for: it is received all the same. */
static void test_signals(void **state)
{
	const struct itimerval often = { { 0, 2000 }, { 0, 2000 } }, never = { { 0, 0 }, { 0, 0 } };
	struct sigaction action = { .sa_handler = on_alarm }, before;
	struct fixture *f = *state;
	struct peer *p = &f->p;

	f->m.patience_ms = 100;
	memory_hang(&f->m, true);
	assert_int_equal(0, sigaction(SIGALRM, &action, &before));
	assert_int_equal(0, setitimer(ITIMER_REAL, &often, NULL));
	assert_int_equal(0, peer_lookup(p, FUSE_ROOT_ID, "job", NULL));
	setitimer(ITIMER_REAL, &never, NULL);
	sigaction(SIGALRM, &before, NULL);
	assert_int_equal(EIO, p->error);
	assert_int_not_equal(0, alarms);
	memory_hang(&f->m, false);
}

static void test_stop_while_hung(void **state)
{
	struct fixture *f = *state;
	struct peer *p = &f->p;
	uint64_t node = peer_walk(p, SNAP "/model.safetensors", NULL), fh = peer_open(p, node, false);

	f->m.patience_ms = 1000;
	memory_hang(&f->m, true);
	for (int i = 0; i < 20; i++)
		peer_send_read(p, node, fh, (uint64_t)i << 17, 65536);
	peer_send(p, FUSE_LOOKUP, FUSE_ROOT_ID, "job", 4, NULL, 0);
	/* teardown stops it and looks for leaks */
}

static void test_errors(void **state)
{
	struct fixture *f = *state;
	struct peer *p = &f->p;
	uint64_t node = peer_walk(p, SNAP "/model.safetensors", NULL), fh = peer_open(p, node, false);

	f->m.error = PTC_EPEER;
	assert_int_equal(EIO, peer_read(p, node, fh, 1 << 20, 4096));
	f->m.error = 0;
	assert_int_equal(0, peer_read(p, node, fh, 1 << 20, 4096)); /* nothing of the failure was kept */
	peer_release(p, node, fh, false);
}

/* The job goes on: an open file keeps its snapshot, names of the old one end, nothing aliases. */
static void test_replaced(void **state)
{
	struct fixture *f = *state;
	struct peer *p = &f->p;
	struct fuse_attr was;
	uint64_t node = peer_walk(p, SNAP "/model.safetensors", &was), fh = peer_open(p, node, false);
	uint64_t rank = peer_walk(p, SNAP "/gen-1/ranks/0.safetensors", &was), again;
	uint64_t ranks = peer_walk(p, SNAP "/gen-1/ranks", NULL);

	f->m.generation = 2; /* another configuration over the same snapshot */
	assert_int_not_equal(0, walk_until_other(p, SNAP "/gen-2/ranks/0.safetensors", rank));
	assert_int_equal(0, peer_walk(p, SNAP "/gen-1/ranks/0.safetensors", NULL));
	assert_int_equal(0, peer_open(p, ranks, true)); /* it does not look empty */
	assert_int_equal(ENOENT, p->error);
	assert_int_equal(0, peer_open(p, rank, false));
	assert_int_equal(ESTALE, p->error);
	assert_int_equal(node, peer_walk(p, SNAP "/model.safetensors", NULL));
	f->m.generation = 3;
	f->m.snapshot = 2;
	again = walk_until_other(p, "job/state/snap-2-step-7/model.safetensors", 0);
	assert_int_not_equal(0, again);
	assert_int_not_equal(node, again);
	assert_int_equal(0, peer_read(p, node, fh, 1 << 20, 4096));
	peer_release(p, node, fh, false);
	while (f->m.states > 1) /* what was known of the old one goes, though the kernel has names of it */
		assert_int_not_equal(0, peer_walk(p, "job/state/snap-2-step-7", NULL));
	assert_int_equal(0, peer_open(p, node, false));
	assert_int_equal(ESTALE, p->error);
	f->m.generation = 4; /* the job goes back to it */
	f->m.snapshot = 1;
	assert_int_equal(node, walk_until_other(p, SNAP "/model.safetensors", 0));
	fh = peer_open(p, node, false);
	assert_int_not_equal(0, fh);
	assert_int_equal(0, peer_read(p, node, fh, 1 << 20, 4096));
	peer_release(p, node, fh, false);
}

/* More reads at once than memory has room for: all are answered, and memory stays what it may be. */
static void test_bounded_memory(void **state)
{
	struct fixture *f = *state;
	struct peer *p = &f->p;
	uint64_t nodes[4], fhs[4], before, replies = 0, sent = 0;
	static const char *const files[] = { "/model.safetensors", "/optimizer.safetensors", "/tensors/a.npy",
					     "/tensors/a:exp.npy" };
	char path[128];

	for (int i = 0; i < 4; i++) {
		snprintf(path, sizeof(path), SNAP "%s", files[i]);
		nodes[i] = peer_walk(p, path, NULL);
		fhs[i] = peer_open(p, nodes[i], false);
		assert_int_not_equal(0, fhs[i]);
	}
	before = ptc_alloc_bytes();
	memory_hang(&f->m, true);
	for (int i = 0; i < 4; i++)
		for (uint64_t off = 0; off < A_BYTES; off += 512 << 10, sent++)
			peer_send_read(p, nodes[i], fhs[i], off, 512 << 10);
	memory_hang(&f->m, false);
	while (replies < sent) {
		assert_int_not_equal(0, peer_receive(p, 5000));
		assert_int_equal(0, p->error);
		replies++;
	}
	assert_in_range(ptc_alloc_bytes() - before, 0, CACHE + (1 << 20));
	for (int i = 0; i < 4; i++)
		peer_release(p, nodes[i], fhs[i], false);
}

/* Every allocation fails in turn: an error or an answer, and the right bytes where there are some. */
static void test_no_memory(void **state)
{
	struct fixture *f = *state;
	struct peer *p = &f->p;

	for (uint64_t at = 1; at < 60; at++) {
		uint64_t node, fh = 0;

		ptc_alloc_fail_at(at);
		node = peer_walk(p, SNAP "/tensors/a:exp.npy", NULL);
		fh = node ? peer_open(p, node, false) : 0;
		if (fh && !peer_read(p, node, fh, 128 + (at << 12), 4096))
			check_bytes(f, p->reply, at << 12, p->len, 1);
		ptc_alloc_fail_at(0);
		if (fh)
			peer_release(p, node, fh, false);
	}
	assert_int_not_equal(0, peer_walk(p, SNAP "/tensors/a:exp.npy", NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_reads, setup, teardown),
		cmocka_unit_test_setup_teardown(test_beginnings, setup, teardown),
		cmocka_unit_test_setup_teardown(test_reads_ahead, setup, teardown),
		cmocka_unit_test_setup_teardown(test_times, setup, teardown),
		cmocka_unit_test_setup_teardown(test_believed, setup, teardown),
		cmocka_unit_test_setup_teardown(test_small, setup, teardown),
		cmocka_unit_test_setup_teardown(test_listed, setup, teardown),
		cmocka_unit_test_setup_teardown(test_small_damaged, setup, teardown),
		cmocka_unit_test_setup_teardown(test_small_slow, setup, teardown),
		cmocka_unit_test_setup_teardown(test_source_away, setup, teardown),
		cmocka_unit_test_setup_teardown(test_opened_as_lease_ends, setup, teardown),
		cmocka_unit_test_setup_teardown(test_statfs, setup, teardown),
		cmocka_unit_test_setup_teardown(test_data_names, setup, teardown),
		cmocka_unit_test_setup_teardown(test_slots, setup, teardown),
		cmocka_unit_test_setup_teardown(test_samples, setup, teardown),
		cmocka_unit_test_setup_teardown(test_data_hangs, setup, teardown),
		cmocka_unit_test_setup_teardown(test_tree, setup, teardown),
		cmocka_unit_test_setup_teardown(test_other_user, setup, teardown),
		cmocka_unit_test_setup_teardown(test_lists, setup, teardown),
		cmocka_unit_test_setup_teardown(test_group, setup, teardown),
		cmocka_unit_test_setup_teardown(test_changes_are_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(test_hung_source, setup_hasty, teardown),
		cmocka_unit_test_setup_teardown(test_signals, setup, teardown),
		cmocka_unit_test_setup_teardown(test_stop_while_hung, setup, teardown),
		cmocka_unit_test_setup_teardown(test_errors, setup, teardown),
		cmocka_unit_test_setup_teardown(test_replaced, setup, teardown),
		cmocka_unit_test_setup_teardown(test_bounded_memory, setup, teardown),
		cmocka_unit_test_setup_teardown(test_no_memory, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
