/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl dataset proof against a server in this process whose ledgers begin late, do not join up, name another mixture
 * than the job has, or change their order: what a real job takes five hundred generations for, or never does. What it
 * makes of real ones is in tests/test_proof.py. */
#include "base/sys/sys.h"
#include "client/ctl/test_control_server.h"
#include "formats/job/job.h"

static struct {
	char dir[64], socket[128];
	struct ptc_rpc_server *server;
	char document[8192];
} g;

static int on_data(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	release(request(call, &ptc__v1__job_request__descriptor));
	return send_document(call, g.document, err);
}

static int setup(void **state)
{
	static const struct method methods[] = { { "JobData", on_data } };
	struct ptc_rpc_server_opts opts = { .max_calls = 2 };

	snprintf(g.dir, sizeof(g.dir), "/tmp/ptc-proof-XXXXXX");
	if (!mkdtemp(g.dir))
		return -1;
	snprintf(g.socket, sizeof(g.socket), "%s/s", g.dir);
	ptc_rpc_init();
	g.server = serve(g.socket, &opts, methods, PTC_ARRAY_LEN(methods));
	return 0;
}

static int teardown(void **state)
{
	ptc_rpc_server_free(g.server, 1000);
	ptc_rpc_shutdown();
	return ptc_sys_remove_tree(g.dir, "test", NULL);
}

/* What the daemon says; two datasets by equal weight under the name "mixed". */
static void serve_entries(const char *entries)
{
	snprintf(g.document, sizeof g.document,
		 "{\"version\":1,\"job\":\"j\",\"step\":9,\"ledger\":{\"forgotten\":7,\"entries\":[%s]},\"data\":[{"
		 "\"name\":"
		 "\"mixed\",\"seed\":5,\"parts\":[{\"dataset\":\"a\",\"weight\":1,\"block\":0,\"sequential\":false,"
		 "\"samples\":4,\"pinned\":\"0123456789abcdef0123456789abcdef\"},{\"dataset\":\"b\",\"weight\":1,"
		 "\"block\":2,\"sequential\":false,\"samples\":5,\"pinned\":\"00000000000000000000000000000001\"}]},{"
		 "\"name\":"
		 "\"one\",\"seed\":5,\"parts\":[{\"dataset\":\"c\",\"weight\":1,\"block\":2,\"sequential\":false,"
		 "\"samples\":6,\"pinned\":\"00000000000000000000000000000002\"}]}]}",
		 entries);
}

/* An entry of one rank. */
static const char *entry(const char *cursor, const char *tag, int first_step, int end_step, int first, int end,
			 int batch)
{
	static char text[4][512];
	static int turn;
	char *to = text[turn++ % 4];

	snprintf(to, sizeof text[0],
		 "{\"cursor\":\"%s\",\"generation\":%d,\"steps\":[%d,%d],\"positions\":[%d,%d],\"dp\":1,\"micro_"
		 "batch\":1,"
		 "\"global_batch\":%d,\"tag\":\"%s\"}",
		 cursor, first_step + 1, first_step, end_step, first, end, batch, tag);
	return to;
}

static void serve_two(const char *one, const char *other)
{
	char both[1100];

	snprintf(both, sizeof both, "%s,%s", one, other);
	serve_entries(both);
}

static char *mix_tag(char *tag, size_t size)
{
	struct ptc_job_part parts[] = { { .source = "0123456789abcdef0123456789abcdef", .weight = 1 },
					{ .source = "00000000000000000000000000000001", .weight = 1, .block = 2 } };
	char mix[33];

	assert_int_equal(ptc_job_data_mix(&(struct ptc_job_data){ .parts = parts, .nparts = 2 }, mix), 0);
	snprintf(tag, size, "mix=%s,seed=5;counted,batch=5,micro=1", mix);
	return tag;
}

/* 37 positions are forgotten: the epoch that they end in is not counted, those from 40 on are. */
static void begins_late(void **state)
{
	serve_two(entry("data", "n=10,seed=3;batch=5", 100, 104, 37, 57, 5),
		  entry("data", "n=10,seed=3;batch=4", 104, 110, 57, 81, 4));
	assert_int_equal(RUN("dataset", "proof", "j", "--format", "json"), 0);
	expect(out, "\"epochs_finished\":4,");
	expect(out, "\"since\":37,\"position\":81,\"skipped\":0,\"said_by\":\"ranks\",\"compared\":false,\"exactly_"
		    "once\":true,"
		    "\"problems\":[]");
	assert_int_equal(RUN("dataset", "proof", "j"), 0);
	expect(out, "the job's description has no data: data to compare this order with\n");
	expect(out, "what came before position 37 is not recorded any more\n"
		    "4 epochs finished, each sample once in each; 1 of 10 samples of the next\n");
	assert_int_equal(RUN("dataset", "proof", "j", "--steps", "99", "--format", "json"), 1);
	one_line("ptcctl dataset proof: ", "the job's state has none of these steps");
	/* an epoch's place at which it begins is counted from there on */
	serve_entries(entry("data", "n=10,seed=3,sequential=1;batch=5", 100, 104, 40, 60, 5));
	assert_int_equal(RUN("dataset", "proof", "j", "--format", "json"), 0);
	expect(out, "\"sequential\":true,\"epochs_finished\":2,");
	assert_int_equal(RUN("dataset", "proof", "j", "--steps", "102", "--format", "json"), 0);
	assert_string_equal(
		out, "{\"cursor\":\"data\",\"step\":102,\"generation\":101,\"dp_rank\":0,\"samples\":[0,1,2,3,4]}\n");
}

/* What a rollback has skipped is named and counts for its epoch, but no rank had it; what does not go on behind it is
 * found. */
static void skipped(void **state)
{
	static const char skip[] =
		"{\"cursor\":\"data\",\"generation\":9,\"steps\":[%d,4],\"positions\":[20,%d],\"dp\":0,"
		"\"micro_batch\":0,\"global_batch\":0,\"tag\":\"n=10,seed=3;counted,batch=5\"}";
	const char *first = entry("data", "n=10,seed=3;batch=5", 0, 4, 0, 20, 5);
	char between[512], entries[2048];

	snprintf(between, sizeof between, skip, 4, 45);
	snprintf(entries, sizeof entries, "%s,%s,%s", first, between,
		 entry("data", "n=10,seed=3;batch=5", 4, 6, 45, 55, 5));
	serve_entries(entries);
	assert_int_equal(RUN("dataset", "proof", "j", "--format", "json"), 0);
	expect(out, "\"epochs_finished\":5,");
	expect(out, "\"position\":55,\"skipped\":25,\"said_by\":\"ranks\",\"compared\":false,\"exactly_once\":true,");
	expect(out, "\"by_length\":false,\"skipped\":true}");
	assert_int_equal(RUN("dataset", "proof", "j"), 0);
	expect(out,
	       "9            skipped          20-44                no rank had these: ptcctl rollback --skip-data at "
	       "step 4\n");
	expect(out, "25 samples were skipped by ptcctl rollback --skip-data");
	expect(out, "5 epochs finished, each sample once in each, or skipped; 5 of 10 samples of the next\n");
	assert_int_equal(RUN("dataset", "proof", "j", "--steps", "3-4", "--format", "json"), 0);
	expect(out, "\"step\":3,\"generation\":1,");
	expect(out, "\"step\":4,\"generation\":5,");
	assert_null(strstr(out, "\"generation\":9"));
	/* a program that goes on at its step, whatever its cursor says */
	snprintf(entries, sizeof entries, "%s,%s,%s", first, between,
		 entry("data", "n=10,seed=3;batch=5", 4, 6, 45, 30, 5));
	serve_entries(entries);
	assert_int_equal(RUN("dataset", "proof", "j"), 1);
	expect(errors, "generation 5: steps 4 to 6 of 5 samples are not positions 45 to 30");
	snprintf(between, sizeof between, skip, 3, 45);
	serve_two(first, between);
	assert_int_equal(RUN("dataset", "proof", "j"), 1);
	expect(errors, "generation 9 begins at position 20");
	snprintf(between, sizeof between, skip, 4, 19);
	serve_two(first, between);
	assert_int_equal(RUN("dataset", "proof", "j"), 1);
	expect(errors, "positions 20 to 19 are skipped in steps 4 to 4");
}

/* Of equal weights a has the even positions. 7 are forgotten, 4 of a and 3 of b; up to 32 there are 16 of each. */
static void mixture_begins_late(void **state)
{
	char tag[128];

	serve_entries(entry("mixed", mix_tag(tag, sizeof tag), 3, 8, 7, 32, 5));
	assert_int_equal(RUN("dataset", "proof", "j", "--counted", "--format", "json"), 0);
	expect(out,
	       "\"samples\":9,\"parts\":[{\"dataset\":\"a\",\"weight\":1,\"samples\":4,\"block\":0,\"sequential\":"
	       "false,"
	       "\"epochs_finished\":3},{\"dataset\":\"b\",\"weight\":1,\"samples\":5,\"block\":2,\"sequential\":false,"
	       "\"epochs_finished\":2}],\"seed\":5,\"since\":7,\"position\":32,\"skipped\":0,\"said_by\":\"counts\","
	       "\"compared\":"
	       "true,"
	       "\"exactly_once\":true");
	assert_int_equal(RUN("dataset", "proof", "j", "--counted"), 0);
	expect(out,
	       "dataset a: weight 1, 4 samples: 3 epochs finished, each sample once in each; 0 of 4 samples of the "
	       "next\n"
	       "dataset b: weight 1, 5 samples, shuffled within blocks: 2 epochs finished, each sample once in each; "
	       "1 of 5 samples of the next\n");
}

static void other_mixtures(void **state)
{
	char tag[128];

	mix_tag(tag, sizeof tag);
	serve_entries(entry("other", tag, 0, 2, 0, 10, 5)); /* the job has no such data */
	assert_int_equal(RUN("dataset", "proof", "j"), 1);
	expect(errors, "is of another mixture than the job's data");
	tag[4] = tag[4] == '0' ? '1' : '0';
	serve_entries(entry("mixed", tag, 0, 2, 0, 10, 5));
	assert_int_equal(RUN("dataset", "proof", "j"), 1);
	expect(errors, "is of another mixture than the job's data");
	tag[4] = '\0';
	serve_entries(entry("mixed", tag, 0, 2, 0, 10, 5));
	assert_int_equal(RUN("dataset", "proof", "j"), 1);
	expect(errors, "does not say its order");
}

static void does_not_join_up(void **state)
{
	static const struct {
		const char *tag;
		int first_step, end_step, first, end;
		const char *said;
	} bad[] = {
		{ "n=10,seed=3", 4, 6, 21, 31, "generation 5 begins at position 21, the one before ends at 20" },
		{ "n=10,seed=3", 5, 7, 20, 30, "generation 6 begins at position 20" },
		{ "n=10,seed=3", 4, 6, 20, 29, "steps 4 to 6 of 5 samples are not positions 20 to 29" },
		{ "n=10,seed=4", 4, 6, 20, 30, "generation 5 has the order \"n=10,seed=4\", before it was" },
		/* words count after the ';' too: what was reserved for ten samples is not used for a million */
		{ "n=10,seed=3;n=1000000", 4, 100004, 20, 500020, "has the order \"n=10,seed=3;n=1000000\"" },
	};

	for (size_t i = 0; i < PTC_ARRAY_LEN(bad); i++) {
		serve_two(entry("data", "n=10,seed=3", 0, 4, 0, 20, 5),
			  entry("data", bad[i].tag, bad[i].first_step, bad[i].end_step, bad[i].first, bad[i].end, 5));
		assert_int_equal(RUN("dataset", "proof", "j"), 1);
		expect(errors, bad[i].said);
		assert_int_equal(RUN("dataset", "proof", "j", "--format", "json"), 1);
		expect(out, "\"exactly_once\":false");
	}
}

/* What nobody said is no proof; what the ranks said is none of another order than the job's. */
static void shows_nothing(void **state)
{
	static const char *const other[] = { "n=9,seed=5", "n=4,seed=5" };
	static const char *const of_one[] = { "n=6,seed=5,block=2", /* the job's; the others are not */
					      "n=6,seed=5", "n=7,seed=5,block=2", "n=6,seed=6,block=2",
					      "n=6,seed=5,block=2,sequential=1" };
	char tag[128];

	serve_entries(entry("mixed", mix_tag(tag, sizeof tag), 3, 8, 7, 32, 5));
	assert_int_equal(RUN("dataset", "proof", "j"), 1);
	expect(out, "no rank said that it had these samples");
	expect(errors, "ptcctl dataset proof: cursor mixed: no rank said that it had the samples, so nothing is shown");
	assert_int_equal(RUN("dataset", "proof", "j", "--steps", "4"), 1);
	assert_memory_equal(out, "cursor mixed step 4 generation 4 dp rank 0: ", 44);
	expect(errors, "ptcctl dataset proof: cursor mixed: no rank said that it had the samples, so nothing is shown");
	assert_int_equal(RUN("dataset", "proof", "j", "--steps", "4", "--counted"), 0);
	memcpy(strstr(tag, "counted"), "another", strlen("another")); /* what follows ';' is the ranks' own word */
	serve_entries(entry("mixed", tag, 3, 8, 7, 32, 5));
	assert_int_equal(RUN("dataset", "proof", "j"), 0);
	strchr(tag, ',')[6] = '6';
	serve_entries(entry("mixed", tag, 3, 8, 7, 32, 5));
	assert_int_equal(RUN("dataset", "proof", "j", "--counted"), 1);
	expect(errors, "the job's data has 9 samples of 2 datasets, seed 5");
	for (size_t i = 0; i < PTC_ARRAY_LEN(other); i++) {
		serve_entries(entry("mixed", other[i], 0, 2, 0, 10, 5));
		assert_int_equal(RUN("dataset", "proof", "j"), 1);
		expect(errors, "ranks consumed by");
		expect(errors, other[i]);
	}
	for (size_t i = 0; i < PTC_ARRAY_LEN(of_one); i++) {
		serve_entries(entry("one", of_one[i], 0, 2, 0, 10, 5));
		assert_int_equal(RUN("dataset", "proof", "j"), i > 0);
		if (i == 0)
			continue;
		expect(errors, "ranks consumed by");
		expect(errors, "the job's data has 6 samples of 1 dataset, seed 5");
		assert_int_equal(RUN("dataset", "proof", "j", "--counted"), 1);
		assert_int_equal(RUN("dataset", "proof", "j", "--format", "json"), 1);
		expect(out, "\"exactly_once\":false");
		assert_int_equal(RUN("dataset", "proof", "j", "--steps", "0"), 1);
		assert_string_equal(out, "");
		expect(errors, "ranks consumed by");
	}
}

/* Those that cannot be proved stand in nobody's way, and each is named. */
static void others_go_on(void **state)
{
	char three[1600];

	snprintf(three, sizeof three, "%s,%s,%s", entry("first", "n=100", 0, 2, 0, 10, 5),
		 entry("data", "n=10,seed=3", 0, 2, 0, 10, 5), entry("last", "rows", 0, 2, 0, 10, 5));
	serve_entries(three);
	assert_int_equal(RUN("dataset", "proof", "j"), 1);
	expect(out, "1 epoch finished, each sample once in each");
	expect(out, "cursor first: its tag \"n=100\" does not say its order");
	expect(errors, "cursor first: its tag \"n=100\" does not say");
	expect(errors, "; cursor last: its tag \"rows\" does not say");
	assert_int_equal(RUN("dataset", "proof", "j", "--format", "json"), 1);
	expect(out, "{\"cursor\":\"first\",\"exactly_once\":false,\"problems\":[\"cursor first: its tag");
	expect(out, "\"exactly_once\":true,\"problems\":[],");
	assert_int_equal(RUN("dataset", "proof", "j", "--steps", "1"), 1);
	assert_memory_equal(out, "cursor data step 1 generation 1 dp rank 0: ", 43);
	expect(errors, "cursor last: its tag \"rows\"");
	assert_int_equal(RUN("dataset", "proof", "j", "--cursor", "data"), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(begins_late),    cmocka_unit_test(mixture_begins_late),
		cmocka_unit_test(skipped),        cmocka_unit_test(shows_nothing),
		cmocka_unit_test(other_mixtures), cmocka_unit_test(does_not_join_up),
		cmocka_unit_test(others_go_on),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
