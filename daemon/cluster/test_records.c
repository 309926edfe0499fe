/* SPDX-License-Identifier: Apache-2.0 */
/* The documents in etcd: what is encoded is decoded again, what is damaged in
 * any way is refused or harmless, and what was allocated is freed (the
 * sanitizers see to the rest). */
#include "daemon/cluster/records.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/test_seed.h"
#include "formats/json.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <setjmp.h>

#include <cmocka.h>

#define HASH "0123456789abcdef0123456789abcdef"
#define UUID "01234567-89ab-cdef-0123-456789abcdef"

enum kind {
	NODE,
	META,
	RECORD,
	INTENT,
	GENERATION,
	MANIFEST,
	WORKER,
	RUNNING,
	SNAPSHOT,
	DECLARED,
	LIVE,
	SHARED,
	KINDS
};

/* Decodes as that kind and encodes again: NULL when it is refused. */
static char *again(enum kind kind, const char *json, size_t len, struct ptc_error *err)
{
	union {
		struct ptc_node_doc node;
		struct ptc_meta_doc meta;
		struct ptc_record_doc record;
		struct ptc_intent_doc intent;
		struct ptc_generation_doc generation;
		struct ptc_manifest_doc manifest;
		struct ptc_worker_doc worker;
	} d;
	char *text = NULL;

	memset(&d, 0xa5, sizeof d);
	if (kind == NODE && ptc_node_doc_decode(json, len, &d.node, err) == 0)
		text = ptc_node_doc_encode(&d.node);
	else if ((kind == META || kind == SHARED) && ptc_meta_doc_decode(json, len, &d.meta, err) == 0)
		text = ptc_meta_doc_encode(&d.meta);
	else if (kind == WORKER && ptc_worker_doc_decode(json, len, &d.worker, err) == 0)
		text = ptc_worker_doc_encode(&d.worker);
	else if ((kind == RECORD || kind == RUNNING) && ptc_record_doc_decode(json, len, &d.record, err) == 0)
		text = ptc_record_doc_encode(&d.record);
	else if ((kind == INTENT || kind == SNAPSHOT) && ptc_intent_doc_decode(json, len, &d.intent, err) == 0)
		text = ptc_intent_doc_encode(&d.intent);
	if ((kind == GENERATION || kind == DECLARED) && ptc_generation_doc_decode(json, len, &d.generation, err) == 0) {
		text = ptc_generation_doc_encode(&d.generation);
		ptc_generation_doc_done(&d.generation);
	}
	if ((kind == MANIFEST || kind == LIVE) && ptc_manifest_doc_decode(json, len, &d.manifest, err) == 0) {
		text = ptc_manifest_doc_encode(&d.manifest);
		ptc_manifest_doc_done(&d.manifest);
	}
	return text;
}

static const char *const good[KINDS] = {
	[NODE] = "{\"version\":1,\"node\":\"n0\",\"address\":\"unix:/"
		 "a\",\"devices\":2,\"device_name\":\"A100\",\"device_bytes\":"
		 "40000000000,\"ceiling_bytes\":1048576,"
		 "\"store_id\":\"" UUID "\",\"boot_id\":\"" UUID
		 "\",\"rack\":\"\",\"insecure\":false,\"pid\":12,\"documents\":[1,1]}",
	[META] = "{\"version\":1,\"uuid\":\"" UUID "\",\"name\":\"job\",\"uid\":4294967294,\"spec\":\"" HASH
		 "\",\"created_ms\":17}",
	[SHARED] = "{\"version\":1,\"uuid\":\"" UUID "\",\"name\":\"job\",\"uid\":7,\"spec\":\"" HASH
		   "\",\"created_ms\":17,\"files_group\":0}",
	[RECORD] =
		"{\"version\":1,\"generation\":3,\"snapshot\":4,\"step\":5,\"manifest\":\"" HASH "\",\"cursors\":{}}",
	[INTENT] =
		"{\"version\":1,\"id\":9007199254740991,\"kind\":\"import\",\"from_generation\":0,\"from_snapshot\":0,"
		"\"to_generation\":1,\"to_snapshot\":1,\"generation\":\"" HASH "\",\"started_ms\":1}",
	[GENERATION] = "{\"version\":1,\"config\":\"tp=2\",\"nodes\":[\"n0\",\"n1\"],\"ranks\":[[0,0],[1,63]]}",
	[MANIFEST] =
		"{\"version\":1,\"generation\":1,\"snapshot\":2,\"step\":0,\"spec\":\"" HASH "\",\"layout\":\"" HASH
		"\",\"digests\":\"0123456789abcdefffffffffffffffff\",\"files\":[{\"field\":\"param\","
		"\"name\":\"m.safetensors\",\"header\":\"" HASH "\",\"items\":[0,1]}]}",
	[WORKER] = "{\"version\":1,\"generation\":2,\"incarnation\":77,\"state\":\"failed\",\"rank\":3,\"step\":9,"
		   "\"exit\":256,\"text\":\"rank 3 exited with 1\"}",
	[RUNNING] = "{\"version\":1,\"generation\":3,\"snapshot\":0,\"step\":0,\"manifest\":\"" HASH
		    "\",\"cursors\":{},\"run\":\"live\",\"incarnation\":12}",
	[SNAPSHOT] = "{\"version\":1,\"id\":5,\"kind\":\"snapshot\",\"from_generation\":1,\"from_snapshot\":0,"
		     "\"to_generation\":1,\"to_snapshot\":1,\"generation\":\"" HASH "\",\"started_ms\":1,"
		     "\"run\":{\"from\":true,\"to\":false,\"end\":\"done\",\"stop\":40}}",
	[DECLARED] = "{\"version\":1,\"config\":\"tp=2\",\"nodes\":[\"n0\",\"n1\"],\"ranks\":[[0,0],[1,63]],"
		     "\"layout\":\"" HASH "\",\"cost_linear\":49152,\"cost_square\":1}",
	[LIVE] =
		"{\"version\":1,\"generation\":1,\"snapshot\":2,\"step\":7,\"spec\":\"" HASH "\",\"layout\":\"" HASH
		"\",\"digests\":\"0123456789abcdef\",\"files\":[],\"ledger\":{\"forgotten\":3,\"entries\":[{\"cursor\":"
		"\"data\",\"generation\":2,\"steps\":[4,9],\"positions\":[40,90],\"dp\":3,\"micro_batch\":5,"
		"\"global_batch\":10,\"tag\":\"n=20,seed=1\"}]},\"state\":\"" HASH "\",\"layouts\":[[\"tp=2\",\"" HASH
		"\"],[\"dp=4\",\"" HASH "\"]]}",
};

/* The document as a ptcd `on` versions further on would have written it: its number, and a member that we do not know.
 */
static char *later(const char *json, unsigned on, const char *member)
{
	char *text = ptc_asprintf("{\"version\":%u%.*s,%s}", PTC_DOC_VERSION + on,
				  (int)(strlen(json) - strlen("{\"version\":1") - 1), json + strlen("{\"version\":1"),
				  member);

	assert_non_null(text);
	return text;
}

/* What the next version has added is passed over, unless it says that it is needed; the version after that is refused.
 */
static void test_versions(void **state)
{
	static const char added[] = "\"later\":{\"deep\":[1,\"x\"]}", needed[] = "\"needs\":[\"copies\"],\"copies\":3";

	(void)state;
	for (int k = 0; k < KINDS; k++) {
		struct ptc_error err = PTC_ERROR_INIT;
		char *plain = again(k, good[k], strlen(good[k]), &err), *text = later(good[k], 1, added), *read;

		read = again(k, text, strlen(text), &err);
		assert_non_null(read);
		assert_string_equal(read, plain);
		ptc_free(read);
		ptc_free(text);
		text = later(good[k], 1, needed);
		assert_null(again(k, text, strlen(text), &err));
		assert_int_equal(err.code, PTC_EVERSION);
		assert_non_null(strstr(err.text, "needs \"copies\""));
		ptc_free(text);
		text = later(good[k], 2, added);
		err = (struct ptc_error)PTC_ERROR_INIT;
		assert_null(again(k, text, strlen(text), &err));
		assert_int_equal(err.code, PTC_EVERSION);
		assert_non_null(strstr(err.text, "use a version next to the one that wrote it"));
		ptc_free(text);
		ptc_free(plain);
	}
}

/* A node says which versions it writes and reads; one of before there were any is of the first. */
static void test_members(void **state)
{
	static const char tail[] = ",\"documents\":[1,1]}";
	char *text = ptc_asprintf("%.*s}", (int)(strlen(good[NODE]) - (sizeof tail - 1)), good[NODE]);
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_node_doc d;

	(void)state;
	assert_int_equal(ptc_node_doc_decode(text, strlen(text), &d, &err), 0);
	assert_true(d.documents_oldest == 1 && d.documents == 1);
	ptc_free(text);
	for (uint32_t v = 1; v < PTC_DOC_VERSION + 4; v++) {
		d.documents = v;
		assert_int_equal(ptc_node_doc_near(&d, &err),
				 v + 1 < PTC_DOC_VERSION || v > PTC_DOC_VERSION + 1 ? PTC_EVERSION : 0);
	}
	assert_non_null(strstr(err.text, "node n0 writes documents of version"));
	assert_non_null(strstr(err.text, "upgrade this node to version"));
	ptc_version_members_set(0);
	assert_int_equal(ptc_version_write(7, PTC_DOC_VERSION), 6);
	ptc_version_members_set(UINT32_MAX);
	assert_int_equal(ptc_version_write(7, PTC_DOC_VERSION), 7);
	assert_int_equal(ptc_version_members(), PTC_DOC_VERSION);
}

static void test_round_trip(void **state)
{
	(void)state;
	for (int k = 0; k < KINDS; k++) {
		struct ptc_error err = PTC_ERROR_INIT;
		char *text = again(k, good[k], strlen(good[k]), &err);

		if (!text)
			fail_msg("kind %d: %s", k, err.text);
		assert_string_equal(text, good[k]);
		ptc_free(text);
	}
}

/* Each line: which document, what of it is replaced, and by what. */
static const struct {
	enum kind kind;
	const char *what, *with;
} bad[] = {
	{ NODE, "\"n0\"", "null" },
	{ NODE, "\"devices\":2", "\"devices\":-1" },
	{ NODE, "\"devices\":2", "\"devices\":65" },
	{ NODE, "\"devices\":2", "\"devices\":2.5" },
	{ NODE, "\"ceiling_bytes\":1048576", "\"ceiling_bytes\":-1" },
	{ NODE, "\"n0\"", "\"n234567890123456789012345678901234567890123456789012345678901234567890\"" },
	{ META, "4294967294", "-1" },
	{ META, "4294967294", "4294967296" },
	{ META, "4294967294", "\"0\"" },
	{ META, HASH, HASH "0" },
	{ SHARED, "group\":0", "group\":-1" },
	{ SHARED, "group\":0", "group\":4294967296" },
	{ SHARED, "group\":0", "group\":\"staff\"" },
	{ META, "\"uuid\":\"", "\"uuid\":\"0" },
	{ RECORD, "\"generation\":3", "\"generation\":0" },
	{ RECORD, "\"generation\":3", "\"generation\":-3" },
	{ RECORD, "\"generation\":3", "\"generation\":99999999999999999999" },
	{ RECORD, "\"snapshot\":4", "\"snapshot\":0" },
	{ RECORD, "\"step\":5", "\"step\":-5" },
	{ RECORD, ",\"manifest\":\"" HASH "\"", "" },
	{ RECORD, "\"version\":1", "\"version\":3" },
	{ RECORD, "\"version\":1", "\"version\":-1" },
	{ RECORD, "\"version\":1", "\"version\":\"1\"" },
	{ RECORD, "{\"version\":1,", "{" },
	{ INTENT, "import", "rollback" },
	{ INTENT, "9007199254740991", "0" },
	{ INTENT, "9007199254740991", "-1" },
	{ INTENT, "\"to_generation\":1", "\"to_generation\":0" },
	{ INTENT, "\"from_snapshot\":0", "\"from_snapshot\":-1" },
	{ GENERATION, "[1,63]", "[2,0]" },
	{ GENERATION, "[1,63]", "[-1,0]" },
	{ GENERATION, "[1,63]", "[1,64]" },
	{ GENERATION, "[1,63]", "[1,-1]" },
	{ GENERATION, "[1,63]", "[1]" },
	{ GENERATION, "[1,63]", "[1,0,0]" },
	{ GENERATION, "[1,63]", "null" },
	{ GENERATION, "\"n1\"", "7" },
	{ GENERATION, "[\"n0\",\"n1\"]", "{}" },
	{ GENERATION, "\"tp=2\"", "null" },
	{ LIVE, "\"forgotten\":3", "\"forgotten\":-3" },
	{ LIVE, "\"steps\":[4,9]", "\"steps\":[4]" },
	{ LIVE, "\"steps\":[4,9]", "\"steps\":[-4,9]" },
	{ LIVE, "\"dp\":3", "\"dp\":4294967296" },
	{ LIVE, "\"generation\":2,", "\"generation\":0," },
	{ LIVE, "\"tag\":\"n=20,seed=1\"", "\"tag\":7" },
	{ MANIFEST, "\"generation\":1", "\"generation\":0" },
	{ MANIFEST, "\"snapshot\":2", "\"snapshot\":-2" },
	{ MANIFEST, "0123456789abcdefffffffffffffffff", "0123456789abcdef0" },
	{ MANIFEST, "0123456789abcdefffffffffffffffff", "0x23456789abcdef0123456789abcdef" },
	{ MANIFEST, "0123456789abcdefffffffffffffffff", " -23456789abcdef0123456789abcdef" },
	{ MANIFEST, "[0,1]", "[-1]" },
	{ MANIFEST, "[0,1]", "[4294967296]" },
	{ MANIFEST, "[0,1]", "[\"0\"]" },
	{ MANIFEST, "[0,1]", "0" },
	{ MANIFEST, "\"param\"", "null" },
	{ MANIFEST, "\"files\":[{", "\"files\":[7,{" },
};

static void test_wrong_members(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		const char *from = good[bad[i].kind], *at = strstr(from, bad[i].what);
		struct ptc_error err = PTC_ERROR_INIT;
		char json[2048], *text;
		int n;

		assert_non_null(at);
		n = snprintf(json, sizeof json, "%.*s%s%s", (int)(at - from), from, bad[i].with,
			     at + strlen(bad[i].what));
		text = again(bad[i].kind, json, (size_t)n, &err);
		if (text)
			fail_msg("accepted: %s", json);
		assert_true(err.code == PTC_EINVAL || err.code == PTC_EVERSION);
		assert_null(strchr(err.text, '\n'));
	}
}

static void test_ranks_on_nodes(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_generation_doc g;

	(void)state;
	assert_int_equal(ptc_generation_doc_decode(good[GENERATION], strlen(good[GENERATION]), &g, &err), 0);
	assert_true(ptc_generation_doc_names(&g, "n0") && ptc_generation_doc_names(&g, "n1"));
	assert_false(ptc_generation_doc_names(&g, "n") || ptc_generation_doc_names(&g, "n10"));
	assert_true(ptc_generation_doc_gives(&g, "n0", 0) && ptc_generation_doc_gives(&g, "n1", 63));
	assert_false(ptc_generation_doc_gives(&g, "n0", 63) || ptc_generation_doc_gives(&g, "n2", 0));
	ptc_generation_doc_done(&g);
	assert_false(ptc_generation_doc_names(&g, "n0") || ptc_generation_doc_gives(&g, "n0", 0)); /* none */
}

/* Who was left out is said, and is what a reader must know. */
static void test_left_out(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_manifest_doc m, plain;
	struct ptc_intent_doc in, plain_in;
	char *text, *other;

	(void)state;
	assert_int_equal(ptc_manifest_doc_decode(good[MANIFEST], strlen(good[MANIFEST]), &m, &err), 0);
	assert_true(ptc_manifest_placed(&m, "n2"));
	assert_int_equal(ptc_manifest_without_add(&m, "n2"), 0);
	assert_int_equal(ptc_manifest_without_add(&m, "n31"), 0);
	text = ptc_manifest_doc_encode(&m);
	ptc_manifest_doc_done(&m);
	assert_non_null(strstr(text, "\"needs\":[\"placement\"]"));
	assert_int_equal(ptc_manifest_doc_decode(text, strlen(text), &m, &err), 0);
	assert_false(ptc_manifest_placed(&m, "n2") || ptc_manifest_placed(&m, "n31"));
	assert_true(ptc_manifest_placed(&m, "n3") && ptc_manifest_placed(&m, "n") && m.nwithout == 2);
	ptc_manifest_doc_done(&m);
	/* a document that needs more than that is refused by name, as is a placement that is none */
	other = ptc_asprintf("%.*s,\"copies\"]%s", (int)(strstr(text, "\"placement\"]") + 11 - text), text,
			     strstr(text, "\"placement\"]") + 12);
	assert_int_equal(ptc_manifest_doc_decode(other, strlen(other), &plain, &err), PTC_EVERSION);
	assert_non_null(strstr(err.text, "copies"));
	ptc_free(other);
	*strstr(text, "\"n2\"") = '1';
	assert_int_equal(ptc_manifest_doc_decode(text, strlen(text), &plain, &err), PTC_EINVAL);
	ptc_free(text);
	assert_int_equal(ptc_intent_doc_decode(good[INTENT], strlen(good[INTENT]), &in, &err), 0);
	assert_false(ptc_intent_without(&in, "n1") || ptc_intent_without(&in, ""));
	for (int i = 0; i < 2; i++) { /* each once */
		assert_int_equal(ptc_intent_without_add(&in, "n1"), 0);
		assert_int_equal(ptc_intent_without_add(&in, "n22"), 0);
	}
	text = ptc_intent_doc_encode(&in);
	assert_non_null(strstr(text, "\"needs\":[\"without\"]"));
	assert_int_equal(ptc_intent_doc_decode(text, strlen(text), &in, &err), 0);
	assert_string_equal(in.without, "n1 n22");
	assert_true(ptc_intent_without(&in, "n1") && ptc_intent_without(&in, "n22"));
	assert_false(ptc_intent_without(&in, "n2") || ptc_intent_without(&in, "n"));
	assert_int_equal(ptc_manifest_doc_decode(text, strlen(text), &plain, &err), PTC_EVERSION); /* no need of its */
	ptc_free(text);
	in.skip_data = true; /* of a rollback only */
	text = ptc_intent_doc_encode(&in);
	assert_int_equal(ptc_intent_doc_decode(text, strlen(text), &plain_in, &err), PTC_EINVAL);
	ptc_free(text);
	in.source = 3;
	in.recovers = true;
	text = ptc_intent_doc_encode(&in);
	assert_non_null(strstr(text, "\"needs\":[\"without\",\"skip_data\"]"));
	assert_int_equal(ptc_intent_doc_decode(text, strlen(text), &in, &err), 0);
	assert_true(in.skip_data && in.recovers && in.source == 3 && ptc_intent_without(&in, "n22"));
	ptc_free(text);
	for (int i = 0, rc = 0; rc == 0; i++) { /* there is an end, and it is whole names up to there */
		char name[16];

		snprintf(name, sizeof name, "node-%d", i);
		rc = ptc_intent_without_add(&in, name);
		assert_true(rc == 0 ? ptc_intent_without(&in, name) : rc == PTC_ELIMIT && i > 100);
	}
}

/* Cut at every byte: refused. */
/* ---- long values ---- */

/* A manifest of random size whose names look like what is searched for. */
static void random_manifest(struct ptc_manifest_doc *m)
{
	static const char *const names[] = { "m.safetensors", "\"items\":[1,2]", "{\"files\":[", "digests", "\\",
					     "\xc3\xa9]}" };

	assert_int_equal(ptc_manifest_doc_decode(good[MANIFEST], strlen(good[MANIFEST]), m, NULL), 0);
	ptc_manifest_doc_done(m);
	m->generation = 1 + (uint64_t)rand();
	memset(m->spec_hash, 'a', 32);
	memset(m->generation_hash, 'b', 32);
	m->ndigests = (size_t)rand() % 4 ? (size_t)rand() % 50 : 0;
	m->digests = ptc_calloc(m->ndigests + 1, sizeof *m->digests);
	for (size_t i = 0; i < m->ndigests; i++)
		m->digests[i] = (uint64_t)rand() << 40 ^ (uint64_t)rand() << 20 ^ (uint64_t)rand();
	m->nfiles = (size_t)rand() % 4;
	m->files = ptc_calloc(m->nfiles + 1, sizeof *m->files);
	for (size_t i = 0; i < m->nfiles; i++) {
		struct ptc_file_doc *f = &m->files[i];

		f->field = ptc_strdup(names[rand() % 6]);
		f->name = ptc_strdup(names[rand() % 6]);
		memset(f->header_hash, 'c', 32);
		f->nitems = (size_t)rand() % 30;
		f->items = ptc_calloc(f->nitems + 1, sizeof *f->items);
		for (size_t k = 0; k < f->nitems; k++)
			f->items[k] = rand() % 5 ? (uint32_t)rand() : rand() % 2 ? UINT32_MAX : 0;
	}
}

static void same_manifest(const struct ptc_manifest_doc *a, const struct ptc_manifest_doc *b)
{
	assert_int_equal(a->generation, b->generation);
	assert_int_equal(a->ndigests, b->ndigests);
	assert_memory_equal(a->digests, b->digests, a->ndigests * sizeof *a->digests);
	assert_int_equal(a->nfiles, b->nfiles);
	for (size_t i = 0; i < a->nfiles; i++) {
		assert_string_equal(a->files[i].name, b->files[i].name);
		assert_int_equal(a->files[i].nitems, b->files[i].nitems);
		assert_memory_equal(a->files[i].items, b->files[i].items, a->files[i].nitems * sizeof(uint32_t));
	}
}

/* The text, which is made without a tree of them, as a JSON library reads it. */
static void oracle_reads(const char *text, const struct ptc_manifest_doc *m)
{
	json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL), *files = json_object_get(root, "files");
	const char *hex = json_string_value(json_object_get(root, "digests"));

	assert_non_null(hex);
	assert_int_equal(strlen(hex), 16 * m->ndigests);
	for (size_t i = 0; i < m->ndigests; i++) {
		char one[17];

		snprintf(one, sizeof one, "%016llx", (unsigned long long)m->digests[i]);
		assert_memory_equal(hex + 16 * i, one, 16);
	}
	assert_int_equal(json_array_size(files), m->nfiles);
	for (size_t i = 0; i < m->nfiles; i++) {
		json_t *items = json_object_get(json_array_get(files, i), "items");

		assert_int_equal(json_array_size(items), m->files[i].nitems);
		for (size_t k = 0; k < m->files[i].nitems; k++)
			assert_int_equal(json_integer_value(json_array_get(items, k)), m->files[i].items[k]);
	}
	json_decref(root);
}

/* Written in any other form, with spaces or in another order, it reads the same. */
static void other_forms(const char *text, const struct ptc_manifest_doc *m)
{
	static const size_t flags[] = { JSON_INDENT(2), JSON_SORT_KEYS | JSON_COMPACT, JSON_ENSURE_ASCII, 0 };
	json_t *root = json_loads(text, 0, NULL);

	for (size_t i = 0; i < 4; i++) {
		char *other = json_dumps(root, flags[i]);
		struct ptc_manifest_doc d;

		assert_int_equal(ptc_manifest_doc_decode(other, strlen(other), &d, NULL), 0);
		same_manifest(&d, m);
		ptc_manifest_doc_done(&d);
		ptc_free(other);
	}
	json_decref(root);
}

/* Who wants the names of other blobs only gets the same ones. */
static void same_names(const char *text, const struct ptc_manifest_doc *m)
{
	struct ptc_manifest_doc d;

	assert_int_equal(ptc_manifest_doc_names(text, strlen(text), &d, NULL), 0);
	assert_string_equal(d.spec_hash, m->spec_hash);
	assert_string_equal(d.generation_hash, m->generation_hash);
	assert_string_equal(d.state_hash, m->state_hash);
	assert_int_equal(d.nfiles, m->nfiles);
	for (size_t i = 0; i < d.nfiles; i++)
		assert_string_equal(d.files[i].header_hash, m->files[i].header_hash);
	assert_int_equal(d.nlayouts, m->nlayouts);
	for (size_t i = 0; i < d.nlayouts; i++)
		assert_string_equal(d.layouts[i].layout_hash, m->layouts[i].layout_hash);
	ptc_manifest_doc_done(&d);
}

static void test_long_values(void **state)
{
	static const char *const wrong[][2] = { { "[0,1]", "[0,01]" },
						{ "[0,1]", "[0,4294967296]" },
						{ "[0,1]", "[0,-1]" },
						{ "[0,1]", "[0,1,]" },
						{ "[0,1]", "[0,1],\"items\":[2]" },
						{ "[0,1]", "[0,1" },
						{ "ffff\"", "fff\"" },
						{ "ffff\"", "fffF\"" },
						{ "ffff\"", "ffff\",\"digests\":\"\"" } };
	struct ptc_manifest_doc m, d;

	(void)state;
	for (int i = 0; i < 300; i++) {
		char *text;

		random_manifest(&m);
		text = ptc_manifest_doc_encode(&m);
		assert_non_null(text);
		oracle_reads(text, &m);
		assert_int_equal(ptc_manifest_doc_decode(text, strlen(text), &d, NULL), 0);
		same_manifest(&d, &m);
		ptc_manifest_doc_done(&d);
		same_names(text, &m);
		other_forms(text, &m);
		ptc_manifest_doc_done(&m);
		ptc_free(text);
	}
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
		struct ptc_error err = PTC_ERROR_INIT;
		const char *at = strstr(good[MANIFEST], wrong[i][0]);
		char *text = ptc_asprintf("%.*s%s%s", (int)(at - good[MANIFEST]), good[MANIFEST], wrong[i][1],
					  at + strlen(wrong[i][0]));

		assert_int_equal(ptc_manifest_doc_decode(text, strlen(text), &d, &err), PTC_EINVAL);
		assert_non_null(strstr(err.text, "manifest document"));
		ptc_free(text);
	}
}

static void test_cut(void **state)
{
	(void)state;
	for (int k = 0; k < KINDS; k++)
		for (size_t len = 0; len < strlen(good[k]); len++) {
			char *exact = malloc(len ? len : 1), *text; /* the sanitizer watches its end */

			assert_non_null(exact);
			memcpy(exact, good[k], len);
			text = again(k, exact, len, NULL);
			free(exact);
			assert_null(text);
		}
}

/* Random damage, given to every decoder: refused, or what is encoded again is decoded to the same. */
static void test_damage(void **state)
{
	static const char pool[] = "{}[]\",:0123456789-.eE \\u\xff\x01truefalsn";
	(void)state;
	srand((unsigned)ptc_test_seed());
	for (int round = 0; round < 20000; round++) {
		const char *from = good[rand() % KINDS];
		char json[2048], *text;
		size_t len = strlen(from);
		int k = rand() % KINDS;

		memcpy(json, from, len);
		for (int n = 1 + rand() % 4; n; n--)
			json[(size_t)rand() % len] = pool[(size_t)rand() % (sizeof pool - 1)];
		text = again(k, json, len, NULL);
		if (text) {
			char *twice = again(k, text, strlen(text), NULL);

			assert_non_null(twice);
			assert_string_equal(text, twice);
			ptc_free(twice);
		}
		ptc_free(text);
	}
}

static void test_depth_and_size(void **state)
{
	size_t len = 1u << 20;
	char *deep = malloc(len);

	(void)state;
	assert_non_null(deep);
	memset(deep, '[', len);
	for (int k = 0; k < KINDS; k++)
		assert_null(again(k, deep, len, NULL));
	free(deep);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),     cmocka_unit_test(test_versions),

		cmocka_unit_test(test_members),        cmocka_unit_test(test_wrong_members),
		cmocka_unit_test(test_left_out),       cmocka_unit_test(test_cut),
		cmocka_unit_test(test_long_values),    cmocka_unit_test(test_damage),
		cmocka_unit_test(test_depth_and_size), cmocka_unit_test(test_ranks_on_nodes),
	};

	ptc_json_init();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
