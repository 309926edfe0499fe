/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path and failure modes: dcp_tensor.h. Elements are read in the tensor's order, so the elements of a part are
 * read in the part's order, from its first byte to its last. If a part is asked for another byte than its next one, it
 * overlaps another part. */
#include "formats/dcp/dcp_tensor.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/number/digest.h"
#include "base/status.h"
#include "formats/dcp/torch_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>

#define OPEN_FILES 64
#define BUFFER_MIN (4u << 10)
#define BUFFER_MAX (256u << 10)

struct part {
	struct ptc_torch_tensor t;
	uint64_t at;          /* in the file: the storage's first byte */
	uint64_t done, bytes; /* of the part's own elements */
	uint32_t crc;         /* of what was read so far */
	size_t have, used;    /* in the buffer */
	uint8_t *buf;         /* row-major: a buffer; else the whole storage */
};

struct ptc_dcp_reader {
	const struct ptc_dcp *d;
	const char *dir;
	struct {
		int fd;
		uint32_t file;
	} files[OPEN_FILES];
	const struct ptc_dcp_entry *e;
	struct part **parts; /* of e; NULL: not open */
	bool *over;          /* of e: all of the part's bytes were read */
	uint32_t hint;       /* the part to look at first */
	uint64_t pos;        /* elements of e that were read */
	uint64_t transposed; /* bytes of whole storages in memory */
	size_t buffer, item;
};

/* ---- files ---- */

static int open_file(struct ptc_dcp_reader *r, uint32_t file, int *ret_fd, struct ptc_error *err)
{
	int *fd = &r->files[file % OPEN_FILES].fd;
	ptc_auto_free char *path = NULL;

	if (*fd >= 0 && r->files[file % OPEN_FILES].file == file) {
		*ret_fd = *fd;
		return 0;
	}
	ptc_close(fd);
	path = ptc_asprintf("%s/%s", r->dir, r->d->files[file]);
	if (!path)
		return ptc_nomem(err);
	*fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (*fd < 0)
		return ptc_error_errno(err, errno, "%s", path);
	r->files[file % OPEN_FILES].file = file;
	*ret_fd = *fd;
	return 0;
}

static int read_file(struct ptc_dcp_reader *r, uint32_t file, uint64_t at, void *data, size_t len,
		     struct ptc_error *err)
{
	int fd = -1, rc = open_file(r, file, &fd, err);

	for (size_t done = 0; done < len && !rc;) {
		ssize_t n = pread(fd, (char *)data + done, len - done, (off_t)(at + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			rc = ptc_error_errno(err, errno, "%s/%s", r->dir, r->d->files[file]);
		else if (!n)
			rc = ptc_error_set(err, PTC_EINVAL, "%s/%s is shorter than " PTC_DCP_METADATA " says", r->dir,
					   r->d->files[file]);
		else
			done += (size_t)n;
	}
	return rc;
}

struct window {
	struct ptc_dcp_reader *r;
	const struct ptc_dcp_part *place;
};

static int read_window(void *arg, uint64_t at, void *data, size_t len, struct ptc_error *err)
{
	const struct window *w = arg;

	return read_file(w->r, w->place->file, w->place->at + at, data, len, err);
}

/* ---- parts ---- */

static int bad(const struct ptc_dcp_reader *r, uint32_t part, int code, const char *what, struct ptc_error *err)
{
	const struct ptc_dcp_part *p = &r->e->parts[part];

	return ptc_error_set(err, code, "%s/%s, \"%.200s\", part %u at byte %" PRIu64 ": %s", r->dir,
			     r->d->files[p->file], r->e->key, part, p->at, what);
}

static void close_part(struct ptc_dcp_reader *r, uint32_t part)
{
	struct part *p = r->parts[part];

	if (!p)
		return;
	if (!p->t.row_major)
		r->transposed -= p->t.bytes;
	ptc_free(p->buf);
	ptc_free(p);
	r->parts[part] = NULL;
}

static int load_whole(struct ptc_dcp_reader *r, uint32_t part, struct part *p, struct ptc_error *err)
{
	int rc;

	if (p->t.bytes > PTC_DCP_TRANSPOSED - r->transposed)
		return bad(r, part, PTC_ELIMIT,
			   "it is not stored row by row, and too large to be turned here; save it after .contiguous()",
			   err);
	p->buf = ptc_malloc(PTC_MAX((size_t)p->t.bytes, (size_t)1));
	if (!p->buf)
		return ptc_nomem(err);
	r->transposed += p->t.bytes;
	rc = read_file(r, r->e->parts[part].file, p->at, p->buf, (size_t)p->t.bytes, err);
	if (!rc && ptc_crc32(0, p->buf, (size_t)p->t.bytes) != p->t.crc)
		rc = bad(r, part, PTC_EDIGEST, "its checksum is not that of its bytes", err);
	return rc;
}

static int check_part(struct ptc_dcp_reader *r, uint32_t part, const struct part *p, struct ptc_error *err)
{
	const struct ptc_dcp_entry *e = r->e;

	if (p->t.dtype != e->dtype || p->t.ndim != e->ndim ||
	    (e->ndim && memcmp(p->t.shape, ptc_dcp_extent(e, part), e->ndim * sizeof p->t.shape[0]) != 0))
		return bad(r, part, PTC_EINVAL, "its dtype or shape is not what " PTC_DCP_METADATA " says", err);
	return 0;
}

static int open_part(struct ptc_dcp_reader *r, uint32_t part, struct ptc_error *err)
{
	const struct ptc_dcp_part *place = &r->e->parts[part];
	struct window w = { r, place };
	struct ptc_error why = PTC_ERROR_INIT;
	struct part *p = ptc_calloc(1, sizeof *p);
	uint64_t first;
	int rc = p ? ptc_torch_read(read_window, &w, place->bytes, &p->t, &why) : ptc_nomem(&why);

	if (rc) {
		ptc_free(p);
		return ptc_error_set(err, rc, "%s/%s, \"%.200s\" at byte %" PRIu64 ": %.500s", r->dir,
				     r->d->files[place->file], r->e->key, place->at, why.text);
	}
	p->at = place->at + p->t.at;
	p->bytes = ptc_dcp_part_elements(r->e, part, &first) * r->item;
	rc = check_part(r, part, p, err);
	if (rc) {
		ptc_free(p);
		return rc;
	}
	if (p->t.row_major) {
		p->buf = ptc_malloc(r->buffer);
		rc = p->buf ? 0 : ptc_nomem(err);
	} else {
		rc = load_whole(r, part, p, err);
	}
	if (rc) {
		r->transposed -= !p->t.row_major && p->buf ? p->t.bytes : 0;
		ptc_free(p->buf);
		ptc_free(p);
		return rc;
	}
	r->parts[part] = p;
	return 0;
}

static int end_part(struct ptc_dcp_reader *r, uint32_t part, struct ptc_error *err)
{
	const struct part *p = r->parts[part];
	int rc = 0;

	if (p->t.row_major && p->crc != p->t.crc)
		rc = bad(r, part, PTC_EDIGEST, "its checksum is not that of its bytes", err);
	close_part(r, part);
	r->over[part] = true;
	return rc;
}

static int refill(struct ptc_dcp_reader *r, uint32_t part, struct part *p, struct ptc_error *err)
{
	size_t n = (size_t)PTC_MIN(p->bytes - p->done, (uint64_t)r->buffer);
	int rc = read_file(r, r->e->parts[part].file, p->at + p->done, p->buf, n, err);

	if (rc)
		return rc;
	p->crc = ptc_crc32(p->crc, p->buf, n);
	p->have = n;
	p->used = 0;
	return 0;
}

/* The next len bytes of a part. */
static int read_rows(struct ptc_dcp_reader *r, uint32_t part, uint8_t *out, size_t len, struct ptc_error *err)
{
	struct part *p = r->parts[part];

	while (len) {
		size_t n;

		if (p->used == p->have) {
			int rc = refill(r, part, p, err);

			if (rc)
				return rc;
		}
		n = PTC_MIN(len, p->have - p->used);
		memcpy(out, p->buf + p->used, n);
		p->used += n;
		p->done += n;
		out += n;
		len -= n;
	}
	return 0;
}

/* Elements of a part that is stored with other strides: element by element, `from` counted row-major. */
static void read_strided(struct ptc_dcp_reader *r, uint32_t part, uint8_t *out, size_t len)
{
	struct part *p = r->parts[part];
	uint64_t from = p->done / r->item;

	for (size_t i = 0; i < len; i += r->item, from++) {
		uint64_t at = p->t.first, left = from;

		for (uint32_t d = p->t.ndim; d--;) {
			at += left % (uint64_t)p->t.shape[d] * (uint64_t)p->t.stride[d] * r->item;
			left /= (uint64_t)p->t.shape[d];
		}
		memcpy(out + i, p->buf + at, r->item);
	}
	p->done += len;
}

/* ---- the tensor ---- */

static bool contains(const struct ptc_dcp_entry *e, uint32_t part, const int64_t *at)
{
	const int64_t *off = ptc_dcp_offset(e, part), *ext = off + e->ndim;

	for (uint32_t d = 0; d < e->ndim; d++)
		if (at[d] < off[d] || at[d] >= off[d] + ext[d])
			return false;
	return true;
}

static int find_part(struct ptc_dcp_reader *r, const int64_t *at, uint32_t *ret, struct ptc_error *err)
{
	for (uint32_t i = 0; i < r->e->nparts; i++) {
		uint32_t part = (uint32_t)(((uint64_t)r->hint + i) % r->e->nparts);

		if (!r->over[part] && contains(r->e, part, at)) {
			r->hint = (uint32_t)((part + 1ull) % r->e->nparts);
			*ret = part;
			return 0;
		}
	}
	return ptc_error_set(err, PTC_EINVAL,
			     "%s/" PTC_DCP_METADATA ": \"%.200s\": parts overlap, and element %" PRIu64 " is in none",
			     r->dir, r->e->key, r->pos);
}

/* Elements from `at` on that lie in this order in the tensor and in the part; *ret_within: how many are before them in
 * the part. */
static uint64_t run_of(const struct ptc_dcp_entry *e, uint32_t part, const int64_t *at, uint64_t *ret_within)
{
	const int64_t *off = ptc_dcp_offset(e, part), *ext = off + e->ndim;
	uint64_t run = 1, row = 1, within = 0;
	uint32_t d = e->ndim;

	for (uint32_t i = 0; i < e->ndim; i++)
		within = within * (uint64_t)ext[i] + (uint64_t)(at[i] - off[i]);
	*ret_within = within;
	if (!d)
		return 1;
	d--;
	run = (uint64_t)(off[d] + ext[d] - at[d]);
	while (d && ext[d] == e->shape[d]) {
		row *= (uint64_t)e->shape[d];
		d--;
		run += (uint64_t)(off[d] + ext[d] - 1 - at[d]) * row;
	}
	return run;
}

static void place_of(const struct ptc_dcp_entry *e, uint64_t pos, int64_t *ret)
{
	for (uint32_t d = e->ndim; d--;) {
		ret[d] = (int64_t)(pos % (uint64_t)e->shape[d]);
		pos /= (uint64_t)e->shape[d];
	}
}

static int read_run(struct ptc_dcp_reader *r, uint8_t *out, size_t len, size_t *ret_len, struct ptc_error *err)
{
	int64_t at[PTC_MAX_DIMS] = { 0 };
	uint64_t run, within;
	uint32_t part = 0;
	size_t n;
	int rc;

	place_of(r->e, r->pos, at);
	rc = find_part(r, at, &part, err);
	if (!rc && !r->parts[part])
		rc = open_part(r, part, err);
	if (rc)
		return rc;
	run = run_of(r->e, part, at, &within);
	if (within * r->item != r->parts[part]->done)
		return bad(r, part, PTC_EINVAL, "it overlaps another part", err);
	n = (size_t)PTC_MIN(run * r->item, (uint64_t)len);
	if (r->parts[part]->t.row_major)
		rc = read_rows(r, part, out, n, err);
	else
		read_strided(r, part, out, n);
	if (rc)
		return rc;
	r->pos += n / r->item;
	*ret_len = n;
	return r->parts[part]->done == r->parts[part]->bytes ? end_part(r, part, err) : 0;
}

int ptc_dcp_reader_read(struct ptc_dcp_reader *r, void *data, size_t len, struct ptc_error *err)
{
	for (size_t done = 0; done < len;) {
		size_t n = 0;
		int rc = read_run(r, (uint8_t *)data + done, len - done, &n, err);

		if (rc)
			return rc;
		done += n;
	}
	return 0;
}

static void end_tensor(struct ptc_dcp_reader *r)
{
	for (uint32_t i = 0; r->parts && i < r->e->nparts; i++)
		close_part(r, i);
	ptc_free(r->parts);
	ptc_free(r->over);
	r->parts = NULL;
	r->over = NULL;
	r->e = NULL;
}

int ptc_dcp_reader_begin(struct ptc_dcp_reader *r, const struct ptc_dcp_entry *e, struct ptc_error *err)
{
	end_tensor(r);
	r->parts = ptc_calloc(PTC_MAX(e->nparts, 1u), sizeof(struct part *));
	r->over = ptc_calloc(PTC_MAX(e->nparts, 1u), sizeof *r->over);
	if (!r->parts || !r->over) {
		ptc_free(r->parts);
		ptc_free(r->over);
		r->parts = NULL;
		r->over = NULL;
		return ptc_nomem(err);
	}
	r->e = e;
	r->hint = 0;
	r->pos = 0;
	r->item = ptc_dtype_bits(e->dtype) / 8;
	r->buffer = PTC_DCP_BUFFERS / PTC_MAX(e->nparts, 1u);
	r->buffer = PTC_MAX(BUFFER_MIN, PTC_MIN(r->buffer, (size_t)BUFFER_MAX));
	return 0;
}

int ptc_dcp_reader_new(const struct ptc_dcp *d, const char *dir, struct ptc_dcp_reader **ret, struct ptc_error *err)
{
	struct ptc_dcp_reader *r = ptc_calloc(1, sizeof *r);

	if (!r)
		return ptc_nomem(err);
	r->d = d;
	r->dir = dir;
	for (size_t i = 0; i < OPEN_FILES; i++)
		r->files[i].fd = -1;
	*ret = r;
	return 0;
}

struct ptc_dcp_reader *ptc_dcp_reader_free(struct ptc_dcp_reader *r)
{
	if (!r)
		return NULL;
	end_tensor(r);
	for (size_t i = 0; i < OPEN_FILES; i++)
		ptc_close(&r->files[i].fd);
	ptc_free(r);
	return NULL;
}
