/* SPDX-License-Identifier: Apache-2.0 */
/* Copies ranks' memory at a stop and at a restore. Happy path: reads and writes go straight to the process's memory,
 * by a process of the job's user (lean; copier.h), or reads to the staging memory that the rank filled when it stopped
 * (fast); ptc-gpu copies memory on devices. Failure modes: an address that was not declared (EINTERNAL: the caller's
 * mistake), memory that is not there any more (ESTATE naming the tensor, because a retry would not help), a process
 * that has died before or during the read (ESTATE). */
#include "daemon/workers/group/slots/slot_view.h"

#include "base/alloc.h"
#include "base/check.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

bool ptc_slot_dead(const struct view *v)
{
	struct pollfd p = { .fd = v->pidfd, .events = POLLIN };

	if (v->outlived)
		return false; /* what was copied is of its last mark */
	return v->pidfd < 0 || poll(&p, 1, 0) != 0;
}

int ptc_slot_died(const struct view *v, struct ptc_error *err)
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

	if (e == ESRCH || ptc_slot_dead(v))
		return ptc_slot_died(v, err);
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

	if (ptc_slot_dead(v))
		return ptc_slot_died(v, err);
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
	return ptc_slot_dead(v) ? ptc_slot_died(v, err) : 0;
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
int ptc_slot_check_held(const struct view *v, struct ptc_error *err)
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

int ptc_slot_check_mapped(const struct view *v, struct ptc_error *err)
{
	if (ptc_slot_dead(v))
		return ptc_slot_died(v, err);
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
pid_t ptc_slot_owner(const struct view *v)
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

	rc = ptc_device_is_shadow_only(call->copying) ? 0 : ptc_slot_check_mapped(v, err);
	if (rc)
		return rc;
	rc = ptc_device_copy(v->w->gpu, call->copying, call->op, ptc_slot_owner(v), p->device, p->ndevice, &v->guard,
			     &other, err);
	if (!ptc_device_is_shadow_only(call->copying) && ptc_slot_dead(v))
		return ptc_slot_died(v, err);
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
		  const struct iovec *remote, size_t nremote, const struct iovec *local, size_t nlocal,
		  enum ptc_copy_pages pages, struct ptc_error *err)
{
	const struct view *v = slot->opaque;
	struct ptc_copy_call call = { .op = op,
				      .pages = pages,
				      .there = remote,
				      .here = local,
				      .nthere = nremote,
				      .nhere = nlocal,
				      .copying = copying };
	int rc = check_iov(v, remote, nremote, local, nlocal, err);

	if (!rc && v->staging && op != PTC_COPY_WRITE)
		return take_staged(v, &call) ? 0 : differs(v, err);
	if (!rc && !(ptc_device_is_shadow_only(copying) && op != PTC_COPY_WRITE))
		rc = ptc_slot_check_held(v, err);
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
