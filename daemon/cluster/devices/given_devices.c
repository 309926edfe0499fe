/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path and failure modes: given_devices.h. The JSON is grouped by job and node, which makes it short: each change
 * rewrites all of it. */
#include "daemon/cluster/devices/given_devices.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/number/versions.h"
#include "formats/members.h"

#include <inttypes.h>
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

/* ---- JSON: {version, jobs: {UUID: {nodes: {NODE: [device, ..]}, shares}}} ---- */

struct node {
	char node[PTC_NAME_MAX + 1];
	uint32_t *devices;
	size_t n;
};
struct job {
	char uuid[PTC_DEVICES_UUID];
	struct node *nodes;
	size_t n;
	bool shares;
};
struct jobs {
	struct job *v;
	size_t n;
};

static const struct ptc_member device_rows[] = {
	{ NULL, PTC_IS_U32, .size = sizeof(uint32_t), .max = PTC_MAX_DEVICES_PER_NODE - 1 },
};
static const struct ptc_members device_members = PTC_MEMBERS(device_rows, uint32_t);
static const struct ptc_member node_rows[] = {
	PTC_ROW(struct node, NULL, node, TEXT, .min = 1),
	PTC_ROW(struct node, NULL, devices, LIST, PTC_COUNT(struct node, n), .of = &device_members),
};
static const struct ptc_members node_members = PTC_MEMBERS(node_rows, struct node);
static const struct ptc_member job_rows[] = {
	PTC_ROW(struct job, NULL, uuid, TEXT, .min = PTC_DEVICES_UUID - 1),
	PTC_ROW(struct job, "nodes", nodes, KEYED, PTC_COUNT(struct job, n), .of = &node_members),
	PTC_ROW(struct job, "shares", shares, BOOL),
};
static const struct ptc_members job_members = PTC_MEMBERS(job_rows, struct job);
static const struct ptc_member rows[] = {
	PTC_ROW(struct jobs, "jobs", v, KEYED, PTC_COUNT(struct jobs, n), .of = &job_members),
};
static const struct ptc_members members = PTC_MEMBERS(rows, struct jobs);

static int by_job(const void *a, const void *b)
{
	const struct ptc_device_given *x = a, *y = b;
	int c = strcmp(x->uuid, y->uuid);

	return c ? c : by_device(a, b);
}

char *ptc_devices_doc_encode(const struct ptc_devices_doc *d)
{
	ptc_auto_free struct ptc_device_given *v = ptc_calloc(d->n + 1, sizeof *v);
	ptc_auto_free uint32_t *devices = ptc_calloc(d->n + 1, sizeof *devices);
	ptc_auto_free struct node *nodes = ptc_calloc(d->n + 1, sizeof *nodes);
	ptc_auto_free struct job *of = ptc_calloc(d->n + 1, sizeof *of);
	struct jobs jobs = { of, 0 };
	size_t nnodes = 0;

	if (!v || !devices || !nodes || !of)
		return NULL;
	if (d->n)
		memcpy(v, d->v, d->n * sizeof *v);
	qsort(v, d->n, sizeof *v, by_job);
	for (size_t i = 0; i < d->n; i++) {
		const bool other = i == 0 || strcmp(v[i].uuid, v[i - 1].uuid) != 0;

		if (other) {
			of[jobs.n] = (struct job){ .nodes = &nodes[nnodes], .shares = v[i].shares };
			memcpy(of[jobs.n++].uuid, v[i].uuid, sizeof of->uuid);
		}
		if (other || strcmp(v[i].node, v[i - 1].node) != 0) {
			nodes[nnodes] = (struct node){ .devices = &devices[i] };
			memcpy(nodes[nnodes++].node, v[i].node, sizeof nodes->node);
			of[jobs.n - 1].n++;
		}
		devices[i] = v[i].device;
		nodes[nnodes - 1].n++;
	}
	return ptc_members_to_text((int)ptc_version_write(PTC_DOC_VERSION, PTC_DOC_VERSION), &members, &jobs);
}

/* How many devices there can be, the longest value of etcd bounds. */
static int add_job(const struct job *job, struct ptc_devices_doc *d)
{
	for (size_t i = 0; i < job->n; i++)
		for (size_t k = 0; k < job->nodes[i].n; k++) {
			struct ptc_device_given g = { .device = job->nodes[i].devices[k], .shares = job->shares };

			if (!PTC_MORE(d->v, d->n))
				return PTC_ENOMEM;
			memcpy(g.node, job->nodes[i].node, sizeof g.node);
			memcpy(g.uuid, job->uuid, sizeof g.uuid);
			d->v[d->n++] = g;
		}
	return 0;
}

int ptc_devices_doc_decode(const char *json, size_t len, struct ptc_devices_doc *ret, struct ptc_error *err)
{
	struct ptc_devices_doc d = { 0 };
	struct jobs jobs = { 0 };
	int rc = ptc_members_from_text(WHAT, PTC_DOC_OLDEST, PTC_DOC_VERSION, &members, json, len, &jobs, err);

	for (size_t i = 0; rc == 0 && i < jobs.n; i++)
		if (add_job(&jobs.v[i], &d) != 0)
			rc = ptc_nomem(err);
	ptc_members_done(&members, &jobs);
	if (d.n > 1)
		qsort(d.v, d.n, sizeof *d.v, by_device);
	for (size_t i = 1; rc == 0 && i < d.n; i++)
		if (by_device(&d.v[i - 1], &d.v[i]) == 0)
			rc = ptc_error_set(err, PTC_EINVAL, WHAT ": job %s has device %" PRIu32 " of node %s twice",
					   d.v[i].uuid, d.v[i].device, d.v[i].node);
	if (rc)
		ptc_devices_doc_done(&d);
	else
		*ret = d;
	return rc;
}
