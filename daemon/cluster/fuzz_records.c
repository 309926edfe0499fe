/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz entry point: a byte that chooses a kind of record, then its JSON. A
 * record that is accepted is written and read again, and is the same then. */
#include "base/alloc.h"
#include "base/check.h"
#include "daemon/cluster/records.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

/* Reads text as one kind of record and writes it; NULL: refused. ptc_free it. */
typedef char *again_fn(const char *text, size_t len);

#define AGAIN(kind, done)                                                                                              \
	static char *kind##_again(const char *text, size_t len)                                                        \
	{                                                                                                              \
		struct ptc_##kind##_doc d;                                                                             \
		char *json;                                                                                            \
                                                                                                                       \
		if (ptc_##kind##_doc_decode(text, len, &d, NULL))                                                      \
			return NULL;                                                                                   \
		json = ptc_##kind##_doc_encode(&d);                                                                    \
		ptc_require(json);                                                                                     \
		done;                                                                                                  \
		return json;                                                                                           \
	}

AGAIN(node, (void)0)
AGAIN(meta, (void)0)
AGAIN(record, (void)0)
AGAIN(intent, (void)0)
AGAIN(worker, (void)0)
AGAIN(generation, ptc_generation_doc_done(&d))
AGAIN(manifest, ptc_manifest_doc_done(&d))

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	static again_fn *const kinds[] = { node_again,   meta_again,       record_again,  intent_again,
					   worker_again, generation_again, manifest_again };
	again_fn *again;
	char *first, *second;

	if (!len)
		return 0;
	again = kinds[data[0] % PTC_ARRAY_LEN(kinds)];
	first = again((const char *)data + 1, len - 1);
	if (!first)
		return 0;
	second = again(first, strlen(first));
	ptc_require(second && !strcmp(first, second));
	ptc_free(first);
	ptc_free(second);
	return 0;
}
