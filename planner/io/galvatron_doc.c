/* SPDX-License-Identifier: Apache-2.0 */
/* Galvatron's hardware profile, the files of its hardware_configs/: bandwidths of all-reduces and of pipelines in GB/s,
 * and how much slower devices compute beside communication. Fails on a key of another kind, and on numbers that are
 * impossible, with their line; what came before them in the file has then been taken. */
#include "planner/io/plan_doc.h"

#include "formats/doc_rows.h"

#include <stdio.h>
#include <string.h>

#define SIZE_MAX_READ 99999 /* five digits; a sign makes it larger */

static bool is_allreduce(const char *key, unsigned *ret_size, unsigned *ret_near)
{
	int end = 0;

	return sscanf(key, "allreduce_size_%5u_consec_%1u%n", ret_size, ret_near, &end) == 2 && !key[end] &&
	       *ret_near <= 1 && *ret_size <= SIZE_MAX_READ;
}

static bool is_pipeline(const char *key, unsigned *ret_size)
{
	int end = 0;

	return sscanf(key, "pp_size_%5u%n", ret_size, &end) == 1 && !key[end] && *ret_size <= SIZE_MAX_READ;
}

static int check_size(const struct ptc_doc *doc, const struct ptc_doc_node *n, const char *what, unsigned size,
		      uint32_t devices, struct ptc_error *err)
{
	if (size >= 2 && size <= devices && devices % size == 0)
		return 0;
	return ptc_doc_error(doc, n, err, PTC_EINVAL, "a %s of %u does not divide the profile's %u devices", what, size,
			     devices);
}

static int number(const struct ptc_doc *doc, const struct ptc_doc_node *n, double least, double most, double *ret,
		  struct ptc_error *err)
{
	return ptc_doc_read(doc, doc->root, NULL, &(struct ptc_doc_row){ n->key, PTC_DOC_REAL, ret, least, most }, 1,
			    err);
}

static int read_bandwidth(const struct ptc_doc *doc, const struct ptc_doc_node *n, struct ptc_measured_group *v,
			  uint32_t *count, uint32_t size, uint32_t stride, struct ptc_error *err)
{
	double gigabytes = 0;
	int rc;

	if (*count == PTC_MEASURED_MAX_GROUPS)
		return ptc_doc_error(doc, n, err, PTC_ELIMIT, "more than %d of one kind", PTC_MEASURED_MAX_GROUPS);
	rc = number(doc, n, 1e-6, 1e6, &gigabytes, err);
	if (!rc)
		v[(*count)++] = (struct ptc_measured_group){ size, stride, gigabytes * 1e9 };
	return rc;
}

static int read_entry(const struct ptc_doc *doc, const struct ptc_doc_node *n, struct ptc_cluster_profile *c,
		      struct ptc_error *err)
{
	uint32_t devices = ptc_cluster_profile_devices(c);
	unsigned size = 0, near = 0;
	int rc;

	if (is_allreduce(n->key, &size, &near)) {
		rc = check_size(doc, n, "group", size, devices, err);
		return rc ? rc : read_bandwidth(doc, n, c->groups, &c->ngroups, size, near ? 1 : devices / size, err);
	}
	/* The stages of its pipelines lie as far apart as possible. */
	if (is_pipeline(n->key, &size)) {
		rc = check_size(doc, n, "pipeline", size, devices, err);
		return rc ? rc : read_bandwidth(doc, n, c->hops, &c->nhops, size, devices / size, err);
	}
	if (!strcmp(n->key, "overlap_coe"))
		return number(doc, n, 1, PTC_OVERLAP_MAX, &c->overlap, err);
	return ptc_doc_error(doc, n, err, PTC_EINVAL,
			     "\"%.60s\" is none of allreduce_size_N_consec_0|1, pp_size_N and overlap_coe, which "
			     "are read of Galvatron's hardware profile",
			     n->key);
}

int ptc_plan_galvatron_read(const struct ptc_doc *doc, struct ptc_cluster_profile *c, struct ptc_error *err)
{
	int rc = 0;

	if (doc->root->kind != PTC_DOC_MAP || !doc->root->n)
		return ptc_doc_error(doc, doc->root, err, PTC_EINVAL, "not a map of measured numbers");
	for (const struct ptc_doc_node *n = doc->root->first; n && !rc; n = n->next)
		rc = read_entry(doc, n, c, err);
	return rc;
}
