/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of ptcd in the order in which they start, and what the loop has them do.
 *
 * Happy path: store, local etcd (coordinator: local), the view of the cluster, documents, agent, servers, lease and
 * mirror, measuring, mount, scrubber, metrics, health. Once the mirror is complete, READY=1 goes to systemd. A timer
 * asks each part again and again for its upkeep. ptc_process_stop ends everything in reverse order.
 *
 * Failure modes: a step of the start fails (the others do not begin, and stop works on what exists); the etcd that
 * answers is one that this node must not start with yet (it waits, and serves only what daemon/api/recover has); the
 * lease is lost (this daemon controls nothing until it has one again); the cluster has got another etcd (the loop ends,
 * and `ended` says why). */
#include "daemon/ptcd_process.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/sys/sys.h"
#include "daemon/agent/agent.h"
#include "daemon/agent/healing/heal.h"
#include "daemon/agent/tables/direct_reads.h"
#include "daemon/agent/fill/fill_files.h"
#include "daemon/agent/tables/import_window.h"
#include "daemon/agent/tables/tables.h"
#include "daemon/api/queries/event_feed.h"
#include "daemon/api/recover/recover.h"
#include "daemon/api/recover/replaced.h"
#include "daemon/config/cert_end.h"
#include "daemon/controller/recovery.h"
#include "daemon/gpu/node/health_check.h"
#include "daemon/gpu/node/node_devices.h"
#include "daemon/metrics/metrics.h"
#include "daemon/notify.h"
#include "daemon/planning/links/links.h"
#include "daemon/samples/peer_samples.h"
#include "daemon/scrub/scrub.h"
#include "daemon/store/store.h"
#include "daemon/workers/group/hold/group_hold.h"
#include "daemon/workers/workers.h"
#include "fusefs/launch/launch.h"
#include "proto/direct_read.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#define TICK_MS           200
#define LOOK_TICKS        25     /* between looks at etcd's database */
#define CONNECTION_TICKS  5      /* between counts of connections, for their memory */
#define TIDY_TICKS        10     /* between attempts to remove what could not be removed */
#define CERT_TICKS        108000 /* six hours: between looks at the ends of certificates */
#define DEVICES_TICKS     5      /* between looks at what is known of this node's devices */
#define DEVICES_AGE_MS    30000  /* how old that may be: a driver may have to wake its devices */
#define SHUTDOWN_GRACE_MS 1000
#define STALL_MS          60000 /* an export whose reader has stopped gives its memory to the next */
#define IDLE_MS           5000  /* with less than IDLE_CPU_MS of CPU time used, the daemon is idle */
#define IDLE_CPU_MS       250
#define KEEP_BYTES        (24u << 20) /* of anonymous memory in all: not worth giving back */

/* ---- what the mirror tells ------------------------------------------------------------ */

static void on_change(void *arg, struct ptc_job_view *job)
{
	struct process *p = arg;

	if (job && !job->has_meta)
		ptc_tidy_job(&p->d.controllers, job->uuid);
	if (!job)
		ptc_tidy_creations(&p->d.controllers);
	ptc_controllers_changed(&p->d.controllers, job);
}

static void on_synced(void *arg)
{
	struct process *p = arg;

	ptc_tidy_store(&p->d.controllers);
	ptc_tidy_creations(&p->d.controllers);
	for (size_t i = 0; i < ptc_cluster_njobs(p->d.cluster); i++)
		ptc_controllers_changed(&p->d.controllers, ptc_cluster_job(p->d.cluster, i));
	ptc_controllers_changed(&p->d.controllers, NULL);
	if (!p->synced) {
		p->synced = true;
		ptc_rpc_server_serving(p->control, true);
		ptc_rpc_server_serving(p->peers, true);
		ptc_notify("READY=1");
		ptc_info("ptcd", "node=%s ready, listening on %s", p->d.config.node, p->d.config.advertise);
	}
}

static void on_lease(void *arg, bool have)
{
	struct process *p = arg;

	if (have)
		return;
	ptc_warn("etcd", "node=%s lost its lease; it controls nothing until it has one again", p->d.config.node);
	ptc_controllers_lost(&p->d.controllers);
}

static uint64_t anonymous_bytes(void)
{
	unsigned long long size, resident, shared;
	FILE *f = fopen("/proc/self/statm", "re");
	bool known = f && fscanf(f, "%llu %llu %llu", &size, &resident, &shared) == 3;

	if (f)
		fclose(f);
	return known && resident > shared ? (resident - shared) * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

/* The allocator keeps what transfers have used, for the next one (ptc_alloc_keep). A daemon that has done
 * nothing for a while gives it back. */
static void give_back(struct process *p)
{
	clock_t cpu = clock();
	bool idle = cpu - p->idle.cpu < (clock_t)CLOCKS_PER_SEC * IDLE_CPU_MS / 1000;

	p->idle.cpu = cpu;
	if (idle && anonymous_bytes() > KEEP_BYTES)
		ptc_alloc_trim();
}

/* What connections take is not in the core's own count, but in the transport's share all the same. */
static void count_connections(const struct process *p)
{
	struct ptc_rpc_connections c;
	uint64_t most = p->memory.transport - p->memory.transport / 4; /* streams need some of it */

	ptc_rpc_connections(&c);
	ptc_rpc_memory_limit_set(ptc_memory_wire(&p->memory) - PTC_MIN(c.bytes, most));
}

/* Devices that are not well are given to nobody until they are; jobs that have them are told. */
static void look_at_devices(struct process *p)
{
	if (!p->d.config.found || p->idle.ticks % DEVICES_TICKS)
		return;
	ptc_node_devices_look(p->d.config.found, DEVICES_AGE_MS);
	ptc_live_devices(&p->d);
}

static void cert_look(void *arg, struct ptc_etcd *etcd)
{
	(void)etcd;
	ptc_cert_end_look(arg);
}

/* Soon after the start, and then a few times a day. */
static void look_at_certificates(struct process *p)
{
	static const struct ptc_task_step steps[] = { { PTC_TASK_COMPUTE, cert_look }, { 0 } };

	if (p->idle.ticks % CERT_TICKS == 1)
		(void)ptc_cluster_steps(p->d.cluster, "certificates", steps, NULL, &p->d.config);
}

static void on_tick(uv_timer_t *timer)
{
	struct process *p = timer->data;

	ptc_notify_watchdog();
	if (++p->idle.ticks % (IDLE_MS / TICK_MS) == 0)
		give_back(p);
	look_at_devices(p);
	look_at_certificates(p);
	ptc_cluster_tick(p->d.cluster);
	ptc_cut_off_tick(p->cut_off);
	if (p->d.workers)
		ptc_workers_undecided(p->d.workers, !ptc_cluster_lease(p->d.cluster));
	ptc_controllers_tick(&p->d.controllers);
	ptc_kept_tick(p->d.docs.kept);
	ptc_pins_expire(p->d.pins);
	ptc_agent_pins_expire(p->d.agent);
	ptc_samples_expire(p->d.samples);
	if (p->ticks % LOOK_TICKS == 0)
		ptc_cluster_look(p->d.cluster);
	if (p->idle.ticks % CONNECTION_TICKS == 0)
		count_connections(p);
	if (++p->ticks % TIDY_TICKS || !ptc_cluster_synced(p->d.cluster))
		return;
	ptc_controllers_tidy(&p->d.controllers);
}

/* A life of a node that we have not seen: connections that failed to reach the one before may try at once. */
static void on_node_up(void *arg, const char *node)
{
	struct process *p = arg;

	ptc_channels_retry(p->d.channels, node);
}

static void on_signal(uv_signal_t *handle, int signum)
{
	struct process *p = handle->data;

	ptc_info("ptcd", "signal %d: stopping", signum);
	ptc_notify("STOPPING=1");
	uv_stop(p->uv);
}

static void on_hangup(uv_signal_t *handle, int signum)
{
	struct process *p = handle->data;

	(void)signum;
	ptc_reload(p->reload);
}

/* ---- the agent's questions ---------------------------------------------------------------- */

static int spec_get(void *arg, const char *uuid, const char *hash, const struct ptc_spec **ret_spec, void **ret_ref,
		    struct ptc_error *err)
{
	struct ptc_daemon *d = arg;
	const struct ptc_job_desc *desc;
	int rc = ptc_specs_get(d->docs.specs, uuid, hash, &desc, ret_ref, err);

	if (rc)
		return rc;
	*ret_spec = &desc->spec;
	return 0;
}

static void spec_release(void *arg, void *ref)
{
	(void)arg;
	ptc_specs_release(ref);
}

static int channel(void *arg, const char *node, const char *address, bool bulk, unsigned lane,
		   struct ptc_rpc_channel **ret_channel, struct ptc_error *err)
{
	struct ptc_daemon *d = arg;

	return ptc_channels_get(d->channels, node, address, bulk, lane, ret_channel, err);
}

/* ---- start ------------------------------------------------------------------------------------ */

/* The ceiling has been lowered since: the log says it once, before the first switch fails for want of room. */
static void tell_over_ceiling(struct ptc_store *store)
{
	struct ptc_store_stats st;

	ptc_store_stats(store, &st);
	if (st.short_mib)
		ptc_warn("store",
			 "the jobs' state here takes %llu bytes, and memory.ceiling leaves %llu for it: nothing is "
			 "lost, "
			 "but nothing new fits; raise memory.ceiling by at least %llu MiB, or delete jobs or snapshots",
			 (unsigned long long)st.used_bytes, (unsigned long long)st.ceiling,
			 (unsigned long long)st.short_mib);
}

static int start_store(struct process *p, struct ptc_error *err)
{
	struct ptc_daemon_config *c = &p->d.config;
	ptc_auto_free char *meta = ptc_asprintf("%s/meta", c->state_dir);
	struct ptc_store_opts opts = { .meta_dir = meta,
				       .chunk_dir = c->chunk_dir,
				       .chunk_ceiling = p->memory.chunks,
				       .cushion_bytes = c->memory.spare,
				       .damaged = ptc_damaged,
				       .damaged_arg = &p->d };
	int rc;

	if (!meta)
		return ptc_nomem(err);
	rc = ptc_sys_mkdirs(c->state_dir, 0700, err);
	if (rc == 0)
		rc = ptc_sys_mkdirs(c->run_dir, 0755, err);
	if (rc == 0)
		rc = ptc_store_open(&opts, &p->d.store, err);
	if (rc == 0)
		tell_over_ceiling(p->d.store);
	return rc;
}

static int start_local_etcd(struct process *p, struct ptc_error *err)
{
	struct ptc_daemon_config *c = &p->d.config;
	struct ptc_etcd_child_opts opts = { .data_dir = c->local_coordinator.data_dir,
					    .client_url = c->local_coordinator.listen,
					    .tls = p->d.tls_or_null,
					    .insecure = p->d.insecure,
					    .quota_bytes = c->quota.etcd,
					    .memory_bytes = p->memory.etcd };

	if (!c->coordinator.local)
		return 0;
	return ptc_etcd_child_new(&opts, &p->etcd, &p->etcd_endpoint, err);
}

static int listen_peers(struct process *p, struct ptc_error *err)
{
	const char *listen = p->d.config.listen;
	int port;

	if (strncmp(listen, "unix:", 5) == 0)
		return ptc_rpc_server_listen_unix(p->peers, listen + 5, 0600, true, err);
	if (p->d.insecure) {
		ptc_warn("rpc", "--insecure-loopback: peers are not authenticated; for benchmarks only");
		return ptc_rpc_server_listen_insecure(p->peers, listen, &port, err);
	}
	return ptc_rpc_server_listen_tls(p->peers, listen, &p->d.tls, &port, err);
}

/* Root's own, which others cannot flood. Callers get along without. */
static int listen_root(struct process *p, struct ptc_error *err)
{
	char path[PATH_MAX];
	struct sockaddr_un longest;

	snprintf(path, sizeof path, "%s" PTC_CONTROL_ROOT_SUFFIX, p->d.config.control_socket);
	if (strlen(path) < sizeof longest.sun_path)
		return ptc_rpc_server_listen_unix(p->control, path, 0600, false, err);
	ptc_warn("rpc", "control_socket: %s is too long for a socket of root's own beside it; choose a shorter path",
		 p->d.config.control_socket);
	return 0;
}

/* Readers get along without. */
static void start_direct_reads(struct process *p)
{
	struct ptc_error err = PTC_ERROR_INIT;

	if (ptc_direct_reads_new(p->d.agent, p->d.import_windows, p->d.fill_files, p->d.config.control_socket,
				 &p->direct_reads, &err))
		ptc_warn("agent", "readers on this node cannot read chunk files directly: %s", err.text);
}

/* With what they have also while the daemon waits for its etcd. */
static int new_servers(struct process *p, struct ptc_error *err)
{
	struct ptc_rpc_server_opts strangers = { .max_calls_per_user = PTC_MAX_USER_CALLS, .stall_ms = STALL_MS };
	struct ptc_daemon *d = &p->d;
	int rc = ptc_rpc_server_new(&strangers, &p->control, err);

	if (rc == 0)
		rc = ptc_rpc_server_new(&(struct ptc_rpc_server_opts){ 0 }, &p->peers, err);
	if (rc == 0)
		rc = ptc_api_register(d, p->control, err);
	if (rc == 0)
		rc = ptc_api_register(d, p->peers, err);
	if (rc == 0)
		rc = ptc_recover_register(d, p->peers, err);
	return rc;
}

static int start_servers(struct process *p, struct ptc_error *err)
{
	struct ptc_daemon *d = &p->d;
	int rc = new_servers(p, err);

	if (rc == 0)
		rc = ptc_agent_register(d->agent, p->peers, err);
	if (rc == 0)
		rc = ptc_vault_register(d->docs.vault, p->peers, err);
	if (rc == 0)
		rc = ptc_links_register(p->peers, d->channels, err);
	if (rc == 0)
		rc = ptc_rpc_server_listen_unix(p->control, d->config.control_socket, 0666, false, err);
	if (rc == 0)
		rc = listen_root(p, err);
	if (rc == 0)
		rc = listen_peers(p, err);
	if (rc == 0)
		rc = ptc_rpc_server_start(p->peers, err);
	if (rc == 0)
		rc = ptc_rpc_server_start(p->control, err);
	if (rc == 0)
		start_direct_reads(p);
	return rc;
}

/* Other nodes are asked for the key that descriptions are sealed with. */
static int open_documents(struct ptc_daemon *d, struct ptc_error *err)
{
	struct ptc_vault_opts vault = { .cluster = d->cluster,
					.node = d->config.node,
					.state_dir = d->config.state_dir };
	int rc = ptc_channels_new(d->insecure ? NULL : &d->tls, &d->channels, err);

	vault.channels = d->channels;
	d->docs.cluster = d->cluster;
	if (rc == 0)
		rc = ptc_vault_new(&vault, &d->docs.vault, err);
	d->docs.kept = ptc_kept_new(d->cluster, d->store);
	if (rc == 0 && !d->docs.kept)
		rc = ptc_nomem(err);
	if (rc == 0)
		rc = ptc_specs_new(d->docs.kept, d->docs.vault, &d->docs.specs, err);
	return rc ? rc : ptc_layouts_new(d->docs.kept, &d->docs.layouts, err);
}

/* Who writes the lock file may be a ptc-fuse that another ptcd has started. */
static bool backing(void *arg, uint64_t *ret_bytes, uint64_t *ret_open)
{
	const struct ptc_daemon *d = arg;
	char lock[PATH_MAX], dir[PATH_MAX];
	pid_t pid;

	snprintf(lock, sizeof lock, "%s/fuse.lock", d->config.run_dir);
	if (!ptc_fuse_lock_held(lock, &pid, dir, sizeof dir))
		return false;
	ptc_fuse_lock_backing(lock, ret_bytes, ret_open);
	return true;
}

static int start_agent(struct process *p, struct ptc_error *err)
{
	struct ptc_daemon *d = &p->d;
	struct ptc_agent_env env = {
		.copies_rate = p->d.config.copies.rate,
		.store = d->store,
		.node = d->config.node,
		.devices = d->config.found,
		.device_copy_bytes = d->config.device_copy,
		.prefetch_bytes = d->config.prefetch,
		.staging_bytes = p->memory.staging,
		.memory_json = p->memory_json.data,
		.backing = backing,
		.work_bytes = p->memory.work,
		.spec_get = spec_get,
		.spec_release = spec_release,
		.channel = channel,
		.event = ptc_live_event,
		.arg = d,
	};
	char socket[PATH_MAX];
	int rc = ptc_live_start(d, err);

	if (d->config.near) {
		snprintf(socket, sizeof socket, "%s" PTC_DIRECT_READ_SUFFIX, d->config.control_socket);
		env.near_socket = socket;
	}
	ptc_layouts_agent_env(&env);
	env.workers = d->workers;

	d->read_views = ptc_read_views_new();
	d->pins = ptc_pins_new();
	d->import_windows = ptc_import_windows_new();
	d->fill_files = ptc_fill_files_new();
	d->event_feed = ptc_event_feed_new();
	d->samples = ptc_samples_new(&(struct ptc_samples_opts){ &d->config, d->loop, d->cluster, d->channels });
	if (rc == 0 &&
	    (!d->read_views || !d->pins || !d->samples || !d->import_windows || !d->fill_files || !d->event_feed))
		rc = ptc_nomem(err);
	if (rc == 0)
		rc = ptc_rpc_client_new(d->loop, &d->client, err);
	if (rc == 0)
		rc = ptc_agent_new(&env, &d->agent, err);
	if (rc == 0)
		rc = ptc_planning_new(d->cluster, d->config.devices_file, &p->planning, err);
	d->controllers = (struct ptc_controllers){
		.node = d->config.node,
		.control_socket = d->config.control_socket,
		.loop = d->loop,
		.cluster = d->cluster,
		.client = d->client,
		.channels = d->channels,
		.docs = d->docs,
		.agent = d->agent,
		.store = d->store,
		.workers = d->workers,
		.planning = p->planning,
		.stopping = &d->stopping,
		.cut_off = d->config.cut_off_after_ms > 0,
		.lease_ttl_ms = (int64_t)d->config.lease_ttl_ms,
	};
	return rc;
}

/* Once the mirror is filled, which it reads. */
static int start_measuring(struct process *p, struct ptc_error *err)
{
	struct ptc_daemon *d = &p->d;
	const struct ptc_measuring_opts opts = { .planning = p->planning,
						 .docs = &d->docs,
						 .loop = d->loop,
						 .channels = d->channels,
						 .runs = ptc_controllers_runs,
						 .replan = ptc_controllers_replan,
						 .arg = &d->controllers };

	return ptc_measuring_new(&opts, &d->controllers.measuring, err);
}

/* The model of the node's devices. If they differ, it is the one with the least memory, because that bounds what fits
 * on all. */
static void name_devices(const struct ptc_daemon_config *c, struct ptc_node_doc *n)
{
	for (size_t i = 0; c->found && i < ptc_node_devices_count(c->found); i++) {
		struct ptc_node_device d;

		ptc_node_devices_get(c->found, i, &d);
		if (!d.memory_bytes || (n->device_bytes && d.memory_bytes >= n->device_bytes))
			continue;
		n->device_bytes = d.memory_bytes;
		snprintf(n->device_name, sizeof n->device_name, "%s", d.name);
	}
	if (c->device_name)
		snprintf(n->device_name, sizeof n->device_name, "%s", c->device_name);
	if (c->found)
		ptc_node_devices_unhealthy(c->found, n->unhealthy, sizeof n->unhealthy);
}

static int new_cluster(struct process *p, struct ptc_error *err)
{
	struct ptc_daemon_config *c = &p->d.config;
	struct ptc_cluster_opts opts = {
		.loop = p->d.loop,
		.etcd = { .endpoints = c->coordinator.local ? p->etcd_endpoints
							    : (const char *const *)c->coordinator.endpoints.v,
			  .nendpoints = c->coordinator.local ? 1 : c->coordinator.endpoints.n,
			  .tls = p->etcd_tls.ca_path && !p->d.insecure ? &p->etcd_tls : NULL,
			  .insecure = p->d.insecure },
		.state_dir = c->state_dir,
		.lease_ttl_s = (int)(c->lease_ttl_ms / 1000),
		.node_lost_after_ns = (int64_t)c->node_lost_after_ms * 1000000,
		.node_quarantine_ns = (int64_t)c->node_quarantine_ms * 1000000,
		.quota = { c->quota.jobs, c->quota.datasets, c->quota.documents, c->quota.etcd },
		.on_change = on_change,
		.on_synced = on_synced,
		.on_lease = on_lease,
		.on_node_up = on_node_up,
		.arg = p,
	};
	struct ptc_node_doc *n = &opts.node;
	int rc = ptc_sys_uuid(n->boot_id, err);

	if (rc)
		return rc;
	p->etcd_endpoints[0] = p->etcd_endpoint;
	snprintf(n->name, sizeof n->name, "%s", c->node);
	snprintf(n->address, sizeof n->address, "%s", c->advertise);
	snprintf(n->store_id, sizeof n->store_id, "%s", ptc_store_id(p->d.store));
	snprintf(n->rack, sizeof n->rack, "%s", c->rack ? c->rack : "");
	n->devices = (uint32_t)c->devices;
	name_devices(c, n);
	n->ceiling_bytes = p->memory.chunks;
	n->insecure = p->d.insecure;
	n->pid = getpid();
	n->documents_oldest = PTC_DOC_OLDEST;
	n->documents = PTC_DOC_VERSION;
	return ptc_cluster_new(&opts, &p->d.cluster, err);
}

static int start_metrics(struct process *p, struct ptc_error *err)
{
	const struct ptc_metrics_opts opts = {
		.config = &p->d.config,
		.cluster = p->d.cluster,
		.store = p->d.store,
		.workers = p->d.workers,
		.controllers = &p->d.controllers,
		.uv = p->uv,
		.memory = &p->memory,
		.control = p->control,
		.peers = p->peers,
		.scrubber = p->d.scrubber,
	};

	return ptc_metrics_start(&opts, &p->metrics, err);
}

static int start_scrubber(struct process *p, struct ptc_error *err)
{
	const struct ptc_scrubber_opts opts = { .cluster = p->d.cluster,
						.store = p->d.store,
						.agent = p->d.agent,
						.node = p->d.config.node,
						.rate = p->d.config.scrub.rate,
						.pause_ms = p->d.config.scrub.pause_ms };
	struct ptc_scrubber *s;
	int rc = ptc_scrubber_new(&opts, &s, err);

	if (rc == 0)
		atomic_store(&p->d.scrubber, s);
	return rc;
}

static int start_health(struct process *p, struct ptc_error *err)
{
	const struct ptc_daemon_config *c = &p->d.config;
	const struct ptc_health_check_opts opts = { .argv = c->health.argv.v,
						    .every_ms = (int64_t)c->health.every_ms,
						    .timeout_ms = (int64_t)c->health.timeout_ms,
						    .devices = c->found };

	return c->health.argv.n && c->found ? ptc_health_check_start(&opts, &p->health, err) : 0;
}

static void watch_signal(struct process *p, uv_signal_t *handle, uv_signal_cb fn, int signum)
{
	uv_signal_init(p->uv, handle);
	handle->data = p;
	uv_signal_start(handle, fn, signum);
}

/* Its jobs go on with another etcd, and nothing that is committed here counts. */
static void on_replaced(void *arg, const char *text)
{
	struct process *p = arg;

	ptc_error_set(&p->ended, PTC_ESTATE, "%s", text);
	ptc_notify("STOPPING=1");
	uv_stop(p->uv);
}

/* Without the key a node serves all but descriptions of jobs; it asks again when it needs one. */
static int join_vault(struct process *p, struct ptc_error *err)
{
	int rc = ptc_vault_join(p->d.docs.vault, err);

	if (rc != PTC_ECOORD)
		return rc;
	ptc_warn("vault", "%s", err->text);
	return 0;
}

/* ---- an etcd that this node must not start with yet ---- */

static volatile sig_atomic_t stop_waiting;

static void on_stop_waiting(int signum)
{
	(void)signum;
	stop_waiting = 1;
}

/* Only what daemon/api/recover has: the rest of the daemon does not exist yet. */
static int serve_waiting(struct process *p, struct ptc_error *err)
{
	int rc = new_servers(p, err);

	if (rc == 0)
		rc = ptc_rpc_server_listen_unix(p->control, p->d.config.control_socket, 0666, false, err);
	if (rc == 0)
		rc = listen_root(p, err);
	if (rc == 0)
		rc = listen_peers(p, err);
	if (rc == 0)
		rc = ptc_rpc_server_start(p->peers, err);
	return rc ? rc : ptc_rpc_server_start(p->control, err);
}

/* Until somebody has brought this node and etcd together. An etcd that does not answer meanwhile changes nothing. */
static int wait_until_brought_together(struct process *p, struct ptc_error *err)
{
	bool waits = true;
	int rc = 0;

	while (rc == 0 && waits && !stop_waiting) {
		ptc_notify_watchdog();
		nanosleep(&(struct timespec){ .tv_nsec = TICK_MS * 1000000L }, NULL);
		rc = ptc_cluster_waits(p->d.cluster, &waits, err);
		if (rc == PTC_ECOORD || rc == PTC_ETIMEOUT)
			rc = 0;
	}
	return rc == 0 && waits ? ptc_error_set(err, PTC_ECANCELED, "stopped while it waited") : rc;
}

/* Ranks of this node go on meanwhile, as they do without a ptcd. */
static int wait_for_etcd(struct process *p, struct ptc_error *err)
{
	bool waits;
	int rc = ptc_cluster_waits(p->d.cluster, &waits, err);

	if (rc == 0 && !waits)
		rc = ptc_replaced_ask(&p->d, err);
	if (rc || !waits)
		return rc;
	snprintf(p->d.waits, sizeof p->d.waits, "%.511s", err->text);
	ptc_warn("ptcd", "node=%s waits: %s", p->d.config.node, p->d.waits);
	signal(SIGTERM, on_stop_waiting);
	signal(SIGINT, on_stop_waiting);
	rc = serve_waiting(p, err);
	if (rc == 0) {
		ptc_notify("READY=1\nSTATUS=waits for `ptcctl cluster recover` or `rejoin`");
		rc = wait_until_brought_together(p, err);
	}
	p->control = ptc_rpc_server_free(p->control, SHUTDOWN_GRACE_MS);
	p->peers = ptc_rpc_server_free(p->peers, SHUTDOWN_GRACE_MS);
	p->d.waits[0] = '\0';
	signal(SIGTERM, SIG_DFL);
	signal(SIGINT, SIG_DFL);
	return rc;
}

int ptc_process_start(struct process *p, struct ptc_error *err)
{
	int rc;

	ptc_cert_end_taken(&p->d.config);
	rc = start_store(p, err);
	if (rc == 0)
		rc = ptc_daemon_config_check_strangers(&p->d.config, err);
	if (rc == 0)
		rc = start_local_etcd(p, err);
	if (rc == 0)
		rc = ptc_loop_new(p->uv, &p->d.loop, err);
	if (rc == 0)
		rc = new_cluster(p, err);
	if (rc == 0)
		rc = open_documents(&p->d, err);
	if (rc == 0)
		rc = wait_for_etcd(p, err);
	if (rc == 0)
		rc = start_agent(p, err);
	if (rc == 0)
		rc = start_servers(p, err);
	if (rc == 0)
		rc = ptc_cluster_start(p->d.cluster, err);
	if (rc == 0)
		rc = join_vault(p, err);
	if (rc == 0)
		rc = start_measuring(p, err);
	if (rc == 0)
		rc = ptc_mount_start(&p->d.config, &p->mount, err);
	if (rc == 0)
		rc = start_scrubber(p, err);
	if (rc == 0)
		rc = start_metrics(p, err);
	if (rc == 0)
		rc = start_health(p, err);
	if (rc == 0)
		rc = ptc_replaced_start(&p->d, on_replaced, p, &p->replaced, err);
	if (rc == 0)
		rc = ptc_cut_off_new(&p->d, &p->cut_off, err);
	if (rc)
		return rc;
	watch_signal(p, &p->term, on_signal, SIGTERM);
	watch_signal(p, &p->interrupt, on_signal, SIGINT);
	watch_signal(p, &p->hangup, on_hangup, SIGHUP);
	uv_timer_init(p->uv, &p->tick);
	p->tick.data = p;
	return uv_timer_start(&p->tick, on_tick, TICK_MS, TICK_MS) == 0
		       ? 0
		       : ptc_error_set(err, PTC_EINTERNAL, "cannot start the loop's timer");
}

/* ---- stop --------------------------------------------------------------------------------------- */

static void close_handle(uv_handle_t *h, void *arg)
{
	(void)arg;
	if (!uv_is_closing(h))
		uv_close(h, NULL);
}

/* Ends everything in reverse order; works on all that start managed to make. */
void ptc_process_stop(struct process *p)
{
	struct ptc_daemon *d = &p->d;

	atomic_store(&d->stopping, true);
	p->metrics = ptc_metrics_stop(p->metrics);
	p->health = ptc_health_check_stop(p->health);
	p->mount = ptc_mount_stop(p->mount);
	ptc_controllers_free(&d->controllers);
	if (d->loop)
		ptc_loop_stop(d->loop); /* server threads waiting for the loop get PTC_ECANCELED */
	p->replaced = ptc_replaced_stop(p->replaced);
	ptc_agent_healing_stop(d->agent);
	ptc_scrubber_stop(d->scrubber);
	p->direct_reads = ptc_direct_reads_free(p->direct_reads);
	p->control = ptc_rpc_server_free(p->control, SHUTDOWN_GRACE_MS);
	p->peers = ptc_rpc_server_free(p->peers, SHUTDOWN_GRACE_MS);
	d->import_windows = ptc_import_windows_free(d->import_windows);
	d->fill_files = ptc_fill_files_free(d->fill_files);
	d->event_feed = ptc_event_feed_free(d->event_feed);
	d->controllers.measuring = ptc_measuring_free(d->controllers.measuring); /* calls that make jobs use it */
	p->planning = ptc_planning_free(p->planning);
	d->samples = ptc_samples_free(d->samples);
	ptc_workers_silence(d->workers); /* what ranks come to is told through the cluster */
	d->client = ptc_rpc_client_free(d->client);
	d->cluster = ptc_cluster_free(d->cluster);
	p->cut_off = ptc_cut_off_free(p->cut_off);
	d->pins = ptc_pins_free(d->pins);
	d->read_views = ptc_read_views_free(d->read_views); /* geometries belong to the agent */
	d->agent = ptc_agent_free(d->agent);
	ptc_live_stop(d);
	d->scrubber = ptc_scrubber_free(d->scrubber);
	d->docs.layouts = ptc_layouts_free(d->docs.layouts);
	d->channels = ptc_channels_free(d->channels);
	d->docs.specs = ptc_specs_free(d->docs.specs);
	d->docs.vault = ptc_vault_free(d->docs.vault);
	d->docs.kept = ptc_kept_free(d->docs.kept);
	ptc_events_free();
	d->loop = ptc_loop_free(d->loop);
	uv_walk(p->uv, close_handle, NULL);
	uv_run(p->uv, UV_RUN_DEFAULT);
	uv_loop_close(p->uv);
	p->reload = ptc_reload_free(p->reload);
	p->etcd = ptc_etcd_child_free(p->etcd);
	ptc_free(p->etcd_endpoint);
	d->store = ptc_store_close(d->store);
	ptc_buf_done(&p->memory_json);
	ptc_daemon_config_done(&d->config);
}
