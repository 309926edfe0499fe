/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl and libptcadmin for live jobs, against a server in this process that
 * plays a script: run, stop, snapshot, logs, status, plan, events, and an
 * export whose job is switched meanwhile. */
#include "client/ctl/test_control_server.h"

#include "base/buf.h"
#include "base/number/digest.h"
#include "base/sys/sys.h"
#include <ptc/admin_state.h>
#include "formats/job/job.h"

#include <pthread.h>
#include <stdatomic.h>

#define NTENSORS 40 /* small ones, of an export; each with a field */
#define NITEMS   (2 * NTENSORS)
#define ITEM     12   /* bytes of each */
#define BEFORE   3000 /* a read that is to meet its equals waits so long, ms */

static struct {
	char dir[64], socket[128], yaml[128];
	struct ptc_rpc_server *server;
	/* what the daemon is to do */
	atomic_int create, run;           /* status */
	atomic_bool hangs;                /* run never ends */
	_Atomic(const char *) status;     /* document of a job; NULL: it does not exist */
	_Atomic(const char *) log_script; /* which lines */
	_Atomic(const char *) plan;       /* document; NULL: that of a live job */
	/* what it was asked */
	char job[64], hash[33];
	_Atomic uint32_t gpus, lines, rank;
	atomic_bool all, follow;
	atomic_int stops, snapshots, runs;
} g;

static const char run_summary[] =
	"{\"version\":1,\"job\":\"j\",\"kind\":\"run\",\"generation\":1,\"snapshot\":0,\"step\":0,\"from\":\"\",\"to\":"
	"\"tp=2\","
	"\"phases\":[{\"phase\":\"starting\",\"ms\":200.5},{\"phase\":\"building\",\"ms\":100.0}],\"received_bytes\":0,"
	"\"copied_bytes\":0,\"verified_bytes\":0,\"digests_verified\":0,\"preserved\":\"bytes\",\"seconds\":0.31,"
	"\"plan\":null,\"blobs\":{\"gone\":0,\"without\":2,\"replicated\":0,\"reset\":0,\"text\":\"2 new ranks have "
	"none (rng)\"},"
	"\"pause\":{\"total_ms\":300,\"build_ms\":150.0,\"first_step_ms\":75}}";
static const char stop_summary[] =
	"{\"version\":1,\"job\":\"j\",\"kind\":\"stop\",\"generation\":1,\"snapshot\":3,\"step\":120,\"from\":\"tp=2\","
	"\"phases\":[{\"phase\":\"arming\",\"ms\":4.0}],\"verified_bytes\":2048,\"digests_verified\":7,\"preserved\":"
	"\"bytes\","
	"\"seconds\":0.25,\"pause\":{\"total_ms\":40.0,\"stop_ms\":10.0,\"copy_ms\":20.0,\"commit_ms\":5.0}}";

/* ---- the server ---- */

static int on_create(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	Ptc__V1__JobCreateRequest *r = request(call, &ptc__v1__job_create_request__descriptor);
	Ptc__V1__JobCreateReply reply;

	ptc_content_hash(r->spec_json.data, r->spec_json.len, g.hash);
	release(r);
	if (g.create)
		return ptc_error_set(err, g.create, "a job named \"live\" exists already; choose another name");
	ptc__v1__job_create_reply__init(&reply);
	reply.version = 1;
	return send_message(call, &reply.base, err);
}

static int on_status(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	char *text;
	int rc;

	release(request(call, &ptc__v1__job_request__descriptor));
	if (!g.status)
		return ptc_error_set(err, PTC_ENOTFOUND, "job \"live\" does not exist");
	text = ptc_asprintf("{\"version\":1,\"daemon\":{\"coordinator_ok\":true},\"jobs\":[{\"job\":\"live\",%s}]}",
			    g.status);
	rc = send_document(call, text, err);
	ptc_free(text);
	return rc;
}

static int on_run(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	static const char *const phases[] = { "checking", "intent", "starting", "building", "layout", "finishing" };
	Ptc__V1__RunRequest *r = request(call, &ptc__v1__run_request__descriptor);
	int rc = 0;

	atomic_fetch_add(&g.runs, 1);
	snprintf(g.job, sizeof(g.job), "%s", r->job);
	g.gpus = r->gpus;
	release(r);
	if (g.hangs)
		while (!ptc_rpc_call_cancelled(call))
			usleep(1000);
	if (g.run)
		return ptc_error_set(err, g.run, "8 devices are needed, 2 are known");
	for (size_t i = 0; i < PTC_ARRAY_LEN(phases) && !rc; i++)
		rc = send_progress(call, phases[i], 0, NULL, err);
	return rc ? rc : send_progress(call, "done", 0, run_summary, err);
}

static int on_stop(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	release(request(call, &ptc__v1__stop_request__descriptor));
	if (atomic_fetch_add(&g.stops, 1))
		return ptc_error_set(err, PTC_ESTATE, "job live is stopped already");
	if (send_progress(call, "arming", 0, NULL, err))
		return PTC_EPEER;
	return send_progress(call, "done", 0, stop_summary, err);
}

static int on_snapshot(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	release(request(call, &ptc__v1__job_request__descriptor));
	atomic_fetch_add(&g.snapshots, 1);
	if (send_progress(call, "arming", 0, NULL, err))
		return PTC_EPEER;
	return send_progress(call, "done", 0, stop_summary, err);
}

static int send_log(struct ptc_rpc_call *call, uint32_t rank, const void *data, size_t len, struct ptc_error *err)
{
	Ptc__V1__LogLine l;

	ptc__v1__log_line__init(&l);
	l.version = 1;
	l.rank = rank;
	l.data.data = (uint8_t *)(uintptr_t)data;
	l.data.len = len;
	return send_message(call, &l.base, err);
}

static int on_logs(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	static const char two[] = "step 1\nstep 2\n", strange[] = "50%\r100%\r\n\x1b[2J\xff a\tb\n";
	Ptc__V1__LogsRequest *r = request(call, &ptc__v1__logs_request__descriptor);
	int rc = 0;

	g.all = r->all;
	g.rank = r->rank;
	g.follow = r->follow;
	g.lines = r->lines;
	release(r);
	if (!strcmp(g.log_script, "strange"))
		return send_log(call, g.rank, strange, sizeof(strange) - 1, err);
	rc = send_log(call, g.rank, two, sizeof(two) - 1, err);
	if (!rc && g.all)
		rc = send_log(call, 3, "last\n", 5, err);
	if (!rc && !strcmp(g.log_script, "lost"))
		rc = ptc_error_set(err, PTC_EPEER, "node n1 went away; its ranks' logs are there");
	return rc;
}

static int on_plan(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	release(request(call, &ptc__v1__resize_request__descriptor));
	if (g.plan)
		return send_document(call, g.plan, err);
	return send_document(
		call,
		"{\"version\":1,\"job\":\"live\",\"from\":\"tp=2\",\"to\":\"tp=5\",\"ranks\":["
		"{\"rank\":0,\"node\":\"n0\",\"device\":0,\"mode\":\"rebuild\"},"
		"{\"rank\":1,\"node\":\"n0\",\"device\":1,\"mode\":\"rebuild\"},"
		"{\"rank\":2,\"node\":\"n1\",\"device\":0,\"mode\":\"start\"},"
		"{\"rank\":3,\"node\":\"n2\",\"device\":0,\"mode\":\"rebuild\"},"
		"{\"rank\":4,\"node\":\"n2\",\"device\":1,\"mode\":\"rebuild\"}],\"nodes\":[],\"totals\":{}}",
		err);
}

static int on_events(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	release(request(call, &ptc__v1__events_request__descriptor));
	if (send_document(
		    call,
		    "{\"number\":1,\"time_ms\":0,\"kind\":\"failed\",\"node\":\"n1\",\"text\":\"rank 3 exited with "
		    "status 1\\nTraceback:\\n  bad\\u001b[31m\\tvalue\\n\"}",
		    err))
		return PTC_EPEER;
	return send_document(call, "{\"number\":2,\"time_ms\":0,\"kind\":\"stopped\",\"node\":\"n1\",\"text\":\"x\"}",
			     err);
}

/* ---- the state that is exported: NTENSORS small tensors, switched as the script says ---- */

static struct {
	struct ptc_job_desc job;
	char *spec;
	size_t spec_len;
	pthread_mutex_t lock;
	pthread_cond_t met;
	uint64_t generation, snapshot;
	uint8_t value; /* of every byte */
	int infos, reads_of[NITEMS], inside, most_inside;
	int params_read;       /* of the parameters, when the job was last switched */
	bool meet;             /* the first reads wait for each other */
	uint32_t switch_at[4]; /* when these are read the job is switched, in this order, once each ... */
	int nswitch, switched;
	bool other_state; /* ... and then holds other bytes */
	bool every_read;  /* it never rests */
} e = { .lock = PTHREAD_MUTEX_INITIALIZER, .met = PTHREAD_COND_INITIALIZER };

static int on_export_info(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	Ptc__V1__ExportInfoReply reply;
	uint8_t bytes[ITEM];
	uint64_t digests[NITEMS];

	release(request(call, &ptc__v1__export_info_request__descriptor));
	ptc__v1__export_info_reply__init(&reply);
	pthread_mutex_lock(&e.lock);
	e.infos++;
	memset(bytes, e.value, ITEM);
	reply.generation = e.generation;
	reply.snapshot = e.snapshot;
	pthread_mutex_unlock(&e.lock);
	for (size_t i = 0; i < NITEMS; i++)
		digests[i] = ptc_digest_run(bytes, ITEM);
	reply.version = 1;
	reply.config = (char *)(uintptr_t) "tp=1";
	reply.spec_json.data = (uint8_t *)e.spec;
	reply.spec_json.len = e.spec_len;
	reply.digests = digests;
	reply.n_digests = NITEMS;
	return send_message(call, &reply.base, err);
}

/* Of reads that may be begun together, two are inside at the same time, or else this waits in vain and says so. */
static void meet_locked(void)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += BEFORE / 1000;
	pthread_cond_broadcast(&e.met);
	while (e.meet && e.most_inside < 2)
		if (pthread_cond_timedwait(&e.met, &e.lock, &until))
			break;
	e.meet = false;
}

static int params_read_locked(void)
{
	int n = 0;

	for (int i = 0; i < NITEMS; i += 2)
		n += e.reads_of[i];
	return n;
}

static int read_locked(const Ptc__V1__ReadRequest *r, uint8_t bytes[ITEM], struct ptc_error *err)
{
	if (e.every_read || (e.switched < e.nswitch && e.switch_at[e.switched] == r->item)) {
		e.switched++;
		e.generation++;
		e.snapshot++;
		e.value += e.other_state;
		e.params_read = params_read_locked();
	}
	if (r->item >= NITEMS || r->generation != e.generation || r->snapshot != e.snapshot)
		return ptc_error_set(err, PTC_ESTATE, "generation %d is no longer kept", (int)r->generation);
	e.reads_of[r->item]++;
	e.inside++;
	e.most_inside = PTC_MAX(e.most_inside, e.inside);
	if (e.meet)
		meet_locked();
	e.inside--;
	memset(bytes, e.value, ITEM);
	return 0;
}

static int on_read(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	Ptc__V1__ReadRequest *r = receive(call, &ptc__v1__read_request__descriptor);
	uint8_t bytes[ITEM];
	Ptc__V1__Data d;
	int rc;

	if (!r) /* it was begun ahead and is not wanted any more */
		return ptc_error_set(err, PTC_ECANCELED, "the client went away");
	pthread_mutex_lock(&e.lock);
	rc = read_locked(r, bytes, err);
	pthread_mutex_unlock(&e.lock);
	release(r);
	if (rc)
		return rc;
	ptc__v1__data__init(&d);
	d.version = 1;
	d.data.data = bytes;
	d.data.len = ITEM;
	return send_message(call, &d.base, err);
}

static void reset(void)
{
	pthread_mutex_lock(&e.lock);
	e.generation = 3;
	e.snapshot = 4;
	e.value = 1;
	e.infos = e.inside = e.most_inside = e.nswitch = e.switched = 0;
	e.meet = e.other_state = e.every_read = false;
	memset(e.reads_of, 0, sizeof(e.reads_of));
	pthread_mutex_unlock(&e.lock);
}

static void make_state(void)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_buf b = PTC_BUF_INIT;

	ptc_buf_puts(&b, "version: 1\nname: live\nrules: [{match: '*'}]\nfields: {m: {}}\ntensors:\n");
	for (int i = 0; i < NTENSORS; i++)
		ptc_buf_printf(&b, "- {name: t%02d, dtype: F32, shape: [%d]}\n", i, ITEM / 4);
	if (ptc_job_from_yaml("t", b.data, b.len, NULL, NULL, &e.job, &err) ||
	    ptc_job_to_json(&e.job, &e.spec, &e.spec_len, &err) ||
	    ptc_sys_write_file(g.yaml, b.data, b.len, 0600, "test", &err))
		fail_msg("%s", err.text);
	ptc_buf_done(&b);
}

static int setup(void **state)
{
	static const struct method methods[] = {
		{ "JobCreate", on_create },       { "Status", on_status }, { "Run", on_run },   { "Stop", on_stop },
		{ "Snapshot", on_snapshot },      { "Logs", on_logs },     { "Plan", on_plan }, { "Events", on_events },
		{ "ExportInfo", on_export_info }, { "Read", on_read },
	};

	ptc_rpc_init();
	snprintf(g.dir, sizeof(g.dir), "/tmp/ptc-test-live.XXXXXX");
	assert_non_null(mkdtemp(g.dir));
	snprintf(g.socket, sizeof(g.socket), "%s/s", g.dir);
	snprintf(g.yaml, sizeof(g.yaml), "%s/job.yaml", g.dir);
	make_state();
	/* fewer calls at once than ptcctl begins, for the user and for root: it has to do with what it gets */
	g.server = serve(g.socket, &(struct ptc_rpc_server_opts){ .max_calls = 12, .max_calls_per_user = 6 }, methods,
			 PTC_ARRAY_LEN(methods));
	return 0;
}

static int teardown(void **state)
{
	ptc_rpc_server_free(g.server, 1000);
	ptc_free(e.spec);
	ptc_job_desc_done(&e.job);
	ptc_rpc_shutdown();
	return ptc_sys_remove_tree(g.dir, "test", NULL);
}

/* ---- tests ---- */

static void test_run(void **state)
{
	assert_int_equal(RUN("run", "-f", g.yaml, "--gpus", "2", "--wait"), 0);
	assert_string_equal(errors, "");
	assert_string_equal(g.job, "live");
	assert_int_equal(g.gpus, 2);
	assert_string_equal(out, "job live created\n"
				 "job j: nothing -> tp=2, generation 1, snapshot 0, step 0, in 0.310 s\n"
				 "  stored                          0 B  over all nodes\n"
				 "  digests verified                  0  preserved: bytes\n"
				 "  blobs                  2 new ranks have none (rng)\n"
				 "  time per phase, ms     starting 200.5, building 100.0\n"
				 "  training paused            300.0 ms\n"
				 "    build of new ranks       150.0 ms   50 %\n"
				 "    first step                75.0 ms   25 %\n");
	assert_int_equal(RUN("run", "again", "--wait", "--format", "json"), 0);
	assert_string_equal(g.job, "again");
	assert_int_equal(g.gpus, 0);
	assert_int_equal(strncmp(out, "{\"version\":1,\"job\":\"j\",\"kind\":\"run\"", 35), 0);
	assert_int_equal(RUN("run", "again"), 0);
	expect(out, "accepted");
	/* what each phase means, where somebody watches */
	assert_int_equal(RUN_TERMINAL("run", "again", "--wait"), 0);
	expect(out, "starting: processes of the new ranks start and import; training goes on");
	expect(out, "building: new ranks build their model");
}

static void test_run_existing(void **state)
{
	char status[128];
	int runs;

	g.create = PTC_EEXIST;
	snprintf(status, sizeof(status), "\"spec_hash\":\"%s\"", g.hash);
	g.status = status;
	assert_int_equal(RUN("run", "-f", g.yaml, "--wait"), 0);
	assert_null(strstr(out, "created"));
	runs = g.runs;
	g.status = "\"spec_hash\":\"00112233445566778899aabbccddeeff\"";
	assert_int_equal(RUN("run", "-f", g.yaml, "--wait"), 1);
	one_line("ptcctl run: job \"live\" exists with another description than ", "ptcctl run live");
	g.status = "\"phase\":\"idle\"";
	assert_int_equal(RUN("run", "-f", g.yaml), 1);
	one_line("ptcctl run: job \"live\" exists, and the daemon does not say how it is described", "");
	g.status = NULL;
	assert_int_equal(RUN("run", "-f", g.yaml), 1);
	one_line("ptcctl run: job \"live\" is being created or deleted; try again", "");
	assert_int_equal(g.runs, runs); /* nothing of this started anything */
	g.create = PTC_ENOSPC;
	assert_int_equal(RUN("run", "-f", g.yaml), 1);
	one_line("ptcctl run: a job named", "");
	g.create = 0;
	g.run = PTC_ENODEVICES;
	assert_int_equal(RUN("run", "-f", g.yaml, "--wait", "--format", "json"), 1);
	one_line("ptcctl run: job live was created but not started: 8 devices are needed", "");
	assert_int_equal(RUN("run", "live", "--follow"), 1);
	one_line("ptcctl run: 8 devices are needed", "");
	g.run = 0;
}

/* Whose time has passed: ptcctl's own, or one of the daemon's. */
static void test_run_late(void **state)
{
	g.run = PTC_ETIMEOUT;
	assert_int_equal(RUN("run", "live", "--wait"), 1);
	one_line("ptcctl run: 8 devices are needed", "");
	assert_int_equal(RUN("run", "live", "--wait", "--timeout", "1h"), 1);
	one_line("ptcctl run: 8 devices are needed", "");
	g.run = 0;
	g.hangs = true;
	assert_int_equal(RUN("run", "live", "--wait", "--timeout", "300ms"), 1);
	one_line("ptcctl run: stopped waiting after --timeout; the work goes on: ", "");
	g.hangs = false;
}

static void test_run_follow(void **state)
{
	g.log_script = "";
	g.status = "\"step\":60,\"run\":{\"state\":\"done\",\"incarnation\":1}";
	assert_int_equal(RUN("run", "live", "--follow"), 0);
	assert_true(g.all && g.follow);
	expect(out, "\n[rank 0] step 1\n[rank 0] step 2\n[rank 3] last\njob live: done, snapshot of step 60\n");
	assert_string_equal(errors, "");
	g.status = "\"step\":60,\"run\":{\"state\":\"failed\",\"incarnation\":1,\"text\":\"rank 3 on n1 exited with "
		   "status "
		   "1\"}";
	assert_int_equal(RUN("run", "live", "--follow"), 1);
	assert_string_equal(errors, "ptcctl run: job live failed: rank 3 on n1 exited with status 1\n");
	g.status = "\"step\":60,\"run\":{\"state\":\"stopped\"}";
	assert_int_equal(RUN("run", "live", "--follow", "--format", "json"), 0);
	expect(out, "}\n{\"rank\":0,\"text\":\"step 1\"}\n{\"rank\":0,\"text\":\"step "
		    "2\"}\n{\"rank\":3,\"text\":\"last\"}\n");
	assert_null(strstr(out, "job live"));
}

static void test_logs(void **state)
{
	g.log_script = "";
	assert_int_equal(RUN("logs", "live"), 0);
	assert_string_equal(out, "step 1\nstep 2\n");
	assert_true(!g.all && !g.follow && !g.rank && !g.lines);
	assert_int_equal(RUN("logs", "-f", "live", "--rank", "7", "--lines", "20"), 0);
	assert_true(!g.all && g.follow && g.rank == 7 && g.lines == 20);
	assert_int_equal(RUN("logs", "live", "--rank", "all"), 0);
	assert_true(g.all);
	assert_string_equal(out, "[rank 0] step 1\n[rank 0] step 2\n[rank 3] last\n");
	/* what was shown before it failed stays shown */
	g.log_script = "lost";
	assert_int_equal(RUN("logs", "live"), 1);
	assert_string_equal(out, "step 1\nstep 2\n");
	assert_string_equal(errors, "ptcctl logs: node n1 went away; its ranks' logs are there\n");
	/* bytes as they are into a file; on a terminal nothing that moves the cursor; in JSON text */
	g.log_script = "strange";
	assert_int_equal(RUN("logs", "live"), 0);
	assert_string_equal(out, "50%\r100%\r\n\x1b[2J\xff a\tb\n");
	assert_int_equal(RUN_TERMINAL("logs", "live"), 0);
	expect(out, "100%\r\n?[2J\xff a");
	assert_null(strstr(out, "50%"));
	assert_int_equal(RUN("logs", "live", "--format", "json"), 0);
	assert_string_equal(out,
			    "{\"rank\":0,\"text\":\"50%\\r100%\\r\"}\n{\"rank\":0,\"text\":\"\\u001B[2J? a\\tb\"}\n");
}

static void test_stop_and_snapshot(void **state)
{
	assert_int_equal(RUN("snapshot", "live"), 0);
	expect(out, "accepted");
	assert_int_equal(RUN("snapshot", "live", "--wait"), 0);
	assert_int_equal(g.snapshots, 2);
	assert_int_equal(RUN("stop", "live"), 0);
	assert_string_equal(out, "job j: stop at tp=2, generation 1, snapshot 3, step 120, in 0.250 s\n"
				 "  stored                     2.00 KiB  over all nodes\n"
				 "  digests verified                  7  preserved: bytes\n"
				 "  time per phase, ms     arming 4.0\n"
				 "  training paused             40.0 ms\n"
				 "    stop at boundary          10.0 ms   25 %\n"
				 "    copy out                  20.0 ms   50 %\n"
				 "    commit                     5.0 ms   12 %\n");
	assert_int_equal(RUN("stop", "live"), 1);
	one_line("ptcctl stop: job live is stopped already", "");
	g.stops = 0; /* --wait is what it does anyway */
	assert_int_equal(RUN("stop", "live", "--wait"), 0);
	expect(out, "job j: stop at tp=2, generation 1");
}

static void test_status(void **state)
{
	g.status = "\"phase\":\"idle\",\"step\":100,\"run\":{\"state\":\"live\",\"incarnation\":2,\"step\":130,\"steps_"
		   "per_"
		   "s\":12.5,"
		   "\"reports\":{\"loss\":3.214321,\"l\\u001br\":0.0003},\"isolation\":\"cgroup\",\"ranks\":["
		   "{\"rank\":0,\"node\":\"n0\",\"device\":1,\"pid\":4711,\"state\":\"running\",\"step\":131,"
		   "\"generation\":2,"
		   "\"incarnation\":2,\"steps_per_s\":12.5,\"reports\":{\"loss\":3.2},\"log\":\"/x\"},"
		   "{\"rank\":1,\"node\":\"n1\",\"device\":0,\"state\":\"unknown\"}]}";
	assert_int_equal(RUN("status", "live"), 0);
	assert_string_equal(out, "job   run   phase  step\n"
				 "live  live  idle    100\n"
				 "\n"
				 "run: live, incarnation 2, ranks kept together by cgroup\n"
				 "step 130, 12.5 steps/s, loss 3.21432, l?r 0.0003\n"
				 "\n"
				 "rank  node  device   pid  state    step  generation  steps_per_s  reports\n"
				 "   0  n0         1  4711  running   131           2         12.5  loss=3.2\n"
				 "   1  n1         0     -  unknown     -           -            -  -\n");
	assert_int_equal(RUN("status"), 0); /* of all: a line each */
	assert_string_equal(out, "job   run   phase  step\nlive  live  idle    100\n");
	assert_int_equal(RUN("status", "live", "--format", "json"), 0);
	expect(out, "\"steps_per_s\":12.5");
	g.status = "\"phase\":\"idle\",\"run\":{\"state\":\"failed\",\"incarnation\":1,\"text\":\"rank 3 "
		   "exited\",\"ranks\":[]}";
	assert_int_equal(RUN("status", "live"), 0);
	assert_string_equal(out,
			    "job   run     phase\nlive  failed  idle\n\nrun: failed, incarnation 1\nrank 3 exited\n");
	g.status = "\"phase\":\"idle\",\"run\":{\"state\":\"none\",\"incarnation\":0}";
	assert_int_equal(RUN("status", "live"), 0);
	assert_string_equal(out, "job   run   phase\nlive  none  idle\n");
	/* members of other types than they should be */
	g.status = "\"run\":{\"state\":\"live\",\"step\":\"x\",\"reports\":[1],\"ranks\":7,\"steps_per_s\":null}";
	assert_int_equal(RUN("status", "live"), 0);
	expect(out, "run: live, incarnation 0\n");
}

static void test_plan_and_events(void **state)
{
	assert_int_equal(RUN("plan", "live", "--gpus", "5"), 0);
	expect(out, "ranks by node: n0: 0 1, n1: 2, n2: 3 4\n"
		    "  rebuild                ranks 0-1 3-4\n"
		    "  start                  ranks 2\n");
	assert_int_equal(RUN("events", "live"), 0);
	assert_string_equal(out, "1970-01-01T00:00:00Z  failed  rank 3 exited with status 1  node=n1\n"
				 "    Traceback:\n"
				 "      bad?[31m value\n"
				 "1970-01-01T00:00:00Z  stopped  x  node=n1\n");
}

/* ---- the picture of a plan ---- */

#define TEXTS        "\"version\":1,\"job\":\"j\",\"from\":\"tp=1\",\"to\":\"tp=2\""
#define RANKS_BEFORE "\"from_ranks\":[{\"rank\":0,\"node\":\"a\",\"device\":0}]"
#define RANKS_AFTER  "\"ranks\":[{\"rank\":0,\"node\":\"a\",\"device\":0},{\"rank\":1,\"node\":\"a\",\"device\":1}]"
#define NODE_A       "{\"node\":\"a\",\"state\":\"up\",\"devices\":1}"

static void test_picture(void **state)
{
	static const char *const wrong[] = {
		"7",
		"{" TEXTS "," RANKS_BEFORE "," RANKS_AFTER ",\"nodes\":[],\"totals\":null}",
		"{" TEXTS "," RANKS_BEFORE "," RANKS_AFTER
		",\"nodes\":[{\"node\":\"a\"}],\"totals\":null}", /* of an older daemon */
		"{" TEXTS "," RANKS_BEFORE "," RANKS_AFTER ",\"nodes\":[{\"node\":\"b\",\"state\":\"up\"}]}",
		"{" TEXTS "," RANKS_BEFORE "," RANKS_BEFORE
		",\"ranks\":[{\"rank\":0,\"node\":\"a\",\"device\":0}],\"nodes\":[" NODE_A "]}",
		"{" TEXTS "," RANKS_BEFORE ",\"ranks\":[1,2],\"nodes\":[" NODE_A "]}",
		"{" TEXTS ",\"from_ranks\":[{\"node\":\"a\",\"device\":99999999999}]," RANKS_AFTER ",\"nodes\":[" NODE_A
		"]}",
		"{\"version\":1,\"from\":\"tp=1\",\"to\":\"tp=x\"," RANKS_BEFORE "," RANKS_AFTER ",\"nodes\":[" NODE_A
		"]}",
	};

	g.plan = "{" TEXTS "," RANKS_BEFORE "," RANKS_AFTER ",\"nodes\":[" NODE_A "],\"totals\":null}";
	assert_int_equal(RUN("plan", "live", "--gpus", "2", "--format", "svg"), 0);
	expect(out, "<svg xmlns=");
	expect(out, "built with tp=2 for the first time");
	/* text that is none of XML's stays text, in names, headings and titles */
	g.plan = "{\"version\":1,\"job\":\"<b>&\\u0007\",\"from\":\"\",\"to\":\"tp=1\",\"from_ranks\":[],\"ranks\":["
		 "{\"rank\":0,\"node\":\"n\\\"<x a='1'>&amp;]]>\",\"device\":0}],\"nodes\":[{\"node\":\"n\\\"<x "
		 "a='1'>&amp;]]>\",\"state\":\"down\",\"devices\":1,\"in_bytes\":4,\"out_bytes\":8,\"held_bytes\":4}],"
		 "\"totals\":{}}";
	assert_int_equal(RUN("plan", "live", "--gpus", "2", "--format", "svg"), 0);
	expect(out, "<title>job &lt;b&gt;&amp; : nothing to tp=1</title>");
	expect(out, ">n&quot;&lt;x a='1'&gt;&amp;amp;]]&gt;</text>");
	expect(out, "<title>n&quot;&lt;x a='1'&gt;&amp;amp;]]&gt; sends 8 bytes</title>");
	assert_null(strstr(out, "<x"));
	assert_null(strstr(out, "<b>"));
	for (size_t i = 0; i < PTC_ARRAY_LEN(wrong); i++) {
		g.plan = wrong[i];
		assert_int_equal(RUN("plan", "live", "--gpus", "2", "--format", "svg"), 1);
		one_line("ptcctl plan: ", "");
		assert_string_equal(out, "");
	}
	g.plan = NULL;
}

/* ---- export ---- */

static char *target(void)
{
	static char path[192];

	snprintf(path, sizeof(path), "%s/x.safetensors", g.dir);
	return path;
}

/* The file holds value in every byte of its data. */
static void assert_exported(uint8_t value)
{
	char *data = NULL;
	size_t n = 0;

	assert_int_equal(ptc_sys_read_file(target(), 1u << 20, &data, &n, NULL), 0);
	assert_true(n > NTENSORS * ITEM);
	for (size_t i = n - NTENSORS * ITEM; i < n; i++)
		assert_int_equal((uint8_t)data[i], value);
	ptc_free(data);
	assert_int_equal(unlink(target()), 0);
}

static void test_export_ahead(void **state)
{
	reset();
	e.meet = true;
	if (RUN("export", "live", target()))
		fail_msg("%s", errors);
	assert_string_equal(errors, "");
	assert_exported(1);
	assert_true(e.most_inside >= 2);
	assert_int_equal(e.infos, 1);
}

static void test_export_switched(void **state)
{
	/* the same bytes under another generation */
	reset();
	e.switch_at[e.nswitch++] = 20;
	if (RUN("export", "live", target()))
		fail_msg("%s", errors);
	expect(errors,
	       "ptcctl export: job live was switched while it was read (now generation 4, snapshot 5); reading ");
	expect(errors, "x.safetensors again\n");
	assert_exported(1);
	/* other bytes: the file is of one snapshot, not of two */
	reset();
	e.other_state = true;
	e.switch_at[e.nswitch++] = 20;
	e.switch_at[e.nswitch++] = 40;
	if (RUN("export", "live", target()))
		fail_msg("%s", errors);
	expect(errors, "reading everything again\n");
	assert_exported(3);
	/* it never rests */
	reset();
	e.every_read = true;
	assert_int_equal(RUN("export", "live", target()), 1);
	expect(errors, "ptcctl export: gave up after 10 attempts: ");
	assert_int_not_equal(access(target(), F_OK), 0);
}

/* With several files: what is finished is not read again where the bytes are the same. */
static void test_export_keeps(void **state)
{
	char dir[192];

	snprintf(dir, sizeof(dir), "%s/out", g.dir);
	reset();
	e.switch_at[e.nswitch++] = 11; /* in the field's file, the second */
	if (RUN("export", "live", dir))
		fail_msg("%s", errors);
	expect(errors, "out/m.safetensors again\n");
	assert_true(e.params_read >= NTENSORS);
	assert_true(params_read_locked() < e.params_read + NTENSORS); /* one begun ahead may still have come */
	reset();
	e.other_state = true;
	e.switch_at[e.nswitch++] = 11;
	if (RUN("export", "live", dir))
		fail_msg("%s", errors);
	expect(errors, "reading everything again\n");
	assert_true(params_read_locked() >= e.params_read + NTENSORS);
}

/* ---- the library ---- */

static int one_log(void *arg, uint32_t rank, const void *data, size_t len)
{
	int *n = arg;

	return ++*n == 1;
}

static void test_library(void **state)
{
	struct ptc_admin_target t = { .size = sizeof t, .job = "live", .gpus = 4 };
	struct ptc_admin_logs what = { .size = sizeof what, .job = "live", .all = true, .lines = 3 };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_admin *a = NULL;
	int n = 0;

	g.log_script = "";
	g.stops = 0;
	assert_int_equal(ptc_admin_open(&(struct ptc_admin_opts){ .size = sizeof(struct ptc_admin_opts),
								  .socket = g.socket },
					&a, &err),
			 0);
	assert_int_equal(ptc_admin_run(a, &t, NULL, NULL, &err), 0);
	assert_int_equal(g.gpus, 4);
	assert_int_equal(ptc_admin_snapshot(a, "live", NULL, NULL, &err), 0);
	assert_int_equal(ptc_admin_stop(a, "live", false, NULL, NULL, &err), 0);
	assert_int_equal(ptc_admin_stop(a, "live", false, NULL, NULL, &err), PTC_ESTATE);
	assert_int_equal(ptc_admin_logs(a, &what, one_log, &n, &err), PTC_ECANCELED);
	assert_int_equal(n, 1);
	assert_int_equal(g.lines, 3);
	n = 1;
	assert_int_equal(ptc_admin_logs(a, &what, one_log, &n, &err), 0);
	assert_int_equal(n, 3);
	/* a read that was begun and is not wanted */
	{
		struct ptc_admin_export *info = NULL;
		struct ptc_admin_reading *r = NULL;

		reset();
		assert_int_equal(ptc_admin_export_info(a, "live", &info, &err), 0);
		assert_int_equal(ptc_admin_read_begin(a, "live", info, 0, 0, ITEM, &r, &err), 0);
		assert_null(ptc_admin_read_end(r));
		assert_null(ptc_admin_read_end(NULL));
		ptc_admin_export_done(info);
	}
	ptc_admin_close(a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_run),
		cmocka_unit_test(test_run_existing),
		cmocka_unit_test(test_run_late),
		cmocka_unit_test(test_run_follow),
		cmocka_unit_test(test_logs),
		cmocka_unit_test(test_stop_and_snapshot),
		cmocka_unit_test(test_status),
		cmocka_unit_test(test_plan_and_events),
		cmocka_unit_test(test_picture),
		cmocka_unit_test(test_export_ahead),
		cmocka_unit_test(test_export_switched),
		cmocka_unit_test(test_export_keeps),
		cmocka_unit_test(test_library),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
