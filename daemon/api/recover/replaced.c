/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path and failure modes: replaced.h. */
#include "daemon/api/recover/replaced.h"
#include "daemon/api/recover/recover_work.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"
#include "formats/names.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define METHOD      "/ptc.v1.Peer/Committed"
#define ASK_MS      500  /* for one node to answer */
#define FIRST_MS    2000 /* for all nodes asked at start together; most of them answer or refuse at once */
#define FIRST_NODES 16
#define LOOK_MS     5000
#define LOOK_NODES  4 /* asked at each look */
#define PEERS_MAX   ((PTC_NAME_MAX + 260u) * PTC_MAX_NODES)

struct peer {
	char name[PTC_NAME_MAX + 1], address[256];
	bool listed, up; /* by etcd; one that is up uses this etcd */
};

struct peers {
	struct peer *v;
	size_t n;
};

struct ptc_replaced {
	struct ptc_daemon *d;
	void (*found)(void *arg, const char *text);
	void *arg;
	pthread_t thread;
	struct {
		pthread_mutex_t lock;
		pthread_cond_t wake;
		bool stop;
	} shared;
	size_t next; /* of the peers: who is asked next */
	char text[PTC_ERROR_MAX];
};

/* ---- which nodes there are ---- */

static void add(struct peers *p, const char *name, const char *address, bool listed, bool up)
{
	struct peer *to;

	if (!*address || ptc_name_check_job(name, NULL) != 0 || strlen(address) >= sizeof to->address ||
	    strchr(address, '\n') || p->n >= 2 * (size_t)PTC_MAX_NODES || !PTC_MORE(p->v, p->n))
		return;
	to = &p->v[p->n++];
	*to = (struct peer){ .listed = listed, .up = up };
	snprintf(to->name, sizeof to->name, "%s", name);
	snprintf(to->address, sizeof to->address, "%s", address);
}

static int by_name(const void *a, const void *b)
{
	const struct peer *x = a, *y = b;
	int order = strcmp(x->name, y->name);

	return order ? order : (int)y->listed - (int)x->listed;
}

/* In the order of their names, each once; what etcd lists counts, not what was remembered. */
static void sort(struct peers *p)
{
	size_t n = 0;

	if (p->n)
		qsort(p->v, p->n, sizeof *p->v, by_name);
	for (size_t i = 0; i < p->n; i++)
		if (n == 0 || strcmp(p->v[n - 1].name, p->v[i].name) != 0)
			p->v[n++] = p->v[i];
	p->n = PTC_MIN(n, (size_t)PTC_MAX_NODES);
}

/* A file that cannot be read is as none: the next look writes it. */
static void read_peers(struct ptc_daemon *d, struct peers *to)
{
	ptc_auto_free char *path = ptc_asprintf("%s/peers", d->config.state_dir), *text = NULL;
	char *save = NULL;

	if (!path || ptc_sys_read_file(path, PEERS_MAX, &text, NULL, NULL) != 0)
		return;
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		char *space = strchr(line, ' ');

		if (!space)
			continue;
		*space = '\0';
		if (strcmp(line, d->config.node) != 0)
			add(to, line, space + 1, false, false);
	}
}

static void write_peers(struct ptc_daemon *d, const struct peers *p)
{
	ptc_auto_free char *path = ptc_asprintf("%s/peers", d->config.state_dir), *old = NULL;
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_buf b = PTC_BUF_INIT;

	for (size_t i = 0; i < p->n; i++)
		ptc_buf_printf(&b, "%s %s\n", p->v[i].name, p->v[i].address);
	if (path && b.len && !ptc_buf_failed(&b) &&
	    (ptc_sys_read_file(path, PEERS_MAX, &old, NULL, NULL) != 0 || strcmp(old, b.data) != 0) &&
	    ptc_sys_write_file(path, b.data, b.len, 0600, "peers.write", &err) != 0)
		ptc_warn("recover", "%s", err.text); /* the next look tries again */
	ptc_buf_done(&b);
}

struct listing {
	struct ptc_daemon *d;
	struct peers *to;
	bool synced;
};

static void list_nodes(void *arg)
{
	struct listing *l = arg;
	struct ptc_cluster *c = l->d->cluster;

	l->synced = ptc_cluster_synced(c);
	for (size_t i = 0; l->synced && i < ptc_cluster_nnodes(c); i++) {
		const struct ptc_node *n = ptc_cluster_node(c, (uint32_t)i);

		if (strcmp(n->doc.name, l->d->config.node) != 0)
			add(l->to, n->doc.name, n->doc.address, true, n->up);
	}
}

/* ---- asking ---- */

static int read_own(struct ptc_daemon *d, char **ret_text, struct ptc_error *err)
{
	ptc_auto_free char *path = ptc_asprintf("%s/cluster", d->config.state_dir);

	return path ? ptc_sys_read_file(path, PTC_CLUSTER_MAX_BYTES, ret_text, NULL, err) : ptc_nomem(err);
}

/* ptc_free *ret_text: the identity that the node has. */
static int ask(struct ptc_daemon *d, const struct peer *p, const char *own, int ms, char **ret_text)
{
	Ptc__V1__CommittedRequest req = PTC__V1__COMMITTED_REQUEST__INIT;
	Ptc__V1__CommittedReply *reply = NULL;
	struct ptc_rpc_channel *channel;
	struct ptc_inventory v = { 0 };
	int rc = ptc_channels_probe(d->channels, p->name, p->address, &channel, NULL);

	if (rc)
		return rc;
	req.version = PTC_WIRE_VERSION;
	req.asker = (char *)(uintptr_t)d->config.node; /* packing only reads */
	req.own = (char *)(uintptr_t)own;
	rc = ptc_pb_unary(channel, METHOD, &req.base, ms, NULL, 0, &ptc__v1__committed_reply__descriptor,
			  (ProtobufCMessage **)&reply, NULL);
	if (rc == 0)
		rc = ptc_inventory_decode(p->name, reply->json, &v, NULL);
	if (rc == 0) {
		*ret_text = v.cluster;
		v.cluster = NULL;
		rc = *ret_text ? 0 : PTC_EPEER;
	}
	ptc_inventory_done(&v);
	if (reply)
		ptc_pb_free(&reply->base);
	ptc_rpc_channel_free(channel);
	return rc;
}

/* PTC_ESTATE: the node is of a later epoch, which is durable now. */
static int ask_and_tell(struct ptc_daemon *d, const struct peer *p, const char *own, int ms, struct ptc_error *err)
{
	ptc_auto_free char *theirs = NULL;
	struct ptc_error why = PTC_ERROR_INIT;
	char who[PTC_NAME_MAX + 16];
	int rc;

	if (ask(d, p, own, ms, &theirs) != 0)
		return 0;
	snprintf(who, sizeof who, "node %s is", p->name);
	rc = ptc_identity_check_peer(own, who, theirs, err);
	if (rc && ptc_identity_told(d->config.state_dir, theirs, &why) != 0)
		ptc_warn("recover", "%s", why.text); /* it is asked again at the next start */
	return rc;
}

static void shuffle(struct peers *p)
{
	for (size_t i = p->n; i > 1; i--) {
		uint32_t r = 0;
		struct peer last = p->v[i - 1];

		if (ptc_sys_random(&r, sizeof r, NULL) != 0)
			return;
		p->v[i - 1] = p->v[r % i];
		p->v[r % i] = last;
	}
}

int ptc_replaced_ask(struct ptc_daemon *d, struct ptc_error *err)
{
	int64_t until = ptc_sys_now_ns() + FIRST_MS * INT64_C(1000000);
	ptc_auto_free char *own = NULL;
	struct peers p = { 0 };
	int rc = 0;

	if (read_own(d, &own, NULL) != 0)
		return 0; /* a new node */
	read_peers(d, &p);
	shuffle(&p);
	for (size_t i = 0; rc == 0 && i < PTC_MIN(p.n, (size_t)FIRST_NODES) && ptc_sys_now_ns() < until; i++)
		rc = ask_and_tell(d, &p.v[i], own, ASK_MS, err);
	ptc_free(p.v);
	return rc;
}

/* ---- while the daemon runs ---- */

static void tell(void *arg)
{
	struct ptc_replaced *r = arg;

	r->found(r->arg, r->text);
}

/* False: nothing is to be looked for any more. */
static bool look(struct ptc_replaced *r, bool *ret_synced)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct peers p = { 0 };
	struct listing l = { .d = r->d, .to = &p };
	ptc_auto_free char *own = NULL;
	size_t asked = 0, n;
	int rc;

	read_peers(r->d, &p);
	rc = ptc_loop_call(r->d->loop, list_nodes, &l);
	*ret_synced = rc == 0 && l.synced;
	sort(&p);
	if (*ret_synced)
		write_peers(r->d, &p);
	n = *ret_synced && read_own(r->d, &own, NULL) == 0 ? p.n : 0;
	for (size_t i = 0; rc == 0 && i < n && asked < LOOK_NODES; i++, r->next++)
		if (!p.v[r->next % n].up) {
			asked++;
			rc = ask_and_tell(r->d, &p.v[r->next % n], own, ASK_MS, &err);
		}
	ptc_free(p.v);
	if (rc != PTC_ESTATE)
		return rc == 0;
	snprintf(r->text, sizeof r->text, "%s", err.text);
	(void)ptc_loop_post(r->d->loop, tell, r);
	return false;
}

static void *replaced_main(void *arg)
{
	struct ptc_replaced *r = arg;
	bool synced = false, goes_on = true;

	pthread_mutex_lock(&r->shared.lock);
	while (!r->shared.stop && goes_on) {
		ptc_cond_wait_ms(&r->shared.wake, &r->shared.lock, synced ? LOOK_MS : LOOK_MS / 10);
		if (r->shared.stop)
			break;
		pthread_mutex_unlock(&r->shared.lock);
		goes_on = look(r, &synced);
		pthread_mutex_lock(&r->shared.lock);
	}
	pthread_mutex_unlock(&r->shared.lock);
	return NULL;
}

int ptc_replaced_start(struct ptc_daemon *d, void (*found)(void *arg, const char *text), void *arg,
		       struct ptc_replaced **ret_replaced, struct ptc_error *err)
{
	struct ptc_replaced *r = ptc_calloc(1, sizeof *r);
	int rc;

	if (!r)
		return ptc_nomem(err);
	*r = (struct ptc_replaced){ .d = d, .found = found, .arg = arg };
	pthread_mutex_init(&r->shared.lock, NULL);
	ptc_cond_init(&r->shared.wake);
	rc = ptc_thread_start(&r->thread, "ptc-replaced", replaced_main, r, err);
	if (rc) {
		pthread_cond_destroy(&r->shared.wake);
		pthread_mutex_destroy(&r->shared.lock);
		ptc_free(r);
		return rc;
	}
	*ret_replaced = r;
	return 0;
}

struct ptc_replaced *ptc_replaced_stop(struct ptc_replaced *r)
{
	if (!r)
		return NULL;
	pthread_mutex_lock(&r->shared.lock);
	r->shared.stop = true;
	pthread_cond_signal(&r->shared.wake);
	pthread_mutex_unlock(&r->shared.lock);
	pthread_join(r->thread, NULL);
	pthread_cond_destroy(&r->shared.wake);
	pthread_mutex_destroy(&r->shared.lock);
	ptc_free(r);
	return NULL;
}
