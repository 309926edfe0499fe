/* SPDX-License-Identifier: Apache-2.0 */
/* Checks ranks' declarations and rank state, because every byte of them comes from a program. Happy path: tensors are
 * added one by one, then put into name order; all their memory becomes spans in address order, by which later reads and
 * writes are checked. Failure modes: ELAYOUT naming the tensor, ELIMIT when it takes more memory than one rank may have
 * here. */
#include "daemon/workers/state/rank_declarations.h"
#include "daemon/workers/state/workers_sync.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/search.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define HANDLES_PART                                                                                                   \
	4 /* this part of the descriptors that ptcd may open is for ranks' handles; connections need the others */

static atomic_uint_fast64_t handles_open; /* of all ranks */

struct declared *ptc_declared_new(void)
{
	struct declared *d = ptc_calloc(1, sizeof *d);

	if (d)
		d->refs = 1;
	return d;
}

struct declared *ptc_declared_unref(struct declared *d)
{
	if (!d || --d->refs)
		return NULL;
	for (size_t i = 0; i < d->ntensors; i++) {
		ptc_free(d->tensors[i].name);
		ptc_free(d->tensors[i].regions);
	}
	ptc_free(d->tensors);
	ptc_free(d->spans);
	for (size_t i = 0; i < d->ndevices; i++)
		if (d->devices[i].fd >= 0) {
			close(d->devices[i].fd);
			atomic_fetch_sub(&handles_open, 1);
		}
	ptc_free(d->devices);
	ptc_free(d);
	return NULL;
}

static int refuse(const struct ptc_local_tensor *t, const char *what, struct ptc_error *err)
{
	return ptc_error_set(err, PTC_ELAYOUT, "tensor \"%.200s%s%s\": %s", t->name, *t->field ? ":" : "", t->field,
			     what);
}

static void fill_region(struct ptc_slot_region *r, const struct ptc_local_box *b, uint32_t ndim, uint32_t bytes)
{
	int64_t step = bytes;

	r->address = b->address;
	r->box.ndim = ndim;
	memcpy(r->box.off, b->offset, sizeof b->offset);
	memcpy(r->box.ext, b->extent, sizeof b->extent);
	/* Of a dim of one element any stride is right; this one keeps rows contiguous. */
	for (uint32_t d = ndim; d-- > 0;) {
		r->stride[d] = b->extent[d] > 1 ? b->stride[d] : step;
		if (ptc_ckd_mul(&step, r->stride[d], b->extent[d]))
			step = r->stride[d]; /* a dim further out has one element, and any stride will do */
	}
}

static int append(struct declared *d, struct ptc_local_tensor *t, uint32_t bytes, const struct ptc_local_box *boxes,
		  struct ptc_error *err)
{
	struct ptc_slot_tensor *s;

	if (!PTC_ROOM(d->tensors, d->ntensors + 1, d->cap))
		return ptc_nomem(err);
	s = &d->tensors[d->ntensors];
	*s = (struct ptc_slot_tensor){ .ndim = t->ndim, .tied = t->flags & 1, .nregions = t->nboxes };
	if (!ptc_dtype_parse(t->dtype, &s->dtype))
		return refuse(t, "an unknown dtype", err);
	memcpy(s->shape, t->shape, sizeof t->shape);
	s->name = *t->field ? ptc_asprintf("%s:%s", t->name, t->field) : ptc_strdup(t->name);
	s->regions = t->nboxes ? ptc_calloc(t->nboxes, sizeof *s->regions) : NULL;
	if (!s->name || (t->nboxes && !s->regions)) {
		ptc_free(s->name);
		ptc_free(s->regions);
		return ptc_nomem(err);
	}
	for (uint32_t i = 0; i < t->nboxes; i++)
		fill_region(&s->regions[i], &boxes[i], t->ndim, bytes);
	d->ntensors++;
	d->nregions += t->nboxes;
	return 0;
}

int ptc_declared_add(struct declared *d, struct ptc_local_tensor *t, struct ptc_error *err)
{
	uint32_t bytes = ptc_local_dtype_bytes(t->dtype);
	struct ptc_local_box *boxes;
	const char *what;
	int rc;

	d->memory += sizeof(struct ptc_slot_tensor) * 2 + strlen(t->name) + strlen(t->field) + 34 +
		     t->nboxes * (sizeof(struct ptc_slot_region) + 2 * sizeof(struct ptc_local_span));
	if (d->ntensors == PTC_LOCAL_TENSORS_MAX || d->nregions + t->nboxes > PTC_LOCAL_REGIONS_MAX ||
	    d->memory > WORKERS_DECLARED_MAX)
		return ptc_error_set(err, PTC_ELIMIT,
				     "tensor \"%.200s\": a rank declares more than %u tensors or boxes", t->name,
				     PTC_LOCAL_TENSORS_MAX);
	boxes = ptc_calloc(t->nboxes ? t->nboxes : 1, sizeof *boxes);
	if (!boxes)
		return ptc_nomem(err);
	what = ptc_local_tensor_error(t, bytes, boxes);
	rc = what ? refuse(t, what, err) : append(d, t, bytes, boxes, err);
	ptc_free(boxes);
	return rc;
}

/* ---- devices ------------------------------------------------------------------------ */

/* A copy of it; -1: there are as many as there may be. */
static int keep_handle(const struct declared *d, int fd)
{
	struct rlimit l;
	int copy = -1;

	if (fd < 0 || d->nhandles >= PTC_LOCAL_HANDLES_MAX || getrlimit(RLIMIT_NOFILE, &l) != 0)
		return -1;
	if (atomic_fetch_add(&handles_open, 1) < l.rlim_cur / HANDLES_PART)
		copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (copy < 0)
		atomic_fetch_sub(&handles_open, 1);
	return copy;
}

int ptc_declared_add_device(struct declared *d, const struct ptc_local_device *m, int fd, struct ptc_error *err)
{
	struct ptc_device_range *r;

	d->memory += 2 * sizeof *r;
	if (d->ndevices == PTC_LOCAL_DEVICES_MAX || d->memory > WORKERS_DECLARED_MAX)
		return ptc_error_set(err, PTC_ELIMIT, "more than %u allocations on devices", PTC_LOCAL_DEVICES_MAX);
	if (!PTC_ROOM(d->devices, d->ndevices + 1, d->devices_cap))
		return ptc_nomem(err);
	r = &d->devices[d->ndevices++];
	*r = (struct ptc_device_range){ m->address, m->bytes, m->context, m->buffer, "", "", { 0 }, -1 };
	snprintf(r->uuid, sizeof r->uuid, "%s", m->uuid);
	snprintf(r->why, sizeof r->why, "%s", m->why);
	memcpy(r->ipc, m->ipc, sizeof r->ipc);
	if (!m->descriptor || m->why[0])
		return 0;
	r->fd = keep_handle(d, fd);
	d->nhandles += r->fd >= 0;
	if (r->fd < 0)
		snprintf(r->why, sizeof r->why,
			 "more than %d handles of cuMemMap, or ptcd keeps too many for all ranks",
			 PTC_LOCAL_HANDLES_MAX);
	return 0;
}

PTC_BY(by_device_address, struct ptc_device_range, address)

/* One that only the rank can copy makes the rank copy all. */
static void finish_devices(struct declared *d)
{
	if (d->ndevices == 0)
		return;
	qsort(d->devices, d->ndevices, sizeof d->devices[0], by_device_address);
	d->path = DEVICE_UNTRIED;
	for (size_t i = 0; i < d->ndevices && d->path == DEVICE_UNTRIED; i++)
		if (d->devices[i].why[0]) {
			d->path = DEVICE_BY_RANK;
			snprintf(d->device_why, sizeof d->device_why, "%s", d->devices[i].why);
		}
}

const struct ptc_device_range *ptc_declared_device(const struct declared *d, uint64_t address)
{
	size_t low = 0, high = d->ndevices;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (d->devices[mid].address <= address)
			low = mid + 1;
		else
			high = mid;
	}
	return low && address - d->devices[low - 1].address < d->devices[low - 1].bytes ? &d->devices[low - 1] : NULL;
}

/* ---- spans -------------------------------------------------------------------------- */

PTC_BY_NAME(by_name, struct ptc_slot_tensor, name)

PTC_BY(by_address, struct ptc_local_span, address)

static uint32_t element_bytes(const struct ptc_slot_tensor *t)
{
	return ptc_dtype_bits(t->dtype) / 8;
}

static struct ptc_local_span span_of(const struct ptc_slot_tensor *t, const struct ptc_slot_region *r)
{
	uint64_t bytes = element_bytes(t);

	for (uint32_t d = 0; d < t->ndim; d++)
		bytes += (uint64_t)(r->box.ext[d] - 1) * (uint64_t)r->stride[d];
	return (struct ptc_local_span){ .address = r->address, .bytes = bytes };
}

/* Overlapping and adjacent ones become one; each begins at a multiple of 64 in staging. */
static void merge_spans(struct declared *d)
{
	size_t n = 0;

	for (size_t i = 0; i < d->nspans; i++) {
		struct ptc_local_span *s = &d->spans[i], *last = n ? &d->spans[n - 1] : NULL;

		if (last && s->address <= last->address + last->bytes) {
			uint64_t end = PTC_MAX(last->address + last->bytes, s->address + s->bytes);

			last->bytes = end - last->address;
		} else {
			d->spans[n++] = *s;
		}
	}
	d->nspans = n;
	for (size_t i = 0; i < n; i++) {
		d->spans[i].offset = d->span_bytes;
		d->span_bytes += (d->spans[i].bytes + 63) / 64 * 64;
	}
}

int ptc_declared_finish(struct declared *d, struct ptc_error *err)
{
	if (d->ntensors)
		qsort(d->tensors, d->ntensors, sizeof d->tensors[0], by_name);
	for (size_t i = 1; i < d->ntensors; i++)
		if (strcmp(d->tensors[i - 1].name, d->tensors[i].name) == 0)
			return ptc_error_set(err, PTC_ELAYOUT, "tensor \"%.200s\": declared twice", d->tensors[i].name);
	d->spans = ptc_calloc(d->nregions ? d->nregions : 1, sizeof d->spans[0]);
	if (!d->spans)
		return ptc_nomem(err);
	for (size_t i = 0; i < d->ntensors; i++)
		for (size_t j = 0; j < d->tensors[i].nregions; j++) {
			const struct ptc_slot_tensor *t = &d->tensors[i];

			d->spans[d->nspans++] = span_of(t, &t->regions[j]);
			d->bytes += (uint64_t)ptc_box_volume(&t->regions[j].box) * element_bytes(t);
		}
	if (d->nspans)
		qsort(d->spans, d->nspans, sizeof d->spans[0], by_address);
	merge_spans(d);
	finish_devices(d);
	return 0;
}

/* Of two tensors of one name. */
static bool same_parts(const struct ptc_slot_tensor *a, const struct ptc_slot_tensor *b)
{
	bool same = a->dtype == b->dtype && a->ndim == b->ndim && a->tied == b->tied && a->nregions == b->nregions &&
		    memcmp(a->shape, b->shape, a->ndim * sizeof a->shape[0]) == 0;

	for (size_t i = 0; same && i < a->nregions; i++)
		same = ptc_box_equal(&a->regions[i].box, &b->regions[i].box);
	return same;
}

int ptc_declared_same_layout(const struct declared *before, const struct declared *now, struct ptc_error *err)
{
	for (size_t i = 0; i < before->ntensors || i < now->ntensors; i++) {
		const char *a = i < before->ntensors ? before->tensors[i].name : NULL;
		const char *b = i < now->ntensors ? now->tensors[i].name : NULL;

		if (a && (!b || strcmp(a, b) < 0))
			return ptc_error_set(err, PTC_ELAYOUT,
					     "tensor \"%.900s\": it was declared, and has got no memory", a);
		if (!a || strcmp(a, b) > 0)
			return ptc_error_set(err, PTC_ELAYOUT,
					     "tensor \"%.900s\": it was not declared before it got memory", b);
		if (!same_parts(&before->tensors[i], &now->tensors[i]))
			return ptc_error_set(
				err, PTC_ELAYOUT,
				"tensor \"%.900s\": it has got memory of another dtype, shape or part than "
				"it was declared with",
				a);
	}
	return 0;
}

const struct ptc_local_span *ptc_declared_span(const struct declared *d, uint64_t address, uint64_t len)
{
	size_t low = 0, high = d->nspans;

	while (low < high) {
		size_t mid = low + (high - low) / 2;
		const struct ptc_local_span *s = &d->spans[mid];

		if (address < s->address)
			high = mid;
		else if (address - s->address >= s->bytes)
			low = mid + 1;
		else
			return len <= s->bytes - (address - s->address) ? s : NULL;
	}
	return NULL;
}

const char *ptc_declared_tensor_at(const struct declared *d, uint64_t address)
{
	for (size_t i = 0; i < d->ntensors; i++)
		for (size_t j = 0; j < d->tensors[i].nregions; j++) {
			struct ptc_local_span s = span_of(&d->tensors[i], &d->tensors[i].regions[j]);

			if (address >= s.address && address - s.address < s.bytes)
				return d->tensors[i].name;
		}
	return NULL;
}

/* ---- blobs and cursors ---------------------------------------------------------------- */

struct rank_state *ptc_rank_state_new(void)
{
	struct rank_state *k = ptc_calloc(1, sizeof *k);

	if (k)
		k->refs = 1;
	return k;
}

struct rank_state *ptc_rank_state_ref(struct rank_state *k)
{
	if (k)
		k->refs++;
	return k;
}

struct rank_state *ptc_rank_state_unref(struct rank_state *k)
{
	if (!k || --k->refs)
		return NULL;
	for (size_t i = 0; i < k->nblobs; i++) {
		ptc_free(k->blobs[i].name);
		ptc_free(k->blobs[i].data);
	}
	for (size_t i = 0; i < k->ncursors; i++) {
		ptc_free(k->cursors[i].name);
		ptc_free(k->cursors[i].tag);
	}
	ptc_free(k->blobs);
	ptc_free(k->cursors);
	ptc_free(k);
	return NULL;
}

static void *copy_of(const void *data, size_t len)
{
	void *p = ptc_malloc(len ? len : 1);

	if (p && len)
		memcpy(p, data, len);
	return p;
}

static int add_blob(struct rank_state *k, const struct ptc_local_blob *b)
{
	struct ptc_slot_blob *p, copy = {
		.name = ptc_strdup(b->name), .scope = b->scope, .data = copy_of(b->data, b->len), .len = b->len
	};
	size_t i = 0;

	while (i < k->nblobs && (k->blobs[i].scope != b->scope || strcmp(k->blobs[i].name, b->name) != 0))
		i++;
	p = i < PTC_LOCAL_BLOBS_MAX ? k->blobs : NULL;
	if (i == k->nblobs && i < PTC_LOCAL_BLOBS_MAX)
		p = ptc_reallocarray(k->blobs, i + 1, sizeof *p);
	if (!p || !copy.name || !copy.data) {
		ptc_free(copy.name);
		ptc_free(copy.data);
		return i == PTC_LOCAL_BLOBS_MAX ? PTC_ELIMIT : PTC_ENOMEM;
	}
	k->blobs = p;
	if (i < k->nblobs) {
		ptc_free(p[i].name);
		ptc_free(p[i].data);
	} else {
		k->nblobs++;
	}
	p[i] = copy;
	return 0;
}

static int add_cursor(struct rank_state *k, const struct ptc_local_cursor *c)
{
	struct ptc_slot_cursor *p,
		copy = { .name = ptc_strdup(c->name), .tag = ptc_strdup(c->tag), .position = c->position };
	size_t i = 0;

	while (i < k->ncursors && strcmp(k->cursors[i].name, c->name) != 0)
		i++;
	p = i < PTC_LOCAL_CURSORS_MAX ? k->cursors : NULL;
	if (i == k->ncursors && i < PTC_LOCAL_CURSORS_MAX)
		p = ptc_reallocarray(k->cursors, i + 1, sizeof *p);
	if (!p || !copy.name || !copy.tag) {
		ptc_free(copy.name);
		ptc_free(copy.tag);
		return i == PTC_LOCAL_CURSORS_MAX ? PTC_ELIMIT : PTC_ENOMEM;
	}
	k->cursors = p;
	if (i < k->ncursors) {
		ptc_free(p[i].name);
		ptc_free(p[i].tag);
	} else {
		k->ncursors++;
	}
	p[i] = copy;
	return 0;
}

/* One that nobody else refers to. */
static int own(struct rank_state **k)
{
	struct rank_state *copy;
	int rc = 0;

	if (*k && (*k)->refs == 1)
		return 0;
	copy = ptc_rank_state_new();
	if (!copy)
		return PTC_ENOMEM;
	for (size_t i = 0; !rc && *k && i < (*k)->nblobs; i++) {
		const struct ptc_slot_blob *b = &(*k)->blobs[i];

		rc = add_blob(copy, &(struct ptc_local_blob){ b->name, (uint8_t)b->scope, b->data, b->len });
	}
	for (size_t i = 0; !rc && *k && i < (*k)->ncursors; i++) {
		const struct ptc_slot_cursor *c = &(*k)->cursors[i];

		rc = add_cursor(copy, &(struct ptc_local_cursor){ c->name, c->tag, c->position });
	}
	if (rc) {
		ptc_rank_state_unref(copy);
		return rc;
	}
	ptc_rank_state_unref(*k);
	*k = copy;
	return 0;
}

int ptc_rank_state_set_blob(struct rank_state **k, const struct ptc_local_blob *b)
{
	int rc = own(k);

	return rc ? rc : add_blob(*k, b);
}

int ptc_rank_state_set_cursor(struct rank_state **k, const struct ptc_local_cursor *c)
{
	int rc = own(k);

	return rc ? rc : add_cursor(*k, c);
}

int ptc_rank_state_make(const struct ptc_rank_state *of, struct rank_state **ret, struct ptc_error *err)
{
	struct rank_state *k = ptc_rank_state_new();
	int rc = k ? 0 : PTC_ENOMEM;

	for (size_t i = 0; !rc && i < of->nblobs; i++) {
		const struct ptc_slot_blob *b = &of->blobs[i];

		rc = b->len > PTC_LOCAL_BLOB_MAX || strlen(b->name) > PTC_LOCAL_SHORT_MAX
			     ? PTC_ELIMIT
			     : ptc_rank_state_set_blob(&k, &(struct ptc_local_blob){ b->name, (uint8_t)b->scope,
										     b->data, b->len });
	}
	for (size_t i = 0; !rc && i < of->ncursors; i++) {
		const struct ptc_slot_cursor *c = &of->cursors[i];

		rc = strlen(c->name) > PTC_LOCAL_SHORT_MAX || strlen(c->tag) > PTC_LOCAL_SHORT_MAX
			     ? PTC_ELIMIT
			     : ptc_rank_state_set_cursor(&k,
							 &(struct ptc_local_cursor){ c->name, c->tag, c->position });
	}
	if (rc) {
		ptc_rank_state_unref(k);
		return ptc_error_set(err, rc,
				     rc == PTC_ELIMIT ? "the blobs or cursors are too many or too long for a rank"
						      : "out of memory");
	}
	*ret = k;
	return 0;
}
