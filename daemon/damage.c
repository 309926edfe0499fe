/* SPDX-License-Identifier: Apache-2.0 */
/* A block of our store that does not match its checksum becomes an event of its job, and so does the result of healing.
 * Happy path: the store reports each damaged block once, on the thread that read it; the agent reports each block that
 * it has healed or cannot heal. The loop then finds the job, and a task reads the item's name and writes the event.
 *
 * Failure modes: a job or generation that is gone, documents that cannot be had: the item goes by its number. Out of
 * memory: a line in the log. The reader of the block gets an error in any case. */
#include "daemon/ptcd.h"
#include "daemon/scrub/scrub.h"
#include "daemon/store/store.h"

#include "base/alloc.h"
#include "base/log.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define UNHEALED_MAX 1024 /* remembered; of more than that some are said twice */

struct damage {
	struct ptc_daemon *d;
	struct ptc_store_damage what;
	struct ptc_meta_doc meta;
	struct ptc_record_doc record;
	bool current; /* of the committed generation, which both describe */
	const char *kind;
	char text[512]; /* what comes after the block */
};

static void damage_free(void *arg)
{
	ptc_free(arg);
}

static int name_in(const struct damage *x, const struct ptc_view *v, char *name, size_t size)
{
	struct ptc_daemon *d = x->d;
	const struct ptc_declared *declared;
	const struct ptc_layout *layout;
	const struct ptc_job_desc *desc;
	const struct ptc_spec *spec;
	bool laid = v->from.layout_hash[0] != '\0';
	void *ref;
	int rc = laid ? ptc_layouts_get(d->docs.layouts, x->meta.uuid, v->from.layout_hash, &declared, &layout, &ref,
					NULL)
		      : ptc_specs_get(d->docs.specs, x->meta.uuid, x->meta.spec_hash, &desc, &ref, NULL);

	if (rc)
		return rc;
	spec = laid ? &declared->spec : &desc->spec;
	rc = x->what.item < ptc_spec_items(spec) ? 0 : PTC_ENOTFOUND;
	if (rc == 0)
		ptc_item_name(spec, x->what.item, name, size);
	if (laid)
		ptc_layouts_release(ref);
	else
		ptc_specs_release(ref);
	return rc;
}

static void tell(void *arg, struct ptc_etcd *etcd)
{
	char name[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2];
	struct damage *x = arg;
	struct ptc_view v;
	int rc = x->current ? ptc_view_load(x->d->docs.kept, &x->meta, &x->record, NULL, &v, NULL) : PTC_ENOTFOUND;

	if (rc == 0) {
		rc = name_in(x, &v, name, sizeof name);
		ptc_view_done(&v);
	}
	if (rc)
		snprintf(name, sizeof name, "number %" PRIu32 " of generation %" PRIu64, x->what.item,
			 x->what.key.generation);
	ptc_event(x->d->cluster, x->what.key.uuid, x->kind, "node %s: tensor \"%.400s\", %s; %s", x->d->config.node,
		  name, x->what.text, x->text);
}

static void damage_on_loop(void *arg)
{
	struct damage *x = arg;
	const struct ptc_job_view *j = ptc_cluster_find_uuid(x->d->cluster, x->what.key.uuid);

	x->current = j && j->has_meta && j->has_record && j->record.generation == x->what.key.generation;
	if (x->current) {
		x->meta = j->meta;
		x->record = j->record;
	}
	if (ptc_cluster_run(x->d->cluster, x->what.key.uuid, tell, damage_free, x) != 0)
		ptc_free(x);
}

static void say(struct ptc_daemon *d, const struct ptc_store_damage *what, const char *kind, const char *text)
{
	struct damage *x = ptc_calloc(1, sizeof *x);

	if (!x)
		return;
	x->d = d;
	x->what = *what;
	x->kind = kind;
	snprintf(x->text, sizeof x->text, "%s", text);
	if (ptc_loop_post(d->loop, damage_on_loop, x) != 0)
		ptc_free(x);
}

void ptc_damaged(void *arg, const struct ptc_store_damage *what)
{
	struct ptc_daemon *d = arg;

	ptc_warn("store", "job=%s item %" PRIu32 ", %s", what->key.uuid, what->item, what->text);
	say(d, what, "damaged", "nobody is given it until it is what it was");
	ptc_scrubber_wake(d->scrubber);
}

/* Of what was said to be unhealed, in the order said; a block that is tried again is not said again. Guarded by lock.
 */
static struct {
	pthread_mutex_t lock;
	struct {
		char uuid[PTC_UUID_TEXT];
		uint32_t chunk, block;
	} v[UNHEALED_MAX];
	size_t next;
} unhealed = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Notes it, or forgets it; returns whether it was there. */
static bool unhealed_note(const struct ptc_store_damage *what, bool healed)
{
	bool there = false;

	pthread_mutex_lock(&unhealed.lock);
	for (size_t i = 0; i < UNHEALED_MAX; i++)
		if (unhealed.v[i].chunk == what->chunk && unhealed.v[i].block == what->block &&
		    strcmp(unhealed.v[i].uuid, what->key.uuid) == 0) {
			there = true;
			if (healed)
				unhealed.v[i].uuid[0] = '\0';
		}
	if (!there && !healed) {
		size_t at = unhealed.next++ % UNHEALED_MAX;

		memcpy(unhealed.v[at].uuid, what->key.uuid, sizeof unhealed.v[at].uuid);
		unhealed.v[at].chunk = what->chunk;
		unhealed.v[at].block = what->block;
	}
	pthread_mutex_unlock(&unhealed.lock);
	return there;
}

void ptc_healed(void *arg, const struct ptc_agent_healed *healed)
{
	struct ptc_daemon *d = arg;
	bool said = unhealed_note(healed->what, healed->status == 0);

	if (healed->status && said)
		return;
	if (healed->status)
		ptc_warn("store", "job=%s item %" PRIu32 ", %s; it cannot be healed: %s", healed->what->key.uuid,
			 healed->what->item, healed->what->text, healed->text);
	say(d, healed->what, healed->status ? "unhealed" : "healed", healed->text);
}
