/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz entry point: a file's bytes as a safetensors header. What parses must
 * tile its file, and its canonical form must parse to the same tensors. */
#include "base/alloc.h"
#include "base/check.h"
#include "formats/tensors/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void check_canonical(const struct ptc_st *st)
{
	struct ptc_tensor *tensors = ptc_calloc(PTC_MAX(st->ntensors, 1), sizeof *tensors);
	struct ptc_buf b = PTC_BUF_INIT;
	struct ptc_st again = { 0 };

	ptc_require(tensors);
	for (size_t i = 0; i < st->ntensors; i++)
		tensors[i] = st->tensors[st->by_name[i]].t;
	ptc_require(ptc_st_write(&b, tensors, st->ntensors, st->metadata, st->nmetadata, NULL) == 0);
	ptc_require(b.len % 8 == 0);
	ptc_require(ptc_st_parse(b.data, b.len, (int64_t)b.len + st->data_bytes, &again, NULL) == 0);
	ptc_require(ptc_st_describes(&again, tensors, st->ntensors));
	ptc_require(again.nmetadata == st->nmetadata);
	ptc_st_done(&again);
	ptc_buf_done(&b);
	ptc_free(tensors);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct ptc_st st = { 0 };
	int64_t at = 0;

	if (ptc_st_parse(data, len, (int64_t)len, &st, NULL))
		return 0;
	for (size_t i = 0; i < st.ntensors; i++) {
		ptc_require(st.tensors[st.by_offset[i]].begin == at);
		at = st.tensors[st.by_offset[i]].end;
	}
	ptc_require(st.data_start + at == (int64_t)len);
	check_canonical(&st);
	ptc_st_done(&st);
	return 0;
}
