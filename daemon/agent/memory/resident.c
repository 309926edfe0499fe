/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: each region that a stopped rank has on a device becomes a compact box of one allocation of ptc-gpu there,
 * as far as the budget goes; at the restore its rows are digested, then copied. Failure modes: no budget, no memory, no
 * kernels, a ptc-gpu that has ended meanwhile: less is resident, and the log says why. */
#include "daemon/agent/memory/resident.h"
#include "daemon/agent/calls/agent_state.h"
#include "daemon/store/store_read.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/log.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define ALIGN       256 /* of a box, as the driver aligns allocations */
#define DEVICES_MAX 64

struct ptc_resident {
	char *name;
	struct ptc_box box; /* in bytes */
	uint64_t at;        /* of its first byte in the device's memory */
	unsigned device;
	size_t source; /* while they are made */
};

struct device {
	struct ptc_device_memory memory;
	char uuid[48];
	uint64_t bytes; /* wanted */
};

struct ptc_residents {
	struct ptc_residents *next;
	char uuid[37]; /* the job */
	struct ptc_workers *workers;
	struct device devices[DEVICES_MAX];
	unsigned ndevices;
	struct ptc_resident *v;
	size_t n, cap;
	_Atomic uint64_t kept, peer; /* bytes restored: on the same device, on others */
	/* Devices that cannot read what another one has: it is not tried again. */
	pthread_mutex_t lock;
	struct blind *blind;
	size_t nblind;
};

struct blind {
	unsigned device; /* that has it */
	char uuid[48];   /* that cannot read it */
};

struct ptc_residents *ptc_residents_free(struct ptc_residents *r)
{
	if (!r)
		return NULL;
	for (unsigned i = 0; i < r->ndevices; i++)
		ptc_workers_keep_drop(r->workers, &r->devices[i].memory);
	for (size_t i = 0; i < r->n; i++)
		ptc_free(r->v[i].name);
	pthread_mutex_destroy(&r->lock);
	ptc_free(r->blind);
	ptc_free(r->v);
	ptc_free(r);
	return NULL;
}

struct ptc_residents *ptc_residents_take(struct ptc_agent *agent, const char *uuid)
{
	struct ptc_residents *r = NULL;

	pthread_mutex_lock(&agent->shared.lock);
	for (struct ptc_residents **at = &agent->shared.residents; *at && !r; at = &(*at)->next)
		if (strcmp((*at)->uuid, uuid) == 0) {
			r = *at;
			*at = r->next;
			break;
		}
	pthread_mutex_unlock(&agent->shared.lock);
	return r;
}

void ptc_residents_drop(struct ptc_agent *agent, const char *uuid)
{
	ptc_residents_free(ptc_residents_take(agent, uuid));
}

void ptc_residents_done(struct ptc_agent *agent)
{
	while (agent->shared.residents)
		ptc_residents_drop(agent, agent->shared.residents->uuid);
}

struct ptc_device_bytes ptc_residents_bytes(const struct ptc_residents *r)
{
	struct ptc_device_bytes none = { 0 };

	return r ? (struct ptc_device_bytes){ .kept = atomic_load(&r->kept), .peer = atomic_load(&r->peer) } : none;
}

/* ---- made ---- */

static int device_of(struct ptc_residents *r, const char *uuid, unsigned *ret)
{
	unsigned i = 0;

	while (i < r->ndevices && strcmp(r->devices[i].uuid, uuid) != 0)
		i++;
	if (i == DEVICES_MAX)
		return PTC_ELIMIT;
	if (i == r->ndevices) {
		snprintf(r->devices[i].uuid, sizeof r->devices[i].uuid, "%s", uuid);
		r->ndevices++;
	}
	*ret = i;
	return 0;
}

/* A replica on the same device is not kept again. */
static bool kept_already(const struct ptc_residents *r, unsigned device, const struct ptc_slot_sources *s,
			 size_t source)
{
	for (size_t i = r->n; i-- > 0 && s->v[r->v[i].source].item == s->v[source].item;)
		if (r->v[i].device == device && ptc_box_equal(&r->v[i].box, &s->v[source].at.box))
			return true;
	return false;
}

static int add_source(struct ptc_residents *r, const struct ptc_residents_make *make, size_t i, uint64_t budget)
{
	const struct ptc_slot_source *s = &make->sources->v[i];
	const char *uuid = ptc_slot_device(&make->group->v[s->slot], s->at.address);
	char name[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2];
	uint64_t bytes = (uint64_t)ptc_box_volume(&s->at.box);
	unsigned device;
	struct device *d;

	if (!uuid || !bytes || s->max || device_of(r, uuid, &device) != 0 || kept_already(r, device, make->sources, i))
		return 0;
	d = &r->devices[device];
	if (bytes > budget || d->bytes > budget - bytes)
		return 0;
	if (!PTC_ROOM(r->v, r->n + 1, r->cap))
		return PTC_ENOMEM;
	r->v[r->n] = (struct ptc_resident){
		.name = ptc_strdup(ptc_geometry_item_name(make->g, s->item, name, sizeof name)),
		.box = s->at.box,
		.at = d->bytes,
		.device = device,
		.source = i,
	};
	if (!r->v[r->n].name)
		return PTC_ENOMEM;
	r->n++;
	d->bytes = (d->bytes + bytes + ALIGN - 1) / ALIGN * ALIGN;
	return 0;
}

struct rows {
	struct ptc_device_rows *v;
	size_t n, cap;
	uint64_t base;  /* added to the kept side */
	uint64_t total; /* digest: the tensor's bytes */
	bool refused;   /* rows that run backwards */
};

static int push_rows(void *arg, const struct ptc_strided_rows *s, struct ptc_error *err)
{
	struct rows *r = arg;

	if (s->n > 1 && (s->there < s->len || s->here < s->len))
		r->refused = true;
	if (r->refused)
		return 0;
	if (!PTC_ROOM(r->v, r->n + 1, r->cap))
		return ptc_nomem(err);
	r->v[r->n++] = (struct ptc_device_rows){ .address = s->address,
						 .kept = r->base + (uint64_t)s->off,
						 .bytes = (uint64_t)s->len,
						 .n = (uint64_t)s->n,
						 .address_step = s->n > 1 ? (uint64_t)s->there : 0,
						 .kept_step = s->n > 1 ? (uint64_t)s->here : 0 };
	return 0;
}

/* The rows of a part of a source's box, beside the resident box that has it. */
static int rows_of(const struct ptc_slot_source *s, const struct ptc_resident *resident, const struct ptc_box *part,
		   struct rows *ret, struct ptc_error *err)
{
	*ret = (struct rows){ .base = resident->at };
	return ptc_strided_each_rows(&s->at, &resident->box, part, push_rows, ret, err);
}

static int fill(struct ptc_residents *r, const struct ptc_residents_make *make, struct ptc_error *err)
{
	int rc = 0;

	for (unsigned i = 0; i < r->ndevices && !rc; i++)
		if (r->devices[i].bytes)
			rc = ptc_workers_keep(r->workers, r->devices[i].uuid, r->devices[i].bytes,
					      &r->devices[i].memory, err);
	for (size_t i = 0; i < r->n && !rc; i++) {
		const struct ptc_slot_source *s = &make->sources->v[r->v[i].source];
		struct rows rows;

		rc = rows_of(s, &r->v[i], &r->v[i].box, &rows, err);
		if (!rc && !rows.refused)
			rc = ptc_slot_kept_copy(&make->group->v[s->slot], make->copying, PTC_COPY_READ,
						&r->devices[r->v[i].device].memory, rows.v, rows.n, err);
		ptc_free(rows.v);
	}
	return rc;
}

void ptc_residents_make(struct ptc_agent *agent, const struct ptc_residents_make *make)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_residents *r;
	int rc = 0;

	ptc_residents_drop(agent, make->g->uuid);
	if (!agent->env.device_copy_bytes || !agent->env.workers || !make->group->n)
		return;
	r = ptc_calloc(1, sizeof *r);
	if (!r)
		return;
	pthread_mutex_init(&r->lock, NULL);
	r->workers = agent->env.workers;
	snprintf(r->uuid, sizeof r->uuid, "%s", make->g->uuid);
	for (size_t i = 0; i < make->sources->n && !rc; i++)
		rc = add_source(r, make, i, agent->env.device_copy_bytes);
	if (!rc && r->n)
		rc = fill(r, make, &err);
	if (rc || !r->n) {
		if (rc)
			ptc_info("agent", "job %s: nothing stays on its devices for the restore: %s", make->g->uuid,
				 err.text);
		ptc_residents_free(r);
		return;
	}
	pthread_mutex_lock(&agent->shared.lock);
	r->next = agent->shared.residents;
	agent->shared.residents = r;
	pthread_mutex_unlock(&agent->shared.lock);
}

/* ---- restored ---- */

/* Takes what the resident box has out of *left. */
static int split_by(const struct ptc_resident *resident, struct ptc_boxes *left, ptc_resident_fn fn, void *arg)
{
	struct ptc_boxes rest = { 0 };
	struct ptc_box cut;
	int rc = 0;

	for (size_t i = 0; i < left->n && !rc; i++) {
		if (ptc_box_intersect(&left->v[i], &resident->box, &cut))
			rc = fn(arg, resident, &cut);
		if (rc == 0)
			rc = ptc_box_subtract(&left->v[i], &resident->box, &rest);
	}
	ptc_boxes_done(left);
	*left = rest;
	return rc;
}

static bool on(const struct ptc_residents *r, const struct ptc_resident *resident, const char *uuid)
{
	return strcmp(r->devices[resident->device].uuid, uuid) == 0;
}

int ptc_residents_split(const struct ptc_residents *r, const struct ptc_geometry *g, const struct ptc_group *group,
			const struct ptc_slot_source *source, ptc_resident_fn fn, void *arg)
{
	const char *uuid = r ? ptc_slot_device(&group->v[source->slot], source->at.address) : NULL;
	char buffer[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2];
	const char *name = ptc_geometry_item_name(g, source->item, buffer, sizeof buffer);
	struct ptc_boxes left = { 0 };
	int rc = ptc_boxes_push(&left, &source->at.box);

	for (int others = 0; uuid && others < 2; others++)
		for (size_t i = 0; i < r->n && !rc && left.n; i++)
			if (r->v[i].box.ndim == source->at.box.ndim && on(r, &r->v[i], uuid) == !others &&
			    strcmp(r->v[i].name, name) == 0)
				rc = split_by(&r->v[i], &left, fn, arg);
	for (size_t i = 0; i < left.n && !rc; i++)
		rc = fn(arg, NULL, &left.v[i]);
	ptc_boxes_done(&left);
	return rc;
}

/* The rows of a part of strided memory as a digest wants them: `at` in .kept, and in .address what follows the last row
 * in the tensor. */
static int digest_rows(const struct ptc_strided *at, const struct ptc_box *part, const int64_t *shape, struct rows *ret,
		       struct ptc_error *err)
{
	struct ptc_box tensor = { .ndim = part->ndim };
	int rc;

	*ret = (struct rows){ .total = 1 };
	for (uint32_t d = part->ndim; d-- > 0;) {
		tensor.ext[d] = shape[d];
		ret->total *= (uint64_t)shape[d];
	}
	rc = ptc_strided_each_rows(at, &tensor, part, push_rows, ret, err);
	for (size_t i = 0; i < ret->n; i++) { /* from (memory, offset in the tensor) */
		struct ptc_device_rows *r = &ret->v[i], was = *r;

		r->kept = was.address;
		r->kept_step = was.address_step;
		r->address_step = was.kept_step;
		r->address = ret->total - (was.kept + (was.n - 1) * was.kept_step + was.bytes);
	}
	return rc;
}

static struct ptc_strided kept_at(const struct ptc_resident *resident)
{
	struct ptc_strided kept = { .box = resident->box, .address = resident->at };
	int64_t stride = 1;

	for (uint32_t d = resident->box.ndim; d-- > 0;) {
		kept.stride[d] = stride;
		stride *= resident->box.ext[d];
	}
	return kept;
}

/* A part of a tensor that is in the store, and that devices have. */
struct part {
	int64_t shape[PTC_MAX_DIMS];
	const struct ptc_box *box;
	uint64_t digest; /* of the store's bytes */
};

static int part_of(const struct ptc_geometry *g, struct ptc_table *table, uint32_t item, const struct ptc_box *box,
		   struct part *ret, struct ptc_error *err)
{
	uint32_t ndim;
	int rc = ptc_geometry_shape(g, item, &ndim, ret->shape, err);

	ret->box = box;
	if (!rc && ndim != box->ndim)
		return ptc_error_set(err, PTC_EINTERNAL, "a box of %u dimensions of a tensor of %u", box->ndim, ndim);
	return rc ? rc : ptc_table_digest(table, item, box, ndim, ret->shape, &ret->digest, err);
}

/* Whether the resident box has the part's bytes. */
static int kept_equals(struct ptc_residents *r, const struct ptc_resident *resident, const struct part *p, bool *ret,
		       struct ptc_error *err)
{
	struct ptc_strided at = kept_at(resident);
	struct ptc_error ignored = PTC_ERROR_INIT;
	struct rows rows;
	uint64_t has;
	int rc = digest_rows(&at, p->box, p->shape, &rows, err);

	*ret = false;
	if (!rc && !rows.refused)
		*ret = ptc_workers_keep_digest(r->workers, &r->devices[resident->device].memory, rows.v, rows.n, &has,
					       &ignored) == 0 &&
		       has == p->digest;
	ptc_free(rows.v);
	return rc;
}

/* Whether the rank has them. Devices may read garbage of each other and say nothing, for example behind an IOMMU. */
static bool rank_equals(const struct ptc_slot_view *slot, const struct ptc_slot_source *source,
			struct ptc_slot_copying *copying, const struct part *p)
{
	struct ptc_error ignored = PTC_ERROR_INIT;
	struct rows rows;
	uint64_t has;
	bool equal = false;

	if (digest_rows(&source->at, p->box, p->shape, &rows, &ignored) == 0 && !rows.refused) {
		for (size_t i = 0; i < rows.n; i++) {
			struct ptc_device_rows *row = &rows.v[i], was = *row;

			row->address = was.kept;
			row->address_step = was.kept_step;
			row->kept = was.address;
			row->kept_step = was.address_step;
		}
		equal = ptc_slot_digest(slot, copying, rows.v, rows.n, &has, &ignored) == 0 && has == p->digest;
	}
	ptc_free(rows.v);
	return equal;
}

/* Whether it is known that the device cannot read what the other one has; with `now` it is from now on. */
static bool is_blind(struct ptc_residents *r, unsigned device, const char *uuid, bool now)
{
	bool found = false;

	pthread_mutex_lock(&r->lock);
	for (size_t i = 0; i < r->nblind && !found; i++)
		found = r->blind[i].device == device && strcmp(r->blind[i].uuid, uuid) == 0;
	if (!found && now && PTC_MORE(r->blind, r->nblind)) {
		struct blind *b = &r->blind[r->nblind++];

		b->device = device;
		snprintf(b->uuid, sizeof b->uuid, "%s", uuid);
	}
	pthread_mutex_unlock(&r->lock);
	return found;
}

/* Copies, to the same device or to another one. */
static int restore(struct ptc_residents *r, const struct ptc_resident *resident, const struct ptc_slot_view *slot,
		   const struct ptc_slot_source *source, struct ptc_slot_copying *copying, const struct part *p,
		   bool here, struct ptc_error *why, struct ptc_error *err)
{
	struct rows rows;
	int rc = rows_of(source, resident, p->box, &rows, err), copied = PTC_ENOTFOUND;

	if (!rc && !rows.refused)
		copied = ptc_slot_kept_copy(slot, copying, PTC_COPY_WRITE, &r->devices[resident->device].memory, rows.v,
					    rows.n, why);
	ptc_free(rows.v);
	if (rc)
		return rc;
	if (!copied && !here && !rank_equals(slot, source, copying, p))
		copied =
			ptc_error_set(why, PTC_ENODEVICES,
				      "what it reads there is not what is there (an IOMMU, or PCIe's access control?)");
	return copied;
}

int ptc_resident_restore(struct ptc_residents *r, const struct ptc_resident *resident, const struct ptc_geometry *g,
			 struct ptc_table *table, const struct ptc_slot_view *slot,
			 const struct ptc_slot_source *source, struct ptc_slot_copying *copying,
			 const struct ptc_box *box, bool *ret_done, struct ptc_error *err)
{
	const char *uuid = ptc_slot_device(slot, source->at.address), *from = r->devices[resident->device].uuid;
	bool here = uuid && on(r, resident, uuid), equal;
	struct ptc_error why = PTC_ERROR_INIT, failed = PTC_ERROR_INIT;
	struct part p;
	int rc;

	*ret_done = false;
	if (!uuid || (!here && is_blind(r, resident->device, uuid, false)))
		return 0;
	rc = part_of(g, table, source->item, box, &p, err);
	if (rc == 0)
		rc = kept_equals(r, resident, &p, &equal, err);
	if (rc || !equal)
		return rc;
	rc = restore(r, resident, slot, source, copying, &p, here, &why, &failed);
	*ret_done = rc == 0;
	if (*ret_done)
		atomic_fetch_add(here ? &r->kept : &r->peer, (uint64_t)ptc_box_volume(box));
	else if (failed.code)
		return ptc_error_set(err, rc, "%s", failed.text);
	else if (rc == PTC_ENODEVICES && !here && !is_blind(r, resident->device, uuid, true))
		ptc_info("agent", "job %s: what device %s needs of device %s comes from the host: %s", r->uuid, uuid,
			 from, why.text);
	else
		ptc_debug("agent", "job %s: a box on device %s is not used: %s", r->uuid, from, why.text);
	return 0;
}
