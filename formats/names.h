/* SPDX-License-Identifier: Apache-2.0 */
/* Checks names that come from outside, and suggests the nearest known word for an unknown one. Names become paths, etcd
 * keys and table cells later. So names that would be dangerous there are refused here. Failure modes: PTC_EINVAL and
 * PTC_ELIMIT, with the name and the rule in err. Pure; thread-safe. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

/* Whether a text is valid UTF-8: nothing overlong, no surrogates, nothing above U+10FFFF. For texts that come over a
 * wire. */
bool ptc_name_is_utf8(const char *text);
/* 1..PTC_TENSOR_NAME_MAX bytes of UTF-8, no control characters, no "..", no leading or trailing '/', no "//". */
int ptc_name_check_tensor(const char *name, struct ptc_error *err);
/* Job and node names: a DNS label, [a-z0-9] and inner '-', at most PTC_NAME_MAX. */
int ptc_name_check_job(const char *name, struct ptc_error *err);
/* Field names: [A-Za-z0-9_.-], not beginning with '.' or '-', without "..", at most PTC_FIELD_NAME_MAX. */
int ptc_name_check_field(const char *name, struct ptc_error *err);
/* Rule set names: [a-z0-9_-], at most PTC_NAME_MAX; the file is NAME.yaml. */
int ptc_name_check_rules(const char *name, struct ptc_error *err);

/* The known word nearest to `word`; NULL: none is near. */
const char *ptc_name_nearest(const char *word, const char *const *known, size_t nknown);
