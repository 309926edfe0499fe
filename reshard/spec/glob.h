/* SPDX-License-Identifier: Apache-2.0 */
/* Patterns for names of tensors. Pure; no state, no allocation. There are no failure modes: an invalid pattern matches
 * no name. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Globs: * matches any run (dots too), ? one character, [abc] [a-z] [!x] one of a set. There are no escapes. The time
 * grows with the length of the pattern times that of the text. */
bool ptc_glob_valid(const char *pattern);
/* The pattern is a glob with one {}, which stands for a run of digits. *ret_number is these digits' number. false: the
 * name does not match. */
bool ptc_layer_number(const char *pattern, const char *name, int64_t *ret_number);
bool ptc_glob_match(const char *pattern, size_t pattern_len, const char *text, size_t text_len);
/* The pattern is a glob in which each {} stands for a run of digits. *ret_numbers gets one number for each {}. false:
 * the name does not match, and the numbers are undefined. */
bool ptc_holes_match(const char *pattern, const char *name, int64_t *ret_numbers);
/* Whether every name that `inner` matches is matched by `outer`. Also false where the two patterns do not show it. */
bool ptc_glob_contains(const char *outer, const char *inner);
