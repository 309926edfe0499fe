/* SPDX-License-Identifier: Apache-2.0 */
/* What ptc-gpu does for slots, beside copies to and from this node's memory: shadows of stopped ranks' device memory
 * (copy: async), memory that is kept on a device for the next restore, digests, page-locked memory.
 *
 * Failure modes: rows that are not on the device, or that only the rank can copy (ENOTFOUND); a rank that has died
 * (ESTATE). */
#include "daemon/workers/group/slots/slot_view.h"

#include "base/alloc.h"
#include "base/check.h"

#include <stdio.h>
#include <string.h>

int ptc_workers_pin_begin(struct ptc_workers *w, int fd, uint64_t bytes, uint64_t step, const char *uuid,
			  struct ptc_device_pinned *ret, struct ptc_error *err)
{
	return ptc_device_pin_begin(w->gpu, fd, bytes, step, uuid, ret, err);
}

int ptc_workers_pin_more(struct ptc_workers *w, struct ptc_device_pinned *p, struct ptc_error *err)
{
	return ptc_device_pin_more(w->gpu, p, err);
}

bool ptc_workers_unpin(struct ptc_workers *w, struct ptc_device_pinned *p)
{
	return ptc_device_unpin(w->gpu, p);
}

/* What of a rank's declared memory lies on devices: each span is cut where an allocation ends. */
static int device_spans(const struct declared *d, struct ptc_device_span **ret, size_t *ret_n, struct ptc_error *err)
{
	struct ptc_device_span *v = NULL;
	size_t n = 0, cap = 0;

	for (size_t i = 0; i < d->nspans; i++) {
		uint64_t address = d->spans[i].address, end = address + d->spans[i].bytes;

		for (const struct ptc_device_range *r; address < end; address = v[n - 1].address + v[n - 1].bytes) {
			r = ptc_declared_device(d, address);
			if (!r)
				break; /* of the host */
			if (!PTC_ROOM(v, n + 1, cap)) {
				ptc_free(v);
				return ptc_nomem(err);
			}
			v[n++] = (struct ptc_device_span){ r, address, PTC_MIN(end, r->address + r->bytes) - address };
		}
	}
	*ret = v;
	*ret_n = n;
	return 0;
}

int ptc_slot_shadow(const struct ptc_slot_view *slot, struct ptc_slot_copying *copying, struct ptc_error *err)
{
	const struct view *v = slot->opaque;
	struct ptc_device_span *spans = NULL;
	size_t n = 0;
	int rc;

	if (v->staging || !v->declared || !v->declared->ndevices)
		return 0;
	rc = ptc_slot_check_held(v, err);
	if (rc == 0)
		rc = ptc_slot_check_mapped(v, err);
	if (rc == 0)
		rc = device_spans(v->declared, &spans, &n, err);
	if (!rc && n)
		rc = ptc_device_shadow(v->w->gpu, copying, v->pid, spans, n, &v->guard, err);
	ptc_free(spans);
	return !rc && ptc_slot_dead(v) ? ptc_slot_died(v, err) : rc;
}

bool ptc_slot_has_shadow(const struct ptc_slot_view *slot, uint64_t address)
{
	const struct view *v = slot->opaque;

	return v->staging || (v->declared && ptc_declared_device(v->declared, address));
}

bool ptc_slots_shadow_lives(struct ptc_workers *w, const struct ptc_slot_copying *copying)
{
	return ptc_device_shadow_lives(w->gpu, copying);
}

void ptc_slots_shadow_only(struct ptc_workers *w, struct ptc_slot_copying *copying)
{
	ptc_device_shadow_only(w->gpu, copying);
}

void ptc_slots_shadow_drop(struct ptc_workers *w, struct ptc_slot_copying *copying)
{
	ptc_device_shadow_drop(w->gpu, copying);
}

bool ptc_workers_copied_async(struct ptc_workers *w, const struct ptc_group_key *key, bool done, const char *why)
{
	bool other = false;
	struct group *g;

	pthread_mutex_lock(&w->lock);
	g = ptc_group_find_locked(w, key);
	if (g) {
		other = !g->async.known || g->async.done != done;
		g->async.known = true;
		g->async.done = done;
		snprintf(g->async.why, sizeof g->async.why, "%.255s", why);
	}
	pthread_mutex_unlock(&w->lock);
	return other;
}

int ptc_workers_keep(struct ptc_workers *w, const char *uuid, uint64_t bytes, struct ptc_device_memory *ret,
		     struct ptc_error *err)
{
	return ptc_device_keep(w->gpu, uuid, bytes, ret, err);
}

void ptc_workers_keep_drop(struct ptc_workers *w, struct ptc_device_memory *m)
{
	ptc_device_drop(w->gpu, m);
}

int ptc_workers_keep_digest(struct ptc_workers *w, const struct ptc_device_memory *m,
			    const struct ptc_device_rows *rows, size_t n, uint64_t *ret_digest, struct ptc_error *err)
{
	return ptc_device_digest_kept(w->gpu, m, rows, n, ret_digest, err);
}

#define KEPT_ROWS 512 /* of one call */

/* Rows of one allocation of the rank, on their way to or from kept memory, or (COMPARE) into a digest. */
struct kept_copy {
	const struct view *v;
	struct ptc_slot_copying *copying;
	const struct ptc_device_memory *m; /* COMPARE: NULL */
	enum ptc_copy_op op;
	const struct ptc_device_range *range;
	struct ptc_device_rows rows[KEPT_ROWS];
	size_t n;
	uint64_t digest;
};

static int kept_flush(struct kept_copy *k, struct ptc_error *err)
{
	uint64_t digest = 0;
	size_t n = k->n;
	int rc;

	k->n = 0;
	if (!n)
		return 0;
	if (k->op != PTC_COPY_COMPARE)
		return ptc_device_copy_kept(k->v->w->gpu, k->copying, k->m, k->op, ptc_slot_owner(k->v), k->range,
					    k->rows, n, err);
	rc = ptc_device_digest_rank(k->v->w->gpu, k->copying, ptc_slot_owner(k->v), k->range, k->rows, n, &digest, err);
	k->digest ^= digest;
	return rc;
}

static int kept_add(struct kept_copy *k, const struct ptc_device_range *range, const struct ptc_device_rows *rows,
		    struct ptc_error *err)
{
	int rc = k->n == KEPT_ROWS || k->range != range ? kept_flush(k, err) : 0;

	k->range = range;
	k->rows[k->n++] = *rows;
	return rc;
}

/* One row, in pieces where an allocation ends. */
static int kept_row(struct kept_copy *k, uint64_t address, uint64_t kept, uint64_t bytes, struct ptc_error *err)
{
	const bool tail = k->op == PTC_COPY_COMPARE; /* `kept` is what follows the row */
	int rc = 0;

	while (bytes && !rc) {
		const struct ptc_device_range *r = ptc_declared_device(k->v->declared, address);
		uint64_t now = r ? PTC_MIN(bytes, r->address + r->bytes - address) : 0;

		if (!r || (k->op == PTC_COPY_READ && strcmp(r->uuid, k->m->uuid) != 0))
			return ptc_error_set(err, PTC_ENOTFOUND, "memory at 0x%llx is not on the device",
					     (unsigned long long)address);
		bytes -= now;
		rc = kept_add(k, r,
			      &(struct ptc_device_rows){
				      .address = address, .kept = kept + (tail ? bytes : 0), .bytes = now, .n = 1 },
			      err);
		address += now;
		kept += tail ? 0 : now;
	}
	return rc;
}

/* Handles of one tensor are allocations that follow each other: rows are cut where one ends. */
static int kept_rows(struct kept_copy *k, const struct ptc_device_rows *rows, struct ptc_error *err)
{
	const struct ptc_device_range *r = ptc_declared_device(k->v->declared, rows->address);
	uint64_t reach, bytes;
	int rc = 0;

	if (!rows->n || ptc_ckd_mul(&reach, rows->n - 1, rows->address_step) ||
	    ptc_ckd_add(&bytes, reach, rows->bytes) || !ptc_declared_span(k->v->declared, rows->address, bytes))
		return ptc_error_set(err, PTC_EINTERNAL, "rows at 0x%llx are outside of declared memory",
				     (unsigned long long)rows->address);
	if (r && bytes <= r->address + r->bytes - rows->address &&
	    (k->op != PTC_COPY_READ || strcmp(r->uuid, k->m->uuid) == 0))
		return kept_add(k, r, rows, err);
	for (uint64_t i = 0; i < rows->n && !rc; i++) {
		uint64_t steps = k->op == PTC_COPY_COMPARE ? rows->n - 1 - i : i;

		rc = kept_row(k, rows->address + i * rows->address_step, rows->kept + steps * rows->kept_step,
			      rows->bytes, err);
	}
	return rc;
}

static int kept_do(const struct ptc_slot_view *slot, const struct kept_copy *what, const struct ptc_device_rows *rows,
		   size_t n, uint64_t *ret_digest, struct ptc_error *err)
{
	const struct view *v = slot->opaque;
	struct kept_copy *k;
	int rc;

	if (!v->declared || ptc_declared_try(v->w, v->declared, v->pid) != DEVICE_MAPPED)
		return ptc_error_set(err, PTC_ENOTFOUND, "rank %u copies its device memory itself",
				     v->group->slots[v->slot].rank.rank);
	rc = ptc_slot_check_held(v, err);
	if (!rc && ptc_slot_dead(v))
		rc = ptc_slot_died(v, err);
	if (rc)
		return rc;
	k = ptc_malloc(sizeof *k);
	if (!k)
		return ptc_nomem(err);
	*k = *what;
	k->v = v;
	for (size_t i = 0; i < n && !rc; i++)
		rc = kept_rows(k, &rows[i], err);
	if (rc == 0)
		rc = kept_flush(k, err);
	if (ret_digest)
		*ret_digest = k->digest;
	ptc_free(k);
	return !rc && ptc_slot_dead(v) ? ptc_slot_died(v, err) : rc;
}

int ptc_slot_kept_copy(const struct ptc_slot_view *slot, struct ptc_slot_copying *copying, enum ptc_copy_op op,
		       const struct ptc_device_memory *m, const struct ptc_device_rows *rows, size_t n,
		       struct ptc_error *err)
{
	return kept_do(slot, &(struct kept_copy){ .copying = copying, .m = m, .op = op }, rows, n, NULL, err);
}

int ptc_slot_digest(const struct ptc_slot_view *slot, struct ptc_slot_copying *copying,
		    const struct ptc_device_rows *rows, size_t n, uint64_t *ret_digest, struct ptc_error *err)
{
	return kept_do(slot, &(struct kept_copy){ .copying = copying, .op = PTC_COPY_COMPARE }, rows, n, ret_digest,
		       err);
}
