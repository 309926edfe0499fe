/* SPDX-License-Identifier: Apache-2.0 */
/* The client and the child against real etcd processes, over unix sockets and
 * over TLS. "test_etcd supervise DIR" is the daemon that gets killed, "test_etcd
 * dying DIR PORT" an etcd whose end takes a while, and under the name "etcd" this
 * program is one that answers slowly. */
#include "daemon/coord/etcd.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/fault.h"
#include "base/limits.h"
#include "base/sys/sys.h"
#include "rpc/server/server.h"
#include "rpc/test_certs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

extern char **environ;

static char top[] = "/tmp/ptc-etcd-XXXXXX";

/* One etcd and one client, shared by the tests that do not harm them. */
static struct fixture {
	char dir[128];
	struct ptc_etcd_child *child;
	char *endpoint;
	struct ptc_etcd *e;
} fx;

#define OK(call)                                                                                                       \
	do {                                                                                                           \
		struct ptc_error ok_err = PTC_ERROR_INIT;                                                              \
		int ok_rc = (call);                                                                                    \
		if (ok_rc)                                                                                             \
			fail_msg("%s: %d %s", #call, ok_rc, ok_err.text);                                              \
	} while (0)

static void sleep_ms(int ms)
{
	struct timespec ts = { ms / 1000, (ms % 1000) * 1000000L };

	nanosleep(&ts, NULL);
}

static int64_t now_ms(void)
{
	return ptc_sys_now_ns() / 1000000;
}

static struct ptc_etcd *client(const char *endpoint, const struct ptc_rpc_tls *tls, int timeout_ms)
{
	struct ptc_etcd_opts opts = { .endpoints = &endpoint, .nendpoints = 1, .tls = tls, .timeout_ms = timeout_ms };
	struct ptc_etcd *e = NULL;

	OK(ptc_etcd_new(&opts, &e, &ok_err));
	return e;
}

/* Nobody looks at its database meanwhile: that would allocate in tests that count. */
static void start_in(const char *name, struct fixture *f)
{
	struct ptc_etcd_child_opts opts = { .data_dir = f->dir, .client_url = "unix", .look_ms = 3600000 };

	snprintf(f->dir, sizeof f->dir, "%s/%s", top, name);
	OK(ptc_etcd_child_new(&opts, &f->child, &f->endpoint, &ok_err));
	f->e = client(f->endpoint, NULL, 0);
}

static void stop(struct fixture *f)
{
	f->e = ptc_etcd_free(f->e);
	f->child = ptc_etcd_child_free(f->child);
	ptc_free(f->endpoint);
	f->endpoint = NULL;
}

static pid_t pid_in(const char *dir, const char *file)
{
	char path[256], *text = NULL;
	size_t len;
	pid_t pid;

	snprintf(path, sizeof path, "%s/%s", dir, file);
	if (ptc_sys_read_file(path, 4096, &text, &len, NULL))
		return 0;
	pid = (pid_t)atoi(text);
	ptc_free(text);
	return pid;
}

static pid_t etcd_pid(const char *dir)
{
	return pid_in(dir, "etcd.pid");
}

static bool thread_stopped(pid_t pid, const char *thread)
{
	char path[300], *text = NULL;
	const char *state;
	bool stopped;
	size_t len;

	snprintf(path, sizeof path, "/proc/%d/task/%s/stat", (int)pid, thread);
	if (ptc_sys_read_file(path, 4096, &text, &len, NULL))
		return true; /* it has ended */
	state = strrchr(text, ')');
	stopped = state && state[1] == ' ' && state[2] == 'T';
	ptc_free(text);
	return stopped;
}

static bool all_stopped(pid_t pid)
{
	char path[64];
	struct dirent *e;
	bool stopped = true;
	DIR *d;

	snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
	d = opendir(path);
	assert_non_null(d);
	while (stopped && (e = readdir(d)))
		stopped = e->d_name[0] == '.' || thread_stopped(pid, e->d_name);
	closedir(d);
	return stopped;
}

/* kill() returns before the process's other threads have heard of it: on another processor one may still answer. */
static void stop_etcd(void)
{
	pid_t pid = etcd_pid(fx.dir);

	assert_int_equal(kill(pid, SIGSTOP), 0);
	for (int i = 0; i < 10000 && !all_stopped(pid); i++)
		sleep_ms(1);
	assert_true(all_stopped(pid));
}

__attribute__((format(printf, 1, 2))) static int sh(const char *fmt, ...)
{
	char cmd[2048];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(cmd, sizeof cmd, fmt, ap);
	va_end(ap);
	return system(cmd);
}

static bool exists(struct ptc_etcd *e, const char *key)
{
	struct ptc_etcd_kvs kvs = { 0 };
	bool there;

	OK(ptc_etcd_get(e, key, false, 1, &kvs, &ok_err));
	there = kvs.n == 1;
	ptc_etcd_kvs_done(&kvs);
	return there;
}

/* ---- keys and values ---------------------------------------------------------- */

static void put_get_delete(void **state)
{
	struct ptc_etcd_kvs kvs = { 0 };

	OK(ptc_etcd_put(fx.e, "/a/x", "one\0two", 7, 0, NULL, &ok_err));
	OK(ptc_etcd_put(fx.e, "/a/x", "one\0two", 7, 0, NULL, &ok_err));
	OK(ptc_etcd_put(fx.e, "/a/y", "", 0, 0, NULL, &ok_err));
	OK(ptc_etcd_put(fx.e, "/a0", "outside", 7, 0, NULL, &ok_err));
	OK(ptc_etcd_get(fx.e, "/a/", true, 0, &kvs, &ok_err));
	assert_int_equal(kvs.n, 2);
	assert_string_equal(kvs.kv[0].key, "/a/x");
	assert_int_equal(kvs.kv[0].len, 7);
	assert_memory_equal(kvs.kv[0].value, "one\0two", 8);
	assert_true(kvs.kv[0].version == 2 && kvs.kv[0].mod_revision > kvs.kv[0].create_revision);
	assert_true(kvs.kv[1].len == 0 && kvs.kv[1].value[0] == '\0');
	assert_true(kvs.revision >= kvs.kv[1].mod_revision);
	ptc_etcd_kvs_done(&kvs);
	OK(ptc_etcd_get_keys(fx.e, "/a/", &kvs, &ok_err));
	assert_int_equal(kvs.n, 2);
	assert_string_equal(kvs.kv[0].key, "/a/x");
	assert_true(kvs.kv[0].len == 0 && kvs.kv[0].version == 2);
	ptc_etcd_kvs_done(&kvs);
	OK(ptc_etcd_delete(fx.e, "/a/x", false, NULL, &ok_err));
	assert_false(exists(fx.e, "/a/x"));
	OK(ptc_etcd_delete(fx.e, "/a/", true, NULL, &ok_err));
	assert_false(exists(fx.e, "/a/y"));
	assert_true(exists(fx.e, "/a0"));
	OK(ptc_etcd_get(fx.e, "/none", true, 0, &kvs, &ok_err));
	assert_true(kvs.n == 0 && kvs.revision > 0);
	ptc_etcd_kvs_done(&kvs);
}

static bool txn1(const char *key, enum ptc_etcd_target target, int64_t equal, const char *value, int64_t *ret_rev)
{
	struct ptc_etcd_compare cmp = { key, target, equal };
	struct ptc_etcd_op op = { .key = key, .value = value, .len = value ? strlen(value) : 0 };
	bool done = false;

	OK(ptc_etcd_txn(fx.e, &cmp, 1, &op, 1, NULL, &done, ret_rev, &ok_err));
	return done;
}

static void txn_compares(void **state)
{
	int64_t created = 0, changed = 0, rev = 0;
	struct ptc_etcd_kvs kvs = { 0 };

	assert_true(txn1("/t/k", PTC_ETCD_CREATE_REV, 0, "1", &created));
	assert_false(txn1("/t/k", PTC_ETCD_CREATE_REV, 0, "other", &rev));
	assert_true(txn1("/t/k", PTC_ETCD_MOD_REV, created, "2", &changed));
	assert_true(changed > created);
	assert_false(txn1("/t/k", PTC_ETCD_MOD_REV, created, "3", &rev));
	assert_true(txn1("/t/k", PTC_ETCD_CREATE_REV, created, "4", &rev));
	assert_false(txn1("/t/k", PTC_ETCD_VERSION, 2, "5", &rev));
	assert_true(txn1("/t/k", PTC_ETCD_VERSION, 3, "6", &rev));
	OK(ptc_etcd_get(fx.e, "/t/k", false, 0, &kvs, &ok_err));
	assert_string_equal(kvs.kv[0].value, "6");
	assert_true(kvs.kv[0].mod_revision == rev);
	ptc_etcd_kvs_done(&kvs);
	assert_true(txn1("/t/k", PTC_ETCD_VERSION, 4, NULL, &rev));
	assert_false(exists(fx.e, "/t/k"));
}

static void txn_is_all_or_nothing(void **state)
{
	struct ptc_etcd_compare cmp[2] = { { "/all/a", PTC_ETCD_CREATE_REV, 0 }, { "/all/old", PTC_ETCD_VERSION, 1 } };
	struct ptc_etcd_op ops[3] = { { .key = "/all/a", .value = "a", .len = 1 },
				      { .key = "/all/b", .value = "b", .len = 1 },
				      { .key = "/all/old", .prefix = true } };
	bool done = true;

	OK(ptc_etcd_txn(fx.e, cmp, 2, ops, 3, NULL, &done, NULL, &ok_err));
	assert_false(done);
	assert_false(exists(fx.e, "/all/a"));
	OK(ptc_etcd_put(fx.e, "/all/old", "x", 1, 0, NULL, &ok_err));
	OK(ptc_etcd_txn(fx.e, cmp, 2, ops, 3, NULL, &done, NULL, &ok_err));
	assert_true(done);
	assert_true(exists(fx.e, "/all/a") && exists(fx.e, "/all/b") && !exists(fx.e, "/all/old"));
}

static void limits_refuse_before_sending(void **state)
{
	static char big[PTC_ETCD_VALUE_MAX + 1];
	struct ptc_etcd_op ops[PTC_ETCD_TXN_OPS_MAX + 1] = { { 0 } };
	struct ptc_error err = PTC_ERROR_INIT;
	bool done;

	OK(ptc_etcd_put(fx.e, "/lim/max", big, PTC_ETCD_VALUE_MAX, 0, NULL, &ok_err));
	assert_int_equal(ptc_etcd_put(fx.e, "/lim/over", big, sizeof big, 0, NULL, &err), PTC_ELIMIT);
	for (size_t i = 0; i < PTC_ARRAY_LEN(ops); i++)
		ops[i] = (struct ptc_etcd_op){ .key = "/lim/k", .value = "", .len = 0 };
	assert_int_equal(ptc_etcd_txn(fx.e, NULL, 0, ops, PTC_ARRAY_LEN(ops), NULL, &done, NULL, &err), PTC_ELIMIT);
	for (int i = 0; i < 3; i++)
		ops[i] = (struct ptc_etcd_op){ .key = i ? i > 1 ? "/lim/2" : "/lim/1" : "/lim/0",
					       .value = big,
					       .len = PTC_ETCD_VALUE_MAX };
	assert_int_equal(ptc_etcd_txn(fx.e, NULL, 0, ops, 3, NULL, &done, NULL, &err), PTC_ELIMIT);
	OK(ptc_etcd_txn(fx.e, NULL, 0, ops, 2, NULL, &done, NULL, &ok_err));
	assert_int_equal(ptc_etcd_put(fx.e, "", "v", 1, 0, NULL, &err), PTC_EINVAL);
	assert_false(exists(fx.e, "/lim/over"));
	assert_int_equal(ptc_etcd_put(fx.e, "/lim/lease", "v", 1, 12345, NULL, &err), PTC_ENOTFOUND);
	/* what etcd itself refuses keeps etcd's words */
	ops[0] = ops[1] = (struct ptc_etcd_op){ .key = "/lim/twice", .value = "v", .len = 1 };
	assert_int_equal(ptc_etcd_txn(fx.e, NULL, 0, ops, 2, NULL, &done, NULL, &err), PTC_EINVAL);
	assert_non_null(strstr(err.text, "duplicate key"));
	OK(ptc_etcd_delete(fx.e, "/lim/", true, NULL, &ok_err));
}

/* Small keys make the pages long, then values of the greatest size overflow one message. */
static void listing_is_paged(void **state)
{
	static char value[PTC_ETCD_VALUE_MAX];
	struct ptc_etcd_kvs kvs = { 0 };
	struct ptc_error err = PTC_ERROR_INIT;
	char key[64];

	for (int i = 0; i < 400; i++) {
		snprintf(key, sizeof key, "/page/a%04d", i);
		OK(ptc_etcd_put(fx.e, key, key, strlen(key), 0, NULL, &ok_err));
	}
	for (int i = 0; i < 170; i++) {
		snprintf(key, sizeof key, "/page/b%04d", i);
		value[0] = (char)i;
		OK(ptc_etcd_put(fx.e, key, value, sizeof value, 0, NULL, &ok_err));
	}
	OK(ptc_etcd_get(fx.e, "/page/", true, 0, &kvs, &ok_err));
	assert_int_equal(kvs.n, 570);
	for (int i = 0; i < 570; i++) {
		snprintf(key, sizeof key, "/page/%c%04d", i < 400 ? 'a' : 'b', i < 400 ? i : i - 400);
		assert_string_equal(kvs.kv[i].key, key);
		assert_true(kvs.kv[i].len == (i < 400 ? strlen(key) : sizeof value));
		assert_true(i < 400 || kvs.kv[i].value[0] == (char)(i - 400));
	}
	ptc_etcd_kvs_done(&kvs);
	assert_int_equal(ptc_etcd_get(fx.e, "/page/", true, 569, &kvs, &err), PTC_ELIMIT);
	OK(ptc_etcd_delete(fx.e, "/page/", true, NULL, &ok_err));
}

static void fault_points_fail_around_the_effect(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;

	setenv("PTC_FAULT", "test.put.before=fail,test.put.after@1=fail", 1);
	ptc_fault_init();
	unsetenv("PTC_FAULT");
	assert_int_equal(ptc_etcd_put(fx.e, "/fault", "v", 1, 0, "test.put", &err), PTC_ECOORD);
	assert_non_null(strstr(err.text, "nothing was sent"));
	assert_false(exists(fx.e, "/fault"));
	assert_int_equal(ptc_etcd_put(fx.e, "/fault", "v", 1, 0, "test.put", &err), PTC_ECOORD);
	assert_non_null(strstr(err.text, "outcome unknown"));
	assert_true(exists(fx.e, "/fault"));
	OK(ptc_etcd_put(fx.e, "/fault", "w", 1, 0, "test.put", &ok_err));
}

/* ---- reachability ------------------------------------------------------------------ */

static void other_endpoints_are_tried(void **state)
{
	const char *ep[] = { "unix:/nowhere/a", "unix:/nowhere/b", fx.endpoint };
	struct ptc_etcd_opts opts = { .endpoints = ep, .nendpoints = 3 };
	struct ptc_etcd *e = NULL;

	OK(ptc_etcd_new(&opts, &e, &ok_err));
	OK(ptc_etcd_put(e, "/over", "v", 1, 0, NULL, &ok_err));
	assert_true(exists(e, "/over"));
	ptc_etcd_free(e);
}

static void unreachable_is_said_in_time(void **state)
{
	struct ptc_etcd *e = client("unix:/nowhere/a", NULL, 400);
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_etcd_kvs kvs;
	int64_t start = now_ms();

	assert_int_equal(ptc_etcd_get(e, "/x", false, 0, &kvs, &err), PTC_ECOORD);
	assert_non_null(strstr(err.text, "unix:/nowhere/a"));
	assert_int_equal(ptc_etcd_put(e, "/x", "v", 1, 0, NULL, &err), PTC_ECOORD);
	assert_non_null(strstr(err.text, "nothing was sent"));
	assert_in_range(now_ms() - start, 700, 3000);
	ptc_etcd_free(e);
}

static void tcp_needs_tls(void **state)
{
	const char *ep = "127.0.0.1:1";
	struct ptc_etcd_opts opts = { .endpoints = &ep, .nendpoints = 1 };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_etcd *e;

	assert_int_equal(ptc_etcd_new(&opts, &e, &err), PTC_EPERM);
	opts.nendpoints = 0;
	assert_int_equal(ptc_etcd_new(&opts, &e, &err), PTC_EINVAL);
}

/* A stopped server: reads and unsent writes are definite, a write under way is not. */
static void lost_answers_are_unknown_outcomes(void **state)
{
	struct ptc_etcd *e = client(fx.endpoint, NULL, 500);
	struct ptc_error err = PTC_ERROR_INIT;

	OK(ptc_etcd_put(e, "/lost", "1", 1, 0, NULL, &ok_err));
	stop_etcd();
	assert_int_equal(ptc_etcd_put(e, "/lost", "2", 1, 0, NULL, &err), PTC_ETIMEOUT);
	assert_non_null(strstr(err.text, "outcome unknown"));
	assert_int_equal(ptc_etcd_put(e, "/lost", "3", 1, 0, NULL, &err), PTC_ECOORD);
	assert_non_null(strstr(err.text, "nothing was sent"));
	kill(etcd_pid(fx.dir), SIGCONT);
	ptc_etcd_free(e);
	assert_true(exists(fx.e, "/lost"));
}

/* Each allocation of ours fails in turn: an error, nothing leaked, and the client works on. */
static void out_of_memory_is_an_error(void **state)
{
	struct ptc_etcd_compare cmp = { "/oom", PTC_ETCD_CREATE_REV, 0 };
	struct ptc_etcd_op ops[2] = { { .key = "/oom", .value = "v", .len = 1 }, { .key = "/oom/", .prefix = true } };
	int64_t live = ptc_alloc_live();
	uint64_t failures = 0;

	for (uint64_t i = 1; i < 60; i++) {
		struct ptc_etcd_kvs kvs = { 0 };
		bool done;
		int rc[3];

		ptc_alloc_fail_at(i);
		rc[0] = ptc_etcd_txn(fx.e, &cmp, 1, ops, 2, NULL, &done, NULL, NULL);
		rc[1] = ptc_etcd_get(fx.e, "/oom", true, 0, &kvs, NULL);
		rc[2] = ptc_etcd_delete(fx.e, "/oom", true, NULL, NULL);
		ptc_alloc_fail_at(0);
		ptc_etcd_kvs_done(&kvs);
		for (size_t j = 0; j < PTC_ARRAY_LEN(rc); j++) {
			failures += rc[j] != 0;
			/* an answer that cannot be decoded is the peer's fault or an unknown outcome */
			assert_true(rc[j] == 0 || rc[j] == PTC_ENOMEM || rc[j] == PTC_EPEER || rc[j] == PTC_ECOORD);
		}
		assert_true(ptc_alloc_live() == live);
	}
	assert_in_range(failures, 10, 59);
}

/* ---- leases --------------------------------------------------------------------------- */

static void count_lost(void *arg)
{
	__atomic_add_fetch((int *)arg, 1, __ATOMIC_SEQ_CST);
}

static bool wait_count(int *count, int at_least, int timeout_ms)
{
	int64_t until = now_ms() + timeout_ms;

	while (__atomic_load_n(count, __ATOMIC_SEQ_CST) < at_least && now_ms() < until)
		sleep_ms(10);
	return __atomic_load_n(count, __ATOMIC_SEQ_CST) >= at_least;
}

static void leases_live_and_end(void **state)
{
	struct ptc_etcd_lease *kept = NULL, *left = NULL;
	int lost = 0;

	OK(ptc_etcd_lease_new(fx.e, 1, count_lost, &lost, &kept, &ok_err));
	OK(ptc_etcd_lease_new(fx.e, 1, count_lost, &lost, &left, &ok_err));
	OK(ptc_etcd_put(fx.e, "/lease/kept", "v", 1, ptc_etcd_lease_id(kept), NULL, &ok_err));
	OK(ptc_etcd_put(fx.e, "/lease/left", "v", 1, ptc_etcd_lease_id(left), NULL, &ok_err));
	ptc_etcd_lease_free(left, false); /* nobody keeps it alive: it expires */
	sleep_ms(4500);
	assert_true(exists(fx.e, "/lease/kept"));
	assert_false(exists(fx.e, "/lease/left"));
	ptc_etcd_lease_free(kept, true);
	assert_false(exists(fx.e, "/lease/kept"));
	assert_int_equal(lost, 0);
}

static void a_revoked_lease_is_noticed(void **state)
{
	struct ptc_etcd_lease *l = NULL;
	int lost = 0;

	OK(ptc_etcd_lease_new(fx.e, 2, count_lost, &lost, &l, &ok_err));
	OK(ptc_etcd_put(fx.e, "/lease/dead", "v", 1, ptc_etcd_lease_id(l), NULL, &ok_err));
	OK(ptc_etcd_revoke(fx.e, ptc_etcd_lease_id(l), &ok_err));
	OK(ptc_etcd_revoke(fx.e, ptc_etcd_lease_id(l), &ok_err)); /* gone is gone */
	assert_false(exists(fx.e, "/lease/dead"));
	assert_true(wait_count(&lost, 1, 2000));
	sleep_ms(1000);
	assert_int_equal(lost, 1);
	ptc_etcd_lease_free(l, true);
}

/* What it says is what lease_end.h counts on: whole seconds, and 0 up to the revocation. */
static void what_a_lease_has_left(void **state)
{
	struct ptc_etcd_left left;
	struct ptc_etcd_lease *l = NULL;
	int64_t id;
	bool any_zero = false;

	(void)state;
	OK(ptc_etcd_lease_new(fx.e, 3, NULL, NULL, &l, &ok_err));
	id = ptc_etcd_lease_id(l);
	OK(ptc_etcd_lease_left(fx.e, id, 0, &left, &ok_err));
	assert_int_equal(left.ttl_s, 3);
	assert_in_range(left.left_s, 1, 3);
	ptc_etcd_lease_free(l, false); /* nobody keeps it alive */
	do {
		OK(ptc_etcd_lease_left(fx.e, id, 0, &left, &ok_err));
		any_zero |= left.left_s == 0;
	} while (left.left_s >= 0);
	assert_true(any_zero);
	OK(ptc_etcd_lease_left(fx.e, 12345, 0, &left, &ok_err)); /* there never was such a lease */
	assert_true(left.left_s < 0);
}

static void a_silent_etcd_loses_the_lease(void **state)
{
	struct ptc_etcd_lease *l = NULL;
	int64_t start;
	int lost = 0;

	OK(ptc_etcd_lease_new(fx.e, 2, count_lost, &lost, &l, &ok_err));
	sleep_ms(1000);
	start = now_ms();
	stop_etcd();
	assert_true(wait_count(&lost, 1, 4000));
	kill(etcd_pid(fx.dir), SIGCONT);
	assert_in_range(now_ms() - start, 1000, 2200); /* a TTL after the last keep-alive, not later */
	ptc_etcd_lease_free(l, true);
}

/* ---- watches ---------------------------------------------------------------------------- */

/* A model of the keys built from events only. */
struct model {
	pthread_mutex_t lock;
	struct {
		char key[64], value[64];
	} kv[256];
	size_t n;
	int resets, synced, deletes;
	void (*on_synced)(struct model *m); /* first time, on the watch thread */
};

static size_t model_find(const struct model *m, const char *key)
{
	size_t i = 0;

	while (i < m->n && strcmp(m->kv[i].key, key) != 0)
		i++;
	return i;
}

static void model_event(void *arg, enum ptc_watch_kind kind, const struct ptc_etcd_kv *kv)
{
	struct model *m = arg;
	void (*then)(struct model *) = NULL;
	size_t i;

	pthread_mutex_lock(&m->lock);
	i = kv ? model_find(m, kv->key) : 0;
	if (kind == PTC_WATCH_RESET) {
		m->n = 0;
		m->resets++;
	} else if (kind == PTC_WATCH_SYNCED) {
		then = m->synced++ == 0 ? m->on_synced : NULL;
	} else if (kind == PTC_WATCH_PUT && i < PTC_ARRAY_LEN(m->kv)) {
		m->n = PTC_MAX(m->n, i + 1);
		snprintf(m->kv[i].key, 64, "%s", kv->key);
		snprintf(m->kv[i].value, 64, "%s", kv->value);
	} else if (kind == PTC_WATCH_DELETE && i < m->n) {
		m->kv[i] = m->kv[--m->n];
		m->deletes++;
	}
	pthread_mutex_unlock(&m->lock);
	if (then)
		then(m);
}

/* Exact counts, read as the watch thread writes them; -1: any. */
static void model_is(struct model *m, int n, int resets, int synced, int deletes)
{
	pthread_mutex_lock(&m->lock);
	if ((n >= 0 && m->n != (size_t)n) || (resets >= 0 && m->resets != resets) ||
	    (synced >= 0 && m->synced != synced) || (deletes >= 0 && m->deletes != deletes)) {
		pthread_mutex_unlock(&m->lock);
		fail_msg("%zu keys, %d resets, %d synced, %d deletes", m->n, m->resets, m->synced, m->deletes);
	}
	pthread_mutex_unlock(&m->lock);
}

/* Waits until the model is synced for the nth time and equals what a listing says. */
static bool model_agrees(struct model *m, struct ptc_etcd *e, const char *prefix, int synced, int timeout_ms)
{
	int64_t until = now_ms() + timeout_ms;

	for (;;) {
		struct ptc_etcd_kvs kvs = { 0 };
		int rc = ptc_etcd_get(e, prefix, true, 0, &kvs, NULL);
		bool same;

		pthread_mutex_lock(&m->lock);
		same = rc == 0 && m->synced >= synced && kvs.n == m->n;
		for (size_t i = 0; same && i < kvs.n; i++) {
			size_t at = model_find(m, kvs.kv[i].key);

			same = at < m->n && strcmp(m->kv[at].value, kvs.kv[i].value) == 0;
		}
		pthread_mutex_unlock(&m->lock);
		ptc_etcd_kvs_done(&kvs);
		if (same || now_ms() > until)
			return same;
		sleep_ms(20);
	}
}

static void a_watch_lists_then_follows(void **state)
{
	static struct model m = { .lock = PTHREAD_MUTEX_INITIALIZER }; /* outlives a failed test, whose watch runs on */
	struct ptc_etcd_watch *w = NULL;
	int64_t start;

	OK(ptc_etcd_put(fx.e, "/w/a", "1", 1, 0, NULL, &ok_err));
	OK(ptc_etcd_put(fx.e, "/w/b", "1", 1, 0, NULL, &ok_err));
	OK(ptc_etcd_watch_new(fx.e, "/w/", model_event, &m, &w, &ok_err));
	assert_true(model_agrees(&m, fx.e, "/w/", 1, 3000));
	OK(ptc_etcd_put(fx.e, "/w/a", "2", 1, 0, NULL, &ok_err));
	OK(ptc_etcd_put(fx.e, "/w/c", "1", 1, 0, NULL, &ok_err));
	OK(ptc_etcd_put(fx.e, "/wx", "1", 1, 0, NULL, &ok_err));
	OK(ptc_etcd_delete(fx.e, "/w/b", false, NULL, &ok_err));
	assert_true(model_agrees(&m, fx.e, "/w/", 1, 3000));
	model_is(&m, 2, 1, 1, 1);
	start = now_ms();
	ptc_etcd_watch_free(w);
	assert_in_range(now_ms() - start, 0, 1000); /* an idle stream is cancelled, not waited for */
}

static void write_and_compact(struct model *m)
{
	struct ptc_etcd_kvs kvs = { 0 };

	OK(ptc_etcd_put(fx.e, "/wc/a", "2", 1, 0, NULL, &ok_err));
	OK(ptc_etcd_delete(fx.e, "/wc/b", false, NULL, &ok_err));
	OK(ptc_etcd_put(fx.e, "/wc/c", "3", 1, 0, NULL, &ok_err));
	OK(ptc_etcd_get(fx.e, "/wc/", true, 0, &kvs, &ok_err));
	assert_int_equal(sh("ETCDCTL_API=3 etcdctl --endpoints 'unix://%s/client.sock:0' compact %" PRId64
			    " >/dev/null",
			    fx.dir, kvs.revision),
			 0);
	ptc_etcd_kvs_done(&kvs);
}

/* Between listing and stream, what happened since the listing is compacted away. */
static void a_compacted_watch_lists_again(void **state)
{
	static struct model m = { .lock = PTHREAD_MUTEX_INITIALIZER,
				  .on_synced = write_and_compact }; /* outlives a failed test, whose watch runs on */
	struct ptc_etcd_watch *w = NULL;

	OK(ptc_etcd_put(fx.e, "/wc/a", "1", 1, 0, NULL, &ok_err));
	OK(ptc_etcd_put(fx.e, "/wc/b", "1", 1, 0, NULL, &ok_err));
	OK(ptc_etcd_watch_new(fx.e, "/wc/", model_event, &m, &w, &ok_err));
	assert_true(model_agrees(&m, fx.e, "/wc/", 2, 5000));
	model_is(&m, -1, 2, 2, -1);
	OK(ptc_etcd_put(fx.e, "/wc/d", "4", 1, 0, NULL, &ok_err));
	assert_true(model_agrees(&m, fx.e, "/wc/", 2, 3000));
	model_is(&m, 3, 2, 2, 0);
	ptc_etcd_watch_free(w);
}

/* Reads whatever was written since its last read: after each start of the watch, and after each change. */
struct reader {
	pthread_mutex_t lock;
	int64_t revision;
	int puts, read, synced;
	bool hurt;
};

static void read_on(void *arg, enum ptc_watch_kind kind, const struct ptc_etcd_kv *kv)
{
	struct reader *r = arg;
	struct ptc_etcd_kvs kvs = { 0 };

	(void)kv;
	pthread_mutex_lock(&r->lock);
	r->synced += kind == PTC_WATCH_SYNCED;
	r->puts += kind == PTC_WATCH_PUT;
	if (kind == PTC_WATCH_SYNCED && !r->hurt) { /* between the start and the stream: compacted away */
		r->hurt = true;
		write_and_compact(NULL);
	} else if (kind != PTC_WATCH_RESET && ptc_etcd_get_since(fx.e, "/wc/", r->revision, &kvs, NULL) == 0) {
		r->read += (int)kvs.n;
		r->revision = kvs.revision;
		ptc_etcd_kvs_done(&kvs);
	}
	pthread_mutex_unlock(&r->lock);
}

static bool has_read(struct reader *r, int n)
{
	for (int64_t until = now_ms() + 5000;; sleep_ms(10)) {
		int got;

		pthread_mutex_lock(&r->lock);
		got = r->read;
		pthread_mutex_unlock(&r->lock);
		if (got == n || now_ms() > until)
			return got == n;
	}
}

/* A reader of changes alone misses nothing, reads no key twice, and no key that was there before. */
static void a_watch_of_changes_lists_nothing(void **state)
{
	static struct reader r = { .lock = PTHREAD_MUTEX_INITIALIZER }; /* outlives a failed test */
	struct ptc_etcd_kvs kvs = { 0 };
	struct ptc_etcd_watch *w = NULL;

	OK(ptc_etcd_put(fx.e, "/wc/b", "1", 1, 0, NULL, &ok_err));
	OK(ptc_etcd_get_since(fx.e, "/wc/", 0, &kvs, &ok_err));
	assert_true(kvs.n > 0);
	r.revision = kvs.revision;
	ptc_etcd_kvs_done(&kvs);
	OK(ptc_etcd_watch_changes(fx.e, "/wc/", read_on, &r, &w, &ok_err));
	assert_true(has_read(&r, 2)); /* a and c of write_and_compact */
	OK(ptc_etcd_put(fx.e, "/wc/e", "1", 1, 0, NULL, &ok_err));
	assert_true(has_read(&r, 3));
	pthread_mutex_lock(&r.lock);
	assert_int_equal(r.puts, 1);
	assert_int_equal(r.synced, 2);
	pthread_mutex_unlock(&r.lock);
	ptc_etcd_watch_free(w);
}

/* ---- the database ----------------------------------------------------------------- */

#define VALUE_BYTES (256 << 10)
#define QUOTA_BYTES (64 << 20)

/* One whose database is looked at often, and may be so large. */
static void start_kept(const char *name, struct fixture *f)
{
	struct ptc_etcd_child_opts opts = {
		.data_dir = f->dir, .client_url = "unix", .quota_bytes = QUOTA_BYTES, .look_ms = 50
	};

	snprintf(f->dir, sizeof f->dir, "%s/%s", top, name);
	OK(ptc_etcd_child_new(&opts, &f->child, &f->endpoint, &ok_err));
	f->e = client(f->endpoint, NULL, 0);
}

static struct ptc_etcd_size size_of(struct ptc_etcd *e)
{
	struct ptc_etcd_size s;

	OK(ptc_etcd_size(e, &s, &ok_err));
	assert_true(s.used <= s.bytes);
	return s;
}

/* Ten times the quota goes through two keys; what is kept is two values. */
static void a_database_is_kept_small(void **state)
{
	struct fixture f = { 0 };
	char *value = ptc_calloc(1, VALUE_BYTES);
	uint64_t most = 0;

	assert_non_null(value);
	start_kept("kept", &f);
	for (int i = 0; i < QUOTA_BYTES / VALUE_BYTES * 3; i++) {
		OK(ptc_etcd_put(f.e, i % 2 ? "/k/a" : "/k/b", value, VALUE_BYTES, 0, NULL, &ok_err));
		most = PTC_MAX(most, size_of(f.e).bytes);
		for (int n = 0; i % 32 == 0 && n < 400 && size_of(f.e).used > QUOTA_BYTES * 5 / 8; n++)
			sleep_ms(50);
	}
	assert_in_range(most, 0, QUOTA_BYTES - 1);
	for (int i = 0; i < 400 && size_of(f.e).bytes > QUOTA_BYTES / 2; i++)
		sleep_ms(50);
	assert_in_range(size_of(f.e).bytes, 0, QUOTA_BYTES / 2);
	assert_true(exists(f.e, "/k/a") && exists(f.e, "/k/b"));
	ptc_free(value);
	stop(&f);
}

/* Filled while nobody looks after it: no write is taken, until somebody does. */
static void a_full_database_takes_writes_again(void **state)
{
	struct ptc_etcd_child_opts opts = { .client_url = "unix", .quota_bytes = QUOTA_BYTES, .look_ms = 3600000 };
	struct ptc_error err = PTC_ERROR_INIT;
	struct fixture f = { 0 };
	char *value = ptc_calloc(1, VALUE_BYTES);
	int rc = 0;

	assert_non_null(value);
	snprintf(f.dir, sizeof f.dir, "%s/full", top);
	opts.data_dir = f.dir;
	OK(ptc_etcd_child_new(&opts, &f.child, &f.endpoint, &ok_err));
	f.e = client(f.endpoint, NULL, 0);
	for (int i = 0; rc == 0 && i < QUOTA_BYTES / VALUE_BYTES * 2; i++)
		rc = ptc_etcd_put(f.e, "/k/a", value, VALUE_BYTES, 0, NULL, &err);
	assert_int_not_equal(rc, 0);
	assert_true(size_of(f.e).full);
	stop(&f);
	start_kept("full", &f);
	for (int i = 0; i < 400 && ptc_etcd_put(f.e, "/k/b", "x", 1, 0, NULL, NULL) != 0; i++)
		sleep_ms(50);
	OK(ptc_etcd_put(f.e, "/k/b", "y", 1, 0, NULL, &ok_err));
	assert_false(size_of(f.e).full);
	assert_in_range(size_of(f.e).bytes, 0, QUOTA_BYTES / 2);
	assert_true(exists(f.e, "/k/a"));
	ptc_free(value);
	stop(&f);
}

static void freeing_the_client_stops_its_threads(void **state)
{
	static struct model m = { .lock = PTHREAD_MUTEX_INITIALIZER }; /* outlives a failed test, whose watch runs on */
	struct ptc_etcd *e = client(fx.endpoint, NULL, 0);
	struct ptc_etcd_watch *w = NULL;
	struct ptc_etcd_lease *l = NULL;

	OK(ptc_etcd_watch_new(e, "/free/", model_event, &m, &w, &ok_err));
	OK(ptc_etcd_lease_new(e, 5, NULL, NULL, &l, &ok_err));
	assert_true(model_agrees(&m, e, "/free/", 1, 3000));
	ptc_etcd_free(e);
	ptc_etcd_watch_free(w);
	ptc_etcd_lease_free(l, true);
	ptc_etcd_free(NULL);
	ptc_etcd_watch_free(NULL);
	ptc_etcd_lease_free(NULL, true);
}

/* ---- the child ------------------------------------------------------------------------------ */

static void a_killed_etcd_is_started_again(void **state)
{
	static struct model m = { .lock = PTHREAD_MUTEX_INITIALIZER }; /* outlives a failed test, whose watch runs on */
	struct ptc_etcd_lease *l = NULL;
	struct ptc_etcd_watch *w = NULL;
	pid_t before = etcd_pid(fx.dir), after;
	int lost = 0;

	OK(ptc_etcd_watch_new(fx.e, "/k/", model_event, &m, &w, &ok_err));
	OK(ptc_etcd_lease_new(fx.e, 10, count_lost, &lost, &l, &ok_err));
	OK(ptc_etcd_put(fx.e, "/k/a", "1", 1, ptc_etcd_lease_id(l), NULL, &ok_err));
	assert_true(model_agrees(&m, fx.e, "/k/", 1, 3000));
	assert_int_equal(kill(before, SIGKILL), 0);
	assert_true(model_agrees(&m, fx.e, "/k/", 2, 15000));
	after = etcd_pid(fx.dir);
	assert_true(after > 0 && after != before);
	OK(ptc_etcd_put(fx.e, "/k/b", "2", 1, 0, NULL, &ok_err));
	assert_true(model_agrees(&m, fx.e, "/k/", 2, 3000));
	model_is(&m, 2, -1, 2, 0);
	pthread_mutex_lock(&m.lock);
	assert_in_range(m.resets, 2, 100); /* a listing that meets an etcd not yet up begins again */
	pthread_mutex_unlock(&m.lock);
	assert_int_equal(lost, 0);
	ptc_etcd_lease_free(l, true);
	ptc_etcd_watch_free(w);
}

static void nothing_listens_on_tcp_and_nothing_leaks_in(void **state)
{
	int pid = (int)etcd_pid(fx.dir);

	assert_int_equal(sh("! ss -ltunpH | grep -q 'pid=%d,'", pid), 0);
	assert_int_equal(sh("! ls -l /proc/%d/fd | grep -q sentinel", pid), 0);
	assert_int_equal(sh("test $(stat -c %%a %s) = 700", fx.dir), 0);
	assert_int_equal(sh("! tr '\\0' '\\n' < /proc/%d/environ | grep -q PTC_TEST_SECRET", pid), 0);
}

static void another_uid_is_refused(void **state)
{
	const char *put = "ETCDCTL_API=3 etcdctl --dial-timeout=2s --command-timeout=2s --endpoints "
			  "'unix://%s/client.sock:0' put /uid/k v >/dev/null 2>&1";
	char as_nobody[1024], as_root[512];

	if (geteuid() != 0 || sh("command -v setpriv >/dev/null"))
		skip();
	snprintf(as_root, sizeof as_root, put, fx.dir);
	snprintf(as_nobody, sizeof as_nobody,
		 "env ETCDCTL_API=3 setpriv --reuid=65534 --regid=65534 --clear-groups sh -c \"%s\"", as_root);
	assert_int_equal(sh("%s", as_root), 0);
	OK(ptc_etcd_delete(fx.e, "/uid/k", false, NULL, &ok_err));
	assert_int_not_equal(sh("%s", as_nobody), 0);
	assert_false(exists(fx.e, "/uid/k"));
}

static void the_directory_has_one_supervisor(void **state)
{
	struct ptc_etcd_child_opts opts = { .data_dir = fx.dir, .client_url = "unix" };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_etcd_child *c = NULL;
	char *endpoint;

	assert_int_equal(ptc_etcd_child_new(&opts, &c, &endpoint, &err), PTC_ESTATE);
	assert_non_null(strstr(err.text, "another ptcd"));
}

static void bad_options_are_refused(void **state)
{
	static const char stack[] =
		"#!/bin/sh\n"
		"echo '{\"level\":\"panic\",\"msg\":\"no WAL\",\"error\":\"no space\"}' >&2\n"
		"printf 'panic: no WAL\\n\\ngoroutine 1 [running]:\\n\\tmain.go:28 +0x17\\n' >&2; exit 2\n";
	char dir[128], open_dir[128], long_dir[256], panics[128];
	struct ptc_rpc_tls tls = { .ca_path = "/nowhere/ca", .cert_path = "/nowhere/cert", .key_path = "/nowhere/key" };
	const struct {
		struct ptc_etcd_child_opts opts;
		int code;
		const char *says;
	} bad[] = {
		{ { dir, "tcp://x", NULL, false, NULL }, PTC_EINVAL, "neither unix nor https" },
		{ { dir, "https://127.0.0.1:1", NULL, false, NULL }, PTC_EINVAL, "needs tls" },
		{ { dir, "https://127.0.0.1", NULL, false, NULL }, PTC_EINVAL, "has no port" },
		{ { dir, "https://127.0.0.1:1", &tls, false, NULL }, PTC_ENOTFOUND, "/nowhere/ca" },
		{ { dir, "http://127.0.0.1:1", NULL, false, NULL }, PTC_EPERM, "not protected" },
		{ { dir, "http://10.0.0.1:1", NULL, true, NULL }, PTC_EPERM, "not protected" },
		{ { dir, "unix", NULL, false, "no-such-etcd" }, PTC_ENOTFOUND, "install" },
		{ { dir, "unix", NULL, false, "/nowhere/etcd" }, PTC_ENOTFOUND, "/nowhere/etcd" },
		{ { dir, "unix", NULL, false, "false" }, PTC_ECOORD, "ended while starting" },
		{ { dir, "unix", NULL, false, panics }, PTC_ECOORD, "\"msg\":\"no WAL\",\"error\":\"no space\"}" },
		{ { open_dir, "unix", NULL, false, NULL }, PTC_EPERM, "mode 0700" },
		{ { long_dir, "unix", NULL, false, NULL }, PTC_ELIMIT, "too long" },
		{ { "/dev/null/x", "unix", NULL, false, NULL }, PTC_EIO, "/dev/null" },
	};

	snprintf(dir, sizeof dir, "%s/bad", top);
	snprintf(panics, sizeof panics, "%s/panics", top);
	OK(ptc_sys_write_file(panics, stack, strlen(stack), 0700, NULL, &ok_err));
	snprintf(open_dir, sizeof open_dir, "%s/open", top);
	snprintf(long_dir, sizeof long_dir, "%s/%0100d", top, 0);
	assert_int_equal(mkdir(open_dir, 0755), 0);
	for (size_t i = 0; i < PTC_ARRAY_LEN(bad); i++) {
		struct ptc_error err = PTC_ERROR_INIT;
		struct ptc_etcd_child *c = NULL;
		char *endpoint;
		int rc = ptc_etcd_child_new(&bad[i].opts, &c, &endpoint, &err);

		if (rc != bad[i].code || !strstr(err.text, bad[i].says))
			fail_msg("case %zu: %d %s", i, rc, err.text);
	}
}

static void stopping_leaves_no_process(void **state)
{
	struct fixture f = { 0 };
	pid_t pid;

	start_in("stop", &f);
	pid = etcd_pid(f.dir);
	assert_int_equal(kill(pid, 0), 0);
	stop(&f);
	assert_int_equal(kill(pid, 0), -1);
	assert_int_equal(etcd_pid(f.dir), 0);
}

/* A pid file that names another live process: us. */
static void a_reused_pid_is_left_alone(void **state)
{
	struct fixture f = { 0 };
	char path[256], *line = NULL;
	size_t len;

	snprintf(path, sizeof path, "%s/reused", top);
	assert_int_equal(mkdir(path, 0700), 0);
	snprintf(path, sizeof path, "%s/reused/etcd.pid", top);
	OK(ptc_sys_read_file("/proc/self/stat", 4096, &line, &len, &ok_err));
	OK(ptc_sys_write_file(path, line, len, 0600, NULL, &ok_err));
	ptc_free(line);
	start_in("reused", &f);
	assert_true(etcd_pid(f.dir) != getpid());
	stop(&f);
}

/* ---- a daemon that is killed ------------------------------------------------------------------ */

static int supervise(const char *dir)
{
	struct ptc_etcd_child_opts opts = { .data_dir = dir, .client_url = "unix" };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_etcd_child *c = NULL;
	char *endpoint;

	ptc_rpc_init();
	if (ptc_etcd_child_new(&opts, &c, &endpoint, &err)) {
		fprintf(stderr, "%s\n", err.text);
		return 1;
	}
	if (write(STDOUT_FILENO, "ready\n", 6) != 6)
		return 1;
	for (;;)
		pause();
}

/* This program in a process of its own, once it says that it is ready. */
static pid_t run_self(const char *verb_, const char *dir, int port)
{
	char self[] = "/proc/self/exe", verb[16], arg[256], number[16], line[16] = "";
	char *argv[] = { self, verb, arg, port ? number : NULL, NULL };
	posix_spawn_file_actions_t fa;
	int fds[2];
	pid_t pid;

	snprintf(verb, sizeof verb, "%s", verb_);
	snprintf(arg, sizeof arg, "%s", dir);
	snprintf(number, sizeof number, "%d", port);
	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	posix_spawn_file_actions_init(&fa);
	posix_spawn_file_actions_adddup2(&fa, fds[1], STDOUT_FILENO);
	assert_int_equal(posix_spawn(&pid, self, &fa, NULL, argv, environ), 0);
	posix_spawn_file_actions_destroy(&fa);
	close(fds[1]);
	assert_int_equal(read(fds[0], line, 6), 6);
	close(fds[0]);
	assert_string_equal(line, "ready\n");
	return pid;
}

/* A daemon in a process of its own, killed -9 once its etcd runs; returns etcd's pid. */
static pid_t supervisor_dies(const char *dir)
{
	pid_t pid = run_self("supervise", dir, 0);

	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	return etcd_pid(dir);
}

static void an_orphan_is_adopted(void **state)
{
	struct fixture f = { 0 };
	char dir[128];
	pid_t orphan;

	snprintf(dir, sizeof dir, "%s/orphan", top);
	orphan = supervisor_dies(dir);
	assert_int_equal(kill(orphan, 0), 0);
	start_in("orphan", &f);
	assert_int_equal(etcd_pid(f.dir), orphan);
	OK(ptc_etcd_put(f.e, "/o", "1", 1, 0, NULL, &ok_err));
	/* supervised like one of our own */
	kill(orphan, SIGKILL);
	for (int i = 0; i < 100 && etcd_pid(f.dir) == orphan; i++)
		sleep_ms(100);
	assert_true(etcd_pid(f.dir) != orphan);
	assert_true(exists(f.e, "/o"));
	stop(&f);
}

/* ---- one that answers, but slowly --------------------------------------------------------------- */

#define SLOW_MS 700

static int answer_slowly(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_rpc_part empty = { .data = "", .len = 0 };

	sleep_ms(SLOW_MS);
	return ptc_rpc_call_send(call, &empty, 1, err);
}

static int slow_etcd(void)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_rpc_server *s;
	char dir[128], path[192];

	ptc_rpc_init();
	snprintf(path, sizeof path, "%s/client.sock:0", getcwd(dir, sizeof dir) ? dir : ".");
	if (ptc_rpc_server_new(&(struct ptc_rpc_server_opts){ 0 }, &s, &err) ||
	    ptc_rpc_server_method(s, "/etcdserverpb.KV/Range", ~0u, answer_slowly, NULL, &err) ||
	    ptc_rpc_server_listen_unix(s, path, 0600, false, &err) || ptc_rpc_server_start(s, &err)) {
		fprintf(stderr, "%s\n", err.text);
		return 1;
	}
	for (;;)
		pause();
}

/* On a busy machine a read takes as long as an fsync: slow is not dead. */
static void a_slow_etcd_is_waited_for(void **state)
{
	struct ptc_etcd_child_opts opts = { .client_url = "unix", .binary = "/proc/self/exe" };
	struct ptc_etcd_child *c = NULL;
	char dir[128], *endpoint = NULL;

	snprintf(dir, sizeof dir, "%s/slow", top);
	opts.data_dir = dir;
	OK(ptc_etcd_child_new(&opts, &c, &endpoint, &ok_err));
	ptc_etcd_child_free(c);
	ptc_free(endpoint);
}

/* ---- one that is dying --------------------------------------------------------------------------- */

static void *end_later(void *arg)
{
	char path[64], *line = NULL;
	size_t len;

	snprintf(path, sizeof path, "/proc/%d/stat", (int)getpid());
	do { /* until the first thread is seen to have ended */
		ptc_free(line);
		if (ptc_sys_read_file(path, 4096, &line, &len, NULL))
			_exit(1);
	} while (!strstr(line, ") Z "));
	if (write(STDOUT_FILENO, "ready\n", 6) != 6)
		_exit(1);
	sleep_ms(1000);
	_exit(0);
}

/* Its first thread has ended, another one has not: as a killed etcd looks until the kernel is done with it. */
static int dying(const char *dir, int port)
{
	struct sockaddr_in a = { .sin_family = AF_INET,
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
				 .sin_port = htons((uint16_t)port) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	pthread_t thread;
	char *line;
	size_t len;

	if (chdir(dir) || bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 1) ||
	    ptc_sys_read_file("/proc/self/stat", 4096, &line, &len, NULL) ||
	    ptc_sys_write_file("etcd.pid", line, len, 0600, NULL, NULL) ||
	    pthread_create(&thread, NULL, end_later, NULL))
		return 1;
	pthread_exit(NULL);
}

static int free_port(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof a;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
	close(fd);
	return ntohs(a.sin_port);
}

static void a_dying_etcd_is_waited_for(void **state)
{
	struct ptc_etcd_child_opts opts = { .insecure = true };
	struct ptc_etcd_child *c = NULL;
	char dir[128], url[64], *endpoint = NULL;
	int port = free_port();
	pid_t pid;

	snprintf(dir, sizeof dir, "%s/dying", top);
	snprintf(url, sizeof url, "http://127.0.0.1:%d", port);
	opts.data_dir = dir;
	opts.client_url = url;
	assert_int_equal(mkdir(dir, 0700), 0);
	pid = run_self("dying", dir, port);
	OK(ptc_etcd_child_new(&opts, &c, &endpoint, &ok_err));
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	ptc_etcd_child_free(c);
	ptc_free(endpoint);
}

/* TLS: mutual, also against a client of another authority; and an orphan started otherwise is replaced. */
static void tls_is_mutual_and_replaces_a_unix_orphan(void **state)
{
	char dir[128], file[6][160], url[64], *endpoint = NULL;
	struct ptc_etcd_child_opts opts = { .data_dir = dir, .client_url = url };
	struct ptc_rpc_tls good, foreign;
	struct ptc_etcd_child *c = NULL;
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_etcd_kvs kvs;
	struct ptc_etcd *e;
	pid_t orphan, door;

	test_ca(top, "ca");
	test_ca(top, "other");
	test_cert(top, "ca", "n0", "URI:ptc://node/n0,DNS:ptc-node,DNS:localhost,IP:127.0.0.1", 2);
	test_cert(top, "other", "spy", "URI:ptc://node/n0,DNS:ptc-node,DNS:localhost,IP:127.0.0.1", 2);
	for (int i = 0; i < 6; i++)
		snprintf(file[i], sizeof file[i], "%s/%s", top,
			 (const char *[]){ "ca.crt", "n0.crt", "n0.key", "ca.crt", "spy.crt", "spy.key" }[i]);
	good = (struct ptc_rpc_tls){ .ca_path = file[0], .cert_path = file[1], .key_path = file[2] };
	foreign = (struct ptc_rpc_tls){ .ca_path = file[3], .cert_path = file[4], .key_path = file[5] };

	snprintf(dir, sizeof dir, "%s/tls", top);
	orphan = supervisor_dies(dir);
	snprintf(url, sizeof url, "https://127.0.0.1:%d", free_port());
	opts.tls = &good;
	OK(ptc_etcd_child_new(&opts, &c, &endpoint, &ok_err));
	assert_true(etcd_pid(dir) != orphan);
	assert_string_equal(endpoint, url + 8);
	e = client(endpoint, &good, 0);
	OK(ptc_etcd_put(e, "/tls", "v", 1, 0, NULL, &ok_err));
	assert_true(exists(e, "/tls"));
	ptc_etcd_free(e);
	e = client(endpoint, &foreign, 1000);
	assert_int_equal(ptc_etcd_get(e, "/tls", false, 0, &kvs, &err), PTC_ECOORD);
	ptc_etcd_free(e);
	assert_int_not_equal(
		sh("ETCDCTL_API=3 etcdctl --dial-timeout=1s --command-timeout=1s --endpoints %s --cacert %s "
		   "put /x y >/dev/null 2>&1",
		   url, file[0]),
		0);
	assert_int_not_equal(
		sh("ETCDCTL_API=3 etcdctl --dial-timeout=1s --command-timeout=1s --endpoints http://%s put "
		   "/x y >/dev/null 2>&1",
		   endpoint),
		0);
	assert_int_equal(sh("test $(ss -ltunpH | grep -c 'pid=%d,') = 0", (int)etcd_pid(dir)), 0);
	door = pid_in(dir, "door.pid");
	assert_int_equal(sh("test $(ss -ltunpH | grep -c 'pid=%d,') = 1", (int)door), 0);
	kill(door, SIGKILL); /* it is started again */
	e = client(endpoint, &good, 0);
	OK(ptc_etcd_get(e, "/tls", false, 0, &kvs, &ok_err));
	ptc_etcd_kvs_done(&kvs);
	ptc_etcd_free(e);
	assert_int_not_equal(pid_in(dir, "door.pid"), door);

	/* a port in use, which answers as ours would */
	snprintf(dir, sizeof dir, "%s/tls2", top);
	{
		struct ptc_etcd_child *second = NULL;
		char *unused;

		assert_int_equal(ptc_etcd_child_new(&opts, &second, &unused, &err), PTC_ECOORD);
		assert_non_null(strstr(err.text, "Address already in use"));
	}
	ptc_etcd_child_free(c);
	ptc_free(endpoint);
}

/* Where there is a list of revoked certificates, which is looked at more often, the database is looked at as often as
 * without one. */
static void a_database_beside_a_list_is_kept_small(void **state)
{
	char ca[160], cert[160], key[160], crl[160], url[64], *value = ptc_calloc(1, VALUE_BYTES);
	struct ptc_rpc_tls tls = { .ca_path = ca, .cert_path = cert, .key_path = key, .crl_path = crl };
	struct fixture f = { 0 };
	struct ptc_etcd_child_opts opts = {
		.data_dir = f.dir, .client_url = url, .tls = &tls, .quota_bytes = QUOTA_BYTES, .look_ms = 2500
	};

	assert_non_null(value);
	test_ca(top, "keep");
	test_cert(top, "keep", "k0", "URI:ptc://node/k0,DNS:ptc-node,IP:127.0.0.1", 2);
	test_crl(top, "keep", "keep", "");
	snprintf(f.dir, sizeof f.dir, "%s/beside", top);
	snprintf(ca, sizeof ca, "%s/keep.crt", top);
	snprintf(cert, sizeof cert, "%s/k0.crt", top);
	snprintf(key, sizeof key, "%s/k0.key", top);
	snprintf(crl, sizeof crl, "%s/keep.crl", top);
	snprintf(url, sizeof url, "https://127.0.0.1:%d", free_port());
	OK(ptc_etcd_child_new(&opts, &f.child, &f.endpoint, &ok_err));
	f.e = client(f.endpoint, &tls, 0);
	for (int i = 0; i < QUOTA_BYTES / VALUE_BYTES * 3 / 4; i++)
		OK(ptc_etcd_put(f.e, "/k/a", value, VALUE_BYTES, 0, NULL, &ok_err));
	for (int i = 0; i < 600 && size_of(f.e).bytes > QUOTA_BYTES / 2; i++)
		sleep_ms(50);
	assert_in_range(size_of(f.e).bytes, 0, QUOTA_BYTES / 2);
	assert_true(exists(f.e, "/k/a"));
	ptc_free(value);
	stop(&f);
}

/* Does etcd take a request that shows DIR/NAME's certificate? */
static bool lets_in(const char *url, const char *name)
{
	return sh("ETCDCTL_API=3 etcdctl --dial-timeout=2s --command-timeout=2s --endpoints %s --cacert %s/ca.crt "
		  "--cert "
		  "%s/%s.crt --key %s/%s.key put /x y >/dev/null 2>&1",
		  url, top, top, name, top, name) == 0;
}

static bool answers_https(const char *url, const char *name, const char *path)
{
	return sh("curl -s -m 2 -o /dev/null --cacert %s/ca.crt --cert %s/%s.crt --key %s/%s.key %s%s", top, top, name,
		  top, name, url, path) == 0;
}

/* The authority signs others than nodes; and a node that is revoked is out at once, also with a connection it has. */
static void members_alone_are_let_in(void **state)
{
	static const char *const strangers[] = { "admin", "nobody", "outsider", "self" }, *const paths[] = {
		"/health", "/metrics", "/version"
	};
	char dir[128], ca[160], cert[160], key[160], crl[160], url[64], *endpoint = NULL;
	struct ptc_rpc_tls tls = { .ca_path = ca, .cert_path = cert, .key_path = key, .crl_path = crl }, other;
	struct ptc_etcd_child_opts opts = { .data_dir = dir, .client_url = url, .tls = &tls };
	struct ptc_etcd_child *c = NULL;
	struct ptc_etcd *mine, *theirs;
	struct ptc_etcd_kvs kvs;
	char second[2][160];
	int rc = 0;

	test_ca(top, "ca");
	test_cert(top, "ca", "n0", "URI:ptc://node/n0,DNS:ptc-node,IP:127.0.0.1", 2);
	test_cert(top, "ca", "n1", "URI:ptc://node/n1,DNS:ptc-node", 2);
	test_cert(top, "ca", "admin", "URI:ptc://admin/a,DNS:localhost", 2);
	test_cert(top, "ca", "nobody", "DNS:nobody", 2);
	test_cert(top, "ca", "outsider", "URI:ptc://node/n1,DNS:ptc-node.example,DNS:xptc-node", 2);
	test_ca(top, "self");
	test_crl(top, "ca", "list", "");
	snprintf(dir, sizeof dir, "%s/members", top);
	snprintf(ca, sizeof ca, "%s/ca.crt", top);
	snprintf(cert, sizeof cert, "%s/n0.crt", top);
	snprintf(key, sizeof key, "%s/n0.key", top);
	snprintf(crl, sizeof crl, "%s/list.crl", top);
	snprintf(url, sizeof url, "https://127.0.0.1:%d", free_port());
	OK(ptc_etcd_child_new(&opts, &c, &endpoint, &ok_err));
	assert_true(lets_in(url, "n1"));
	assert_true(answers_https(url, "n1", "/version"));
	for (size_t i = 0; i < PTC_ARRAY_LEN(strangers); i++) {
		assert_false(lets_in(url, strangers[i]));
		for (size_t k = 0; k < PTC_ARRAY_LEN(paths); k++)
			assert_false(answers_https(url, strangers[i], paths[k]));
	}
	mine = client(endpoint, &tls, 10000);
	other = tls;
	snprintf(second[0], sizeof second[0], "%s/n1.crt", top);
	snprintf(second[1], sizeof second[1], "%s/n1.key", top);
	other.cert_path = second[0];
	other.key_path = second[1];
	theirs = client(endpoint, &other, 1000);
	OK(ptc_etcd_get(theirs, "/x", false, 0, &kvs, &ok_err));
	ptc_etcd_kvs_done(&kvs);
	test_crl(top, "ca", "list", "n1");
	for (int i = 0; i < 100 && rc == 0; i++, sleep_ms(50))
		if ((rc = ptc_etcd_get(theirs, "/x", false, 0, &kvs, NULL)) == 0)
			ptc_etcd_kvs_done(&kvs);
	assert_int_equal(rc, PTC_ECOORD);
	OK(ptc_etcd_get(mine, "/x", false, 0, &kvs, &ok_err));
	ptc_etcd_kvs_done(&kvs);
	assert_false(lets_in(url, "n1"));
	ptc_etcd_free(theirs);
	ptc_etcd_free(mine);
	ptc_etcd_child_free(c);
	ptc_free(endpoint);
}

/* ---- all of it ---------------------------------------------------------------------------------- */

static int64_t live_before;

static int setup(void **state)
{
	char path[160];

	if (!mkdtemp(top) || chmod(top, 0755) != 0)
		return -1;
	prctl(PR_SET_CHILD_SUBREAPER, 1); /* orphans come to us and are reaped at the end */
	setenv("PTC_TEST_SECRET", "1", 1);
	snprintf(path, sizeof path, "%s/sentinel", top);
	if (open(path, O_RDWR | O_CREAT, 0600) < 0) /* without close-on-exec, on purpose */
		return -1;
	live_before = ptc_alloc_live();
	start_in("shared", &fx);
	return 0;
}

/* What failed tests left running. */
static void kill_leftovers(void)
{
	sh("for f in %s/*/etcd.pid; do [ -s $f ] || continue; read -r pid rest < $f; "
	   "[ \"$(readlink /proc/$pid/cwd)\" = \"${f%%/etcd.pid}\" ] && kill -9 $pid; done; true",
	   top);
	sleep_ms(100);
}

static int teardown(void **state)
{
	int rc = 0;

	stop(&fx);
	kill_leftovers();
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
	/* a channel whose handshake failed is taken apart by the core when its backoff ends */
	for (int i = 0; i < 500 && ptc_alloc_live() != live_before; i++)
		sleep_ms(10);
	if (ptc_alloc_live() != live_before) {
		fprintf(stderr, "%" PRId64 " blocks leaked\n", ptc_alloc_live() - live_before);
		rc = -1;
	}
	return ptc_sys_remove_tree(top, NULL, NULL) ? -1 : rc;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(put_get_delete),
		cmocka_unit_test(txn_compares),
		cmocka_unit_test(txn_is_all_or_nothing),
		cmocka_unit_test(limits_refuse_before_sending),
		cmocka_unit_test(listing_is_paged),
		cmocka_unit_test(fault_points_fail_around_the_effect),
		cmocka_unit_test(other_endpoints_are_tried),
		cmocka_unit_test(unreachable_is_said_in_time),
		cmocka_unit_test(tcp_needs_tls),
		cmocka_unit_test(lost_answers_are_unknown_outcomes),
		cmocka_unit_test(out_of_memory_is_an_error),
		cmocka_unit_test(leases_live_and_end),
		cmocka_unit_test(a_revoked_lease_is_noticed),
		cmocka_unit_test(what_a_lease_has_left),
		cmocka_unit_test(a_silent_etcd_loses_the_lease),
		cmocka_unit_test(a_watch_lists_then_follows),
		cmocka_unit_test(a_compacted_watch_lists_again),
		cmocka_unit_test(a_watch_of_changes_lists_nothing),
		cmocka_unit_test(freeing_the_client_stops_its_threads),
		cmocka_unit_test(a_database_is_kept_small),
		cmocka_unit_test(a_database_beside_a_list_is_kept_small),
		cmocka_unit_test(a_full_database_takes_writes_again),
		cmocka_unit_test(a_killed_etcd_is_started_again),
		cmocka_unit_test(nothing_listens_on_tcp_and_nothing_leaks_in),
		cmocka_unit_test(another_uid_is_refused),
		cmocka_unit_test(the_directory_has_one_supervisor),
		cmocka_unit_test(bad_options_are_refused),
		cmocka_unit_test(stopping_leaves_no_process),
		cmocka_unit_test(a_reused_pid_is_left_alone),
		cmocka_unit_test(an_orphan_is_adopted),
		cmocka_unit_test(a_slow_etcd_is_waited_for),
		cmocka_unit_test(a_dying_etcd_is_waited_for),
		cmocka_unit_test(tls_is_mutual_and_replaces_a_unix_orphan),
		cmocka_unit_test(members_alone_are_let_in),
	};
	int rc;

	if (argc == 3 && strcmp(argv[1], "supervise") == 0)
		return supervise(argv[2]);
	if (argc == 4 && strcmp(argv[1], "dying") == 0)
		return dying(argv[2], atoi(argv[3]));
	if (strcmp(argv[0], "etcd") == 0)
		return slow_etcd();
	if (sh("command -v etcd >/dev/null && command -v etcdctl >/dev/null && command -v openssl >/dev/null")) {
		fprintf(stderr, "skipped: needs etcd, etcdctl and openssl\n");
		return 77;
	}
	if (argc == 2)
		cmocka_set_test_filter(argv[1]);
	ptc_rpc_init();
	rc = cmocka_run_group_tests(tests, setup, teardown);
	ptc_rpc_shutdown();
	return rc;
}
