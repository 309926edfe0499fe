/* SPDX-License-Identifier: Apache-2.0 */
/* A job's state as files that ordinary tools read: which bytes such a file
 * has, as a head that is made here and items whose bytes come after it. Used
 * by export, which writes them, and by the file system, which serves them.
 * Makes no I/O. A file is immutable once made and owns all of its memory. */
#pragma once

#include "reshard/layout/declared.h"
#include "reshard/layout/layout.h"
#include "reshard/spec/spec.h"

/* A file that the state was imported from; its header is written back verbatim where it still fits. Borrowed strings.
 */
struct ptc_state_kept {
	const char *field; /* "param" or a field's name */
	const char *name;
	const void *header; /* length word and JSON */
	size_t header_len;
	const uint32_t *items; /* in data order */
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
	uint64_t *bytes; /* of each */
	size_t n;
	bool ranked; /* items are a rank's local tensors */
	uint32_t rank;
};
void ptc_state_file_done(struct ptc_state_file *f); /* one of zeros is fine */
uint64_t ptc_state_file_size(const struct ptc_state_file *f);

const char *ptc_state_field_name(const struct ptc_spec *spec, size_t field); /* "param" for 0 */
/* How many kept files the field (0: parameters) has, if together they hold each of its tensors once and still fit; else
 * 0. */
size_t ptc_state_kept_count(const struct ptc_state_set *s, size_t field);
const struct ptc_state_kept *ptc_state_kept_nth(const struct ptc_state_set *s, size_t field, size_t n);

/* One kept file as it was. */
int ptc_state_file_kept(const struct ptc_state_set *s, const struct ptc_state_kept *k, struct ptc_state_file *ret,
			struct ptc_error *err);
/* A whole field in one file: the kept one where there is exactly one, else with a canonical header. */
int ptc_state_file_field(const struct ptc_state_set *s, size_t field, struct ptc_state_file *ret,
			 struct ptc_error *err);
/* Any items in the order given, under their item names ("NAME" or "NAME:FIELD"), canonical; they need not be in name
 * order. */
int ptc_state_file_items(const struct ptc_spec *spec, const uint32_t *items, size_t n, struct ptc_state_file *ret,
			 struct ptc_error *err);
/* The layout of a generation: of rules and its configuration, or, where ranks declared what they hold, of that document
 * (formats/state/layout_doc.h; len 0: there is none). spec and *ret_declared outlive it; ptc_declared_done the latter
 * after it. Items have the same numbers in both. */
int ptc_state_layout(const struct ptc_spec *spec, const char *config, const void *doc, size_t len,
		     struct ptc_declared *ret_declared, struct ptc_layout **ret_layout, struct ptc_error *err);
/* What a rank holds of one field, as its local tensors, canonical. */
int ptc_state_file_rank(const struct ptc_layout *layout, const struct ptc_spec *spec, uint32_t rank, size_t field,
			struct ptc_state_file *ret, struct ptc_error *err);
/* What it holds of everything, under item names. */
int ptc_state_file_rank_all(const struct ptc_layout *layout, const struct ptc_spec *spec, uint32_t rank,
			    struct ptc_state_file *ret, struct ptc_error *err);
/* No head: the bytes of all items of at most `most` bytes, one after the other, in order; none that NumPy has not. */
int ptc_state_file_small(const struct ptc_spec *spec, uint64_t most, struct ptc_state_file *ret, struct ptc_error *err);
/* NumPy's format 1.0, C order. Types NumPy has not come as raw elements of their size ('|V2' for BF16). PTC_ELAYOUT:
 * elements that are no whole bytes. */
int ptc_state_file_npy(const struct ptc_spec *spec, uint32_t item, struct ptc_state_file *ret, struct ptc_error *err);
