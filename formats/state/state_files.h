/* SPDX-License-Identifier: Apache-2.0 */
/* A job's state as files that ordinary tools read. A file consists of a head, which is made here, and items whose bytes
 * follow it. Export writes such files, and the file system serves them. Does no I/O. A file is immutable once made and
 * owns all of its memory. Failure modes: PTC_ELAYOUT, PTC_ELIMIT, PTC_ENOMEM. */
#pragma once

#include "reshard/layout/declared.h"
#include "reshard/layout/layout.h"
#include "reshard/spec/spec.h"

/* A file from which the state was imported. Its header is written back unchanged where it still fits. Strings are
 * borrowed. */
struct ptc_state_kept {
	const char *field; /* "param" or a field's name */
	const char *name;
	const void *header; /* length word and JSON */
	size_t header_len;
	const uint32_t *items; /* in the order of their bytes */
	size_t nitems;
};
struct ptc_state_set {
	const struct ptc_spec *spec;
	const struct ptc_state_kept *kept;
	size_t nkept;
};

struct ptc_state_file {
	void *head;
	size_t head_len;
	uint32_t *items; /* in the file's order */
	uint64_t *bytes; /* bytes of each item */
	size_t n;
	bool ranked; /* the items are a rank's local tensors */
	uint32_t rank;
};
void ptc_state_file_done(struct ptc_state_file *f); /* a zeroed one is fine */

const char *ptc_state_field_name(const struct ptc_spec *spec, size_t field); /* "param" for field 0 */
/* The number of kept files of the field (0: parameters), if together they hold each of its tensors once and still fit;
 * otherwise 0. */
size_t ptc_state_kept_count(const struct ptc_state_set *s, size_t field);
const struct ptc_state_kept *ptc_state_kept_nth(const struct ptc_state_set *s, size_t field, size_t n);

/* Makes one kept file as it was. */
int ptc_state_file_kept(const struct ptc_state_set *s, const struct ptc_state_kept *k, struct ptc_state_file *ret,
			struct ptc_error *err);
/* Makes a file of a whole field. It is the kept file if there is exactly one; otherwise it gets a canonical header. */
int ptc_state_file_field(const struct ptc_state_set *s, size_t field, struct ptc_state_file *ret,
			 struct ptc_error *err);
/* Makes a canonical file of any items, in the given order, which need not be name order. Their names are item names
 * ("NAME" or "NAME:FIELD"). */
int ptc_state_file_items(const struct ptc_spec *spec, const uint32_t *items, size_t n, struct ptc_state_file *ret,
			 struct ptc_error *err);
/* Makes the layout of a generation: from the rules and its configuration, or from a layout document
 * (formats/state/layout_doc.h; len 0: there is none). spec and *ret_declared must outlive the layout; then
 * ptc_declared_done *ret_declared. Items have the same numbers in both specs. */
int ptc_state_layout(const struct ptc_spec *spec, const char *config, const void *doc, size_t len,
		     struct ptc_declared *ret_declared, struct ptc_layout **ret_layout, struct ptc_error *err);
/* Makes a canonical file of the local tensors that a rank holds of one field. */
int ptc_state_file_rank(const struct ptc_layout *layout, const struct ptc_spec *spec, uint32_t rank, size_t field,
			struct ptc_state_file *ret, struct ptc_error *err);
/* Makes a canonical file of all local tensors of a rank, under item names. */
int ptc_state_file_rank_all(const struct ptc_layout *layout, const struct ptc_spec *spec, uint32_t rank,
			    struct ptc_state_file *ret, struct ptc_error *err);
/* Makes a file without a head: the bytes of all items of at most `most` bytes, one after the other, in order. Items
 * whose type NumPy lacks are left out. */
int ptc_state_file_small(const struct ptc_spec *spec, uint64_t most, struct ptc_state_file *ret, struct ptc_error *err);
/* Makes a file in NumPy's format 1.0, C order. A type that NumPy lacks becomes raw elements of its size ('|V2' for
 * BF16). PTC_ELAYOUT: elements are not whole bytes. */
int ptc_state_file_npy(const struct ptc_spec *spec, uint32_t item, struct ptc_state_file *ret, struct ptc_error *err);
