/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz entry point: bytes as a layout document. What is accepted is written
 * again as it was, and gives a layout whose ranks can be asked about. */
#include "base/alloc.h"
#include "base/check.h"
#include "formats/state/layout_doc.h"

#include <string.h>

#define HEAD (sizeof "{\"version\":1," - 1)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void ask(const struct ptc_declared *d)
{
	struct ptc_layout *l = NULL;
	struct ptc_local_shape shape;

	ptc_require(ptc_layout_declared_new(d, &l, NULL) == 0);
	for (uint32_t r = 0; r < d->world && r < 8; r++)
		for (uint32_t i = 0; i < d->spec.ntensors; i++) {
			struct ptc_rank_layout rank;
			bool has = false;

			ptc_require(ptc_layout_rank_item(l, r, i, &rank, NULL) == 0);
			for (size_t k = 0; k < rank.nregions; k++)
				has |= rank.regions[k].item == i;
			ptc_rank_layout_done(&rank);
			ptc_require(ptc_layout_local_shape(l, r, i, &shape) || !has);
		}
	ptc_layout_free(l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct ptc_declared d = { 0 };
	char *json = NULL;
	size_t n = 0;

	if (ptc_layout_doc_decode(data, len, &d, NULL))
		return 0;
	ptc_require(ptc_layout_doc_encode(&d, &json, &n, NULL) == 0);
	if (!memcmp(json, data, HEAD)) /* a later version may say more */
		ptc_require(n == len && !memcmp(json, data, len));
	ask(&d);
	ptc_free(json);
	ptc_declared_done(&d);
	return 0;
}
