/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz entry point: a byte that chooses, then the document of a registered dataset, as etcd has it and users send it;
 * what a snapshot's manifest says was consumed; or a cursor's tag, as a rank gives it. What is accepted is written and
 * read again, and is the same then. */
#include "base/alloc.h"
#include "base/check.h"
#include "formats/dataset/dataset_doc.h"
#include "formats/dataset/ledger.h"
#include "formats/json.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void dataset(const char *text, size_t len)
{
	char hex[2][33], again_hex[2][33], *first, *second;
	struct ptc_dataset_doc d, again;

	if (ptc_dataset_doc_decode(text, len, &d, NULL))
		return;
	ptc_require(d.path[0] == '/' && d.name[0]);
	first = ptc_dataset_doc_encode(&d);
	ptc_require(first && ptc_dataset_doc_decode(first, strlen(first), &again, NULL) == 0);
	second = ptc_dataset_doc_encode(&again);
	ptc_require(second && !strcmp(first, second));
	ptc_require(!ptc_dataset_doc_source(&d, hex[0]) && !ptc_dataset_doc_reader(&d, hex[1]));
	ptc_require(!ptc_dataset_doc_source(&again, again_hex[0]) && !ptc_dataset_doc_reader(&again, again_hex[1]));
	ptc_require(!strcmp(hex[0], again_hex[0]) && !strcmp(hex[1], again_hex[1]));
	ptc_free(first);
	ptc_free(second);
}

static char *ledger_text(const struct ptc_ledger *l)
{
	json_t *root = ptc_members_to_json(&ptc_ledger_members, l);
	char *text = root ? ptc_json_text(root) : NULL;

	json_decref(root);
	ptc_require(text);
	return text;
}

static void ledger(const char *text, size_t len)
{
	struct ptc_ledger l, again;
	char *first, *second;
	json_t *root;

	if (ptc_json_load("ledger", text, len, &root, NULL))
		return;
	if (ptc_ledger_from_json(root, &l) == 0) {
		ptc_require(l.n <= PTC_LEDGER_MAX);
		first = ledger_text(&l);
		for (size_t i = 0; i < l.n; i++)
			(void)ptc_ledger_position(&l, l.v[i].cursor, 0, l.v[i].end_step + 1, l.v[i].batch);
		ptc_require(ptc_ledger_copy(&l, &again) == 0);
		ptc_ledger_done(&l);
		second = ledger_text(&again);
		ptc_require(!strcmp(first, second));
		ptc_ledger_done(&again);
		ptc_free(first);
		ptc_free(second);
	}
	json_decref(root);
}

static void tag(const char *text, size_t len)
{
	struct ptc_ledger_order order;
	char *copy = ptc_strndup(text, len);

	ptc_require(copy);
	if (ptc_ledger_tag(copy, &order))
		ptc_require(!order.mix[sizeof order.mix - 1] && !order.n == !!order.mix[0]);
	ptc_free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	static void (*const kinds[])(const char *text, size_t len) = { dataset, ledger, tag };

	if (len)
		kinds[data[0] % PTC_ARRAY_LEN(kinds)]((const char *)data + 1, len - 1);
	return 0;
}
