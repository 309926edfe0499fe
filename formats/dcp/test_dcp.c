/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints written and read here: metadata, parts cut in any way, damage, pickles that are not taken, and each
 * allocation failing in turn. That PyTorch reads what is written, and that its own is read: tests/test_archive.py. */
#include "base/alloc.h"
#include "base/check.h"
#include "base/number/digest.h"
#include "base/sys/sys.h"
#include "base/test_seed.h"
#include "formats/dcp/dcp_tensor.h"
#include "formats/pickle/pickle.h"
#include "formats/dcp/torch_file.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64];

static int make_dir(void **state)
{
	(void)state;
	snprintf(dir, sizeof dir, "/tmp/ptc-dcp-XXXXXX");
	return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
	char path[96];

	(void)state;
	snprintf(path, sizeof path, "%s/a.distcp", dir);
	unlink(path);
	return rmdir(dir);
}

/* ---- checkpoints of one tensor ---- */

static void one_tensor(struct ptc_dcp *d, enum ptc_dtype dtype, uint32_t ndim, const int64_t *shape)
{
	*d = (struct ptc_dcp){ .entries = ptc_calloc(1, sizeof *d->entries), .nentries = 1, .nfiles = 1 };
	d->files = ptc_calloc(1, sizeof(char *));
	d->files[0] = ptc_strdup("a.distcp");
	d->entries[0] = (struct ptc_dcp_entry){
		.key = ptc_strdup("model.w"), .path = { 5, 1 }, .npath = 2, .dtype = dtype, .ndim = ndim
	};
	for (uint32_t i = 0; i < ndim; i++)
		d->entries[0].shape[i] = shape[i];
}

static void add_box(struct ptc_dcp_entry *e, const int64_t *off, const int64_t *ext)
{
	size_t n = e->nparts, dims = e->ndim;

	e->parts = ptc_reallocarray(e->parts, n + 1, sizeof *e->parts);
	e->boxes = ptc_reallocarray(e->boxes, (n + 1) * 2 * dims, sizeof *e->boxes);
	e->parts[n] = (struct ptc_dcp_part){ 0 };
	memcpy(e->boxes + n * 2 * dims, off, dims * sizeof *off);
	memcpy(e->boxes + n * 2 * dims + dims, ext, dims * sizeof *ext);
	e->nparts++;
}

/* Halves a box at random places, and adds what is small enough, or by chance. */
static void cut_at_random(struct ptc_dcp_entry *e, const int64_t *off, const int64_t *ext, int depth)
{
	int64_t o[PTC_MAX_DIMS], x[PTC_MAX_DIMS];
	uint32_t d = (uint32_t)random() % e->ndim;

	memcpy(o, off, sizeof o);
	memcpy(x, ext, sizeof x);
	if (!depth || ext[d] < 2 || random() % 5 == 0) {
		add_box(e, off, ext);
		return;
	}
	x[d] = 1 + random() % (ext[d] - 1);
	cut_at_random(e, o, x, depth - 1);
	o[d] = off[d] + x[d];
	x[d] = ext[d] - x[d];
	cut_at_random(e, o, x, depth - 1);
}

/* The bytes of a box, element by element. */
static size_t bytes_of_box(const struct ptc_dcp_entry *e, uint32_t part, const uint8_t *all, uint8_t *out)
{
	const int64_t *off = ptc_dcp_offset(e, part), *ext = ptc_dcp_extent(e, part);
	size_t item = ptc_dtype_bits(e->dtype) / 8, n = 1;

	for (uint32_t d = 0; d < e->ndim; d++)
		n *= (size_t)ext[d];
	for (size_t i = 0; i < n; i++) {
		size_t left = i, at = 0, row = 1;

		for (uint32_t d = e->ndim; d--;) {
			at += ((size_t)off[d] + left % (size_t)ext[d]) * row;
			left /= (size_t)ext[d];
			row *= (size_t)e->shape[d];
		}
		memcpy(out + i * item, all + at * item, item);
	}
	return n * item;
}

static void write_parts(struct ptc_dcp *d, const uint8_t *all, size_t len)
{
	struct ptc_dcp_entry *e = &d->entries[0];
	uint8_t *bytes = ptc_malloc(len + 1);
	struct ptc_buf b = PTC_BUF_INIT;
	char path[96];

	for (uint32_t i = 0; i < e->nparts; i++) {
		size_t n = bytes_of_box(e, i, all, bytes);

		e->parts[i].at = b.len;
		assert_int_equal(ptc_torch_head(&b, e->dtype, e->ndim, ptc_dcp_extent(e, i), NULL), 0);
		ptc_buf_append(&b, bytes, n);
		assert_int_equal(ptc_torch_tail(&b, e->dtype, e->ndim, ptc_dcp_extent(e, i), ptc_crc32(0, bytes, n),
						NULL),
				 0);
		e->parts[i].bytes = b.len - e->parts[i].at;
		assert_int_equal(e->parts[i].bytes, ptc_torch_bytes(e->dtype, e->ndim, ptc_dcp_extent(e, i)));
	}
	snprintf(path, sizeof path, "%s/a.distcp", dir);
	assert_int_equal(ptc_sys_write_file(path, b.data, b.len, 0600, "test", NULL), 0);
	ptc_buf_done(&b);
	ptc_free(bytes);
}

/* What was written, as metadata says it. */
static int read_again(const struct ptc_dcp *d, struct ptc_dcp *ret, struct ptc_error *err)
{
	struct ptc_buf b = PTC_BUF_INIT;
	int rc = ptc_dcp_write(d, &b, err);

	if (!rc)
		rc = ptc_dcp_read(b.data, b.len, ret, err);
	ptc_buf_done(&b);
	return rc;
}

static int read_tensor(const struct ptc_dcp *d, uint8_t *out, size_t len, struct ptc_error *err)
{
	size_t item = ptc_dtype_bits(d->entries[0].dtype) / 8;
	struct ptc_dcp_reader *r;
	int rc = ptc_dcp_reader_new(d, dir, &r, err);

	if (rc)
		return rc;
	rc = ptc_dcp_reader_begin(r, &d->entries[0], err);
	for (size_t done = 0; done < len && !rc;) {
		size_t want = item * (1 + (size_t)random() % 700), n = PTC_MIN(len - done, want);

		rc = ptc_dcp_reader_read(r, out + done, n, err);
		done += n;
	}
	ptc_dcp_reader_free(r);
	return rc;
}

static void check_random(void)
{
	static const enum ptc_dtype dtypes[] = { PTC_BOOL, PTC_BF16, PTC_F32, PTC_F64, PTC_F8_E4M3, PTC_U16, PTC_C64 };
	int64_t shape[PTC_MAX_DIMS], zero[PTC_MAX_DIMS] = { 0 };
	uint32_t ndim = 1 + (uint32_t)random() % 4;
	enum ptc_dtype dtype = dtypes[(size_t)random() % PTC_ARRAY_LEN(dtypes)];
	size_t len = ptc_dtype_bits(dtype) / 8;
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_dcp d, again = { 0 };
	uint8_t *all, *out;

	for (uint32_t i = 0; i < ndim; i++)
		len *= (size_t)(shape[i] = 1 + random() % (ndim == 1 ? 5000 : 17));
	all = ptc_malloc(len);
	out = ptc_calloc(len, 1);
	for (size_t i = 0; i < len; i++)
		all[i] = (uint8_t)random();
	one_tensor(&d, dtype, ndim, shape);
	cut_at_random(&d.entries[0], zero, shape, 6);
	write_parts(&d, all, len);
	if (read_again(&d, &again, &err) || read_tensor(&again, out, len, &err))
		fail_msg("%s", err.text);
	assert_memory_equal(all, out, len);
	ptc_dcp_done(&again);
	ptc_dcp_done(&d);
	ptc_free(all);
	ptc_free(out);
}

static void test_random(void **state)
{
	(void)state;
	srandom((unsigned)ptc_test_seed());
	for (int i = 0; i < 200; i++)
		check_random();
}

/* ---- cutting ---- */

/* Boxes follow each other in the tensor's order, and none is too large. */
static void check_cut(enum ptc_dtype dtype, uint32_t ndim, const int64_t *shape, uint32_t want)
{
	struct ptc_dcp d;
	uint64_t at = 0, first;

	one_tensor(&d, dtype, ndim, shape);
	assert_int_equal(ptc_dcp_cut(&d.entries[0], NULL), 0);
	assert_int_equal(d.entries[0].nparts, want);
	for (uint32_t i = 0; i < want; i++) {
		uint64_t n = ptc_dcp_part_elements(&d.entries[0], i, &first);

		assert_true(first == at && n * ptc_dtype_bits(dtype) / 8 <= PTC_DCP_PART_BYTES);
		at += n;
	}
	for (uint32_t k = 0; k < ndim; k++)
		assert_true(!at || at % (uint64_t)shape[k] == 0);
	ptc_dcp_done(&d);
}

static void test_cut(void **state)
{
	(void)state;
	check_cut(PTC_F32, 0, NULL, 1);
	check_cut(PTC_F32, 1, (int64_t[]){ 0 }, 1);
	check_cut(PTC_F32, 2, (int64_t[]){ 1 << 30, 0 }, 1);
	check_cut(PTC_F32, 1, (int64_t[]){ 16 << 20 }, 1);
	check_cut(PTC_F32, 1, (int64_t[]){ (16 << 20) + 1 }, 2);
	check_cut(PTC_BF16, 2, (int64_t[]){ 128256, 8192 }, 32);
	check_cut(PTC_F32, 3, (int64_t[]){ 3, 1, 40 << 20 }, 9);
	check_cut(PTC_U8, 3, (int64_t[]){ 2, 100 << 20, 3 }, 10);
}

/* ---- damage ---- */

static void flip(size_t at)
{
	char path[96];
	uint8_t byte = 0;
	int fd;

	snprintf(path, sizeof path, "%s/a.distcp", dir);
	fd = open(path, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0 && pread(fd, &byte, 1, (off_t)at) == 1);
	byte ^= 1;
	assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
	close(fd);
}

/* Each bit of what says where and what the tensor is, and of its bytes, is missed by none. Dates and the like may flip.
 */
static void test_damage(void **state)
{
	uint8_t all[64], out[64];
	struct ptc_dcp d;
	size_t missed = 0;

	(void)state;
	for (size_t i = 0; i < sizeof all; i++)
		all[i] = (uint8_t)(i * 7);
	one_tensor(&d, PTC_F32, 2, (int64_t[]){ 4, 4 });
	add_box(&d.entries[0], (int64_t[]){ 0, 0 }, (int64_t[]){ 4, 3 });
	add_box(&d.entries[0], (int64_t[]){ 0, 3 }, (int64_t[]){ 4, 1 });
	write_parts(&d, all, sizeof all);
	for (size_t i = 0; i < d.entries[0].parts[1].at + d.entries[0].parts[1].bytes; i++) {
		struct ptc_error err = PTC_ERROR_INIT;

		flip(i);
		memset(out, 0, sizeof out);
		if (read_tensor(&d, out, sizeof out, &err) == 0) {
			assert_memory_equal(all, out, sizeof all);
			missed++;
		} else {
			assert_non_null(strstr(err.text, "model.w"));
			assert_non_null(strstr(err.text, dir));
		}
		flip(i);
	}
	assert_int_equal(read_tensor(&d, out, sizeof out, NULL), 0);
	assert_true(missed > 0);
	ptc_dcp_done(&d);
}

static void test_overlap(void **state)
{
	uint8_t all[16] = { 0 }, out[16];
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_dcp d, again = { 0 };

	(void)state;
	one_tensor(&d, PTC_U8, 1, (int64_t[]){ 16 });
	add_box(&d.entries[0], (int64_t[]){ 0 }, (int64_t[]){ 10 });
	add_box(&d.entries[0], (int64_t[]){ 8 }, (int64_t[]){ 6 });
	write_parts(&d, all, sizeof all);
	assert_int_equal(read_again(&d, &again, NULL), 0); /* 16 elements */
	assert_int_equal(read_tensor(&again, out, sizeof out, &err), PTC_EINVAL);
	assert_non_null(strstr(err.text, "overlap"));
	ptc_dcp_done(&again);
	d.entries[0].boxes[3] = 7;
	assert_int_equal(read_again(&d, &again, &err), PTC_EINVAL);
	assert_non_null(strstr(err.text, "has 16 elements, its parts have 17"));
	ptc_free(d.files[0]);
	d.files[0] = ptc_strdup("x/../../a");
	d.entries[0].boxes[3] = 6;
	assert_int_equal(read_again(&d, &again, &err), PTC_EINVAL);
	assert_non_null(strstr(err.text, "leads out of the directory"));
	ptc_dcp_done(&d);
}

/* ---- pickles ---- */

static void refused(const char *pickle, size_t len, const char *why)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_dcp d = { 0 };

	assert_int_not_equal(ptc_dcp_read(pickle, len, &d, &err), 0);
	if (!strstr(err.text, why))
		fail_msg("\"%s\" does not say \"%s\"", err.text, why);
}
#define REFUSED(pickle, why) refused(pickle, sizeof(pickle) - 1, why)

static void test_refused(void **state)
{
	(void)state;
	REFUSED("", "does not end");
	REFUSED("\x80\x02", "does not end");
	REFUSED("\x80\x07.", "protocol 7");
	REFUSED("\x80\x02"
		"cos\nsystem\nX\x02\0\0\0ls\x85R.",
		"names \"os.system\"");
	REFUSED("\x80\x04\x8c\x02os\x8c\x06system\x93.", "names \"os.system\"");
	REFUSED("\x80\x02"
		"i.",
		"opcode 0x69");
	REFUSED("\x80\x02]R.", "lacks its operand");
	REFUSED("\x80\x02]K\x01\x85R.", "no class");
	REFUSED("\x80\x02}K\x01s.", "without a list or dict");
	REFUSED("\x80\x02u.", "lacks its mark");
	REFUSED("\x80\x02h\x05.", "not remembered");
	REFUSED("\x80\x02Nq\x05.", "not filled in order");
	REFUSED("\x80\x02X\xff\xff\xff\x01"
		"ab.",
		"ends in the middle");
	REFUSED("\x80\x02}.", "no metadata");
	REFUSED("\x80\x02NN.", "no one result");
}

/* A dict that has itself, and a tuple of tuples of tuples: read, in time that its length allows, and refused. */
static void test_loops(void **state)
{
	struct ptc_buf b = PTC_BUF_INIT;

	(void)state;
	REFUSED("\x80\x02}q\0X\x01\0\0\0ah\0s.", "no metadata");
	ptc_buf_append(&b, "\x80\x02)", 3);
	for (int i = 0; i < 1000000; i++)
		ptc_buf_append(&b, "\x85", 1);
	ptc_buf_append(&b, ".", 1);
	refused(b.data, b.len, "no metadata");
	ptc_buf_done(&b);
}

/* ---- memory ---- */

static int round_trip(void)
{
	uint8_t all[4096] = { 1 }, out[4096];
	struct ptc_dcp d, again = { 0 };
	int rc;

	one_tensor(&d, PTC_U8, 2, (int64_t[]){ 64, 64 });
	for (int64_t i = 0; i < 8; i++)
		add_box(&d.entries[0], (int64_t[]){ 0, 8 * i }, (int64_t[]){ 64, 8 });
	write_parts(&d, all, sizeof all);
	ptc_alloc_fail_at(0);
	rc = read_again(&d, &again, NULL);
	if (!rc)
		rc = read_tensor(&again, out, sizeof out, NULL);
	ptc_dcp_done(&again);
	ptc_dcp_done(&d);
	return rc;
}

static void test_no_memory(void **state)
{
	uint8_t all[4096] = { 1 }, out[4096];
	struct ptc_dcp d, again = { 0 };
	int64_t live;
	int rc = -1;

	(void)state;
	assert_int_equal(round_trip(), 0);
	one_tensor(&d, PTC_U8, 2, (int64_t[]){ 64, 64 });
	for (int64_t i = 0; i < 8; i++)
		add_box(&d.entries[0], (int64_t[]){ 0, 8 * i }, (int64_t[]){ 64, 8 });
	write_parts(&d, all, sizeof all);
	live = ptc_alloc_live();
	for (uint64_t at = 1; rc; at++) {
		ptc_alloc_fail_at(at);
		rc = read_again(&d, &again, NULL);
		if (!rc)
			rc = read_tensor(&again, out, sizeof out, NULL);
		ptc_alloc_fail_at(0);
		assert_true(rc == 0 || rc == PTC_ENOMEM);
		ptc_dcp_done(&again);
		assert_int_equal(ptc_alloc_live(), live);
	}
	ptc_dcp_done(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),    cmocka_unit_test(test_cut),     cmocka_unit_test(test_damage),
		cmocka_unit_test(test_overlap),   cmocka_unit_test(test_refused), cmocka_unit_test(test_loops),
		cmocka_unit_test(test_no_memory),
	};

	return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
