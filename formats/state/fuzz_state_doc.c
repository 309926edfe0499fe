/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz entry point: bytes as a state document. What is accepted is written
 * again as it was. */
#include "base/alloc.h"
#include "base/check.h"
#include "formats/state/state_doc.h"

#include <string.h>

#define HEAD (sizeof "{\"version\":1," - 1)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct ptc_state s = { 0 };
	struct ptc_coords at = { 0 };
	struct ptc_state_blob *blobs = NULL;
	char *json = NULL;
	size_t n = 0;

	if (ptc_state_doc_decode(data, len, &s, NULL))
		return 0;
	ptc_require(ptc_state_doc_encode(&s, &json, &n, NULL) == 0);
	if (!memcmp(json, data, HEAD)) /* a later version may say more */
		ptc_require(n == len && !memcmp(json, data, len));
	ptc_require(ptc_state_blobs(&s, &at, &blobs, &n, NULL) == 0);
	ptc_free(blobs);
	ptc_free(json);
	ptc_state_done(&s);
	return 0;
}
