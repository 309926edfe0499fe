/* SPDX-License-Identifier: Apache-2.0 */
/* A small tmpfs that fills up: reserving fails cleanly, nothing is lost, and the store goes on once there is room. */
#include "daemon/store/test_store_place.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>

#define MIB (1 << 20)

static struct place place;

/* A table of n extents of 1 MiB, filled with its generation. */
static int make(struct ptc_store *s, const struct ptc_table_key *k, int n, struct ptc_error *err)
{
	struct ptc_store_box b[32];
	struct ptc_table *t;
	uint32_t e[32];
	int rc = ptc_table_begin(s, k, &t, err);

	for (int i = 0; i < n; i++)
		b[i] = (struct ptc_store_box){ (uint32_t)i, BOX1(0, MIB) };
	if (rc)
		return rc;
	rc = ptc_table_reserve(t, b, (size_t)n, e, err);
	for (int i = 0; i < n && !rc; i++) {
		uint8_t *buf = malloc(MIB);

		memset(buf, (int)k->generation, MIB);
		fill_extent(t, e[i], buf, MIB);
		rc = ptc_table_filled(t, e[i], err);
		free(buf);
	}
	if (!rc)
		rc = ptc_table_seal(t, err);
	ptc_table_unref(t);
	return rc;
}

static void expect(struct ptc_store *s, const struct ptc_table_key *k, int n)
{
	struct ptc_box b = BOX1(0, MIB);
	uint8_t *got = malloc(MIB), *want = malloc(MIB);
	struct ptc_table *t;

	memset(want, (int)k->generation, MIB);
	ok(ptc_table_open(s, k, &t, err));
	for (int i = 0; i < n; i++) {
		ok(ptc_table_read(t, (uint32_t)i, &b, got, err));
		assert_memory_equal(got, want, MIB);
	}
	ptc_table_unref(t);
	free(got);
	free(want);
}

/* Takes every block the file system has left. */
static void fill_rest(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	static char zeros[4096];

	assert_true(fd >= 0);
	while (write(fd, zeros, sizeof zeros) > 0)
		;
	assert_int_equal(errno, ENOSPC);
	close(fd);
}

static void a_full_file_system_loses_nothing(void **state)
{
	struct ptc_table_key k1 = key_of(JOB_A, 1, 1), k2 = key_of(JOB_A, 2, 1), k3 = key_of(JOB_A, 3, 1);
	struct ptc_store_opts o = {
		.meta_dir = place.meta, .chunk_dir = place.chunks, .chunk_ceiling = 1u << 30, .cushion_bytes = 1
	};
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_store_stats st;
	struct ptc_store *s;
	char path[128];

	ok(ptc_store_open(&o, &s, err));
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	ok(make(s, &k1, 8, err));
	assert_int_equal(make(s, &k2, 32, &why), PTC_ENOSPC);
	assert_non_null(strstr(why.text, "cannot reserve "));
	assert_non_null(strstr(why.text, place.chunks)); /* where */
	assert_null(strstr(why.text, " 0 bytes"));
	ptc_store_stats(s, &st);
	assert_int_equal(st.chunks_used, 9);
	expect(s, &k1, 8);
	ok(make(s, &k2, 8, err));
	ok(ptc_store_keep(s, JOB_A, &k2, 1, err));
	snprintf(path, sizeof path, "%s/rest", place.dir);
	fill_rest(path); /* the holes keep left are somebody else's now */
	assert_int_equal(make(s, &k3, 8, &why), PTC_ENOSPC);
	expect(s, &k2, 8);
	ptc_store_close(s);
	ok(ptc_store_open(&o, &s, err)); /* opens on a full file system */
	expect(s, &k2, 8);
	assert_int_equal(make(s, &k3, 8, &why), PTC_ENOSPC);
	ok(ptc_sys_unlink(path, NULL, err));
	ok(make(s, &k3, 8, err));
	expect(s, &k2, 8);
	expect(s, &k3, 8);
	assert_int_equal(ptc_store_job_create(s, JOB_B, getuid(), &why), 0);
	ok(ptc_store_job_delete(s, JOB_A, err));
	ptc_store_close(s);
}

static void a_job_on_a_full_file_system_is_refused(void **state)
{
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_store *s;
	char path[128];
	int rc;

	s = store_open(&place, 1u << 30);
	ok(ptc_store_job_delete(s, JOB_B, err));
	snprintf(path, sizeof path, "%s/rest", place.dir);
	fill_rest(path);
	rc = ptc_store_job_create(s, JOB_B, getuid(), &why);
	assert_int_equal(rc, PTC_ENOSPC);
	ok(ptc_sys_unlink(path, NULL, err));
	ok(ptc_store_job_create(s, JOB_B, getuid(), err));
	ptc_store_close(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_full_file_system_loses_nothing),
		cmocka_unit_test(a_job_on_a_full_file_system_is_refused),
	};
	char dir[] = "/tmp/ptc-store-full-XXXXXX";
	int rc;

	if (!mkdtemp(dir))
		return 1;
	if (mount("ptc-test", dir, "tmpfs", 0, "size=24m,mode=0700") != 0) {
		fprintf(stderr, "skipped: cannot mount a tmpfs here\n");
		rmdir(dir);
		return 77;
	}
	snprintf(place.dir, sizeof place.dir, "%s", dir);
	snprintf(place.meta, sizeof place.meta, "%s/meta", dir);
	snprintf(place.chunks, sizeof place.chunks, "%s/chunks", dir);
	rc = cmocka_run_group_tests(tests, NULL, NULL);
	umount2(dir, MNT_DETACH);
	rmdir(dir);
	return rc;
}
