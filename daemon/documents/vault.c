/* SPDX-License-Identifier: Apache-2.0 */
/* Encrypts descriptions of jobs in etcd, with the key of the cluster, which only nodes keep. With this key nodes seal
 * descriptions of jobs, because a description has the job's environment, which may hold tokens. So a person who reads
 * etcd, or a backup of etcd, cannot read the descriptions.
 *
 * /ptc/key names the key and does not hold it: {version, id}. Every node keeps a copy in state_dir/key, mode 0600.
 * Happy path: the first node makes a key, keeps it and then names it in etcd. A node that lacks the named key asks the
 * nodes that are up (Peer/Key), and keeps the key that it gets.
 *
 * Failure modes: no node that is up has the key (PTC_ECOORD; asked again when it is needed, at most once a second). Two
 * nodes make a key at the same time: etcd takes one name, and the other node asks for that key. A crash between file
 * and name: the file's key is named at the next start. A file that is no key: PTC_ESTATE, and the node does not start.
 * Every node that had the key is gone for good: docs/install.md. */
#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/sys/sys.h"
#include "daemon/cluster/marks/mark_docs.h"
#include "daemon/documents/documents.h"
#include "rpc/pb/pbcall.h"
#include "rpc/trust/seal.h"

#include "ptc.pb-c.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define KEY_KEY   "/ptc/key"
#define NODES     "/ptc/nodes/"
#define FILE_HEAD "ptc-key 1 " /* then 64 hex digits and a newline */
#define FILE_MAX  256
#define ASK_MS    2000
#define ASK_NODES 8 /* of those that are up; each node that has joined has the key */
#define RETRY_NS  INT64_C(1000000000)
#define ATTEMPTS  3                         /* the name appears, or goes, while we look */
#define SOON_NS   (3 * INT64_C(1000000000)) /* one that has named its key, or asks for it itself, has it within */
#define SOON_MS   50

struct ptc_vault {
	struct ptc_vault_opts o;
	char *path;
	pthread_mutex_t lock;
	struct ptc_seal_key key; /* under lock until `ready`, then it never changes */
	bool have;               /* under lock: key holds one, maybe not the cluster's */
	int64_t next_ns;         /* under lock: when to ask again */
	struct ptc_error why;    /* under lock: of the last time */
	atomic_bool ready;       /* key is the cluster's */
};

/* ---- the file ---------------------------------------------------------------------- */

static int key_from_text(const char *text, struct ptc_seal_key *ret_key)
{
	const char *hex = text + strlen(FILE_HEAD);

	if (strncmp(text, FILE_HEAD, strlen(FILE_HEAD)) != 0 ||
	    strspn(hex, "0123456789abcdef") != 2 * PTC_SEAL_KEY_BYTES ||
	    strcmp(hex + 2 * PTC_SEAL_KEY_BYTES, "\n") != 0)
		return PTC_ESTATE;
	for (size_t i = 0; i < PTC_SEAL_KEY_BYTES; i++) {
		unsigned v = 0;

		sscanf(hex + 2 * i, "%2x", &v);
		ret_key->bytes[i] = (uint8_t)v;
	}
	return ptc_seal_key_identify(ret_key);
}

static int read_key(struct ptc_vault *v, struct ptc_error *err)
{
	char *text = NULL;
	size_t len = 0;
	int rc = ptc_sys_read_file(v->path, FILE_MAX, &text, &len, err);

	if (rc == PTC_ENOTFOUND)
		return 0;
	if (rc)
		return rc;
	rc = key_from_text(text ? text : "", &v->key);
	if (text)
		explicit_bzero(text, len);
	ptc_free(text);
	if (rc == PTC_ESTATE)
		return ptc_error_set(
			err, rc,
			"%s is not a cluster's key; remove the file, and this node asks another node for the key",
			v->path);
	v->have = rc == 0;
	return rc ? ptc_error_set(err, rc, "out of memory") : 0;
}

static int write_key(const char *path, const struct ptc_seal_key *key, struct ptc_error *err)
{
	char text[sizeof FILE_HEAD + 2 * PTC_SEAL_KEY_BYTES + 1];
	size_t n = (size_t)snprintf(text, sizeof text, FILE_HEAD);
	int rc;

	for (size_t i = 0; i < PTC_SEAL_KEY_BYTES; i++)
		n += (size_t)snprintf(text + n, sizeof text - n, "%02x", key->bytes[i]);
	text[n++] = '\n';
	rc = ptc_sys_write_file(path, text, n, 0600, "vault.key", err);
	explicit_bzero(text, sizeof text);
	return rc;
}

/* What was sealed with the one before may still be wanted by somebody: it is kept beside. */
static int replace_key(struct ptc_vault *v, const struct ptc_seal_key *key, struct ptc_error *err)
{
	ptc_auto_free char *beside = v->have ? ptc_asprintf("%s.%s", v->path, v->key.id) : NULL;
	int rc = 0;

	if (v->have && strcmp(v->key.id, key->id) == 0)
		return 0;
	if (v->have)
		rc = beside ? write_key(beside, &v->key, err) : ptc_nomem(err);
	return rc ? rc : write_key(v->path, key, err);
}

/* ---- the name in etcd ---------------------------------------------------------------- */

/* *ret_id "": there is none. */
static int named(struct ptc_vault *v, char ret_id[PTC_SEAL_ID_TEXT], struct ptc_error *err)
{
	struct ptc_etcd_kvs kvs = { 0 };
	struct ptc_key_doc doc = { .id = "" };
	int rc = ptc_etcd_get(ptc_cluster_etcd(v->o.cluster), KEY_KEY, false, 1, &kvs, err);

	if (rc == 0 && kvs.n)
		rc = ptc_key_doc_decode(kvs.kv[0].value, kvs.kv[0].len, &doc, err);
	ptc_etcd_kvs_done(&kvs);
	memcpy(ret_id, doc.id, PTC_SEAL_ID_TEXT);
	return rc;
}

static int name_it(struct ptc_vault *v, const char id[PTC_SEAL_ID_TEXT], struct ptc_error *err)
{
	struct ptc_key_doc doc;
	ptc_auto_free char *json = NULL;
	bool ok; /* or somebody else's is there, which is looked at next */

	memcpy(doc.id, id, sizeof doc.id);
	json = ptc_key_doc_encode(&doc);
	if (!json)
		return ptc_nomem(err);
	return ptc_etcd_txn(ptc_cluster_etcd(v->o.cluster),
			    &(struct ptc_etcd_compare){ KEY_KEY, PTC_ETCD_CREATE_REV, 0 }, 1,
			    &(struct ptc_etcd_op){ .key = KEY_KEY, .value = json, .len = strlen(json) }, 1, "etcd.key",
			    &ok, NULL, err);
}

/* ---- from and to other nodes ------------------------------------------------------------ */

static int ask_one(struct ptc_vault *v, const struct ptc_node_doc *n, const char *id, struct ptc_seal_key *ret_key,
		   struct ptc_error *err)
{
	Ptc__V1__ListRequest request = PTC__V1__LIST_REQUEST__INIT;
	Ptc__V1__KeyReply *reply;
	struct ptc_rpc_channel *channel;
	int rc = ptc_channels_get(v->o.channels, n->name, n->address, false, 0, &channel, err);

	request.version = PTC_WIRE_VERSION;
	if (rc == 0)
		rc = ptc_pb_unary(channel, "/ptc.v1.Peer/Key", &request.base, ASK_MS, NULL, 0,
				  &ptc__v1__key_reply__descriptor, (ProtobufCMessage **)&reply, err);
	if (rc)
		return rc;
	if (reply->key.len == PTC_SEAL_KEY_BYTES) {
		memcpy(ret_key->bytes, reply->key.data, PTC_SEAL_KEY_BYTES);
		explicit_bzero(reply->key.data, reply->key.len);
		rc = ptc_seal_key_identify(ret_key);
	}
	if (rc == 0 && (reply->key.len != PTC_SEAL_KEY_BYTES || strcmp(ret_key->id, id) != 0))
		rc = ptc_error_set(err, PTC_EPEER, "node %s has another cluster's key", n->name);
	ptc_pb_free(&reply->base);
	return rc;
}

/* Every node that is up, until one has it. *ret_soon: one of them does not have it yet. */
static int ask_all(struct ptc_vault *v, const char *id, struct ptc_seal_key *ret_key, bool *ret_soon,
		   struct ptc_error *err)
{
	struct ptc_error last = PTC_ERROR_INIT;
	struct ptc_etcd_kvs kvs = { 0 };
	size_t asked = 0;
	int rc = ptc_etcd_get(ptc_cluster_etcd(v->o.cluster), NODES, true, PTC_MAX_NODES, &kvs, err);
	bool found = false;

	*ret_soon = false;
	for (size_t i = 0; rc == 0 && i < kvs.n && !found && asked < ASK_NODES; i++) {
		struct ptc_node_doc n;

		if (ptc_node_doc_decode(kvs.kv[i].value, kvs.kv[i].len, &n, NULL) != 0 ||
		    strcmp(n.name, v->o.node) == 0)
			continue;
		asked++;
		found = ask_one(v, &n, id, ret_key, &last) == 0;
		*ret_soon |= !found && last.code == PTC_ENOTFOUND;
	}
	ptc_etcd_kvs_done(&kvs);
	if (rc || found)
		return rc;
	return ptc_error_set(err, PTC_ECOORD,
			     "this node does not have the cluster's key %s, and none of %zu other nodes gave "
			     "it%s%.100s; it can neither read nor write descriptions of jobs",
			     id, asked, last.code ? ": " : "", last.text);
}

/* Nodes that start together ask while the one that made the key is about to keep it. */
static int ask(struct ptc_vault *v, const char *id, struct ptc_seal_key *ret_key, struct ptc_error *err)
{
	const int64_t until = ptc_sys_now_ns() + SOON_NS;
	bool soon;
	int rc = ask_all(v, id, ret_key, &soon, err);

	while (rc && soon && ptc_sys_now_ns() < until) {
		nanosleep(&(struct timespec){ .tv_nsec = SOON_MS * 1000000L }, NULL);
		rc = ask_all(v, id, ret_key, &soon, err);
	}
	return rc;
}

static int serve_key(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_vault *v = arg;
	Ptc__V1__KeyReply reply = PTC__V1__KEY_REPLY__INIT;
	ProtobufCMessage *request;
	int rc = ptc_pb_call_recv(call, &ptc__v1__list_request__descriptor, &request, err);

	if (rc)
		return rc;
	ptc_pb_free(request);
	/* without the lock: who holds it may be asking the one who asks us */
	if (!atomic_load(&v->ready))
		return ptc_error_set(err, PTC_ENOTFOUND, "node %s does not have the cluster's key yet", v->o.node);
	reply.version = PTC_WIRE_VERSION;
	reply.id = v->key.id;
	reply.key.data = v->key.bytes;
	reply.key.len = sizeof v->key.bytes;
	return ptc_pb_call_send(call, &reply.base, err);
}

int ptc_vault_register(struct ptc_vault *v, struct ptc_rpc_server *peers, struct ptc_error *err)
{
	return ptc_rpc_server_method(peers, "/ptc.v1.Peer/Key", 1u << PTC_ROLE_NODE, serve_key, v, err);
}

/* ---- joining ---------------------------------------------------------------------------- */

static int join_locked(struct ptc_vault *v, struct ptc_error *err)
{
	for (int i = 0; i < ATTEMPTS; i++) {
		struct ptc_seal_key key;
		char id[PTC_SEAL_ID_TEXT];
		int rc = named(v, id, err);

		if (rc)
			return rc;
		if (v->have && strcmp(v->key.id, id) == 0) {
			atomic_store(&v->ready, true);
			return 0;
		}
		if (id[0])
			rc = ask(v, id, &key, err);
		else if (!v->have)
			rc = ptc_seal_key_new(&key, err);
		else
			key = v->key;
		if (rc == 0)
			rc = replace_key(v, &key, err); /* before it is named: a name without a key would be for ever */
		if (rc == 0) {
			v->key = key;
			v->have = true;
		}
		explicit_bzero(key.bytes, sizeof key.bytes);
		if (rc == 0 && !id[0])
			rc = name_it(v, v->key.id, err);
		if (rc)
			return rc;
	}
	return ptc_error_set(err, PTC_ECOORD, KEY_KEY " in etcd changes while it is looked at");
}

int ptc_vault_join(struct ptc_vault *v, struct ptc_error *err)
{
	int rc = 0;

	if (atomic_load(&v->ready))
		return 0;
	pthread_mutex_lock(&v->lock);
	if (!atomic_load(&v->ready)) {
		if (ptc_sys_now_ns() >= v->next_ns) {
			v->why = (struct ptc_error)PTC_ERROR_INIT;
			join_locked(v, &v->why);
			v->next_ns = ptc_sys_now_ns() + RETRY_NS;
		}
		rc = atomic_load(&v->ready) ? 0 : ptc_error_set(err, v->why.code, "%s", v->why.text);
	}
	pthread_mutex_unlock(&v->lock);
	return rc;
}

int ptc_vault_seal(struct ptc_vault *v, const char *uuid, const char *json, size_t len, char **ret_data,
		   size_t *ret_len, struct ptc_error *err)
{
	int rc = ptc_vault_join(v, err);

	return rc ? rc : ptc_seal(&v->key, uuid, json, len, ret_data, ret_len, err);
}

int ptc_vault_open(struct ptc_vault *v, const char *uuid, char *data, size_t len, char **ret_json, size_t *ret_len,
		   struct ptc_error *err)
{
	int rc;

	if (!ptc_seal_is(data, len)) {
		*ret_json = data;
		*ret_len = len;
		return 0;
	}
	/* with the node's own key first: etcd may not be there to name the cluster's */
	if (!atomic_load(&v->ready)) {
		pthread_mutex_lock(&v->lock);
		rc = v->have ? ptc_seal_open(&v->key, uuid, data, len, ret_json, ret_len, NULL) : PTC_ENOTFOUND;
		pthread_mutex_unlock(&v->lock);
		if (rc == 0) {
			ptc_free(data);
			return 0;
		}
	}
	rc = ptc_vault_join(v, err);
	if (rc == 0) {
		rc = ptc_seal_open(&v->key, uuid, data, len, ret_json, ret_len, err);
		if (rc)
			ptc_error_wrap(err, "the description of job %s in etcd", uuid);
	}
	ptc_free(data);
	return rc;
}

bool ptc_vault_key_id(struct ptc_vault *v, char ret_id[PTC_VAULT_ID])
{
	_Static_assert(PTC_VAULT_ID == PTC_SEAL_ID_TEXT && PTC_KEY_ID_TEXT == PTC_SEAL_ID_TEXT, "another length");
	pthread_mutex_lock(&v->lock);
	if (v->have)
		memcpy(ret_id, v->key.id, PTC_VAULT_ID);
	pthread_mutex_unlock(&v->lock);
	return v->have;
}

/* ---- life -------------------------------------------------------------------------------- */

int ptc_vault_new(const struct ptc_vault_opts *opts, struct ptc_vault **ret_vault, struct ptc_error *err)
{
	struct ptc_vault *v = ptc_calloc(1, sizeof *v);
	int rc;

	if (!v)
		return ptc_nomem(err);
	v->o = *opts;
	pthread_mutex_init(&v->lock, NULL);
	v->path = ptc_asprintf("%s/key", opts->state_dir);
	rc = v->path ? read_key(v, err) : ptc_nomem(err);
	if (rc) {
		ptc_vault_free(v);
		return rc;
	}
	*ret_vault = v;
	return 0;
}

struct ptc_vault *ptc_vault_free(struct ptc_vault *v)
{
	if (!v)
		return NULL;
	explicit_bzero(&v->key, sizeof v->key);
	pthread_mutex_destroy(&v->lock);
	ptc_free(v->path);
	ptc_free(v);
	return NULL;
}
