/* SPDX-License-Identifier: Apache-2.0 */
/* The mirror's devices: which job has which of them, and which an operator calls bad.
 *
 * Happy path: the document of devices replaces the one before. A device is free for a job if no other job has it, and
 * the job has not left it.
 *
 * Failure modes: a document that cannot be read (the last readable one stays in use, and a line says so). */
#include "daemon/cluster/mirror/internal.h"

#include "base/log.h"
#include "base/sys/sys.h"

#include <stdio.h>
#include <string.h>

/* A document that cannot be read is of a later version, or damaged: the last readable one stays in use. */
void ptc_cluster_devices_event(struct ptc_cluster *c, enum ptc_watch_kind kind, const struct ptc_etcd_kv *kv)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_devices_doc d = { 0 };

	c->seen_devices = kind == PTC_WATCH_PUT;
	if (kind == PTC_WATCH_PUT && ptc_devices_doc_decode(kv->value, kv->len, &d, &err) != 0) {
		ptc_warn("etcd", "%s ignored: %s", kv->key, err.text);
		return;
	}
	ptc_devices_doc_done(&c->devices);
	c->devices = d;
	c->device_writes++;
}

uint64_t ptc_cluster_device_writes(const struct ptc_cluster *c)
{
	return c->device_writes;
}

const struct ptc_devices_doc *ptc_cluster_devices(const struct ptc_cluster *c)
{
	return &c->devices;
}

bool ptc_cluster_device_free(struct ptc_cluster *c, const char *node, uint32_t device, const char *uuid, bool shares,
			     const struct ptc_job_view **ret_by)
{
	size_t n;
	const struct ptc_device_given *g = ptc_devices_of_node(&c->devices, node, &n);
	const struct ptc_job_view *own = c->any_slow ? ptc_cluster_find_uuid(c, uuid) : NULL;

	if (ret_by)
		*ret_by = NULL;
	if (own && ptc_slow_device_find(&own->slow, node, device, ptc_sys_realtime_ms()))
		return false;
	for (size_t i = 0; i < n; i++) {
		const struct ptc_job_view *j;

		if (g[i].device != device || strcmp(g[i].uuid, uuid) == 0 || (g[i].shares && shares))
			continue;
		j = ptc_cluster_find_uuid(c, g[i].uuid);
		if (!j || !j->has_meta)
			continue;
		if (ret_by)
			*ret_by = j;
		return false;
	}
	return true;
}

_Static_assert(PTC_MAX_DEVICES_PER_NODE <= 64, "a bit for each");

/* name: NODE/INDEX. */
void ptc_cluster_mark_event(struct ptc_cluster *c, enum ptc_watch_kind kind, const char *name)
{
	const char *slash = strrchr(name, '/');
	unsigned long device = slash ? strtoul(slash + 1, NULL, 10) : 64;
	char node[PTC_NAME_MAX + 1];
	uint64_t bit;
	uint32_t i;

	if (device >= 64 || (size_t)(slash - name) >= sizeof node)
		return;
	snprintf(node, sizeof node, "%.*s", (int)(slash - name), name);
	bit = UINT64_C(1) << device;
	if (ptc_cluster_intern_node(c, node, &i) != 0)
		return;
	c->nodes[i]->marked = kind == PTC_WATCH_PUT ? c->nodes[i]->marked | bit : c->nodes[i]->marked & ~bit;
	c->nodes[i]->seen_marked =
		kind == PTC_WATCH_PUT ? c->nodes[i]->seen_marked | bit : c->nodes[i]->seen_marked & ~bit;
}

bool ptc_node_device_well(const struct ptc_node *n, uint32_t device, char ret_health[PTC_HEALTH_BYTES])
{
	if (device >= 64 || !(n->marked >> device & 1))
		return ptc_device_well(n->doc.unhealthy, device, ret_health);
	if (ret_health)
		snprintf(ret_health, PTC_HEALTH_BYTES, "marked bad");
	return false;
}
