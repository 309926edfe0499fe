/* SPDX-License-Identifier: Apache-2.0 */
/* Views of a group's ranks, and the order to go on. Happy path: a view has references to its rank's declarations and
 * rank state. Failure modes: there is no such group (PTC_ENOTFOUND), or the rank does not wait to be restored
 * (PTC_ESTATE). */
#include "daemon/workers/group/slots/slot_view.h"
#include "daemon/workers/session/session.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/sys/fault.h"

#include <fcntl.h>
#include <stddef.h>

static void view_done_locked(struct view *v)
{
	if (!v)
		return;
	if (v->staging) {
		struct worker *k = ptc_worker_find_locked(v->w, v->group->job->uuid, v->number);
		uint32_t reading = PTC_LOCAL_STAGE_READING;

		if (k && k->page && --v->staging->readers == 0)
			atomic_compare_exchange_strong(&k->page->staging, &reading, PTC_LOCAL_STAGE_FREE);
	}
	v->group->viewed--;
	ptc_staging_unref(v->staging);
	ptc_declared_unref(v->declared);
	ptc_declared_unref(v->layout);
	ptc_rank_state_unref(v->rank_state);
	ptc_close(&v->pidfd);
	ptc_close(&v->guard.page_fd);
	ptc_group_unref_locked(v->group);
	ptc_free(v);
}

/* The rank may go on as soon as it is told; it does not touch staging memory that is being read. */
static void view_staging(struct view *v, struct worker *k)
{
	uint32_t is_free = PTC_LOCAL_STAGE_FREE;

	if (k->phase != WORKER_STOPPED || !k->staged || !k->staging || !k->page || v->group->held_from_ns)
		return;
	if (!atomic_compare_exchange_strong(&k->page->staging, &is_free, PTC_LOCAL_STAGE_READING) &&
	    is_free != PTC_LOCAL_STAGE_READING)
		return;
	v->staging = k->staging;
	k->staging->refs++;
	k->staging->readers++;
}

/* The rank's device has said that its memory is whole, at the stop or where the rank is held. If it takes that back,
 * what was copied does not count. */
static void view_guard(struct view *v, const struct worker *k)
{
	const bool is_held = v->group->held_from_ns && (k->hold.frozen || k->outlived);
	uint64_t step = k->hold.step;

	if ((k->phase != WORKER_STOPPED && !is_held) || !k->page ||
	    atomic_load(&k->page->marks) != PTC_LOCAL_MARKS_PROVEN)
		return;
	if (k->outlived && !ptc_local_step(k->page, &step))
		return;
	v->guard = (struct ptc_device_guard){
		.page_fd = is_held && ptc_fault("workers.guard") ? -1 : fcntl(k->page_fd, F_DUPFD_CLOEXEC, 0),
		.page_bytes = PTC_LOCAL_PAGE,
		.at = offsetof(struct ptc_local_page, device),
		.value = is_held ? ptc_local_mark(step, true) : ptc_local_mark(k->stop_step, true)
	};
	v->unguarded = is_held && v->guard.page_fd < 0;
}

static struct view *view_new_locked(struct ptc_workers *w, struct group *g, size_t i)
{
	struct view *v = ptc_calloc(1, sizeof *v);
	struct worker *k = g->slots[i].worker;

	if (!v)
		return NULL;
	v->w = w;
	v->group = ptc_group_ref(g);
	g->viewed++;
	v->slot = i;
	v->pidfd = v->guard.page_fd = -1;
	if (!k || (k->ended && !(k->outlived && g->held_from_ns)))
		return v;
	v->outlived = k->outlived;
	v->number = k->number;
	v->pid = k->pid;
	v->pidfd = k->pidfd >= 0 ? fcntl(k->pidfd, F_DUPFD_CLOEXEC, 0) : -1;
	if (k->phase >= WORKER_DECLARED && k->phase <= WORKER_STOPPED && k->declared) {
		v->declared = k->declared;
		v->declared->refs++;
		v->rank_state =
			ptc_rank_state_ref(k->hold.published || k->outlived ? k->hold.published : k->rank_state);
		if (!k->outlived)
			view_staging(v, k);
		view_guard(v, k);
	}
	if (k->phase == WORKER_BUILDING && k->layout) {
		v->layout = k->layout;
		v->layout->refs++;
	}
	return v;
}

static void fill_view_locked(struct ptc_slot_view *s, struct view *v)
{
	const struct worker *k = v->group->slots[v->slot].worker;
	uint64_t step;

	*s = (struct ptc_slot_view){ .rank = v->group->slots[v->slot].rank,
				     .state = ptc_group_slot_state(v->group, v->slot),
				     .pid = v->pid,
				     .copied = v->staging,
				     .not_held = v->group->held_from_ns ? ptc_worker_not_held(v->group, k)
									: "it is not held",
				     .promises = k && k->page && atomic_load(&k->page->survives),
				     .stays = ptc_worker_stays(k),
				     .verifies = k && k->fill.verifies,
				     .opaque = v };
	s->staged = v->staging != NULL;
	s->outlived = v->outlived;
	if (v->declared || v->layout) {
		const struct declared *d = v->declared ? v->declared : v->layout;

		s->tensors = d->tensors;
		s->ntensors = d->ntensors;
	}
	if (v->rank_state) {
		s->blobs = v->rank_state->blobs;
		s->nblobs = v->rank_state->nblobs;
		s->cursors = v->rank_state->cursors;
		s->ncursors = v->rank_state->ncursors;
	}
	s->has_state = v->rank_state != NULL;
	s->published = true;
	if (k && k->phase == WORKER_STOPPED)
		s->step = k->stop_step;
	else if (k && k->page && ptc_local_step(k->page, &step))
		s->step = step;
	else
		s->published = false;
}

int ptc_workers_slots(struct ptc_workers *w, const struct ptc_group_key *key, struct ptc_slot_view **ret_slots,
		      size_t *ret_n, struct ptc_error *err)
{
	struct ptc_slot_view *slots = NULL;
	struct group *g;
	size_t n = 0;
	int rc;

	pthread_mutex_lock(&w->lock);
	g = ptc_group_find_locked(w, key);
	rc = g ? 0 : ptc_group_missing(key, err);
	if (!rc) {
		ptc_group_ref(g);
		rc = ptc_group_wait_connected_locked(w, g, err);
		slots = rc ? NULL : ptc_calloc(g->desc.nranks, sizeof *slots);
		for (; slots && n < g->desc.nranks; n++) {
			struct view *v = view_new_locked(w, g, n);

			if (!v)
				break;
			fill_view_locked(&slots[n], v);
		}
		if (!rc && n < g->desc.nranks)
			rc = ptc_nomem(err);
		ptc_group_unref_locked(g);
	}
	pthread_mutex_unlock(&w->lock);
	if (rc) {
		ptc_workers_slots_done(w, slots, n);
		return rc;
	}
	*ret_slots = slots;
	*ret_n = n;
	return 0;
}

void ptc_workers_slots_done(struct ptc_workers *w, struct ptc_slot_view *slots, size_t n)
{
	if (!slots)
		return;
	pthread_mutex_lock(&w->lock);
	for (size_t i = 0; i < n; i++)
		view_done_locked(slots[i].opaque);
	pthread_mutex_unlock(&w->lock);
	ptc_free(slots);
}

int ptc_slot_go(const struct ptc_slot_view *slot, bool restored, const struct ptc_slot_blob *blobs, size_t nblobs,
		const struct ptc_slot_cursor *cursors, size_t ncursors, struct ptc_error *err)
{
	const struct view *v = slot->opaque;
	struct rank_state *rank_state = NULL;
	struct worker *k;
	const struct ptc_rank_state of = { blobs, cursors, nblobs, ncursors };
	int rc = ptc_rank_state_make(&of, &rank_state, err);

	if (rc)
		return rc;
	pthread_mutex_lock(&v->w->lock);
	k = v->group->slots[v->slot].worker;
	if (!k || k->number != v->number || v->group->ending || k->phase != WORKER_DECLARED || !k->page) {
		ptc_rank_state_unref(rank_state);
		rc = ptc_error_set(err, PTC_ESTATE, "rank %u does not wait to be restored",
				   v->group->slots[v->slot].rank.rank);
	} else {
		ptc_rank_state_unref(k->restore);
		k->restore = rank_state;
		k->restored = restored;
		k->go = true;
		ptc_worker_raise_locked(v->w, k); /* by then it is done, unless a ptcd was killed */
		atomic_exchange(&k->page->stop, ptc_group_first_stop(v->group));
		ptc_worker_advance_locked(v->w, k);
	}
	pthread_mutex_unlock(&v->w->lock);
	return rc;
}
