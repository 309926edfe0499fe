/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the rank fills itself, from a file (rank_slots.h, ptc_slot_fill).
 *
 * Failure modes: rows outside of declared memory (EINTERNAL); a rank whose libptc cannot do it, or failed
 * (ptc_slot_filling.failed: the caller copies then). */
#include "daemon/workers/group/slots/slot_view.h"
#include "daemon/workers/session/rank_conn.h"

#include "base/alloc.h"
#include "base/check.h"

#include <fcntl.h>
#include <string.h>

_Static_assert(PTC_SLOT_ROWS_MAX == PTC_LOCAL_ROWS_MAX && PTC_SLOT_CHUNKS_MAX == PTC_LOCAL_CHUNKS_MAX,
	       "what the agent may say, a message can");
_Static_assert(sizeof(struct ptc_chunk_sums) == sizeof(struct ptc_direct_read_chunk), "chunks are sent as they come");

/* Rows on a device that ptc-gpu copies: the rank is not told of them. */
static bool rows_mapped(const struct view *v, const struct ptc_slot_rows *rows, size_t n)
{
	bool any = false;

	for (size_t i = 0; v->declared->ndevices && i < n && !any; i++)
		any = ptc_declared_device(v->declared, rows[i].address) != NULL;
	return any && ptc_declared_try(v->w, v->declared, v->pid) == DEVICE_MAPPED;
}

static int check_rows(const struct view *v, const struct ptc_slot_rows *rows, size_t n, struct ptc_error *err)
{
	if (!v->declared)
		return ptc_error_set(err, PTC_ESTATE, "rank %u has declared nothing",
				     v->group->slots[v->slot].rank.rank);
	for (size_t i = 0; i < n; i++) {
		uint64_t reach, bytes;

		if (!rows[i].count || ptc_ckd_mul(&reach, rows[i].count - 1, rows[i].address_step) ||
		    ptc_ckd_add(&bytes, reach, rows[i].bytes) ||
		    !ptc_declared_span(v->declared, rows[i].address, bytes))
			return ptc_error_set(err, PTC_EINTERNAL,
					     "rank %u: rows at 0x%llx are outside of its declared memory",
					     v->group->slots[v->slot].rank.rank, (unsigned long long)rows[i].address);
	}
	return 0;
}

#define FILLS_AHEAD 16

static struct worker *fill_worker_locked(const struct view *v)
{
	struct worker *k = ptc_worker_find_locked(v->w, v->group->job->uuid, v->number);

	return k && !k->ended ? k : NULL;
}

/* Waits until at most `ahead` of what it was told is left to be done. NULL: it has gone. One that comes back on another
 * connection has none of it to do any more. */
static int fill_wait_locked(const struct view *v, uint64_t ahead, const struct ptc_wait *wait, struct worker **ret,
			    struct ptc_error *err)
{
	int rc = 0;

	while (!rc && (*ret = fill_worker_locked(v)) && (*ret)->fill.sent - (*ret)->fill.done > ahead)
		rc = ptc_workers_pause_locked(v->w, wait, 0, err);
	return rc;
}

static void put_order(struct ptc_local_out *out, struct ptc_local_fill *m, const struct ptc_slot_order *order)
{
	struct ptc_local_rows rows[PTC_LOCAL_ROWS_MAX];
	struct ptc_direct_read_chunk chunks[PTC_LOCAL_CHUNKS_MAX];

	for (size_t i = 0; i < order->nrows; i++) {
		const struct ptc_slot_rows *r = &order->rows[i];

		rows[i] = (struct ptc_local_rows){ r->address, r->offset,       r->bytes,
						   r->count,   r->address_step, r->offset_step };
	}
	if (order->nchunks)
		memcpy(chunks, order->chunks, order->nchunks * sizeof chunks[0]);
	m->nrows = (uint32_t)order->nrows;
	m->nchunks = (uint32_t)order->nchunks;
	ptc_local_put_fill(out, m, rows, chunks);
}

static bool fill_send_locked(const struct view *v, struct worker *k, int fd, const struct ptc_slot_order *order)
{
	struct ptc_local_fill m = { .generation = k->generation,
				    .incarnation = k->incarnation,
				    .id = k->fill.sent + 1 };
	struct ptc_local_out out = { .grow = ptc_realloc };
	int ours = fcntl(fd, F_DUPFD_CLOEXEC, 0);

	if (ours < 0)
		return false;
	k->fill.sent++;
	put_order(&out, &m, order);
	ptc_conn_send_locked(k->conn, PTC_LOCAL_FILL, &out, ours);
	ptc_free(out.data);
	if (k->conn->out || k->conn->broken)
		ptc_workers_wake(v->w);
	return true;
}

int ptc_slot_fill(const struct ptc_slot_view *slot, struct ptc_slot_filling *f, int fd,
		  const struct ptc_slot_order *order, const struct ptc_wait *wait, struct ptc_error *err)
{
	const struct view *v = slot->opaque;
	struct worker *k;
	bool mapped;
	int rc = order->nrows > PTC_SLOT_ROWS_MAX || order->nchunks > PTC_SLOT_CHUNKS_MAX
			 ? ptc_error_set(err, PTC_EINTERNAL, "one fill has %zu rows in %zu chunks, which is too many",
					 order->nrows, order->nchunks)
			 : check_rows(v, order->rows, order->nrows, err);

	if (rc == 0)
		rc = ptc_slot_check_held(v, err);
	if (rc)
		return rc;
	mapped = rows_mapped(v, order->rows, order->nrows);
	pthread_mutex_lock(&v->w->lock);
	rc = fill_wait_locked(v, FILLS_AHEAD - 1, wait, &k, err);
	if (!rc && !f->failed) {
		bool able = !mapped && k && k->fill.can && (k->fill.verifies || !order->nchunks) && k->conn &&
			    !k->conn->closing && k->phase == WORKER_DECLARED &&
			    (!f->session || f->session == k->fill.session);

		f->session = k ? k->fill.session : 0;
		f->failed = !able || !fill_send_locked(v, k, fd, order);
	}
	pthread_mutex_unlock(&v->w->lock);
	return rc;
}

int ptc_slot_filled(const struct ptc_slot_view *slot, struct ptc_slot_filling *f, const struct ptc_wait *wait,
		    struct ptc_error *err)
{
	const struct view *v = slot->opaque;
	struct worker *k;
	int rc;

	pthread_mutex_lock(&v->w->lock);
	rc = fill_wait_locked(v, 0, wait, &k, err);
	if (!rc && f->session && (!k || k->fill.session != f->session || k->fill.failed))
		f->failed = true;
	if (!rc) {
		f->damaged = k && k->fill.damaged;
		if (k)
			k->fill.damaged = false;
	}
	pthread_mutex_unlock(&v->w->lock);
	return rc;
}
