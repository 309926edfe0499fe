/* SPDX-License-Identifier: Apache-2.0 */
/* Patterns over the names of tensors. Pure; no state, no allocation, nothing
 * fails: a pattern that is not valid matches no name. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Glob: * any run (dots too), ? one character, [abc] [a-z] [!x]; no escapes. Time is pattern times text. */
bool ptc_glob_valid(const char *pattern);
/* pattern is a glob with one {} for a run of digits: *ret_number is that in the name. false when the name does not fit.
 */
bool ptc_layer_number(const char *pattern, const char *name, int64_t *ret_number);
bool ptc_glob_match(const char *pattern, size_t pattern_len, const char *text, size_t text_len);
/* pattern is a glob in which each {} stands for a run of digits; false when the name does not fit. *ret_numbers: one
 * for each
 * {}, undefined where it does not fit. */
bool ptc_holes_match(const char *pattern, const char *name, int64_t *ret_numbers);
/* Every name that the glob inner matches is matched by outer. false also where that cannot be seen from the two. */
bool ptc_glob_contains(const char *outer, const char *inner);
