/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the local etcd (coordinator: local), Debian's etcd as a child that outlives a crash of ours.
 *
 * data_dir (0700): lock (held by the supervising daemon), etcd.pid (written by
 * the child itself before it becomes etcd: its /proc/self/stat line, which
 * holds pid and start time), etcd.args (how it was started), etcd.log
 * (bounded), data/, and the sockets client.sock:0 and peer.sock:0. etcd reads
 * unix://NAME:PORT as a socket file "NAME:PORT" relative to where it runs, so it
 * runs in data_dir and its paths may not be longer than a socket's name allows.
 *
 * With TLS etcd listens on a socket in data_dir, tls.sock:0, and ptc-etcd-door (door_main.c) on the address, as etcd
 * has no bound on connections. The door is a child like etcd: door.pid, and it outlives a crash of ours.
 *
 * Happy path: no etcd is left from before. ptcd starts one, waits until it answers a linearizable read, and watches the
 * process through a pidfd. When etcd ends, ptcd starts it again. ptcd also looks after the size of etcd's database
 * (etcd_upkeep.c).
 *
 * Failure modes: a live etcd left by a dead daemon (adopted if it was started in the same way and answers, else ended
 * first; an etcd that is dying is waited for, as it holds the data and the port until then); an etcd that answers, but
 * slowly (it is asked more patiently each time); another live daemon on data_dir (PTC_ESTATE); our port in use
 * (PTC_ECOORD); etcd ends while starting (PTC_ECOORD with the last lines of its log); a pid reused by another process
 * (start time and working directory differ: left alone). */
#include "daemon/coord/etcd_i.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/child.h"
#include "base/sys/helper.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define READY_MS       30000 /* a large log is replayed at start */
#define ASK_MIN_MS     200   /* how long the first question waits; each one that follows twice as long, up to ... */
#define ASK_MAX_MS     5000 /* ... what later calls wait. No less: on a busy machine a read takes as long as an fsync */
#define RESTART_MS     1000
#define SOON_MS        1000
#define TERM_MS        5000
#define CRL_TICK_MS    1000      /* how often the list of revoked certificates is looked at, where there is one */
#define TICK_MS        5000      /* how often log and database are looked at */
#define LOG_MAX_BYTES  (4 << 20) /* then it starts again from nothing */
#define SNAPSHOT_COUNT "1000"    /* etcd keeps that many entries in memory; its default of 100000 would be our blobs */
#define CLIENT_SOCKET  "client.sock:0"
#define PEER_SOCKET    "peer.sock:0"
#define TLS_SOCKET     "tls.sock:0"
#define ETCD_PID       "etcd.pid"
#define DOOR_PID       "door.pid"
#define DOOR_LOG       "door.log" /* one line, where it could not start */
#define MAX_ARGS       48
#define PATH_BYTES     4096

struct ptc_etcd_child {
	char *data_dir; /* absolute */
	char *binary;
	char *url;          /* what clients see: etcd listens there, or its door */
	char *door_address; /* HOST:PORT; NULL: no door */
	char *endpoint;     /* what clients take */
	char *argv[MAX_ARGS];
	size_t argc;
	char *envp[4];
	char *args_text; /* argv, one a line: an orphan started otherwise is not adopted */
	struct ptc_rpc_tls tls;
	bool has_tls, insecure;
	uint64_t quota_bytes;
	int look_ms;
	struct ptc_etcd *client; /* the thread's */
	struct ptc_etcd_upkeep upkeep;
	int lock_fd, stop_fd;
	pthread_t thread;
	bool running;
	pthread_mutex_t lock;
	struct ptc_child proc, door; /* under lock while the thread runs */
	struct stat crl;             /* the list of revoked certificates as this etcd began with it */
};

static int64_t now_ms(void)
{
	return ptc_sys_now_ns() / 1000000;
}

static char *in_dir(const struct ptc_etcd_child *c, const char *name)
{
	return ptc_asprintf("%s/%s", c->data_dir, name);
}

/* ---- processes ------------------------------------------------------------- */

/* Where it runs; "" when it is dying, and when there is nothing left of it but its number. */
static void working_dir(long pid, char ret_cwd[PATH_BYTES])
{
	char link[64];
	ssize_t n;

	snprintf(link, sizeof link, "/proc/%ld/cwd", pid);
	n = readlink(link, ret_cwd, PATH_BYTES - 1);
	ret_cwd[n < 0 ? 0 : n] = '\0';
}

/* What a dead daemon left: the process that the file names, if it is still that one. */
static bool find_orphan(const struct ptc_etcd_child *c, const char *pid_file, struct ptc_child *ret_proc)
{
	ptc_auto_free char *path = in_dir(c, pid_file);
	ptc_auto_free char *line = NULL;
	struct ptc_process_stat then;
	char cwd[PATH_BYTES];
	size_t len;
	int fd;

	if (!path || ptc_sys_read_file(path, 4096, &line, &len, NULL) || !ptc_process_stat_parse(line, &then) ||
	    then.pid <= 1)
		return false;
	fd = ptc_process_open(then.pid, then.start_time, NULL);
	if (fd < 0)
		return false;
	working_dir(then.pid, cwd);
	if (strcmp(cwd, c->data_dir) == 0) {
		*ret_proc = (struct ptc_child){ then.pid, fd };
		return true;
	}
	if (!*cwd) /* its threads still hold the data's locks and the port */
		ptc_child_ended(fd, TERM_MS);
	close(fd);
	return false;
}

/* ---- starting it ------------------------------------------------------------- */

/* etcd does not replace the socket files of one that was killed. */
static int remove_sockets(const struct ptc_etcd_child *c, struct ptc_error *err)
{
	ptc_auto_free char *client = in_dir(c, CLIENT_SOCKET);
	ptc_auto_free char *peer = in_dir(c, PEER_SOCKET);
	ptc_auto_free char *tls = in_dir(c, TLS_SOCKET);
	int rc;

	if (!client || !peer || !tls)
		return ptc_nomem(err);
	rc = ptc_sys_unlink(client, "etcd.socket", err);
	if (!rc)
		rc = ptc_sys_unlink(tls, "etcd.socket", err);
	return rc ? rc : ptc_sys_unlink(peer, "etcd.socket", err);
}

static int spawn(struct ptc_etcd_child *c, struct ptc_child *ret_proc, struct ptc_error *err)
{
	ptc_auto_free char *log = in_dir(c, "etcd.log");
	ptc_auto_close int log_fd = -1;
	struct ptc_child_args args = { .path = c->binary,
				       .argv = c->argv,
				       .envp = c->envp,
				       .session = true,
				       .default_signals = true,
				       .dir = c->data_dir,
				       .pid_file = ETCD_PID };
	int rc;

	if (!log)
		return ptc_nomem(err);
	if (c->tls.crl_path)
		ptc_sys_file_changed(c->tls.crl_path, &c->crl);
	rc = remove_sockets(c, err);
	if (rc)
		return rc;
	log_fd = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
	if (log_fd < 0)
		return ptc_error_errno(err, errno, "cannot open %s", log);
	args.output = args.errors = log_fd;
	return ptc_child_start(&args, ret_proc, err);
}

/* ---- is it up? ------------------------------------------------------------------ */

static int client_new(const struct ptc_etcd_child *c, struct ptc_etcd **ret_etcd, struct ptc_error *err)
{
	const char *endpoint = c->endpoint;
	struct ptc_etcd_opts opts = {
		.endpoints = &endpoint,
		.nendpoints = 1,
		.tls = c->has_tls ? &c->tls : NULL,
		.insecure = c->insecure,
	};

	return ptc_etcd_new(&opts, ret_etcd, err);
}

/* Where the last line begins, or, after a panic with its stack, the one before that: etcd's own are JSON. */
static size_t telling_line(const char *text, size_t len)
{
	size_t last = len, from;

	while (last > 0 && text[last - 1] != '\n')
		last--;
	for (from = last; text[from] != '{' && from > 0;)
		for (from--; from > 0 && text[from - 1] != '\n'; from--)
			;
	return text[from] == '{' ? from : last;
}

/* The end of etcd's log in one line, for the error a person sees. */
static void log_tail(const struct ptc_etcd_child *c, char *ret_text, size_t size)
{
	ptc_auto_free char *path = in_dir(c, "etcd.log");
	ptc_auto_free char *text = NULL;
	size_t len = 0, from;
	char *stack, *msg;

	snprintf(ret_text, size, "its log %s/etcd.log is empty", c->data_dir);
	if (!path || ptc_sys_read_file(path, LOG_MAX_BYTES * 2, &text, &len, NULL) || len == 0)
		return;
	while (len > 0 && text[len - 1] == '\n')
		text[--len] = '\0';
	from = telling_line(text, len);
	text[from + strcspn(text + from, "\n")] = '\0';
	stack = strstr(text + from, ",\"stacktrace\"");
	if (stack)
		*stack = '\0';
	msg = strstr(text + from, "\"msg\":");
	snprintf(ret_text, size, "%s", msg ? msg : text + from);
}

static int wait_ready(const struct ptc_etcd_child *c, const struct ptc_child *p, int timeout_ms, struct ptc_error *err)
{
	int64_t deadline = now_ms() + timeout_ms;
	struct ptc_error last = PTC_ERROR_INIT;
	struct ptc_etcd *e;
	char tail[400];
	int rc = client_new(c, &e, err);

	if (rc)
		return rc;
	for (int64_t ms = ASK_MIN_MS;; ms = PTC_MIN(ms * 2, ASK_MAX_MS)) {
		rc = ptc_etcd_probe(e, PTC_MIN(now_ms() + ms, deadline), &last);
		if (rc == 0 || ptc_child_ended(p->pidfd, 0) || now_ms() >= deadline)
			break;
	}
	ptc_etcd_free(e);
	if (rc == 0)
		return 0;
	log_tail(c, tail, sizeof tail);
	if (ptc_child_ended(p->pidfd, 0))
		return ptc_error_set(err, PTC_ECOORD, "etcd ended while starting in %s; it said: %s", c->data_dir,
				     tail);
	return ptc_error_set(err, PTC_ECOORD, "etcd in %s does not answer after %d s (%.300s); it said: %s",
			     c->data_dir, timeout_ms / 1000, last.text, tail);
}

/* ---- adopting -------------------------------------------------------------------- */

static bool same_args(const struct ptc_etcd_child *c)
{
	ptc_auto_free char *path = in_dir(c, "etcd.args");
	ptc_auto_free char *text = NULL;
	size_t len;

	return path && ptc_sys_read_file(path, 65536, &text, &len, NULL) == 0 && strcmp(text, c->args_text) == 0;
}

/* Somebody else's etcd on our port would answer in place of ours, which cannot bind there. */
static int check_port_free(const struct ptc_etcd_child *c, struct ptc_error *err)
{
	const char *host = strstr(c->url, "://") + 3, *port = strrchr(c->url, ':') + 1;
	const struct addrinfo hints = { .ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM };
	struct addrinfo *list = NULL;
	ptc_auto_free char *name = NULL;
	ptc_auto_close int fd = -1;
	const int on = 1;
	int e = 0;

	if (strncmp(c->url, "unix:", 5) == 0)
		return 0;
	name = host[0] == '[' ? ptc_strndup(host + 1, strcspn(host + 1, "]"))
			      : ptc_strndup(host, (size_t)(port - host) - 1);
	if (!name)
		return ptc_nomem(err);
	if (getaddrinfo(name, port, &hints, &list) != 0)
		return ptc_error_set(err, PTC_EINVAL,
				     "local coordinator: %s is not an address of this machine; write one of its own",
				     c->url);
	fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd >= 0 && (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
			bind(fd, list->ai_addr, list->ai_addrlen) != 0))
		e = errno;
	freeaddrinfo(list);
	return e ? ptc_error_set(err, PTC_ECOORD, "local coordinator: cannot listen on %s: %s", c->url, strerror(e))
		 : 0;
}

/* Where there is none yet. */
static int start_door(struct ptc_etcd_child *c, struct ptc_error *err)
{
	static char name[] = "ptc-etcd-door", socket[] = TLS_SOCKET;
	char *const argv[] = { name, c->door_address, socket, NULL };
	char path[PTC_HELPER_PATH];
	ptc_auto_free char *log = in_dir(c, DOOR_LOG);
	ptc_auto_close int log_fd = -1;
	struct ptc_child_args args = { .path = path,
				       .argv = argv,
				       .envp = c->envp,
				       .session = true,
				       .default_signals = true,
				       .dir = c->data_dir,
				       .pid_file = DOOR_PID };
	struct ptc_child p;
	int rc;

	if (!c->door_address || c->door.pid)
		return 0;
	rc = check_port_free(c, err);
	if (!rc)
		rc = ptc_helper_find(name, "PTC_ETCD_DOOR", path, err);
	if (rc || !log)
		return rc ? rc : ptc_nomem(err);
	log_fd = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
	if (log_fd < 0)
		return ptc_error_errno(err, errno, "cannot open %s", log);
	args.errors = log_fd;
	rc = ptc_child_start(&args, &p, err);
	if (rc)
		return rc;
	pthread_mutex_lock(&c->lock);
	c->door = p;
	pthread_mutex_unlock(&c->lock);
	return 0;
}

static int start_new(struct ptc_etcd_child *c, struct ptc_error *err)
{
	ptc_auto_free char *path = in_dir(c, "etcd.args");
	int rc;

	if (!path)
		return ptc_nomem(err);
	rc = c->door_address ? start_door(c, err) : check_port_free(c, err);
	if (!rc)
		rc = ptc_sys_write_file(path, c->args_text, strlen(c->args_text), 0600, "etcd.args", err);
	if (!rc)
		rc = spawn(c, &c->proc, err);
	if (!rc)
		rc = wait_ready(c, &c->proc, READY_MS, err);
	return rc;
}

static int adopt_or_start(struct ptc_etcd_child *c, struct ptc_error *err)
{
	const bool same = same_args(c);
	struct ptc_error why = PTC_ERROR_INIT;

	if (find_orphan(c, DOOR_PID, &c->door) && !same)
		ptc_child_end(&c->door, TERM_MS);
	if (find_orphan(c, ETCD_PID, &c->proc)) {
		if (!same)
			ptc_error_set(&why, PTC_ESTATE, "it was started with other arguments");
		else if (start_door(c, &why) == 0 && wait_ready(c, &c->proc, READY_MS, &why) == 0)
			return 0;
		ptc_debug("etcd", "ending the etcd left in %s, pid %d: %s", c->data_dir, (int)c->proc.pid, why.text);
		ptc_child_end(&c->proc, TERM_MS);
	}
	return start_new(c, err);
}

/* ---- supervision ----------------------------------------------------------------- */

static void bound_log(const struct ptc_etcd_child *c)
{
	ptc_auto_free char *path = in_dir(c, "etcd.log");
	struct stat st;

	if (path && stat(path, &st) == 0 && st.st_size > LOG_MAX_BYTES && truncate(path, 0) != 0)
		ptc_debug("etcd", "cannot cut %s: %s", path, strerror(errno));
}

/* true: stop was asked for within the time. */
static bool stop_within(const struct ptc_etcd_child *c, int ms)
{
	struct pollfd pfd = { c->stop_fd, POLLIN, 0 };

	return poll(&pfd, 1, ms) > 0;
}

static void restart(struct ptc_etcd_child *c)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_child p;
	int rc = spawn(c, &p, &err);

	pthread_mutex_lock(&c->lock);
	if (rc == 0)
		c->proc = p;
	pthread_mutex_unlock(&c->lock);
	if (rc)
		ptc_error_log("etcd", "%s; trying again", err.text);
	else
		ptc_info("etcd", "started again in %s, pid %d", c->data_dir, (int)p.pid);
}

/* etcd reads the list at each handshake, and never again: a connection that was let in before is ended with etcd
 * itself, which is back in a second or two. Leases go on where they were. */
static void end_revoked(struct ptc_etcd_child *c)
{
	struct ptc_child p;

	if (!c->tls.crl_path || !c->proc.pid || !ptc_sys_file_changed(c->tls.crl_path, &c->crl))
		return;
	ptc_info("etcd",
		 "%s is not what the local coordinator began with: it starts again, so that no connection of a "
		 "revoked certificate goes on",
		 c->tls.crl_path);
	p = c->proc;
	pthread_mutex_lock(&c->lock);
	c->proc = PTC_CHILD_NONE;
	pthread_mutex_unlock(&c->lock);
	ptc_child_end(&p, TERM_MS);
}

/* Callers over TCP reach nobody until it is there again. */
static void keep_door(struct ptc_etcd_child *c)
{
	struct ptc_error err = PTC_ERROR_INIT;

	if (!c->door_address || (c->door.pid && !ptc_child_ended(c->door.pidfd, 0)))
		return;
	if (c->door.pid) {
		ptc_warn("etcd", "the door of the local coordinator ended (see %s/" DOOR_LOG "); it is started again",
			 c->data_dir);
		pthread_mutex_lock(&c->lock);
		ptc_child_wait(&c->door, -1, NULL);
		ptc_child_close(&c->door);
		pthread_mutex_unlock(&c->lock);
	}
	if (start_door(c, &err) != 0)
		ptc_error_log("etcd", "%s; trying again", err.text);
}

static void *supervise(void *arg)
{
	struct ptc_etcd_child *c = arg;
	const int tick_ms = c->tls.crl_path ? PTC_MIN(c->look_ms, CRL_TICK_MS) : c->look_ms;
	int idle_ms = 0; /* since the database was looked at */
	bool soon = false;

	for (;;) {
		struct pollfd pfd[3] = { { c->stop_fd, POLLIN, 0 },
					 { c->proc.pid ? c->proc.pidfd : -1, POLLIN, 0 },
					 { c->door.pid ? c->door.pidfd : -1, POLLIN, 0 } };
		const bool whole = c->proc.pid && (c->door.pid || !c->door_address);
		const int wait_ms = whole && !soon ? tick_ms : SOON_MS;
		int n = poll(pfd, PTC_ARRAY_LEN(pfd), wait_ms);

		if (n > 0 && pfd[0].revents)
			return NULL;
		if (n > 0 && pfd[1].revents) {
			char tail[400];

			log_tail(c, tail, sizeof tail);
			ptc_warn("etcd", "the local coordinator in %s ended; it said: %s", c->data_dir, tail);
			pthread_mutex_lock(&c->lock);
			ptc_child_wait(&c->proc, -1, NULL);
			ptc_child_close(&c->proc);
			pthread_mutex_unlock(&c->lock);
			if (stop_within(c, RESTART_MS))
				return NULL;
		}
		keep_door(c);
		end_revoked(c);
		idle_ms = n == 0 ? idle_ms + wait_ms : 0;
		if (!c->proc.pid) {
			restart(c);
		} else if (n == 0 && (soon || idle_ms >= c->look_ms)) {
			soon = ptc_etcd_upkeep(c->client, &c->upkeep, c->quota_bytes);
			idle_ms = 0;
		}
		bound_log(c);
	}
}

/* ---- options ----------------------------------------------------------------------- */

static int find_binary(const char *name, char **ret_path, struct ptc_error *err)
{
	const char *path = getenv("PATH");
	char beside[PTC_HELPER_PATH];
	ptc_auto_free char *dirs = NULL;
	char *save = NULL;

	if (strchr(name, '/')) {
		char full[PATH_BYTES];

		if (!realpath(name, full) || access(full, X_OK) != 0)
			return ptc_error_errno(err, errno, "coordinator: cannot run %s", name);
		*ret_path = ptc_strdup(full);
		return *ret_path ? 0 : ptc_nomem(err);
	}
	if (ptc_helper_beside(name, beside)) { /* one that was brought along */
		*ret_path = ptc_strdup(beside);
		return *ret_path ? 0 : ptc_nomem(err);
	}
	dirs = ptc_strdup(path ? path : "/usr/local/bin:/usr/bin:/bin");
	if (!dirs)
		return ptc_nomem(err);
	for (char *d = strtok_r(dirs, ":", &save); d; d = strtok_r(NULL, ":", &save)) {
		char *full = ptc_asprintf("%s/%s", d, name);

		if (full && access(full, X_OK) == 0) {
			*ret_path = full;
			return 0;
		}
		ptc_free(full);
	}
	return ptc_error_set(err, PTC_ENOTFOUND,
			     "coordinator: local needs %s, which is not in PATH: install Debian's etcd-server", name);
}

static bool loopback(const char *hostport)
{
	return strncmp(hostport, "127.", 4) == 0 || strncmp(hostport, "localhost:", 10) == 0 ||
	       strncmp(hostport, "[::1]:", 6) == 0;
}

/* "https://0.0.0.0:2379" is where etcd listens; we and it connect to 127.0.0.1. */
static char *reachable(const char *hostport)
{
	const char *port = strrchr(hostport, ':');

	if (strncmp(hostport, "0.0.0.0:", 8) == 0)
		return ptc_asprintf("127.0.0.1%s", port);
	if (strncmp(hostport, "[::]:", 5) == 0)
		return ptc_asprintf("[::1]%s", port);
	return ptc_strdup(hostport);
}

static int set_unix(struct ptc_etcd_child *c, struct ptc_error *err)
{
	c->url = ptc_asprintf("unix://%s", CLIENT_SOCKET);
	c->endpoint = ptc_asprintf("unix:%s/%s", c->data_dir, CLIENT_SOCKET);
	c->has_tls = false;
	if (c->endpoint && strlen(c->endpoint) - 5 >= sizeof((struct sockaddr_un *)0)->sun_path)
		return ptc_error_set(err, PTC_ELIMIT, "%s: too long for a socket in it; at most %zu bytes", c->data_dir,
				     sizeof((struct sockaddr_un *)0)->sun_path - sizeof CLIENT_SOCKET - 1);
	return c->url && c->endpoint ? 0 : ptc_nomem(err);
}

static int set_tcp(struct ptc_etcd_child *c, const struct ptc_etcd_child_opts *opts, struct ptc_error *err)
{
	bool https = strncmp(opts->client_url, "https://", 8) == 0;
	const char *hostport = opts->client_url + (https ? 8 : 7);

	if (!https && strncmp(opts->client_url, "http://", 7) != 0)
		return ptc_error_set(err, PTC_EINVAL, "local coordinator: \"%s\" is neither unix nor https://HOST:PORT",
				     opts->client_url);
	if (!strrchr(hostport, ':') || strlen(strrchr(hostport, ':')) < 2)
		return ptc_error_set(err, PTC_EINVAL, "local coordinator: \"%s\" has no port", opts->client_url);
	if (https && !opts->tls)
		return ptc_error_set(err, PTC_EINVAL, "local coordinator: %s needs tls: {ca, cert, key}",
				     opts->client_url);
	if (!https && (!opts->insecure || !loopback(hostport)))
		return ptc_error_set(err, PTC_EPERM,
				     "local coordinator: %s is not protected; use unix or https (plain http is for "
				     "--insecure-loopback on 127.0.0.1 only)",
				     opts->client_url);
	c->has_tls = https;
	if (https)
		c->tls = *opts->tls;
	c->insecure = !https;
	c->url = ptc_strdup(opts->client_url);
	c->door_address = https ? ptc_strdup(hostport) : NULL;
	c->endpoint = reachable(hostport);
	return c->url && c->endpoint && (c->door_address || !https) ? 0 : ptc_nomem(err);
}

/* Our copies: the files are named absolutely, as etcd runs elsewhere, and outlive opts. */
static int copy_tls(struct ptc_etcd_child *c, struct ptc_error *err)
{
	const char **path[] = { &c->tls.ca_path, &c->tls.cert_path, &c->tls.key_path, &c->tls.crl_path };
	const char *given[] = { c->tls.ca_path, c->tls.cert_path, c->tls.key_path, c->tls.crl_path };
	const char *name = c->tls.member ? c->tls.member : PTC_RPC_MEMBER;

	c->tls = (struct ptc_rpc_tls){ 0 };
	if (!c->has_tls)
		return 0;
	c->tls.member = ptc_strdup(name);
	if (!c->tls.member)
		return ptc_nomem(err);
	for (size_t i = 0; i < PTC_ARRAY_LEN(path); i++) {
		char full[PATH_BYTES];

		if (!given[i] && path[i] == &c->tls.crl_path)
			continue;
		if (!given[i])
			return ptc_error_set(err, PTC_EINVAL, "local coordinator: tls needs ca, cert and key");
		if (!realpath(given[i], full))
			return ptc_error_errno(err, errno, "local coordinator: %s", given[i]);
		*path[i] = ptc_strdup(full);
		if (!*path[i])
			return ptc_nomem(err);
	}
	return 0;
}

static const char peer_url[] = "unix://" PEER_SOCKET, tls_url[] = "unixs://" TLS_SOCKET,
		  member[] = "ptc=unix://" PEER_SOCKET;

static int add_args(struct ptc_etcd_child *c, struct ptc_error *err)
{
	char quota[24];
	const char *plain[] = { "etcd",
				"--name",
				"ptc",
				"--data-dir",
				"data",
				"--listen-client-urls",
				c->door_address ? tls_url : c->url,
				"--advertise-client-urls",
				c->url,
				"--listen-peer-urls",
				peer_url,
				"--initial-advertise-peer-urls",
				peer_url,
				"--initial-cluster",
				member,
				"--enable-grpc-gateway=false",
				"--auto-compaction-mode",
				"periodic",
				"--auto-compaction-retention",
				"5m",
				"--quota-backend-bytes",
				quota,
				"--snapshot-count",
				SNAPSHOT_COUNT,
				"--logger",
				"zap",
				"--log-outputs",
				"stderr" };
	/* the authority signs others too: who lacks the members' name does not get through the handshake */
	const char *tls[] = { "--client-cert-auth", "--trusted-ca-file",
			      c->tls.ca_path,       "--cert-file",
			      c->tls.cert_path,     "--key-file",
			      c->tls.key_path,      "--client-cert-allowed-hostname",
			      c->tls.member };
	const char *crl[] = { "--client-crl-file", c->tls.crl_path };
	struct ptc_buf text = PTC_BUF_INIT;

	snprintf(quota, sizeof quota, "%" PRIu64, c->quota_bytes);
	for (size_t i = 0; i < PTC_ARRAY_LEN(plain); i++)
		c->argv[c->argc++] = ptc_strdup(plain[i]);
	for (size_t i = 0; i < PTC_ARRAY_LEN(tls) && c->has_tls; i++)
		c->argv[c->argc++] = ptc_strdup(tls[i]);
	for (size_t i = 0; i < PTC_ARRAY_LEN(crl) && c->tls.crl_path; i++)
		c->argv[c->argc++] = ptc_strdup(crl[i]);
	ptc_buf_printf(&text, "%s\n%s\n", c->binary, c->door_address ? c->door_address : "");
	for (size_t i = 0; i < c->argc; i++)
		ptc_buf_printf(&text, "%s\n", c->argv[i] ? c->argv[i] : "");
	c->args_text = ptc_buf_steal(&text, NULL);
	for (size_t i = 0; i < c->argc; i++)
		if (!c->argv[i])
			return ptc_nomem(err);
	return c->args_text ? 0 : ptc_nomem(err);
}

/* Nothing of ours: an ETCD_* or proxy variable would change what etcd does. */
static int set_environment(struct ptc_etcd_child *c, uint64_t memory_bytes, struct ptc_error *err)
{
	unsigned long long soft = memory_bytes / 4 * 3 >> 20;
	const char *arch = getenv("ETCD_UNSUPPORTED_ARCH"); /* etcd 3.4 on arm64 starts only with it */

	c->envp[0] = ptc_strdup("PATH=/usr/bin:/bin");
	c->envp[1] = arch ? ptc_asprintf("ETCD_UNSUPPORTED_ARCH=%s", arch) : NULL;
	if (c->envp[0] && (!arch || c->envp[1]) && memory_bytes)
		c->envp[arch ? 2 : 1] = ptc_asprintf("GOMEMLIMIT=%lluMiB", soft);
	return c->envp[0] && (!arch || c->envp[1]) && (!memory_bytes || c->envp[arch ? 2 : 1]) ? 0 : ptc_nomem(err);
}

static int open_dir(struct ptc_etcd_child *c, const char *dir, struct ptc_error *err)
{
	ptc_auto_free char *lock = NULL;
	char full[PATH_BYTES];
	struct stat st;
	int rc = ptc_sys_mkdirs(dir, 0700, err);

	if (rc)
		return rc;
	if (!realpath(dir, full) || stat(full, &st) != 0)
		return ptc_error_errno(err, errno, "local coordinator: %s", dir);
	if (!S_ISDIR(st.st_mode))
		return ptc_error_set(err, PTC_EINVAL, "local coordinator: %s is not a directory", full);
	if (st.st_uid != geteuid() || (st.st_mode & 077))
		return ptc_error_set(err, PTC_EPERM, "%s must belong to uid %d with mode 0700: chown and chmod it",
				     full, (int)geteuid());
	c->data_dir = ptc_strdup(full);
	lock = c->data_dir ? in_dir(c, "lock") : NULL;
	if (!lock)
		return ptc_nomem(err);
	c->lock_fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (c->lock_fd < 0)
		return ptc_error_errno(err, errno, "cannot open %s", lock);
	if (flock(c->lock_fd, LOCK_EX | LOCK_NB) != 0)
		return ptc_error_set(err, PTC_ESTATE, "another ptcd supervises the etcd in %s", full);
	return 0;
}

static int configure(struct ptc_etcd_child *c, const struct ptc_etcd_child_opts *opts, struct ptc_error *err)
{
	int rc = open_dir(c, opts->data_dir, err);

	if (!rc)
		rc = find_binary(opts->binary ? opts->binary : "etcd", &c->binary, err);
	if (!rc)
		rc = strcmp(opts->client_url, "unix") == 0 ? set_unix(c, err) : set_tcp(c, opts, err);
	if (!rc)
		rc = copy_tls(c, err);
	if (!rc)
		rc = set_environment(c, opts->memory_bytes, err);
	return rc ? rc : add_args(c, err);
}

static int start_thread(struct ptc_etcd_child *c, struct ptc_error *err)
{
	int rc = client_new(c, &c->client, err);

	if (rc)
		return rc;
	c->stop_fd = eventfd(0, EFD_CLOEXEC);
	if (c->stop_fd < 0)
		return ptc_error_errno(err, errno, "eventfd");
	rc = ptc_thread_start(&c->thread, "ptc-etcd-child", supervise, c, err);
	c->running = rc == 0;
	return rc;
}

int ptc_etcd_child_new(const struct ptc_etcd_child_opts *opts, struct ptc_etcd_child **ret_child, char **ret_endpoint,
		       struct ptc_error *err)
{
	struct ptc_etcd_child *c = ptc_calloc(1, sizeof *c);
	char *endpoint = NULL;
	int rc;

	if (!c)
		return ptc_nomem(err);
	c->lock_fd = c->stop_fd = c->proc.pidfd = c->door.pidfd = -1;
	c->quota_bytes = opts->quota_bytes ? opts->quota_bytes : PTC_ETCD_QUOTA;
	c->look_ms = opts->look_ms ? opts->look_ms : TICK_MS;
	pthread_mutex_init(&c->lock, NULL);
	rc = configure(c, opts, err);
	if (!rc) {
		endpoint = ptc_strdup(c->endpoint);
		rc = endpoint ? adopt_or_start(c, err) : ptc_nomem(err);
	}
	if (!rc)
		rc = start_thread(c, err);
	if (rc) {
		ptc_free(endpoint);
		ptc_etcd_child_free(c);
		return rc;
	}
	*ret_child = c;
	*ret_endpoint = endpoint;
	return 0;
}

static void stop_thread(struct ptc_etcd_child *c)
{
	const uint64_t one = 1;

	if (!c->running)
		return;
	ptc_require(write(c->stop_fd, &one, sizeof one) == sizeof one);
	pthread_join(c->thread, NULL);
}

static void free_tls(struct ptc_rpc_tls *tls)
{
	union {
		const char *in;
		char *out;
	} path[] = { { tls->ca_path }, { tls->cert_path }, { tls->key_path }, { tls->crl_path }, { tls->member } };

	for (size_t i = 0; i < PTC_ARRAY_LEN(path); i++)
		ptc_free(path[i].out);
}

struct ptc_etcd_child *ptc_etcd_child_free(struct ptc_etcd_child *c)
{
	if (!c)
		return NULL;
	stop_thread(c);
	ptc_etcd_free(c->client);
	if (c->proc.pid) {
		ptc_auto_free char *path = in_dir(c, ETCD_PID);

		ptc_child_end(&c->proc, TERM_MS);
		if (path)
			ptc_sys_unlink(path, "etcd.pid", NULL);
	}
	if (c->door.pid)
		ptc_child_end(&c->door, TERM_MS);
	ptc_close(&c->stop_fd);
	ptc_close(&c->lock_fd);
	for (size_t i = 0; i < c->argc; i++)
		ptc_free(c->argv[i]);
	for (size_t i = 0; i < PTC_ARRAY_LEN(c->envp); i++)
		ptc_free(c->envp[i]);
	free_tls(&c->tls);
	ptc_free(c->data_dir);
	ptc_free(c->binary);
	ptc_free(c->url);
	ptc_free(c->door_address);
	ptc_free(c->endpoint);
	ptc_free(c->args_text);
	pthread_mutex_destroy(&c->lock);
	ptc_free(c);
	return NULL;
}
