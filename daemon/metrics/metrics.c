/* SPDX-License-Identifier: Apache-2.0 */
/* The table of metrics, where each comes from, and the scrape.
 *
 * Labels are names of jobs this daemon controls or runs ranks of (at most JOBS_MAX of each; the rest is counted), and
 * words that are in this program: the number of series is bounded. Each job is shown by the one daemon that controls
 * it, so sums over nodes are right. Failure modes: metrics.h. */
#include "daemon/config/cert_end.h"
#include "daemon/gpu/node/node_devices.h"
#include "daemon/scrub/scrub.h"
#include "daemon/metrics/metrics.h"
#include "daemon/store/store.h"
#include "rpc/server/server.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/number/count.h"
#include "base/sys/sys.h"
#include "daemon/controller/controller.h"
#include "daemon/controller/recovery/stragglers.h"
#include "daemon/metrics/metrics_http.h"
#include "daemon/workers/group/rank_status.h"
#include "fusefs/launch/launch.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#define JOBS_MAX  200
#define BODY_MAX  (4u << 20)
#define PATH_SIZE 4096

/* ---- what one scrape reads off the loop -------------------------------------------- */

/* A job with ranks on this node. */
struct local_job {
	char uuid[PTC_UUID_TEXT], name[PTC_NAME_MAX + 1];
	uid_t uid;
	struct ptc_workers_sum sum;
};

struct sample {
	struct ptc_store_stats store;
	struct local_job jobs[JOBS_MAX];
	size_t njobs;
	uint64_t fuse, fuse_backing, fuse_backing_open, resident, virtual, fds, fds_max, threads;
	struct ptc_rpc_connections connections;
	double start_time, cpu_seconds;
	/* read on the loop, when the rest is there */
	uint64_t coordinator, epoch, unlisted, between, within, captured, bound, checksums, healed, etcd_errors;
	uint64_t device_kept, device_peer, device_host, near_bytes, near_failures;
	uint64_t heap, heap_peak, heap_limit, database_limit, database_full, certificate_end;
	struct ptc_scrub_progress scrub;
	uint64_t unwell; /* devices */
	struct ptc_cluster_database database;
	struct ptc_memory memory;
	uint64_t pinned;
};

struct ptc_metrics {
	struct ptc_metrics_opts o;
	struct ptc_http *http;
	uv_work_t work;
	bool working;
	struct sample sample;
};

static uint64_t count_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	uint64_t n = 0;

	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n > 3 ? n - 3 : 0; /* ".", ".." and the folder's own */
}

/* Field numbers of proc(5), from 1; the program's name, field 2, may hold spaces. */
static void read_stat(struct sample *s)
{
	ptc_auto_free char *text = NULL;
	unsigned long long threads = 0, start = 0, size = 0, pages = 0;
	struct timespec boot, now;
	const char *at;
	size_t len;

	if (ptc_sys_read_file("/proc/self/stat", 4096, &text, &len, NULL) != 0)
		return;
	at = strrchr(text, ')');
	if (!at ||
	    sscanf(at + 1,
		   " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %llu %*d %llu %llu %llu",
		   &threads, &start, &size, &pages) != 4)
		return;
	clock_gettime(CLOCK_BOOTTIME, &boot);
	clock_gettime(CLOCK_REALTIME, &now);
	s->threads = threads;
	s->virtual = size;
	s->resident = pages * (uint64_t)sysconf(_SC_PAGESIZE);
	s->start_time = (double)(now.tv_sec - boot.tv_sec) + (double)start / (double)sysconf(_SC_CLK_TCK);
}

static void read_process(struct sample *s)
{
	struct rlimit limit;
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	s->cpu_seconds = (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
			 (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
	s->fds = count_fds();
	s->fds_max = getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 0;
	read_stat(s);
}

static void gather(uv_work_t *work)
{
	struct ptc_metrics *m = work->data;
	struct sample *s = &m->sample;
	char lock[PATH_SIZE], dir[PATH_SIZE];
	pid_t pid;

	ptc_store_stats(m->o.store, &s->store);
	snprintf(lock, sizeof lock, "%s/fuse.lock", m->o.config->run_dir);
	s->fuse = ptc_fuse_lock_held(lock, &pid, dir, sizeof dir);
	s->fuse_backing = s->fuse_backing_open = 0;
	if (s->fuse)
		ptc_fuse_lock_backing(lock, &s->fuse_backing, &s->fuse_backing_open);
	for (size_t i = 0; i < s->njobs; i++)
		s->jobs[i].sum = ptc_workers_sum(m->o.workers, s->jobs[i].uuid);
	read_process(s);
	ptc_rpc_connections(&s->connections);
	s->certificate_end = (uint64_t)ptc_cert_end_ms() / 1000;
}

static uint64_t count_unwell(struct ptc_node_devices *d)
{
	struct ptc_node_device now;
	uint64_t n = 0;

	for (size_t i = 0; d && i < ptc_node_devices_count(d); i++) {
		ptc_node_devices_get(d, i, &now);
		n += strcmp(now.health, "ok") != 0;
	}
	return n;
}

static void look(struct ptc_metrics *m)
{
	struct sample *s = &m->sample;
	const size_t njobs = m->o.controllers->n, shown = m->o.config->metrics_jobs ? JOBS_MAX : 0;

	s->coordinator = ptc_cluster_lease(m->o.cluster) != 0;
	s->epoch = ptc_cluster_epoch(m->o.cluster);
	s->unlisted = njobs > shown ? njobs - shown : 0;
	s->between = ptc_switch_tally.between_bytes;
	s->within = ptc_switch_tally.within_bytes;
	s->captured = ptc_switch_tally.captured_bytes;
	s->bound = ptc_switch_tally.bound_bytes;
	s->checksums = ptc_count_get(PTC_COUNT_CHECKSUM_ERRORS);
	s->healed = ptc_count_get(PTC_COUNT_HEALED_BLOCKS);
	s->device_kept = ptc_count_get(PTC_COUNT_DEVICE_KEPT_BYTES);
	s->device_peer = ptc_count_get(PTC_COUNT_DEVICE_PEER_BYTES);
	s->device_host = ptc_count_get(PTC_COUNT_DEVICE_HOST_BYTES);
	s->near_bytes = ptc_count_get(PTC_COUNT_NEAR_BYTES);
	s->near_failures = ptc_count_get(PTC_COUNT_NEAR_FAILURES);
	ptc_scrubber_progress(m->o.scrubber, &s->scrub);
	s->unwell = count_unwell(m->o.config->found);
	s->etcd_errors = ptc_count_get(PTC_COUNT_ETCD_ERRORS);
	s->heap = ptc_alloc_bytes();
	s->heap_peak = ptc_alloc_peak();
	s->heap_limit = ptc_memory_heap(m->o.memory);
	s->memory = *m->o.memory;
	s->pinned = ptc_workers_pinned(m->o.workers);
	s->database = ptc_cluster_database(m->o.cluster);
	s->database_full = s->database.full;
	s->database_limit = ptc_cluster_quota(m->o.cluster)->etcd;
}

/* ---- writing ------------------------------------------------------------------------- */

struct metric;
struct out {
	struct ptc_metrics *m;
	const struct metric *metric;
	struct ptc_buf *b;
};

struct metric {
	const char *name, *type, *labels, *help;
	void (*write)(struct out *o);
	size_t at; /* w_number, w_real: in struct sample; w_record: in a job's record */
};
#define AT(member) offsetof(struct sample, member)
#define RUNNING    SIZE_MAX /* no member: whether the job's ranks run */

static void label_value(struct out *o, const char *value)
{
	for (const char *p = value; *p; p++) {
		if (*p == '\\' || *p == '"')
			ptc_buf_puts(o->b, "\\");
		if (*p == '\n')
			ptc_buf_puts(o->b, "\\n");
		else
			ptc_buf_append(o->b, p, 1);
	}
}

struct label {
	const char *name, *value;
};

static void head(struct out *o, const char *suffix, const struct label *labels, size_t n)
{
	ptc_buf_printf(o->b, "%s%s", o->metric->name, suffix);
	for (size_t i = 0; i < n; i++) {
		ptc_buf_printf(o->b, "%s%s=\"", i ? "," : "{", labels[i].name);
		label_value(o, labels[i].value);
		ptc_buf_puts(o->b, "\"");
	}
	ptc_buf_puts(o->b, n ? "} " : " ");
}

static void labelled(struct out *o, const struct label *labels, size_t n, uint64_t value)
{
	head(o, "", labels, n);
	ptc_buf_printf(o->b, "%" PRIu64 "\n", value);
}

static void w_number(struct out *o)
{
	labelled(o, NULL, 0, *(const uint64_t *)((const char *)&o->m->sample + o->metric->at));
}

static void w_real(struct out *o)
{
	head(o, "", NULL, 0);
	ptc_buf_printf(o->b, o->metric->at == AT(start_time) ? "%.3f\n" : "%.9g\n",
		       *(const double *)((const char *)&o->m->sample + o->metric->at));
}

struct part {
	const char *name;
	uint64_t value;
};

static void parts(struct out *o, const char *label, const struct part *v, size_t n)
{
	for (size_t i = 0; i < n; i++)
		labelled(o, &(struct label){ label, v[i].name }, 1, v[i].value);
}
#define PARTS(o, label, ...)                                                                                           \
	parts(o, label, (const struct part[]){ __VA_ARGS__ },                                                          \
	      sizeof((const struct part[]){ __VA_ARGS__ }) / sizeof(struct part))

/* Users may have jobs of one name. */
static void job_labels(struct label labels[2], char uid[16], const char *job, uid_t owner)
{
	snprintf(uid, 16, "%u", (unsigned)owner);
	labels[0] = (struct label){ "ptc_job", job };
	labels[1] = (struct label){ "uid", uid };
}

static void of_job(struct out *o, const char *job, uid_t owner, uint64_t value)
{
	struct label labels[2];
	char uid[16];

	job_labels(labels, uid, job, owner);
	labelled(o, labels, 2, value);
}

/* label.name NULL: none. */
static void histogram(struct out *o, struct label label, struct ptc_histogram *h)
{
	struct label labels[2] = { label };
	const size_t n = label.name ? 1 : 0;
	uint64_t sum = 0;

	for (size_t i = 0; i <= PTC_HISTOGRAM_BOUNDS; i++) {
		char le[32] = "+Inf";

		if (i < PTC_HISTOGRAM_BOUNDS)
			snprintf(le, sizeof le, "%g", ptc_histogram_bounds[i]);
		sum += atomic_load_explicit(&h->buckets[i], memory_order_relaxed);
		labels[n] = (struct label){ "le", le };
		head(o, "_bucket", labels, n + 1);
		ptc_buf_printf(o->b, "%" PRIu64 "\n", sum);
	}
	head(o, "_sum", labels, n);
	ptc_buf_printf(o->b, "%.9g\n", (double)atomic_load_explicit(&h->sum_ns, memory_order_relaxed) / 1e9);
	head(o, "_count", labels, n);
	ptc_buf_printf(o->b, "%" PRIu64 "\n", sum);
}

/* ---- each metric ------------------------------------------------------------------------ */

static void w_build(struct out *o)
{
	const struct label labels[] = { { "version", PTC_VERSION }, { "node", o->m->o.config->node } };

	labelled(o, labels, 2, 1);
}

static void w_nodes(struct out *o)
{
	static const char *const states[] = { "up", "drained", "down" };
	struct ptc_cluster *c = o->m->o.cluster;
	uint64_t n[3] = { 0 };

	for (uint32_t i = 0; i < ptc_cluster_nnodes(c); i++) {
		const struct ptc_node *node = ptc_cluster_node(c, i);

		n[!node->up ? 2 : node->drained ? 1 : 0] += ptc_node_listed(node);
	}
	for (size_t i = 0; i < PTC_ARRAY_LEN(n); i++)
		labelled(o, &(struct label){ "state", states[i] }, 1, n[i]);
}

static void w_jobs(struct out *o)
{
	uint64_t n[PTC_JOB_PHASE_COUNT] = { 0 };
	enum ptc_job_phase phase;
	const char *uuid;
	size_t at = 0;

	while (ptc_controllers_next(o->m->o.controllers, &at, &uuid, &phase))
		n[phase]++;
	for (int i = 0; i < PTC_JOB_PHASE_COUNT; i++)
		labelled(o, &(struct label){ "phase", ptc_job_phase_name((enum ptc_job_phase)i) }, 1, n[i]);
}

/* The next job of those that are shown, if it has a record; at, shown: from 0. NULL: no more. */
static const struct ptc_job_view *next_shown(const struct out *o, size_t *at, size_t *shown)
{
	enum ptc_job_phase phase;
	const char *uuid;

	while (o->m->o.config->metrics_jobs && (*shown)++ < JOBS_MAX &&
	       ptc_controllers_next(o->m->o.controllers, at, &uuid, &phase)) {
		const struct ptc_job_view *j = ptc_cluster_find_uuid(o->m->o.cluster, uuid);

		if (j && j->has_record)
			return j;
	}
	return NULL;
}

/* One of the record's numbers of each job that is shown. */
static void w_record(struct out *o)
{
	const struct ptc_job_view *j;
	size_t at = 0, shown = 0;

	while ((j = next_shown(o, &at, &shown)))
		of_job(o, j->meta.name, j->meta.uid,
		       o->metric->at == RUNNING ? j->record.run == PTC_RUN_LIVE
						: *(const uint64_t *)((const char *)&j->record + o->metric->at));
}

/* At most PTC_STRAGGLERS_SHOWN of each job. */
static void w_stragglers(struct out *o)
{
	struct ptc_straggler slow[PTC_STRAGGLERS_SHOWN];
	const struct ptc_job_view *j;
	size_t at = 0, shown = 0;

	while ((j = next_shown(o, &at, &shown))) {
		uint32_t all, n = ptc_stragglers(ptc_controller_find(o->m->o.controllers, j->uuid), slow, &all);
		struct label labels[4];
		char uid[16], rank[16];

		for (uint32_t i = 0; i < n; i++) {
			job_labels(labels, uid, j->meta.name, j->meta.uid);
			snprintf(rank, sizeof rank, "%u", slow[i].rank);
			labels[2] = (struct label){ "rank", rank };
			labels[3] = (struct label){ "node", slow[i].node };
			head(o, "", labels, 4);
			ptc_buf_printf(o->b, "%.4g\n", slow[i].median_s > 0 ? slow[i].own_s / slow[i].median_s : 1);
		}
	}
}

static void w_local_ranks(struct out *o)
{
	const struct sample *s = &o->m->sample;

	for (size_t i = 0; i < s->njobs; i++)
		if (s->jobs[i].sum.ranks)
			of_job(o, s->jobs[i].name, s->jobs[i].uid, s->jobs[i].sum.ranks);
}

static void w_local_step(struct out *o)
{
	const struct sample *s = &o->m->sample;

	for (size_t i = 0; i < s->njobs; i++)
		if (s->jobs[i].sum.stepped)
			of_job(o, s->jobs[i].name, s->jobs[i].uid, s->jobs[i].sum.step);
}

static void w_local_rate(struct out *o)
{
	const struct sample *s = &o->m->sample;

	struct label labels[2];
	char uid[16];

	for (size_t i = 0; i < s->njobs; i++)
		if (s->jobs[i].sum.step_seconds > 0) {
			job_labels(labels, uid, s->jobs[i].name, s->jobs[i].uid);
			head(o, "", labels, 2);
			ptc_buf_printf(o->b, "%.9g\n", 1 / s->jobs[i].sum.step_seconds);
		}
}

static void w_switches(struct out *o)
{
	static const char *const kinds[PTC_SWITCH_KINDS] = { "resize", "import", "snapshot", "halt" };
	static const char *const outcomes[] = { "aborted", "committed" };

	for (size_t k = 0; k < PTC_SWITCH_KINDS; k++)
		for (size_t c = 0; c < 2; c++)
			labelled(o, (struct label[]){ { "kind", kinds[k] }, { "outcome", outcomes[c] } }, 2,
				 ptc_switch_tally.ended[k][c]);
}

static void w_phases(struct out *o)
{
	for (int i = 0; i < PTC_JOB_PHASE_COUNT; i++)
		if (i != PTC_JOB_IDLE && i != PTC_JOB_NEW && i != PTC_JOB_STOPPED)
			histogram(o, (struct label){ "phase", ptc_job_phase_name((enum ptc_job_phase)i) },
				  &ptc_switch_tally.phases[i]);
}

static void w_lost_time(struct out *o)
{
	histogram(o, (struct label){ "part", "paused" }, &ptc_switch_tally.paused);
	histogram(o, (struct label){ "part", "slowed" }, &ptc_switch_tally.slowed);
}

static void w_store_chunks(struct out *o)
{
	const struct ptc_store_stats *s = &o->m->sample.store;

	PARTS(o, "state", { "used", s->chunks_used }, { "free", s->chunks_free });
}

static void w_share(struct out *o)
{
	const struct ptc_memory *m = &o->m->sample.memory;

	PARTS(o, "share", { "staging", m->staging }, { "work", m->work }, { "transport", m->transport },
	      { "etcd", m->etcd }, { "tables", m->tables }, { "chunks", m->chunks });
}

static void w_connections(struct out *o)
{
	const struct ptc_rpc_connections *c = &o->m->sample.connections;

	PARTS(o, "of", { "users", c->users }, { "nodes", c->members }, { "strangers", c->strangers });
}

static void w_connections_max(struct out *o)
{
	const struct ptc_rpc_connections *c = &o->m->sample.connections;

	PARTS(o, "of", { "users", c->max_users }, { "nodes", c->max_members }, { "strangers", c->max_strangers });
}

static void w_connections_ended(struct out *o)
{
	const struct ptc_rpc_connections *c = &o->m->sample.connections;

	PARTS(o, "why", { "refused", c->refused }, { "replaced", c->shed }, { "late", c->expired });
}

struct rpc_out {
	struct out *o;
	const char *listener;
	bool errors;
};

static void rpc_row(void *arg, const char *method, uint64_t calls, uint64_t errors)
{
	const struct rpc_out *r = arg;

	labelled(r->o, (struct label[]){ { "listener", r->listener }, { "method", method + 1 } }, 2,
		 r->errors ? errors : calls);
}

static void rpc(struct out *o, bool errors)
{
	ptc_rpc_server_methods(o->m->o.control, rpc_row, &(struct rpc_out){ o, "control", errors });
	ptc_rpc_server_methods(o->m->o.peers, rpc_row, &(struct rpc_out){ o, "peers", errors });
}

static void w_rpc_calls(struct out *o)
{
	rpc(o, false);
}

static void w_rpc_errors(struct out *o)
{
	rpc(o, true);
}

static void w_rpc_open(struct out *o)
{
	const struct ptc_rpc_server *servers[] = { o->m->o.control, o->m->o.peers };
	static const char *const names[] = { "control", "peers" };

	for (size_t i = 0; i < PTC_ARRAY_LEN(names); i++) {
		int running, waiting;

		ptc_rpc_server_load(servers[i], &running, &waiting);
		labelled(o, (struct label[]){ { "listener", names[i] }, { "state", "running" } }, 2, (uint64_t)running);
		labelled(o, (struct label[]){ { "listener", names[i] }, { "state", "waiting" } }, 2, (uint64_t)waiting);
	}
}

static void w_etcd(struct out *o)
{
	histogram(o, (struct label){ NULL, NULL }, &ptc_etcd_times);
}

/* ---- the table ---------------------------------------------------------------------------- */

static const struct metric metrics[] = {
	{ "ptc_build_info", "gauge", "version, node", "Always 1; the labels say which version runs on which node.",
	  w_build },
	{ "ptc_coordinator_up", "gauge", "", "1 while this node holds its lease in etcd, else 0.", w_number,
	  AT(coordinator) },
	{ "ptc_cluster_epoch", "gauge", "", "Number that grows with every change of a node that this daemon sees.",
	  w_number, AT(epoch) },
	{ "ptc_nodes", "gauge", "state", "Nodes that this daemon knows: up, drained (up, but given no ranks), down.",
	  w_nodes },
	{ "ptc_jobs", "gauge", "phase", "Jobs that this daemon controls; one daemon controls each job.", w_jobs },
	{ "ptc_jobs_unlisted", "gauge", "", "Jobs that this daemon controls and that have no series of their own.",
	  w_number, AT(unlisted) },
	{ "ptc_job_generation", "gauge", "ptc_job, uid", "Committed generation of a job that this daemon controls.",
	  w_record, offsetof(struct ptc_record_doc, generation) },
	{ "ptc_job_step", "gauge", "ptc_job, uid", "Step of the committed snapshot.", w_record,
	  offsetof(struct ptc_record_doc, step) },
	{ "ptc_job_snapshot", "gauge", "ptc_job, uid", "Number of the committed snapshot.", w_record,
	  offsetof(struct ptc_record_doc, snapshot) },
	{ "ptc_job_running", "gauge", "ptc_job, uid", "1 while the job's ranks run, else 0.", w_record, RUNNING },
	{ "ptc_job_straggler_ratio", "gauge", "ptc_job, uid, rank, node",
	  "Own work of a slow rank, divided by the median of its stage (on_straggler); at most 8 ranks of a job.",
	  w_stragglers },
	{ "ptc_job_local_ranks", "gauge", "ptc_job, uid", "Processes of the job's ranks on this node.", w_local_ranks },
	{ "ptc_job_local_step", "gauge", "ptc_job, uid", "Step of the job's slowest rank on this node.", w_local_step },
	{ "ptc_job_local_steps_per_second", "gauge", "ptc_job, uid",
	  "Steps per second of the job's slowest rank on this node.", w_local_rate },
	{ "ptc_switches_total", "counter", "kind, outcome",
	  "Switches that began and ended while this daemon controlled the job.", w_switches },
	{ "ptc_switch_phase_seconds", "histogram", "phase",
	  "Time that each of the switches in ptc_switches_total spent in each phase.", w_phases },
	{ "ptc_switch_lost_seconds", "histogram", "part",
	  "Training time that each committed switch of running ranks cost. paused: from the order to stop until "
	  "ranks go on. slowed: the delay of old ranks while new ranks built ahead.",
	  w_lost_time },
	{ "ptc_switch_between_bytes_total", "counter", "", "Bytes that entered nodes in switches.", w_number,
	  AT(between) },
	{ "ptc_switch_within_bytes_total", "counter", "", "Bytes copied within nodes in switches.", w_number,
	  AT(within) },
	{ "ptc_switch_captured_bytes_total", "counter", "", "Bytes copied out of ranks in switches.", w_number,
	  AT(captured) },
	{ "ptc_switch_bound_bytes_total", "counter", "",
	  "Lower bound of the bytes that enter nodes in committed resizes.", w_number, AT(bound) },
	{ "ptc_store_limit_bytes", "gauge", "", "Most bytes that chunks may use on this node.", w_number,
	  AT(store.ceiling) },
	{ "ptc_store_used_bytes", "gauge", "", "Bytes of the chunks in use.", w_number, AT(store.used_bytes) },
	{ "ptc_store_reserved_bytes", "gauge", "", "Bytes of the chunk files on disk: in use, or kept for reuse.",
	  w_number, AT(store.file_bytes) },
	{ "ptc_store_chunks", "gauge", "state", "Chunks in use, and free chunks whose memory is kept.",
	  w_store_chunks },
	{ "ptc_store_lost_jobs", "gauge", "", "Jobs whose chunks this node has lost.", w_number, AT(store.lost_jobs) },
	{ "ptc_store_checksum_errors_total", "counter", "",
	  "Blocks that did not match their checksum when they were read.", w_number, AT(checksums) },
	{ "ptc_store_healed_blocks_total", "counter", "", "Damaged blocks that were healed.", w_number, AT(healed) },
	{ "ptc_store_damaged_blocks", "gauge", "", "Damaged blocks for which no node that answers has right bytes.",
	  w_number, AT(scrub.damaged) },
	{ "ptc_node_devices_unwell", "gauge", "",
	  "Devices of this node that no rank is given, because the driver or the health command reports a fault.",
	  w_number, AT(unwell) },
	{ "ptc_scrub_limit_bytes_per_second", "gauge", "", "The setting scrub.rate.", w_number, AT(scrub.rate) },
	{ "ptc_scrub_bytes_total", "counter", "", "Bytes that the scrubber has read and verified.", w_number,
	  AT(scrub.bytes) },
	{ "ptc_scrub_rounds_total", "counter", "", "Times that the scrubber has read all chunks.", w_number,
	  AT(scrub.rounds) },
	{ "ptc_scrub_damaged_blocks_total", "counter", "", "Damaged blocks that the scrubber has found.", w_number,
	  AT(scrub.found) },
	{ "ptc_memory_ceiling_bytes", "gauge", "", "The setting memory.ceiling.", w_number, AT(memory.ceiling) },
	{ "ptc_memory_share_bytes", "gauge", "share", "Shares of memory.ceiling (docs/memory.md).", w_share },
	{ "ptc_near_bytes_total", "counter", "", "Bytes read in the memory of other daemons of this machine.", w_number,
	  AT(near_bytes) },
	{ "ptc_near_failures_total", "counter", "",
	  "Times that bytes of another daemon of this machine had to come over the network.", w_number,
	  AT(near_failures) },
	{ "ptc_device_kept_bytes_total", "counter", "", "Bytes restored to devices from memory of the same device.",
	  w_number, AT(device_kept) },
	{ "ptc_device_peer_bytes_total", "counter", "",
	  "Bytes restored to devices from memory of other devices of the node, not through the host.", w_number,
	  AT(device_peer) },
	{ "ptc_device_host_bytes_total", "counter", "", "Bytes restored to devices through the host.", w_number,
	  AT(device_host) },
	{ "ptc_memory_pinned_bytes", "gauge", "",
	  "Page-locked memory of ptc-gpu; a part of the chunks' share of memory.ceiling.", w_number, AT(pinned) },
	{ "ptc_heap_bytes", "gauge", "", "Heap of the daemon: specs, layouts, plans, staging.", w_number, AT(heap) },
	{ "ptc_heap_peak_bytes", "gauge", "", "Largest heap since the start.", w_number, AT(heap_peak) },
	{ "ptc_heap_limit_bytes", "gauge", "", "Most bytes that the heap may have.", w_number, AT(heap_limit) },
	{ "ptc_rpc_calls_total", "counter", "listener, method",
	  "Calls that were served, of ptcctl and of other daemons.", w_rpc_calls },
	{ "ptc_rpc_errors_total", "counter", "listener, method", "Calls that were answered with an error.",
	  w_rpc_errors },
	{ "ptc_rpc_open_calls", "gauge", "listener, state",
	  "Calls that have a thread, and calls that wait without one.", w_rpc_open },
	{ "ptc_connections", "gauge", "of",
	  "Connections of local users, of other nodes, and of peers without a certificate yet.", w_connections },
	{ "ptc_connections_max", "gauge", "of", "Most connections that there may be.", w_connections_max },
	{ "ptc_connections_ended_total", "counter", "why",
	  "Connections refused for lack of room, ended to make room, or ended because no certificate came in time.",
	  w_connections_ended },
	{ "ptc_connection_bytes", "gauge", "", "Memory of connections, estimated; a part of the transport's share.",
	  w_number, AT(connections.bytes) },
	{ "ptc_certificate_end_seconds", "gauge", "",
	  "Unix time at which the first of the node's certificates in use ends; 0: it has none.", w_number,
	  AT(certificate_end) },
	{ "ptc_etcd_request_seconds", "histogram", "", "Time of requests that etcd answered.", w_etcd },
	{ "ptc_etcd_errors_total", "counter", "", "Requests that etcd did not answer.", w_number, AT(etcd_errors) },
	{ "ptc_etcd_database_bytes", "gauge", "", "Size of etcd's database file, at the member that answers.", w_number,
	  AT(database.bytes) },
	{ "ptc_etcd_database_used_bytes", "gauge", "", "Bytes in use in etcd's database file, with history.", w_number,
	  AT(database.used) },
	{ "ptc_etcd_database_limit_bytes", "gauge", "",
	  "The setting quota.etcd; above three quarters of it no job is created.", w_number, AT(database_limit) },
	{ "ptc_etcd_database_full", "gauge", "", "1 while etcd refuses writes because its database is full, else 0.",
	  w_number, AT(database_full) },
	{ "ptc_fuse_mounts", "gauge", "", "1 while fuse.dir is served, else 0.", w_number, AT(fuse) },
	{ "ptc_fuse_backing_bytes", "gauge", "",
	  "Bytes of the backing files of the process that serves fuse.dir; beside memory.ceiling.", w_number,
	  AT(fuse_backing) },
	{ "ptc_fuse_backing_open_bytes", "gauge", "",
	  "Bytes of backing files that programs have open; these bytes cannot be freed.", w_number,
	  AT(fuse_backing_open) },
	{ "process_cpu_seconds_total", "counter", "", "CPU time of the daemon.", w_real, AT(cpu_seconds) },
	{ "process_resident_memory_bytes", "gauge", "", "The daemon's memory in RAM, with mapped chunks.", w_number,
	  AT(resident) },
	{ "process_virtual_memory_bytes", "gauge", "", "The daemon's address space.", w_number, AT(virtual) },
	{ "process_open_fds", "gauge", "", "The daemon's open descriptors.", w_number, AT(fds) },
	{ "process_max_fds", "gauge", "", "Most descriptors that the daemon may open.", w_number, AT(fds_max) },
	{ "process_threads", "gauge", "", "The daemon's threads.", w_number, AT(threads) },
	{ "process_start_time_seconds", "gauge", "", "Time of the daemon's start, since 1970.", w_real,
	  AT(start_time) },
};

void ptc_metrics_list(FILE *out)
{
	for (size_t i = 0; i < PTC_ARRAY_LEN(metrics); i++)
		fprintf(out, "| `%s` | %s | %s | %s |\n", metrics[i].name, metrics[i].type, metrics[i].labels,
			metrics[i].help);
}

static void write_all(struct ptc_metrics *m, struct ptc_buf *b)
{
	for (size_t i = 0; i < PTC_ARRAY_LEN(metrics); i++) {
		struct out o = { m, &metrics[i], b };

		ptc_buf_printf(b, "# HELP %s %s\n# TYPE %s %s\n", metrics[i].name, metrics[i].help, metrics[i].name,
			       metrics[i].type);
		metrics[i].write(&o);
	}
}

/* ---- a scrape ------------------------------------------------------------------------------- */

static void gathered(uv_work_t *work, int status)
{
	struct ptc_metrics *m = work->data;
	struct ptc_buf b = PTC_BUF_INIT;
	bool fine;

	m->working = false;
	look(m);
	write_all(m, &b);
	fine = status == 0 && !ptc_buf_failed(&b) && b.len <= BODY_MAX;
	if (m->http)
		ptc_http_answer(m->http, fine ? b.data : NULL, b.len);
	ptc_buf_done(&b);
}

/* The jobs whose ranks may be here: which really are, the thread finds out. */
static void list_jobs(struct ptc_metrics *m)
{
	struct sample *s = &m->sample;

	for (size_t i = 0; m->o.config->metrics_jobs && i < ptc_cluster_njobs(m->o.cluster) && s->njobs < JOBS_MAX;
	     i++) {
		const struct ptc_job_view *j = ptc_cluster_job(m->o.cluster, i);
		struct local_job *to = &s->jobs[s->njobs];

		if (!j->has_meta || !j->has_record || j->record.run == PTC_RUN_NONE)
			continue;
		snprintf(to->uuid, sizeof to->uuid, "%s", j->uuid);
		snprintf(to->name, sizeof to->name, "%s", j->meta.name);
		to->uid = j->meta.uid;
		s->njobs++;
	}
}

static void asked(void *arg)
{
	struct ptc_metrics *m = arg;

	if (m->working)
		return; /* the answer goes to everybody who waits by then */
	memset(&m->sample, 0, sizeof m->sample);
	list_jobs(m);
	m->work.data = m;
	m->working = uv_queue_work(m->o.uv, &m->work, gather, gathered) == 0;
	if (!m->working)
		ptc_http_answer(m->http, NULL, 0);
}

int ptc_metrics_start(const struct ptc_metrics_opts *opts, struct ptc_metrics **ret_metrics, struct ptc_error *err)
{
	struct ptc_metrics *m;
	int rc;

	*ret_metrics = NULL;
	if (!opts->config->metrics)
		return 0;
	m = ptc_calloc(1, sizeof *m);
	if (!m)
		return ptc_nomem(err);
	m->o = *opts;
	rc = ptc_http_new(opts->uv, opts->config->metrics, asked, m, &m->http, err);
	if (rc) {
		ptc_free(m);
		return rc;
	}
	*ret_metrics = m;
	return 0;
}

struct ptc_metrics *ptc_metrics_stop(struct ptc_metrics *m)
{
	if (!m)
		return NULL;
	m->http = ptc_http_free(m->http);
	while (m->working)
		uv_run(m->o.uv, UV_RUN_ONCE);
	ptc_free(m);
	return NULL;
}
