/* SPDX-License-Identifier: Apache-2.0 */
/* What `status` says of a job and of the daemon, to the letter. */
#include "daemon/api/queries/status_doc.h"

#include "base/test_leaks.h"
#include "formats/test_json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

static void a_job_without_a_record(void **state)
{
	(void)state;
	test_json_is(
		"{\"job\":\"gpt\",\"uuid\":\"u-1\",\"uid\":4,\"controller\":\"\",\"phase\":\"empty\","
		"\"has_state\":false,\"generation\":0,\"snapshot\":0,\"step\":0,\"bytes_done\":0,"
		"\"bytes_total\":0,\"run\":{\"state\":\"none\",\"incarnation\":0}}",
		ptc_status_job_json(&(struct ptc_status_job){
			.name = "gpt", .uuid = "u-1", .uid = 4, .controller = "", .phase = "empty", .run = "none" }));
}

static void a_job_that_has_everything(void **state)
{
	const struct ptc_older kept[] = { { .generation = 1, .snapshot = 2, .step = 30 },
					  { .generation = 2, .snapshot = 5, .step = 40 } };
	json_t *archive = json_pack("{s:s, s:b}", "dir", "/a", "running", 0);

	(void)state;
	test_json_is("{\"job\":\"gpt\",\"uuid\":\"u-1\",\"uid\":4,\"controller\":\"n0\",\"phase\":\"idle\","
		     "\"has_state\":true,\"generation\":3,\"snapshot\":7,\"step\":50,\"bytes_done\":1,"
		     "\"bytes_total\":2,\"archive\":{\"dir\":\"/a\",\"running\":false},\"kept\":[[2,30],[5,40]],"
		     "\"bridge\":{\"snapshot\":5,\"generation\":2,\"step\":40},\"no_bridge\":\"no \\\"room\\\"\","
		     "\"unreadable\":\"later\",\"files_group\":0,\"run\":{\"state\":\"live\",\"incarnation\":6}}",
		     ptc_status_job_json(&(struct ptc_status_job){ .name = "gpt",
								   .uuid = "u-1",
								   .controller = "n0",
								   .phase = "idle",
								   .uid = 4,
								   .generation = 3,
								   .snapshot = 7,
								   .step = 50,
								   .bytes_done = 1,
								   .bytes_total = 2,
								   .has_state = true,
								   .archive = archive,
								   .kept = kept,
								   .nkept = 2,
								   .bridge = kept[1],
								   .no_bridge = "no \"room\"",
								   .unreadable = "later",
								   .shared = true, /* with group 0 */
								   .run = "live",
								   .incarnation = 6 }));
	json_decref(archive);
}

static void the_daemon(void **state)
{
	(void)state;
	test_json_is("{\"scrub\":{\"rate\":1,\"bytes\":2,\"rounds\":3,\"round_bytes\":4,\"round_left_bytes\":5,"
		     "\"round_ended_ms\":9,\"found_blocks\":6,\"healed_blocks\":7,\"damaged_blocks\":8,"
		     "\"paused\":true},\"node\":\"n0\",\"version\":\"1\",\"coordinator_ok\":true,\"insecure\":false,"
		     "\"coordinator_bytes\":10,\"coordinator_used_bytes\":11,\"coordinator_limit_bytes\":12,"
		     "\"coordinator_full\":true,\"kept_jobs\":13,\"kept_bytes\":14,\"certificate_ends_ms\":15}",
		     ptc_status_daemon_json(&(struct ptc_status_daemon){ .scrub = { 1, 2, 3, 4, 5, 6, 7, 8, 9, true },
									 .node = "n0",
									 .version = "1",
									 .coordinator_ok = true,
									 .coordinator_full = true,
									 .coordinator_bytes = 10,
									 .coordinator_used = 11,
									 .coordinator_limit = 12,
									 .kept_jobs = 13,
									 .kept_bytes = 14,
									 .certificate_ends_ms = 15 }));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_job_without_a_record),
		cmocka_unit_test(a_job_that_has_everything),
		cmocka_unit_test(the_daemon),
	};

	return test_leaks(cmocka_run_group_tests(tests, NULL, NULL));
}
