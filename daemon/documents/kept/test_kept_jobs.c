/* SPDX-License-Identifier: Apache-2.0 */
/* Kept documents against a model: which jobs have theirs after jobs of random sizes have come, changed and gone. */
#include "daemon/documents/kept/kept_jobs.h"

#include "base/alloc.h"
#include "base/test_seed.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define JOBS      6
#define MAX_BYTES 1000

static void uuid_of(unsigned job, char ret[PTC_UUID_TEXT])
{
	snprintf(ret, PTC_UUID_TEXT, "00000000-0000-0000-0000-%012u", job);
}

static void hash_of(unsigned job, int64_t revision, unsigned doc, char ret[PTC_HASH_HEX])
{
	snprintf(ret, PTC_HASH_HEX, "%08x%016llx%08x", job, (unsigned long long)revision, doc);
}

/* A job of so many bytes in `docs` documents, whose bytes say whose they are. */
static struct ptc_kept_job *job_of(unsigned job, int64_t revision, size_t bytes, unsigned docs)
{
	struct ptc_kept_job *j = ptc_calloc(1, sizeof *j);

	assert_non_null(j);
	uuid_of(job, j->uuid);
	j->revision = revision;
	for (unsigned d = 0; d < docs; d++) {
		size_t len = d + 1 < docs ? bytes / docs : bytes - bytes / docs * (docs - 1);
		char hash[PTC_HASH_HEX], *data = ptc_malloc(len + 1);

		assert_non_null(data);
		memset(data, 'a' + (int)((job + (unsigned)revision + d) % 26), len);
		hash_of(job, revision, d, hash);
		assert_int_equal(ptc_kept_job_add(j, hash, data, len), 0);
	}
	assert_int_equal(j->bytes, bytes);
	return j;
}

static bool has(struct ptc_kept_jobs *k, unsigned job, int64_t revision, unsigned doc)
{
	char uuid[PTC_UUID_TEXT], hash[PTC_HASH_HEX], *data;
	size_t len;

	uuid_of(job, uuid);
	hash_of(job, revision, doc, hash);
	if (!ptc_kept_jobs_copy(k, uuid, hash, &data, &len))
		return false;
	assert_int_equal(strlen(data), len);
	for (size_t i = 0; i < len; i++)
		assert_int_equal(data[i], 'a' + (int)((job + (unsigned)revision + doc) % 26));
	ptc_free(data);
	return true;
}

/* What has gone is told by revision: the job stays known, and is not asked for before it changes. */
static bool known_as(struct ptc_kept_jobs *k, unsigned job, int64_t revision)
{
	char uuid[PTC_UUID_TEXT];
	int64_t found = -1;

	uuid_of(job, uuid);
	return ptc_kept_jobs_revision(k, uuid, &found) && found == revision;
}

/* The jobs that changed longest ago go, one after the other, and no more than need be. */
static void the_oldest_go_first(void **state)
{
	uint64_t live = ptc_alloc_live();
	struct ptc_kept_jobs k;

	ptc_kept_jobs_init(&k, MAX_BYTES);
	for (unsigned i = 0; i < 4; i++)
		ptc_kept_jobs_install(&k, job_of(i, 1, 250, 2));
	assert_int_equal(ptc_kept_jobs_count(&k), 4);
	ptc_kept_jobs_install(&k, job_of(4, 1, 100, 1));
	assert_false(has(&k, 0, 1, 0));
	assert_true(has(&k, 1, 1, 0) && has(&k, 2, 1, 1) && has(&k, 3, 1, 0) && has(&k, 4, 1, 0));
	ptc_kept_jobs_install(&k, job_of(1, 2, 250, 1)); /* changed: it is the newest now */
	assert_false(has(&k, 1, 1, 0));
	ptc_kept_jobs_install(&k, job_of(5, 1, 401, 1));
	assert_false(has(&k, 2, 1, 0) || has(&k, 3, 1, 0));
	assert_true(has(&k, 5, 1, 0) && has(&k, 1, 2, 0) && has(&k, 4, 1, 0));
	for (unsigned i = 0; i < 6; i++)
		assert_true(known_as(&k, i, i == 1 ? 2 : 1));
	ptc_kept_jobs_done(&k);
	assert_int_equal(ptc_alloc_live(), live);
}

static bool is_odd(void *arg, const char *uuid)
{
	++*(unsigned *)arg;
	return (uuid[35] - '0') % 2;
}

static void those_that_are_gone(void **state)
{
	uint64_t live = ptc_alloc_live();
	struct ptc_kept_jobs k;
	unsigned asked = 0;

	ptc_kept_jobs_init(&k, MAX_BYTES);
	for (unsigned i = 0; i < JOBS; i++)
		ptc_kept_jobs_install(&k, job_of(i, 1, 10, 1));
	ptc_kept_jobs_drop(&k, is_odd, &asked);
	assert_int_equal(asked, JOBS);
	for (unsigned i = 0; i < JOBS; i++)
		assert_true(has(&k, i, 1, 0) == known_as(&k, i, 1) && has(&k, i, 1, 0) == (i % 2 == 0));
	ptc_kept_jobs_done(&k);
	assert_int_equal(ptc_alloc_live(), live);
}

/* In the order of their last change, each has its documents if they fit beside those of all that are newer and have
 * theirs. */
static void against_a_model(void **state)
{
	unsigned seed = (unsigned)ptc_test_seed();
	uint64_t live = ptc_alloc_live();
	struct {
		int64_t revision;
		size_t bytes;
		unsigned long at; /* 0: it has not come yet */
		bool kept;
	} model[JOBS] = { { 0 } };
	struct ptc_kept_jobs k;

	srand(seed);
	ptc_kept_jobs_init(&k, MAX_BYTES);
	for (unsigned long now = 1; now <= 2000; now++) {
		unsigned job = (unsigned)rand() % JOBS;
		size_t bytes = 1 + (size_t)rand() % (rand() % 8 ? 400 : MAX_BYTES), sum = 0;

		ptc_kept_jobs_install(&k, job_of(job, model[job].revision + 1, bytes, 1));
		model[job].revision++;
		model[job].bytes = bytes;
		model[job].at = now;
		model[job].kept = true;
		for (unsigned long at = now; at; at--)
			for (unsigned i = 0; i < JOBS; i++)
				if (model[i].at == at && model[i].kept) {
					model[i].kept = sum + model[i].bytes <= MAX_BYTES;
					sum += model[i].kept ? model[i].bytes : 0;
				}
		for (unsigned i = 0; i < JOBS; i++) {
			assert_int_equal(has(&k, i, model[i].revision, 0), model[i].kept);
			assert_int_equal(known_as(&k, i, model[i].revision), model[i].at != 0);
		}
	}
	ptc_kept_jobs_done(&k);
	assert_int_equal(ptc_alloc_live(), live);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_oldest_go_first),
		cmocka_unit_test(those_that_are_gone),
		cmocka_unit_test(against_a_model),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
