/* SPDX-License-Identifier: Apache-2.0 */
/* Between view.c, view_copies.c and copies_info.c: copies as messages have them. Any thread. Failure: memory. */
#pragma once

#include "daemon/documents/documents.h"

#include "ptc.pb-c.h"

uint32_t ptc_view_number(const struct ptc_view *v, const char *node); /* one of v->nodes */
/* With node numbers of v->nodes; borrows the sets of items from doc. 0 or PTC_ENOMEM; then ret is to be given back,
 * too. */
int ptc_view_copies_info(const struct ptc_view *v, const struct ptc_copies_doc *doc, Ptc__V1__Copies *ret);
void ptc_view_copies_info_done(Ptc__V1__Copies *c); /* one of zeros is fine */
