/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps records of what a job's ranks on this node were doing when they hung, as files below the job's folder. For
 * each rank: what the kernel says of its threads, its stacks as the program itself tells them, and the dump of its
 * communication library's flight recorder. Also the kernel's lines about errors of devices.
 *
 * A program tells its stacks if it has a handler for SIGURG that writes them to its log, as ptc's Python package has.
 * Without a handler the signal does nothing, so no program is ended by it.
 *
 * Set number N is the folder evidence/N. The newest PTC_EVIDENCE_KEPT sets are kept, and the job's owner may read them.
 * A set is written under another name first, so one that is there is whole. The oldest set goes first, then texts are
 * written, and dumps last, so that a disk that gets full costs dumps and not texts.
 *
 * Failure modes: the job has no ranks here (PTC_ENOTFOUND); no rank's text can be written. What cannot be read, and a
 * dump that cannot be written, is said in the text. Threads: any; each call takes its own set. A call takes about a
 * second, and at most 3 more for dumps; it waits for no memory of ranks. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ptc_workers;

#define PTC_EVIDENCE_KEPT     3
#define PTC_EVIDENCE_TEXT_MAX (1u << 20)  /* of a set's text; what is beyond is left out, and that is said */
#define PTC_EVIDENCE_DUMP_MAX (8u << 20)  /* of a flight recorder's dump */
#define PTC_EVIDENCE_DUMPS    (64u << 20) /* of all dumps of a set; also no more than half of what is free there */

struct ptc_evidence {
	char dir[320];   /* of the set */
	uint32_t nranks; /* ranks of which the set has files; 0: no set was made */
	char *text;      /* of ptc_evidence_newest: of all its files but the dumps; ptc_free it */
	size_t len;
};
/* Makes a set of the job's ranks that live here. why: one line for it. if_stands: only if some rank here has been in
 * its step for some seconds, and for longer than its steps take; otherwise *ret is empty. */
int ptc_evidence_keep(struct ptc_workers *w, const char *uuid, const char *why, bool if_stands,
		      struct ptc_evidence *ret, struct ptc_error *err);
/* Reads the newest set. */
int ptc_evidence_newest(struct ptc_workers *w, const char *uuid, struct ptc_evidence *ret, struct ptc_error *err);
