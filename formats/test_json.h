/* SPDX-License-Identifier: Apache-2.0 */
/* For tests that say what JSON is to be, to the letter. */
#pragma once

#include "base/alloc.h"
#include "formats/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

/* Its compact text is `want`. Frees it. */
static inline void test_json_is(const char *want, json_t *json)
{
	char *text;

	assert_non_null(json);
	text = ptc_json_text(json);
	assert_string_equal(want, text);
	json_decref(json);
	ptc_free(text);
}
