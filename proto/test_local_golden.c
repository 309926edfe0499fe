/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of every message of the local protocol, as version 1 has written them from the beginning: a rank of any
 * libptc reads them. Run with PTC_GOLDEN=1 to print them. */
#include "proto/local_messages.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define IPC "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static void put_tensor(struct ptc_local_out *o)
{
	static const struct ptc_local_box boxes[2] = {
		{ .offset = { 1, 2 }, .extent = { 2, 3 }, .stride = { 24, 4 }, .address = 64 },
		{ .offset = { 3, 0 }, .extent = { 1, 5 }, .stride = { 24, -4 }, .address = UINT64_MAX }
	};

	ptc_local_put_tensor(o,
			     &(struct ptc_local_tensor){ .name = "h.0.w",
							 .field = "exp_avg",
							 .dtype = "F32",
							 .ndim = 2,
							 .flags = 0x01020304,
							 .shape = { 4, 6 },
							 .nboxes = 2 },
			     boxes);
}

static void put_generation(struct ptc_local_out *o)
{
	ptc_local_put_generation(o, &(struct ptc_local_generation){ .generation = 1,
								    .incarnation = 0x0102030405060708,
								    .start_step = 3,
								    .has_state = true,
								    .rank = 4,
								    .world = 5,
								    .local_rank = 6,
								    .local_world = 7,
								    .node_rank = 8,
								    .nodes = 9,
								    .device = 10,
								    .degrees = { 11, 12, 13, 14, 15, 16 },
								    .coordinates = { 17, 18, 19, 20 },
								    .zero = 21,
								    .micro_batch = 22,
								    .global_batch = 23,
								    .config = "tp=2",
								    .job = "j" });
}

static void put_from_ptcd(struct ptc_local_out *o, unsigned which)
{
	static const struct ptc_local_span spans[2] = { { 64, 8, 0 }, { 96, 4, 8 } };
	static const struct ptc_local_rows rows[1] = { { 64, 1, 8, 2, 16, 9 } };

	if (which == 0)
		ptc_local_put_welcome(o, &(struct ptc_local_welcome){ 1, 2, "1.0", PTC_LOCAL_TAKES_LAYOUT });
	else if (which == 1)
		ptc_local_put_refusal(o, PTC_LOCAL_R_STALE, "over");
	else if (which == 2)
		put_generation(o);
	else if (which == 3)
		ptc_local_put_staging(o, 12, spans, 2);
	else if (which == 4)
		ptc_local_put_restored(o, &(struct ptc_local_restored){ true, 9 });
	else if (which == 5)
		ptc_local_put_ended(o, 1, 2);
	else if (which == 6)
		ptc_local_put_number(o, 12);
	else
		ptc_local_put_fill(o, &(struct ptc_local_fill){ 1, 2, 3, .nrows = 1 }, rows, NULL);
}

static void put_from_rank(struct ptc_local_out *o, unsigned which)
{
	if (which == 0)
		ptc_local_put_hello(o, &(struct ptc_local_hello){ 1, 2, 3, "tok", "1.0", PTC_LOCAL_RUNS, 4, 5, 6, 7 });
	else if (which == 1)
		put_tensor(o);
	else if (which == 2)
		ptc_local_put_blob(o, &(struct ptc_local_blob){ "rng", 3, "\0\1\377", 3 });
	else if (which == 3)
		ptc_local_put_cursor(o, &(struct ptc_local_cursor){ "data", "n=1", 7 });
	else if (which == 4)
		ptc_local_put_stopped(o, &(struct ptc_local_stopped){ 8, false, true, "not now", true });
	else if (which == 5)
		ptc_local_put_rendezvous(o, &(struct ptc_local_rendezvous){
						    .id = 1, .code = -6, .value = "vv", .len = 2, .timeout_ms = 500 });
	else if (which == 6)
		ptc_local_put_filled(o, &(struct ptc_local_filled){ 1, 2, -5, true });
	else
		ptc_local_put_device(o, &(struct ptc_local_device){ 4096, 8192, 3, 4, "GPU-1", "no export", IPC, 1 });
}

#define MESSAGES 16

static const char *const golden[MESSAGES] = {
	"01000000020000000000000004000000312e300001000000",
	"f7ffffff050000006f76657200",
	"010000000000000008070605040302010300000000000000010400000005000000060000000700000008000000090000000a0000000b00"
	"00000c0000000d0000000e0000000f00000010000000110000001200000013000000140000001500000016000000170000000500000074"
	"703d3200020000006a00",
	"0c000000000000000200000040000000000000000800000000000000000000000000000060000000000000000400000000000000080000"
	"0000000000",
	"010900000000000000",
	"01000000000000000200000000000000",
	"0c00000000000000",
	"01000000000000000200000000000000030000000000000001000000400000000000000001000000000000000800000000000000020000"
	"00000000001000000000000000090000000000000000000000",
	"0100000002000000030000000000000004000000746f6b0004000000312e30000304000000000000000500000000000000060000000700"
	"0000",
	"06000000682e302e7700080000006578705f61766700040000004633320004030201020000000400000000000000060000000000000002"
	"00000001000000000000000200000000000000020000000000000003000000000000001800000000000000040000000000000040000000"
	"0000000003000000000000000000000000000000010000000000000005000000000000001800000000000000fcffffffffffffffffffff"
	"ffffffffff",
	"04000000726e670003030000000001ff",
	"050000006461746100040000006e3d31000700000000000000",
	"08000000000000000001080000006e6f74206e6f770001",
	"0100000000000000faffffff01000000000100000000020000007676f4010000",
	"01000000000000000200000000000000fbffffff01",
	"0010000000000000002000000000000003000000000000000400000000000000060000004750552d31000a0000006e6f206578706f7274"
	"00400000003031323334353637383961626364656630313233343536373839616263646566303132333435363738396162636465663031"
	"323334353637383961626364656601",
};

static struct ptc_local_out message(unsigned i)
{
	struct ptc_local_out o = { .grow = realloc };

	if (i < MESSAGES / 2)
		put_from_ptcd(&o, i);
	else
		put_from_rank(&o, i - MESSAGES / 2);
	assert_false(o.failed);
	if (PTC_VERSION_RAISED) /* its addition stands behind what version 1 wrote */
		o.len -= sizeof PTC_VERSION_ADDED;
	return o;
}

static void test_bytes(void **state)
{
	(void)state;
	for (unsigned i = 0; i < MESSAGES; i++) {
		struct ptc_local_out o = message(i);
		char *hex = calloc(1, 2 * o.len + 1);

		assert_non_null(hex);
		for (size_t k = 0; k < o.len; k++)
			snprintf(hex + 2 * k, 3, "%02x", o.data[k]);
		if (getenv("PTC_GOLDEN"))
			printf("\t\"%s\",\n", hex);
		else
			assert_string_equal(hex, golden[i]);
		free(hex);
		free(o.data);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_bytes) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
