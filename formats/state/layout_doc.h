/* SPDX-License-Identifier: Apache-2.0 */
/* The layout document: the layout that running ranks declare (reshard/layout/declared.h), as canonical JSON. A
 * generation names it by its content hash.
 *
 *   {"version":1,"config":"tp=2,dp=2",
 *    "tensors":[["step","F32",[]],["w","F32",[8,4]]],
 *    "classes":[[0,[1,0,0,4,4]],[0,[1,4,0,4,4]]],
 *    "ranks":[0,1,[2,0]]}
 *
 * Tensors are in the order of their names. A class says what a rank has of them; ranks that have the same share one.
 * It lists its parts in the order of tensors, which it names by number. A number alone is a tensor held whole. [tensor,
 * offsets.., extents.., offsets.., ...] has the tensor's boxes; [tensor] has none of its elements. "ranks" has the
 * class of each rank, by number. In it, [n, class] stands for n ranks in a row; n is above 1. So ranks 0, 2 and 3 above
 * have the first four rows of w, and rank 1 has the others.
 *
 * Only the canonical form is read, so equal documents have equal bytes. Writing a document again gives the same bytes,
 * except members that a later version has added before its end. Everything is bounded, and checked by
 * ptc_declared_check. Failure modes: PTC_EINVAL with the place, PTC_ELIMIT, PTC_EVERSION, PTC_ELAYOUT, PTC_ENOMEM.
 * Pure; any thread. */
#pragma once

#include "base/number/versions.h"
#include "reshard/layout/declared.h"

#define PTC_LAYOUT_DOC_VERSION   PTC_VERSION_NUMBER(1)
#define PTC_LAYOUT_DOC_OLDEST    1
#define PTC_LAYOUT_DOC_SINCE     PTC_VERSION_NUMBER(1) /* the PTC_DOC_VERSION that brought the newest version */
#define PTC_LAYOUT_DOC_MAX_BYTES PTC_SPEC_MAX_BYTES

/* Deterministic. ptc_free *ret_json. */
int ptc_layout_doc_encode(const struct ptc_declared *d, char **ret_json, size_t *ret_len, struct ptc_error *err);
int ptc_layout_doc_decode(const void *data, size_t len, struct ptc_declared *ret_declared, struct ptc_error *err);
