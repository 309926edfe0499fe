/* SPDX-License-Identifier: Apache-2.0 */
/* Power cuts. Small sessions run on files whose syncs are ours: this program defines msync, fsync, fdatasync and
 * pwrite, and LMDB and the store call them. At each sync, before and after, the power is cut: the files are written out
 * as a disk could then hold them, a child opens the store on that image and compares.
 *
 * The disk: what was synced is there. Of what was written since, through the map or not, each sector of 512 bytes is
 * old or new, by a seed that is printed; so is a file's length. A file that was never synced may be missing. Names are
 * otherwise as they were, which is what file systems with a journal do once a file in the directory was synced.
 * Everything happens on tmpfs, which is taken for a disk here. */
#include "base/check.h"
#include "base/test_seed.h"
#include "daemon/store/test_store_place.h"

#include <dirent.h>
#include <fcntl.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>

#define CEILING (64u << 20)
#define ROWS    1300
#define COLS    1000
#define SECTOR  512u
#define FILES   32
#define EXT4    0xef53

static const int64_t shape[] = { ROWS, COLS };
static uint8_t *x;
static const struct ptc_store_box first_needs[] = { { 0, { 2, { 0, 0 }, { ROWS, COLS } } },
						    { 1, { 2, { 0, 0 }, { 3, 7 } } } };
static const struct ptc_store_box second_needs[] = { { 0, { 2, { 300, 0 }, { 1000, 400 } } },
						     { 1, { 2, { 0, 0 }, { 3, 9 } } } };
/* Of a node that also has copies: a part more of an item, and an item of another rank. */
static const struct ptc_store_box copy_needs[] = { { 0, { 2, { 0, 0 }, { ROWS, COLS } } },
						   { 1, { 2, { 0, 0 }, { 3, 9 } } },
						   { 2, { 2, { 200, 100 }, { 300, 500 } } } };

/* What a session makes. from: the table out of which one is made; NONE_OF: of nothing. alias: the one that is one. */
enum { NONE_OF = -1 };
struct plan {
	void (*run)(struct ptc_store *s);
	const struct ptc_store_box *needs[4];
	size_t nneeds[4];
	int from[4], alias;
};
static const struct plan *plan;

/* What the session has been promised, and what it is in the middle of. */
enum state { NONE, WORKING, SEALED, DROPPING };
static struct {
	bool recording, created, deleting;
	int64_t fence, fence_next;
	struct ptc_table_key key[4];
	enum state table[4];
} now;

/* ---- the session -------------------------------------------------------------------------- */

static int fill(struct ptc_table *t, const struct ptc_store_boxes *m, struct ptc_error *err)
{
	uint32_t e[16];
	int rc = m->n <= 16 ? ptc_table_reserve(t, m->v, m->n, e, err) : PTC_EINTERNAL;

	for (size_t i = 0; i < m->n && !rc; i++) {
		uint8_t *buf = malloc((size_t)volume(&m->v[i].box));

		cut_out(buf, x, shape, &m->v[i].box);
		rc = ptc_table_write(t, m->v[i].item, &m->v[i].box, buf, err);
		if (!rc)
			rc = ptc_table_filled(t, e[i], err);
		if (!rc)
			rc = ptc_table_flush(t, err);
		free(buf);
	}
	return rc;
}

/* Makes table i, from wherever an earlier attempt left it. */
static int make(struct ptc_store *s, size_t i, struct ptc_error *err)
{
	const struct ptc_table_key *from = plan->from[i] == NONE_OF ? NULL : &now.key[plan->from[i]];
	struct ptc_table *t = NULL, *src = NULL;
	struct ptc_store_boxes m = { 0 };
	int64_t n;
	int rc = ptc_table_begin(s, &now.key[i], &t, err);

	if (!rc && !ptc_table_sealed(t)) {
		if (from)
			rc = ptc_table_open(s, from, &src, err);
		if (!rc)
			rc = ptc_table_derive(t, src, NULL, plan->needs[i], plan->nneeds[i], false, &m, &n, err);
		if (!rc)
			rc = fill(t, &m, err);
		if (!rc)
			rc = ptc_table_seal(t, err);
	}
	ptc_store_boxes_done(&m);
	ptc_table_unref(src);
	ptc_table_unref(t);
	return rc;
}

static void do_make(struct ptc_store *s, size_t i)
{
	now.table[i] = WORKING;
	ok(make(s, i, err));
	now.table[i] = SEALED;
}

/* Keeps tables [first, last]. */
static void do_keep(struct ptc_store *s, size_t first, size_t last)
{
	for (size_t i = 0; i < 4; i++)
		if ((i < first || i > last) && now.table[i] == SEALED)
			now.table[i] = DROPPING;
	ok(ptc_store_keep(s, JOB_A, &now.key[first], last - first + 1, err));
	for (size_t i = 0; i < 4; i++)
		if (now.table[i] == DROPPING)
			now.table[i] = NONE;
}

static void do_fence(struct ptc_store *s, int64_t fence)
{
	now.fence_next = fence;
	ok(ptc_store_fence(s, JOB_A, fence, err));
	now.fence = fence;
}

static struct ptc_store *open_in(const struct place *p, struct ptc_error *err)
{
	/* the smallest cushion, so that keep gives blocks back */
	struct ptc_store_opts o = {
		.meta_dir = p->meta, .chunk_dir = p->chunks, .chunk_ceiling = CEILING, .cushion_bytes = 1
	};
	struct ptc_store *s = NULL;

	return ptc_store_open(&o, &s, err) == 0 ? s : NULL;
}

static void switches(struct ptc_store *s)
{
	do_fence(s, 5);
	do_make(s, 0);
	now.table[1] = WORKING;
	ok(ptc_table_alias(s, &now.key[0], &now.key[1], err));
	now.table[1] = SEALED;
	do_keep(s, 1, 1);
	do_fence(s, 6);
	do_make(s, 2);
	do_keep(s, 2, 2); /* the first chunks are free ... */
	do_make(s, 3);    /* ... and used again */
	do_keep(s, 3, 3);
}

/* Table 0 is the record's, and 1 is named for copies once it is sealed, for its node has said so then. A snapshot
 * comes, 2, and its copies, 3: what was before goes when these are there. */
static void copies(struct ptc_store *s)
{
	do_fence(s, 5);
	do_make(s, 0);
	do_keep(s, 0, 0);
	do_make(s, 1);
	do_keep(s, 0, 1);
	do_make(s, 2);
	do_keep(s, 0, 2);
	do_make(s, 3);
	do_keep(s, 2, 3);
	do_keep(s, 3, 3);
}

static void session(const struct place *p)
{
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_store *s = open_in(p, &why);

	assert_non_null(s);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	now.created = true;
	plan->run(s);
	now.deleting = true;
	ok(ptc_store_job_delete(s, JOB_A, err));
	now.created = false;
	ptc_store_close(s);
}

/* ---- what must hold on an image; in a child ------------------------------------------------- */

#define need(cond, ...)                                                                                                \
	do {                                                                                                           \
		if (!(cond)) {                                                                                         \
			fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #cond);                                     \
			fprintf(stderr, __VA_ARGS__);                                                                  \
			fputs("\n", stderr);                                                                           \
			_exit(1);                                                                                      \
		}                                                                                                      \
	} while (0)

static void check_bytes(struct ptc_store *s, size_t table)
{
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_table *t;
	int64_t n;
	int rc = ptc_table_open(s, &now.key[table], &t, &why);

	need(rc == 0 || now.table[table] != SEALED, "table %zu was sealed: %s", table, why.text);
	if (rc)
		return;
	need(now.table[table] != NONE, "table %zu was dropped, or never begun", table);
	need(ptc_table_scrub(t, NULL, NULL, &n, &why) == 0, "table %zu: %s", table, why.text);
	for (size_t i = 0; i < plan->nneeds[table]; i++) {
		const struct ptc_store_box *b = &plan->needs[table][i];
		size_t size = (size_t)volume(&b->box);
		uint8_t *want = malloc(size), *got = malloc(size);

		cut_out(want, x, shape, &b->box);
		need(ptc_table_read(t, b->item, &b->box, got, &why) == 0, "table %zu: %s", table, why.text);
		need(memcmp(got, want, size) == 0, "table %zu item %u has other bytes", table, b->item);
		free(want);
		free(got);
	}
	ptc_table_unref(t);
}

static void each_job(void *arg, const char *uuid, uid_t uid, bool lost)
{
	need(!lost && strcmp(uuid, JOB_A) == 0, "job %s is lost", uuid);
	*(int *)arg += 1;
}

/* Old or new, whole; and what was going on can be finished. */
static void check_image(const struct place *p)
{
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_store *s = open_in(p, &why);
	int jobs = 0;

	need(s, "%s", why.text);
	need(ptc_store_jobs(s, each_job, &jobs, &why) == 0, "%s", why.text);
	need(jobs || !now.created || now.deleting, "the job is gone");
	if (jobs) {
		if (now.fence)
			need(ptc_store_fence(s, JOB_A, now.fence - 1, &why) == PTC_EFENCED, "an old token was taken");
		need(ptc_store_fence(s, JOB_A, now.fence_next, &why) == 0, "%s", why.text);
	}
	for (size_t i = 0; i < 4 && jobs && !now.deleting; i++)
		check_bytes(s, i);
	need(ptc_store_job_create(s, JOB_A, getuid(), &why) == 0, "%s", why.text);
	for (size_t i = 0; i < 4; i++)
		if (now.table[i] == WORKING && (int)i != plan->alias) {
			need(make(s, i, &why) == 0, "table %zu: %s", i, why.text);
			now.table[i] = SEALED;
			check_bytes(s, i);
		}
	need(ptc_store_job_delete(s, JOB_A, &why) == 0, "%s", why.text);
	ptc_store_close(s);
}

/* ---- the disk ---------------------------------------------------------------------------------- */

static struct file {
	char path[128]; /* below the place */
	ino_t inode;
	uint8_t *durable, *current;
	size_t size, current_size; /* of either */
	size_t end, current_end;   /* zeros from here on: the store allocates ahead */
	bool synced, seen;
} files[FILES];
static struct place live;
static unsigned seed, random_state, images, rounds = 1;

static unsigned chance(unsigned of)
{
	return (unsigned)rand_r(&random_state) / 7 % of;
}

static struct file *file_at(const char *path, ino_t inode)
{
	struct file *f = files;

	while (f < files + FILES && f->inode && f->inode != inode)
		f++;
	assert_true(f < files + FILES);
	f->inode = inode;
	snprintf(f->path, sizeof f->path, "%s", path); /* it may have been renamed */
	return f;
}

static void look_at(int dir, const char *name, const char *path)
{
	int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
	struct stat st;
	struct file *f;

	assert_int_equal(fstat(fd, &st), 0);
	f = file_at(path, st.st_ino);
	f->seen = true;
	f->current_size = (size_t)st.st_size;
	f->current_end = 0;
	for (off_t at = 0; (at = lseek(fd, at, SEEK_DATA)) >= 0 && (at = lseek(fd, at, SEEK_HOLE)) >= 0;)
		f->current_end = PTC_MIN((size_t)at, f->current_size);
	f->current = realloc(f->current, f->current_end + 1);
	assert_int_equal(pread(fd, f->current, f->current_end, 0), f->current_end);
	close(fd);
}

/* What the page cache holds: mapped writes too. */
static void look(const char *below)
{
	char path[128];
	DIR *d;
	struct dirent *e;

	snprintf(path, sizeof path, "%s%s", live.dir, below);
	d = opendir(path);
	assert_non_null(d);
	while ((e = readdir(d))) {
		if (e->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, "%.60s/%.60s", below, e->d_name);
		if (e->d_type == DT_DIR)
			look(path);
		else
			look_at(dirfd(d), e->d_name, path);
	}
	closedir(d);
}

static void look_all(void)
{
	for (struct file *f = files; f < files + FILES; f++)
		f->seen = false;
	look("");
}

static void make_parents(const struct place *p, const char *path)
{
	char dir[192];

	for (const char *slash = path; (slash = strchr(slash + 1, '/'));) {
		snprintf(dir, sizeof dir, "%s%.*s", p->dir, (int)PTC_MIN(slash - path, 100), path);
		mkdir(dir, 0700); /* may be there */
	}
}

/* The first `size` bytes of what the disk may hold; percent: how many of the sectors that differ are new. */
static uint8_t *mix(const struct file *f, size_t size, unsigned percent)
{
	uint8_t *mixed = calloc(size + 1, 1);

	assert_non_null(mixed);
	memcpy(mixed, f->current, PTC_MIN(size, f->current_end));
	for (size_t at = 0; at < size; at += SECTOR) {
		size_t n = PTC_MIN(size - at, SECTOR), kept = at < f->end ? PTC_MIN(f->end - at, n) : 0;

		if (kept && memcmp(mixed + at, f->durable + at, kept) == 0)
			continue;
		if (chance(100) < percent)
			continue;
		memset(mixed + at, 0, n);
		if (kept)
			memcpy(mixed + at, f->durable + at, kept);
	}
	return mixed;
}

static void write_image(const struct place *p, const struct file *f, unsigned percent)
{
	const size_t step = 64 << 10;
	size_t size = chance(100) < percent ? f->current_size : f->size;
	char path[192];
	uint8_t *mixed;
	size_t end;
	int fd;

	make_parents(p, f->path);
	if (!f->synced && chance(4) == 0)
		return;
	snprintf(path, sizeof path, "%s%.100s", p->dir, f->path);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_true(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
	end = PTC_MIN(size, PTC_MAX(f->end, f->current_end));
	mixed = mix(f, end, percent);
	for (size_t at = 0; at < end; at += step) {
		size_t n = PTC_MIN(end - at, step);

		if (mixed[at] || memcmp(mixed + at, mixed + at + 1, n - 1) != 0) /* not a hole */
			assert_int_equal(syscall(SYS_pwrite64, fd, mixed + at, n, at), n);
	}
	free(mixed);
	close(fd);
}

static void cut(const char *when, unsigned percent)
{
	struct place p;
	int status;
	pid_t pid;

	place_make(&p, fast_base());
	for (const struct file *f = files; f < files + FILES; f++)
		if (f->seen)
			write_image(&p, f, percent);
	pid = fork();
	if (pid == 0) {
		now.recording = false;
		check_image(&p);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	images++;
	if (status != 0)
		fail_msg("image %u (seed %u), cut %s, %u of 100 unsynced sectors written: status %x", images, seed,
			 when, percent, (unsigned)status);
	place_remove(&p);
}

/* [off, off + len) of the file behind fd reaches the disk now, its length too. */
static void reaches_disk(const char *path, uint64_t off, uint64_t len, const char *how)
{
	static const unsigned percents[] = { 50, 10, 90, 100 };

	look_all();
	for (unsigned i = 0; i < rounds; i++)
		cut(how, percents[(images / 2 + i) % 4]);
	for (struct file *f = files; f < files + FILES; f++) {
		size_t end;

		if (!f->seen || strcmp(f->path, path) != 0)
			continue;
		end = PTC_MAX(f->end, f->current_end);
		f->durable = realloc(f->durable, end + 1);
		f->current = realloc(f->current, end + 1);
		memset(f->durable + f->end, 0, end - f->end);
		memset(f->current + f->current_end, 0, end - f->current_end);
		f->size = f->current_size;
		f->end = f->current_end = end;
		end = len < end - PTC_MIN(off, end) ? off + len : end;
		if (off < end)
			memcpy(f->durable + off, f->current + off, end - off);
		f->synced = true;
	}
	cut(how, 0);
}

static bool is_live(const char *path, const char **ret_below)
{
	size_t n = strlen(live.dir);

	*ret_below = path + n;
	return now.recording && n && strncmp(path, live.dir, n) == 0;
}

static bool fd_is_live(int fd, char path[256], const char **ret_below)
{
	char link[64];
	ssize_t n;

	if (!now.recording)
		return false;
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	n = readlink(link, path, 255);
	path[n < 0 ? 0 : n] = '\0';
	return is_live(path, ret_below);
}

#define INSTEAD __attribute__((visibility("default")))

INSTEAD int fdatasync(int fd)
{
	const char *below;
	char path[256];

	if (fd_is_live(fd, path, &below))
		reaches_disk(below, 0, UINT64_MAX, "at fdatasync");
	return 0;
}

INSTEAD int fsync(int fd)
{
	return fdatasync(fd);
}

INSTEAD int msync(void *p, size_t len, int flags)
{
	unsigned long long lo, hi, off;
	char line[512], *path;
	const char *below;
	FILE *f = now.recording ? fopen("/proc/self/maps", "re") : NULL;

	while (f && fgets(line, sizeof line, f)) {
		if (sscanf(line, "%llx-%llx %*s %llx", &lo, &hi, &off) != 3 || (uintptr_t)p < lo || (uintptr_t)p >= hi)
			continue;
		line[strcspn(line, "\n")] = '\0';
		path = strchr(line, '/');
		if (path && is_live(path, &below) && (flags & MS_SYNC))
			reaches_disk(below, off + ((uintptr_t)p - lo), len, "at msync");
		break;
	}
	if (f)
		fclose(f);
	return 0;
}

INSTEAD ssize_t pwrite(int fd, const void *buf, size_t n, off_t off)
{
	ssize_t done = syscall(SYS_pwrite64, fd, buf, n, off);
	const char *below;
	char path[256];

	if (done > 0 && (fcntl(fd, F_GETFL) & O_DSYNC) && fd_is_live(fd, path, &below))
		reaches_disk(below, (uint64_t)off, (uint64_t)done, "at a synchronous write");
	return done;
}

INSTEAD int fstatfs(int fd, struct statfs *buf)
{
	int rc = (int)syscall(SYS_fstatfs, fd, buf);

	buf->f_type = EXT4;
	return rc;
}

static void cut_at_every_sync(const struct plan *p)
{
	const unsigned before = images;

	for (struct file *f = files; f < files + FILES; f++) {
		free(f->durable);
		free(f->current);
		*f = (struct file){ 0 };
	}
	memset(&now, 0, sizeof now);
	plan = p;
	place_make(&live, fast_base());
	for (size_t i = 0; i < 4; i++)
		now.key[i] = key_of(JOB_A, i / 2 + 1, i % 2 + 1);
	now.recording = true;
	session(&live);
	now.recording = false;
	print_message("%u images\n", images - before);
	assert_true(images - before > 50); /* else LMDB does not call us */
	place_remove(&live);
}

static void power_is_cut_in_switches(void **state)
{
	static const struct plan p = { .run = switches,
				       .needs = { first_needs, first_needs, second_needs, first_needs },
				       .nneeds = { 2, 2, 2, 2 },
				       .from = { NONE_OF, NONE_OF, 1, NONE_OF },
				       .alias = 1 };

	(void)state;
	cut_at_every_sync(&p);
}

static void power_is_cut_while_copies_come(void **state)
{
	static const struct plan p = { .run = copies,
				       .needs = { first_needs, copy_needs, first_needs, copy_needs },
				       .nneeds = { 2, 3, 2, 3 },
				       .from = { NONE_OF, 0, NONE_OF, 2 },
				       .alias = NONE_OF };

	(void)state;
	cut_at_every_sync(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(power_is_cut_in_switches),
					    cmocka_unit_test(power_is_cut_while_copies_come) };
	const char *more = getenv("PTC_ROUNDS");
	unsigned bytes = 9;
	int rc;

	seed = (unsigned)ptc_test_seed();
	rounds = more ? (unsigned)strtoul(more, NULL, 0) : (unsigned)ptc_test_size(1, 2, 8);
	random_state = seed;
	mallopt(M_MMAP_THRESHOLD, 1 << 30); /* megabytes come and go for each image: without faults, then */
	mallopt(M_TRIM_THRESHOLD, 1 << 30);
	x = malloc(ROWS * COLS);
	for (int i = 0; i < ROWS * COLS; i++)
		x[i] = (uint8_t)rand_r(&bytes);
	rc = cmocka_run_group_tests(tests, NULL, NULL);
	free(x);
	for (size_t i = 0; i < FILES; i++) {
		free(files[i].durable);
		free(files[i].current);
	}
	return rc;
}
