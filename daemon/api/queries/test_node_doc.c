/* SPDX-License-Identifier: Apache-2.0 */
/* What `nodes` says of a node, to the letter: of one that answers, one that does not, and answers that are none. */
#include "daemon/api/queries/node_doc.h"

#include "base/test_leaks.h"
#include "formats/test_json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define SUMS                                                                                                           \
	"\"store\":{\"ceiling_bytes\":1,\"used_bytes\":2,\"file_bytes\":3,\"chunks_used\":4,\"chunks_free\":5,"        \
	"\"copied_bytes\":6,\"lost_jobs\":7,\"outside_bytes\":8,\"pinned_bytes\":9}," SUMS_BESIDE
#define SUMS_BESIDE BESIDE_WITH("")
#define BESIDE_WITH(backing)                                                                                           \
	"\"staging\":{\"ceiling_bytes\":10,\"peak_bytes\":11},\"memory\":{\"ceiling_bytes\":12,\"chunks_bytes\":13,"   \
	"\"staging_bytes\":14,"                                                                                        \
	"\"work_bytes\":15,\"transport_bytes\":16,\"etcd_bytes\":17,\"tables_bytes\":18" backing                       \
	"},\"heap\":{\"used_bytes\":19,"                                                                               \
	"\"peak_bytes\":20}"
#define GPU                                                                                                            \
	"{\"device\":0,\"kind\":\"gpu\",\"health\":\"ecc\",\"uuid\":\"GPU-1\",\"name\":\"H\",\"bus\":\"\","            \
	"\"index\":3,\"memory_bytes\":100,\"free_bytes\":90,\"processes\":0,\"why\":\"bits\",\"ranks\":["
#define VIRTUAL "{\"device\":1,\"kind\":\"virtual\",\"health\":\"ok\",\"ranks\":["
#define RANK    "{\"job\":\"gpt\",\"uid\":0,\"rank\":5,\"pid\":77}"
/* As daemon/agent/switch/switch_calls.c writes it. */
#define STAT    "{\"version\":1,\"node\":\"a\"," SUMS ",\"device_list\":[" GPU RANK "," RANK "]}," VIRTUAL "]}]}"

#define ROW                                                                                                            \
	"{\"node\":\"a\",\"state\":\"%s\",\"address\":\"h:1\",\"drained\":%s,\"devices\":2,\"device_name\":\"H\","     \
	"\"device_bytes\":100,\"ceiling_bytes\":1,\"rack\":\"r\",\"insecure\":false,\"pid\":12,\"documents\":1,"
#define DOC                                                                                                            \
	{                                                                                                              \
		.name = "a", .address = "h:1", .devices = 2, .device_name = "H", .device_bytes = 100,                  \
		.ceiling_bytes = 1, .rack = "r", .pid = 12, .documents = 1                                             \
	}

static void assert_text(struct ptc_node_listed *n, const char *state, const char *drained, const char *rest)
{
	struct ptc_buf want = PTC_BUF_INIT;

	ptc_buf_printf(&want, ROW "%s", state, drained, rest);
	test_json_is(want.data, ptc_node_listed_json(n));
	ptc_buf_done(&want);
}

static void a_node_that_answers(void **state)
{
	struct ptc_node_listed n = {
		.doc = DOC, .up = true, .unhealthy = "0:ecc", .devices_free = 1, .answered = true
	};

	(void)state;
	assert_int_equal(0, ptc_node_given_add(&n, 0, &(struct ptc_node_owner){ .uid = 4, .job = "gpt" }));
	assert_int_equal(0, ptc_node_given_add(&n, 0, &(struct ptc_node_owner){ .uid = 5 }));
	assert_int_equal(0, ptc_node_given_add(&n, 7, &(struct ptc_node_owner){ .uid = 4 }));
	assert_int_equal(0, ptc_node_stat_decode(STAT, &n.stat, NULL));
	n.stat.devices[0].ranks[1].job[0] = '\0'; /* the caller may not know it */
	assert_text(&n, "up", "false",
		    "\"lost\":false,\"given\":[{\"device\":0,\"jobs\":[{\"uid\":4,\"job\":\"gpt\"},{\"uid\":5}]},{"
		    "\"device\":7,"
		    "\"jobs\":[{\"uid\":4}]}],\"devices_free\":1,\"unhealthy\":\"0:ecc\",\"version\":1," SUMS
		    ",\"device_list\":[" GPU RANK
		    ",{\"uid\":0,\"rank\":5,\"pid\":77}],\"jobs\":[{\"uid\":4,\"job\":\"gpt\"},{\"uid\":5}]}," VIRTUAL
		    "],\"jobs\":[]}]}");
	ptc_node_listed_done(&n);
}

/* The first version that the documents are compatible with said neither how much is pinned, nor whose a process is. */
static void a_node_of_an_older_version(void **state)
{
	static const char stat[] = "{\"version\":1,\"store\":{\"ceiling_bytes\":1,\"used_bytes\":2,\"file_bytes\":3,"
				   "\"chunks_used\":4,\"chunks_free\":5,\"copied_bytes\":6,\"lost_jobs\":7,"
				   "\"outside_bytes\":8}," SUMS_BESIDE ",\"device_list\":[" VIRTUAL
				   "{\"job\":\"gpt\",\"rank\":5,\"pid\":77}]";
	struct ptc_node_listed n = { .doc = DOC, .up = true, .answered = true };
	struct ptc_buf text = PTC_BUF_INIT;

	(void)state;
	ptc_buf_printf(&text, "%s}]}", stat);
	assert_int_equal(0, ptc_node_stat_decode(text.data, &n.stat, NULL));
	ptc_buf_done(&text);
	assert_false(n.stat.devices[0].ranks[0].has_uid);
	ptc_buf_printf(&text, "\"lost\":false,\"given\":[],\"devices_free\":0,%s,\"jobs\":[]}]}", stat + 1);
	assert_text(&n, "up", "false", text.data);
	ptc_buf_done(&text);
	ptc_node_listed_done(&n);
}

/* It serves files: what they take is said beside the shares of the ceiling. */
static void a_node_with_files(void **state)
{
	static const char beside[] = BESIDE_WITH(",\"backing_bytes\":21,\"backing_open_bytes\":22");
	static const char stat[] = "{\"version\":1,\"store\":{\"ceiling_bytes\":1,\"used_bytes\":2,\"file_bytes\":3,"
				   "\"chunks_used\":4,\"chunks_free\":5,\"copied_bytes\":6,\"lost_jobs\":7,"
				   "\"outside_bytes\":8},";
	struct ptc_node_listed n = { .doc = DOC, .up = true, .answered = true };
	struct ptc_buf text = PTC_BUF_INIT;

	(void)state;
	ptc_buf_printf(&text, "%s%s,\"device_list\":[]}", stat, beside);
	assert_int_equal(0, ptc_node_stat_decode(text.data, &n.stat, NULL));
	ptc_buf_done(&text);
	assert_true(n.stat.memory.backing == 21 && n.stat.memory.backing_open == 22);
	ptc_buf_printf(&text, "\"lost\":false,\"given\":[],\"devices_free\":0,%s%s,\"device_list\":[]}", stat + 1,
		       beside);
	assert_text(&n, "up", "false", text.data);
	ptc_buf_done(&text);
	ptc_node_listed_done(&n);
}

static void nodes_that_do_not_answer(void **state)
{
	(void)state;
	assert_text(&(struct ptc_node_listed){ .doc = DOC, .lost = true, .devices_free = 2 }, "down", "false",
		    "\"lost\":true,\"given\":[],\"devices_free\":2}");
	assert_text(&(struct ptc_node_listed){ .doc = DOC, .unreachable = true, .devices_free = 2 }, "down", "false",
		    "\"lost\":false,\"unreachable\":true,\"given\":[],\"devices_free\":2}");
	assert_text(&(struct ptc_node_listed){ .doc = DOC, .up = true, .drained = true }, "drained", "true",
		    "\"lost\":false,\"given\":[],\"devices_free\":0}");
}

static void answers_that_are_none(void **state)
{
	static const char *const bad[] = { "", "[]", "{\"version\":1}", "{\"version\":1," SUMS "}" };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_node_stat s;

	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		assert_int_equal(PTC_EINVAL, ptc_node_stat_decode(bad[i], &s, &err));
	assert_string_equal("stat: \"device_list\" is missing", err.text);
	assert_int_equal(PTC_EINVAL,
			 ptc_node_stat_decode("{\"version\":1," SUMS ",\"device_list\":[" GPU RANK ",{}]}]}", &s,
					      &err));
	assert_null(s.devices);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_node_that_answers),   cmocka_unit_test(a_node_of_an_older_version),
		cmocka_unit_test(a_node_with_files),     cmocka_unit_test(nodes_that_do_not_answer),
		cmocka_unit_test(answers_that_are_none),
	};

	return test_leaks(cmocka_run_group_tests(tests, NULL, NULL));
}
