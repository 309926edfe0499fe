/* SPDX-License-Identifier: Apache-2.0 */
/* What is known of each node, and the files of near ones.
 *
 * Happy path: the first request for a node's bytes asks the node where it runs, and for the file; others wait for the
 * answer, and later ones find the file. Files that nobody has used for a minute are closed when another one is opened,
 * so descriptors are bounded, and a job that is gone keeps none for long.
 *
 * Failure modes: near.h. A node that is elsewhere is asked again after some minutes, and one that failed after some
 * seconds. */
#include "daemon/agent/near/near_ask.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/number/count.h"
#include "base/sys/fault.h"
#include "base/sys/sys.h"
#include "daemon/agent/calls/agent_state.h"
#include "daemon/agent/calls/operation.h"
#include "daemon/store/store_key.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FILES_MAX    64
#define IDLE_NS      INT64_C(60000000000)
#define AGAIN_NS     INT64_C(10000000000)
#define ELSEWHERE_NS INT64_C(600000000000)

struct entry {
	struct ptc_near_file file; /* first: what callers have */
	struct entry *next;
	char uuid[37];
	unsigned refs;
	bool stale; /* nobody finds it any more */
	int64_t used_ns;
};

struct peer {
	struct peer *next;
	char node[PTC_NAME_MAX + 1];
	char socket[NEAR_SOCKET_BYTES]; /* empty: not known, or the node is not near */
	int64_t not_before_ns;          /* it is not asked before */
	bool asking;                    /* a thread asks it, without the lock */
	bool failed;                    /* and this was logged */
	struct entry *files;
};

struct ptc_near {
	struct ptc_near_opts opts;
	char socket[NEAR_SOCKET_BYTES], machine[NEAR_MACHINE_MAX];
	pthread_mutex_t lock;
	pthread_cond_t answered;
	struct peer *peers;
	size_t nfiles;
};

struct ptc_near *ptc_near_new(const struct ptc_near_opts *opts)
{
	struct ptc_near *near = ptc_calloc(1, sizeof *near);
	struct ptc_error err = PTC_ERROR_INIT;

	if (!near || strlen(opts->socket) >= sizeof near->socket || ptc_near_machine(near->machine, &err)) {
		ptc_debug("agent", "no node is near: %s", err.text);
		ptc_free(near);
		return NULL;
	}
	near->opts = (struct ptc_near_opts){ .channel = opts->channel, .arg = opts->arg };
	strcpy(near->socket, opts->socket);
	ptc_require(!pthread_mutex_init(&near->lock, NULL));
	ptc_require(!pthread_cond_init(&near->answered, NULL));
	return near;
}

static void entry_free(struct ptc_near *near, struct entry *e)
{
	near->nfiles--;
	close(e->file.fd);
	ptc_free(e);
}

struct ptc_near *ptc_near_free(struct ptc_near *near)
{
	struct peer *p;
	struct entry *e;

	if (!near)
		return NULL;
	while ((p = near->peers)) {
		near->peers = p->next;
		while ((e = p->files)) {
			p->files = e->next;
			entry_free(near, e);
		}
		ptc_free(p);
	}
	pthread_cond_destroy(&near->answered);
	pthread_mutex_destroy(&near->lock);
	ptc_free(near);
	return NULL;
}

/* ---- with the lock ---- */

static struct peer *peer_locked(struct ptc_near *near, const char *node)
{
	struct peer *p = near->peers;

	while (p && strcmp(p->node, node) != 0)
		p = p->next;
	if (p || strlen(node) >= sizeof p->node)
		return p;
	p = ptc_calloc(1, sizeof *p);
	if (!p)
		return NULL;
	strcpy(p->node, node);
	p->next = near->peers;
	near->peers = p;
	return p;
}

static struct entry *entry_locked(const struct peer *p, const char *uuid)
{
	struct entry *e = p->files;

	while (e && (e->stale || strcmp(e->uuid, uuid) != 0))
		e = e->next;
	if (!e)
		return NULL;
	e->refs++;
	e->used_ns = ptc_sys_now_ns();
	return e;
}

/* Closes files that nobody uses and that are stale or have not been used since. */
static void sweep_locked(struct ptc_near *near, int64_t since_ns)
{
	for (struct peer *p = near->peers; p; p = p->next)
		for (struct entry **at = &p->files, *e; (e = *at);) {
			if (e->refs || (!e->stale && e->used_ns >= since_ns)) {
				at = &e->next;
				continue;
			}
			*at = e->next;
			entry_free(near, e);
		}
}

/* Takes the file over. NULL: no room. */
static struct entry *keep_locked(struct ptc_near *near, struct peer *p, const char *uuid,
				 const struct ptc_near_file *file)
{
	const int64_t now = ptc_sys_now_ns();
	struct entry *e;

	sweep_locked(near, now - IDLE_NS);
	if (near->nfiles >= FILES_MAX)
		sweep_locked(near, INT64_MAX);
	e = near->nfiles < FILES_MAX ? ptc_calloc(1, sizeof *e) : NULL;
	if (!e) {
		close(file->fd);
		return NULL;
	}
	*e = (struct entry){ .file = *file, .next = p->files, .refs = 1, .used_ns = now };
	snprintf(e->uuid, sizeof e->uuid, "%s", uuid);
	p->files = e;
	near->nfiles++;
	return e;
}

/* ---- asking ---- */

/* A node that has no such table may have it soon. */
static void note_locked(struct peer *p, const char *socket, int rc, const struct ptc_error *err)
{
	const bool here = *socket;

	p->not_before_ns = ptc_sys_now_ns() + (rc == PTC_ENOTFOUND && here ? 0 : rc || here ? AGAIN_NS : ELSEWHERE_NS);
	p->socket[0] = '\0';
	if (!rc || rc == PTC_ENOTFOUND) {
		strcpy(p->socket, socket);
		p->failed = p->failed && rc;
		return;
	}
	if (!here) {
		ptc_debug("agent", "node %s does not say where it runs: %s", p->node, err->text);
		return;
	}
	ptc_count_add(PTC_COUNT_NEAR_FAILURES, 1);
	if (!p->failed)
		ptc_warn("agent", "node %s runs on this machine, but its bytes come over the network: %s", p->node,
			 err->text);
	p->failed = true;
}

/* Without the lock. socket: what is known, and what is known then. table NULL: no file is asked for. */
static int ask(const struct ptc_near *near, const char *node, const char *address, const struct ptc_table_key *table,
	       char socket[NEAR_SOCKET_BYTES], struct ptc_near_file *ret_file, struct ptc_error *err)
{
	struct ptc_rpc_channel *channel;
	int rc = 0;

	if (!*socket) {
		rc = near->opts.channel(near->opts.arg, node, address, true, 0, &channel, err);
		if (rc == 0)
			rc = ptc_near_ask_machine(channel, near->machine, socket, err);
	}
	return rc || !*socket || !table ? rc : ptc_near_ask_file(socket, table, ret_file, err);
}

static struct entry *ask_locked(struct ptc_near *near, struct peer *p, const char *address,
				const struct ptc_table_key *table)
{
	struct ptc_near_file file = { .fd = -1 };
	struct ptc_error err = PTC_ERROR_INIT;
	char socket[NEAR_SOCKET_BYTES];
	int rc;

	p->asking = true;
	strcpy(socket, p->socket);
	pthread_mutex_unlock(&near->lock);
	rc = ask(near, p->node, address, table, socket, &file, &err);
	pthread_mutex_lock(&near->lock);
	p->asking = false;
	pthread_cond_broadcast(&near->answered);
	if (!rc && *socket && (!table || file.fd >= 0)) {
		p->failed = p->failed && !table;
		strcpy(p->socket, socket);
		return table ? keep_locked(near, p, table->uuid, &file) : NULL;
	}
	note_locked(p, socket, rc, &err);
	return NULL;
}

struct ptc_near_file *ptc_near_file_get(struct ptc_near *near, const char *node, const char *address,
					const struct ptc_table_key *table)
{
	struct entry *e = NULL;
	struct peer *p;

	if (!near)
		return NULL;
	pthread_mutex_lock(&near->lock);
	p = peer_locked(near, node);
	while (p && !(e = entry_locked(p, table->uuid)) && p->asking)
		pthread_cond_wait(&near->answered, &near->lock);
	if (p && !e && ptc_sys_now_ns() >= p->not_before_ns)
		e = ask_locked(near, p, address, table);
	pthread_mutex_unlock(&near->lock);
	return e ? &e->file : NULL;
}

bool ptc_near_socket(struct ptc_near *near, const char *node, const char *address, char ret[PTC_NEAR_SOCKET_BYTES])
{
	struct peer *p;

	if (!near)
		return false;
	*ret = '\0';
	pthread_mutex_lock(&near->lock);
	p = peer_locked(near, node);
	while (p && p->asking)
		pthread_cond_wait(&near->answered, &near->lock);
	if (p && !*p->socket && ptc_sys_now_ns() >= p->not_before_ns)
		ask_locked(near, p, address, NULL);
	if (p)
		strcpy(ret, p->socket);
	pthread_mutex_unlock(&near->lock);
	return *ret;
}

void ptc_near_file_put(struct ptc_near *near, struct ptc_near_file *file, bool stale)
{
	struct entry *e = (struct entry *)file;

	if (!file)
		return;
	pthread_mutex_lock(&near->lock);
	e->refs--;
	e->stale = e->stale || stale;
	pthread_mutex_unlock(&near->lock);
}

/* ---- the asked side ---- */

int ptc_agent_on_near(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_agent *agent = arg;
	Ptc__V1__NearReply reply;
	ProtobufCMessage *msg = NULL;
	int rc = ptc_agent_request(call, &ptc__v1__near_request__descriptor, &msg, err);

	if (rc == 0)
		rc = ptc_pb_version(((const Ptc__V1__NearRequest *)msg)->version, err);
	ptc_pb_free(msg);
	if (rc)
		return rc;
	ptc__v1__near_reply__init(&reply);
	reply.version = PTC_WIRE_VERSION;
	if (agent->near && !ptc_fault("agent.near.machine")) {
		reply.machine = agent->near->machine;
		reply.socket = agent->near->socket;
	}
	return ptc_agent_reply(call, &reply.base, err);
}
