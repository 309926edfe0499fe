/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's messages, and the answers to them. Happy path: HELLO names the rank's process; every later message moves its
 * phase; advance() sends what follows from the phase and from the next step of the group.
 *
 *   CONNECTED -NEXT-> WAITING -generation-> BUILDING -DECLARED-> DECLARED -go-> RUNNING -STOPPED-> STOPPED
 *                        ^                     |                    |             |  ^               |  |
 *                        |                     |                    |             |  +----go on------+  |
 *                        +-------NEXT------- ENDING <---------------+-------------+---------------------+
 *
 * Failure modes: a message that is not allowed now or not readable: the answer is REFUSED, and the connection is closed
 * (rank_hello.c has those of HELLO). A message of a rank of an ended generation is skipped: the rank gets ENDED, and
 * can change nothing. */
#include "daemon/workers/session/internal.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

/* ---- what it is told -------------------------------------------------------------- */

void ptc_worker_want_exit_locked(struct ptc_workers *w, struct worker *k, uint32_t grace_ms)
{
	int64_t now = ptc_sys_now_ns();

	if (k->ended || k->exit_wanted)
		return;
	k->exit_wanted = true;
	k->term_ns = now + (int64_t)grace_ms * 500000;
	k->kill_ns = now + (int64_t)grace_ms * 1000000;
	if (k->page)
		atomic_exchange(&k->page->stop, 0);
	ptc_worker_advance_locked(w, k);
	ptc_workers_wake(w);
}

static void send_rank_state(struct conn *c, const struct rank_state *rank_state)
{
	struct ptc_local_out out = { .grow = ptc_realloc };

	for (size_t i = 0; rank_state && i < rank_state->nblobs; i++) {
		const struct ptc_slot_blob *b = &rank_state->blobs[i];

		out.len = 0;
		ptc_local_put_blob(&out, &(struct ptc_local_blob){ b->name, (uint8_t)b->scope, b->data, b->len });
		ptc_conn_send_locked(c, PTC_LOCAL_BLOB, &out, -1);
	}
	for (size_t i = 0; rank_state && i < rank_state->ncursors; i++) {
		const struct ptc_slot_cursor *s = &rank_state->cursors[i];

		out.len = 0;
		ptc_local_put_cursor(&out, &(struct ptc_local_cursor){ s->name, s->tag, s->position });
		ptc_conn_send_locked(c, PTC_LOCAL_CURSOR, &out, -1);
	}
	ptc_free(out.data);
}

static void send_generation(struct worker *k)
{
	const struct ptc_group_desc *d = &k->group->desc;
	const struct ptc_group_rank *r = &k->group->slots[k->slot].rank;
	struct ptc_local_out out = { .grow = ptc_realloc };
	struct ptc_local_generation m = {
		.generation = d->key.generation,
		.incarnation = d->key.incarnation,
		.start_step = k->group->start_step,
		.has_state = k->group->has_state,
		.rank = r->rank,
		.world = d->world,
		.local_rank = r->local_rank,
		.local_world = (uint32_t)d->nranks,
		.node_rank = d->node_rank,
		.nodes = d->nodes,
		.device = r->device,
		.coordinates = { r->tp, r->pp, r->dp, r->cp },
		.zero = d->zero,
		.micro_batch = d->micro_batch,
		.global_batch = d->global_batch,
		.config = d->config,
		.job = d->job,
	};

	memcpy(m.degrees, d->degrees, sizeof m.degrees);
	ptc_worker_drop_generation(k);
	k->generation = d->key.generation;
	k->incarnation = d->key.incarnation;
	k->device = r->device;
	k->rank = r->rank;
	k->ran = true;
	k->phase = WORKER_BUILDING;
	atomic_store(&k->page->staging, PTC_LOCAL_STAGE_FREE);
	atomic_exchange(&k->page->stop, PTC_LOCAL_NO_STOP);
	if (k->takes_state && k->group->rank_states) /* before it: once it knows its generation, it may ask for them */
		send_rank_state(k->conn, k->group->rank_states[k->slot]);
	ptc_local_put_generation(&out, &m);
	ptc_conn_send_locked(k->conn, PTC_LOCAL_GENERATION, &out, -1);
	ptc_free(out.data);
}

static void send_restored(struct worker *k)
{
	struct ptc_local_out out = { .grow = ptc_realloc };

	send_rank_state(k->conn, k->restore);
	ptc_local_put_restored(&out, &(struct ptc_local_restored){ k->restored, k->group->start_step });
	ptc_conn_send_locked(k->conn, PTC_LOCAL_RESTORED, &out, -1);
	ptc_free(out.data);
	/* Blobs and cursors that it does not set anew keep their values. */
	ptc_rank_state_unref(k->rank_state);
	k->rank_state = ptc_rank_state_ref(k->restore);
	k->phase = WORKER_RUNNING;
	k->seen = false;
}

static void send_number(struct worker *k, uint16_t type, uint64_t n)
{
	struct ptc_local_out out = { .grow = ptc_realloc };

	ptc_local_put_number(&out, n);
	ptc_conn_send_locked(k->conn, type, &out, -1);
	ptc_free(out.data);
}

static void send_ended(struct worker *k)
{
	struct ptc_local_out out = { .grow = ptc_realloc };

	/* Training that is over is not "ended" for it: ptc_finish answers 0. */
	if (k->phase == WORKER_STOPPED && k->finished && k->group && k->group->dropping) {
		send_number(k, PTC_LOCAL_FINISHED, k->stop_step);
	} else {
		ptc_local_put_ended(&out, k->generation, k->incarnation);
		ptc_conn_send_locked(k->conn, PTC_LOCAL_ENDED, &out, -1);
		ptc_free(out.data);
	}
	k->phase = WORKER_ENDING;
}

void ptc_worker_advance_locked(struct ptc_workers *w, struct worker *k)
{
	if (k->phase >= k->resumes)
		k->resumes = WORKER_ABSENT; /* it is there again */
	if (!k->conn || k->conn->closing || !k->page)
		return;
	if (ptc_worker_ending(k)) {
		/* A running rank asks at its next boundary; told now, it leaves whatever else it waits in. */
		atomic_exchange(&k->page->stop, 0);
		send_ended(k);
	} else if (k->phase == WORKER_WAITING && k->exit_wanted) {
		ptc_conn_send_locked(k->conn, PTC_LOCAL_EXIT, NULL, -1);
		k->phase = WORKER_ENDING;
	} else if (k->phase == WORKER_WAITING && k->group && k->group->built && !k->group->ending &&
		   (k->group->given || !k->group->has_state)) {
		send_generation(k);
	} else if (k->phase == WORKER_DECLARED && k->go) {
		send_restored(k);
	} else if (k->phase == WORKER_STOPPED && !k->finished && atomic_load(&k->page->stop) > k->stop_step) {
		k->phase = WORKER_RUNNING;
		k->staged = false;
		ptc_worker_see(k, k->stop_step, ptc_sys_now_ns());
		send_number(k, PTC_LOCAL_GO, k->stop_step);
	} else {
		return;
	}
	ptc_workers_changed_locked(w);
}

/* ---- what it says -------------------------------------------------------------------- */

static bool on_next(struct ptc_workers *w, struct worker *k)
{
	struct group *g = k->group;

	if (k->phase == WORKER_WAITING)
		return false;
	if (g && ptc_worker_in_generation(k) && ptc_group_is(g, k->generation, k->incarnation) && !g->ending) {
		ptc_group_failed_locked(w, g, k, k->slot, "left its generation before it had ended");
		g->slots[k->slot].exited = true;
		ptc_worker_detach_locked(k);
	} else if (g && g->built &&
		   (k->phase == WORKER_CONNECTED
			    ? g->ending /* it had left already when it connected anew, or never had it */
			    : (g->ending || *g->refused) && ptc_group_is(g, k->generation, k->incarnation))) {
		if (g->desc.mode == PTC_MODE_RESTART)
			ptc_worker_want_exit_locked(w, k, ptc_group_grace_ms(g)); /* stays until it has exited */
		else
			ptc_worker_detach_locked(k);
	}
	ptc_worker_drop_generation(k);
	k->phase = WORKER_WAITING;
	if (!k->exit_wanted)
		k->term_ns = k->kill_ns = 0;
	return true;
}

static void decline(struct worker *k, const struct ptc_error *err)
{
	struct ptc_local_out out = { .grow = ptc_realloc };
	struct group *g = k->group;

	if (g && !*g->refused)
		snprintf(g->refused, sizeof g->refused, "rank %u: %.900s", g->slots[k->slot].rank.rank, err->text);
	ptc_local_put_refusal(&out, PTC_LOCAL_R_REFUSED, err->text);
	ptc_conn_send_locked(k->conn, PTC_LOCAL_DECLINED, &out, -1);
	ptc_free(out.data);
	k->declared = ptc_declared_unref(k->declared);
	k->layout = ptc_declared_unref(k->layout);
	k->phase = WORKER_ENDING;
}

static bool on_tensor(struct worker *k, const struct ptc_local_message *m)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_local_tensor t;

	if (k->phase != WORKER_BUILDING || !ptc_local_get_tensor(m->data, m->len, &t))
		return false;
	if (!k->declared)
		k->declared = ptc_declared_new();
	if (!k->declared || ptc_declared_add(k->declared, &t, &err))
		decline(k, &err);
	return true;
}

static bool on_device(struct worker *k, const struct ptc_local_message *m)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_local_device d;

	if (k->phase != WORKER_BUILDING || !k->declared || !ptc_local_get_device(m->data, m->len, &d))
		return false;
	if (ptc_declared_add_device(k->declared, &d, m->fd, &err))
		decline(k, &err);
	return true;
}

/* The tensors so far are the rank's layout. They come again once they have memory. */
static bool on_layout(struct worker *k)
{
	if (k->layout || k->declared->ndevices)
		return false;
	k->layout = k->declared;
	k->declared = NULL;
	return true;
}

/* What its program has to promise of the configuration. A rank that runs has done so. */
static int promised(const struct worker *k, const struct ptc_local_declared *d, struct ptc_error *err)
{
	const struct group *g = k->group;
	bool recomputes = !g || !g->desc.recomputes || (d->does & PTC_LOCAL_DOES_RECOMPUTE);
	bool scheduled = !g || !g->desc.scheduled || (d->does & PTC_LOCAL_DOES_SCHEDULE);

	if ((recomputes && scheduled) || d->what == PTC_LOCAL_DECLARES_RUNNING)
		return 0;
	return ptc_error_set(
		err, PTC_EINVAL,
		"configuration %.200s has %s, and the program has not asked for it (%s) "
		"before it declared its state; leave it out of the configuration, or %s out of space: in job.yaml",
		g->desc.config, recomputes ? "schedule" : "recompute", recomputes ? "ptc_schedule" : "ptc_recompute",
		recomputes ? "vpp" : "recompute");
}

static bool on_declared(struct ptc_workers *w, struct worker *k, const struct ptc_local_message *m)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_local_declared d;
	uint64_t what;

	if (k->phase != WORKER_BUILDING || !ptc_local_get_declared(m->data, m->len, &d))
		return false;
	what = d.what;
	if (!k->declared)
		k->declared = ptc_declared_new();
	if (!k->rank_state)
		k->rank_state = ptc_rank_state_new();
	if (!k->declared || !k->rank_state || promised(k, &d, &err) || ptc_declared_finish(k->declared, &err) ||
	    (k->layout && ptc_declared_same_layout(k->layout, k->declared, &err))) {
		decline(k, &err);
		return true;
	}
	if (what == PTC_LOCAL_DECLARES_LAYOUT)
		return on_layout(k);
	k->layout = ptc_declared_unref(k->layout);
	k->phase = what == PTC_LOCAL_DECLARES_RUNNING ? WORKER_RUNNING : WORKER_DECLARED;
	if (k->group->rank_states)
		k->group->rank_states[k->slot] = ptc_rank_state_unref(k->group->rank_states[k->slot]);
	if (k->declared->path == DEVICE_UNTRIED)
		ptc_worker_try_device(w, k); /* and then stages, where that has to be */
	else if (k->group->desc.fast_copy || k->declared->path == DEVICE_BY_RANK)
		ptc_worker_stage(w, k);
	return true;
}

static bool on_blob(struct worker *k, const struct ptc_local_message *m)
{
	struct ptc_local_blob b;

	if (k->phase != WORKER_RUNNING || !ptc_local_get_blob(m->data, m->len, &b))
		return false;
	return ptc_rank_state_set_blob(&k->rank_state, &b) == 0;
}

static bool on_cursor(struct worker *k, const struct ptc_local_message *m)
{
	struct ptc_local_cursor s;

	if (k->phase != WORKER_RUNNING || !ptc_local_get_cursor(m->data, m->len, &s))
		return false;
	return ptc_rank_state_set_cursor(&k->rank_state, &s) == 0;
}

static bool on_stopped(struct ptc_workers *w, struct worker *k, const struct ptc_local_message *m)
{
	struct ptc_local_stopped s;

	if (k->phase != WORKER_RUNNING || !ptc_local_get_stopped(m->data, m->len, &s))
		return false;
	ptc_worker_sample_locked(k, ptc_sys_now_ns());
	k->phase = WORKER_STOPPED;
	k->stop_step = s.step;
	k->finished = s.finished;
	k->staged = s.staged && k->staging;
	snprintf(k->refused, sizeof k->refused, "%s", s.refused);
	k->later = *s.refused && s.later && !s.finished;
	ptc_worker_advance_locked(w, k);
	if (k->phase == WORKER_STOPPED)
		ptc_group_event_locked(w, k->group);
	return true;
}

/* Its memory may be wanted: it waits for us to say that it is not, and so do others here, which are about to fail as
 * well, some without a word. */
static bool on_leaves(struct ptc_workers *w, struct worker *k)
{
	struct group *g = k->group;

	if (k->phase != WORKER_RUNNING || !g || g->ending || !ptc_group_is(g, k->generation, k->incarnation)) {
		atomic_exchange(&k->page->leaving, PTC_LOCAL_LEAVE_GO);
		return true;
	}
	k->leaving = g->wants_hold = true;
	ptc_group_failed_locked(w, g, k, k->slot, NULL);
	return true;
}

/* Only a memfd is read without waiting for others; what it has is not to be believed before it is read. */
static bool on_keeps(struct worker *k, const struct ptc_local_message *m)
{
	struct ptc_local_keeps s;
	int seals = m->fd >= 0 ? fcntl(m->fd, F_GET_SEALS) : -1;

	if (!ptc_local_get_keeps(m->data, m->len, &s) || seals < 0 || !(seals & F_SEAL_SHRINK))
		return false;
	ptc_close(&k->kept.fd);
	k->kept.fd = fcntl(m->fd, F_DUPFD_CLOEXEC, 0); /* none is left: then it ends with the process */
	k->kept.address = s.address;
	k->kept.bytes = s.bytes;
	return true;
}

static bool on_filled(struct worker *k, const struct ptc_local_message *m)
{
	struct ptc_local_filled f;

	if (!ptc_local_get_filled(m->data, m->len, &f) || f.id > k->fill.sent || f.id <= k->fill.done)
		return false;
	k->fill.done = f.id;
	if (f.failed)
		k->fill.failed = true;
	if (f.damaged)
		k->fill.damaged = true;
	return true;
}

static bool on_rendezvous(struct ptc_workers *w, struct worker *k, const struct ptc_local_message *m)
{
	struct ptc_local_rendezvous q;

	if (!ptc_local_get_rendezvous(m->data, m->len, &q) || ptc_local_short_error(q.key))
		return false;
	ptc_rendezvous_message_locked(w, k, m->type, &q);
	return true;
}

static bool on_bye(struct worker *k)
{
	k->left = true;
	k->left_ns = ptc_sys_now_ns();
	k->conn->closing = true;
	return true;
}

bool ptc_worker_message_locked(struct ptc_workers *w, struct worker *k, const struct ptc_local_message *m)
{
	bool ok;

	if (ptc_worker_ending(k))
		ptc_worker_advance_locked(w, k);
	/* Said before it had heard of its end. */
	if (k->phase == WORKER_ENDING && m->type != PTC_LOCAL_NEXT && m->type != PTC_LOCAL_BYE &&
	    m->type != PTC_LOCAL_FILLED)
		return m->type != PTC_LOCAL_HELLO;
	switch (m->type) {
	case PTC_LOCAL_NEXT:
		ok = on_next(w, k);
		break;
	case PTC_LOCAL_TENSOR:
		ok = on_tensor(k, m);
		break;
	case PTC_LOCAL_DEVICE:
		ok = on_device(k, m);
		break;
	case PTC_LOCAL_DECLARED:
		ok = on_declared(w, k, m);
		break;
	case PTC_LOCAL_BLOB:
		ok = on_blob(k, m);
		break;
	case PTC_LOCAL_CURSOR:
		ok = on_cursor(k, m);
		break;
	case PTC_LOCAL_STOPPED:
		ok = on_stopped(w, k, m);
		break;
	case PTC_LOCAL_RENDEZVOUS_PUT:
	case PTC_LOCAL_RENDEZVOUS_GET:
		ok = on_rendezvous(w, k, m);
		break;
	case PTC_LOCAL_BYE:
		ok = on_bye(k);
		break;
	case PTC_LOCAL_FILLED:
		ok = on_filled(k, m);
		break;
	case PTC_LOCAL_LEAVES:
		ok = on_leaves(w, k);
		break;
	case PTC_LOCAL_KEEPS:
		ok = on_keeps(k, m);
		break;
	default:
		ok = m->type > PTC_LOCAL_KEEPS && m->type < PTC_LOCAL_WELCOME; /* of a later protocol: passed over */
	}
	if (ok)
		ptc_worker_advance_locked(w, k);
	ptc_workers_changed_locked(w);
	return ok;
}
