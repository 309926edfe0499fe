/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl and libptcadmin against a server in this process that keeps items in
 * memory: import, export, digests, progress, documents, errors. The server
 * decodes with protobuf-c and computes digests over whole items. */
#include "base/number/digest.h"
#include "base/sys/sys.h"
#include <ptc/admin_state.h>
#include "client/ctl/test_control_server.h"
#include "formats/job/job.h"
#include "formats/tensors/safetensors.h"

#include <stdatomic.h>

#define BIG 5000011 /* bytes of the large tensor: three chunks, the last one odd */

static const char job_yaml[] =
	"version: 1\nname: j\nrules: [{match: a, split: {axis: tp, dim: 0, pad_to: 1}}, {match: '*'}]\nfields: {m: "
	"{dtype: U8}}\n"
	"tensors: [{name: big, dtype: U8, shape: [5000011]}, {name: e, dtype: F32, shape: [0, 3]},\n"
	"          {name: a, dtype: I16, shape: [2, 3]}, {name: s, dtype: F64, shape: []}]\n";

static struct {
	char dir[64], socket[128];
	struct ptc_rpc_server *server;
	struct ptc_job_desc job;
	char *spec;
	size_t spec_len;
	uint8_t *items[8];
	uint64_t digests[8];
	Ptc__V1__ImportCommitRequest *committed;
	atomic_int aborts, begins;
	bool corrupt;
} g;

static const char summary[] = "{\"job\":\"j\",\"from\":\"tp=1\",\"to\":\"tp=2\",\"kind\":\"resize\",\"seconds\":1.5,"
			      "\"received_bytes\":2048,\"phases\":[{\"phase\":\"filling\",\"ms\":1500.0}],\"plan\":"
			      "{\"totals\":{\"between_nodes\":2048,\"bound_any_mapping\":1024}}}";

static int on_nodes(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	release(request(call, &ptc__v1__list_request__descriptor));
	return send_document(call,
			     "{\"nodes\":[{\"node\":\"n0\",\"state\":\"up\",\"devices\":2,\"store\":{\"used_bytes\":"
			     "1536}},{\"node\":\"node-one\",\"state\":\"down\",\"devices\":16}]}",
			     err);
}

static int on_resize(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	Ptc__V1__ResizeRequest *r = request(call, &ptc__v1__resize_request__descriptor);
	bool known = r && !strcmp(r->job, "j") && (r->gpus == 2 || !strcmp(r->config, "tp=2"));
	int rc = send_progress(call, "checking", 0, NULL, err);

	release(r);
	if (!known)
		return ptc_error_set(err, PTC_ENOTFOUND, "job \"nobody\" does not exist");
	if (!rc)
		rc = send_progress(call, "moving", 500, NULL, err);
	return rc ? rc : send_progress(call, "done", 1000, summary, err);
}

static int on_events(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	Ptc__V1__EventsRequest *r = request(call, &ptc__v1__events_request__descriptor);
	int rc = 0;

	for (uint32_t i = 0; i < r->limit && !rc; i++)
		rc = send_document(call,
				   "{\"number\":1,\"time_ms\":0,\"kind\":\"seal\",\"node\":\"n0\",\"text\":"
				   "\"sealed\\u001b[31m\"}",
				   err);
	release(r);
	return rc;
}

static int on_abort(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	Ptc__V1__Ack ack;

	release(request(call, &ptc__v1__job_request__descriptor));
	atomic_fetch_add(&g.aborts, 1);
	ptc__v1__ack__init(&ack);
	ack.version = 1;
	return send_message(call, &ack.base, err);
}

static int on_import_begin(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	Ptc__V1__ImportBeginReply reply;

	release(request(call, &ptc__v1__import_begin_request__descriptor));
	atomic_fetch_add(&g.begins, 1);
	for (size_t i = 0; i < 8; i++)
		memset(g.items[i], 0xee, (size_t)ptc_item_bytes(&g.job.spec, i));
	ptc__v1__import_begin_reply__init(&reply);
	reply.version = 1;
	reply.import_id = 7;
	reply.config = (char *)(uintptr_t) "tp=1";
	reply.spec_json.data = (uint8_t *)g.spec;
	reply.spec_json.len = g.spec_len;
	return send_message(call, &reply.base, err);
}

static int on_import_data(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	Ptc__V1__ImportDataReply reply;
	Ptc__V1__ImportChunk *chunk;

	ptc__v1__import_data_reply__init(&reply);
	reply.version = 1;
	while ((chunk = receive(call, &ptc__v1__import_chunk__descriptor))) {
		bool ok = chunk->version == 1 && chunk->import_id == 7 && !strcmp(chunk->job, "j") && chunk->item < 8 &&
			  chunk->data.len <= PTC_ADMIN_CHUNK_BYTES &&
			  chunk->offset + chunk->data.len <= (uint64_t)ptc_item_bytes(&g.job.spec, chunk->item);

		if (ok)
			memcpy(g.items[chunk->item] + chunk->offset, chunk->data.data, chunk->data.len);
		reply.bytes += chunk->data.len;
		release(chunk);
		if (!ok)
			return ptc_error_set(err, PTC_EINVAL, "bad chunk");
	}
	return send_message(call, &reply.base, err);
}

static int on_import_commit(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	Ptc__V1__ImportCommitRequest *r = request(call, &ptc__v1__import_commit_request__descriptor);

	if (g.committed)
		release(g.committed);
	g.committed = r;
	if (r->n_digests != 8)
		return ptc_error_set(err, PTC_EINVAL, "%zu digests", r->n_digests);
	for (size_t i = 0; i < 8; i++) {
		g.digests[i] = ptc_digest_run(g.items[i], (size_t)ptc_item_bytes(&g.job.spec, i));
		if (g.digests[i] != r->digests[i])
			return ptc_error_set(err, PTC_EDIGEST, "item %zu", i);
	}
	return send_progress(call, "done", 1000, summary, err);
}

static int on_export_info(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	Ptc__V1__ExportInfoReply reply;

	release(request(call, &ptc__v1__export_info_request__descriptor));
	ptc__v1__export_info_reply__init(&reply);
	reply.version = 1;
	reply.generation = 3;
	reply.snapshot = 4;
	reply.config = (char *)(uintptr_t) "tp=1";
	reply.spec_json.data = (uint8_t *)g.spec;
	reply.spec_json.len = g.spec_len;
	reply.digests = g.digests;
	reply.n_digests = 8;
	reply.files = g.committed->files;
	reply.n_files = g.committed->n_files;
	return send_message(call, &reply.base, err);
}

/* In pieces of odd sizes. */
static int on_read(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	Ptc__V1__ReadRequest *r = request(call, &ptc__v1__read_request__descriptor);
	Ptc__V1__Data d;
	int rc = 0;

	ptc__v1__data__init(&d);
	d.version = 1;
	for (uint64_t at = r->offset; at < r->offset + r->length && !rc; at += d.data.len) {
		d.data.data = g.items[r->item] + at;
		d.data.len = PTC_MIN(r->offset + r->length - at, UINT64_C(1000003));
		rc = send_message(call, &d.base, err);
	}
	release(r);
	return rc;
}

static int setup(void **state)
{
	static const struct method methods[] = {
		{ "Nodes", on_nodes },
		{ "Resize", on_resize },
		{ "Events", on_events },
		{ "Abort", on_abort },
		{ "ImportBegin", on_import_begin },
		{ "ImportData", on_import_data },
		{ "ImportCommit", on_import_commit },
		{ "ExportInfo", on_export_info },
		{ "Read", on_read },
	};
	struct ptc_error err = PTC_ERROR_INIT;

	ptc_rpc_init();
	snprintf(g.dir, sizeof(g.dir), "/tmp/ptc-test-tr.XXXXXX");
	assert_non_null(mkdtemp(g.dir));
	snprintf(g.socket, sizeof(g.socket), "%s/s", g.dir);
	assert_int_equal(ptc_job_from_yaml("t", job_yaml, strlen(job_yaml), NULL, NULL, &g.job, &err), 0);
	assert_int_equal(ptc_job_to_json(&g.job, &g.spec, &g.spec_len, &err), 0);
	for (size_t i = 0; i < 8; i++)
		g.items[i] = ptc_malloc((size_t)ptc_item_bytes(&g.job.spec, i) + 1);
	g.server = serve(g.socket, &(struct ptc_rpc_server_opts){ .max_calls = 8 }, methods, PTC_ARRAY_LEN(methods));
	return 0;
}

static int teardown(void **state)
{
	ptc_rpc_server_free(g.server, 1000);
	if (g.committed)
		release(g.committed);
	for (size_t i = 0; i < 8; i++)
		ptc_free(g.items[i]);
	ptc_free(g.spec);
	ptc_job_desc_done(&g.job);
	ptc_rpc_shutdown();
	return ptc_sys_remove_tree(g.dir, "test", NULL);
}

static void test_documents(void **state)
{
	assert_int_equal(RUN("nodes"), 0);
	assert_string_equal(out, "node      state  devices  used_bytes\n"
				 "n0        up           2    1.50 KiB\n"
				 "node-one  down        16           -\n");
	assert_int_equal(RUN("nodes", "--format", "json"), 0);
	assert_int_equal(strncmp(out, "{\"nodes\":[", 10), 0);
	assert_int_equal(RUN("events", "j", "--limit", "2"), 0);
	assert_string_equal(out, "1970-01-01T00:00:00Z  seal  sealed?[31m  node=n0\n"
				 "1970-01-01T00:00:00Z  seal  sealed?[31m  node=n0\n");
	assert_int_equal(RUN("status"), 1); /* a call this server does not know */
	assert_ptr_equal(strchr(errors, '\n'), errors + strlen(errors) - 1);
}

static void test_resize(void **state)
{
	assert_int_equal(RUN("resize", "j", "--config", "tp=2", "--wait"), 0);
	assert_non_null(strstr(out, "job j: tp=1 -> tp=2, generation 0, snapshot 0, in 1.500 s\n"));
	assert_non_null(strstr(out, "between nodes              2.00 KiB\n"));
	assert_string_equal(errors, "");
	assert_int_equal(RUN("resize", "j", "--gpus", "2", "--wait", "--format", "json"), 0);
	assert_int_equal(strncmp(out, "{\"job\":\"j\",", 11), 0);
	assert_int_equal(RUN("resize", "j", "--gpus", "2"), 0);
	assert_non_null(strstr(out, "accepted"));
	assert_int_equal(RUN("resize", "nobody", "--gpus", "2", "--wait"), 1);
	assert_string_equal(errors, "ptcctl resize: job \"nobody\" does not exist\n");
	assert_string_equal(out, "");
}

static char *path_of(const char *name)
{
	static char paths[4][192];
	static int next;
	char *p = paths[next++ % 4];

	snprintf(p, sizeof(paths[0]), "%s/%s", g.dir, name);
	return p;
}

/* The header and as many pseudo-random bytes as it says. */
static void put(const char *name, const char *header, size_t data_bytes, unsigned seed)
{
	size_t n = strlen(header);
	uint8_t *file = ptc_calloc(1, 8 + n + data_bytes);

	file[0] = (uint8_t)n;
	file[1] = (uint8_t)(n >> 8);
	memcpy(file + 8, header, n);
	for (size_t i = 0; i < data_bytes; i++) {
		seed = seed * 1664525u + 1013904223u;
		file[8 + n + i] = (uint8_t)(seed >> 24);
	}
	assert_int_equal(ptc_sys_write_file(path_of(name), file, 8 + n + data_bytes, 0600, "test", NULL), 0);
	ptc_free(file);
}

static void assert_same_file(const char *a, const char *b)
{
	char *da = NULL, *db = NULL;
	size_t na = 0, nb = 0;

	assert_int_equal(ptc_sys_read_file(path_of(a), 1u << 26, &da, &na, NULL), 0);
	assert_int_equal(ptc_sys_read_file(path_of(b), 1u << 26, &db, &nb, NULL), 0);
	assert_int_equal(na, nb);
	assert_memory_equal(da, db, na);
	ptc_free(da);
	ptc_free(db);
}

/* Parameters in two files with entries in another order than their bytes, a field beside them. */
static void put_checkpoint(void)
{
	static const char index[] = "{\n  \"metadata\": {\n    \"total_size\": 5000031\n  },\n  \"weight_map\": {\n"
				    "    \"a\": \"m-2.safetensors\",\n    \"big\": \"m-1.safetensors\",\n"
				    "    \"e\": \"m-2.safetensors\",\n    \"s\": \"m-2.safetensors\"\n  }\n}\n";

	assert_int_equal(ptc_sys_mkdirs(path_of("in"), 0700, NULL), 0);
	put("in/m-1.safetensors", "{\"big\":{\"dtype\":\"U8\",\"shape\":[5000011],\"data_offsets\":[0,5000011]}}", BIG,
	    1);
	put("in/m-2.safetensors",
	    "{\"__metadata__\":{\"format\":\"pt\"},\"s\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[12,20]},"
	    "\"e\":{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[12,12]},"
	    "\"a\":{\"dtype\":\"I16\",\"shape\":[2,3],\"data_offsets\":[0,12]}}  ",
	    20, 2);
	put("in/m.safetensors",
	    "{\"a\":{\"dtype\":\"U8\",\"shape\":[2,3],\"data_offsets\":[0,6]},"
	    "\"big\":{\"dtype\":\"U8\",\"shape\":[5000011],\"data_offsets\":[6,5000017]},"
	    "\"e\":{\"dtype\":\"U8\",\"shape\":[0,3],\"data_offsets\":[5000017,5000017]},"
	    "\"s\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[5000017,5000018]}}",
	    5000018, 3);
	assert_int_equal(ptc_sys_write_file(path_of("in/" PTC_ST_INDEX_NAME), index, strlen(index), 0600, "test", NULL),
			 0);
}

static void test_round_trip(void **state)
{
	put_checkpoint();
	if (RUN("import", "j", path_of("in"), "--streams", "3"))
		fail_msg("%s", errors);
	assert_int_equal(g.aborts, 0);
	assert_int_equal(g.committed->n_files, 3);
	assert_string_equal(g.committed->files[2]->field, "m");
	assert_int_equal(g.committed->files[1]->n_items, 3); /* a, e, s of the parameters, in data order */
	assert_int_equal(g.committed->files[1]->items[0], 0);
	assert_int_equal(g.committed->files[1]->items[1], 4);
	assert_int_equal(g.committed->files[1]->items[2], 6);
	if (RUN("export", "j", path_of("out")))
		fail_msg("%s", errors);
	assert_same_file("in/m-1.safetensors", "out/m-1.safetensors");
	assert_same_file("in/m-2.safetensors", "out/m-2.safetensors");
	assert_same_file("in/" PTC_ST_INDEX_NAME, "out/" PTC_ST_INDEX_NAME);
	assert_same_file("in/m.safetensors", "out/m.safetensors");
}

/* One file of a job whose parameters came in two: canonical, and what it holds imports to the same digests. */
static void test_canonical(void **state)
{
	struct ptc_st st = { 0 };
	char field[256];

	snprintf(field, sizeof(field), "m=%s/f.safetensors", g.dir);
	if (RUN("export", "j", path_of("one.safetensors"), "--field", field))
		fail_msg("%s", errors);
	assert_int_equal(ptc_st_read(path_of("one.safetensors"), &st, NULL), 0);
	assert_true(ptc_st_describes(&st, g.job.spec.tensors, g.job.spec.ntensors));
	assert_string_equal(st.tensors[0].t.name, "a");
	ptc_st_done(&st);
	assert_same_file("in/m.safetensors", "f.safetensors");
	if (RUN("import", "j", path_of("one.safetensors"), "--field", field))
		fail_msg("%s", errors);
}

static void test_failures(void **state)
{
	int begins = g.begins;
	char *path = path_of("bad.safetensors");

	/* a byte that changed: found before the file has its name */
	g.items[2][BIG / 2] ^= 1;
	assert_int_equal(RUN("export", "j", path), 1);
	assert_non_null(strstr(errors, "ptcctl export: tensor \"big\": digest "));
	assert_int_not_equal(access(path, F_OK), 0);
	g.items[2][BIG / 2] ^= 1;
	assert_int_equal(RUN("export", "j", path_of("no/such/dir/x")), 1);
	assert_int_equal(RUN("export", "j", path, "--field", "momentum=y"), 1);
	assert_non_null(strstr(errors, "no field \"momentum\""));
	/* a bad header is found before anything is asked; a field that is missing, after, and then it is aborted */
	put("bad.safetensors", "{\"a\":1}", 0, 0);
	assert_int_equal(RUN("import", "j", path), 1);
	assert_int_equal(g.begins, begins);
	assert_int_equal(RUN("import", "j", path_of("one.safetensors")), 1);
	assert_non_null(strstr(errors, "field \"m\""));
	assert_int_equal(g.begins, begins + 1);
	assert_int_equal(g.aborts, 1);
	assert_ptr_equal(strchr(errors, '\n'), errors + strlen(errors) - 1);
}

/* Megatron-core pads vocabularies: a file has 4 rows, or 2 of another width, where the job has [2, 3]. Each import is
 * aborted. */
static void test_other_shapes(void **state)
{
	static const struct {
		const char *shape, *says;
		size_t bytes;
	} all[] = {
		{ "[4,3]", "tensor \"a\" is [4, 3], the job says [2, 3]; padding is no part of a tensor: leave it out",
		  24 },
		{ "[1,3]", "tensor \"a\" is [1, 3], the job says [2, 3]\n", 6 },
		{ "[2,5]", "tensor \"a\" is [2, 5], the job says [2, 3]\n", 20 },
		{ "[6]", "tensor \"a\" is [6], the job says [2, 3]\n", 12 },
	};

	const int aborts = g.aborts;

	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		char header[512];

		snprintf(header, sizeof header,
			 "{\"a\":{\"dtype\":\"I16\",\"shape\":%s,\"data_offsets\":[0,%zu]},"
			 "\"big\":{\"dtype\":\"U8\",\"shape\":[5000011],\"data_offsets\":[%zu,%zu]},"
			 "\"e\":{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[%zu,%zu]},"
			 "\"s\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[%zu,%zu]}}",
			 all[i].shape, all[i].bytes, all[i].bytes, all[i].bytes + BIG, all[i].bytes + BIG,
			 all[i].bytes + BIG, all[i].bytes + BIG, all[i].bytes + BIG + 8);
		put("other.safetensors", header, all[i].bytes + BIG + 8, 1);
		assert_int_equal(RUN("import", "j", path_of("other.safetensors")), 1);
		if (!strstr(errors, all[i].says))
			fail_msg("\"%s\" is not in: %s", all[i].says, errors);
	}
	assert_int_equal(g.aborts, aborts + 4);
}

static int stop_at_once(void *arg, const struct ptc_admin_progress *p)
{
	return 1;
}

static void test_library(void **state)
{
	struct ptc_admin_target target = { .size = sizeof target, .job = "j", .gpus = 2 };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_admin *a = NULL;
	struct ptc_admin_stream *s = NULL;
	char *json = NULL, byte = 0;
	uint64_t bytes = 0;
	int rc = 0;

	assert_int_equal(ptc_admin_open(&(struct ptc_admin_opts){ .size = sizeof(struct ptc_admin_opts),
								  .socket = g.socket },
					&a, &err),
			 0);
	assert_int_equal(ptc_admin_nodes(a, &json, &err), 0);
	ptc_admin_free(json);
	assert_int_equal(ptc_admin_resize(a, &target, stop_at_once, NULL, &err), PTC_ECANCELED);
	assert_int_equal(ptc_admin_resize(a, &target, NULL, NULL, &err), 0);
	target.job = "nobody";
	assert_int_equal(ptc_admin_resize(a, &target, NULL, NULL, &err), PTC_ENOTFOUND);
	/* the daemon's reason arrives while chunks are still being sent */
	assert_int_equal(ptc_admin_import_open(a, "j", 8, &s, &err), 0);
	for (int i = 0; i < 10000 && !rc; i++)
		rc = ptc_admin_import_send(s, 0, 0, &byte, 1, &err);
	if (!rc)
		rc = ptc_admin_import_finish(s, &bytes, &err);
	assert_int_equal(rc, PTC_EINVAL);
	assert_non_null(strstr(err.text, "bad chunk"));
	ptc_admin_import_close(s);
	ptc_admin_close(a);
	assert_int_equal(ptc_admin_open(&(struct ptc_admin_opts){ .size = sizeof(struct ptc_admin_opts),
								  .server = "h:1" },
					&a, &err),
			 PTC_EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_documents), cmocka_unit_test(test_resize),   cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_canonical), cmocka_unit_test(test_failures), cmocka_unit_test(test_other_shapes),
		cmocka_unit_test(test_library),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
