/* SPDX-License-Identifier: Apache-2.0 */
/* ptcd's main: one per node.
 *
 * Happy path: options and configuration, store, local etcd (coordinator:
 * local), listeners, lease and mirror, agent, controllers; READY=1 to systemd;
 * the loop until SIGTERM or SIGINT; then everything in reverse. SIGHUP reads again what can be (reload.c), and never
 * ends ptcd, even during its start.
 *
 * Failure modes: anything that fails before READY is one line on stderr and
 * exit status 1 (2 for usage); a store of another cluster is refused; after
 * READY errors belong to the job or the call they hit. kill -9 at any point
 * is a case like any other: what is durable is in etcd and in the store. */
#include "daemon/ptcd_process.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/log.h"
#include "base/sys/fault.h"
#include "base/sys/sys.h"
#include "daemon/metrics/metrics.h"
#include "daemon/planning/kinds/kinds.h"
#include "formats/json.h"
#include "fusefs/launch/launch.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* More than gRPC holds for the streams of a switch: PTC_RPC_BULK_WINDOW for each. */
#define MALLOC_KEEP_BYTES (64u << 20)
#define FILES_MIN         64    /* fewer, and the gRPC core ends the process before anything can be said */
#define FILES_WANTED      16384 /* a quarter of these are the connections that other nodes may have, rpc/server/conns.c */
#define FILES_MAX         (1u << 20)
#define DEFAULT_CONFIG    "/etc/ptc/ptcd.yaml"

struct options {
	const char *config;
	bool insecure, check, dump, man, unmount, list;
};

static const char usage[] =
	"usage: ptcd [--config FILE] [--insecure-loopback]\n"
	"       ptcd --check-config | --dump-config | --man-config | --list-metrics | --unmount-stale | --version | "
	"--help\n"
	"\n"
	"  --config FILE         configuration (default " DEFAULT_CONFIG ")\n"
	"  --check-config        read and check the configuration; print nothing if it is right\n"
	"  --dump-config         print the configuration with every default filled in\n"
	"  --man-config          print the keys of the configuration as a man page section\n"
	"  --list-metrics        print the metrics that ptcd serves, as rows of a Markdown table\n"
	"  --unmount-stale       detach the mount at fuse.dir if no process serves it any more\n"
	"  --insecure-loopback   plain TCP on loopback addresses, for benchmarks only\n"
	"\n"
	"exit status: 0 done, 1 failed, 2 usage\n";

static int parse_options(int argc, char **argv, struct options *o)
{
	static const struct option longs[] = {
		{ "config", required_argument, NULL, 'c' }, { "insecure-loopback", no_argument, NULL, 'i' },
		{ "check-config", no_argument, NULL, 'k' }, { "dump-config", no_argument, NULL, 'd' },
		{ "man-config", no_argument, NULL, 'm' },   { "unmount-stale", no_argument, NULL, 'u' },
		{ "list-metrics", no_argument, NULL, 'l' }, { "version", no_argument, NULL, 'v' },
		{ "help", no_argument, NULL, 'h' },         { NULL, 0, NULL, 0 },
	};
	int c;

	*o = (struct options){ .config = DEFAULT_CONFIG };
	while ((c = getopt_long(argc, argv, "c:h", longs, NULL)) != -1) {
		if (c == 'c') {
			o->config = optarg;
		} else if (c == 'i') {
			o->insecure = true;
		} else if (c == 'k') {
			o->check = true;
		} else if (c == 'd') {
			o->dump = true;
		} else if (c == 'm') {
			o->man = true;
		} else if (c == 'u') {
			o->unmount = true;
		} else if (c == 'l') {
			o->list = true;
		} else if (c == 'v') {
			puts("ptcd " PTC_VERSION);
			exit(0);
		} else {
			fputs(usage, c == 'h' ? stdout : stderr);
			exit(c == 'h' ? 0 : 2);
		}
	}
	if (optind < argc) {
		fprintf(stderr, "ptcd: unexpected argument \"%s\"; see ptcd --help\n", argv[optind]);
		return PTC_EINVAL;
	}
	return 0;
}

/* Raises our limit of descriptors to the hard one. Programs that we start for others get our former limit: ptc-exec
 * reads PTC_FILES. */
static int raise_files(struct ptc_error *err)
{
	struct rlimit l;
	char was[24];

	if (getrlimit(RLIMIT_NOFILE, &l) != 0)
		return 0;
	if (l.rlim_max < FILES_MIN)
		return ptc_error_set(err, PTC_ELIMIT,
				     "this process may open %llu files; ptcd needs at least %d (ulimit -n)",
				     (unsigned long long)l.rlim_max, FILES_MIN);
	snprintf(was, sizeof was, "%llu", (unsigned long long)l.rlim_cur);
	l.rlim_cur = PTC_MIN(l.rlim_max, FILES_MAX);
	if (setrlimit(RLIMIT_NOFILE, &l) != 0)
		return ptc_error_errno(err, errno, "cannot raise the limit of open files to %llu",
				       (unsigned long long)l.rlim_cur);
	return setenv("PTC_FILES", was, 1) == 0 ? 0 : ptc_error_errno(err, errno, "setenv");
}

/* With fewer descriptors there is room for fewer callers. */
static void say_files(void)
{
	struct ptc_rpc_connections c;
	struct rlimit l;

	ptc_rpc_connections(&c);
	if (getrlimit(RLIMIT_NOFILE, &l) == 0 && l.rlim_cur < FILES_WANTED)
		ptc_warn("ptcd",
			 "this process may open %llu files: room for %u connections of users and %u of nodes; %d lift "
			 "that (LimitNOFILE, ulimit -Hn)",
			 (unsigned long long)l.rlim_cur, c.max_users, c.max_members, FILES_WANTED);
}

static void say_timeouts(const struct ptc_daemon_config *c)
{
	char text[512];

	for (size_t i = 0; ptc_daemon_config_timeout_clash(c, i, text, sizeof text); i++)
		ptc_warn("ptcd", "%s", text);
}

static int read_config(const struct options *o, struct process *p, struct ptc_error *err)
{
	struct ptc_daemon_config *c = &p->d.config;
	struct ptc_plan_devices *known = NULL; /* read again where it is used */
	int rc = ptc_daemon_config_load(o->config, c, err);

	if (rc)
		return rc;
	c->insecure_loopback = p->d.insecure = o->insecure;
	rc = ptc_daemon_config_check(c, err);
	if (!rc && !o->insecure)
		rc = ptc_daemon_config_check_certificates(c, err);
	if (!rc && !o->unmount)
		rc = ptc_kinds_load(c->devices_file, &known, err);
	ptc_free(known);
	if (rc)
		return rc;
	rc = o->check || o->dump || o->unmount ? 0 : raise_files(err);
	if (rc)
		return rc;
	ptc_daemon_config_memory(c, &p->memory, NULL);
	ptc_memory_json(&p->memory, &p->memory_json);
	if (ptc_buf_failed(&p->memory_json))
		return ptc_nomem(err);
	ptc_log_level_set(c->log);
	if (!o->dump && !o->unmount)
		say_timeouts(c);
	if (ptc_daemon_tls_rpc(&c->tls, &p->d.tls) && !o->insecure)
		p->d.tls_or_null = &p->d.tls;
	ptc_daemon_tls_rpc(c->coordinator.local ? &c->tls : &c->coordinator.tls, &p->etcd_tls);
	return 0;
}

/* One line, whatever the configuration's text holds. */
static void print_error(struct ptc_error *err)
{
	for (char *c = err->text; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			*c = ' ';
	fprintf(stderr, "ptcd: %s\n", err->text);
}

static int dump_config(const struct ptc_daemon_config *c, struct ptc_error *err)
{
	struct ptc_buf b = PTC_BUF_INIT;
	bool failed;

	ptc_daemon_config_dump(c, &b);
	failed = ptc_buf_failed(&b);
	if (!failed)
		fwrite(b.data, 1, b.len, stdout);
	ptc_buf_done(&b);
	if (failed)
		return ptc_nomem(err);
	return fflush(stdout) == 0 ? 0 : ptc_error_errno(err, errno, "writing the configuration");
}

/* For the unit, after us. */
static int unmount_stale(const struct ptc_daemon_config *c, struct ptc_error *err)
{
	const char *args[] = { "--unmount", "--stale", c->fuse.dir, NULL };

	return c->fuse.dir ? ptc_fuse_exec(args, err) : 0;
}

/* Options that end here. */
static int only_config(const struct options *o, struct process *p, int rc, struct ptc_error *err)
{
	if (!rc && o->dump)
		rc = dump_config(&p->d.config, err);
	if (!rc && o->unmount)
		rc = unmount_stale(&p->d.config, err);
	if (rc)
		print_error(err);
	ptc_buf_done(&p->memory_json);
	ptc_daemon_config_done(&p->d.config);
	return rc ? 1 : 0;
}

/* Until the loop runs. Not SIG_IGN, which what we start would inherit. */
static void disregard(int signum)
{
	(void)signum;
}

int main(int argc, char **argv)
{
	struct ptc_error err = PTC_ERROR_INIT;
	static struct process p; /* zero, and out of the stack of threads */
	struct options o;
	int rc;

	ptc_sys_standard_fds();
	if (parse_options(argc, argv, &o) != 0)
		return 2;
	if (o.man || o.list) {
		if (o.man)
			ptc_daemon_config_print_man(stdout);
		else
			ptc_metrics_list(stdout);
		return 0;
	}
	umask(077);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGHUP, disregard);
	ptc_fault_init();
	ptc_json_init();
	rc = read_config(&o, &p, &err);
	if (rc || o.check || o.dump || o.unmount)
		return only_config(&o, &p, rc, &err);
	p.uv = uv_default_loop();
	p.reload = ptc_reload_new(p.uv, &p.d, o.config);
	if (!p.reload) {
		ptc_nomem(&err);
		return only_config(&o, &p, PTC_ENOMEM, &err);
	}
	ptc_alloc_keep(MALLOC_KEEP_BYTES);
	ptc_alloc_limit_set(ptc_memory_heap(&p.memory));
	ptc_rpc_init();
	ptc_rpc_memory_limit_set(ptc_memory_wire(&p.memory));
	say_files();
	rc = ptc_process_start(&p, &err);
	if (rc == 0)
		uv_run(p.uv, UV_RUN_DEFAULT);
	else
		print_error(&err);
	if (p.ended.code)
		print_error(&p.ended);
	ptc_process_stop(&p);
	ptc_rpc_shutdown();
	if (rc || p.ended.code)
		return 1;
	ptc_info("ptcd", "stopped");
	return 0;
}
