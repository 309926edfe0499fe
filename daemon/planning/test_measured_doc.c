/* SPDX-License-Identifier: Apache-2.0 */
/* The measured document: what is kept of more than there is room for, and what is not read. */
#include "daemon/planning/measured_doc.h"
#include "daemon/planning/planning.h"

#include "base/alloc.h"
#include "base/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct ptc_measured_doc doc, again;

static void add(unsigned dp, double step_s)
{
	struct ptc_measured_row row = { .step_s = step_s, .noise = 0.03, .steps = dp, .time_ms = 1000 + dp };

	snprintf(row.config, sizeof row.config, "dp=%u", dp);
	ptc_measured_add(&doc, &row);
}

static void the_oldest_goes_first(void **state)
{
	memset(&doc, 0, sizeof doc);
	for (unsigned dp = 1; dp <= PTC_MEASURED_ROWS; dp++)
		add(dp, dp);
	assert_int_equal(PTC_MEASURED_ROWS, doc.nrows);
	add(1, 0.5); /* known: in its old row's place nothing is left, and it is the newest */
	assert_int_equal(PTC_MEASURED_ROWS, doc.nrows);
	assert_string_equal("dp=2", doc.rows[0].config);
	assert_string_equal("dp=1", doc.rows[PTC_MEASURED_ROWS - 1].config);
	add(1000, 7);
	assert_int_equal(PTC_MEASURED_ROWS, doc.nrows);
	assert_string_equal("dp=3", doc.rows[0].config);
	assert_string_equal("dp=1000", doc.rows[PTC_MEASURED_ROWS - 1].config);
}

static void changes_are_counted(void **state)
{
	memset(&doc, 0, sizeof doc);
	assert_true(ptc_measured_between_s(&doc) == 0);
	assert_true(ptc_measured_pause_s(&doc, 10) == 10);
	for (int i = 0; i < 20; i++)
		ptc_measured_change_add(&doc, &(struct ptc_measured_change){ 60000 * i, i == 19 ? 0 : 5, 1.5 });
	assert_int_equal(PTC_MEASURED_CHANGES, doc.nchanges);
	assert_int_equal(60000 * 4, doc.changes[0].time_ms);
	assert_true(ptc_measured_between_s(&doc) == 60);
	assert_true(ptc_measured_pause_s(&doc, 10) == 3.5); /* one whose pause is not known does not count */
}

static void devices_that_go(void **state)
{
	static const uint32_t seen[] = { 8, 8, 6, 9, 5 }; /* what comes back counts only if it goes again */
	double every_s, devices;

	memset(&doc, 0, sizeof doc);
	ptc_measured_losses_mean(doc.losses, doc.nlosses, 1, &every_s, &devices);
	assert_true(every_s == 0 && devices == 0);
	for (int i = 0; i < 5; i++)
		assert_int_equal(i == 2 || i == 4, ptc_measured_devices(&doc, seen[i], 100000 * i));
	assert_int_equal(2, doc.nlosses);
	ptc_measured_losses_mean(doc.losses, 1, 600000, &every_s, &devices);
	assert_true(every_s == 0 && devices == 0); /* one says nothing of how often */
	ptc_measured_losses_mean(doc.losses, doc.nlosses, 600000, &every_s, &devices);
	assert_true(every_s == 200 && devices == 3);
	ptc_measured_losses_mean(doc.losses, doc.nlosses, 200000 + 86400000, &every_s, &devices);
	assert_true(every_s == 43200); /* a day without one */
	for (uint32_t n = 1000; n > 980; n--)
		ptc_measured_devices(&doc, n, n);
	assert_int_equal(PTC_MEASURED_LOSSES, doc.nlosses);
	assert_int_equal(981, doc.losses[PTC_MEASURED_LOSSES - 1].time_ms);
}

static void comes_back_as_it_was(void **state)
{
	char *json;

	memset(&doc, 0, sizeof doc);
	add(3, 0.1234567890123);
	add(4, 1e-6);
	doc.rows[1].peak_bytes = 12345678901.0;
	doc.rows[1].host_bytes = 45678901.0;
	ptc_measured_change_add(&doc, &(struct ptc_measured_change){ 1700000000123, 2.25, 0.5 });
	ptc_measured_devices(&doc, 8, 1);
	ptc_measured_devices(&doc, 5, 1700000000124);
	json = ptc_measured_encode(&doc);
	assert_non_null(json);
	assert_string_equal(
		json, "{\"version\":1,\"rows\":[{\"config\":\"dp=3\",\"step_s\":0.12345678901230001,\"peak_bytes\":0.0,"
		      "\"host_bytes\":0.0,"
		      "\"noise\":0.029999999999999999,\"steps\":3,\"time_ms\":1003},{\"config\":\"dp=4\",\"step_s\":9."
		      "9999999999999995e-7,"
		      "\"peak_bytes\":12345678901.0,\"host_bytes\":45678901.0,\"noise\":0.029999999999999999,\"steps\":"
		      "4,\"time_ms\":1004}],"
		      "\"changes\":["
		      "{\"time_ms\":1700000000123,\"pause_s\":2.25,\"moving_s\":0.5}],\"losses\":["
		      "{\"time_ms\":1700000000124,\"devices\":3}],\"devices\":5}");
	assert_int_equal(0, ptc_measured_decode(json, strlen(json), &again, NULL));
	assert_memory_equal(&doc, &again, sizeof doc);
	ptc_free(json);
}

static void refused(const char *json, int code, const char *says)
{
	struct ptc_error err = PTC_ERROR_INIT;

	assert_int_equal(code, ptc_measured_decode(json, strlen(json), &again, &err));
	if (!strstr(err.text, says))
		fail_msg("\"%s\" does not say \"%s\"", err.text, says);
}

static void what_is_not_ours_is_refused(void **state)
{
	char many[8192] = "{\"version\":1,\"changes\":[";
	size_t at = strlen(many);

	assert_int_equal(0, ptc_measured_decode("{\"version\":2}", 13, &again, NULL));
	refused("{\"version\":3}", PTC_EVERSION, "measured steps: ");
	refused("{\"version\":1,\"rows\":{}}", PTC_EINVAL, "measured steps: \"rows\" must be a list");
	refused("{\"version\":1,\"devices\":\"8\"}", PTC_EINVAL, "\"devices\" must be a whole number");
	refused("{\"version\":1,\"rows\":[{\"config\":\"dp=1\"}]}", PTC_EINVAL, "\"step_s\" is missing");
	refused("{\"version\":1,\"rows\":[{\"config\":\"dp=1\",\"step_s\":-1.0}]}", PTC_EINVAL,
		"\"step_s\" must be a number, not negative");
	refused("{\"version\":1,\"rows\":[{\"config\":\"dp=1\",\"step_s\":0}]}", PTC_EINVAL,
		"\"step_s\" must not be 0");
	refused("{\"version\":1,\"rows\":[{\"config\":\"dp=1\",\"step_s\":1.0,\"noise\":-0.1}]}", PTC_EINVAL,
		"\"noise\" must be a number in 0..1");
	refused("{\"version\":1,\"rows\":[{\"config\":\"dp=1\",\"step_s\":1.0,\"noise\":7.5}]}", PTC_EINVAL,
		"\"noise\" must be a number in 0..1");
	for (int i = 0; i <= PTC_MEASURED_CHANGES; i++)
		at += (size_t)snprintf(many + at, sizeof many - at, "%s{}", i ? "," : "");
	snprintf(many + at, sizeof many - at, "]}");
	refused(many, PTC_ELIMIT, "more than");
}

/* What a profile in etcd says is what was written there. */
static void profiles_as_text(void **state)
{
	struct ptc_link pairs[] = {
		{ "a", "b", .bytes_s = 1.5 },
		{ "b", "a", 2.5, 0.25, .measured_bytes_s = 8.5, .seen_bytes_s = 4.5, .measured_ms = 9 },
	};
	struct ptc_link not_measured = { "a", "c", 0, 0, 0, 0, 0 };
	struct ptc_link_change change = { "a", "b", 2e9, 1e9 };
	struct ptc_link_changes changed = { &change, 1 };
	struct ptc_profile_doc profile = { .profile = (char *)(uintptr_t) "devices_per_node: 2\n",
					   .pairs = { pairs, 2 },
					   .set_ms = 5 },
			       got;
	char *text;

	text = ptc_profile_doc_encode(&profile, &changed, &(struct ptc_links){ &not_measured, 1 });
	assert_string_equal("{\"version\":1,\"profile\":\"devices_per_node: 2\\n\",\"pairs\":["
			    "{\"from\":\"a\",\"to\":\"b\",\"bytes_s\":1.5,\"latency_s\":0.0},"
			    "{\"from\":\"b\",\"to\":\"a\",\"bytes_s\":2.5,\"latency_s\":0.25,\"measured_ms\":9,"
			    "\"measured_bytes_s\":8.5,\"seen_bytes_s\":4.5}],\"set_ms\":5,"
			    "\"changed\":[{\"from\":\"a\",\"to\":\"b\",\"was\":2000000000.0,"
			    "\"is\":1000000000.0}],\"failed\":[{\"from\":\"a\",\"to\":\"c\"}]}",
			    text);
	assert_int_equal(0, ptc_profile_doc_decode("profile", text, &got, NULL));
	ptc_free(text);
	assert_string_equal(profile.profile, got.profile);
	assert_int_equal(5, got.set_ms);
	assert_int_equal(0, got.measured_ms);
	assert_int_equal(2, got.pairs.n);
	assert_memory_equal(pairs, got.pairs.v, sizeof pairs);
	ptc_profile_doc_done(&got);
	text = ptc_profile_doc_encode(&(struct ptc_profile_doc){ .measured_ms = 7 }, NULL, NULL);
	assert_string_equal("{\"version\":1,\"profile\":null,\"pairs\":[],\"measured_ms\":7}", text);
	assert_int_equal(0, ptc_profile_doc_decode("profile", text, &got, NULL));
	assert_true(!got.profile && !got.pairs.n && got.measured_ms == 7);
	ptc_profile_doc_done(&got);
	ptc_free(text);
	assert_int_equal(PTC_EINVAL, ptc_profile_doc_decode("profile", "{", &got, NULL));
	assert_int_equal(PTC_EINVAL, ptc_profile_doc_decode("profile", "[1]", &got, NULL));
	assert_int_equal(PTC_EINVAL, ptc_profile_doc_decode("profile", "{\"pairs\": [{\"from\": \"a\"}]}", &got, NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(devices_that_go),
		cmocka_unit_test(the_oldest_goes_first),
		cmocka_unit_test(changes_are_counted),
		cmocka_unit_test(comes_back_as_it_was),
		cmocka_unit_test(what_is_not_ours_is_refused),
		cmocka_unit_test(profiles_as_text),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
