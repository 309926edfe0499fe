/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster's profile in etcd: what a person has put in as a file, and links that were measured, each with its date.
 * Happy path: read, one part replaced, written back. Failure: a profile that cannot be, named by its line; etcd
 * unreachable. */
#include "daemon/planning/remembered.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/units.h"
#include "base/sys/sys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VERSION   1
#define TEXT_MAX  (256u << 10)
#define VALUE_MAX PTC_ETCD_VALUE_MAX
#define ATTEMPTS  8

static int empty(json_t **ret_doc, struct ptc_error *err)
{
	*ret_doc = json_pack("{s:i, s:n, s:[]}", "version", VERSION, "profile", "pairs");
	return *ret_doc ? 0 : ptc_nomem(err);
}

/* text NULL: there is none. PTC_EINVAL: it is no profile. */
static int parse(const char *text, json_t **ret_doc, struct ptc_error *err)
{
	json_t *doc = NULL;
	int rc;

	if (!text)
		return empty(ret_doc, err);
	rc = ptc_json_load(PTC_PROFILE_KEY, text, strlen(text), &doc, NULL);
	if (rc == PTC_ENOMEM)
		return ptc_nomem(err);
	if (rc || !json_is_object(doc)) {
		json_decref(doc);
		return ptc_error_set(err, PTC_EINVAL,
				     "what etcd has at " PTC_PROFILE_KEY
				     " is not a profile; `ptcctl profile -f FILE` replaces it");
	}
	*ret_doc = doc;
	return 0;
}

int ptc_planning_profile_show(struct ptc_planning *p, json_t **ret_doc, struct ptc_error *err)
{
	char *text = ptc_planning_profile(p);
	int rc = parse(text, ret_doc, err);

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
static int put(struct ptc_planning *p, const json_t *doc, int64_t revision, bool *ret_done, struct ptc_error *err)
{
	struct ptc_etcd_compare same = { PTC_PROFILE_KEY, PTC_ETCD_MOD_REV, revision };
	char *text = ptc_json_text(doc);
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
		  int (*fn)(void *arg, json_t *doc, bool *ret_write, struct ptc_error *err), void *arg,
		  json_t **ret_doc, struct ptc_error *err)
{
	bool done = false;
	json_t *doc = NULL;
	int rc = 0;

	for (int i = 0; i < ATTEMPTS && rc == 0 && !done; i++) {
		char *text = NULL;
		int64_t revision = 0;
		bool write = true;

		json_decref(doc);
		doc = NULL;
		rc = ptc_planning_profile_now(p, &text, &revision, err);
		if (rc == 0)
			rc = parse(text, &doc, err);
		if (rc == PTC_EINVAL && replaces)
			rc = empty(&doc, err);
		ptc_free(text);
		if (rc == 0)
			rc = fn(arg, doc, &write, err);
		if (rc == 0 && write)
			rc = put(p, doc, revision, &done, err);
		done |= !write;
	}
	if (rc == 0 && !done)
		rc = ptc_error_set(err, PTC_ESTATE, "others changed the profile %d times meanwhile; try again",
				   ATTEMPTS);
	if (rc) {
		json_decref(doc);
		return rc;
	}
	*ret_doc = doc;
	return 0;
}

struct putting {
	const char *profile;
	const struct ptc_planning_links_found *found;
	json_int_t now_ms;
	json_t *changed;
};

static int put_parts(void *arg, json_t *doc, bool *ret_write, struct ptc_error *err)
{
	struct putting *a = arg;
	json_t *pairs = a->found ? json_deep_copy(a->found->pairs) : NULL, *row;
	size_t i;

	(void)ret_write;
	json_decref(a->changed);
	a->changed = a->found ? ptc_links_changed(json_object_get(doc, "pairs"), a->found->pairs) : json_array();
	if (!a->changed || (a->found && !pairs)) {
		json_decref(pairs);
		return ptc_nomem(err);
	}
	if (a->profile) {
		json_object_set_new(doc, "profile", json_string(a->profile));
		json_object_set_new(doc, "set_ms", json_integer(a->now_ms));
	}
	if (!pairs)
		return 0;
	json_array_foreach(pairs, i, row)
		json_object_set_new(row, "measured_ms", json_integer(a->now_ms));
	ptc_links_keep(pairs, json_object_get(doc, "pairs"), a->found->nodes);
	json_object_set_new(doc, "pairs", pairs);
	json_object_set_new(doc, "measured_ms", json_integer(a->now_ms));
	return 0;
}

int ptc_planning_profile_put(struct ptc_planning *p, const char *profile, const struct ptc_planning_links_found *found,
			     json_t **ret_doc, json_t **ret_changed, struct ptc_error *err)
{
	struct putting a = { profile, found, (json_int_t)ptc_sys_realtime_ms(), NULL };
	int rc = profile ? check(profile, err) : 0;

	if (rc == 0)
		rc = update(p, profile != NULL, put_parts, &a, ret_doc, err);
	if (rc)
		json_decref(a.changed);
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
		rc = ptc_etcd_txn(ptc_planning_etcd(p), &same, 1, op, 1, NULL, &done, NULL, err);
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
	rc = ptc_etcd_txn(ptc_planning_etcd(p), &none, 1, &op, 1, NULL, &done, ret_created, err);
	return rc || done ? rc : lock_again(p, &op, ret_created, err);
}

void ptc_planning_profile_unlock(struct ptc_planning *p, int64_t created)
{
	struct ptc_etcd_compare ours = { PTC_PROFILING_KEY, PTC_ETCD_CREATE_REV, created };
	struct ptc_etcd_op op = { .key = PTC_PROFILING_KEY };
	bool done;

	ptc_etcd_txn(ptc_planning_etcd(p), &ours, 1, &op, 1, NULL, &done, NULL, NULL);
}

/* ---- what switches show ---- */

struct seeing {
	const json_t *links;
	json_t *changed;
};

static int see(void *arg, json_t *doc, bool *ret_write, struct ptc_error *err)
{
	struct seeing *a = arg;

	json_decref(a->changed);
	a->changed = json_array();
	if (!a->changed)
		return ptc_nomem(err);
	*ret_write = ptc_links_saw(json_object_get(doc, "pairs"), a->links, a->changed);
	if (*ret_write && json_array_size(a->changed))
		json_object_set_new(doc, "changed_ms", json_integer((json_int_t)ptc_sys_realtime_ms()));
	return 0;
}

int ptc_planning_links_saw(struct ptc_planning *p, const json_t *links, json_t **ret_changed, struct ptc_error *err)
{
	struct seeing a = { links, NULL };
	json_t *doc = NULL;
	int rc = update(p, false, see, &a, &doc, err);

	json_decref(doc);
	if (rc)
		json_decref(a.changed);
	else
		*ret_changed = a.changed;
	return rc;
}

int64_t ptc_planning_links_changed_ms(struct ptc_planning *p)
{
	json_t *doc = NULL;
	int64_t ms = 0;

	if (ptc_planning_profile_show(p, &doc, NULL) == 0)
		ms = json_integer_value(json_object_get(doc, "changed_ms"));
	json_decref(doc);
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
	json_t *doc = NULL;
	const json_t *pairs, *pair;
	double *all, middle = 0;
	size_t i, n = 0;

	if (ptc_planning_profile_show(p, &doc, NULL) != 0)
		return 0;
	pairs = json_object_get(doc, "pairs");
	all = ptc_calloc(json_array_size(pairs) + 1, sizeof *all);
	json_array_foreach(pairs, i, pair) {
		double v = json_number_value(json_object_get(pair, "bytes_s"));

		if (all && v > 0)
			all[n++] = v;
	}
	if (n) {
		qsort(all, n, sizeof *all, by_value);
		middle = all[n / 2];
	}
	ptc_free(all);
	json_decref(doc);
	return middle;
}

json_t *ptc_planning_leaves(struct ptc_planning *p, const char *node, int64_t bytes, uint64_t warning_ms)
{
	double rate = p ? middle_link(p) : 0, within = (double)warning_ms / 1e3,
	       seconds = rate > 0 ? (double)bytes / rate : 0;
	char text[256], size[PTC_UNITS_MAX];
	json_t *root = json_pack("{s:f, s:s, s:I, s:n, s:n, s:n, s:n}", "warning_s", within, "node", node, "bytes",
				 (json_int_t)bytes, "bytes_s", "seconds", "fits", "text");

	if (!root || !(rate > 0))
		return root;
	snprintf(text, sizeof text,
		 "%s are on %.70s alone and take %.1f s to copy, of the %.1f s between a warning and its end",
		 ptc_units_print_bytes((uint64_t)bytes, size), node, seconds, within);
	json_object_set_new(root, "bytes_s", json_real(rate));
	json_object_set_new(root, "seconds", json_real(seconds));
	json_object_set_new(root, "fits", json_boolean(seconds < within));
	json_object_set_new(root, "text", json_string(text));
	return root;
}
