/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path and failure modes: given_devices.h. The JSON is grouped by job and node, which makes it short: each change
 * rewrites all of it. */
#include "daemon/cluster/devices/given_devices.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/versions.h"
#include "formats/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WHAT "document of devices"

void ptc_devices_doc_done(struct ptc_devices_doc *d)
{
	ptc_free(d->v);
	*d = (struct ptc_devices_doc){ 0 };
}

static int compare(const struct ptc_device_given *g, const char *node, uint32_t device, const char *uuid)
{
	int c = strcmp(g->node, node);

	if (c == 0)
		c = (g->device > device) - (g->device < device);
	return c ? c : strcmp(g->uuid, uuid);
}

/* Where the entry is, or would be. */
static size_t find(const struct ptc_devices_doc *d, const char *node, uint32_t device, const char *uuid)
{
	size_t low = 0, high = d->n;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (compare(&d->v[mid], node, device, uuid) < 0)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

bool ptc_devices_has(const struct ptc_devices_doc *d, const char *node, uint32_t device, const char *uuid)
{
	size_t at = find(d, node, device, uuid);

	return at < d->n && compare(&d->v[at], node, device, uuid) == 0;
}

const struct ptc_device_given *ptc_devices_of_node(const struct ptc_devices_doc *d, const char *node, size_t *ret_n)
{
	size_t begin = find(d, node, 0, ""), end = begin;

	while (end < d->n && strcmp(d->v[end].node, node) == 0)
		end++;
	*ret_n = end - begin;
	return d->v ? d->v + begin : NULL;
}

static int by_device(const void *a, const void *b)
{
	const struct ptc_device_given *y = b;

	return compare(a, y->node, y->device, y->uuid);
}

int ptc_devices_add(struct ptc_devices_doc *d, const struct ptc_device_given *more, size_t n)
{
	struct ptc_device_given *v = ptc_reallocarray(d->v, d->n + n, sizeof *v);
	size_t before = d->n;

	if (!v)
		return PTC_ENOMEM;
	d->v = v;
	for (size_t i = 0; i < n; i++) {
		size_t at = find(&(struct ptc_devices_doc){ v, before }, more[i].node, more[i].device, more[i].uuid);

		if (at == before || by_device(&v[at], &more[i]) != 0)
			v[d->n++] = more[i];
	}
	if (d->n > 1)
		qsort(v, d->n, sizeof *v, by_device);
	return 0;
}

bool ptc_devices_take(struct ptc_devices_doc *d, const char *uuid,
		      bool (*keep)(void *arg, const struct ptc_device_given *g), void *arg)
{
	size_t n = 0, before = d->n;

	for (size_t i = 0; i < before; i++)
		if (strcmp(d->v[i].uuid, uuid) != 0 || (keep && keep(arg, &d->v[i])))
			d->v[n++] = d->v[i];
	d->n = n;
	return n < before;
}

const struct ptc_device_given *ptc_devices_taken(const struct ptc_devices_doc *d, const char *node, uint32_t device,
						 const char *uuid, bool shares)
{
	for (size_t i = find(d, node, device, ""); i < d->n; i++) {
		const struct ptc_device_given *g = &d->v[i];

		if (strcmp(g->node, node) != 0 || g->device != device)
			return NULL;
		if (strcmp(g->uuid, uuid) != 0 && !(g->shares && shares))
			return g;
	}
	return NULL;
}

/* ---- JSON: {version, jobs: {UUID: {shares, nodes: {NODE: [device, ..]}}}} ---- */

static json_t *member(json_t *map, const char *key)
{
	json_t *m = json_object_get(map, key);

	if (!m && json_object_set_new(map, key, json_object()) == 0)
		m = json_object_get(map, key);
	return m;
}

char *ptc_devices_doc_encode(const struct ptc_devices_doc *d)
{
	json_t *jobs = json_object(), *root;
	bool failed = !jobs;
	char *text;

	for (size_t i = 0; i < d->n && !failed; i++) {
		const struct ptc_device_given *g = &d->v[i];
		json_t *job = member(jobs, g->uuid), *nodes = member(job, "nodes"), *list;

		list = json_object_get(nodes, g->node);
		if (!list && json_object_set_new(nodes, g->node, json_array()) == 0)
			list = json_object_get(nodes, g->node);
		failed = json_array_append_new(list, json_integer((json_int_t)g->device)) != 0 ||
			 json_object_set_new(job, "shares", json_boolean(g->shares)) != 0;
	}
	root = failed ? NULL
		      : json_pack("{s:I, s:O}", "version",
				  (json_int_t)ptc_version_write(PTC_DOC_VERSION, PTC_DOC_VERSION), "jobs", jobs);
	text = root ? ptc_json_text(root) : NULL;
	json_decref(jobs);
	json_decref(root);
	return text;
}

static int malformed(const char *uuid, struct ptc_error *err)
{
	return ptc_error_set(err, PTC_EINVAL, WHAT ": malformed entry of job \"%.40s\"", uuid);
}

static int get_node(const char *uuid, bool shares, const char *node, const json_t *list, struct ptc_devices_doc *d,
		    struct ptc_error *err)
{
	const json_t *value;
	size_t i;

	if (!json_is_array(list) || !node[0] || strlen(node) > PTC_NAME_MAX)
		return malformed(uuid, err);
	json_array_foreach(list, i, value) {
		struct ptc_device_given g = { .device = (uint32_t)json_integer_value(value), .shares = shares };
		struct ptc_device_given *v;

		if (!json_is_integer(value) || json_integer_value(value) < 0 ||
		    json_integer_value(value) >= PTC_MAX_DEVICES_PER_NODE || d->n > 2 * PTC_MAX_RANKS)
			return malformed(uuid, err);
		v = PTC_MORE(d->v, d->n) ? d->v : NULL;
		if (!v)
			return ptc_nomem(err);
		snprintf(g.node, sizeof g.node, "%s", node);
		snprintf(g.uuid, sizeof g.uuid, "%s", uuid);
		v[d->n++] = g;
	}
	return 0;
}

static int get_job(const char *uuid, const json_t *job, struct ptc_devices_doc *d, struct ptc_error *err)
{
	json_t *nodes = json_object_get(job, "nodes"), *shares = json_object_get(job, "shares"), *list;
	const char *node;
	int rc = 0;

	if (strlen(uuid) != PTC_DEVICES_UUID - 1 || !json_is_object(nodes) || !json_is_boolean(shares))
		return malformed(uuid, err);
	json_object_foreach(nodes, node, list) {
		rc = get_node(uuid, json_is_true(shares), node, list, d, err);
		if (rc)
			break;
	}
	return rc;
}

int ptc_devices_doc_decode(const char *json, size_t len, struct ptc_devices_doc *ret, struct ptc_error *err)
{
	struct ptc_devices_doc d = { 0 };
	json_t *root = NULL, *jobs, *job;
	const char *uuid;
	int rc = ptc_json_load(WHAT, json, len, &root, err);

	if (rc == 0)
		rc = ptc_json_version(WHAT, root, PTC_DOC_OLDEST, PTC_DOC_VERSION, err);
	jobs = json_object_get(root, "jobs");
	if (rc == 0 && !json_is_object(jobs))
		rc = ptc_error_set(err, PTC_EINVAL, WHAT ": no \"jobs\"");
	if (rc == 0)
		json_object_foreach(jobs, uuid, job) {
			rc = get_job(uuid, job, &d, err);
			if (rc)
				break;
		}
	json_decref(root);
	if (rc) {
		ptc_devices_doc_done(&d);
		return rc;
	}
	if (d.n > 1)
		qsort(d.v, d.n, sizeof *d.v, by_device);
	for (size_t i = 1; i < d.n; i++)
		if (by_device(&d.v[i - 1], &d.v[i]) == 0) {
			rc = malformed(d.v[i].uuid, err);
			ptc_devices_doc_done(&d);
			return rc;
		}
	*ret = d;
	return 0;
}
