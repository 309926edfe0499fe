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

int ptc_planning_profile_show(struct ptc_planning *p, struct ptc_profile_doc *ret, struct ptc_error *err)
{
	char *text = ptc_planning_profile(p);
	int rc;

	if (!text) {
		*ret = (struct ptc_profile_doc){ 0 };
		return 0;
	}
	rc = ptc_profile_doc_decode(PTC_PROFILE_KEY, text, ret, NULL);
	ptc_free(text);
	if (rc == PTC_ENOMEM)
		return ptc_error_set(err, rc, "out of memory");
	if (rc)
		return ptc_error_set(err, PTC_EINVAL,
				     "what etcd has at " PTC_PROFILE_KEY
				     " is not a profile; `ptcctl profile -f FILE` replaces it");
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

static int put(struct ptc_planning *p, const struct ptc_profile_doc *doc, struct ptc_error *err)
{
	char *text = ptc_profile_doc_encode(doc, NULL);
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

/* Both end whole or not at all. */
static int replace(struct ptc_profile_doc *doc, const char *profile, struct ptc_links *pairs)
{
	const int64_t now = ptc_sys_realtime_ms();
	char *copy = profile ? ptc_strdup(profile) : NULL;

	if (profile && !copy)
		return PTC_ENOMEM;
	if (profile) {
		ptc_free(doc->profile);
		doc->profile = copy;
		doc->set_ms = now;
	}
	if (pairs) {
		ptc_free(doc->pairs.v);
		doc->pairs = *pairs;
		doc->measured_ms = now;
		*pairs = (struct ptc_links){ 0 };
	}
	return 0;
}

int ptc_planning_profile_put(struct ptc_planning *p, const char *profile, struct ptc_links *pairs,
			     struct ptc_profile_doc *ret, struct ptc_link_changes *ret_changed, struct ptc_error *err)
{
	struct ptc_link_changes changed = { 0 };
	struct ptc_profile_doc doc = { 0 };
	int rc = profile ? check(profile, err) : 0;

	if (rc)
		return rc;
	rc = ptc_planning_profile_show(p, &doc, err);
	if (rc == PTC_EINVAL && profile) /* it is replaced */
		rc = 0;
	if (rc == 0 && pairs && ptc_links_changed(&doc.pairs, pairs, &changed) != 0)
		rc = ptc_nomem(err);
	if (rc == 0 && replace(&doc, profile, pairs) != 0)
		rc = ptc_nomem(err);
	if (rc == 0)
		rc = put(p, &doc, err);
	if (rc) {
		ptc_free(changed.v);
		ptc_profile_doc_done(&doc);
		return rc;
	}
	*ret = doc;
	*ret_changed = changed;
	return 0;
}

/* ---- what switches show ---- */

int ptc_planning_links_saw(struct ptc_planning *p, const struct ptc_link_use *uses, size_t n,
			   struct ptc_link_changes *ret_changed, struct ptc_error *err)
{
	struct ptc_link_changes changed = { 0 };
	struct ptc_profile_doc doc = { 0 };
	bool any = false;
	int rc = ptc_planning_profile_show(p, &doc, err);

	if (rc == 0 && ptc_links_saw(&doc.pairs, uses, n, &changed, &any) != 0)
		rc = ptc_nomem(err);
	if (rc == 0 && any) {
		if (changed.n)
			doc.changed_ms = ptc_sys_realtime_ms();
		rc = put(p, &doc, err);
	}
	ptc_profile_doc_done(&doc);
	if (rc) {
		ptc_free(changed.v);
		return rc;
	}
	*ret_changed = changed;
	return 0;
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
