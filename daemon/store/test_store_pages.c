/* SPDX-License-Identifier: Apache-2.0 */
/* Random bits of LMDB's own pages flip while nobody has the store open. A child opens the store, reads all of it and
 * works with it: it never ends by a signal, and never reads wrong bytes. And no store that is whole is taken for a
 * damaged one: after random work, and after kill -9 in the middle of it. */
#include "daemon/store/test_store_place.h"

#include "base/test_seed.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

/* Nothing that a child calls asserts: a child that fails says so by its exit. */
#define CEILING (UINT64_C(64) << 20)
#define PAGE    4096
#define TABLES  4
#define ITEMS   1500
#define NOTES   80
#define ROUNDS  (getenv("PTC_ROUNDS") ? atoi(getenv("PTC_ROUNDS")) : 4)
#define FLIPS   60 /* in each round */

enum { RIGHT, LEFT_OUT, WRONG = 20, NO_OPEN, NO_WORK };

static unsigned seed;
static const char *const jobs[] = { JOB_A, JOB_B };

static int64_t below(int64_t n)
{
	return ((int64_t)rand_r(&seed) << 20 ^ rand_r(&seed)) % n;
}

/* What an item, a note or a count is follows from the round and its name alone. */
static uint64_t drawn(unsigned round, unsigned job, uint64_t what, uint64_t n)
{
	uint64_t key[4] = { round, job, what, n };

	return ptc_checksum(key, sizeof key);
}

static int64_t item_bytes(unsigned round, unsigned job, uint64_t g, uint32_t item)
{
	uint64_t d = drawn(round, job, g, item);

	return 1 + (int64_t)(item == 0 ? d % 1500000 : d % 700);
}

static uint32_t item_count(unsigned round, unsigned job, uint64_t g)
{
	return 1 + (uint32_t)(drawn(round, job, g, UINT32_MAX) % ITEMS);
}

static void item_fill(unsigned round, unsigned job, uint64_t g, uint32_t item, uint8_t *to, int64_t n)
{
	unsigned s = (unsigned)drawn(round, job, g, item);

	for (int64_t i = 0; i < n; i++)
		to[i] = (uint8_t)((s = s * 1664525u + 1013904223u) >> 24);
}

static int make_table(struct ptc_store *s, unsigned round, unsigned job, uint64_t g, struct ptc_error *err)
{
	struct ptc_table_key k = key_of(jobs[job], g, g);
	uint32_t n = item_count(round, job, g), *ext = malloc(n * sizeof *ext);
	struct ptc_store_box *b = malloc(n * sizeof *b);
	uint8_t *bytes = malloc(1500001);
	struct ptc_table *t = NULL;
	int rc = ptc_table_begin(s, &k, &t, err);

	for (uint32_t i = 0; i < n; i++)
		b[i] = (struct ptc_store_box){ i, BOX1(0, item_bytes(round, job, g, i)) };
	if (!rc && !ptc_table_sealed(t)) {
		rc = ptc_table_reserve(t, b, n, ext, err);
		for (uint32_t i = 0; i < n && !rc; i++) {
			item_fill(round, job, g, i, bytes, b[i].box.ext[0]);
			rc = ptc_table_write(t, i, &b[i].box, bytes, err);
			if (!rc)
				rc = ptc_table_filled(t, ext[i], err);
		}
		if (!rc)
			rc = ptc_table_seal(t, err);
	}
	ptc_table_unref(t);
	free(bytes);
	free(ext);
	free(b);
	return rc;
}

static int read_table(struct ptc_store *s, unsigned round, unsigned job, uint64_t g)
{
	struct ptc_table_key k = key_of(jobs[job], g, g);
	uint8_t *want = malloc(1500001), *got = malloc(1500001);
	int worst = RIGHT;
	struct ptc_table *t;

	if (ptc_table_open(s, &k, &t, NULL) != 0)
		worst = LEFT_OUT;
	for (uint32_t i = 0; worst != WRONG && i < item_count(round, job, g) && worst != LEFT_OUT; i++) {
		int64_t n = item_bytes(round, job, g, i);
		struct ptc_box b = BOX1(0, n);

		item_fill(round, job, g, i, want, n);
		if (ptc_table_read(t, i, &b, got, NULL) != 0)
			worst = LEFT_OUT;
		else if (memcmp(got, want, (size_t)n) != 0)
			worst = WRONG;
		if (i + 1 == item_count(round, job, g) || worst)
			ptc_table_unref(t);
	}
	free(want);
	free(got);
	return worst;
}

static void note_name(unsigned n, char name[16])
{
	snprintf(name, 16, "n%c%c", 'a' + n / 26, 'a' + n % 26);
}

static size_t note_fill(unsigned round, unsigned job, unsigned n, uint8_t to[6000])
{
	size_t len = drawn(round, job, UINT64_MAX, n) % (n % 9 ? 900 : 6000);

	item_fill(round, job, UINT64_MAX, n, to, (int64_t)len);
	return len;
}

static int read_notes(struct ptc_store *s, unsigned round, unsigned job)
{
	int worst = RIGHT;

	for (unsigned i = 0; i < NOTES && worst != WRONG; i++) {
		uint8_t want[6000];
		size_t len = note_fill(round, job, i, want), got_len;
		char name[16];
		void *got;

		note_name(i, name);
		if (ptc_store_note_get(s, jobs[job], name, &got, &got_len, NULL) != 0) {
			worst = LEFT_OUT;
			continue;
		}
		if (got_len != len || memcmp(got, want, len) != 0)
			worst = WRONG;
		ptc_free(got);
	}
	return worst;
}

/* Tables, notes, and free pages between them. */
static void make_store(const struct place *p, unsigned round)
{
	struct ptc_store *s = store_open(p, CEILING);

	for (unsigned job = 0; job < 2; job++) {
		struct ptc_table_key keep[TABLES];
		uint8_t note[6000];
		char name[16];

		ok(ptc_store_job_create(s, jobs[job], getuid(), err));
		for (uint64_t g = 1; g <= 2 * TABLES; g++)
			ok(make_table(s, round, job, g, err));
		for (unsigned i = 0; i < 2 * NOTES; i++) {
			size_t len = note_fill(round, job, i % NOTES, note);

			note_name(i % NOTES, name);
			ok(ptc_store_note_put(s, jobs[job], name, note, i < NOTES ? (size_t)below(6000) : len, err));
		}
		for (unsigned i = 0; i < TABLES; i++)
			keep[i] = key_of(jobs[job], 2 * i + 1, 2 * i + 1);
		ok(ptc_store_keep(s, jobs[job], keep, TABLES, err));
	}
	ok(ptc_store_fence(s, JOB_A, 3, err));
	ptc_store_close(s);
}

static int read_store(struct ptc_store *s, unsigned round)
{
	int worst = RIGHT;

	for (unsigned job = 0; job < 2; job++) {
		for (uint64_t g = 1; g < 2 * TABLES && worst != WRONG; g += 2) {
			int is = read_table(s, round, job, g);

			worst = is > worst ? is : worst;
		}
		if (worst != WRONG) {
			int is = read_notes(s, round, job);

			worst = is > worst ? is : worst;
		}
	}
	return worst;
}

/* What a node does with a job whose bytes it may lack: it begins anew, and gets a table. */
static int work(struct ptc_store *s, unsigned round, struct ptc_error *err)
{
	int rc = 0;

	for (unsigned job = 0; job < 2 && !rc; job++) {
		struct ptc_table_key keep = key_of(jobs[job], 99, 99);

		rc = ptc_store_job_create(s, jobs[job], getuid(), err);
		if (!rc)
			rc = ptc_store_job_anew(s, jobs[job], err);
		if (!rc)
			rc = ptc_store_note_put(s, jobs[job], "naa", "x", 1, err);
		if (!rc)
			rc = make_table(s, round, job, 99, err);
		if (!rc)
			rc = ptc_store_keep(s, jobs[job], &keep, 1, err);
		if (!rc && read_table(s, round, job, 99) != RIGHT)
			rc = ptc_error_set(err, PTC_EINTERNAL, "the new table cannot be read");
	}
	return rc ? rc : ptc_store_job_delete(s, JOB_B, err);
}

static int use_store(const struct place *p, unsigned round)
{
	struct ptc_store_opts o = { .meta_dir = p->meta, .chunk_dir = p->chunks, .chunk_ceiling = CEILING };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_store *s = NULL;
	int is;

	if (ptc_store_open(&o, &s, &err) != 0) {
		print_message("no open: %s\n", err.text);
		return NO_OPEN;
	}
	is = read_store(s, round);
	if (is != WRONG && work(s, round, &err) != 0) {
		print_message("no work: %s\n", err.text);
		is = NO_WORK;
	}
	ptc_store_close(s);
	return is;
}

static void copy_file(const char *from, const char *to)
{
	int in = open(from, O_RDONLY | O_CLOEXEC), out = open(to, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	static uint8_t block[1 << 20];
	struct stat st;
	off_t at = 0;

	if (in < 0 || out < 0 || fstat(in, &st) != 0 || ftruncate(out, st.st_size) != 0)
		fail_msg("cannot copy %s to %s: %s", from, to, strerror(errno));
	while ((at = lseek(in, at, SEEK_DATA)) >= 0) {
		off_t end = lseek(in, at, SEEK_HOLE);

		while (at < end) {
			ssize_t n = pread(in, block, end - at < (off_t)sizeof block ? (size_t)(end - at) : sizeof block,
					  at);

			assert_true(n > 0 && pwrite(out, block, (size_t)n, at) == n);
			at += n;
		}
	}
	close(in);
	close(out);
}

static void copy_store(const struct place *p, struct place *q)
{
	char from[160], to[160];

	place_make(q, fast_base());
	assert_true(mkdir(q->meta, 0700) == 0 && mkdir(q->chunks, 0700) == 0);
	snprintf(from, sizeof from, "%s/data.mdb", p->meta);
	snprintf(to, sizeof to, "%s/data.mdb", q->meta);
	copy_file(from, to);
	for (int i = 0; i < 2; i++) {
		snprintf(to, sizeof to, "%s/%s", q->chunks, jobs[i]);
		assert_int_equal(mkdir(to, 0700), 0);
		snprintf(from, sizeof from, "%s/%s/data.mdb", p->chunks, jobs[i]);
		snprintf(to, sizeof to, "%s/%s/data.mdb", q->chunks, jobs[i]);
		copy_file(from, to);
	}
}

/* A page of the file that begins as LMDB's pages do, drawn evenly; of values only the first. */
static off_t draw_page(int fd, uint16_t *ret_flags)
{
	off_t found = 0, at = 0, end;
	int64_t n = 0;

	while ((at = lseek(fd, at, SEEK_DATA)) >= 0)
		for (end = lseek(fd, at, SEEK_HOLE); at < end; at += PAGE) {
			struct {
				uint64_t pgno;
				uint16_t pad, flags;
			} h;

			assert_int_equal(pread(fd, &h, sizeof h, at), sizeof h);
			if (h.pgno != (uint64_t)(at / PAGE) || !h.flags || h.flags > 8 || (h.flags & (h.flags - 1)))
				continue;
			if (below(++n) == 0) {
				found = at;
				*ret_flags = h.flags;
			}
		}
	assert_true(n > 2);
	return found;
}

/* Bits of one page: of its head, of its list of nodes, or anywhere. */
static void flip_page(const char *path, char *ret_what, size_t size)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	uint16_t flags = 8;
	off_t page;

	assert_true(fd >= 0);
	page = below(6) == 0 ? below(2) * PAGE : draw_page(fd, &flags);
	*ret_what = '\0';
	for (int64_t bits = below(4) ? 1 : 1 + below(4); bits > 0; bits--) {
		int64_t room = flags == 8 ? 152 : flags == 4 ? 16 : below(2) ? 16 + below(100) : PAGE;
		off_t at = page + below(room);
		uint8_t byte;

		assert_int_equal(pread(fd, &byte, 1, at), 1);
		byte ^= (uint8_t)(1u << below(8));
		assert_int_equal(pwrite(fd, &byte, 1, at), 1);
		snprintf(ret_what, size, "%s: byte %lld of page %lld, which has flags %u", path, (long long)(at % PAGE),
			 (long long)(at / PAGE), flags);
	}
	close(fd);
}

static int in_child(const struct place *p, unsigned round)
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		if (!getenv("PTC_SAY") && !freopen("/dev/null", "w", stderr))
			_exit(NO_OPEN);
		_exit(use_store(p, round));
	}
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

static void bits_flip(void **state)
{
	int counts[LEFT_OUT + 1] = { 0 }, asides = 0, bad = 0;

	for (int round = 0; round < ROUNDS; round++) {
		struct place p, q;

		place_make(&p, fast_base());
		make_store(&p, (unsigned)round);
		for (int i = 0; i < FLIPS; i++) {
			char path[160], what[256];
			int status;

			copy_store(&p, &q);
			snprintf(path, sizeof path, "%s/data.mdb", q.meta);
			if (below(5) < 2)
				snprintf(path, sizeof path, "%s/%s/data.mdb", q.chunks, jobs[below(2)]);
			flip_page(path, what, sizeof what);
			status = in_child(&q, (unsigned)round);
			if (WIFSIGNALED(status) || WEXITSTATUS(status) >= WRONG) {
				print_message("%s: %s %d\n", what, WIFSIGNALED(status) ? "signal" : "exit",
					      WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
				bad++;
			} else {
				counts[WEXITSTATUS(status)]++;
			}
			snprintf(path, sizeof path, "%s/data.mdb.damaged", q.meta);
			asides += access(path, F_OK) == 0;
			q.damaged = true;
			place_remove(&q);
		}
		place_remove(&p);
	}
	print_message("%d right, %d with something left out, %d times without meta; %d bad\n", counts[RIGHT],
		      counts[LEFT_OUT], asides, bad);
	assert_int_equal(bad, 0);
	assert_true(counts[LEFT_OUT] > 0 && asides > 0);
}

/* Random work without end, in a child; each step is told. */
static int work_on(const struct place *p, unsigned round, uint64_t g, int tell)
{
	struct ptc_store_opts o = { .meta_dir = p->meta, .chunk_dir = p->chunks, .chunk_ceiling = CEILING };
	struct ptc_error e = PTC_ERROR_INIT, *err = &e;
	struct ptc_store *s = NULL;
	int rc = ptc_store_open(&o, &s, err);

	for (; !rc; g++) {
		struct ptc_table_key keep[2] = { key_of(JOB_A, g, g), key_of(JOB_A, g - 1, g - 1) };
		uint8_t note[6000] = { 0 };
		char name[16];

		note_name((unsigned)below(NOTES), name);
		rc = ptc_store_job_create(s, JOB_A, getuid(), err);
		if (!rc)
			rc = ptc_store_fence(s, JOB_A, (int64_t)g, err);
		if (!rc)
			rc = make_table(s, round, 0, g, err);
		if (!rc)
			rc = ptc_store_note_put(s, JOB_A, name, note, (size_t)below(6000), err);
		if (!rc && write(tell, &g, sizeof g) != (ssize_t)sizeof g)
			rc = PTC_EIO;
		if (!rc)
			rc = ptc_store_keep(s, JOB_A, keep, (size_t)(1 + below(2)), err);
		if (!rc && below(3) == 0) {
			rc = ptc_store_job_create(s, JOB_B, getuid(), err);
			if (!rc)
				rc = make_table(s, round, 1, g, err);
			if (!rc)
				rc = ptc_store_job_delete(s, JOB_B, err);
		}
	}
	print_message("%s\n", err->text);
	return 1;
}

/* Lets a child work from step `from` on, and kills it in the middle of a step. Returns the last step that it told. */
static uint64_t killed_at(const struct place *p, unsigned round, uint64_t from)
{
	int tell[2], status;
	uint64_t g = 0;
	pid_t pid;

	seed++; /* the child's draws are not the parent's */
	assert_int_equal(pipe(tell), 0);
	pid = fork();
	if (pid == 0)
		_exit(work_on(p, round, from, tell[1]));
	close(tell[1]);
	for (int64_t steps = 1 + below(8); steps > 0; steps--)
		assert_int_equal(read(tell[0], &g, sizeof g), sizeof g);
	for (int64_t spin = below(3000000); spin > 0; spin--) /* somewhere in the next step */
		__asm__ volatile("");
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	while (read(tell[0], &g, sizeof g) == (ssize_t)sizeof g)
		;
	close(tell[0]);
	return g;
}

/* place_remove looks whether a file was set aside. */
static void whole_after_kill(void **state)
{
	uint64_t steps = 0;

	for (int round = 0; round < 2 * ROUNDS; round++) {
		struct place p;
		uint64_t g = 0;

		place_make(&p, fast_base());
		for (int64_t lives = 1 + below(3); lives > 0; lives--) {
			struct ptc_store *s;

			g = killed_at(&p, (unsigned)round, g + 1);
			s = store_open(&p, CEILING);
			assert_int_equal(read_table(s, (unsigned)round, 0, g), RIGHT);
			ptc_store_close(s);
		}
		steps += g;
		place_remove(&p);
	}
	print_message("%llu steps\n", (unsigned long long)steps);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(bits_flip), cmocka_unit_test(whole_after_kill) };

	seed = (unsigned)ptc_test_seed();
	print_message("PTC_TEST_SEED=%u\n", seed);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
