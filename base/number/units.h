/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes and durations as text that people write and read. Pure; thread-safe.
 *
 * Parsing is strict: a number with at most three decimals, then a unit, with at most one space between and nothing else
 * around. A number without a unit is refused (except 0), because "memory: 8" means bytes to one reader and GiB to
 * another. Failure mode: PTC_EINVAL, with the text and what is wrong with it. */
#pragma once

#include "base/status.h"

#include <stdint.h>

#define PTC_UNITS_MAX 32 /* bytes; enough for every text that this module writes */

/* "8GiB", "500MB", "1.5 TiB", "4096B". Units: B, KiB MiB GiB TiB PiB (1024), kB KB MB GB TB PB (1000).
 * A fraction of a byte is cut off. */
int ptc_units_parse_bytes(const char *text, uint64_t *ret_bytes, struct ptc_error *err);
/* "250ms", "5s", "1.5m", "2h", "1d". A fraction of a millisecond is refused. */
int ptc_units_parse_ms(const char *text, uint64_t *ret_ms, struct ptc_error *err);

/* For people: "0 B", "1023 B", "1.25 GiB", "118 MiB" (three digits). Returns ret_text. */
const char *ptc_units_format_bytes(uint64_t bytes, char ret_text[PTC_UNITS_MAX]);
/* For files: the shortest text that parses back to the same value ("8GiB", "1500MiB", "5s"). Return ret_text. */
const char *ptc_units_print_bytes(uint64_t bytes, char ret_text[PTC_UNITS_MAX]);
const char *ptc_units_print_ms(uint64_t ms, char ret_text[PTC_UNITS_MAX]);
