/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank does for its promise. Which pieces of memory are compared between a boundary and its update, for how much
 * of the time, and what a change means. How long a rank that is held waits by itself: not counted while ptcd has it
 * frozen, however long that is. The clocks and the sleep are the test's. */
#include "client/lib/internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define ROWS      512
#define COLS      1024
#define STEPS     200
#define PIECES    8192
#define MINUTE_NS INT64_C(60000000000)
#define MS_NS     INT64_C(1000000)

int __wrap_clock_gettime(clockid_t id, struct timespec *ts);
int __wrap_nanosleep(const struct timespec *ts, struct timespec *left);

static int64_t now_ns, cpu_ns, call_cpu_ns; /* between two looks at the CPU's clock it goes on by call_cpu_ns */
static bool measures;                       /* the first of two was there */
static struct ptc_local_page page;
static float (*matrix)[COLS]; /* the declared box: columns 8 to 8 + COLS / 2 of it */
static double scalar;
static struct ptc_local_box boxes[2];
static struct tensor tensors[2];
static char names[4][16] = { "m", "exp\n_avg", "s", "" };

int __wrap_clock_gettime(clockid_t id, struct timespec *ts)
{
	int64_t t = now_ns;

	if (id != CLOCK_MONOTONIC) {
		cpu_ns += measures ? call_cpu_ns : 0;
		measures = !measures;
		t = cpu_ns;
	}
	*ts = (struct timespec){ .tv_sec = t / 1000000000, .tv_nsec = t % 1000000000 };
	return 0;
}

/* A rank that runs, with a promise, at the boundary of step 0. */
static ptc_client *begin(void)
{
	ptc_client *c = calloc(1, sizeof *c);

	assert_non_null(c);
	memset(&page, 0, sizeof page);
	atomic_store(&page.stop, PTC_LOCAL_NO_STOP);
	matrix = mmap(NULL, sizeof(float[ROWS][COLS]), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(matrix, MAP_FAILED);
	scalar = 1;
	boxes[0] = (struct ptc_local_box){ .extent = { ROWS, COLS / 2 },
					   .stride = { sizeof *matrix, sizeof(float) },
					   .address = (uint64_t)(uintptr_t)&matrix[0][8] };
	boxes[1] = (struct ptc_local_box){ .address = (uint64_t)(uintptr_t)&scalar };
	tensors[0] = (struct tensor){
		.name = names[0], .field = names[1], .ndim = 2, .element_bytes = 4, .boxes = &boxes[0], .nboxes = 1
	};
	tensors[1] = (struct tensor){
		.name = names[2], .field = names[3], .element_bytes = 8, .boxes = &boxes[1], .nboxes = 1
	};
	now_ns = 1000000000;
	call_cpu_ns = 4000;
	c->page = &page;
	c->running = true;
	c->promise.tried = true; /* no memory that ptcd has, too */
	c->set = calloc(1, sizeof *c->set);
	c->tensors = tensors;
	c->ntensors = 2;
	assert_int_equal(ptc_survive(c, 1), 0);
	assert_int_equal(ptc_boundary(c, 0), 0);
	assert_int_equal(atomic_load(&page.survives), 1);
	return c;
}

static void end(ptc_client *c)
{
	ptc_promise_over(&c->promise, c->page);
	assert_false(ptc_survive_broken(c, NULL) || atomic_load(&page.broken));
	free(c->promise.said[0].out.data);
	free(c->promise.said[1].out.data);
	free(c->set);
	free(c);
	munmap(matrix, sizeof(float[ROWS][COLS]));
}

static void step(ptc_client *c, int64_t ns)
{
	now_ns += ns;
	ptc_update_begin(c);
	for (int i = 0; i < ROWS; i++)
		matrix[i][8]++; /* the update may */
	assert_int_equal(ptc_boundary(c, c->next_step), 0);
}

static void unchanged(void **state)
{
	ptc_client *c = begin();

	(void)state;
	for (int i = 0; i < STEPS; i++) {
		matrix[i][7]++; /* beside the box, on both sides */
		matrix[i][8 + COLS / 2]++;
		step(c, 1000000000);
	}
	assert_null(ptc_survive_broken(c, NULL));
	assert_int_equal(atomic_load(&page.survives), 1);
	assert_int_equal(atomic_load(&page.sampled), STEPS);
	end(c);
}

static void breaks(ptc_client *c, const char *name)
{
	char text[128];

	assert_int_equal(atomic_load(&page.survives), 0);
	assert_int_equal(atomic_load(&page.broken), 1);
	snprintf(text, sizeof text, "tensor \"%s\" changed after the boundary at step %u without ptc_update_begin",
		 name, (unsigned)c->next_step - 1);
	assert_string_equal(page.broken_why, text);
	assert_string_equal(ptc_survive_broken(c, "something else"), text);
	assert_int_equal(ptc_survive(c, 1), PTC_R_REFUSED);
	step(c, 1000000000);
	assert_int_equal(atomic_load(&page.survives), 0);
	end(c);
}

/* As by weight clipping, or by an optimizer that says nothing. */
static void clipped(void **state)
{
	ptc_client *c = begin();

	(void)state;
	step(c, 1000000000);
	for (int i = 0; i < ROWS; i++)
		for (int j = 0; j < COLS; j++)
			matrix[i][j] = -1;
	ptc_update_begin(c);
	assert_true(!ptc_local_whole(&page)); /* the step goes on */
	breaks(c, "m:exp _avg");
}

/* A small tensor beside a large one. */
static void small(void **state)
{
	ptc_client *c = begin();

	(void)state;
	step(c, 1000000000);
	scalar = 2;
	ptc_update_begin(c);
	breaks(c, "s");
}

/* There is no update in the step, or none before the program gives up. */
static void without_update(void **state)
{
	for (int gives_up = 0; gives_up < 2; gives_up++) {
		ptc_client *c = begin();

		(void)state;
		step(c, 1000000000);
		scalar = 2;
		if (gives_up) {
			ptc_leave(c);
			breaks(c, "s");
		} else {
			assert_int_equal(ptc_boundary(c, 2), 0);
			assert_int_equal(atomic_load(&page.survives), 0);
			assert_int_equal(atomic_load(&page.broken), 1);
			end(c);
		}
	}
}

/* The program has unmapped what it promised to keep. */
static void gone(void **state)
{
	ptc_client *c = begin();

	(void)state;
	step(c, 1000000000);
	assert_int_equal(munmap(matrix, sizeof(float[ROWS][COLS])), 0);
	ptc_leave(c);
	assert_int_equal(atomic_load(&page.broken), 1);
	assert_non_null(strstr(page.broken_why, "tensor \"m:"));
	end(c);
}

/* Over many steps all of the memory comes up, also of a transposed box; and time is kept. */
static void share(void **state)
{
	static uint8_t seen[PIECES];
	ptc_client *c = begin();
	int64_t began = now_ns, spent = cpu_ns;
	unsigned n = 0;

	(void)state;
	ptc_promise_over(&c->promise, c->page);
	boxes[0] = (struct ptc_local_box){ .extent = { COLS, ROWS },
					   .stride = { sizeof(float), sizeof *matrix },
					   .address = (uint64_t)(uintptr_t)matrix };
	assert_int_equal(ptc_survive(c, 1), 0);
	for (int i = 0; i < STEPS; i++) {
		step(c, 10000000);
		for (unsigned k = 0; k < c->promise.samples.ntaken; k++) {
			const struct sample *p = &c->promise.samples.taken[k];
			uint64_t at = (p->address - (uint64_t)(uintptr_t)matrix) / SAMPLE_BYTES;

			if (p->address == boxes[1].address)
				continue;
			assert_true(p->bytes == SAMPLE_BYTES && at < ROWS * sizeof *matrix / SAMPLE_BYTES);
			n += !seen[at];
			seen[at] = 1;
		}
	}
	assert_int_equal(n, ROWS * sizeof *matrix / SAMPLE_BYTES);
	assert_null(ptc_survive_broken(c, NULL));
	assert_true(cpu_ns - spent <= (now_ns - began) / 1000 + SAMPLES_MAX * INT64_C(4000));
	end(c);
}

/* Where a look takes long, there are few. */
static void slow(void **state)
{
	ptc_client *c = begin();
	int64_t began = now_ns, spent;
	unsigned looks = 0;

	(void)state;
	call_cpu_ns = 300000;
	step(c, 1000000);
	spent = cpu_ns;
	for (int i = 0; i < 100000; i++) {
		step(c, 1000000);
		looks += c->promise.samples.ntaken > 0;
	}
	assert_true(looks > 10);
	assert_true(cpu_ns - spent <= (now_ns - began) / 1000 + 4000000);
	end(c);
}

/* What the program says itself. */
static void said(void **state)
{
	ptc_client *c = begin();

	(void)state;
	assert_null(ptc_survive_broken(c, NULL));
	assert_int_equal(ptc_survive_checked(c), 0);
	assert_int_equal(atomic_load(&page.checked), 2);
	assert_string_equal(ptc_survive_broken(c, "two\nlines\x7f"), "two lines ");
	assert_string_equal(page.broken_why, "two lines ");
	assert_int_equal(atomic_load(&page.survives), 0);
	end(c);
	assert_int_equal(ptc_survive_checked(NULL), PTC_R_INVALID);
	assert_null(ptc_survive_broken(NULL, "why"));
}

/* ---- held ------------------------------------------------------------------------- */

static unsigned naps, frozen_naps; /* the first ones end after a quarter of an hour each */
static unsigned lets_on_at;        /* at that nap ptcd lets the rank on, to one update; 0: never */
static bool gone_on;               /* the rank has ended the hold by itself */

int __wrap_nanosleep(const struct timespec *ts, struct timespec *left)
{
	(void)ts;
	(void)left;
	gone_on = gone_on || !atomic_load(&page.hold);
	now_ns += naps++ < frozen_naps ? 15 * MINUTE_NS : 2 * MS_NS;
	if (naps == lets_on_at)
		atomic_store(&page.hold_from, 9);
	return 0;
}

/* At step 8, held. When its update has begun. */
static void held_update(unsigned frozen, unsigned lets_on)
{
	static ptc_client c;

	memset(&c, 0, sizeof c);
	memset(&page, 0, sizeof page);
	c.page = &page;
	c.running = c.stepped = true;
	c.next_step = 9;
	atomic_store(&page.state, ptc_local_mark(8, true));
	atomic_store(&page.hold, 1);
	naps = 0;
	frozen_naps = frozen;
	lets_on_at = lets_on;
	gone_on = false;
	ptc_update_begin(&c);
	assert_false(ptc_local_whole(&page));
}

static void frozen_for_long(void **state)
{
	(void)state;
	held_update(3, 40);
	assert_int_equal(naps, 40);
	assert_true(atomic_load(&page.hold) && !gone_on);
}

static void ptcd_is_gone(void **state)
{
	int64_t began = now_ns;

	(void)state;
	held_update(0, 0);
	assert_false(atomic_load(&page.hold));
	assert_in_range((now_ns - began) / MS_NS, CLIENT_HELD_MAX_MS, CLIENT_HELD_MAX_MS + 10);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(unchanged),      cmocka_unit_test(clipped), cmocka_unit_test(small),
		cmocka_unit_test(without_update), cmocka_unit_test(gone),    cmocka_unit_test(share),
		cmocka_unit_test(slow),           cmocka_unit_test(said),    cmocka_unit_test(frozen_for_long),
		cmocka_unit_test(ptcd_is_gone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
