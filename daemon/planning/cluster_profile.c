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

#define VERSION   1
#define TEXT_MAX  (256u << 10)
#define VALUE_MAX PTC_ETCD_VALUE_MAX

static int empty(json_t **ret_doc, struct ptc_error *err)
{
	*ret_doc = json_pack("{s:i, s:n, s:[]}", "version", VERSION, "profile", "pairs");
	return *ret_doc ? 0 : ptc_nomem(err);
}

int ptc_planning_profile_show(struct ptc_planning *p, json_t **ret_doc, struct ptc_error *err)
{
	char *text = ptc_planning_profile(p);
	json_t *doc = NULL;
	int rc;

	if (!text)
		return empty(ret_doc, err);
	rc = ptc_json_load(PTC_PROFILE_KEY, text, strlen(text), &doc, NULL);
	ptc_free(text);
	if (rc == PTC_ENOMEM)
		return ptc_error_set(err, rc, "out of memory");
	if (rc || !json_is_object(doc)) {
		json_decref(doc);
		return ptc_error_set(err, PTC_EINVAL,
				     "what etcd has at " PTC_PROFILE_KEY
				     " is not a profile; `ptcctl profile -f FILE` replaces it");
	}
	*ret_doc = doc;
	return 0;
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

static int put(struct ptc_planning *p, const json_t *doc, struct ptc_error *err)
{
	char *text = ptc_json_text(doc);
	int rc;

	if (!text)
		return ptc_nomem(err);
	if (strlen(text) > VALUE_MAX)
		rc = ptc_error_set(err, PTC_ELIMIT, "the profile with its links has %zu bytes, at most %u are kept",
				   strlen(text), VALUE_MAX);
	else
		rc = ptc_etcd_put(ptc_planning_etcd(p), PTC_PROFILE_KEY, text, strlen(text), 0, "etcd.profile", err);
	ptc_free(text);
	return rc;
}

int ptc_planning_profile_put(struct ptc_planning *p, const char *profile, const json_t *pairs, json_t **ret_doc,
			     json_t **ret_changed, struct ptc_error *err)
{
	const json_int_t now = (json_int_t)ptc_sys_realtime_ms();
	json_t *doc = NULL, *changed;
	int rc = profile ? check(profile, err) : 0;

	if (rc)
		return rc;
	rc = ptc_planning_profile_show(p, &doc, err);
	if (rc == PTC_EINVAL && profile) /* it is replaced */
		rc = empty(&doc, err);
	if (rc)
		return rc;
	changed = pairs ? ptc_links_changed(json_object_get(doc, "pairs"), pairs) : json_array();
	if (profile) {
		json_object_set_new(doc, "profile", json_string(profile));
		json_object_set_new(doc, "set_ms", json_integer(now));
	}
	if (pairs) {
		json_object_set_new(doc, "pairs", json_deep_copy(pairs));
		json_object_set_new(doc, "measured_ms", json_integer(now));
	}
	rc = put(p, doc, err);
	if (rc) {
		json_decref(changed);
		json_decref(doc);
		return rc;
	}
	*ret_doc = doc;
	*ret_changed = changed;
	return 0;
}

/* ---- what switches show ---- */

int ptc_planning_links_saw(struct ptc_planning *p, const json_t *links, json_t **ret_changed, struct ptc_error *err)
{
	json_t *doc = NULL, *changed = json_array();
	int rc = changed ? ptc_planning_profile_show(p, &doc, err) : ptc_nomem(err);

	if (rc == 0 && ptc_links_saw(json_object_get(doc, "pairs"), links, changed)) {
		if (json_array_size(changed))
			json_object_set_new(doc, "changed_ms", json_integer((json_int_t)ptc_sys_realtime_ms()));
		rc = put(p, doc, err);
	}
	json_decref(doc);
	if (rc) {
		json_decref(changed);
		return rc;
	}
	*ret_changed = changed;
	return 0;
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
