/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: dims are merged from the last one outwards as long as they have no gap on either side; each index of the
 * remaining dims is visited in turn. Runs that touch are joined, and copied when the kernel's bound of spans is
 * reached.
 *
 * Failure modes: sub-byte dtypes with strides (PTC_ELAYOUT), the errors of ptc_slot_copy. */
#include "daemon/agent/memory/strided.h"

#include "base/check.h"

#include <string.h>

/* As if the region were row-major and compact. */
static void place_compact(struct ptc_strided *p)
{
	int64_t stride = 1;

	p->step = 0;
	for (uint32_t d = p->box.ndim; d-- > 0;) {
		p->stride[d] = stride;
		stride *= p->box.ext[d];
	}
}

static bool is_compact(const struct ptc_slot_region *r, int64_t bits)
{
	int64_t stride = bits;

	for (uint32_t d = r->box.ndim; d-- > 0;) {
		if (r->box.ext[d] > 1 && r->stride[d] * 8 != stride)
			return false;
		stride *= r->box.ext[d];
	}
	return true;
}

int ptc_strided_init(struct ptc_strided *p, const struct ptc_spec *spec, uint32_t item,
		     const struct ptc_slot_region *region, struct ptc_error *err)
{
	int64_t bits = ptc_dtype_bits(ptc_item_dtype(spec, item));
	uint32_t last = region->box.ndim ? region->box.ndim - 1 : 0;
	struct ptc_strided q = { .address = region->address };
	int rc = ptc_item_byte_box(spec, item, &region->box, &q.box, err);

	if (rc)
		return rc;
	if (is_compact(region, bits)) {
		place_compact(&q);
	} else if (bits % 8) {
		return ptc_error_set(err, PTC_ELAYOUT, "tensor \"%s\": memory of %s must be row-major and compact",
				     spec->tensors[item / (1 + spec->nfields)].name,
				     ptc_dtype_name(ptc_item_dtype(spec, item)));
	} else {
		memcpy(q.stride, region->stride, sizeof(q.stride));
		if (region->box.ext[last] > 1 && region->stride[last] != bits / 8)
			q.step = bits / 8;
	}
	*p = q;
	return 0;
}

struct loop {
	int64_t n, there, here; /* count, and steps on the two sides */
};

/* The innermost of loops is first; there is always one. */
static int walk(const struct loop *loops, int nloops, uint64_t address, int64_t off, int64_t run,
		ptc_strided_rows_fn fn, void *arg, struct ptc_error *err)
{
	struct ptc_strided_rows rows = { address, off, run, loops[0].n, loops[0].there, loops[0].here };
	int64_t idx[PTC_MAX_DIMS + 1] = { 0 };

	for (;;) {
		int rc = fn(arg, &rows, err), k = 1;

		if (rc)
			return rc;
		for (; k < nloops; k++) {
			rows.address += (uint64_t)loops[k].there;
			rows.off += loops[k].here;
			if (++idx[k] < loops[k].n)
				break;
			rows.address -= (uint64_t)(loops[k].there * loops[k].n);
			rows.off -= loops[k].here * loops[k].n;
			idx[k] = 0;
		}
		if (k == nloops)
			return 0;
	}
}

int ptc_strided_each_rows(const struct ptc_strided *p, const struct ptc_box *other, const struct ptc_box *cut,
			  ptc_strided_rows_fn fn, void *arg, struct ptc_error *err)
{
	uint32_t last = p->box.ndim - 1;
	int64_t step = p->step ? p->step : 1, run, here = 1, off = 0;
	uint64_t address = p->address;
	struct loop loops[PTC_MAX_DIMS + 1];
	int nloops = 0;

	if (ptc_fails(cut->ndim == p->box.ndim && !((cut->off[last] - p->box.off[last]) % step) &&
		      !(cut->ext[last] % step)))
		return ptc_error_set(err, PTC_EINTERNAL, "internal error: a box cuts an element in two");
	run = p->step ? p->step : cut->ext[last];
	if (p->step && cut->ext[last] > p->step)
		loops[nloops++] = (struct loop){ cut->ext[last] / step, p->stride[last], step };
	for (uint32_t d = p->box.ndim; d-- > 0; here *= other->ext[d]) {
		int64_t in = cut->off[d] - p->box.off[d];

		address += (uint64_t)(d == last ? (p->step ? in / step * p->stride[d] : in) : in * p->stride[d]);
		off += (cut->off[d] - other->off[d]) * here;
		if (d == last || cut->ext[d] == 1)
			continue;
		if (!nloops && p->stride[d] == run && here == run)
			run *= cut->ext[d];
		else
			loops[nloops++] = (struct loop){ cut->ext[d], p->stride[d], here };
	}
	if (!nloops)
		loops[nloops++] = (struct loop){ .n = 1 };
	return walk(loops, nloops, address, off, run, fn, arg, err);
}

struct runs_call {
	ptc_strided_fn fn;
	void *arg;
};

static int each_run(void *arg, const struct ptc_strided_rows *rows, struct ptc_error *err)
{
	const struct runs_call *c = arg;
	int rc = 0;

	for (int64_t i = 0; !rc && i < rows->n; i++)
		rc = c->fn(c->arg, rows->address + (uint64_t)(i * rows->there), rows->off + i * rows->here, rows->len,
			   err);
	return rc;
}

int ptc_strided_runs(const struct ptc_strided *p, const struct ptc_box *other, const struct ptc_box *cut,
		     ptc_strided_fn fn, void *arg, struct ptc_error *err)
{
	struct runs_call c = { fn, arg };

	return ptc_strided_each_rows(p, other, cut, each_run, &c, err);
}

/* ---- moving ---- */

int ptc_iov_batch_flush(struct ptc_iov_batch *m, struct ptc_error *err)
{
	int rc = 0;

	if (m->bytes)
		rc = ptc_slot_copy(m->slot, m->way, m->copying, m->remote, m->nremote, m->local, m->nlocal,
				   m->way == PTC_COPY_READ ? m->pages : PTC_PAGES_MAPPED, err);
	m->moved += rc ? 0 : m->bytes;
	m->nremote = m->nlocal = m->bytes = 0;
	return rc;
}

static bool joins(const struct iovec *v, size_t n, uintptr_t next)
{
	return n && (uintptr_t)v[n - 1].iov_base + v[n - 1].iov_len == next;
}

static void put(struct iovec *v, size_t *n, uintptr_t at, size_t len)
{
	if (joins(v, *n, at))
		v[*n - 1].iov_len += len;
	else
		v[(*n)++] = (struct iovec){ (void *)at, len };
}

int ptc_iov_batch_add(struct ptc_iov_batch *m, uint64_t address, const struct iovec *spans, int nspans, int64_t off,
		      int64_t len, struct ptc_error *err)
{
	for (int i = 0; i < nspans && len > 0; i++) {
		int64_t has = (int64_t)spans[i].iov_len, now;

		if (off >= has) {
			off -= has;
			continue;
		}
		now = PTC_MIN(has - off, len);
		if (m->nremote == PTC_IOV_BATCH_SPANS || m->nlocal == PTC_IOV_BATCH_SPANS ||
		    m->bytes >= PTC_IOV_BATCH_BYTES) {
			int rc = ptc_iov_batch_flush(m, err);

			if (rc)
				return rc;
		}
		put(m->remote, &m->nremote, (uintptr_t)address, (size_t)now);
		put(m->local, &m->nlocal, (uintptr_t)spans[i].iov_base + (uintptr_t)off, (size_t)now);
		m->bytes += (size_t)now;
		address += (uint64_t)now;
		len -= now;
		off = 0;
	}
	return len ? ptc_error_set(err, PTC_EINTERNAL, "internal error: a copy goes beyond its extent") : 0;
}
