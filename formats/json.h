/* SPDX-License-Identifier: Apache-2.0 */
/* The one place that meets jansson as a library: its allocator, its limits
 * and its error texts. Linking this file gives jansson base/alloc.h before
 * main runs, so whatever jansson hands out is released with ptc_free or
 * json_decref. Thread-safe. */
#pragma once

#include "base/buf.h"
#include "base/status.h"

#include <jansson.h>

/* Does nothing but link json.c; programs that use jansson directly call it first. */
void ptc_json_init(void);
/* One JSON value with nothing but white space after it. Duplicate keys, invalid UTF-8 and NUL escapes are errors.
 * what names the document in the error. json_decref the result. */
int ptc_json_load(const char *what, const void *data, size_t len, json_t **ret_json, struct ptc_error *err);
/* Whether root, a document of ours, is of a version from oldest to one above ours (PTC_EVERSION; PTC_EINVAL: it says
 * none), and needs nothing that we do not know. Members that we do not know are passed over; what a later version must
 * not have passed over it names in the member "needs", a list of strings. */
int ptc_json_version(const char *what, const json_t *root, uint32_t oldest, uint32_t ours, struct ptc_error *err);
int ptc_json_needs(const char *what, const json_t *root, struct ptc_error *err);
/* Compact text in insertion order; ptc_free it; NULL when out of memory. */
char *ptc_json_text(const json_t *json);
/* A member that counts something; 0: there is none, it is no integer, or below 0. */
uint64_t ptc_json_count(const json_t *object, const char *key);
/* s as a JSON string literal. s is UTF-8. */
void ptc_json_put_string(struct ptc_buf *b, const char *s);
