/* SPDX-License-Identifier: Apache-2.0 */
/* Looks at a file of LMDB before LMDB maps it. LMDB 0.9 believes its own pages: a bit that has flipped in one of them
 * sends it to memory that is not there.
 *
 * Happy path: both meta pages are read, and then the two trees of the newer one, page by page: the list of free pages
 * and the records. Each page is where its number says, has the flags of its place, and its nodes fill it exactly; keys
 * ascend; each page of the file is used once. A page is read once, into memory of its level, so a walk ends, and takes
 * (levels + 1) pages of memory and one bit for each page of the file.
 *
 * The tree of the older meta page is not walked. LMDB does not follow it, and a kill in the middle of a commit may
 * leave that meta page half written.
 *
 * Not read: the bytes of values, which have checksums of their own; and where the kind says so, the 16 bytes before a
 * value of whole pages, because that is one read from a disk for each. LMDB looks at them only to delete the value.
 *
 * Failure modes: PTC_ECORRUPT, which names the file, the page and the reason; PTC_EVERSION: another LMDB wrote the
 * file; the rest: it cannot be read. */
#include "daemon/store/chunks/lmdb_check.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <lmdb.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The format of LMDB 0.9 on machines with 64 bits, little-endian. */
#define MAGIC       0xBEEFC0DEu
#define VERSION     1u
#define NONE        UINT64_MAX /* the root of an empty tree */
#define FIRST_PAGE  2u         /* behind the two meta pages */
#define PAGE_MIN    256u
#define PAGE_MAX    32768u
#define MAX_LEVELS  32u /* of LMDB's cursors */
#define KEY_MAX     511u
#define SPARE_PAGES 16384u /* that may be counted at the end of the file, and are not there, or are used by nothing */
#define IDS_AT_ONCE 512u
#define P_BRANCH    0x01
#define P_LEAF      0x02
#define P_OVERFLOW  0x04
#define P_META      0x08
#define F_BIGDATA   0x01

struct head {
	uint64_t pgno;
	uint16_t pad, flags;
	union {
		struct {
			uint16_t lower, upper; /* of the gap between the list of nodes and the nodes */
		};
		uint32_t pages; /* of a value */
	};
};
struct db {
	uint32_t pad; /* of the free list: the size of a page */
	uint16_t flags, depth;
	uint64_t branches, leaves, overflows, entries, root;
};
struct meta {
	struct head head;
	uint32_t magic, version;
	uint64_t address, map_bytes;
	struct db free, main;
	uint64_t last, txnid;
};
struct node {
	uint16_t lo, hi, flags, ksize; /* leaf: lo and hi are the value's size; branch: lo, hi and flags a page */
};
_Static_assert(sizeof(struct head) == 16 && sizeof(struct meta) == 152 && sizeof(struct node) == 8, "LMDB's format");

struct file {
	const char *path;
	struct ptc_lmdb_kind kind;
	int fd;
	uint32_t page;
	uint64_t bytes, file_pages, last, txnid, highest;
	uint64_t *seen; /* a bit for each page to last */
	struct ptc_error *err;
};

struct tree {
	struct file *f;
	const struct db *db;
	bool records, numbers;
	uint64_t entries;
	uint8_t *pages; /* one for each level */
	uint8_t used[PAGE_MAX / 2];
};

struct key {
	const uint8_t *p; /* NULL: no bound */
	size_t len;
};

static int bad(struct file *f, uint64_t pgno, const char *why)
{
	return ptc_error_set(f->err, PTC_ECORRUPT, "%s is damaged: page %" PRIu64 ": %s", f->path, pgno, why);
}

/* Bytes of the file; what is behind its end counts as damage of that page. */
static int read_at(struct file *f, void *to, size_t n, uint64_t off)
{
	ssize_t got;

	do
		got = pread(f->fd, to, n, (off_t)off);
	while (got < 0 && errno == EINTR);
	if (got < 0)
		return ptc_error_errno(f->err, errno, "cannot read %s", f->path);
	return (size_t)got == n ? 0 : bad(f, f->page ? off / f->page : 0, "the file ends before it");
}

/* Notes that these pages are used. `written`: they must lie in the file. */
static int use(struct file *f, uint64_t pgno, uint64_t n, bool written)
{
	if (pgno < FIRST_PAGE || pgno > f->last || n > f->last - pgno + 1)
		return bad(f, pgno, "it is used, but lies outside of the pages that are in use");
	if (written && pgno + n > f->file_pages)
		return bad(f, pgno, "it is used, but lies behind the end of the file");
	f->highest = PTC_MAX(f->highest, pgno + n - 1);
	for (uint64_t i = pgno; i < pgno + n;) {
		uint64_t in = PTC_MIN(64 - i % 64, pgno + n - i);
		uint64_t mask = (in == 64 ? UINT64_MAX : (UINT64_C(1) << in) - 1) << i % 64;

		if (f->seen[i / 64] & mask)
			return bad(f, i, "it is used twice");
		f->seen[i / 64] |= mask;
		i += in;
	}
	return 0;
}

static uint64_t number(const uint8_t *p)
{
	uint64_t v;

	memcpy(&v, p, sizeof v);
	return v;
}

static int compare(const struct tree *t, struct key a, struct key b)
{
	int c;

	if (t->numbers)
		return (number(a.p) > number(b.p)) - (number(a.p) < number(b.p));
	c = memcmp(a.p, b.p, PTC_MIN(a.len, b.len));
	return c ? c : (a.len > b.len) - (a.len < b.len);
}

/* ---- values ---- */

/* Page numbers of a list: descending, each once. */
static int free_ids(struct file *f, uint64_t pgno, const uint8_t *p, size_t n, uint64_t *before)
{
	int rc = 0;

	for (size_t i = 0; i < n && !rc; i++) {
		uint64_t id = number(p + i * sizeof id);

		if (id >= *before)
			return bad(f, pgno, "its list of free pages is not in order");
		*before = id;
		rc = use(f, id, 1, false);
	}
	return rc;
}

/* A record of the free list: a count, and so many page numbers. at: where the value is in the file, or in memory. */
static int free_record(struct file *f, uint64_t pgno, const uint8_t *inside, uint64_t at, uint32_t size)
{
	uint64_t ids[IDS_AT_ONCE], before = NONE, count = 0;
	int rc = 0;

	if (size < sizeof count || size % sizeof count)
		return bad(f, pgno, "its list of free pages has no such size");
	if (inside)
		count = number(inside);
	else
		rc = read_at(f, &count, sizeof count, at);
	if (!rc && count > size / sizeof count - 1)
		return bad(f, pgno, "its list of free pages is longer than its value");
	if (inside)
		return free_ids(f, pgno, inside + sizeof count, (size_t)count, &before);
	for (uint64_t done = 0; done < count && !rc;) {
		size_t n = (size_t)PTC_MIN(count - done, (uint64_t)IDS_AT_ONCE);

		rc = read_at(f, ids, n * sizeof ids[0], at + (1 + done) * sizeof ids[0]);
		if (!rc)
			rc = free_ids(f, pgno, (const uint8_t *)ids, n, &before);
		done += n;
	}
	return rc;
}

/* A value in pages of its own. */
static int big_value(struct tree *t, uint64_t of, const uint8_t *data, uint32_t size)
{
	struct file *f = t->f;
	uint64_t pgno = number(data), pages = (sizeof(struct head) - 1 + (uint64_t)size) / f->page + 1;
	struct head h;
	int rc;

	if (t->records && f->kind.skip_heads)
		return use(f, pgno, pages, true);
	if (pgno < FIRST_PAGE || pgno > f->last)
		return bad(f, of, "a value lies outside of the pages that are in use");
	rc = read_at(f, &h, sizeof h, pgno * f->page);
	if (rc)
		return rc;
	if (h.pgno != pgno || h.flags != P_OVERFLOW || h.pages < pages)
		return bad(f, pgno, "it does not begin as a value does");
	rc = use(f, pgno, h.pages, true);
	return rc || t->records ? rc : free_record(f, pgno, NULL, pgno * f->page + sizeof h, size);
}

static int leaf_value(struct tree *t, uint64_t pgno, const struct node *n, const uint8_t *key)
{
	uint32_t size = n->lo | (uint32_t)n->hi << 16, most = ((t->f->page - 16) / 2 & ~1u) - 2;

	t->entries++;
	if (!t->records && (!number(key) || number(key) > t->f->txnid))
		return bad(t->f, pgno, "a list of free pages is of no transaction");
	if (n->flags & F_BIGDATA)
		return big_value(t, pgno, key + n->ksize, size);
	if (sizeof *n + n->ksize + size > most)
		return bad(t->f, pgno, "it has a value that is too long for it");
	return t->records ? 0 : free_record(t->f, pgno, key + n->ksize, 0, size);
}

/* ---- pages ---- */

static size_t count_of(const uint8_t *page)
{
	struct head h;

	memcpy(&h, page, sizeof h);
	return (h.lower - sizeof h) / sizeof(uint16_t);
}

static struct node node_of(const uint8_t *page, size_t i, struct key *ret_key)
{
	struct node n;
	uint16_t at;

	memcpy(&at, page + sizeof(struct head) + i * sizeof at, sizeof at);
	memcpy(&n, page + at, sizeof n);
	*ret_key = (struct key){ page + at + sizeof n, n.ksize };
	return n;
}

static int check_head(struct tree *t, const uint8_t *page, uint64_t pgno, bool leaf)
{
	struct head h;

	memcpy(&h, page, sizeof h);
	if (h.pgno != pgno)
		return bad(t->f, pgno, "it says that it is another page");
	if (h.flags != (leaf ? P_LEAF : P_BRANCH))
		return bad(t->f, pgno, leaf ? "it is not a leaf" : "it is not a branch");
	if (h.lower < sizeof h || h.lower % 2 || h.lower > h.upper || h.upper > t->f->page)
		return bad(t->f, pgno, "its nodes have no such place");
	if (count_of(page) < (leaf || !t->records ? 1 : 2)) /* LMDB leaves branches of one in the free list */
		return bad(t->f, pgno, "it has too few nodes");
	return 0;
}

/* Each node lies in the page, no two overlap, and there is no gap between them. */
static int check_nodes(struct tree *t, const uint8_t *page, uint64_t pgno, bool leaf)
{
	size_t sum = 0, size, count = count_of(page);
	const uint32_t bytes = t->f->page;
	struct head h;

	memcpy(&h, page, sizeof h);
	memset(t->used, 0, bytes / 2);
	for (size_t i = 0; i < count; i++) {
		struct node n;
		uint16_t at;

		memcpy(&at, page + sizeof h + i * sizeof at, sizeof at);
		if (at < h.upper || at % 2 || at + sizeof n > bytes)
			return bad(t->f, pgno, "a node lies outside of its place");
		memcpy(&n, page + at, sizeof n);
		size = sizeof n + n.ksize;
		if (leaf && n.flags & ~F_BIGDATA)
			return bad(t->f, pgno, "a node has flags that are not used here");
		if (leaf)
			size += n.flags & F_BIGDATA ? sizeof(uint64_t) : n.lo | (size_t)n.hi << 16;
		size += size & 1;
		if (size > bytes - at || memchr(t->used + at / 2, 1, size / 2))
			return bad(t->f, pgno, "a node has no such size");
		memset(t->used + at / 2, 1, size / 2);
		sum += size;
	}
	return sum == bytes - h.upper ? 0 : bad(t->f, pgno, "its nodes do not fill it");
}

/* Keys ascend between the bounds of the branch above. The first of a branch is not used. */
static int check_keys(struct tree *t, const uint8_t *page, uint64_t pgno, bool leaf, const struct key bounds[2])
{
	struct key before = bounds[0], k;
	int least = leaf ? 0 : 1; /* the first key of a leaf may be the bound */

	for (size_t i = leaf ? 0 : 1; i < count_of(page); i++) {
		(void)node_of(page, i, &k);
		if (t->numbers ? k.len != sizeof(uint64_t) : !k.len || k.len > KEY_MAX)
			return bad(t->f, pgno, "a key has no such length");
		if (before.p && compare(t, k, before) < least)
			return bad(t->f, pgno, "its keys are not in order");
		before = k;
		least = 1;
	}
	if (before.p && bounds[1].p && compare(t, before, bounds[1]) >= 0)
		return bad(t->f, pgno, "its keys are not in order");
	return 0;
}

static int walk(struct tree *t, uint64_t pgno, uint32_t level, const struct key bounds[2])
{
	uint8_t *page = t->pages + (size_t)level * t->f->page;
	const bool leaf = level + 1u == t->db->depth;
	int rc = use(t->f, pgno, 1, true);

	if (!rc)
		rc = read_at(t->f, page, t->f->page, pgno * t->f->page);
	if (!rc)
		rc = check_head(t, page, pgno, leaf);
	if (!rc)
		rc = check_nodes(t, page, pgno, leaf);
	if (!rc)
		rc = check_keys(t, page, pgno, leaf, bounds);
	for (size_t i = 0, n = rc ? 0 : count_of(page); i < n && !rc; i++) {
		struct key below[2] = { bounds[0], bounds[1] }, k;
		struct node node = node_of(page, i, &k);

		if (leaf) {
			rc = leaf_value(t, pgno, &node, k.p);
			continue;
		}
		if (i > 0)
			below[0] = k;
		if (i + 1 < n)
			(void)node_of(page, i + 1, &below[1]);
		rc = walk(t, node.lo | (uint64_t)node.hi << 16 | (uint64_t)node.flags << 32, level + 1, below);
	}
	return rc;
}

/* ---- the file ---- */

static int walk_tree(struct file *f, const struct db *db, bool records, uint64_t meta)
{
	const struct key bounds[2] = { 0 };
	struct tree *t;
	int rc;

	if (db->root == NONE)
		return db->depth || db->entries ? bad(f, meta, "it has a tree without a root") : 0;
	if (!db->depth || db->depth > MAX_LEVELS)
		return bad(f, meta, "it has a tree of no such depth");
	t = ptc_calloc(1, sizeof *t);
	if (!t)
		return ptc_nomem(f->err);
	t->f = f;
	t->db = db;
	t->records = records;
	t->numbers = !records || f->kind.numbers;
	t->pages = ptc_malloc((size_t)db->depth * f->page);
	rc = t->pages ? walk(t, db->root, 0, bounds) : ptc_nomem(f->err);
	if (!rc && t->entries != db->entries)
		rc = bad(f, meta, "it counts other records than there are");
	ptc_free(t->pages);
	ptc_free(t);
	return rc;
}

static int check_meta(struct file *f, const struct meta *m, uint64_t pgno)
{
	if (m->head.pgno != pgno || m->head.flags != P_META || m->magic != MAGIC || m->version != VERSION)
		return bad(f, pgno, "it does not begin as a page of LMDB's head");
	if (m->free.pad != f->page || m->free.flags != MDB_INTEGERKEY)
		return bad(f, pgno, "it says another size of pages, or unknown flags");
	if (m->txnid && m->txnid % 2 != pgno)
		return bad(f, pgno, "it has the number of another transaction");
	return 0;
}

static int read_metas(struct file *f, struct meta m[2])
{
	int rc = read_at(f, &m[0], sizeof m[0], 0);

	if (rc)
		return rc;
	f->page = m[0].free.pad;
	if (m[0].magic == MAGIC && m[0].version != VERSION) { /* one flipped bit, or another LMDB, which has two */
		f->page = (uint32_t)sysconf(_SC_PAGESIZE);
		rc = read_at(f, &m[1], sizeof m[1], f->page);
		return rc ? rc
		       : m[1].version == m[0].version
			       ? ptc_error_set(f->err, PTC_EVERSION, "another LMDB wrote %s", f->path)
			       : bad(f, 0, "it does not begin as a page of LMDB's head");
	}
	if (f->page < PAGE_MIN || f->page > PAGE_MAX || f->page & (f->page - 1))
		return bad(f, 0, "it says another size of pages");
	rc = read_at(f, &m[1], sizeof m[1], f->page);
	for (uint64_t i = 0; i < 2 && !rc; i++)
		rc = check_meta(f, &m[i], i);
	return rc;
}

static int check_file(struct file *f)
{
	const uint16_t numbers = f->kind.numbers ? MDB_INTEGERKEY : 0;
	struct meta m[2];
	uint64_t at;
	int rc = read_metas(f, m);

	if (rc)
		return rc;
	f->file_pages = f->bytes / f->page;
	at = m[1].txnid > m[0].txnid; /* as LMDB chooses */
	/* LMDB notes with its first commit that keys are numbers */
	if (m[at].main.flags != numbers && (m[at].main.flags || m[at].main.root != NONE))
		return bad(f, at, "it has unknown flags");
	if (m[at].txnid && m[at].txnid != m[!at].txnid + 1)
		return bad(f, at, "the other page of LMDB's head is not of the transaction before");
	f->txnid = m[at].txnid;
	f->highest = FIRST_PAGE - 1;
	f->last = m[at].last;
	if (f->last < FIRST_PAGE - 1 || f->last > f->file_pages + SPARE_PAGES)
		return bad(f, at, "it counts other pages than there are");
	f->seen = ptc_calloc((size_t)(f->last / 64 + 1), sizeof f->seen[0]);
	if (!f->seen)
		return ptc_nomem(f->err);
	rc = walk_tree(f, &m[at].free, false, at);
	if (!rc)
		rc = walk_tree(f, &m[at].main, true, at);
	if (!rc && f->last - f->highest > SPARE_PAGES)
		rc = bad(f, at, "it counts other pages than there are");
	ptc_free(f->seen);
	return rc;
}

int ptc_lmdb_check(const char *path, struct ptc_lmdb_kind kind, struct ptc_error *err)
{
	struct file f = { .path = path, .kind = kind, .err = err };
	ptc_auto_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	struct stat st;

	if (fd < 0)
		return errno == ENOENT ? 0 : ptc_error_errno(err, errno, "cannot open %s", path);
	if (fstat(fd, &st) != 0)
		return ptc_error_errno(err, errno, "cannot read %s", path);
	if (!S_ISREG(st.st_mode))
		return ptc_error_set(err, PTC_EINVAL, "%s is not a regular file", path);
	if (!st.st_size)
		return 0;
	f.fd = fd;
	f.bytes = (uint64_t)st.st_size;
	return check_file(&f);
}
