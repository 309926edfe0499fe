/* SPDX-License-Identifier: Apache-2.0 */
/* Hashes all that the facts about a loss depend on. As long as the hash is the same, the facts are kept. Happy path:
 * status asks each time. Failure modes: none; two states may have one hash, once in some 10^19. */
#include "daemon/controller/loss/loss_cost.h"

#include "daemon/controller/internal.h"
#include "daemon/controller/leaving/leaving.h"

#include "base/number/digest.h"
#include "base/sys/sys.h"

#include <string.h>

static void hash(uint64_t *key, const void *data, size_t len)
{
	*key = ptc_digest_append(*key, data, len);
}

static void hash_copies(uint64_t *key, const struct ptc_copies_doc *copies)
{
	for (size_t i = 0; i < copies->nparts; i++)
		hash(key, &copies->parts[i], sizeof copies->parts[i]);
	for (size_t i = 0; i < copies->nitems; i++)
		hash(key, copies->items[i].v, copies->items[i].n);
}

/* What the job could use: without nodes that it leaves, and without devices that it has left. No change of a node says
 * so. */
static void hash_left(uint64_t *key, struct ptc_cluster *c, const struct ptc_controller *ctl, const char *uuid)
{
	const struct ptc_job_view *job = ptc_cluster_find_uuid(c, uuid);
	const uint64_t left = job ? ptc_slow_devices_key(&job->slow, ptc_sys_realtime_ms()) : 0;

	hash(key, &left, sizeof left);
	for (uint32_t i = 0; i < ptc_cluster_nnodes(c); i++) {
		const bool leaves = ptc_leaving_has(ctl, ptc_cluster_node(c, i)->doc.name);

		hash(key, &leaves, sizeof leaves);
	}
}

/* A job that is deleted has its devices no more, and the document is written anew later. Its entries are by node, so
 * those of a job are often next to each other. */
static void hash_given(uint64_t *key, struct ptc_cluster *c)
{
	const struct ptc_devices_doc *given = ptc_cluster_devices(c);
	const char *of = "";
	bool there = false;

	for (size_t i = 0; i < given->n; i++) {
		if (strcmp(of, given->v[i].uuid) != 0) {
			const struct ptc_job_view *job = ptc_cluster_find_uuid(c, given->v[i].uuid);

			there = job && job->has_meta;
			of = given->v[i].uuid;
		}
		hash(key, &there, sizeof there);
	}
}

uint64_t ptc_loss_key(struct ptc_controllers *all, const struct ptc_controller *ctl, const struct ptc_view *v,
		      const bool *has)
{
	const struct ptc_older *bridge = &ctl->older.doc.bridge;
	const uint64_t numbers[] = { v->from_generation,
				     v->from_snapshot != 0,
				     ptc_cluster_epoch(all->cluster),
				     ptc_cluster_device_writes(all->cluster),
				     v->copies.nkeepers,
				     v->copies.nparts };
	uint64_t key = 1;

	hash(&key, numbers, sizeof numbers);
	hash(&key, v->meta.spec_hash, strlen(v->meta.spec_hash) + 1);
	hash(&key, v->from.layout_hash, strlen(v->from.layout_hash) + 1);
	hash(&key, has, v->nnodes * sizeof *has);
	for (size_t i = 0; i < v->nnodes; i++)
		hash(&key, v->nodes[i], strlen(v->nodes[i]) + 1);
	hash_copies(&key, &v->copies);
	hash_left(&key, all->cluster, ctl, v->meta.uuid);
	hash_given(&key, all->cluster);
	if (bridge->snapshot) /* it counts only while copies are not complete */
		hash(&key, &bridge->snapshot, sizeof bridge->snapshot);
	return key;
}
