/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster's profile in etcd: a file that a person has stored, and the measured links, each with its date. Happy
 * path: the profile is read, one part of it is replaced, and it is written back. Failure: an impossible profile, named
 * by its line; etcd is unreachable. */
#include "daemon/planning/remembered.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/units.h"
#include "base/sys/sys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX  (256u << 10)
#define VALUE_MAX PTC_ETCD_VALUE_MAX
#define ATTEMPTS  8

/* text NULL: there is none. PTC_EINVAL: it is no profile. */
static int parse(const char *text, struct ptc_profile_doc *ret, struct ptc_error *err)
{
	int rc;

	if (!text) {
		*ret = (struct ptc_profile_doc){ 0 };
		return 0;
	}
	rc = ptc_profile_doc_decode(PTC_PROFILE_KEY, text, ret, NULL);
	if (rc == PTC_ENOMEM)
		return ptc_nomem(err);
	if (rc)
		return ptc_error_set(err, PTC_EINVAL,
				     "what etcd has at " PTC_PROFILE_KEY
				     " is not a profile; `ptcctl profile -f FILE` replaces it");
	return 0;
}

int ptc_planning_profile_show(struct ptc_planning *p, struct ptc_profile_doc *ret, struct ptc_error *err)
{
	char *text = ptc_planning_profile(p);
	int rc = parse(text, ret, err);

	ptc_free(text);
	return rc;
}

static int check(const char *profile, struct ptc_error *err)
{
	struct ptc_plan_profile p;
	struct ptc_doc doc;
	int rc;

	if (strlen(profile) > TEXT_MAX)
		return ptc_error_set(err, PTC_ELIMIT, "a profile has at most %u bytes", TEXT_MAX);
	rc = ptc_doc_from_yaml("profile", profile, strlen(profile), &doc, err);
	if (rc)
		return rc;
	rc = ptc_plan_profile_read(&doc, &p, err);
	if (rc == 0)
		ptc_plan_profile_done(&p);
	ptc_doc_done(&doc);
	return rc;
}

/* Written only if the profile is still of that revision. *ret_done false: somebody else has changed it meanwhile. */
static int put(struct ptc_planning *p, const struct ptc_profile_doc *doc, int64_t revision, bool *ret_done,
	       struct ptc_error *err)
{
	struct ptc_etcd_compare same = { PTC_PROFILE_KEY, PTC_ETCD_MOD_REV, revision };
	char *text = ptc_profile_doc_encode(doc, NULL, NULL);
	struct ptc_etcd_op op = { .key = PTC_PROFILE_KEY, .value = text };
	int rc;

	if (!text)
		return ptc_nomem(err);
	op.len = strlen(text);
	if (op.len > VALUE_MAX)
		rc = ptc_error_set(err, PTC_ELIMIT, "the profile with its links has %zu bytes, at most %u are kept",
				   op.len, VALUE_MAX);
	else
		rc = ptc_etcd_txn(ptc_planning_etcd(p), &same, 1, &op, 1, "etcd.profile", ret_done, NULL, err);
	ptc_free(text);
	return rc;
}

/* What is done to the profile, once more if somebody else has written it meanwhile. fn: changes the document, and says
 * in *ret_write whether it is to be written at all. */
static int update(struct ptc_planning *p, bool replaces,
		  int (*fn)(void *arg, struct ptc_profile_doc *doc, bool *ret_write, struct ptc_error *err), void *arg,
		  struct ptc_profile_doc *ret, struct ptc_error *err)
{
	struct ptc_profile_doc doc = { 0 };
	bool done = false;
	int rc = 0;

	for (int i = 0; i < ATTEMPTS && rc == 0 && !done; i++) {
		char *text = NULL;
		int64_t revision = 0;
		bool write = true;

		ptc_profile_doc_done(&doc);
		doc = (struct ptc_profile_doc){ 0 };
		rc = ptc_planning_profile_now(p, &text, &revision, err);
		if (rc == 0)
			rc = parse(text, &doc, err);
		if (rc == PTC_EINVAL && replaces) /* by an empty one */
			rc = 0;
		ptc_free(text);
		if (rc == 0)
			rc = fn(arg, &doc, &write, err);
		if (rc == 0 && write)
			rc = put(p, &doc, revision, &done, err);
		done |= !write;
	}
	if (rc == 0 && !done)
		rc = ptc_error_set(err, PTC_ESTATE, "others changed the profile %d times meanwhile; try again",
				   ATTEMPTS);
	if (rc) {
		ptc_profile_doc_done(&doc);
		return rc;
	}
	*ret = doc;
	return 0;
}

/* Takes the place of the pairs that the document has, whole or not at all. */
static int take_pairs(struct ptc_profile_doc *doc, const struct ptc_planning_links_found *found, int64_t now_ms)
{
	struct ptc_links pairs = { 0 };
	int rc = 0;

	for (size_t i = 0; i < found->pairs->n && rc == 0; i++) {
		rc = PTC_MORE(pairs.v, pairs.n) ? 0 : PTC_ENOMEM;
		if (rc)
			continue;
		pairs.v[pairs.n] = found->pairs->v[i];
		pairs.v[pairs.n++].measured_ms = now_ms;
	}
	if (rc == 0)
		rc = ptc_links_keep(&pairs, &doc->pairs, found->nodes, found->nnodes);
	if (rc) {
		ptc_free(pairs.v);
		return rc;
	}
	ptc_free(doc->pairs.v);
	doc->pairs = pairs;
	doc->measured_ms = now_ms;
	return 0;
}

/* Each daemon that sees the time grow asks its jobs (measuring.c). Daemons' clocks differ, so it never goes back. */
static void note_changed(struct ptc_profile_doc *doc, const struct ptc_link_changes *changed, int64_t now_ms)
{
	if (changed->n)
		doc->changed_ms = PTC_MAX(now_ms, doc->changed_ms + 1);
}

struct putting {
	const char *profile;
	const struct ptc_planning_links_found *found;
	int64_t now_ms;
	struct ptc_link_changes changed;
};

static int put_parts(void *arg, struct ptc_profile_doc *doc, bool *ret_write, struct ptc_error *err)
{
	struct putting *a = arg;
	char *copy = a->profile ? ptc_strdup(a->profile) : NULL;

	(void)ret_write;
	if (a->profile && !copy)
		return ptc_nomem(err);
	if (a->profile) {
		ptc_free(doc->profile);
		doc->profile = copy;
		doc->set_ms = a->now_ms;
	}
	if (!a->found)
		return 0;
	ptc_free(a->changed.v);
	a->changed = (struct ptc_link_changes){ 0 };
	if (ptc_links_changed(&doc->pairs, a->found->pairs, &a->changed) != 0 ||
	    take_pairs(doc, a->found, a->now_ms) != 0)
		return ptc_nomem(err);
	note_changed(doc, &a->changed, a->now_ms);
	return 0;
}

int ptc_planning_profile_put(struct ptc_planning *p, const char *profile, const struct ptc_planning_links_found *found,
			     struct ptc_profile_doc *ret, struct ptc_link_changes *ret_changed, struct ptc_error *err)
{
	struct putting a = { .profile = profile, .found = found, .now_ms = ptc_sys_realtime_ms() };
	int rc = profile ? check(profile, err) : 0;

	if (rc == 0)
		rc = update(p, profile != NULL, put_parts, &a, ret, err);
	if (rc)
		ptc_free(a.changed.v);
	else
		*ret_changed = a.changed;
	return rc;
}

/* ---- who measures ---- */

/* Somebody has it already. It is ours if this daemon could not give it back: nobody here measures. */
static int lock_again(struct ptc_planning *p, struct ptc_etcd_op *op, int64_t *ret_created, struct ptc_error *err)
{
	struct ptc_etcd_compare same = { op->key, PTC_ETCD_CREATE_REV, 0 };
	struct ptc_etcd_kvs kvs = { 0 };
	bool done = false;
	int rc = ptc_etcd_get(ptc_planning_etcd(p), op->key, false, 1, &kvs, err);

	if (rc == 0 && kvs.n && strcmp(kvs.kv[0].value, op->value) == 0) {
		same.equal = kvs.kv[0].create_revision;
		rc = ptc_etcd_txn(ptc_planning_etcd(p), &same, 1, op, 1, "etcd.profiling", &done, NULL, err);
	}
	if (rc == 0 && !done)
		rc = ptc_error_set(err, PTC_ESTATE, "node %.70s is measuring links; try again later",
				   kvs.n ? kvs.kv[0].value : "(done by now)");
	ptc_etcd_kvs_done(&kvs);
	*ret_created = same.equal;
	return rc;
}

int ptc_planning_profile_lock(struct ptc_planning *p, const char *node, int64_t *ret_created, struct ptc_error *err)
{
	struct ptc_etcd_op op = {
		.key = PTC_PROFILING_KEY, .value = node, .len = strlen(node), .lease = ptc_planning_lease(p)
	};
	struct ptc_etcd_compare none = { PTC_PROFILING_KEY, PTC_ETCD_CREATE_REV, 0 };
	bool done = false;
	int rc;

	if (!op.lease)
		return ptc_error_set(err, PTC_ECOORD, "this node has no lease, for the coordinator does not answer");
	rc = ptc_etcd_txn(ptc_planning_etcd(p), &none, 1, &op, 1, "etcd.profiling", &done, ret_created, err);
	return rc || done ? rc : lock_again(p, &op, ret_created, err);
}

void ptc_planning_profile_unlock(struct ptc_planning *p, int64_t created)
{
	struct ptc_etcd_compare ours = { PTC_PROFILING_KEY, PTC_ETCD_CREATE_REV, created };
	struct ptc_etcd_op op = { .key = PTC_PROFILING_KEY };
	bool done;

	ptc_etcd_txn(ptc_planning_etcd(p), &ours, 1, &op, 1, "etcd.profiling", &done, NULL, NULL);
}

/* ---- what switches show ---- */

struct seeing {
	const struct ptc_link_use *uses;
	size_t n;
	struct ptc_link_changes changed;
};

static int see(void *arg, struct ptc_profile_doc *doc, bool *ret_write, struct ptc_error *err)
{
	struct seeing *a = arg;

	ptc_free(a->changed.v);
	a->changed = (struct ptc_link_changes){ 0 };
	if (ptc_links_saw(&doc->pairs, a->uses, a->n, &a->changed, ret_write) != 0)
		return ptc_nomem(err);
	if (*ret_write)
		note_changed(doc, &a->changed, ptc_sys_realtime_ms());
	return 0;
}

int ptc_planning_links_saw(struct ptc_planning *p, const struct ptc_link_use *uses, size_t n,
			   struct ptc_link_changes *ret_changed, struct ptc_error *err)
{
	struct seeing a = { .uses = uses, .n = n };
	struct ptc_profile_doc doc = { 0 };
	int rc = update(p, false, see, &a, &doc, err);

	ptc_profile_doc_done(&doc);
	if (rc)
		ptc_free(a.changed.v);
	else
		*ret_changed = a.changed;
	return rc;
}

int64_t ptc_planning_links_changed_ms(struct ptc_planning *p)
{
	struct ptc_profile_doc doc;
	int64_t ms;

	if (ptc_planning_profile_show(p, &doc, NULL) != 0)
		return 0;
	ms = doc.changed_ms;
	ptc_profile_doc_done(&doc);
	return ms;
}

static int by_value(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/* The middle one; 0: none was measured. */
static double middle_link(struct ptc_planning *p)
{
	struct ptc_profile_doc doc;
	double *all, middle = 0;
	size_t n = 0;

	if (ptc_planning_profile_show(p, &doc, NULL) != 0)
		return 0;
	all = ptc_calloc(doc.pairs.n + 1, sizeof *all);
	for (size_t i = 0; all && i < doc.pairs.n; i++)
		if (doc.pairs.v[i].bytes_s > 0)
			all[n++] = doc.pairs.v[i].bytes_s;
	if (n) {
		qsort(all, n, sizeof *all, by_value);
		middle = all[n / 2];
	}
	ptc_free(all);
	ptc_profile_doc_done(&doc);
	return middle;
}

struct ptc_planning_leaves ptc_planning_leaves(struct ptc_planning *p, const char *node, int64_t bytes,
					       uint64_t warning_ms)
{
	struct ptc_planning_leaves l = { .warning_s = (double)warning_ms / 1e3, .bytes = bytes };

	snprintf(l.node, sizeof l.node, "%s", node);
	l.bytes_s = p ? middle_link(p) : 0;
	l.seconds = l.bytes_s > 0 ? (double)bytes / l.bytes_s : 0;
	l.fits = l.bytes_s > 0 && l.seconds < l.warning_s;
	return l;
}

json_t *ptc_planning_leaves_json(const struct ptc_planning_leaves *l)
{
	char text[256], size[PTC_UNITS_MAX];
	json_t *root = json_pack("{s:f, s:s, s:I, s:n, s:n, s:n, s:n}", "warning_s", l->warning_s, "node", l->node,
				 "bytes", (json_int_t)l->bytes, "bytes_s", "seconds", "fits", "text");

	if (!root || !(l->bytes_s > 0))
		return root;
	snprintf(text, sizeof text,
		 "%s are on %s alone and take %.1f s to copy, of the %.1f s between a warning and its end",
		 ptc_units_print_bytes((uint64_t)l->bytes, size), l->node, l->seconds, l->warning_s);
	json_object_set_new(root, "bytes_s", json_real(l->bytes_s));
	json_object_set_new(root, "seconds", json_real(l->seconds));
	json_object_set_new(root, "fits", json_boolean(l->fits));
	json_object_set_new(root, "text", json_string(text));
	return root;
}
