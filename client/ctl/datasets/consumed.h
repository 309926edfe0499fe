/* SPDX-License-Identifier: Apache-2.0 */
/* Inside ptcctl dataset proof: what an entry of the ledger consumed, as samples and ranks. */
#pragma once

#include "formats/json.h"
#include "formats/dataset/ledger.h"
#include "order/order.h"

#define CTL_BITS_MAX (UINT64_C(1) << 32) /* 512 MiB: of samples that are counted in a bit each, and of a batch */

struct ctl_consumed {
	struct ptc_ledger_order how; /* n: of all datasets */
	struct ptc_mix mix;          /* one dataset: of one part */
	/* By length: as one rank that has all, for nobody but the ranks knows the lengths. Skipped positions: none. */
	struct ptc_batch batch;
	const char *dataset[PTC_MIX_MAX]; /* borrowed from data; NULL: the tag names none */
};
/* data: of the daemon's answer to JobData. PTC_EINVAL: neither the tag nor data says the order, or nothing the batch.
 */
/* Whether data has that cursor; PTC_ECORRUPT: it has, with another order than the tag says. */
int ctl_consumed_compare(const struct ptc_ledger_entry *e, const struct ctl_consumed *c, const json_t *data,
			 bool *ret_there, struct ptc_error *err);
int ctl_consumed_of(const struct ptc_ledger_entry *e, const json_t *data, struct ctl_consumed *ret,
		    struct ptc_error *err);
