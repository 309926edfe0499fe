/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: the operation's memory is mapped as a file, the rank's allocation by its handle, and pieces become boxes:
 * pieces of equal length at equal distances become the rows of one box. Failure modes: device_copier.h. */
#include "daemon/workers/device/device_copier.h"
#include "daemon/workers/device/device_shadow.h"

#include "base/cleanup.h"
#include "base/alloc.h"
#include "base/check.h"
#include "base/log.h"
#include "base/sys/fault.h"
#include "daemon/gpu/client/gpu_client.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HANG_MS    30000
#define TRIES      4
#define ROOM_BYTES ((uint64_t)4 << 20) /* read at once to be compared */

struct ptc_device_copier {
	const struct ptc_workers_env *env;
	unsigned copiers;     /* copies of a device that run at once */
	uint64_t device_ring; /* bytes that ptc-gpu page-locks for them, of each device */
	uint64_t pinned_max;  /* and of all page-locked memory */
	int64_t hang_ms;
	pthread_mutex_t bind_lock; /* two that map the same handle at once would refuse each other */
	pthread_mutex_t lock;
	struct ptc_gpu_client *client;        /* NULL: not wanted yet; under lock */
	pthread_mutex_t ring_lock;            /* held while pinned_take blocks */
	char rings[PTC_GPU_ATTACHED_MAX][48]; /* UUIDs of the devices whose rings are counted; under ring_lock */
	size_t nrings;
	_Atomic uint64_t ring_bytes, pinned_more; /* counted */
};

struct binding {
	pid_t pid;
	struct ptc_device_range range;
	struct ptc_gpu_ref ref; /* life 0: not mapped */
};

/* A rank's page, mapped for guards. */
struct guard_page {
	pid_t pid;
	struct ptc_gpu_ref ref; /* life 0: not mapped */
};

/* What an operation has mapped. */
struct ptc_device_copying {
	pthread_mutex_t lock;
	struct guard_page *pages;
	size_t npages;
	struct ptc_gpu_ref host[2];
	bool borrowed[2], ended[2]; /* host: it is the caller's page-locked map; that went with its ptc-gpu */
	struct binding *bound;
	size_t nbound;
};

int ptc_device_copier_new(const struct ptc_workers_env *env, struct ptc_device_copier **ret, struct ptc_error *err)
{
	struct ptc_device_copier *d = ptc_calloc(1, sizeof *d);

	if (!d)
		return ptc_nomem(err);
	d->env = env;
	d->copiers = ptc_gpu_copiers();
	d->device_ring = d->copiers * PTC_GPU_COPIER_BYTES;
	d->pinned_max = (env->devices ? env->devices : PTC_GPU_ATTACHED_MAX) * d->device_ring + env->pinned_bytes;
	d->hang_ms = env->copy_ms ? env->copy_ms : HANG_MS;
	pthread_mutex_init(&d->lock, NULL);
	pthread_mutex_init(&d->bind_lock, NULL);
	pthread_mutex_init(&d->ring_lock, NULL);
	*ret = d;
	return 0;
}

struct ptc_device_copier *ptc_device_copier_free(struct ptc_device_copier *d)
{
	if (!d)
		return NULL;
	ptc_gpu_client_free(d->client);
	if (d->env->pinned_give)
		d->env->pinned_give(d->env->arg, ptc_device_copier_pinned(d));
	pthread_mutex_destroy(&d->ring_lock);
	pthread_mutex_destroy(&d->lock);
	pthread_mutex_destroy(&d->bind_lock);
	ptc_free(d);
	return NULL;
}

static int client_of(struct ptc_device_copier *d, struct ptc_gpu_client **ret, struct ptc_error *err)
{
	struct ptc_gpu_client_config config = { .pinned_max = d->pinned_max,
						.copiers = d->copiers,
						.hang_ms = d->hang_ms };
	int rc = 0;

	pthread_mutex_lock(&d->lock);
	if (!d->client)
		rc = ptc_gpu_client_new(&config, &d->client, err);
	*ret = d->client;
	pthread_mutex_unlock(&d->lock);
	return rc;
}

/* ---- page-locked memory ---- */

uint64_t ptc_device_copier_pinned(struct ptc_device_copier *d)
{
	return atomic_load(&d->ring_bytes) + atomic_load(&d->pinned_more);
}

/* Counts the device's ring before ptc-gpu makes it. It stays counted: the next ptc-gpu makes it again. */
static int count_ring(struct ptc_device_copier *d, const char *uuid, struct ptc_error *err)
{
	size_t i = 0;
	int rc = 0;

	pthread_mutex_lock(&d->ring_lock);
	while (i < d->nrings && strcmp(d->rings[i], uuid) != 0)
		i++;
	if (i == d->nrings && i < PTC_ARRAY_LEN(d->rings)) { /* ptc-gpu refuses more devices */
		if (d->env->pinned_take)
			rc = d->env->pinned_take(d->env->arg, d->device_ring, err);
		if (rc == 0) {
			snprintf(d->rings[d->nrings++], sizeof d->rings[0], "%s", uuid);
			atomic_fetch_add(&d->ring_bytes, d->device_ring);
		}
	}
	pthread_mutex_unlock(&d->ring_lock);
	return rc ? ptc_error_wrap(err, "device %s: no room below memory.ceiling for %lluMiB of page-locked memory",
				   uuid, (unsigned long long)(d->device_ring >> 20))
		  : 0;
}

static void uncount(struct ptc_device_copier *d, uint64_t bytes)
{
	atomic_fetch_sub(&d->pinned_more, bytes);
	if (d->env->pinned_give)
		d->env->pinned_give(d->env->arg, bytes);
}

/* ---- mapping ---- */

static int bind_range(struct ptc_device_copier *d, struct ptc_gpu_client *client, const struct ptc_device_range *r,
		      pid_t pid, struct ptc_gpu_ref *ret, struct ptc_gpu_outcome *o, struct ptc_error *err)
{
	struct ptc_gpu_export e = {
		.path = PTC_GPU_PATH_IPC,
		.pid = (uint32_t)pid, /* of its socket: what the rank says of itself is not believed */
		.context = r->context,
		.buffer = r->buffer,
		.bytes = r->bytes
	};
	uint32_t missing = 0;
	int rc = count_ring(d, r->uuid, err);

	if (!rc && pid < 0 && r->fd < 0)
		rc = ptc_error_set(err, PTC_ELOST, "process %d has ended, and its memory on device %s with it", -pid,
				   r->uuid);
	if (!rc && pid < 0) { /* nobody's: known by the descriptor, which is ours alone */
		e.pid = (uint32_t)-pid;
		e.buffer = (uint64_t)r->fd;
	} else if (rc == 0) {
		rc = ptc_gpu_process_start(e.pid, &e.process_start, err);
	}
	if (r->fd >= 0) {
		e.path = PTC_GPU_PATH_VMM;
		e.handles = 1;
		e.handle_bytes = r->bytes;
	}

	_Static_assert(sizeof e.uuid == sizeof r->uuid && sizeof e.ipc == sizeof r->ipc, "as gpu_export.h has them");
	memcpy(e.uuid, r->uuid, sizeof e.uuid);
	memcpy(e.ipc, r->ipc, sizeof e.ipc);
	if (r->fd >= 0)
		pthread_mutex_lock(&d->bind_lock);
	if (rc == 0)
		rc = ptc_gpu_client_bind(client, &e, ret, &missing, o, err);
	if (rc == 0 && missing) {
		(void)ptc_fault("workers.bind.handles");
		rc = ptc_gpu_client_handles(client, *ret, &r->fd, 1, &missing, o, err);
	}
	if (r->fd >= 0)
		pthread_mutex_unlock(&d->bind_lock);
	return rc;
}

int ptc_device_try(struct ptc_device_copier *d, const struct ptc_device_range *r, pid_t pid, struct ptc_error *err)
{
	struct ptc_gpu_outcome o = { .blame = PTC_GPU_BLAME_NONE };
	struct ptc_gpu_client *client;
	struct ptc_gpu_ref ref;
	int rc = client_of(d, &client, err);

	if (rc)
		return rc;
	for (unsigned i = 0; i < 2; i++) { /* a ptc-gpu that ends just now says nothing of this memory */
		rc = bind_range(d, client, r, pid, &ref, &o, err);
		if (rc == 0)
			rc = ptc_gpu_client_close(client, ref, &o, err);
		if (rc != PTC_EIO || o.blame != PTC_GPU_BLAME_REQUEST)
			break;
	}
	return rc;
}

static int copying_of(struct ptc_device_copier *d, struct ptc_slot_copying *c, struct ptc_device_copying **ret,
		      struct ptc_error *err)
{
	pthread_mutex_lock(&d->lock);
	if (!c->device) {
		c->device = ptc_calloc(1, sizeof *c->device);
		if (c->device)
			pthread_mutex_init(&c->device->lock, NULL);
	}
	*ret = c->device;
	pthread_mutex_unlock(&d->lock);
	return *ret ? 0 : ptc_nomem(err);
}

/* The map of one of the operation's memories. */
static int host_ref(struct ptc_gpu_client *client, struct ptc_device_copying *x, const struct ptc_slot_copying *c,
		    size_t i, struct ptc_gpu_ref *ret, struct ptc_gpu_outcome *o, struct ptc_error *err)
{
	int rc = 0;

	pthread_mutex_lock(&x->lock);
	x->borrowed[i] = c->memory[i].pinned && c->memory[i].pinned->life && !x->ended[i];
	if (x->borrowed[i])
		x->host[i] = (struct ptc_gpu_ref){ c->memory[i].pinned->life, c->memory[i].pinned->number };
	if (!x->host[i].life)
		rc = ptc_gpu_client_map_host(client, c->memory[i].fd, c->memory[i].bytes, NULL, &x->host[i], o, err);
	*ret = x->host[i];
	pthread_mutex_unlock(&x->lock);
	return rc;
}

static bool same_range(const struct binding *b, const struct ptc_device_range *r, pid_t pid)
{
	return b->pid == pid && b->range.address == r->address && b->range.buffer == r->buffer &&
	       strcmp(b->range.uuid, r->uuid) == 0;
}

static int device_ref(struct ptc_device_copier *d, struct ptc_gpu_client *client, struct ptc_device_copying *x,
		      const struct ptc_device_range *r, pid_t pid, struct ptc_gpu_ref *ret, struct ptc_gpu_outcome *o,
		      struct ptc_error *err)
{
	struct binding *b = NULL;
	int rc = 0;

	pthread_mutex_lock(&x->lock);
	for (size_t i = 0; i < x->nbound && !b; i++)
		if (same_range(&x->bound[i], r, pid))
			b = &x->bound[i];
	if (!b && PTC_MORE(x->bound, x->nbound)) {
		b = &x->bound[x->nbound++];
		*b = (struct binding){ .pid = pid, .range = *r };
	}
	if (!b)
		rc = ptc_nomem(err);
	else if (!b->ref.life)
		rc = bind_range(d, client, r, pid, &b->ref, o, err);
	if (rc == 0)
		*ret = b->ref;
	pthread_mutex_unlock(&x->lock);
	return rc;
}

static int guard_ref(struct ptc_gpu_client *client, struct ptc_device_copying *x, const struct ptc_device_guard *guard,
		     pid_t pid, struct ptc_gpu_guard *ret, struct ptc_gpu_outcome *o, struct ptc_error *err)
{
	struct guard_page *p = NULL;
	int rc = 0;

	pthread_mutex_lock(&x->lock);
	for (size_t i = 0; i < x->npages && !p; i++)
		if (x->pages[i].pid == pid)
			p = &x->pages[i];
	if (!p && PTC_MORE(x->pages, x->npages)) {
		p = &x->pages[x->npages++];
		*p = (struct guard_page){ .pid = pid };
	}
	if (!p)
		rc = ptc_nomem(err);
	else if (!p->ref.life)
		rc = ptc_gpu_client_map_host(client, guard->page_fd, guard->page_bytes, NULL, &p->ref, o, err);
	if (rc == 0)
		*ret = (struct ptc_gpu_guard){ p->ref, guard->at, guard->value };
	pthread_mutex_unlock(&x->lock);
	return rc;
}

/* What went with a ptc-gpu that has ended is mapped anew by who wants it next. */
static void forget(struct ptc_gpu_client *client, struct ptc_device_copying *x)
{
	struct ptc_gpu_outcome o;
	struct ptc_gpu_stats now;

	if (ptc_gpu_client_stats(client, &now, &o, NULL) != 0)
		now.life = UINT32_MAX;
	pthread_mutex_lock(&x->lock);
	for (size_t i = 0; i < PTC_ARRAY_LEN(x->host); i++)
		if (x->host[i].life != now.life) {
			x->ended[i] = x->ended[i] || x->borrowed[i];
			x->host[i] = (struct ptc_gpu_ref){ 0 };
		}
	for (size_t i = 0; i < x->nbound; i++)
		if (x->bound[i].ref.life != now.life)
			x->bound[i].ref = (struct ptc_gpu_ref){ 0 };
	for (size_t i = 0; i < x->npages; i++)
		if (x->pages[i].ref.life != now.life)
			x->pages[i].ref = (struct ptc_gpu_ref){ 0 };
	pthread_mutex_unlock(&x->lock);
}

/* Of ranks: their allocations and pages. */
static void unbind(struct ptc_device_copier *d, struct ptc_device_copying *x)
{
	struct ptc_gpu_outcome o;

	for (size_t i = 0; i < x->nbound; i++)
		if (x->bound[i].ref.life)
			(void)ptc_gpu_client_close(d->client, x->bound[i].ref, &o, NULL);
	for (size_t i = 0; i < x->npages; i++)
		if (x->pages[i].ref.life)
			(void)ptc_gpu_client_unmap_host(d->client, x->pages[i].ref, 0, &o, NULL);
	x->nbound = x->npages = 0;
}

void ptc_device_copying_done(struct ptc_device_copier *d, struct ptc_slot_copying *c)
{
	struct ptc_device_copying *x = c->device;
	struct ptc_gpu_outcome o;

	ptc_device_shadow_drop(d, c);
	if (!x)
		return;
	unbind(d, x);
	for (size_t i = 0; i < PTC_ARRAY_LEN(x->host); i++)
		if (x->host[i].life && !x->borrowed[i])
			(void)ptc_gpu_client_unmap_host(d->client, x->host[i], 0, &o, NULL);
	pthread_mutex_destroy(&x->lock);
	ptc_free(x->pages);
	ptc_free(x->bound);
	ptc_free(x);
	c->device = NULL;
}

/* ---- copies ---- */

/* Pieces of one allocation and one memory of ours, as boxes. */
struct batch {
	const struct ptc_device_range *range;
	const struct ptc_device_memory *shadow; /* that has them instead; NULL: none */
	size_t memory;
	struct ptc_gpu_part parts[PTC_GPU_PARTS_MAX];
	uint32_t n;
};

/* One more row of the last box, if it fits there. */
static bool joins(struct batch *b, uint64_t device_at, uint64_t other_at, uint64_t bytes)
{
	struct ptc_gpu_part *p = b->n ? &b->parts[b->n - 1] : NULL;

	if (!p || p->width != bytes || device_at < p->device_at + bytes || other_at < p->other_at + bytes)
		return false;
	if (p->height == 1) {
		p->device_row = device_at - p->device_at;
		p->other_row = other_at - p->other_at;
	} else if (device_at != p->device_at + p->height * p->device_row ||
		   other_at != p->other_at + p->height * p->other_row) {
		return false;
	}
	p->height++;
	p->device_slice = p->height * p->device_row;
	p->other_slice = p->height * p->other_row;
	return true;
}

static void add(struct batch *b, uint64_t device_at, uint64_t other_at, uint64_t bytes)
{
	if (!joins(b, device_at, other_at, bytes))
		b->parts[b->n++] =
			(struct ptc_gpu_part){ device_at, other_at, bytes, 1, 1, bytes, bytes, bytes, bytes };
}

struct call {
	struct ptc_device_copier *d;
	struct ptc_gpu_client *client;
	struct ptc_device_copying *x;
	struct ptc_slot_copying *c;
	enum ptc_gpu_direction direction;
	pid_t pid;
	const struct ptc_device_guard *guard;     /* NULL: none */
	const struct ptc_device_shadows *shadows; /* that copies out are made of; NULL: the ranks' own memory */
};

static struct ptc_gpu_ref ref_of(const struct ptc_device_memory *m)
{
	return (struct ptc_gpu_ref){ m->life, m->number };
}

static int copy_once(const struct call *k, const struct batch *b, struct ptc_gpu_outcome *o, struct ptc_error *err)
{
	struct ptc_gpu_ref host, memory;
	struct ptc_gpu_guard guard;
	int rc = host_ref(k->client, k->x, k->c, b->memory, &host, o, err);

	if (!rc && b->shadow)
		memory = ref_of(b->shadow);
	else if (rc == 0)
		rc = device_ref(k->d, k->client, k->x, b->range, k->pid, &memory, o, err);
	if (!rc && k->guard)
		rc = guard_ref(k->client, k->x, k->guard, k->pid, &guard, o, err);
	return rc ? rc
		  : ptc_gpu_client_copy(k->client, k->direction, memory, host, b->parts, b->n, k->guard ? &guard : NULL,
					o, err);
}

/* Asking again would not bring it back, whatever it was. */
static int shadow_lost(const struct batch *b, struct ptc_error *err)
{
	char why[512];

	snprintf(why, sizeof why, "%.500s", err->text);
	return ptc_error_set(err, PTC_ESTATE, "device %s: the copy there of ranks that have gone on is lost: %s",
			     b->range->uuid, why);
}

/* A copy may be made again: it has the same bytes then. What the rank or the device is to blame for stays. */
static int copy_batch(const struct call *k, const struct batch *b, struct ptc_error *err)
{
	int rc = 0;

	for (unsigned i = 0; i < TRIES; i++) {
		struct ptc_gpu_outcome o = { .blame = PTC_GPU_BLAME_NONE };

		rc = copy_once(k, b, &o, err);
		if (o.unsafe && k->c->kept) {
			atomic_fetch_add(&k->c->kept->refs, 1); /* for ever: that process cannot be ended */
			return ptc_error_wrap(err, "device %s: memory of the store stays in use", b->range->uuid);
		}
		if (rc && o.blame == PTC_GPU_BLAME_DEVICE && k->d->env->device_failed)
			k->d->env->device_failed(k->d->env->arg, b->range->uuid, k->pid);
		if (rc && b->shadow)
			return shadow_lost(b, err);
		if (rc == 0 || (o.blame != PTC_GPU_BLAME_REQUEST && o.blame != PTC_GPU_BLAME_NONE))
			return rc;
		if (rc != PTC_ESTATE && rc != PTC_EPEER && rc != PTC_EIO && rc != PTC_ELOST)
			return rc;
		forget(k->client, k->x);
	}
	return rc;
}

static int memory_of(const struct ptc_slot_copying *c, const uint8_t *here, uint64_t bytes, size_t *ret,
		     struct ptc_error *err)
{
	for (size_t i = 0; i < PTC_ARRAY_LEN(c->memory); i++) {
		const struct ptc_slot_memory *m = &c->memory[i];

		if (m->fd >= 0 && here >= m->base && (uint64_t)(here - m->base) <= m->bytes &&
		    bytes <= m->bytes - (uint64_t)(here - m->base)) {
			*ret = i;
			return 0;
		}
	}
	return ptc_error_set(err, PTC_EINTERNAL, "the request names memory that was not given to this process");
}

/* What has the piece's bytes, and where: *ret_at stays, where that is the rank's allocation. */
static int shadow_of(const struct call *k, const struct ptc_device_piece *p, const struct ptc_device_memory **ret,
		     uint64_t *ret_at, struct ptc_error *err)
{
	const struct ptc_device_shadow *x;

	*ret = NULL;
	if (!k->shadows || k->direction == PTC_GPU_IN)
		return 0;
	x = ptc_device_shadow_at(k->shadows, k->pid, p->address, p->bytes);
	if (!x)
		return ptc_error_set(err, PTC_EINTERNAL,
				     "the ranks have gone on, and their device has no copy of these bytes");
	*ret = &k->shadows->memory[x->memory];
	*ret_at = x->at + (p->address - x->address);
	return 0;
}

static int copy_all(const struct call *k, const struct ptc_device_piece *pieces, size_t n, struct ptc_error *err)
{
	struct batch *b = ptc_calloc(1, sizeof *b);
	int rc = b ? 0 : ptc_nomem(err);

	for (size_t i = 0; i < n && !rc; i++) {
		const struct ptc_device_piece *p = &pieces[i];
		uint64_t at = p->address - p->range->address;
		const struct ptc_device_memory *shadow;
		size_t memory = 0;

		rc = memory_of(k->c, p->here, p->bytes, &memory, err);
		if (rc == 0)
			rc = shadow_of(k, p, &shadow, &at, err);
		if (!rc && b->n &&
		    (b->range != p->range || b->shadow != shadow || b->memory != memory || b->n == PTC_GPU_PARTS_MAX)) {
			rc = copy_batch(k, b, err);
			b->n = 0;
		}
		if (rc)
			break;
		b->range = p->range;
		b->shadow = shadow;
		b->memory = memory;
		add(b, at, (uint64_t)(p->here - k->c->memory[memory].base), p->bytes);
	}
	if (!rc && b->n)
		rc = copy_batch(k, b, err);
	ptc_free(b);
	return rc;
}

/* ---- comparing ---- */

/* Reads to room beside the operation's memory, and compares there. */
static int compare_some(struct call *k, struct ptc_slot_copying *room, const struct ptc_device_piece *piece,
			bool *ret_differs, struct ptc_error *err)
{
	uint8_t *to = (uint8_t *)(uintptr_t)room->memory[0].base;
	int rc = 0;

	for (uint64_t at = 0; at < piece->bytes && !rc && !*ret_differs; at += ROOM_BYTES) {
		struct ptc_device_piece p = { piece->range, piece->address + at, to,
					      PTC_MIN(ROOM_BYTES, piece->bytes - at) };

		rc = copy_all(k, &p, 1, err);
		*ret_differs = !rc && memcmp(to, piece->here + at, p.bytes) != 0;
	}
	return rc;
}

static int open_room(struct ptc_slot_copying *room, struct ptc_error *err)
{
	struct ptc_slot_memory *m = &room->memory[0];
	void *base = MAP_FAILED;

	*room = (struct ptc_slot_copying){ .memory = { { .fd = memfd_create("ptc-compare", MFD_CLOEXEC) },
						       { .fd = -1 } } };
	if (m->fd >= 0 && ftruncate(m->fd, (off_t)ROOM_BYTES) == 0)
		base = mmap(NULL, ROOM_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
	if (base == MAP_FAILED) {
		int e = errno;

		ptc_close(&m->fd);
		return ptc_error_errno(err, e, "no memory to compare device memory");
	}
	m->base = base;
	m->bytes = ROOM_BYTES;
	return 0;
}

static int compare(struct call *k, const struct ptc_device_piece *pieces, size_t n, bool *ret_differs,
		   struct ptc_error *err)
{
	struct ptc_slot_copying room;
	int rc = open_room(&room, err);

	if (rc)
		return rc;
	k->c = &room;
	rc = copying_of(k->d, &room, &k->x, err);
	for (size_t i = 0; i < n && !rc && !*ret_differs; i++)
		rc = compare_some(k, &room, &pieces[i], ret_differs, err);
	ptc_device_copying_done(k->d, &room);
	munmap((void *)(uintptr_t)room.memory[0].base, ROOM_BYTES);
	close(room.memory[0].fd);
	k->c = NULL;
	return rc;
}

int ptc_device_copy(struct ptc_device_copier *d, struct ptc_slot_copying *c, enum ptc_copy_op op, pid_t pid,
		    const struct ptc_device_piece *pieces, size_t n, const struct ptc_device_guard *guard,
		    bool *ret_differs, struct ptc_error *err)
{
	struct call k = { .d = d, .c = c, .direction = op == PTC_COPY_WRITE ? PTC_GPU_IN : PTC_GPU_OUT, .pid = pid };
	int rc = client_of(d, &k.client, err);

	k.shadows = ptc_device_is_shadow_only(c) ? c->shadows : NULL;
	k.guard = guard && guard->page_fd >= 0 && k.direction == PTC_GPU_OUT && !k.shadows ? guard : NULL;
	*ret_differs = false;
	if (!rc && op == PTC_COPY_COMPARE)
		return compare(&k, pieces, n, ret_differs, err);
	if (rc == 0)
		rc = copying_of(d, c, &k.x, err);
	return rc ? rc : copy_all(&k, pieces, n, err);
}

/* ---- kept memory ---- */

static int keep(struct ptc_device_copier *d, const char *uuid, uint64_t bytes, bool beside,
		struct ptc_device_memory *ret, struct ptc_error *err)
{
	struct ptc_device_memory m = { 0 };
	struct ptc_gpu_client *client;
	struct ptc_gpu_outcome o;
	struct ptc_gpu_ref ref;
	int rc = client_of(d, &client, err);

	if (rc == 0)
		rc = count_ring(d, uuid, err);
	if (rc == 0)
		rc = ptc_gpu_client_keep(client, uuid, bytes, beside, &ref, &o, err);
	if (rc)
		return rc;
	snprintf(m.uuid, sizeof m.uuid, "%s", uuid);
	m.life = ref.life;
	m.number = ref.number;
	*ret = m;
	return 0;
}

int ptc_device_keep(struct ptc_device_copier *d, const char *uuid, uint64_t bytes, struct ptc_device_memory *ret,
		    struct ptc_error *err)
{
	return keep(d, uuid, bytes, false, ret, err);
}

void ptc_device_drop(struct ptc_device_copier *d, struct ptc_device_memory *m)
{
	struct ptc_gpu_outcome o;

	if (m->uuid[0])
		(void)ptc_gpu_client_close(d->client, ref_of(m), &o, NULL);
	*m = (struct ptc_device_memory){ 0 };
}

/* Both directions see the destination as the device's side. */
static struct ptc_gpu_part part_of(const struct ptc_device_rows *r, uint64_t rank_at, bool to_rank)
{
	uint64_t rank_row = r->n > 1 ? r->address_step : r->bytes, kept_row = r->n > 1 ? r->kept_step : r->bytes;
	struct ptc_gpu_part p = { .device_at = to_rank ? rank_at : r->kept,
				  .other_at = to_rank ? r->kept : rank_at,
				  .width = r->bytes,
				  .height = r->n,
				  .depth = 1,
				  .device_row = to_rank ? rank_row : kept_row,
				  .other_row = to_rank ? kept_row : rank_row };

	p.device_slice = p.height * p.device_row;
	p.other_slice = p.height * p.other_row;
	return p;
}

int ptc_device_copy_kept(struct ptc_device_copier *d, struct ptc_slot_copying *c, const struct ptc_device_memory *m,
			 enum ptc_copy_op op, pid_t pid, const struct ptc_device_range *range,
			 const struct ptc_device_rows *rows, size_t n, struct ptc_error *err)
{
	struct ptc_gpu_part parts[PTC_GPU_PARTS_MAX];
	struct ptc_gpu_outcome o = { .blame = PTC_GPU_BLAME_NONE };
	struct ptc_device_copying *x;
	struct ptc_gpu_ref rank;
	int rc = copying_of(d, c, &x, err);

	if (rc == 0)
		rc = device_ref(d, d->client, x, range, pid, &rank, &o, err);
	for (size_t at = 0; at < n && !rc;) {
		uint32_t k = 0;

		for (; at < n && k < PTC_GPU_PARTS_MAX; at++)
			parts[k++] = part_of(&rows[at], rows[at].address - range->address, op == PTC_COPY_WRITE);
		rc = op == PTC_COPY_WRITE ? ptc_gpu_client_copy_within(d->client, rank, ref_of(m), parts, k, &o, err)
					  : ptc_gpu_client_copy_within(d->client, ref_of(m), rank, parts, k, &o, err);
	}
	if (rc)
		forget(d->client, x);
	return rc;
}

int ptc_device_digest_kept(struct ptc_device_copier *d, const struct ptc_device_memory *m,
			   const struct ptc_device_rows *rows, size_t n, uint64_t *ret_digest, struct ptc_error *err)
{
	struct ptc_gpu_part parts[PTC_GPU_PARTS_MAX];
	struct ptc_gpu_outcome o;
	uint64_t all = 0, some = 0;
	int rc = 0;

	for (size_t at = 0; at < n && !rc; all ^= some) {
		uint32_t k = 0;

		for (; at < n && k < PTC_GPU_PARTS_MAX; at++) {
			parts[k] = part_of(&rows[at], rows[at].address, false);
			k++;
		}
		rc = ptc_gpu_client_digest(d->client, ref_of(m), parts, k, &some, &o, err);
	}
	*ret_digest = all;
	return rc;
}

int ptc_device_digest_rank(struct ptc_device_copier *d, struct ptc_slot_copying *c, pid_t pid,
			   const struct ptc_device_range *range, const struct ptc_device_rows *rows, size_t n,
			   uint64_t *ret_digest, struct ptc_error *err)
{
	struct ptc_gpu_part parts[PTC_GPU_PARTS_MAX];
	struct ptc_gpu_outcome o = { .blame = PTC_GPU_BLAME_NONE };
	struct ptc_device_copying *x;
	struct ptc_gpu_ref rank;
	uint64_t all = 0, some = 0;
	int rc = copying_of(d, c, &x, err);

	if (rc == 0)
		rc = device_ref(d, d->client, x, range, pid, &rank, &o, err);
	for (size_t at = 0; at < n && !rc; all ^= some) {
		uint32_t k = 0;

		for (; at < n && k < PTC_GPU_PARTS_MAX; at++)
			parts[k++] = part_of(&rows[at], rows[at].address - range->address, true);
		rc = ptc_gpu_client_digest(d->client, rank, parts, k, &some, &o, err);
	}
	if (rc)
		forget(d->client, x);
	*ret_digest = all;
	return rc;
}

/* ---- page-locked memory ---- */

int ptc_device_pin_begin(struct ptc_device_copier *d, int fd, uint64_t bytes, uint64_t step, const char *uuid,
			 struct ptc_device_pinned *ret, struct ptc_error *err)
{
	struct ptc_gpu_client *client;
	struct ptc_gpu_outcome o = { .blame = PTC_GPU_BLAME_NONE };
	struct ptc_gpu_ref ref;
	int rc = client_of(d, &client, err);

	if (rc == 0)
		rc = count_ring(d, uuid, err);
	if (rc == 0)
		rc = ptc_gpu_client_map_host(client, fd, bytes, NULL, &ref, &o, err);
	if (rc)
		return rc;
	*ret = (struct ptc_device_pinned){ .life = ref.life, .number = ref.number, .step = step, .whole = bytes };
	snprintf(ret->uuid, sizeof ret->uuid, "%s", uuid);
	return 0;
}

int ptc_device_pin_more(struct ptc_device_copier *d, struct ptc_device_pinned *p, struct ptc_error *err)
{
	const uint64_t bytes = PTC_MIN(p->step, p->whole - p->bytes);
	struct ptc_gpu_outcome o = { .blame = PTC_GPU_BLAME_NONE };
	int rc = 0;

	if (d->env->pinned_take)
		rc = d->env->pinned_take(d->env->arg, bytes, err);
	if (rc)
		return rc;
	atomic_fetch_add(&d->pinned_more, bytes);
	rc = ptc_gpu_client_lock(d->client, (struct ptc_gpu_ref){ p->life, p->number }, p->uuid, p->step, &p->bytes, &o,
				 err);
	if (rc && !o.unsafe) /* else that process may have them for ever */
		uncount(d, bytes);
	return rc;
}

bool ptc_device_unpin(struct ptc_device_copier *d, struct ptc_device_pinned *p)
{
	struct ptc_gpu_outcome o = { .blame = PTC_GPU_BLAME_NONE };

	if (!p->life)
		return true;
	(void)ptc_gpu_client_unmap_host(d->client, (struct ptc_gpu_ref){ p->life, p->number }, p->bytes, &o, NULL);
	if (!o.unsafe && p->bytes)
		uncount(d, p->bytes);
	*p = (struct ptc_device_pinned){ 0 };
	return !o.unsafe;
}

/* ---- shadows ---- */

/* One allocation's spans to the shadow. */
static int shadow_batch(const struct call *k, const struct batch *b, struct ptc_error *err)
{
	struct ptc_gpu_outcome o = { .blame = PTC_GPU_BLAME_NONE };
	struct ptc_gpu_guard guard;
	struct ptc_gpu_ref memory;
	int rc = device_ref(k->d, k->client, k->x, b->range, k->pid, &memory, &o, err);

	if (!rc && k->guard)
		rc = guard_ref(k->client, k->x, k->guard, k->pid, &guard, &o, err);
	return rc ? rc
		  : ptc_gpu_client_shadow(k->client, ref_of(b->shadow), memory, b->parts, b->n,
					  k->guard ? &guard : NULL, &o, err);
}

/* All spans that have places. */
static int fill_shadow(const struct call *k, const struct ptc_device_span *spans, size_t n, struct ptc_error *err)
{
	struct batch *b = ptc_calloc(1, sizeof *b);
	int rc = b ? 0 : ptc_nomem(err);

	for (size_t i = 0; i < n && !rc; i++) {
		const struct ptc_device_shadow *x =
			ptc_device_shadow_at(k->shadows, k->pid, spans[i].address, spans[i].bytes);

		if (b->n && (b->range != spans[i].range || b->n == PTC_GPU_PARTS_MAX)) {
			rc = shadow_batch(k, b, err);
			b->n = 0;
		}
		if (rc)
			break;
		b->range = spans[i].range;
		b->shadow = &k->shadows->memory[x->memory];
		add(b, x->at, spans[i].address - spans[i].range->address, spans[i].bytes);
	}
	if (!rc && b->n)
		rc = shadow_batch(k, b, err);
	ptc_free(b);
	return rc;
}

/* Memory for the rank's spans, on each device that it has some on. */
static int place_spans(struct ptc_device_copier *d, struct ptc_device_shadows *s, pid_t pid,
		       const struct ptc_device_span *spans, size_t n, struct ptc_error *err)
{
	uint64_t bytes;
	int rc = 0;

	for (size_t i = 0; i < n && !rc; i++) {
		if (ptc_device_shadow_at(s, pid, spans[i].address, spans[i].bytes))
			continue;
		rc = ptc_device_shadows_add(s, pid, spans[i].range->uuid, spans, n, &bytes, err);
		if (rc == 0)
			rc = keep(d, spans[i].range->uuid, bytes, true, &s->memory[s->nmemory - 1], err);
	}
	return rc;
}

int ptc_device_shadow(struct ptc_device_copier *d, struct ptc_slot_copying *c, pid_t pid,
		      const struct ptc_device_span *spans, size_t n, const struct ptc_device_guard *guard,
		      struct ptc_error *err)
{
	struct call k = { .d = d, .c = c, .pid = pid, .guard = guard && guard->page_fd >= 0 ? guard : NULL };
	int rc = client_of(d, &k.client, err);

	if (rc == 0)
		rc = copying_of(d, c, &k.x, err);
	if (!rc && !c->shadows)
		c->shadows = ptc_calloc(1, sizeof *c->shadows);
	if (!rc && !c->shadows)
		rc = ptc_nomem(err);
	if (rc == 0)
		rc = place_spans(d, c->shadows, pid, spans, n, err);
	k.shadows = c->shadows;
	if (rc == 0)
		rc = fill_shadow(&k, spans, n, err);
	if (rc && k.x)
		forget(k.client, k.x);
	return rc;
}

void ptc_device_shadow_only(struct ptc_device_copier *d, struct ptc_slot_copying *c)
{
	if (!c->shadows)
		return;
	c->shadows->gone_on = true;
	unbind(d, c->device);
}

bool ptc_device_shadow_lives(struct ptc_device_copier *d, const struct ptc_slot_copying *c)
{
	for (size_t i = 0; c->shadows && i < c->shadows->nmemory; i++)
		if (!ptc_gpu_client_lives(d->client, ref_of(&c->shadows->memory[i])))
			return false;
	return true;
}

bool ptc_device_is_shadow_only(const struct ptc_slot_copying *c)
{
	return c->shadows && c->shadows->gone_on;
}

void ptc_device_shadow_drop(struct ptc_device_copier *d, struct ptc_slot_copying *c)
{
	struct ptc_device_shadows *s = c->shadows;

	if (!s)
		return;
	for (size_t i = 0; i < s->nmemory; i++)
		ptc_device_drop(d, &s->memory[i]);
	ptc_free(s->memory);
	ptc_free(s->v);
	ptc_free(s);
	c->shadows = NULL;
}
