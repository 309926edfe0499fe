/* SPDX-License-Identifier: Apache-2.0 */
/* Use of jansson: its allocator, its limits and its error texts. A program that links this file gives jansson the
 * functions of base/alloc.h before main runs. So memory from jansson is released with ptc_free or json_decref.
 * Thread-safe. */
#pragma once

#include "base/buf.h"
#include "base/status.h"

#include <jansson.h>

/* Makes the linker include json.c; it does nothing else. Programs that use jansson directly call it first. */
void ptc_json_init(void);
/* Parses one JSON value; only white space may follow it. Duplicate keys, invalid UTF-8 and NUL escapes are errors.
 * `what` names the document in errors. json_decref the result. */
int ptc_json_load(const char *what, const void *data, size_t len, json_t **ret_json, struct ptc_error *err);
/* Checks the version of `root`, a document of ours: it must be from `oldest` to one above `ours`. PTC_EVERSION: it is
 * not, or the document needs a feature that we do not know. PTC_EINVAL: it has no version. Unknown members are skipped.
 * A later version names members that a reader must not skip in the member "needs", a list of strings; ptc_json_needs
 * checks only that list. */
int ptc_json_version(const char *what, const json_t *root, uint32_t oldest, uint32_t ours, struct ptc_error *err);
int ptc_json_needs(const char *what, const json_t *root, struct ptc_error *err);
/* The compact text, in insertion order; ptc_free it. NULL: out of memory. */
char *ptc_json_text(const json_t *json);
/* A member that is a count; 0 if it is absent, not an integer, or negative. */
uint64_t ptc_json_count(const json_t *object, const char *key);
/* Appends s, which is UTF-8, as a JSON string literal. */
void ptc_json_put_string(struct ptc_buf *b, const char *s);
