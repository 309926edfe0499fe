/* SPDX-License-Identifier: Apache-2.0 */
/* Bulk heads: what we write we read, what is cut or changed is refused or
 * stays inside the message; boxes and versions from the wire. PTC_TEST_SEED
 * overrides the seed of the random part; it is printed. */
#include "base/sys/sys.h"
#include "base/test_seed.h"
#include "daemon/agent/calls/wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct memory {
	const uint8_t *data;
	size_t at, len;
};

static size_t memory_read(void *arg, void *dst, size_t len)
{
	struct memory *m = arg;

	if (len > m->len - m->at)
		len = m->len - m->at;
	memcpy(dst, m->data + m->at, len);
	m->at += len;
	return len;
}

static int head_of(const uint8_t *data, size_t len, size_t *ret_at, uint64_t *ret_payload)
{
	struct memory m = { data, 0, len };
	struct ptc_wire_source src = { memory_read, &m, len };
	uint8_t head[PTC_WIRE_HEAD_MAX];
	size_t n;
	int rc = ptc_wire_head_read(&src, head, &n, ret_payload, NULL);

	assert_true(m.at <= len);
	*ret_at = m.at;
	return rc;
}

static void test_round_trip(void **state)
{
	static const uint64_t sizes[] = { 0, 1, 127, 128, 16383, 16384, 2 << 20 };
	static uint8_t data[(2 << 20) + 16];

	for (size_t i = 0; i < sizeof(sizes) / sizeof *sizes; i++) {
		size_t n = ptc_wire_data_head(data, sizes[i]), at;
		uint64_t payload;

		assert_int_equal(head_of(data, n + sizes[i], &at, &payload), 0);
		assert_int_equal(at, n);
		assert_int_equal(payload, sizes[i]);
		assert_int_equal(head_of(data, n + sizes[i] + 1, &at, &payload), PTC_EPEER);
		if (sizes[i])
			assert_int_equal(head_of(data, n + sizes[i] - 1, &at, &payload), PTC_EPEER);
	}
}

static void test_malformed(void **state)
{
	static const struct {
		size_t len;
		uint8_t data[16];
	} bad[] = {
		{ 1, { 8 } },                                                         /* tag without value */
		{ 2, { 8, 128 } },                                                    /* varint without end */
		{ 12, { 8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255 } }, /* varint too long */
		{ 3, { 18, 5, 0 } },                                                  /* string past the end */
		{ 7, { 18, 255, 255, 255, 255, 15, 0 } },                             /* string past everything */
		{ 2, { 11, 12 } },                                                    /* groups */
		{ 2, { 0, 1 } },                                                      /* field 0 */
		{ 5, { 122, 1, 7, 8, 1 } },                                           /* fields after the data */
	};
	size_t at;
	uint64_t payload;

	for (size_t i = 0; i < sizeof(bad) / sizeof *bad; i++)
		assert_int_equal(head_of(bad[i].data, bad[i].len, &at, &payload), PTC_EPEER);
	assert_int_equal(head_of((const uint8_t *)"", 0, &at, &payload), 0);
	assert_int_equal(payload, 0);
}

static void test_random(void **state)
{
	srandom((unsigned)ptc_test_seed());
	for (int i = 0; i < 200000; i++) {
		uint8_t data[64];
		size_t len = (size_t)random() % sizeof(data), at;
		uint64_t payload;

		for (size_t k = 0; k < len; k++)
			data[k] = (uint8_t)(random() % 3 ? random() % 24 : random());
		if (len && random() % 2)
			data[0] = 122;
		if (!head_of(data, len, &at, &payload))
			assert_int_equal(at + payload, len);
	}
}

static void test_boxes_and_versions(void **state)
{
	int64_t off[] = { 0, 3 }, ext[] = { 4, 5 }, minus[] = { -1, 3 }, none[] = { 4, 0 };
	int64_t end[] = { INT64_MAX, 0 }, big[] = { INT64_MAX, 2 };
	struct ptc_box box;

	assert_int_equal(ptc_wire_box(off, 2, ext, 2, &box, NULL), 0);
	assert_int_equal(box.ndim, 2);
	assert_int_equal(ptc_box_volume(&box), 20);
	assert_int_equal(ptc_wire_box(off, 0, ext, 0, &box, NULL), PTC_EINVAL);
	assert_int_equal(ptc_wire_box(off, 9, ext, 9, &box, NULL), PTC_EINVAL);
	assert_int_equal(ptc_wire_box(off, 1, ext, 2, &box, NULL), PTC_EINVAL);
	assert_int_equal(ptc_wire_box(minus, 2, ext, 2, &box, NULL), PTC_EINVAL);
	assert_int_equal(ptc_wire_box(off, 2, none, 2, &box, NULL), PTC_EINVAL);
	assert_int_equal(ptc_wire_box(end, 2, ext, 2, &box, NULL), PTC_EINVAL);
	assert_int_equal(ptc_wire_box(off, 2, big, 2, &box, NULL), PTC_EINVAL);
	for (uint32_t v = PTC_WIRE_OLDEST; v <= PTC_WIRE_VERSION + 1; v++)
		assert_int_equal(ptc_pb_version(v, NULL), 0);
	assert_int_equal(ptc_pb_version(PTC_WIRE_OLDEST - 1, NULL), PTC_EVERSION);
	assert_int_equal(ptc_pb_version(PTC_WIRE_VERSION + 2, NULL), PTC_EVERSION);
	assert_int_equal(ptc_pb_version(UINT32_MAX, NULL), PTC_EVERSION);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_malformed),
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_boxes_and_versions),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
