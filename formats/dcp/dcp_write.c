/* SPDX-License-Identifier: Apache-2.0 */
/* ".metadata" as torch.distributed.checkpoint.save writes it, with the members that every version from 2.4 on reads.
 * Failure modes: dcp.h. */
#include "formats/dcp/dcp.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/status.h"
#include "formats/pickle/pickle.h"
#include "formats/dcp/torch_parts.h"

#include <stdlib.h>
#include <string.h>

#define MODULE    "torch.distributed.checkpoint.metadata\n"
#define BATCH     1000 /* entries of a dict between two marks */
#define VERSION_1 "1.0.0"

static const char *const metadata = MODULE "Metadata";
static const char *const tensor_class = MODULE "TensorStorageMetadata";
static const char *const properties = MODULE "TensorProperties";
static const char *const memory_format = MODULE "_MEM_FORMAT_ENCODING";
static const char *const chunk_class = MODULE "ChunkStorageMetadata";
static const char *const bytes_class = MODULE "BytesStorageMetadata";
static const char *const index_class = MODULE "MetadataIndex";
static const char *const info_class = "torch.distributed.checkpoint.filesystem\n_StorageInfo";
static const char *const size_class = "torch\nSize";
static const char *const get_layout = "torch.serialization\n_get_layout";

void ptc_dcp_done(struct ptc_dcp *d)
{
	for (size_t i = 0; i < d->nentries; i++) {
		ptc_free(d->entries[i].key);
		ptc_free(d->entries[i].parts);
		ptc_free(d->entries[i].boxes);
	}
	for (size_t i = 0; i < d->nfiles; i++)
		ptc_free(d->files[i]);
	ptc_free(d->entries);
	ptc_free(d->files);
	*d = (struct ptc_dcp){ 0 };
}

/* ---- cutting ---- */

/* The first dim that is cut: an index of it has no more than a part's bytes. Dims before it have one index a part. */
static uint32_t cut_dim(const struct ptc_dcp_entry *e, uint64_t most, uint64_t *ret_inner)
{
	uint32_t d = e->ndim;
	uint64_t inner = 1;

	for (; d && inner * (uint64_t)PTC_MAX(e->shape[d - 1], 1) <= most; d--)
		inner *= (uint64_t)PTC_MAX(e->shape[d - 1], 1);
	*ret_inner = inner;
	return d; /* all of the dims from d on fit; 0: the tensor is one part */
}

static uint64_t elements(uint32_t ndim, const int64_t *shape)
{
	uint64_t n = 1;

	for (uint32_t d = 0; d < ndim; d++)
		n *= (uint64_t)shape[d];
	return n;
}

static void place_box(struct ptc_dcp_entry *e, uint32_t part, uint32_t dim, uint64_t first, uint64_t n)
{
	int64_t *off = e->boxes + (size_t)part * 2 * e->ndim, *ext = off + e->ndim;

	for (uint32_t d = e->ndim; d--;) {
		bool whole = d > dim;

		off[d] = whole ? 0 : (int64_t)(first % (uint64_t)e->shape[d]);
		ext[d] = whole ? e->shape[d] : d == dim ? (int64_t)n : 1;
		if (!whole)
			first /= (uint64_t)e->shape[d];
	}
}

static int one_part(struct ptc_dcp_entry *e)
{
	for (uint32_t d = 0; d < e->ndim; d++) {
		e->boxes[d] = 0;
		e->boxes[e->ndim + d] = e->shape[d];
	}
	e->nparts = 1;
	return 0;
}

int ptc_dcp_cut(struct ptc_dcp_entry *e, struct ptc_error *err)
{
	uint64_t item = ptc_dtype_bits(e->dtype) / 8, inner = 1, step, rows, n;
	uint32_t dim = item ? cut_dim(e, PTC_DCP_PART_BYTES / item, &inner) : 0;

	if (!ptc_torch_dtype_global(e->dtype))
		return ptc_error_set(err, PTC_ELAYOUT, "%s: PyTorch has no dtype %s", e->key, ptc_dtype_name(e->dtype));
	if (!elements(e->ndim, e->shape))
		dim = 0;
	rows = dim ? (uint64_t)e->shape[dim - 1] : 1;
	step = dim ? PTC_MIN(PTC_DCP_PART_BYTES / item / inner, rows) : 1;
	n = dim ? elements(dim - 1, e->shape) * ((rows + step - 1) / step) : 1;
	if (n > PTC_MAX_REGIONS)
		return ptc_error_set(err, PTC_ELIMIT, "%s: more than %u parts", e->key, PTC_MAX_REGIONS);
	e->parts = ptc_calloc((size_t)n, sizeof *e->parts);
	e->boxes = ptc_calloc((size_t)n * 2 * PTC_MAX(e->ndim, 1), sizeof *e->boxes);
	if (!e->parts || !e->boxes)
		return ptc_nomem(err);
	if (!dim)
		return one_part(e);
	for (uint64_t outer = 0; outer < elements(dim - 1, e->shape); outer++)
		for (uint64_t row = 0; row < rows; row += step)
			place_box(e, e->nparts++, dim - 1, outer * rows + row, PTC_MIN(step, rows - row));
	return 0;
}

uint64_t ptc_dcp_part_elements(const struct ptc_dcp_entry *e, uint32_t part, uint64_t *ret_first)
{
	const int64_t *off = ptc_dcp_offset(e, part);
	uint64_t first = 0;

	for (uint32_t d = 0; d < e->ndim; d++)
		first = first * (uint64_t)e->shape[d] + (uint64_t)off[d];
	*ret_first = first;
	return elements(e->ndim, ptc_dcp_extent(e, part));
}

/* ---- the pickle ---- */

static void put_object(struct ptc_pickle_out *o, const char *class)
{
	ptc_pickle_global(o, class);
	ptc_pickle_op(o, PTC_PICKLE_EMPTY_TUPLE);
	ptc_pickle_op(o, PTC_PICKLE_NEWOBJ);
}

static void begin_state(struct ptc_pickle_out *o)
{
	ptc_pickle_op(o, PTC_PICKLE_EMPTY_DICT);
	ptc_pickle_op(o, PTC_PICKLE_MARK);
}

static void end_state(struct ptc_pickle_out *o)
{
	ptc_pickle_op(o, PTC_PICKLE_SETITEMS);
	ptc_pickle_op(o, PTC_PICKLE_BUILD);
}

static void put_size(struct ptc_pickle_out *o, uint32_t ndim, const int64_t *v)
{
	ptc_pickle_global(o, size_class);
	ptc_pickle_op(o, PTC_PICKLE_MARK);
	for (uint32_t d = 0; d < ndim; d++)
		ptc_pickle_int(o, v[d]);
	ptc_pickle_op(o, PTC_PICKLE_TUPLE);
	ptc_pickle_op(o, PTC_PICKLE_TUPLE1);
	ptc_pickle_op(o, PTC_PICKLE_REDUCE);
}

/* (dtype, layout, requires_grad, memory format, pin_memory). */
static void put_properties(struct ptc_pickle_out *o, enum ptc_dtype dtype)
{
	put_object(o, properties);
	ptc_pickle_op(o, PTC_PICKLE_MARK);
	ptc_pickle_global(o, ptc_torch_dtype_global(dtype));
	ptc_pickle_global(o, get_layout);
	ptc_pickle_text(o, "torch.strided");
	ptc_pickle_op(o, PTC_PICKLE_TUPLE1);
	ptc_pickle_op(o, PTC_PICKLE_REDUCE);
	ptc_pickle_bool(o, false);
	ptc_pickle_global(o, memory_format);
	ptc_pickle_int(o, 0);
	ptc_pickle_op(o, PTC_PICKLE_TUPLE1);
	ptc_pickle_op(o, PTC_PICKLE_REDUCE);
	ptc_pickle_bool(o, false);
	ptc_pickle_op(o, PTC_PICKLE_TUPLE);
	ptc_pickle_op(o, PTC_PICKLE_BUILD);
}

static void put_tensor(struct ptc_pickle_out *o, const struct ptc_dcp_entry *e)
{
	put_object(o, tensor_class);
	begin_state(o);
	ptc_pickle_text(o, "properties");
	put_properties(o, e->dtype);
	ptc_pickle_text(o, "size");
	put_size(o, e->ndim, e->shape);
	ptc_pickle_text(o, "chunks");
	ptc_pickle_op(o, PTC_PICKLE_EMPTY_LIST);
	for (uint32_t i = 0; i < e->nparts; i++) {
		if (i % BATCH == 0)
			ptc_pickle_op(o, PTC_PICKLE_MARK);
		put_object(o, chunk_class);
		begin_state(o);
		ptc_pickle_text(o, "offsets");
		put_size(o, e->ndim, ptc_dcp_offset(e, i));
		ptc_pickle_text(o, "sizes");
		put_size(o, e->ndim, ptc_dcp_extent(e, i));
		end_state(o);
		if (i % BATCH == BATCH - 1 || i + 1 == e->nparts)
			ptc_pickle_op(o, PTC_PICKLE_APPENDS);
	}
	end_state(o);
}

/* The path of a key, from which PyTorch makes nested dicts and lists. */
static void put_path(struct ptc_pickle_out *o, const struct ptc_dcp_entry *e)
{
	const char *at = e->key;

	ptc_pickle_op(o, PTC_PICKLE_MARK);
	for (unsigned i = 0; i < e->npath; i++) {
		if (e->numbers >> i & 1)
			ptc_pickle_int(o, (int64_t)strtoull(at, NULL, 10));
		else
			ptc_pickle_text_n(o, at, e->path[i]);
		at += e->path[i] + 1;
	}
	ptc_pickle_op(o, PTC_PICKLE_TUPLE);
}

static void put_index(struct ptc_pickle_out *o, const struct ptc_dcp_entry *e, uint32_t part)
{
	put_object(o, index_class);
	begin_state(o);
	ptc_pickle_text(o, "fqn");
	ptc_pickle_text(o, e->key);
	if (!e->is_value) {
		ptc_pickle_text(o, "offset");
		put_size(o, e->ndim, ptc_dcp_offset(e, part));
	}
	ptc_pickle_text(o, "index");
	if (e->is_value)
		ptc_pickle_none(o);
	else
		ptc_pickle_int(o, part);
	end_state(o);
}

static void put_info(struct ptc_pickle_out *o, const char *file, const struct ptc_dcp_part *p)
{
	put_object(o, info_class);
	begin_state(o);
	ptc_pickle_text(o, "relative_path");
	ptc_pickle_text(o, file);
	ptc_pickle_text(o, "offset");
	ptc_pickle_int(o, (int64_t)p->at);
	ptc_pickle_text(o, "length");
	ptc_pickle_int(o, (int64_t)p->bytes);
	end_state(o);
}

/* A dict of any size: what stands between two marks is bounded, as Python's own pickler does it. */
static void batch(struct ptc_pickle_out *o, size_t i, bool begins)
{
	if (begins && i % BATCH == 0)
		ptc_pickle_op(o, PTC_PICKLE_MARK);
	if (!begins && i % BATCH == BATCH - 1)
		ptc_pickle_op(o, PTC_PICKLE_SETITEMS);
}

static void end_batch(struct ptc_pickle_out *o, size_t n)
{
	if (n % BATCH)
		ptc_pickle_op(o, PTC_PICKLE_SETITEMS);
}

static void put_storage(struct ptc_pickle_out *o, const struct ptc_dcp *d)
{
	size_t n = 0;

	ptc_pickle_op(o, PTC_PICKLE_EMPTY_DICT);
	for (size_t i = 0; i < d->nentries; i++)
		for (uint32_t k = 0; k < d->entries[i].nparts; k++) {
			const struct ptc_dcp_part *p = &d->entries[i].parts[k];

			batch(o, n, true);
			put_index(o, &d->entries[i], k);
			put_info(o, d->files[p->file], p);
			batch(o, n++, false);
		}
	end_batch(o, n);
}

static void put_entries(struct ptc_pickle_out *o, const struct ptc_dcp *d, bool paths)
{
	ptc_pickle_op(o, PTC_PICKLE_EMPTY_DICT);
	for (size_t i = 0; i < d->nentries; i++) {
		const struct ptc_dcp_entry *e = &d->entries[i];

		batch(o, i, true);
		ptc_pickle_text(o, e->key);
		if (paths)
			put_path(o, e);
		else if (e->is_value)
			put_object(o, bytes_class);
		else
			put_tensor(o, e);
		batch(o, i, false);
	}
	end_batch(o, d->nentries);
}

int ptc_dcp_write(const struct ptc_dcp *d, struct ptc_buf *b, struct ptc_error *err)
{
	struct ptc_pickle_out o;

	for (size_t i = 0; i < d->nentries; i++)
		if (!d->entries[i].is_value && !ptc_torch_dtype_global(d->entries[i].dtype))
			return ptc_error_set(err, PTC_ELAYOUT, "%s: PyTorch has no dtype %s", d->entries[i].key,
					     ptc_dtype_name(d->entries[i].dtype));
	ptc_pickle_begin(&o, b);
	put_object(&o, metadata);
	begin_state(&o);
	ptc_pickle_text(&o, "state_dict_metadata");
	put_entries(&o, d, false);
	ptc_pickle_text(&o, "planner_data");
	put_entries(&o, d, true);
	ptc_pickle_text(&o, "storage_data");
	put_storage(&o, d);
	ptc_pickle_text(&o, "storage_meta");
	ptc_pickle_none(&o);
	ptc_pickle_text(&o, "version");
	ptc_pickle_text(&o, VERSION_1);
	end_state(&o);
	ptc_pickle_end(&o);
	return ptc_buf_failed(b) ? ptc_nomem(err) : 0;
}
