/* SPDX-License-Identifier: Apache-2.0 */
/* Copies in messages; shared by view.c, view_copies.c and copies_info.c. Any thread. Failure mode: PTC_ENOMEM. */
#pragma once

#include "daemon/documents/documents.h"

#include "ptc.pb-c.h"

/* Fills the message with node numbers of v->nodes; borrows the sets of items from doc. Returns 0 or PTC_ENOMEM; free
 * ret in both cases. */
int ptc_view_copies_info(const struct ptc_view *v, const struct ptc_copies_doc *doc, Ptc__V1__Copies *ret);
void ptc_view_copies_info_done(Ptc__V1__Copies *c); /* a zeroed one is fine */
