/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks' memory. Happy path: a view has references to its rank's declarations and rank state; reads and writes go
 * straight to the process's memory, by a process of the job's user (lean; copier.h), or reads to the staging memory
 * that the rank filled when it stopped (fast). Failure modes: an address that was not declared (EINTERNAL: the caller's
 * mistake), memory that is not there any more (ESTATE naming the tensor, because a retry would not help), a process
 * that has died before or during the read (ESTATE). */
#include "daemon/workers/copier/copier.h"
#include "daemon/workers/group/internal.h"
#include "daemon/workers/group/rank_slots.h"
#include "daemon/workers/session/rank_conn.h"
#include "daemon/workers/session/session.h"

#include "base/cleanup.h"
#include "base/alloc.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/sys/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct view {
	struct ptc_workers *w;
	struct group *group;
	struct declared *declared;
	struct declared *layout; /* of a rank that builds: what it has declared without memory */
	struct rank_state *rank_state;
	struct staging *staging; /* what was staged when the view was made; NULL: nothing */
	size_t slot;
	unsigned number; /* of the worker */
	pid_t pid;
	int pidfd;
	struct ptc_device_guard guard; /* of its device memory at the stop; page_fd is ours */
	bool outlived;                 /* the process has ended, the memory on devices has not */
	bool unguarded;                /* nothing but the guard can tell, and no descriptor was left for it */
};

/* ---- views -------------------------------------------------------------------------- */

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

/* ---- copying ------------------------------------------------------------------------- */

static bool dead(const struct view *v)
{
	struct pollfd p = { .fd = v->pidfd, .events = POLLIN };

	if (v->outlived)
		return false; /* what was copied is of its last mark */
	return v->pidfd < 0 || poll(&p, 1, 0) != 0;
}

static int died(const struct view *v, struct ptc_error *err)
{
	char why[sizeof((struct worker *)0)->bad_why + 2] = "";
	const struct worker *k;

	pthread_mutex_lock(&v->w->lock);
	k = ptc_worker_find_locked(v->w, v->group->job->uuid, v->number);
	if (k && k->bad_ns)
		snprintf(why, sizeof why, ": %s", k->bad_why);
	pthread_mutex_unlock(&v->w->lock);
	return ptc_error_set(err, PTC_ESTATE, "rank %u (pid %d) has died%s", v->group->slots[v->slot].rank.rank,
			     (int)v->pid, why);
}

/* Only what is declared, and as much on both sides. */
static int check_iov(const struct view *v, const struct iovec *remote, size_t nremote, const struct iovec *local,
		     size_t nlocal, struct ptc_error *err)
{
	uint64_t there = 0, here = 0;

	if (!v->declared)
		return ptc_error_set(err, PTC_ESTATE, "rank %u has declared nothing",
				     v->group->slots[v->slot].rank.rank);
	for (size_t i = 0; i < nremote; i++) {
		uint64_t address = (uint64_t)(uintptr_t)remote[i].iov_base;

		if (remote[i].iov_len && !ptc_declared_span(v->declared, address, remote[i].iov_len))
			return ptc_error_set(err, PTC_EINTERNAL,
					     "rank %u: %zu bytes at 0x%llx are outside of its declared memory",
					     v->group->slots[v->slot].rank.rank, remote[i].iov_len,
					     (unsigned long long)address);
		there += remote[i].iov_len;
	}
	for (size_t i = 0; i < nlocal; i++)
		here += local[i].iov_len;
	if (there != here)
		return ptc_error_set(err, PTC_EINTERNAL, "the rank's side has %llu bytes, this side %llu",
				     (unsigned long long)there, (unsigned long long)here);
	return 0;
}

static int moved_wrong(const struct view *v, uint64_t address, int e, bool writing, struct ptc_error *err)
{
	const char *name = ptc_declared_tensor_at(v->declared, address);
	uint32_t rank = v->group->slots[v->slot].rank.rank;

	if (e == ESRCH || dead(v))
		return died(v, err);
	if (e == EPERM)
		return ptc_error_set(err, PTC_EPERM,
				     "rank %u (pid %d): the kernel refuses its user access to its memory; does another "
				     "user's program run there now, is it undumpable, or is kernel.yama.ptrace_scope 2 "
				     "or 3 (then use copy: fast)?",
				     rank, (int)v->pid);
	if (e == EFAULT)
		return ptc_error_set(err, PTC_ESTATE,
				     "tensor \"%.200s\" of rank %u (pid %d): its declared memory at 0x%llx is "
				     "unmapped; keep it mapped until the generation has ended",
				     name ? name : "?", rank, (int)v->pid, (unsigned long long)address);
	return ptc_error_errno(err, e, "tensor \"%.200s\" of rank %u (pid %d): cannot %s its memory at 0x%llx",
			       name ? name : "?", rank, (int)v->pid, writing ? "write" : "read",
			       (unsigned long long)address);
}

/* Where the byte lies that follows `bytes` of them. */
static uint64_t address_after(const struct iovec *there, size_t n, uint64_t bytes)
{
	for (size_t i = 0; i < n; i++) {
		if (bytes < there[i].iov_len)
			return (uint64_t)(uintptr_t)there[i].iov_base + bytes;
		bytes -= there[i].iov_len;
	}
	return n ? (uint64_t)(uintptr_t)there[0].iov_base : 0;
}

static int differs(const struct view *v, struct ptc_error *err)
{
	return ptc_error_set(err, PTC_EDIGEST, "the bytes of rank %u differ", v->group->slots[v->slot].rank.rank);
}

static int transfer(const struct view *v, struct ptc_copy_call *call, struct ptc_error *err)
{
	const char *name;
	uint64_t moved = 0;
	int e = 0, rc;

	if (dead(v))
		return died(v, err);
	call->uuid = v->group->job->uuid;
	call->uid = v->group->job->uid;
	call->pid = v->pid;
	rc = ptc_copiers_call(&v->w->copiers, call, &e, &moved, err);
	name = ptc_declared_tensor_at(v->declared, address_after(call->there, call->nthere, moved));
	if (rc == PTC_ESTATE || rc == PTC_EIO)
		return ptc_error_wrap(err, "tensor \"%.200s\" of rank %u (pid %d)", name ? name : "?",
				      v->group->slots[v->slot].rank.rank, (int)v->pid);
	if (rc)
		return rc;
	if (e == PTC_COPY_DIFFERS)
		return differs(v, err);
	if (e)
		return moved_wrong(v, address_after(call->there, call->nthere, moved), e, call->op == PTC_COPY_WRITE,
				   err);
	/* Another process could have had its number for a moment. */
	return dead(v) ? died(v, err) : 0;
}

/* A place in a list of pieces. */
struct cursor {
	const struct iovec *v;
	size_t n, i;
	size_t done; /* of v[i] */
};

static void cursor_advance(struct cursor *c, size_t bytes)
{
	while (c->i < c->n) {
		size_t left = c->v[c->i].iov_len - c->done;

		if (bytes < left) {
			c->done += bytes;
			return;
		}
		bytes -= left;
		c->done = 0;
		c->i++;
	}
}

/* Copies, or compares: false: they differ. */
static bool take_staged(const struct view *v, const struct ptc_copy_call *call)
{
	struct cursor there = { .v = call->there, .n = call->nthere }, here = { .v = call->here, .n = call->nhere };

	while (there.i < call->nthere && here.i < call->nhere) {
		uint64_t address = (uint64_t)(uintptr_t)there.v[there.i].iov_base + there.done;
		size_t n = PTC_MIN(there.v[there.i].iov_len - there.done, here.v[here.i].iov_len - here.done);

		if (n) {
			const struct ptc_local_span *s = ptc_declared_span(v->declared, address, n);
			const uint8_t *from = v->staging->map + s->offset + (address - s->address);
			char *to = (char *)here.v[here.i].iov_base + here.done;

			if (call->op == PTC_COPY_READ)
				memcpy(to, from, n);
			else if (memcmp(to, from, n) != 0)
				return false;
		}
		cursor_advance(&there, n);
		cursor_advance(&here, n);
	}
	return true;
}

/* The rank does not run: what is read is of one step. */
static int check_held(const struct view *v, struct ptc_error *err)
{
	const struct worker *k;
	enum ptc_slot_state state;
	bool frozen;

	pthread_mutex_lock(&v->w->lock);
	state = ptc_group_slot_state(v->group, v->slot);
	k = v->group->slots[v->slot].worker;
	frozen = k && k->number == v->number && k->hold.frozen;
	pthread_mutex_unlock(&v->w->lock);
	if (v->outlived || frozen || state == PTC_SLOT_STOPPED || state == PTC_SLOT_DECLARED)
		return 0;
	return ptc_error_set(err, PTC_ESTATE, "rank %u neither waits for its restore nor at a stop",
			     v->group->slots[v->slot].rank.rank);
}

/* ---- device memory -------------------------------------------------------------------- */

#define PIECES_MAX 4096 /* copied at once: ranges and tensors may overlap, so a call can have any number of pieces */

/* A call's next pieces, those on devices apart from those of the host. */
struct pieces {
	struct cursor to_cut_there, to_cut_here;
	struct ptc_device_piece device[PIECES_MAX];
	struct iovec there[PIECES_MAX], here[PIECES_MAX]; /* of the host */
	size_t ndevice, nhost;
};

/* False: nothing is left. */
static bool cut(const struct view *v, struct pieces *p)
{
	struct cursor *there = &p->to_cut_there, *here = &p->to_cut_here;

	p->ndevice = p->nhost = 0;
	while (there->i < there->n && here->i < here->n && p->ndevice + p->nhost < PIECES_MAX) {
		uint64_t address = (uint64_t)(uintptr_t)there->v[there->i].iov_base + there->done;
		size_t n = PTC_MIN(there->v[there->i].iov_len - there->done, here->v[here->i].iov_len - here->done);
		uint8_t *to = (uint8_t *)here->v[here->i].iov_base + here->done;
		const struct ptc_device_range *range = ptc_declared_device(v->declared, address);

		if (n && range) {
			n = PTC_MIN(n, range->address + range->bytes - address);
			p->device[p->ndevice++] = (struct ptc_device_piece){ range, address, to, n };
		} else if (n) {
			p->there[p->nhost] = (struct iovec){ (void *)(uintptr_t)address, n };
			p->here[p->nhost++] = (struct iovec){ to, n };
		}
		cursor_advance(there, n);
		cursor_advance(here, n);
	}
	return p->ndevice || p->nhost;
}

static int check_mapped(const struct view *v, struct ptc_error *err)
{
	if (dead(v))
		return died(v, err);
	if (v->unguarded)
		return ptc_error_set(err, PTC_ELIMIT,
				     "rank %u: no file descriptor is left to watch what its device says of its memory",
				     v->group->slots[v->slot].rank.rank);
	if (ptc_declared_try(v->w, v->declared, v->pid) == DEVICE_MAPPED)
		return 0;
	return ptc_error_set(err, PTC_ESTATE,
			     "rank %u (pid %d) has to copy its device memory itself and has not: there is no "
			     "room for staging memory, or its libptc failed: %s",
			     v->group->slots[v->slot].rank.rank, (int)v->pid, v->declared->device_why);
}

/* As the device's copier has it. */
static pid_t owner_of(const struct view *v)
{
	return v->outlived ? -v->pid : v->pid;
}

static int copy_device(const struct view *v, const struct ptc_copy_call *call, const struct pieces *p,
		       struct ptc_error *err)
{
	const uint32_t rank = v->group->slots[v->slot].rank.rank;
	const char *name;
	bool other = false;
	int rc;

	rc = ptc_device_is_shadow_only(call->copying) ? 0 : check_mapped(v, err);
	if (rc)
		return rc;
	rc = ptc_device_copy(v->w->gpu, call->copying, call->op, owner_of(v), p->device, p->ndevice, &v->guard, &other,
			     err);
	if (!ptc_device_is_shadow_only(call->copying) && dead(v))
		return died(v, err);
	name = rc ? ptc_declared_tensor_at(v->declared, p->device[0].address) : NULL;
	if (rc)
		return ptc_error_wrap(err, "tensor \"%.200s\" of rank %u (pid %d)", name ? name : "?", rank,
				      (int)v->pid);
	return other ? differs(v, err) : 0;
}

static int transfer_pieces(const struct view *v, const struct ptc_copy_call *call, struct pieces *p,
			   struct ptc_error *err)
{
	int rc = 0;

	if (v->outlived && (p->nhost || call->op == PTC_COPY_WRITE))
		rc = ptc_error_set(err, PTC_ESTATE, "rank %u has ended, and its memory of the host with it",
				   v->group->slots[v->slot].rank.rank);
	if (!rc && p->ndevice)
		rc = copy_device(v, call, p, err);
	if (!rc && p->nhost && ptc_device_is_shadow_only(call->copying))
		rc = ptc_error_set(err, PTC_EINTERNAL,
				   "rank %u has gone on: its host memory is not to be read any more",
				   v->group->slots[v->slot].rank.rank);
	for (size_t i = 0; i < p->nhost && !rc; i += PTC_SLOT_SPANS_MAX) {
		struct ptc_copy_call host = *call;

		host.there = &p->there[i];
		host.here = &p->here[i];
		host.nthere = host.nhere = PTC_MIN(p->nhost - i, PTC_SLOT_SPANS_MAX);
		rc = transfer(v, &host, err);
	}
	return rc;
}

/* Of a rank with memory on devices: ptc-gpu copies that, ptc-copy the rest. */
static int transfer_apart(const struct view *v, struct ptc_copy_call *call, struct ptc_error *err)
{
	struct pieces *p = ptc_malloc(sizeof *p);
	int rc = p ? 0 : ptc_nomem(err);

	if (p) {
		p->to_cut_there = (struct cursor){ .v = call->there, .n = call->nthere };
		p->to_cut_here = (struct cursor){ .v = call->here, .n = call->nhere };
	}
	while (!rc && cut(v, p))
		rc = transfer_pieces(v, call, p, err);
	ptc_free(p);
	return rc;
}

/* Rows on a device that ptc-gpu copies: the rank is not told of them. */
static bool rows_mapped(const struct view *v, const struct ptc_slot_rows *rows, size_t n)
{
	bool any = false;

	for (size_t i = 0; v->declared->ndevices && i < n && !any; i++)
		any = ptc_declared_device(v->declared, rows[i].address) != NULL;
	return any && ptc_declared_try(v->w, v->declared, v->pid) == DEVICE_MAPPED;
}

static int memory_init(struct ptc_slot_memory *m, struct ptc_error *err)
{
	struct stat st;

	if (m->fd < 0)
		return 0;
	if (fstat(m->fd, &st) != 0)
		return ptc_error_errno(err, errno, "memory for copies");
	m->dev = st.st_dev;
	m->ino = st.st_ino;
	return 0;
}

int ptc_slot_copying_init(const struct ptc_slot_view *slot, struct ptc_slot_copying *c, struct ptc_error *err)
{
	const struct view *v = slot->opaque;
	int rc = memory_init(&c->memory[0], err);

	if (rc == 0)
		rc = memory_init(&c->memory[1], err);
	atomic_store(&c->copier, ptc_copiers_number(&v->w->copiers, v->group->job->uuid));
	return rc;
}

void ptc_slot_copying_done(const struct ptc_slot_view *slot, struct ptc_slot_copying *c)
{
	const struct view *v = slot->opaque;

	ptc_device_copying_done(v->w->gpu, c);
	for (size_t i = 0; i < PTC_ARRAY_LEN(c->memory); i++)
		if (c->memory[i].fd >= 0 && c->memory[i].once)
			ptc_copiers_forget(&v->w->copiers, v->group->job->uuid, &c->memory[i]);
}

int ptc_slot_copy(const struct ptc_slot_view *slot, enum ptc_copy_op op, struct ptc_slot_copying *copying,
		  const struct iovec *remote, size_t nremote, const struct iovec *local, size_t nlocal, bool fresh,
		  struct ptc_error *err)
{
	const struct view *v = slot->opaque;
	struct ptc_copy_call call = { .op = op,
				      .fresh = fresh,
				      .there = remote,
				      .here = local,
				      .nthere = nremote,
				      .nhere = nlocal,
				      .copying = copying };
	int rc = check_iov(v, remote, nremote, local, nlocal, err);

	if (!rc && v->staging && op != PTC_COPY_WRITE)
		return take_staged(v, &call) ? 0 : differs(v, err);
	if (!rc && !(ptc_device_is_shadow_only(copying) && op != PTC_COPY_WRITE))
		rc = check_held(v, err);
	if (!rc && v->declared->ndevices)
		return transfer_apart(v, &call, err);
	return rc ? rc : transfer(v, &call, err);
}

const char *ptc_slot_device(const struct ptc_slot_view *slot, uint64_t address)
{
	const struct view *v = slot->opaque;
	const struct ptc_device_range *r = v->declared ? ptc_declared_device(v->declared, address) : NULL;

	return r ? r->uuid : NULL;
}

bool ptc_slot_mapped(const struct ptc_slot_view *slot)
{
	const struct view *v = slot->opaque;

	return v->declared && v->declared->ndevices && ptc_declared_try(v->w, v->declared, v->pid) == DEVICE_MAPPED;
}

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
	rc = check_held(v, err);
	if (rc == 0)
		rc = check_mapped(v, err);
	if (rc == 0)
		rc = device_spans(v->declared, &spans, &n, err);
	if (!rc && n)
		rc = ptc_device_shadow(v->w->gpu, copying, v->pid, spans, n, &v->guard, err);
	ptc_free(spans);
	return !rc && dead(v) ? died(v, err) : rc;
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
		return ptc_device_copy_kept(k->v->w->gpu, k->copying, k->m, k->op, owner_of(k->v), k->range, k->rows, n,
					    err);
	rc = ptc_device_digest_rank(k->v->w->gpu, k->copying, owner_of(k->v), k->range, k->rows, n, &digest, err);
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
	rc = check_held(v, err);
	if (!rc && dead(v))
		rc = died(v, err);
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
	return !rc && dead(v) ? died(v, err) : rc;
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

/* ---- read by the rank ------------------------------------------------------------------- */

_Static_assert(PTC_SLOT_ROWS_MAX == PTC_LOCAL_ROWS_MAX, "what the agent may say, a message can");

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

static bool fill_send_locked(const struct view *v, struct worker *k, int fd, const struct ptc_slot_rows *rows, size_t n)
{
	struct ptc_local_rows said[PTC_LOCAL_ROWS_MAX];
	struct ptc_local_fill m = {
		.generation = k->generation, .incarnation = k->incarnation, .id = k->fill.sent + 1, .nrows = (uint32_t)n
	};
	struct ptc_local_out out = { .grow = ptc_realloc };
	int ours = fcntl(fd, F_DUPFD_CLOEXEC, 0);

	if (ours < 0)
		return false;
	k->fill.sent++;
	for (size_t i = 0; i < n; i++)
		said[i] = (struct ptc_local_rows){ rows[i].address, rows[i].offset,       rows[i].bytes,
						   rows[i].count,   rows[i].address_step, rows[i].offset_step };
	ptc_local_put_fill(&out, &m, said);
	ptc_conn_send_locked(k->conn, PTC_LOCAL_FILL, &out, ours);
	ptc_free(out.data);
	if (k->conn->out || k->conn->broken)
		ptc_workers_wake(v->w);
	return true;
}

int ptc_slot_fill(const struct ptc_slot_view *slot, struct ptc_slot_filling *f, int fd,
		  const struct ptc_slot_rows *rows, size_t n, const struct ptc_wait *wait, struct ptc_error *err)
{
	const struct view *v = slot->opaque;
	struct worker *k;
	bool mapped;
	int rc = n > PTC_SLOT_ROWS_MAX
			 ? ptc_error_set(err, PTC_EINTERNAL, "one fill has %zu rows, which is too many", n)
			 : check_rows(v, rows, n, err);

	if (rc == 0)
		rc = check_held(v, err);
	if (rc)
		return rc;
	mapped = rows_mapped(v, rows, n);
	pthread_mutex_lock(&v->w->lock);
	rc = fill_wait_locked(v, FILLS_AHEAD - 1, wait, &k, err);
	if (!rc && !f->failed) {
		bool able = !mapped && k && k->fill.can && k->conn && !k->conn->closing &&
			    k->phase == WORKER_DECLARED && (!f->session || f->session == k->fill.session);

		f->session = k ? k->fill.session : 0;
		f->failed = !able || !fill_send_locked(v, k, fd, rows, n);
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
	pthread_mutex_unlock(&v->w->lock);
	return rc;
}

/* ---- go ------------------------------------------------------------------------------- */

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
