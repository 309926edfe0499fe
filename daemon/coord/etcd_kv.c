/* SPDX-License-Identifier: Apache-2.0 */
/* Reads of etcd's keys (paged, one revision) and writes (Put, DeleteRange, Txn).
 *
 * Happy path: a listing asks for pages that grow while replies stay small; a
 * write passes its fault points, is sent once, and its header's revision
 * comes back.
 *
 * Failure modes: the listing's revision compacted away (starts again), a page
 * too large for a message (asked for again, smaller), a value or Txn over our
 * limits (PTC_ELIMIT, nothing sent), an answer that was lost (outcome unknown). */
#include "daemon/coord/etcd_i.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/fault.h"
#include "base/limits.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define KEY_MAX_BYTES 1024
#define PAGE_MIN      48 /* times etcd's largest value (1.5 MiB) fits PTC_CONTROL_MESSAGE_MAX */
#define PAGE_MAX      1000
#define PAGE_SMALL    (2u << 20) /* a page below this lets the next one be twice as long */
#define LIST_RESTARTS 5

/* ---- helpers ----------------------------------------------------------- */

int ptc_etcd_prefix_end(const char *prefix, ProtobufCBinaryData *ret_end, struct ptc_error *err)
{
	size_t len = strlen(prefix);
	char *end;

	while (len > 0 && (uint8_t)prefix[len - 1] == 0xff)
		len--;
	if (len == 0) { /* no key is behind these: etcd writes "to the end" as one zero byte */
		end = ptc_calloc(1, 1);
		len = 1;
	} else {
		end = ptc_strndup(prefix, len);
		if (end)
			end[len - 1]++;
	}
	if (!end)
		return ptc_nomem(err);
	*ret_end = ptc_etcd_bytes(end, len);
	return 0;
}

static int check_key(const char *key, struct ptc_error *err)
{
	size_t len = strnlen(key, KEY_MAX_BYTES + 1);

	if (len == 0 || len > KEY_MAX_BYTES)
		return ptc_error_set(err, PTC_EINVAL, "an etcd key has 1 to %d bytes: \"%.60s\"", KEY_MAX_BYTES, key);
	return 0;
}

bool ptc_etcd_key_ok(const Ptc__Etcd__KeyValue *kv)
{
	return kv->key.len > 0 && !memchr(kv->key.data, '\0', kv->key.len);
}

int ptc_etcd_kv_copy(const Ptc__Etcd__KeyValue *from, struct ptc_etcd_kv *ret_kv, struct ptc_error *err)
{
	struct ptc_etcd_kv kv = {
		.len = from->value.len,
		.create_revision = from->create_revision,
		.mod_revision = from->mod_revision,
		.version = from->version,
		.lease = from->lease,
	};

	kv.key = ptc_malloc(from->key.len + 1);
	kv.value = ptc_malloc(from->value.len + 1);
	if (!kv.key || !kv.value) {
		ptc_etcd_kv_done(&kv);
		return ptc_nomem(err);
	}
	if (from->key.len)
		memcpy(kv.key, from->key.data, from->key.len);
	kv.key[from->key.len] = '\0';
	if (kv.len)
		memcpy(kv.value, from->value.data, kv.len);
	kv.value[kv.len] = '\0';
	*ret_kv = kv;
	return 0;
}

void ptc_etcd_kv_done(struct ptc_etcd_kv *kv)
{
	ptc_free(kv->key);
	ptc_free(kv->value);
	*kv = (struct ptc_etcd_kv){ 0 };
}

void ptc_etcd_kvs_done(struct ptc_etcd_kvs *kvs)
{
	if (!kvs)
		return;
	for (size_t i = 0; i < kvs->n; i++)
		ptc_etcd_kv_done(&kvs->kv[i]);
	ptc_free(kvs->kv);
	*kvs = (struct ptc_etcd_kvs){ 0 };
}

/* ---- listing ------------------------------------------------------------ */

struct cursor {
	ProtobufCBinaryData from, end; /* from is owned */
	int64_t revision;              /* 0 until the first page */
	int64_t limit, since;
	bool more, keys_only;
};

static int fetch_page(struct ptc_etcd *e, struct cursor *c, Ptc__Etcd__RangeResponse **ret_page, struct ptc_error *err)
{
	Ptc__Etcd__RangeRequest req = PTC__ETCD__RANGE_REQUEST__INIT;
	ProtobufCMessage *reply;
	int rc;

	for (;;) {
		req.key = c->from;
		req.range_end = c->end;
		req.limit = c->limit;
		req.revision = c->revision;
		req.keys_only = c->keys_only;
		req.min_mod_revision = c->since ? c->since + 1 : 0;
		rc = ptc_etcd_call(e, PTC_ETCD_REPEATABLE, "/etcdserverpb.KV/Range", &req.base,
				   &ptc__etcd__range_response__descriptor, 0, &reply, err);
		if (rc != PTC_ELIMIT || c->limit <= PAGE_MIN)
			break;
		c->limit = PAGE_MIN;
	}
	if (rc)
		return rc;
	*ret_page = (Ptc__Etcd__RangeResponse *)reply;
	return 0;
}

/* Hands the page's keys on and moves the cursor behind its last key. */
static int take_page(struct cursor *c, const Ptc__Etcd__RangeResponse *page, const struct ptc_etcd_lister *to,
		     struct ptc_error *err)
{
	size_t bytes = 0;
	int rc = 0;

	if (!page->header || page->header->revision <= 0)
		return ptc_error_set(err, PTC_EPEER, "etcd sent a listing without a revision");
	for (size_t i = 0; i < page->n_kvs && !rc; i++) {
		bytes += page->kvs[i]->key.len + page->kvs[i]->value.len;
		if (ptc_etcd_key_ok(page->kvs[i]))
			rc = to->key(to->arg, page->kvs[i], err);
	}
	if (rc)
		return rc;
	if (c->revision == 0)
		c->revision = page->header->revision;
	c->more = page->more && page->n_kvs > 0;
	if (c->more) {
		const ProtobufCBinaryData *last = &page->kvs[page->n_kvs - 1]->key;
		uint8_t *from = ptc_calloc(1, last->len + 1); /* last key + NUL: the next possible key */

		if (!from)
			return ptc_nomem(err);
		memcpy(from, last->data, last->len);
		ptc_free(c->from.data);
		c->from = ptc_etcd_bytes(from, last->len + 1);
	}
	if (bytes < PAGE_SMALL)
		c->limit = PTC_MIN(c->limit * 2, PAGE_MAX);
	return 0;
}

/* etcd's own words; the one place that knows them. */
static bool compacted(const struct ptc_error *err)
{
	return strstr(err->text, "compacted") != NULL;
}

static int list_once(struct ptc_etcd *e, struct cursor *c, const struct ptc_etcd_lister *to, struct ptc_error *err)
{
	Ptc__Etcd__RangeResponse *page;
	int rc;

	do {
		rc = fetch_page(e, c, &page, err);
		if (rc)
			return rc;
		rc = take_page(c, page, to, err);
		ptc_pb_free(&page->base);
	} while (!rc && c->more);
	return rc;
}

int ptc_etcd_list(struct ptc_etcd *e, const char *key, bool prefix, const struct ptc_etcd_lister *to,
		  int64_t *ret_revision, struct ptc_error *err)
{
	struct ptc_error why = PTC_ERROR_INIT;
	ProtobufCBinaryData end = { 0, NULL };
	int rc = prefix ? ptc_etcd_prefix_end(key, &end, err) : 0;

	if (rc)
		return rc;
	for (int i = 0; i <= LIST_RESTARTS; i++) {
		struct cursor c = { .end = end, .limit = PAGE_MIN, .since = to->since, .keys_only = to->keys_only };
		char *from = ptc_strdup(key);

		rc = from ? 0 : ptc_nomem(&why);
		c.from = ptc_etcd_bytes(from, strlen(key));
		if (!rc)
			rc = list_once(e, &c, to, &why);
		ptc_free(c.from.data);
		if (rc == 0)
			*ret_revision = c.revision;
		if (rc == 0 || c.revision == 0 || !compacted(&why))
			break;
		to->restart(to->arg);
	}
	ptc_free(end.data);
	return rc ? ptc_error_set(err, rc, "list %s: %s", key, why.text) : 0;
}

struct collect {
	struct ptc_etcd_kvs kvs;
	size_t cap, max;
};

static int collect_key(void *arg, const Ptc__Etcd__KeyValue *kv, struct ptc_error *err)
{
	struct collect *c = arg;
	int rc;

	if (c->kvs.n == c->max)
		return ptc_error_set(err, PTC_ELIMIT, "more than %zu keys", c->max);
	if (!PTC_ROOM(c->kvs.kv, c->kvs.n + 1, c->cap))
		return ptc_nomem(err);
	rc = ptc_etcd_kv_copy(kv, &c->kvs.kv[c->kvs.n], err);
	if (rc == 0)
		c->kvs.n++;
	return rc;
}

static void collect_restart(void *arg)
{
	struct collect *c = arg;

	ptc_etcd_kvs_done(&c->kvs);
	c->cap = 0;
}

/* like: which keys, and how much of them. */
static int get(struct ptc_etcd *e, const char *key, bool prefix, struct ptc_etcd_lister like, size_t max_keys,
	       struct ptc_etcd_kvs *ret_kvs, struct ptc_error *err)
{
	struct collect c = { .max = max_keys ? max_keys : PTC_ETCD_KEYS_MAX };
	int rc = check_key(key, err);

	like.key = collect_key;
	like.restart = collect_restart;
	like.arg = &c;
	if (!rc)
		rc = ptc_etcd_list(e, key, prefix, &like, &c.kvs.revision, err);
	if (rc) {
		ptc_etcd_kvs_done(&c.kvs);
		return rc;
	}
	*ret_kvs = c.kvs;
	return 0;
}

int ptc_etcd_get(struct ptc_etcd *e, const char *key, bool prefix, size_t max_keys, struct ptc_etcd_kvs *ret_kvs,
		 struct ptc_error *err)
{
	return get(e, key, prefix, (struct ptc_etcd_lister){ 0 }, max_keys, ret_kvs, err);
}

int ptc_etcd_get_since(struct ptc_etcd *e, const char *prefix, int64_t since, struct ptc_etcd_kvs *ret_kvs,
		       struct ptc_error *err)
{
	return get(e, prefix, true, (struct ptc_etcd_lister){ .since = since }, 0, ret_kvs, err);
}

int ptc_etcd_get_keys(struct ptc_etcd *e, const char *prefix, struct ptc_etcd_kvs *ret_kvs, struct ptc_error *err)
{
	return get(e, prefix, true, (struct ptc_etcd_lister){ .keys_only = true }, 0, ret_kvs, err);
}

int ptc_etcd_count(struct ptc_etcd *e, const char *prefix, size_t *ret_n, struct ptc_error *err)
{
	Ptc__Etcd__RangeRequest req = PTC__ETCD__RANGE_REQUEST__INIT;
	const Ptc__Etcd__RangeResponse *page;
	ProtobufCMessage *reply;
	int rc = check_key(prefix, err);

	if (rc == 0)
		rc = ptc_etcd_prefix_end(prefix, &req.range_end, err);
	if (rc)
		return rc;
	req.key = ptc_etcd_bytes(prefix, strlen(prefix));
	req.count_only = true;
	rc = ptc_etcd_call(e, PTC_ETCD_REPEATABLE, "/etcdserverpb.KV/Range", &req.base,
			   &ptc__etcd__range_response__descriptor, 0, &reply, err);
	ptc_free(req.range_end.data);
	if (rc)
		return rc;
	page = (const Ptc__Etcd__RangeResponse *)reply;
	*ret_n = page->count > 0 ? (size_t)page->count : 0;
	ptc_pb_free(reply);
	return 0;
}

/* ---- writes --------------------------------------------------------------- */

/* One RequestOp with the memory its parts need, so that a Txn is one array. */
struct op_store {
	Ptc__Etcd__RequestOp op;
	union {
		Ptc__Etcd__PutRequest put;
		Ptc__Etcd__DeleteRangeRequest del;
	};
};

static int fill_op(struct op_store *s, const struct ptc_etcd_op *op, struct ptc_error *err)
{
	int rc = check_key(op->key, err);

	if (rc)
		return rc;
	ptc__etcd__request_op__init(&s->op);
	if (!op->value) {
		ptc__etcd__delete_range_request__init(&s->del);
		s->op.request_case = PTC__ETCD__REQUEST_OP__REQUEST_REQUEST_DELETE_RANGE;
		s->op.request_delete_range = &s->del;
		s->del.key = ptc_etcd_bytes(op->key, strlen(op->key));
		if (op->until) {
			s->del.range_end = ptc_etcd_bytes(ptc_strdup(op->until), strlen(op->until));
			return s->del.range_end.data ? 0 : ptc_nomem(err);
		}
		return op->prefix ? ptc_etcd_prefix_end(op->key, &s->del.range_end, err) : 0;
	}
	if (op->len > PTC_ETCD_VALUE_MAX)
		return ptc_error_set(err, PTC_ELIMIT, "%s: a value of %zu bytes; at most %u go into etcd", op->key,
				     op->len, PTC_ETCD_VALUE_MAX);
	if (op->prefix)
		return ptc_error_set(err, PTC_EINVAL, "%s: a put must name one key, not a prefix", op->key);
	ptc__etcd__put_request__init(&s->put);
	s->op.request_case = PTC__ETCD__REQUEST_OP__REQUEST_REQUEST_PUT;
	s->op.request_put = &s->put;
	s->put.key = ptc_etcd_bytes(op->key, strlen(op->key));
	s->put.value = ptc_etcd_bytes(op->value, op->len);
	s->put.lease = op->lease;
	return 0;
}

static void op_done(struct op_store *s)
{
	if (s->op.request_case == PTC__ETCD__REQUEST_OP__REQUEST_REQUEST_DELETE_RANGE)
		ptc_free(s->del.range_end.data);
}

static int fill_compare(Ptc__Etcd__Compare *to, const struct ptc_etcd_compare *from, struct ptc_error *err)
{
	int rc = 0;

	ptc__etcd__compare__init(to);
	to->result = PTC__ETCD__COMPARE__COMPARE_RESULT__EQUAL;
	to->key = ptc_etcd_bytes(from->key, strlen(from->key));
	switch (from->target) {
	case PTC_ETCD_CREATE_REV:
		to->target = PTC__ETCD__COMPARE__COMPARE_TARGET__CREATE;
		to->target_union_case = PTC__ETCD__COMPARE__TARGET_UNION_CREATE_REVISION;
		to->create_revision = from->equal;
		break;
	case PTC_ETCD_MOD_REV:
		to->target = PTC__ETCD__COMPARE__COMPARE_TARGET__MOD;
		to->target_union_case = PTC__ETCD__COMPARE__TARGET_UNION_MOD_REVISION;
		to->mod_revision = from->equal;
		break;
	case PTC_ETCD_VERSION:
		to->target = PTC__ETCD__COMPARE__COMPARE_TARGET__VERSION;
		to->target_union_case = PTC__ETCD__COMPARE__TARGET_UNION_VERSION;
		to->version = from->equal;
		break;
	case PTC_ETCD_NONE_AFTER:
		to->result = PTC__ETCD__COMPARE__COMPARE_RESULT__LESS;
		to->target = PTC__ETCD__COMPARE__COMPARE_TARGET__CREATE;
		to->target_union_case = PTC__ETCD__COMPARE__TARGET_UNION_CREATE_REVISION;
		to->create_revision = from->equal + 1;
		rc = ptc_etcd_prefix_end(from->key, &to->range_end, err);
		break;
	}
	return rc ? rc : check_key(from->key, err);
}

/* The arrays a TxnRequest points into. */
struct txn {
	Ptc__Etcd__Compare cmp[PTC_ETCD_TXN_OPS_MAX], *pcmp[PTC_ETCD_TXN_OPS_MAX];
	struct op_store op[PTC_ETCD_TXN_OPS_MAX];
	Ptc__Etcd__RequestOp *pop[PTC_ETCD_TXN_OPS_MAX];
	size_t ncmp, nops;
};

static int txn_fill(struct txn *t, const struct ptc_etcd_compare *cmp, size_t ncmp, const struct ptc_etcd_op *ops,
		    size_t nops, struct ptc_error *err)
{
	int rc = 0;

	if (ncmp > PTC_ETCD_TXN_OPS_MAX || nops > PTC_ETCD_TXN_OPS_MAX)
		return ptc_error_set(
			err, PTC_ELIMIT,
			"an etcd transaction has %zu compares and %zu operations; at most %d of each are allowed", ncmp,
			nops, PTC_ETCD_TXN_OPS_MAX);
	for (; t->ncmp < ncmp && !rc; t->ncmp++) {
		t->pcmp[t->ncmp] = &t->cmp[t->ncmp];
		rc = fill_compare(&t->cmp[t->ncmp], &cmp[t->ncmp], err);
	}
	for (; t->nops < nops && !rc; t->nops++) {
		t->pop[t->nops] = &t->op[t->nops].op;
		rc = fill_op(&t->op[t->nops], &ops[t->nops], err);
	}
	return rc;
}

static bool at_point(const char *point, const char *when)
{
	char name[96];

	if (!ptc_fault_armed)
		return false;
	snprintf(name, sizeof name, "%s.%s", point, when);
	return ptc_fault_hit(name);
}

/* The one place through which every durable effect in etcd goes. */
static int effect(struct ptc_etcd *e, const char *point, const char *method, const ProtobufCMessage *request,
		  const ProtobufCMessageDescriptor *reply_type, ProtobufCMessage **ret_reply, struct ptc_error *err)
{
	ProtobufCMessage *reply;
	int rc;

	if (at_point(point, "before"))
		return ptc_error_set(err, PTC_ECOORD, "nothing was sent: fault point %s.before", point);
	rc = ptc_etcd_call(e, PTC_ETCD_ONCE, method, request, reply_type, 0, &reply, err);
	if (rc)
		return rc;
	if (at_point(point, "after")) {
		ptc_pb_free(reply);
		return ptc_error_set(err, PTC_ECOORD, "outcome unknown, read it back: fault point %s.after", point);
	}
	*ret_reply = reply;
	return 0;
}

int ptc_etcd_txn(struct ptc_etcd *e, const struct ptc_etcd_compare *cmp, size_t ncmp, const struct ptc_etcd_op *ops,
		 size_t nops, const char *point, bool *ret_succeeded, int64_t *ret_revision, struct ptc_error *err)
{
	Ptc__Etcd__TxnRequest req = PTC__ETCD__TXN_REQUEST__INIT;
	struct txn *t = ptc_calloc(1, sizeof *t);
	ProtobufCMessage *reply = NULL;
	int rc;

	if (!t)
		return ptc_nomem(err);
	rc = txn_fill(t, cmp, ncmp, ops, nops, err);
	req.n_compare = t->ncmp;
	req.compare = t->pcmp;
	req.n_success = t->nops;
	req.success = t->pop;
	if (!rc)
		rc = effect(e, point ? point : "etcd.txn", "/etcdserverpb.KV/Txn", &req.base,
			    &ptc__etcd__txn_response__descriptor, &reply, err);
	if (!rc) {
		const Ptc__Etcd__TxnResponse *r = (const Ptc__Etcd__TxnResponse *)reply;

		*ret_succeeded = r->succeeded;
		if (ret_revision)
			*ret_revision = r->header ? r->header->revision : 0;
	}
	ptc_pb_free(reply);
	for (size_t i = 0; i < t->ncmp; i++)
		ptc_free(t->cmp[i].range_end.data);
	for (size_t i = 0; i < t->nops; i++)
		op_done(&t->op[i]);
	ptc_free(t);
	return rc;
}

int ptc_etcd_put(struct ptc_etcd *e, const char *key, const void *value, size_t len, int64_t lease, const char *point,
		 struct ptc_error *err)
{
	struct ptc_etcd_op op = { .key = key, .value = value ? value : "", .len = len, .lease = lease };
	struct op_store s = { 0 };
	ProtobufCMessage *reply = NULL;
	int rc = fill_op(&s, &op, err);

	if (!rc)
		rc = effect(e, point ? point : "etcd.put", "/etcdserverpb.KV/Put", &s.put.base,
			    &ptc__etcd__put_response__descriptor, &reply, err);
	ptc_pb_free(reply);
	return rc;
}

int ptc_etcd_delete(struct ptc_etcd *e, const char *key, bool prefix, const char *point, struct ptc_error *err)
{
	struct ptc_etcd_op op = { .key = key, .prefix = prefix };
	struct op_store s = { 0 };
	ProtobufCMessage *reply = NULL;
	int rc = fill_op(&s, &op, err);

	if (!rc)
		rc = effect(e, point ? point : "etcd.delete", "/etcdserverpb.KV/DeleteRange", &s.del.base,
			    &ptc__etcd__delete_range_response__descriptor, &reply, err);
	ptc_pb_free(reply);
	op_done(&s);
	return rc;
}
