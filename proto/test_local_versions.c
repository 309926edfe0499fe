/* SPDX-License-Identifier: Apache-2.0 */
/* Each message of the local protocol with the fields of a later version behind it reads as it does without them, and
 * one that ends early is none. */
#include "proto/local_messages.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

/* Reads a message and writes what it has found; false: it is none. */
typedef bool (*again_fn)(const void *data, size_t len, struct ptc_local_out *o);

#define AGAIN(name, type)                                                                                              \
	static bool again_##name(const void *data, size_t len, struct ptc_local_out *o)                                \
	{                                                                                                              \
		struct type m;                                                                                         \
                                                                                                                       \
		if (!ptc_local_get_##name(data, len, &m))                                                              \
			return false;                                                                                  \
		ptc_local_put_##name(o, &m);                                                                           \
		return true;                                                                                           \
	}
AGAIN(hello, ptc_local_hello)
AGAIN(welcome, ptc_local_welcome)
AGAIN(generation, ptc_local_generation)
AGAIN(blob, ptc_local_blob)
AGAIN(cursor, ptc_local_cursor)
AGAIN(stopped, ptc_local_stopped)
AGAIN(rendezvous, ptc_local_rendezvous)
AGAIN(restored, ptc_local_restored)
AGAIN(filled, ptc_local_filled)
AGAIN(keeps, ptc_local_keeps)

static bool again_refusal(const void *data, size_t len, struct ptc_local_out *o)
{
	struct ptc_local_refusal m;

	if (!ptc_local_get_refusal(data, len, &m))
		return false;
	ptc_local_put_refusal(o, m.code, m.text);
	return true;
}

static bool again_ended(const void *data, size_t len, struct ptc_local_out *o)
{
	uint64_t generation, incarnation;

	if (!ptc_local_get_ended(data, len, &generation, &incarnation))
		return false;
	ptc_local_put_ended(o, generation, incarnation);
	return true;
}

static bool again_number(const void *data, size_t len, struct ptc_local_out *o)
{
	uint64_t n;

	if (!ptc_local_get_number(data, len, &n))
		return false;
	ptc_local_put_number(o, n);
	return true;
}

static bool again_tensor(const void *data, size_t len, struct ptc_local_out *o)
{
	struct ptc_local_tensor m;
	struct ptc_local_box boxes[2];

	if (!ptc_local_get_tensor(data, len, &m) || m.nboxes != 2)
		return false;
	for (uint32_t i = 0; i < m.nboxes; i++)
		if (!ptc_local_get_box(&m, &boxes[i]))
			return false;
	ptc_local_put_tensor(o, &m, boxes);
	return true;
}

static bool again_staging(const void *data, size_t len, struct ptc_local_out *o)
{
	struct ptc_local_staging m;
	struct ptc_local_span spans[2];

	if (!ptc_local_get_staging(data, len, &m) || m.nspans != 2)
		return false;
	for (uint32_t i = 0; i < m.nspans; i++)
		if (!ptc_local_get_span(&m, &spans[i]))
			return false;
	ptc_local_put_staging(o, m.bytes, spans, m.nspans);
	return true;
}

static bool again_fill(const void *data, size_t len, struct ptc_local_out *o)
{
	struct ptc_local_fill m;
	struct ptc_local_rows rows[1];
	struct ptc_direct_read_chunk chunks[2];

	if (!ptc_local_get_fill(data, len, &m) || m.nrows != 1 || m.nchunks > 2 || !ptc_local_get_rows(&m, &rows[0]))
		return false;
	for (uint32_t i = 0; i < m.nchunks; i++)
		if (!ptc_local_get_chunk(&m, &chunks[i]))
			return false;
	ptc_local_put_fill(o, &m, rows, chunks);
	return true;
}

static struct ptc_local_out some(unsigned which)
{
	static const struct ptc_local_box boxes[2] = {
		{ .offset = { 1 }, .extent = { 2 }, .stride = { 4 }, .address = 64 },
		{ .offset = { 3 }, .extent = { 1 }, .stride = { 4 }, .address = 96 }
	};
	static const struct ptc_local_span spans[2] = { { 64, 8, 0 }, { 96, 4, 8 } };
	static const struct ptc_local_rows rows[1] = { { 64, 0, 8, 2, 16, 8 } };
	static const struct ptc_direct_read_chunk chunks[2] = { { .at = 4096, .sums = { 1, 2 } }, { .at = 1 << 20 } };
	struct ptc_local_out o = { .grow = realloc };

	if (which == 0)
		ptc_local_put_hello(&o, &(struct ptc_local_hello){ .protocol_min = 1,
								   .protocol_max = 2,
								   .pid = 3,
								   .token = "t",
								   .version = "v",
								   .resume_phase = PTC_LOCAL_RUNS,
								   .generation = 4,
								   .incarnation = 5,
								   .rank = 6,
								   .features = PTC_LOCAL_CAN_FILL });
	else if (which == 1)
		ptc_local_put_welcome(&o, &(struct ptc_local_welcome){ .protocol = 1,
								       .pid = 2,
								       .version = "v",
								       .features = PTC_LOCAL_TAKES_LAYOUT });
	else if (which == 2)
		ptc_local_put_generation(
			&o, &(struct ptc_local_generation){
				    .generation = 1, .incarnation = 2, .world = 4, .config = "tp=2,dp=2", .job = "j" });
	else if (which == 3)
		ptc_local_put_blob(&o, &(struct ptc_local_blob){ "b", 1, "bytes", 5 });
	else if (which == 4)
		ptc_local_put_cursor(&o, &(struct ptc_local_cursor){ "c", "tag", 7 });
	else if (which == 5)
		ptc_local_put_stopped(&o,
				      &(struct ptc_local_stopped){ .step = 8, .refused = "not now", .later = true });
	else if (which == 6)
		ptc_local_put_rendezvous(&o, &(struct ptc_local_rendezvous){
						     .id = 1, .key = "k", .text = "", .value = "v", .len = 1 });
	else if (which == 7)
		ptc_local_put_restored(&o, &(struct ptc_local_restored){ true, 9 });
	else if (which == 8)
		ptc_local_put_filled(&o, &(struct ptc_local_filled){ 1, 0, 0, true });
	else if (which == 9)
		ptc_local_put_refusal(&o, PTC_LOCAL_R_STALE, "over");
	else if (which == 10)
		ptc_local_put_ended(&o, 1, 2);
	else if (which == 11)
		ptc_local_put_number(&o, 12);
	else if (which == 12)
		ptc_local_put_tensor(
			&o,
			&(struct ptc_local_tensor){
				.name = "n", .field = "", .dtype = "F32", .ndim = 1, .shape = { 4 }, .nboxes = 2 },
			boxes);
	else if (which == 13)
		ptc_local_put_staging(&o, 12, spans, 2);
	else if (which == 14)
		ptc_local_put_keeps(&o, &(struct ptc_local_keeps){ 4096, 8192 });
	else
		ptc_local_put_fill(&o, &(struct ptc_local_fill){ 1, 2, 3, .nrows = 1, .nchunks = which == 16 ? 2 : 0 },
				   rows, chunks);
	return o;
}

static const again_fn all[] = { again_hello,   again_welcome,    again_generation, again_blob,    again_cursor,
				again_stopped, again_rendezvous, again_restored,   again_filled,  again_refusal,
				again_ended,   again_number,     again_tensor,     again_staging, again_keeps,
				again_fill,    again_fill };

static void test_fields_of_a_later_version(void **state)
{
	(void)state;
	for (unsigned i = 0; i < ARRAY_LEN(all); i++) {
		struct ptc_local_out first = some(i), again = { .grow = realloc };
		size_t len = first.len;

		ptc_local_put_text(&first, "of a later version");
		assert_true(all[i](first.data, first.len, &again));
		assert_int_equal(again.len, len);
		assert_memory_equal(again.data, first.data, len);
		free(first.data);
		free(again.data);
	}
}

/* In memory of its own, so that a sanitizer sees what is read behind it. */
static void test_messages_that_end_early(void **state)
{
	const size_t added = PTC_VERSION_RAISED ? sizeof PTC_VERSION_ADDED : 0;

	(void)state;
	for (unsigned i = 0; i < ARRAY_LEN(all); i++) {
		struct ptc_local_out first = some(i);
		size_t optional = 0; /* bytes at its end that were added later */

		if (i <= 1 || i >= 15)
			optional = sizeof(uint32_t) + (i == 16 ? 2 * sizeof(struct ptc_direct_read_chunk) : 0);
		else if (i == 5 || i == 8)
			optional = 1;
		for (size_t len = 0; len + added < first.len; len++) {
			struct ptc_local_out again = { .grow = realloc };
			uint8_t *some_of_it = malloc(len ? len : 1);

			memcpy(some_of_it, first.data, len);
			assert_int_equal(all[i](some_of_it, len, &again),
					 len + added + optional == first.len && optional);
			free(some_of_it);
			free(again.data);
		}
		free(first.data);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fields_of_a_later_version),
		cmocka_unit_test(test_messages_that_end_early),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
