/* SPDX-License-Identifier: Apache-2.0 */
/* What an event says, to the letter: of nothing, of a switch that was committed, of one that was aborted. A long text
 * is cut at a character. Of what is read, members that are not known stay in the text, and what is malformed is refused
 * or passed over. */
#include "daemon/cluster/events/event_doc.h"

#include "base/buf.h"
#include "base/check.h"
#include "base/test_leaks.h"
#include "formats/test_json.h"

#include <string.h>

#define HEAD  "{\"version\":1,\"time_ms\":7,\"node\":\"n0\",\"kind\":\"k\",\"text\":\"t\""
#define EVENT .time_ms = 7, .node = "n0", .kind = "k", .text = "t"

static void assert_encoded(const char *want, const struct ptc_event_doc *doc)
{
	char *text = ptc_event_doc_encode(doc);

	assert_string_equal(want, text);
	ptc_free(text);
}

static void of_no_switch_and_of_an_abort(void **state)
{
	struct ptc_event_doc doc = { EVENT };

	(void)state;
	assert_encoded(HEAD "}", &doc);
	doc.end = (struct ptc_switch_end){ 9007199254740991, -17, "a \"reason\"" };
	assert_encoded(HEAD ",\"switch\":{\"id\":9007199254740991,\"status\":-17,\"why\":\"a \\\"reason\\\"\"}}", &doc);
	doc.end.why = "not UTF-8: \xff";
	assert_encoded(HEAD "}", &doc);
	doc.text = "\xff";
	assert_null(ptc_event_doc_encode(&doc));
}

#define COMMITTED                                                                                                      \
	"\"id\":3,\"kind\":\"resize\",\"generation\":4,\"snapshot\":5,\"step\":6,\"from\":\"\",\"to\":\"dp=2\","       \
	"\"received_bytes\":7,\"copied_bytes\":8,\"digests_verified\":9,\"preserved\":\"native\",\"seconds\":0.5"
#define PAUSE                                                                                                          \
	",\"captured_bytes\":10,\"pause\":{\"total_ms\":1.0,\"stop_ms\":2.0,\"copy_ms\":3.0,\"commit_ms\":4.0,"        \
	"\"end_ms\":5.0,\"build_ms\":6.0,\"move_ms\":7.0,\"restore_ms\":8.0"
#define DEVICES ",\"device_kept_bytes\":0,\"device_peer_bytes\":2,\"device_host_bytes\":3"

static void of_a_committed_switch(void **state)
{
	char none[] = "", to[] = "dp=2", ranks[] = "0-3,8";
	struct ptc_switch_moved nodes[] = { { "n1", 1, 0 } };
	struct ptc_switch_placed rows[] = { { "n1", ranks }, { "n2", ranks } };
	struct ptc_event_doc doc = { EVENT, .end = { .id = 3,
						     .kind = "resize",
						     .generation = 4,
						     .snapshot = 5,
						     .step = 6,
						     .from = none,
						     .to = to,
						     .received_bytes = 7,
						     .copied_bytes = 8,
						     .digests_verified = 9,
						     .preserved = "native",
						     .seconds = 0.5,
						     .captured_bytes = 10,
						     .pause = { 1, 2, 3, 4, 5, 6, 7, 8 },
						     .device_peer_bytes = 2,
						     .device_host_bytes = 3,
						     .totals = { 1, 2, 3, 4, 5, 6, 7, true, -4 } } };

	(void)state;
	assert_encoded(HEAD ",\"switch\":{" COMMITTED "}}", &doc);
	doc.end.ran = doc.end.on_devices = doc.end.unfinished = true;
	assert_encoded(HEAD ",\"switch\":{" COMMITTED PAUSE "}" DEVICES ",\"device_unfinished\":true}}", &doc);
	doc.end.on_devices = doc.end.unfinished = false;
	doc.end.pause.has_slowed = doc.end.pause.has_lost = doc.end.pause.has_first_step = true;
	doc.end.pause.lost_ms = 1.5;
	doc.end.pause.first_step_ms = 0.25;
	doc.end.ahead = true;
	doc.end.built_ahead_ms = 11;
	assert_encoded(HEAD ",\"switch\":{" COMMITTED PAUSE
			    ",\"slowed_ms\":0.0,\"lost_ms\":1.5,\"first_step_ms\":0.25},\"built_ahead_ms\":11.0}}",
		       &doc);
	doc.end.ran = doc.end.ahead = false;
	doc.end.counted = true;
	doc.end.nodes = nodes;
	doc.end.nnodes = 1;
	doc.end.before = doc.end.after = rows;
	doc.end.nbefore = 1;
	doc.end.nafter = 2;
#define ROW(node) "{\"node\":\"" node "\",\"ranks\":\"0-3,8\"}"
	assert_encoded(HEAD ",\"switch\":{" COMMITTED ",\"totals\":{\"in_place\":1,\"within_node\":2,"
			    "\"between_nodes\":3,\"bound_this_mapping\":6,\"bound_any_mapping\":7,"
			    "\"bound_exact\":true,\"gap\":-4,\"reset\":4,\"derived\":5},\"nodes\":[{\"node\":\"n1\","
			    "\"in_bytes\":1,\"out_bytes\":0}],\"before\":[" ROW("n1") "],\"after\":[" ROW("n1") "," ROW(
				    "n2") "]}}",
		       &doc);
}

/* What a summary has. */
static void without_nodes(void **state)
{
	char none[] = "", to[] = "dp=2";
	const struct ptc_switch_end end = { .id = 3,
					    .kind = "resize",
					    .generation = 4,
					    .snapshot = 5,
					    .step = 6,
					    .from = none,
					    .to = to,
					    .received_bytes = 7,
					    .copied_bytes = 8,
					    .digests_verified = 9,
					    .preserved = "native",
					    .seconds = 0.5,
					    .counted = true };
	json_t *root = json_object();

	(void)state;
	assert_int_equal(0, ptc_switch_end_put(root, &end));
	test_json_is("{" COMMITTED "}", root);
}

static void a_long_text_is_cut(void **state)
{
	struct ptc_event_doc doc = { EVENT };
	struct ptc_buf text = PTC_BUF_INIT;
	char *json;

	(void)state;
	for (int i = 0; i < 300; i++)
		ptc_buf_puts(&text, "\xe2\x82\xac\x01"); /* the euro sign, and six bytes in JSON */
	doc.text = text.data;
	json = ptc_event_doc_encode(&doc);
	assert_non_null(json); /* so it is UTF-8 */
	assert_true(strlen(json) <= PTC_EVENT_MAX_BYTES && strlen(json) > PTC_EVENT_MAX_BYTES / 3);
	ptc_free(json);
	ptc_buf_done(&text);
}

static void what_is_read(void **state)
{
	static const char later[] =
		"{\"version\":2,\"color\":1,\"number\":8,\"kind\":\"aborted\",\"text\":{},\"switch\":"
		"{\"new\":[1],\"id\":3,\"status\":-4,\"why\":\"w\",\"pause\":\"none\"}}";
	struct ptc_event_doc doc;

	(void)state;
	assert_int_equal(0, ptc_event_doc_decode(later, strlen(later), &doc, NULL));
	assert_int_equal(8, doc.number);
	assert_string_equal("aborted", doc.kind);
	assert_int_equal(3, doc.end.id);
	assert_int_equal(-4, doc.end.status);
	assert_string_equal("w", doc.end.why);
	ptc_event_doc_done(&doc);
	for (size_t len = 0; len < strlen(later); len++) {
		assert_int_equal(PTC_EINVAL, ptc_event_doc_decode(later, len, &doc, NULL));
		assert_true(!doc.kind && !doc.end.id && !doc.end.why);
	}
	assert_int_equal(0, ptc_event_doc_decode("{}", 2, &doc, NULL));
	assert_true(!doc.number && !doc.kind && !doc.end.id && !doc.end.why);
}

static void what_is_refused(void **state)
{
	static const struct {
		const char *text, *names;
	} bad[] = {
		{ "[]", "map" },
		{ "{\"number\":-1}", "number" },
		{ "{\"kind\":7}", "kind" },
		{ "{\"kind\":\"k\",\"switch\":7}", "switch" },
		{ "{\"kind\":\"k\",\"switch\":{\"id\":\"3\"}}", "id" },
		{ "{\"kind\":\"k\",\"switch\":{\"id\":3,\"status\":1e3}}", "status" },
		{ "{\"kind\":\"k\",\"switch\":{\"id\":3,\"why\":null}}", "why" },
	};

	(void)state;
	for (size_t i = 0; i < PTC_ARRAY_LEN(bad); i++) {
		struct ptc_error err = PTC_ERROR_INIT;
		struct ptc_event_doc doc;

		assert_int_equal(PTC_EINVAL, ptc_event_doc_decode(bad[i].text, strlen(bad[i].text), &doc, &err));
		assert_non_null(strstr(err.text, bad[i].names));
		assert_true(!doc.kind && !doc.end.id && !doc.end.why);
	}
}

static int add(struct ptc_read_events *to, uint64_t number, const char *text)
{
	return ptc_read_events_add(to, number, text, strlen(text));
}

static void events_as_they_are_told(void **state)
{
	struct ptc_read_events all = { 0 };

	(void)state;
	assert_int_equal(0, add(&all, 0, "{\"number\":6,\"kind\":\"b\"}"));
	assert_int_equal(0, add(&all, 4, "{\"kind\":\"a\",\"later\":{\"x\":1.50}}"));
	assert_int_equal(0, add(&all, 5, "{\"kind\":7}"));
	assert_int_equal(0, add(&all, 5, "{\"kind\""));
	assert_int_equal(0, add(&all, 5, "[]"));
	assert_int_equal(0, add(&all, 6, "{\"kind\":\"b\"}"));
	assert_int_equal(0, add(&all, 2, "{\"kind\":\"c\"}"));
	assert_int_equal(4, all.n);
	ptc_read_events_sort(&all, 2);
	assert_int_equal(2, all.n);
	assert_int_equal(4, all.v[0].number);
	assert_int_equal(6, all.v[1].number);
	test_json_is("{\"kind\":\"a\",\"later\":{\"x\":1.5},\"number\":4}", json_incref(all.v[0].json));
	test_json_is("{\"number\":6,\"kind\":\"b\"}", json_incref(all.v[1].json));
	ptc_read_events_done(&all);
	assert_true(!all.v && !all.n);
	ptc_read_events_sort(&all, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(of_no_switch_and_of_an_abort),
		cmocka_unit_test(of_a_committed_switch),
		cmocka_unit_test(without_nodes),
		cmocka_unit_test(a_long_text_is_cut),
		cmocka_unit_test(what_is_read),
		cmocka_unit_test(what_is_refused),
		cmocka_unit_test(events_as_they_are_told),
	};

	return test_leaks(cmocka_run_group_tests(tests, NULL, NULL));
}
