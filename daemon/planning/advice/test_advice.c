/* SPDX-License-Identifier: Apache-2.0 */
/* The planner's advice as JSON, to the letter: of a number of devices, and of a range. */
#include "daemon/planning/advice/advice.h"

#include "base/test_leaks.h"
#include "formats/test_json.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

static char tp[] = "tp=2", dp[] = "dp=2", none[] = "pp=2";
static struct ptc_advice_kind kinds[] = {
	{ .name = "H100", .devices = 4, .memory_known = true, .memory_bytes = 80, .price_hour = 2.5 },
	{ .name = "a device", .devices = 2 },
};

#define HEAD                                                                                                           \
	"{\"version\":1,\"gpus\":2,\"calibrated\":true,\"measured_steps\":3,\"profiled\":false,\"links_known\":true,"  \
	"\"horizon_s\":60.0,\"model\":\"inferred\",\"remembered\":{\"devices\":4,\"frontier\":true,\"searches\":5},"   \
	"\"kinds\":[{\"name\":\"H100\",\"devices\":4,\"memory_bytes\":80.0,\"price_hour\":2.5},{\"name\":\"a "         \
	"device\",\"devices\":2,\"memory_bytes\":null,\"price_hour\":null}],"

static struct ptc_advice advice(void)
{
	return (struct ptc_advice){ .gpus = 2,
				    .calibrated = true,
				    .links_known = true,
				    .measured_steps = 3,
				    .horizon_s = 60,
				    .model = PTC_MODEL_INFERRED,
				    .remembered = { 4, true, 5 },
				    .kinds = kinds,
				    .nkinds = 2 };
}

static void of_a_number(void **state)
{
	struct ptc_advice_row rows[] = {
		{ .config = tp,
		  .devices = 2,
		  .micro_batches = 8,
		  .step_s = 0.5,
		  .parts = { .tp_s = 0.25 },
		  .runs_now = true,
		  .priced = true,
		  .moved_bytes = 7,
		  .is_placed = true,
		  .placed = { .by = PTC_PLACED_BY_BYTES, .bytes_s = { 0, 0, 0, 4 }, .gap = 0.5 } },
		{ .config = none, .step_s = INFINITY }, /* is left out */
		{ .config = dp, .pays = true, .break_even_s = 9 },
	};
	struct ptc_advice_measured measured[] = { { .config = dp, .step_s = 0.5, .steps = 6, .time_ms = 7 } };
	struct ptc_advice a = advice();

	(void)state;
	a.rows = rows;
	a.nrows = 3;
	a.measured = measured;
	a.nmeasured = 1;
	test_json_is(HEAD
		     "\"why\":\"\",\"candidates\":[{\"config\":\"tp=2\",\"devices\":2,\"step_s\":0.5,\"error\":0.0,"
		     "\"samples_s\":0.0,\"memory_bytes\":0.0,\"state_bytes\":0.0,\"activation_bytes\":0.0,"
		     "\"micro_batches\":8,\"parts_s\":{\"compute\":0.0,\"tp\":0.25,\"cp\":0.0,\"ep\":0.0,\"pp\":0.0,"
		     "\"bubble\":0.0,\"dp\":0.0,\"optimizer\":0.0,\"fixed\":0.0},\"pause_s\":0.0,\"runs_now\":true,"
		     "\"moved_bytes\":7.0,\"moved_bytes_least\":0.0,\"moved_exact\":false,\"placed\":{\"by\":\"bytes\","
		     "\"links_bytes_s\":{\"dp\":4.0},\"gap\":0.5}},{\"config\":\"dp=2\",\"devices\":0,\"step_s\":0.0,"
		     "\"error\":0.0,\"samples_s\":0.0,\"memory_bytes\":0.0,\"state_bytes\":0.0,"
		     "\"activation_bytes\":0.0,\"micro_batches\":0,\"parts_s\":{\"compute\":0.0,\"tp\":0.0,\"cp\":0.0,"
		     "\"ep\":0.0,\"pp\":0.0,\"bubble\":0.0,\"dp\":0.0,\"optimizer\":0.0,\"fixed\":0.0},\"pause_s\":0.0,"
		     "\"runs_now\":false,\"break_even_s\":9.0}],\"measured\":[{\"config\":\"dp=2\",\"step_s\":0.5,"
		     "\"steps\":6,\"time_ms\":7}]}",
		     ptc_advice_json(&a));
}

static void of_a_range(void **state)
{
	struct ptc_advice_count counts[] = {
		{ .gpus = 1 },
		{ .gpus = 2, .config = dp, .devices = 2, .step_s = 0.5, .priced = true, .moved_exact = true },
	};
	struct ptc_advice a = advice();

	(void)state;
	a.counts = counts;
	a.ncounts = 2;
	test_json_is(HEAD "\"counts\":[{\"gpus\":1},{\"gpus\":2,\"config\":\"dp=2\",\"devices\":2,\"step_s\":0.5,"
			  "\"error\":0.0,\"samples_s\":0.0,\"memory_bytes\":0.0,\"pause_s\":0.0,\"moved_bytes\":0.0,"
			  "\"moved_exact\":true}]}",
		     ptc_advice_json(&a));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(of_a_number),
		cmocka_unit_test(of_a_range),
	};

	return test_leaks(cmocka_run_group_tests(tests, NULL, NULL));
}
