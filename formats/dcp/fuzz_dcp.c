/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz entry point: a file's bytes as the metadata of a checkpoint, and as what torch.save wrote of a tensor. What is
 * read as metadata is the same after it was written again. */
#include "base/check.h"
#include "formats/dcp/dcp.h"
#include "formats/dcp/torch_file.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void check_same(const struct ptc_dcp *a, const struct ptc_dcp *b)
{
	ptc_require(a->nentries == b->nentries);
	for (size_t i = 0; i < a->nentries; i++) {
		const struct ptc_dcp_entry *x = &a->entries[i], *y = &b->entries[i];

		ptc_require(!strcmp(x->key, y->key) && x->is_value == y->is_value && x->nparts == y->nparts);
		ptc_require(x->dtype == y->dtype && x->ndim == y->ndim);
		ptc_require(!memcmp(x->shape, y->shape, sizeof x->shape));
		for (uint32_t k = 0; k < x->nparts; k++) {
			ptc_require(x->parts[k].at == y->parts[k].at && x->parts[k].bytes == y->parts[k].bytes);
			ptc_require(!strcmp(a->files[x->parts[k].file], b->files[y->parts[k].file]));
			ptc_require(!x->ndim || !memcmp(ptc_dcp_offset(x, k), ptc_dcp_offset(y, k),
							2 * x->ndim * sizeof x->boxes[0]));
		}
	}
}

static void metadata(const uint8_t *data, size_t len)
{
	struct ptc_dcp d = { 0 }, again = { 0 };
	struct ptc_buf b = PTC_BUF_INIT;

	if (ptc_dcp_read(data, len, &d, NULL))
		return;
	ptc_require(ptc_dcp_write(&d, &b, NULL) == 0);
	ptc_require(ptc_dcp_read(b.data, b.len, &again, NULL) == 0);
	check_same(&d, &again);
	ptc_dcp_done(&again);
	ptc_dcp_done(&d);
	ptc_buf_done(&b);
}

struct input {
	const uint8_t *data;
	size_t len;
};

static int read_input(void *arg, uint64_t at, void *data, size_t len, struct ptc_error *err)
{
	const struct input *in = arg;

	(void)err;
	ptc_require(at <= in->len && len <= in->len - at);
	if (len)
		memcpy(data, in->data + at, len);
	return 0;
}

static void tensor(const uint8_t *data, size_t len)
{
	struct input in = { data, len };
	struct ptc_torch_tensor t;

	if (ptc_torch_read(read_input, &in, len, &t, NULL))
		return;
	ptc_require(t.at <= len && t.bytes <= len - t.at && t.first <= t.bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	metadata(data, len);
	tensor(data, len);
	return 0;
}
