/* SPDX-License-Identifier: Apache-2.0 */
/* One safetensors header. Happy path: length word, JSON, one entry per
 * tensor; entries sorted by offset must tile [0, data_bytes) exactly. Failure:
 * PTC_EINVAL (the header or the file is wrong), PTC_ELIMIT (a named maximum),
 * PTC_ENOMEM, or what reading the file said; the text names the tensor. */
#include "formats/tensors/safetensors.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "formats/json.h"
#include "formats/names.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH_WORD  8
#define METADATA_KEY "__metadata__"

/* Element count times bits as whole bytes. */
static int tensor_bytes(const struct ptc_tensor *t, int64_t *ret_bytes, struct ptc_error *err)
{
	int64_t n = 1;

	for (uint32_t d = 0; d < t->ndim; d++)
		if (t->shape[d] < 0 || ptc_ckd_mul(&n, n, t->shape[d]))
			return ptc_error_set(err, PTC_EINVAL, "tensor \"%s\": shape overflows", t->name);
	if (ptc_ckd_mul(&n, n, (int64_t)ptc_dtype_bits(t->dtype)))
		return ptc_error_set(err, PTC_EINVAL, "tensor \"%s\": size overflows", t->name);
	if (n % 8)
		return ptc_error_set(err, PTC_EINVAL, "tensor \"%s\": %" PRId64 " bits of %s are not whole bytes",
				     t->name, n, ptc_dtype_name(t->dtype));
	*ret_bytes = n / 8;
	return 0;
}

static int parse_dtype(const json_t *entry, struct ptc_tensor *t, struct ptc_error *err)
{
	const char *name = json_string_value(json_object_get(entry, "dtype"));

	if (!name)
		return ptc_error_set(err, PTC_EINVAL, "tensor \"%s\": \"dtype\" is missing or not a string", t->name);
	if (!ptc_dtype_parse(name, &t->dtype))
		return ptc_error_set(err, PTC_EINVAL, "tensor \"%s\": unknown dtype \"%.32s\"", t->name, name);
	return 0;
}

static int parse_shape(const json_t *entry, struct ptc_tensor *t, struct ptc_error *err)
{
	const json_t *shape = json_object_get(entry, "shape");
	size_t n = json_array_size(shape);

	if (!json_is_array(shape))
		return ptc_error_set(err, PTC_EINVAL, "tensor \"%s\": \"shape\" is missing or not a list", t->name);
	if (n > PTC_MAX_DIMS)
		return ptc_error_set(err, PTC_ELIMIT, "tensor \"%s\": %zu dims, at most %d are supported", t->name, n,
				     PTC_MAX_DIMS);
	for (size_t d = 0; d < n; d++) {
		const json_t *v = json_array_get(shape, d);

		if (!json_is_integer(v) || json_integer_value(v) < 0)
			return ptc_error_set(err, PTC_EINVAL, "tensor \"%s\": dim %zu is not a size", t->name, d);
		t->shape[d] = json_integer_value(v);
	}
	t->ndim = (uint32_t)n;
	return 0;
}

static int parse_offsets(const json_t *entry, struct ptc_st_tensor *t, struct ptc_error *err)
{
	const json_t *offsets = json_object_get(entry, "data_offsets");
	const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
	int64_t want = 0;
	int rc;

	if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end))
		return ptc_error_set(err, PTC_EINVAL, "tensor \"%s\": \"data_offsets\" is not a pair of integers",
				     t->t.name);
	t->begin = json_integer_value(begin);
	t->end = json_integer_value(end);
	if (t->begin < 0 || t->end < t->begin)
		return ptc_error_set(err, PTC_EINVAL,
				     "tensor \"%s\": data_offsets [%" PRId64 ", %" PRId64 "] are not a range",
				     t->t.name, t->begin, t->end);
	rc = tensor_bytes(&t->t, &want, err);
	if (rc)
		return rc;
	if (t->end - t->begin != want)
		return ptc_error_set(err, PTC_EINVAL,
				     "tensor \"%s\": data_offsets hold %" PRId64
				     " bytes, dtype and shape need %" PRId64,
				     t->t.name, t->end - t->begin, want);
	return 0;
}

static int parse_tensor(const char *name, const json_t *entry, struct ptc_st_tensor *t, struct ptc_error *err)
{
	int rc = ptc_name_check_tensor(name, err);

	if (rc)
		return rc;
	t->t.name = ptc_strdup(name);
	if (!t->t.name)
		return ptc_nomem(err);
	if (!json_is_object(entry) || json_object_size(entry) != 3)
		return ptc_error_set(err, PTC_EINVAL, "tensor \"%s\": not an object of dtype, shape and data_offsets",
				     t->t.name);
	rc = parse_dtype(entry, &t->t, err);
	if (!rc)
		rc = parse_shape(entry, &t->t, err);
	return rc ? rc : parse_offsets(entry, t, err);
}

static int parse_metadata(json_t *meta, struct ptc_st *st, struct ptc_error *err)
{
	const char *key;
	json_t *value;

	if (!json_is_object(meta))
		return ptc_error_set(err, PTC_EINVAL, METADATA_KEY " is not an object");
	st->metadata = ptc_calloc(PTC_MAX(json_object_size(meta), 1), sizeof *st->metadata);
	if (!st->metadata)
		return ptc_nomem(err);
	json_object_foreach(meta, key, value) {
		struct ptc_st_pair *pair = &st->metadata[st->nmetadata];

		if (!json_is_string(value))
			return ptc_error_set(err, PTC_EINVAL, METADATA_KEY ": value of \"%.80s\" is not a string", key);
		st->nmetadata++;
		pair->key = ptc_strdup(key);
		pair->value = ptc_strdup(json_string_value(value));
		if (!pair->key || !pair->value)
			return ptc_nomem(err);
	}
	return 0;
}

static int compare_offset(const void *pa, const void *pb, void *arg)
{
	const struct ptc_st_tensor *tensors = arg;
	uint32_t a = *(const uint32_t *)pa, b = *(const uint32_t *)pb;
	const struct ptc_st_tensor *ta = &tensors[a], *tb = &tensors[b];

	if (ta->begin != tb->begin)
		return ta->begin < tb->begin ? -1 : 1;
	if (ta->end != tb->end) /* empty tensors before the one that begins where they lie */
		return ta->end < tb->end ? -1 : 1;
	return a < b ? -1 : a > b;
}

static int compare_name(const void *pa, const void *pb, void *arg)
{
	const struct ptc_st_tensor *tensors = arg;

	return strcmp(tensors[*(const uint32_t *)pa].t.name, tensors[*(const uint32_t *)pb].t.name);
}

static int sort(struct ptc_st *st, struct ptc_error *err)
{
	st->by_offset = ptc_calloc(PTC_MAX(st->ntensors, 1), sizeof(uint32_t));
	st->by_name = ptc_calloc(PTC_MAX(st->ntensors, 1), sizeof(uint32_t));
	if (!st->by_offset || !st->by_name)
		return ptc_nomem(err);
	for (uint32_t i = 0; i < st->ntensors; i++)
		st->by_offset[i] = st->by_name[i] = i;
	qsort_r(st->by_offset, st->ntensors, sizeof(uint32_t), compare_offset, st->tensors);
	qsort_r(st->by_name, st->ntensors, sizeof(uint32_t), compare_name, st->tensors);
	return 0;
}

/* The tensors in offset order must tile [0, data_bytes). */
static int check_tiling(const struct ptc_st *st, struct ptc_error *err)
{
	int64_t at = 0;

	for (size_t i = 0; i < st->ntensors; i++) {
		const struct ptc_st_tensor *t = &st->tensors[st->by_offset[i]];

		if (t->begin != at)
			return ptc_error_set(err, PTC_EINVAL,
					     "tensor \"%s\" begins at byte %" PRId64
					     ", the one before it ends at %" PRId64 " (%s)",
					     t->t.name, t->begin, at, t->begin < at ? "overlap" : "hole");
		at = t->end;
	}
	if (at != st->data_bytes)
		return ptc_error_set(err, PTC_EINVAL, "tensors end at byte %" PRId64 ", the file holds %" PRId64 "%s",
				     at, st->data_bytes, at > st->data_bytes ? " (truncated)" : "");
	return 0;
}

static int parse_entries(json_t *json, struct ptc_st *st, struct ptc_error *err)
{
	const char *key;
	json_t *value;
	int rc;

	if (!json_is_object(json))
		return ptc_error_set(err, PTC_EINVAL, "header is not a JSON object");
	if (json_object_size(json) > PTC_MAX_TENSORS)
		return ptc_error_set(err, PTC_ELIMIT, "%zu tensors, at most %u are supported", json_object_size(json),
				     PTC_MAX_TENSORS);
	st->tensors = ptc_calloc(PTC_MAX(json_object_size(json), 1), sizeof *st->tensors);
	if (!st->tensors)
		return ptc_nomem(err);
	json_object_foreach(json, key, value) {
		if (!strcmp(key, METADATA_KEY))
			rc = parse_metadata(value, st, err);
		else
			rc = parse_tensor(key, value, &st->tensors[st->ntensors++], err);
		if (rc)
			return rc;
	}
	rc = sort(st, err);
	return rc ? rc : check_tiling(st, err);
}

/* The length word against the maximum and the file. */
static int header_length(const void *head, int64_t file_bytes, size_t *ret_raw_len, struct ptc_error *err)
{
	uint64_t n;

	if (file_bytes < LENGTH_WORD)
		return ptc_error_set(err, PTC_EINVAL, "%" PRId64 " bytes are too few for a safetensors file",
				     file_bytes);
	memcpy(&n, head, sizeof(n));
	n = le64toh(n);
	if (n > PTC_SAFETENSORS_HEADER_MAX)
		return ptc_error_set(err, PTC_ELIMIT, "header length %" PRIu64 " is above the format's limit of %u", n,
				     PTC_SAFETENSORS_HEADER_MAX);
	if (n > (uint64_t)file_bytes - LENGTH_WORD)
		return ptc_error_set(err, PTC_EINVAL,
				     "header length %" PRIu64 " is beyond the end of the file (truncated)", n);
	*ret_raw_len = (size_t)n + LENGTH_WORD;
	return 0;
}

int ptc_st_parse(const void *head, size_t head_len, int64_t file_bytes, struct ptc_st *ret_st, struct ptc_error *err)
{
	struct ptc_st st = { 0 };
	json_t *json = NULL;
	int rc;

	if (head_len < LENGTH_WORD && file_bytes >= LENGTH_WORD)
		return ptc_error_set(err, PTC_EINVAL, "%zu bytes are too few for a safetensors header", head_len);
	rc = header_length(head, file_bytes, &st.raw_len, err);
	if (rc)
		return rc;
	if (st.raw_len > head_len)
		return ptc_error_set(err, PTC_EINVAL, "the header has %zu bytes, but only %zu of them are here",
				     st.raw_len, head_len);
	st.data_start = (int64_t)st.raw_len;
	st.data_bytes = file_bytes - st.data_start;
	st.raw = ptc_malloc(st.raw_len);
	if (!st.raw)
		return ptc_nomem(err);
	memcpy(st.raw, head, st.raw_len);
	rc = ptc_json_load("safetensors header", st.raw + LENGTH_WORD, st.raw_len - LENGTH_WORD, &json, err);
	if (!rc)
		rc = parse_entries(json, &st, err);
	json_decref(json);
	if (rc) {
		ptc_st_done(&st);
		return rc;
	}
	*ret_st = st;
	return 0;
}

void ptc_st_done(struct ptc_st *st)
{
	for (size_t i = 0; i < st->ntensors; i++)
		ptc_free((void *)(uintptr_t)st->tensors[i].t.name);
	for (size_t i = 0; i < st->nmetadata; i++) {
		ptc_free(st->metadata[i].key);
		ptc_free(st->metadata[i].value);
	}
	ptc_free(st->tensors);
	ptc_free(st->metadata);
	ptc_free(st->by_offset);
	ptc_free(st->by_name);
	ptc_free(st->raw);
	memset(st, 0, sizeof *st);
}

static int read_exactly(int fd, void *buf, size_t len, struct ptc_error *err)
{
	for (size_t done = 0; done < len;) {
		ssize_t n = pread(fd, (char *)buf + done, len - done, (off_t)done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return ptc_error_errno(err, errno, "reading");
		if (!n)
			return ptc_error_set(err, PTC_EINVAL, "the file ends inside its header (truncated)");
		done += (size_t)n;
	}
	return 0;
}

static int read_header(int fd, struct ptc_st *ret_st, struct stat *ret_file, struct ptc_error *err)
{
	ptc_auto_free char *head = NULL;
	char word[LENGTH_WORD] = { 0 };
	struct stat sb;
	size_t len = 0;
	int rc;

	if (fstat(fd, &sb))
		return ptc_error_errno(err, errno, "stat");
	*ret_file = sb;
	if (!S_ISREG(sb.st_mode))
		return ptc_error_set(err, PTC_EINVAL, "not a regular file");
	if (sb.st_size >= LENGTH_WORD) {
		rc = read_exactly(fd, word, sizeof(word), err);
		if (rc)
			return rc;
	}
	rc = header_length(word, sb.st_size, &len, err);
	if (rc)
		return rc;
	head = ptc_malloc(len);
	if (!head)
		return ptc_nomem(err);
	rc = read_exactly(fd, head, len, err);
	return rc ? rc : ptc_st_parse(head, len, sb.st_size, ret_st, err);
}

int ptc_st_read(const char *path, struct ptc_st *ret_st, struct ptc_error *err)
{
	ptc_auto_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct stat file;
	int rc;

	if (fd < 0)
		return ptc_error_errno(err, errno, "%s", path);
	rc = read_header(fd, ret_st, &file, err);
	if (rc)
		return ptc_error_wrap(err, "%s", path);
	ret_st->file = file;
	return ptc_st_unchanged(fd, path, ret_st, err); /* a writer between fstat and the header's last byte */
}

static bool same_time(struct timespec a, struct timespec b)
{
	return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

int ptc_st_unchanged(int fd, const char *path, const struct ptc_st *st, struct ptc_error *err)
{
	const struct stat *was = &st->file;
	struct stat now;

	if (fstat(fd, &now))
		return ptc_error_errno(err, errno, "%s", path);
	if (now.st_dev == was->st_dev && now.st_ino == was->st_ino && now.st_size == was->st_size &&
	    same_time(now.st_mtim, was->st_mtim))
		return 0;
	return ptc_error_set(err, PTC_EINVAL,
			     "%s was replaced or written to while it was read; try again when it is whole", path);
}

int ptc_st_reopen(const char *path, const struct ptc_st *st, int *ret_fd, struct ptc_error *err)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), rc;

	if (fd < 0)
		return ptc_error_errno(err, errno, "%s", path);
	rc = ptc_st_unchanged(fd, path, st, err);
	if (rc)
		close(fd);
	else
		*ret_fd = fd;
	return rc;
}

const struct ptc_st_tensor *ptc_st_find(const struct ptc_st *st, const char *name)
{
	size_t low = 0, high = st->ntensors;

	while (low < high) {
		size_t mid = low + (high - low) / 2;
		const struct ptc_st_tensor *t = &st->tensors[st->by_name[mid]];
		int c = strcmp(name, t->t.name);

		if (!c)
			return t;
		if (c < 0)
			high = mid;
		else
			low = mid + 1;
	}
	return NULL;
}

bool ptc_st_describes(const struct ptc_st *st, const struct ptc_tensor *tensors, size_t ntensors)
{
	if (st->ntensors != ntensors)
		return false;
	for (size_t i = 0; i < ntensors; i++) {
		const struct ptc_tensor *a = &st->tensors[st->by_name[i]].t, *b = &tensors[i];

		if (strcmp(a->name, b->name) || a->dtype != b->dtype || a->ndim != b->ndim ||
		    memcmp(a->shape, b->shape, a->ndim * sizeof(a->shape[0])))
			return false;
	}
	return true;
}

static void put_metadata(struct ptc_buf *b, const struct ptc_st_pair *metadata, size_t nmetadata)
{
	ptc_buf_puts(b, "\"" METADATA_KEY "\":{");
	for (size_t i = 0; i < nmetadata; i++) {
		if (i)
			ptc_buf_puts(b, ",");
		ptc_json_put_string(b, metadata[i].key);
		ptc_buf_puts(b, ":");
		ptc_json_put_string(b, metadata[i].value);
	}
	ptc_buf_puts(b, "}");
}

/* One entry; *at moves on by the tensor's bytes. */
static int put_tensor(struct ptc_buf *b, const struct ptc_tensor *t, int64_t *at, struct ptc_error *err)
{
	int64_t bytes = 0, end;
	int rc = tensor_bytes(t, &bytes, err);

	if (rc)
		return rc;
	if (ptc_ckd_add(&end, *at, bytes))
		return ptc_error_set(err, PTC_EINVAL, "tensor \"%s\": the file's size overflows", t->name);
	ptc_json_put_string(b, t->name);
	ptc_buf_printf(b, ":{\"dtype\":\"%s\",\"shape\":[", ptc_dtype_name(t->dtype));
	for (uint32_t d = 0; d < t->ndim; d++)
		ptc_buf_printf(b, "%s%" PRId64, d ? "," : "", t->shape[d]);
	ptc_buf_printf(b, "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", *at, end);
	*at = end;
	return 0;
}

/* Fills in the length word left free at start and pads. */
static int finish_header(struct ptc_buf *b, size_t start, struct ptc_error *err)
{
	static const char spaces[] = "        ";
	uint64_t n;

	ptc_buf_append(b, spaces, (8 - (b->len - start) % 8) % 8);
	if (ptc_buf_failed(b))
		return ptc_nomem(err);
	n = b->len - start - LENGTH_WORD;
	if (n > PTC_SAFETENSORS_HEADER_MAX)
		return ptc_error_set(err, PTC_ELIMIT, "header of %" PRIu64 " bytes is above the format's limit of %u",
				     n, PTC_SAFETENSORS_HEADER_MAX);
	n = htole64(n);
	memcpy(b->data + start, &n, sizeof(n));
	return 0;
}

int ptc_st_write(struct ptc_buf *b, const struct ptc_tensor *tensors, size_t ntensors,
		 const struct ptc_st_pair *metadata, size_t nmetadata, struct ptc_error *err)
{
	size_t start = b->len;
	int64_t at = 0;
	int rc;

	ptc_buf_append(b, "\0\0\0\0\0\0\0\0{", LENGTH_WORD + 1);
	if (nmetadata)
		put_metadata(b, metadata, nmetadata);
	for (size_t i = 0; i < ntensors; i++) {
		if (i && strcmp(tensors[i - 1].name, tensors[i].name) >= 0)
			return ptc_error_set(err, PTC_EINVAL, "tensors are not in name order at \"%s\"",
					     tensors[i].name);
		if (i || nmetadata)
			ptc_buf_puts(b, ",");
		rc = put_tensor(b, &tensors[i], &at, err);
		if (rc)
			return rc;
	}
	ptc_buf_puts(b, "}");
	return finish_header(b, start, err);
}
