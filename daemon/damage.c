/* SPDX-License-Identifier: Apache-2.0 */
/* A block of our store that does not match its checksum becomes an event of its job. Happy path: the store tells once for each block,
 * on whatever thread read it; the loop finds the job; the coordination thread reads what the item is called, and writes the event.
 * Failure modes: a job or generation that is gone, documents that cannot be had: the item goes by its number. Out of memory: a line
 * in the log. Whoever read the block is refused in any case. */
#include "daemon/ptcd.h"
#include "daemon/store/store.h"

#include "base/alloc.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>

struct damage {
	struct ptc_daemon *d;
	struct ptc_store_damage what;
	struct ptc_meta_doc meta;
	struct ptc_record_doc record;
	bool current; /* of the committed generation, which both describe */
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
	ptc_event(x->d->cluster, x->what.key.uuid, "damaged",
		  "node %s: tensor \"%.400s\", %s; nobody is given it until it is what it was", x->d->config.node, name,
		  x->what.text);
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
	if (ptc_cluster_run(x->d->cluster, tell, damage_free, x) != 0)
		ptc_free(x);
}

void ptc_damaged(void *arg, const struct ptc_store_damage *what)
{
	struct ptc_daemon *d = arg;
	struct damage *x = ptc_calloc(1, sizeof *x);

	ptc_warn("store", "job=%s item %" PRIu32 ", %s", what->key.uuid, what->item, what->text);
	if (!x)
		return;
	x->d = d;
	x->what = *what;
	if (ptc_loop_post(d->loop, damage_on_loop, x) != 0)
		ptc_free(x);
}
