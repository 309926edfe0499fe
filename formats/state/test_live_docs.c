/* SPDX-License-Identifier: Apache-2.0 */
/* The documents of running ranks: layout documents and state documents. What
 * canonical text is, what is refused and how it is said, and every allocation
 * failing in turn. */
#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/limits.h"
#include "formats/state/layout_doc.h"
#include "formats/names.h"
#include "formats/state/state_doc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* ---- layout documents ---- */

static const char layout[] = "{\"version\":1,\"config\":\"tp=2,dp=2\",\"tensors\":[[\"m\",\"F32\",[8,4]],"
			     "[\"m:exp_avg\",\"F32\",[8,4]],[\"step\",\"F32\",[]],[\"z\",\"U8\",[0,3]]],"
			     "\"classes\":[[[0,0,0,4,4],[1,0,0,2,4],2,[3]],[[0,4,0,4,4],[1,4,0,2,4],2,[3]],"
			     "[[0,0,0,4,4],[1,2,0,2,4],[2]],[[0,4,0,4,4],[1,6,0,2,4]]],\"ranks\":[0,1,2,3]}";

static struct ptc_config config_of(const char *text)
{
	struct ptc_config c;

	assert_int_equal(ptc_config_parse(text, &c, NULL), 0);
	return c;
}

/* Rank (tp, dp) has half of m, a quarter of its exp_avg, dp 0 the step. */
static void add_rank(struct ptc_declared_merge *m, uint32_t rank)
{
	int64_t tp = rank % 2, dp = rank / 2, shape[] = { 8, 4 }, none[] = { 0, 3 };
	int64_t off[] = { 4 * tp, 0 }, ext[] = { 4, 4 }, foff[] = { 4 * tp + 2 * dp, 0 }, fext[] = { 2, 4 };
	struct ptc_declared_tensor t[] = {
		{ .name = "step", .dtype = PTC_F32, .nboxes = dp == 0 },
		{ .name = "m:exp_avg",
		  .dtype = PTC_F32,
		  .ndim = 2,
		  .shape = shape,
		  .nboxes = 1,
		  .off = foff,
		  .ext = fext },
		{ .name = "m", .dtype = PTC_F32, .ndim = 2, .shape = shape, .nboxes = 1, .off = off, .ext = ext },
		{ .name = "z",
		  .dtype = PTC_U8,
		  .ndim = 2,
		  .shape = none,
		  .nboxes = 1,
		  .off = (int64_t[]){ 0, 0 },
		  .ext = none },
	};

	/* rank 3 does not know step at all, and dp 1 not z */
	assert_int_equal(ptc_declared_merge_add(m, rank, t + (rank == 3), 4 - (rank == 3) - (dp == 1), NULL), 0);
}

static void layout_document(void **state)
{
	static const uint32_t orders[][4] = { { 0, 1, 2, 3 }, { 3, 2, 1, 0 }, { 2, 0, 3, 1 } };
	struct ptc_config config = config_of("tp=2,dp=2");

	for (size_t o = 0; o < 3; o++) {
		struct ptc_declared d = { 0 }, again = { 0 };
		struct ptc_declared_merge *m = NULL;
		struct ptc_error err = PTC_ERROR_INIT;
		char *json = NULL;
		size_t len = 0;

		assert_int_equal(ptc_declared_merge_new(&config, &m, NULL), 0);
		for (size_t i = 0; i < 4; i++)
			add_rank(m, orders[o][i]);
		add_rank(m, 1); /* again */
		if (ptc_declared_merge_finish(m, &d, &err))
			fail_msg("%s", err.text);
		ptc_declared_merge_free(m);
		assert_int_equal(ptc_layout_doc_encode(&d, &json, &len, NULL), 0);
		assert_string_equal(json, layout);
		assert_int_equal(len, sizeof layout - 1);
		assert_int_equal(ptc_layout_doc_decode(json, len, &again, &err), 0);
		ptc_free(json);
		assert_int_equal(ptc_declared_same(&d.spec, &again.spec, "it", NULL), 0);
		ptc_declared_done(&d);
		ptc_declared_done(&again);
	}
}

/* The text with another version, and a member before its end. */
static char *later(const char *json, unsigned version, const char *member)
{
	char *text =
		ptc_asprintf("{\"version\":%u%.*s,%s}", version, (int)(strlen(json) - strlen("{\"version\":1") - 1),
			     json + strlen("{\"version\":1"), member);

	assert_non_null(text);
	return text;
}

/* The example at the head of layout_doc.h. */
static void layout_example(void **state)
{
	static const char text[] = "{\"version\":1,\"config\":\"tp=2,dp=2\","
				   "\"tensors\":[[\"step\",\"F32\",[]],[\"w\",\"F32\",[8,4]]],"
				   "\"classes\":[[0,[1,0,0,4,4]],[0,[1,4,0,4,4]]],"
				   "\"ranks\":[0,1,[2,0]]}";
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_declared d = { 0 };
	char *json = NULL;
	size_t len = 0;

	(void)state;
	if (ptc_layout_doc_decode(text, sizeof text - 1, &d, &err))
		fail_msg("%s", err.text);
	assert_int_equal(ptc_layout_doc_encode(&d, &json, &len, NULL), 0);
	assert_string_equal(json, text);
	ptc_free(json);
	ptc_declared_done(&d);
}

static void layout_versions(void **state)
{
	static const struct {
		unsigned version;
		const char *member;
		int code;
		const char *text;
	} cases[] = {
		{ PTC_LAYOUT_DOC_VERSION + 1, "\"later\":{\"deep\":[1,\"x\"]}", 0, "" },
		{ PTC_LAYOUT_DOC_VERSION + 1, "\"needs\":[],\"later\":1", 0, "" },
		{ PTC_LAYOUT_DOC_VERSION + 1, "\"needs\":[\"strides\"]", PTC_EVERSION, "needs \"strides\"" },
		{ PTC_LAYOUT_DOC_VERSION + 1, "\"later\":", PTC_EINVAL, "layout" },
		{ PTC_LAYOUT_DOC_VERSION + 1, "\"later\":1}{\"x\":1", PTC_EINVAL, "layout" },
		{ PTC_LAYOUT_DOC_VERSION + 2, "\"later\":1", PTC_EVERSION,
		  "use a version next to the one that wrote it" },
		{ PTC_LAYOUT_DOC_VERSION, "\"later\":1", PTC_EINVAL, "is expected here" },
	};

	(void)state;
	for (size_t i = 0; i < PTC_ARRAY_LEN(cases); i++) {
		char *text = later(layout, cases[i].version, cases[i].member);
		struct ptc_error err = PTC_ERROR_INIT;
		struct ptc_declared d;

		assert_int_equal(ptc_layout_doc_decode(text, strlen(text), &d, &err), cases[i].code);
		assert_non_null(strstr(err.text, cases[i].text));
		if (!cases[i].code) {
			char *json = NULL;
			size_t len;

			assert_int_equal(ptc_layout_doc_encode(&d, &json, &len, NULL), 0);
			assert_string_equal(json, layout);
			ptc_free(json);
			ptc_declared_done(&d);
		}
		ptc_free(text);
	}
}

static void layout_refused(void **state)
{
	static const struct {
		const char *from, *to;
		int code;
		const char *text;
	} cases[] = {
		{ "\"version\":1", "\"version\":3", PTC_EVERSION, "version 3; this ptc" },
		{ "{\"version\"", "{ \"version\"", PTC_EINVAL, "byte 0" },
		{ "tp=2,dp=2", "dp=2,tp=2", PTC_EINVAL, "canonical" },
		{ "tp=2,dp=2", "tp=2,dp=3", PTC_EINVAL, "4 ranks, but the configuration has 6" },
		/* DeepSpeed tests/unit/checkpoint/test_reshape_checkpoint.py: degrees that are missing, or that
		 * disagree with what ranks there are (each rank's own against another's:
		 * reshard/layout/test_declared.c, refusals) */
		{ "\"config\":\"tp=2,dp=2\",", "", PTC_EINVAL, "config" },
		{ "tp=2,dp=2", "", PTC_EINVAL, "config" },
		{ "tp=2,dp=2", "tp=2", PTC_EINVAL, "more classes than ranks" },
		{ "tp=2,dp=2", "tp=4,pp=2", PTC_EINVAL, "4 ranks, but the configuration has 8" },
		{ "\"m\",", "\"m:exp_avg\",", PTC_EINVAL, "twice" },
		{ "\"m\",", "\"\\u006d\",", PTC_EINVAL, "canonical" },
		{ "\"m\",", "\"\xff\",", PTC_EINVAL, "layout" },
		{ "F32\",[8,4]", "F31\",[8,4]", PTC_EINVAL, "dtype" },
		{ "F32\",[8,4]", "F32\",[8,04]", PTC_EINVAL, "number" },
		{ "F32\",[8,4]", "F32\",[9223372036854775808,4]", PTC_ELIMIT, "above" },
		{ "F32\",[8,4]", "F32\",[9223372036854775807,4]", PTC_ELIMIT, "overflows" },
		{ "[0,0,0,4,4]", "[0,0,0,8,4]", PTC_EINVAL, "number" },
		{ "[1,0,0,2,4]", "[1,0,0,2,3]", PTC_ELAYOUT, "\"m:exp_avg\": no rank holds [0:2, 3:4]" },
		{ "[0,0,0,4,4]", "[0,0,0,4]", PTC_EINVAL, "3 numbers" },
		{ "[0,4,0,4,4]", "[0,4,0,5,4]", PTC_ELAYOUT, "rank 1 declares 5 elements from 4 on of dim 0" },
		{ "[1,0,0,2,4]", "[1,0,0,2,4,1,0,1,4]", PTC_ELAYOUT, "[1:2, 0:4] in two boxes" },
		{ "[1,0,0,2,4]", "[1,1,0,1,4,0,0,1,4]", PTC_EINVAL, "not in order" },
		{ "[1,0,0,2,4]", "[9,0,0,2,4]", PTC_EINVAL, "no tensor 9, only 4 tensors" },
		{ ",2,[3]", ",[3],2", PTC_EINVAL, "out of order" },
		{ ",2,[3]", ",2,3", PTC_EINVAL, "without elements" },
		{ "\"ranks\":[0,1", "\"ranks\":[1,0", PTC_EINVAL, "out of order" },
		{ "\"ranks\":[0,1,2,3]", "\"ranks\":[0,1,2,2]", PTC_EINVAL, "canonical" },
		{ "\"ranks\":[0,1,2,3]", "\"ranks\":[0,1,[2,2]]", PTC_EINVAL, "belong to no rank" },
		{ "\"ranks\":[0,1,2,3]", "\"ranks\":[0,1,[1,2],3]", PTC_EINVAL, "canonical" },
		{ "\"ranks\":[0,1,2,3]", "\"ranks\":[0,1,[4294967295,2]]", PTC_ELIMIT, "above" },
		{ "3]}", "3]} ", PTC_EINVAL, "end" },
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct ptc_error err = PTC_ERROR_INIT;
		struct ptc_declared d = { 0 };
		char text[2048];
		const char *at = strstr(layout, cases[i].from);
		int rc;

		assert_non_null(at);
		snprintf(text, sizeof text, "%.*s%s%s", (int)(at - layout), layout, cases[i].to,
			 at + strlen(cases[i].from));
		rc = ptc_layout_doc_decode(text, strlen(text), &d, &err);
		if (rc != cases[i].code || !strstr(err.text, cases[i].text))
			fail_msg("%s: %d \"%s\", not %d \"%s\"", cases[i].to, rc, err.text, cases[i].code,
				 cases[i].text);
	}
}

static void layout_out_of_memory(void **state)
{
	int64_t live = ptc_alloc_live();

	for (uint64_t n = 1;; n++) {
		struct ptc_error err = PTC_ERROR_INIT;
		struct ptc_declared d = { 0 };
		struct ptc_layout *l = NULL;
		char *json = NULL;
		size_t len;
		int rc;

		ptc_alloc_fail_at(n);
		rc = ptc_layout_doc_decode(layout, sizeof layout - 1, &d, &err);
		if (!rc)
			rc = ptc_layout_doc_encode(&d, &json, &len, &err);
		if (!rc)
			rc = ptc_layout_declared_new(&d, &l, &err);
		ptc_alloc_fail_at(0);
		ptc_free(json);
		ptc_layout_free(l);
		ptc_declared_done(&d);
		assert_int_equal(ptc_alloc_live(), live);
		if (!rc)
			break;
		assert_int_equal(rc, PTC_ENOMEM);
	}
}

static void merge_out_of_memory(void **state)
{
	struct ptc_config config = config_of("tp=2,dp=2");
	int64_t live = ptc_alloc_live();
	int64_t shape[] = { 4 }, off[] = { 0 }, ext[] = { 4 };
	struct ptc_declared_tensor t = {
		.name = "w", .dtype = PTC_F32, .ndim = 1, .shape = shape, .nboxes = 1, .off = off, .ext = ext
	};

	for (uint64_t n = 1;; n++) {
		struct ptc_declared_merge *m = NULL;
		struct ptc_declared d = { 0 };
		int rc;

		ptc_alloc_fail_at(n);
		rc = ptc_declared_merge_new(&config, &m, NULL);
		for (uint32_t r = 0; r < 4 && !rc; r++)
			rc = ptc_declared_merge_add(m, r, &t, r < 2, NULL);
		if (!rc)
			rc = ptc_declared_merge_finish(m, &d, NULL);
		ptc_alloc_fail_at(0);
		ptc_declared_merge_free(m);
		ptc_declared_done(&d);
		assert_int_equal(ptc_alloc_live(), live);
		if (!rc)
			break;
		assert_int_equal(rc, PTC_ENOMEM);
	}
}

/* ---- state documents ---- */

static struct ptc_state_blob blob(const char *name, uint32_t scope, const char *data)
{
	return (struct ptc_state_blob){ (char *)(uintptr_t)name, scope, (void *)(uintptr_t)data, strlen(data) };
}

static struct ptc_state_cursor cursor(const char *name, uint64_t position, const char *tag)
{
	return (struct ptc_state_cursor){ (char *)(uintptr_t)name, (char *)(uintptr_t)tag, position, 0 };
}

static void fill_state(struct ptc_state *s)
{
	struct ptc_config config = config_of("tp=2,dp=2");
	struct ptc_state_blob a[] = { blob("sched", PTC_STATE_JOB, "s"), blob("rng", PTC_STATE_RANK, "abcd") };
	struct ptc_state_blob b[] = { blob("rng", PTC_STATE_RANK, "xy"), blob("sched", PTC_STATE_JOB, "ignored") };
	struct ptc_state_cursor c[] = { cursor("train", 4096, "n=7"), cursor("eval", 1, "") };

	assert_int_equal(ptc_state_add(s, &config, 3, b, 2, c, 1, NULL), 0);
	assert_int_equal(ptc_state_add(s, &config, 1, b + 1, 1, NULL, 0, NULL), 0); /* a job's blob, not of rank 0 */
	assert_int_equal(ptc_state_add(s, &config, 0, a, 2, c, 2, NULL), 0);
}

static void state_document(void **state)
{
	struct ptc_coords here = { .tp = 1, .dp = 1 }, nowhere = { .tp = 1, .dp = 7 };
	struct ptc_state s = { 0 }, again = { 0 };
	struct ptc_state_blob *v = NULL;
	char *json = NULL;
	size_t len, n;

	fill_state(&s);
	assert_int_equal(ptc_state_doc_encode(&s, &json, &len, NULL), 0);
	assert_string_equal(json, "{\"version\":1,\"ranks\":["
				  "{\"rank\":0,\"tp\":0,\"pp\":0,\"dp\":0,\"cp\":0,\"blobs\":["
				  "{\"name\":\"rng\",\"scope\":1,\"data\":\"YWJjZA==\"},"
				  "{\"name\":\"sched\",\"scope\":2,\"data\":\"cw==\"}]},"
				  "{\"rank\":3,\"tp\":1,\"pp\":0,\"dp\":1,\"cp\":0,\"blobs\":["
				  "{\"name\":\"rng\",\"scope\":1,\"data\":\"eHk=\"}]}],\"cursors\":["
				  "{\"name\":\"eval\",\"position\":1,\"tag\":\"\"},"
				  "{\"name\":\"train\",\"position\":4096,\"tag\":\"n=7\"}]}");
	assert_int_equal(ptc_state_doc_decode(json, len, &again, NULL), 0);
	assert_int_equal(ptc_state_blobs(&again, &here, &v, &n, NULL), 0);
	assert_int_equal(n, 2);
	assert_string_equal(v[0].name, "sched");
	assert_string_equal(v[1].name, "rng");
	assert_memory_equal(v[1].data, "xy", v[1].len);
	ptc_free(v);
	assert_int_equal(ptc_state_blobs(&again, &nowhere, &v, &n, NULL), 0);
	assert_int_equal(n, 1);
	ptc_free(v);
	ptc_free(json);
	ptc_state_done(&s);
	ptc_state_done(&again);
}

/* A blob of a tensor-parallel group: what an older ptc would misread has a version that it refuses. */
static void state_of_group(void **state)
{
	struct ptc_config config = config_of("tp=2,dp=2");
	struct ptc_coords here = { .tp = 5, .dp = 1 }, nowhere = { .tp = 1 };
	struct ptc_state_blob b = blob("rng", PTC_STATE_TP, "abcd");
	struct ptc_state s = { 0 }, again = { 0 };
	struct ptc_state_blob *v = NULL;
	char *json = NULL;
	size_t len, n;

	assert_int_equal(ptc_state_add(&s, &config, 3, &b, 1, NULL, 0, NULL), 0);
	assert_int_equal(ptc_state_doc_encode(&s, &json, &len, NULL), 0);
	assert_string_equal(json,
			    "{\"version\":2,\"ranks\":[{\"rank\":3,\"tp\":1,\"pp\":0,\"dp\":1,\"cp\":0,\"blobs\":["
			    "{\"name\":\"rng\",\"scope\":3,\"data\":\"YWJjZA==\"}]}],\"cursors\":[]}");
	assert_int_equal(ptc_state_doc_decode(json, len, &again, NULL), 0);
	assert_int_equal(ptc_state_blobs(&again, &here, &v, &n, NULL), 0);
	assert_int_equal(n, 1);
	assert_memory_equal(v[0].data, "abcd", v[0].len);
	ptc_free(v);
	assert_int_equal(ptc_state_blobs(&again, &nowhere, &v, &n, NULL), 0);
	assert_int_equal(n, 0);
	ptc_free(v);
	ptc_state_done(&again);
	json[strlen("{\"version\":")] = '1';
	assert_int_equal(ptc_state_doc_decode(json, len, &again, NULL), PTC_EINVAL);
	json[strlen("{\"version\":")] = '4';
	assert_int_equal(ptc_state_doc_decode(json, len, &again, NULL), PTC_EVERSION);
	ptc_free(json);
	ptc_state_done(&s);
}

static void add_rank_0(struct ptc_state *s, const struct ptc_state_blob *blobs, size_t nblobs,
		       const struct ptc_state_cursor *cursors, size_t ncursors)
{
	struct ptc_config config = config_of("dp=2");

	assert_int_equal(ptc_state_add(s, &config, 0, blobs, nblobs, cursors, ncursors, NULL), 0);
}

static uint64_t position_of(const struct ptc_state *s, const char *name)
{
	for (size_t i = 0; i < s->ncursors; i++)
		if (!strcmp(s->cursors[i].name, name))
			return s->cursors[i].position;
	return UINT64_MAX;
}

static const char *blob_of(const struct ptc_state *s, const char *name)
{
	static char text[16];

	for (size_t i = 0; s->nranks && i < s->ranks[0].nblobs; i++)
		if (!strcmp(s->ranks[0].blobs[i].name, name)) {
			snprintf(text, sizeof text, "%.*s", (int)s->ranks[0].blobs[i].len,
				 (const char *)s->ranks[0].blobs[i].data);
			return text;
		}
	return "";
}

/* Cursors that are ahead and the states of loaders are those of the later state; all else stays. */
static void state_goes_on(void **state)
{
	struct ptc_state_blob was[] = { blob("loader/data", PTC_STATE_JOB, "two"),
					blob("loader/data/0", PTC_STATE_JOB, "a"),
					blob("loader/data/1", PTC_STATE_JOB, "b"), blob("sched", PTC_STATE_JOB, "old"),
					blob("loader/own", PTC_STATE_RANK, "old") };
	struct ptc_state_blob is[] = { blob("loader/data", PTC_STATE_JOB, "one"),
				       blob("loader/data/0", PTC_STATE_JOB, "c"), blob("sched", PTC_STATE_JOB, "new"),
				       blob("loader/own", PTC_STATE_RANK, "new") };
	struct ptc_state_cursor old[] = { cursor("data", 40, "n=7;batch=2"), cursor("eval", 9, "") };
	struct ptc_state_cursor now[] = { cursor("data", 90, "n=7;batch=3"), cursor("eval", 5, ""),
					  cursor("more", 3, "x") };
	struct ptc_state s = { 0 }, ahead = { 0 }, none = { 0 };
	struct ptc_error err = PTC_ERROR_INIT;
	char *json = NULL;
	size_t len;

	(void)state;
	add_rank_0(&s, was, 5, old, 2);
	add_rank_0(&ahead, is, 4, now, 3);
	assert_int_equal(ptc_state_go_on(&s, &ahead, &err), 0);
	assert_true(position_of(&s, "data") == 90 && position_of(&s, "eval") == 9 && position_of(&s, "more") == 3);
	assert_string_equal(s.cursors[0].tag, "n=7;batch=3");
	assert_string_equal(blob_of(&s, "loader/data"), "one");
	assert_string_equal(blob_of(&s, "loader/data/0"), "c");
	assert_string_equal(blob_of(&s, "loader/data/1"), "");
	assert_string_equal(blob_of(&s, "sched"), "old");
	assert_string_equal(blob_of(&s, "loader/own"), "old"); /* a rank's own is no loader's that we know */
	assert_int_equal(ptc_state_doc_encode(&s, &json, &len, NULL), 0);
	ptc_free(json);
	assert_int_equal(ptc_state_go_on(&s, &none, &err), PTC_ESTATE);
	assert_non_null(strstr(err.text, "no cursor and no loader's state"));
	assert_int_equal(ptc_state_go_on(&none, &ahead, &err), 0); /* to a state that had none */
	assert_int_equal(none.nranks, 1);
	assert_int_equal(none.ranks[0].nblobs, 2);
	assert_int_equal(position_of(&none, "data"), 90);
	ptc_state_done(&none);
	now[0].tag = (char *)(uintptr_t) "n=8;batch=3";
	add_rank_0(&none, NULL, 0, now, 1);
	assert_int_equal(ptc_state_go_on(&s, &none, &err), PTC_ESTATE);
	assert_non_null(strstr(err.text, "cursor \"data\": the order of the data is \"n=8;batch=3\" now"));
	assert_int_equal(position_of(&s, "data"), 90);
	ptc_state_done(&none);
	ptc_state_done(&ahead);
	ptc_state_done(&s);
}

static void goes_on_out_of_memory(void **state)
{
	struct ptc_state_blob was[] = { blob("loader/data", PTC_STATE_JOB, "a"), blob("sched", PTC_STATE_JOB, "old") };
	struct ptc_state_blob is[] = { blob("loader/data", PTC_STATE_JOB, "b") };
	struct ptc_state_cursor old = cursor("data", 40, "n=7"), now = cursor("data", 90, "n=7");
	int64_t live = ptc_alloc_live();
	int rc = PTC_ENOMEM;

	(void)state;
	for (uint64_t n = 1; rc; n++) {
		struct ptc_state s = { 0 }, ahead = { 0 };

		add_rank_0(&s, was, 2, &old, 1);
		add_rank_0(&ahead, is, 1, &now, 1);
		ptc_alloc_fail_at(n);
		rc = ptc_state_go_on(&s, &ahead, NULL);
		ptc_alloc_fail_at(0);
		assert_true(rc == 0 || (rc == PTC_ENOMEM && n < 20));
		ptc_state_done(&s);
		ptc_state_done(&ahead);
		assert_int_equal(ptc_alloc_live(), live);
	}
}

static void state_versions(void **state)
{
	static const char with_groups[] =
		"{\"version\":2,\"ranks\":[{\"rank\":3,\"tp\":1,\"pp\":0,\"dp\":1,\"cp\":0,\"blobs\":["
		"{\"name\":\"rng\",\"scope\":3,\"data\":\"YWJjZA==\"}]}],\"cursors\":[]}";
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_state s = { 0 };
	char *text = later(with_groups, PTC_STATE_DOC_VERSION + 1, "\"later\":[{}]"), *json;
	size_t len;

	(void)state;
	assert_int_equal(ptc_state_doc_decode(text, strlen(text), &s, &err), 0);
	assert_int_equal(ptc_state_doc_encode(&s, &json, &len, NULL), 0);
	assert_string_equal(json, with_groups);
	ptc_free(json);
	ptc_free(text);
	ptc_state_done(&s);
	text = later(with_groups, PTC_STATE_DOC_VERSION + 1, "\"needs\":[\"scopes\"]");
	assert_int_equal(ptc_state_doc_decode(text, strlen(text), &s, &err), PTC_EVERSION);
	assert_non_null(strstr(err.text, "needs \"scopes\""));
	ptc_free(text);
	text = later(with_groups, PTC_STATE_DOC_VERSION, "\"later\":1");
	assert_int_equal(ptc_state_doc_decode(text, strlen(text), &s, &err), PTC_EINVAL);
	ptc_free(text);
}

static void state_refused(void **state)
{
	static const char *const bad[] = {
		"{\"version\":2,\"ranks\":[],\"cursors\":[]}",
		"",
		"{\"version\":1,\"ranks\":[],\"cursors\":[]}x",
		"{\"version\":1,\"ranks\":[{\"rank\":1,\"tp\":0,\"pp\":0,\"dp\":0,\"cp\":0,\"blobs\":[]}],\"cursors\":["
		"]}",
		"{\"version\":1,\"ranks\":[{\"rank\":1,\"tp\":0,\"pp\":0,\"dp\":0,\"cp\":0,\"blobs\":[{\"name\":\"s\","
		"\"scope\":2,"
		"\"data\":\"\"}]}],\"cursors\":[]}",
		"{\"version\":1,\"ranks\":[{\"rank\":0,\"tp\":0,\"pp\":0,\"dp\":0,\"cp\":0,\"blobs\":[{\"name\":\"s\","
		"\"scope\":1,"
		"\"data\":\"AB==\"}]}],\"cursors\":[]}",
		"{\"version\":1,\"ranks\":[{\"rank\":0,\"tp\":0,\"pp\":0,\"dp\":0,\"cp\":0,\"blobs\":[{\"name\":\"s\","
		"\"scope\":1,"
		"\"data\":\"A===\"}]}],\"cursors\":[]}",
		"{\"version\":1,\"ranks\":[{\"rank\":0,\"tp\":0,\"pp\":0,\"dp\":0,\"cp\":0,\"blobs\":[{\"name\":\"s\","
		"\"scope\":1,"
		"\"data\":\"AA==AAAA\"}]}],\"cursors\":[]}",
		"{\"version\":1,\"ranks\":[],\"cursors\":[{\"name\":\"b\",\"position\":0,\"tag\":\"\"},{\"name\":\"a\","
		"\"position\":0,\"tag\":\"\"}]}",
	};
	struct ptc_config config = config_of("tp=2,dp=2");
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_state s = { 0 };
	struct ptc_state_blob twice[] = { blob("rng", PTC_STATE_RANK, "a"), blob("rng", PTC_STATE_RANK, "b") };
	struct ptc_state_blob strange = blob("\xc3", PTC_STATE_RANK, "a");
	struct ptc_state_cursor other = cursor("train", 4097, "n=7");

	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		assert_int_equal(ptc_state_doc_decode(bad[i], strlen(bad[i]), &s, NULL), PTC_EINVAL);
	fill_state(&s);
	assert_int_equal(ptc_state_add(&s, &config, 2, NULL, 0, &other, 1, &err), PTC_ESTATE);
	assert_non_null(strstr(err.text, "cursor \"train\": rank 3 is at 4096 (\"n=7\"), rank 2 at 4097"));
	assert_int_equal(ptc_state_add(&s, &config, 2, twice, 2, NULL, 0, NULL), PTC_EINVAL);
	assert_int_equal(ptc_state_add(&s, &config, 2, &strange, 1, NULL, 0, NULL), PTC_EINVAL);
	assert_int_equal(ptc_state_add(&s, &config, 3, twice, 1, NULL, 0, NULL), PTC_EINVAL);
	assert_int_equal(ptc_state_add(&s, &config, 4, twice, 1, NULL, 0, NULL), PTC_EINVAL);
	assert_int_equal(s.nranks, 2);
	ptc_state_done(&s);
}

static void state_out_of_memory(void **state)
{
	int64_t live = ptc_alloc_live();
	struct ptc_state whole = { 0 };
	char *json, *again = NULL;
	size_t len, n2;
	int rc = PTC_ENOMEM;

	fill_state(&whole);
	assert_int_equal(ptc_state_doc_encode(&whole, &json, &len, NULL), 0);
	ptc_state_done(&whole);
	for (uint64_t n = 1; rc; n++) {
		struct ptc_state s = { 0 };

		ptc_alloc_fail_at(n);
		rc = ptc_state_doc_decode(json, len, &s, NULL);
		if (!rc)
			rc = ptc_state_doc_encode(&s, &again, &n2, NULL);
		ptc_alloc_fail_at(0);
		ptc_state_done(&s);
		assert_true(!rc || rc == PTC_ENOMEM);
	}
	assert_string_equal(again, json);
	ptc_free(json);
	ptc_free(again);
	assert_int_equal(ptc_alloc_live(), live);
}

static void utf8(void **state)
{
	static const char *const good[] = {
		"", "a", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf"
	};
	static const char *const bad[] = { "\x80",         "\xc3",
					   "\xc0\x80",     "\xe0\x80\x80",
					   "\xed\xa0\x80", "\xf4\x90\x80\x80",
					   "\xff",         "\xf8\x88\x80\x80",
					   "a\xe2\x82" };

	for (size_t i = 0; i < sizeof good / sizeof *good; i++)
		assert_true(ptc_name_is_utf8(good[i]));
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		assert_false(ptc_name_is_utf8(bad[i]));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(layout_document),      cmocka_unit_test(layout_example),
		cmocka_unit_test(layout_versions),      cmocka_unit_test(layout_refused),
		cmocka_unit_test(layout_out_of_memory), cmocka_unit_test(merge_out_of_memory),
		cmocka_unit_test(state_document),       cmocka_unit_test(state_of_group),
		cmocka_unit_test(state_versions),       cmocka_unit_test(state_refused),
		cmocka_unit_test(state_goes_on),        cmocka_unit_test(goes_on_out_of_memory),
		cmocka_unit_test(state_out_of_memory),  cmocka_unit_test(utf8),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
