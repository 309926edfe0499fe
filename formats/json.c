/* SPDX-License-Identifier: Apache-2.0 */
/* jansson behind our allocator. Happy path: a constructor hands the allocator
 * over before any document exists, so none is ever freed by the wrong one.
 * Failure: a document that does not parse is PTC_EINVAL with line and reason;
 * an allocation that failed meanwhile makes it PTC_ENOMEM. */
#include "formats/json.h"

#include "base/alloc.h"
#include "base/number/versions.h"

#include <stdbool.h>
#include <string.h>

/* jansson may call a failed allocation bad syntax, or go on without some bytes of a text */
static _Thread_local bool short_of_memory;

static void *allocate(size_t size)
{
	void *p = ptc_malloc(size);

	short_of_memory |= !p;
	return p;
}

static __attribute__((constructor)) void give_allocator(void)
{
	json_set_alloc_funcs(allocate, ptc_free);
}

void ptc_json_init(void)
{
}

int ptc_json_load(const char *what, const void *data, size_t len, json_t **ret_json, struct ptc_error *err)
{
	json_error_t je;
	json_t *json;

	short_of_memory = false;
	json = json_loadb(data, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &je);
	if (short_of_memory) {
		json_decref(json);
		return ptc_error_set(err, PTC_ENOMEM, "%s: out of memory", what);
	}
	/* jansson quotes the input, which may hold anything */
	for (char *p = je.text; !json && *p; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			*p = '?';
	if (!json)
		return ptc_error_set(err, PTC_EINVAL, "%s: line %d: %s", what, je.line, je.text);
	*ret_json = json;
	return 0;
}

int ptc_json_needs(const char *what, const json_t *root, struct ptc_error *err)
{
	const json_t *needs = json_object_get(root, "needs");
	const char *first = json_string_value(json_array_get(needs, 0));

	if (!needs || (json_is_array(needs) && json_array_size(needs) == 0))
		return 0;
	if (!first || strlen(first) > 64)
		return ptc_error_set(err, PTC_EINVAL, "%s: \"needs\" is not a list of names", what);
	return ptc_error_set(err, PTC_EVERSION,
			     "%s: it needs \"%s\", which this ptc %s does not know; use the version that wrote it",
			     what, first, PTC_VERSION);
}

int ptc_json_version(const char *what, const json_t *root, uint32_t oldest, uint32_t ours, struct ptc_error *err)
{
	const json_t *member = json_object_get(root, "version");
	json_int_t version = json_integer_value(member);

	if (!json_is_integer(member))
		return ptc_error_set(err, PTC_EINVAL, "%s: no version", what);
	if (version < 0 || !ptc_version_reads((uint64_t)version, oldest, ours))
		return ptc_error_set(err, PTC_EVERSION,
				     "%s: version %lld; this ptc %s reads %u to %u: use a version next to the one that "
				     "wrote it",
				     what, (long long)version, PTC_VERSION, oldest, ours + 1);
	return ptc_json_needs(what, root, err);
}

uint64_t ptc_json_count(const json_t *object, const char *key)
{
	json_int_t v = json_integer_value(json_object_get(object, key));

	return v > 0 ? (uint64_t)v : 0;
}

char *ptc_json_text(const json_t *json)
{
	char *text;

	short_of_memory = false;
	text = json_dumps(json, JSON_COMPACT | JSON_ENCODE_ANY);
	if (!short_of_memory)
		return text;
	ptc_free(text);
	return NULL;
}

void ptc_json_put_string(struct ptc_buf *b, const char *s)
{
	const char *from = s;

	ptc_buf_append(b, "\"", 1);
	for (; *s; s++) {
		unsigned char c = (unsigned char)*s;

		if (c >= 0x20 && c != '"' && c != '\\')
			continue;
		ptc_buf_append(b, from, (size_t)(s - from));
		from = s + 1;
		if (c < 0x20)
			ptc_buf_printf(b, "\\u%04x", c);
		else
			ptc_buf_printf(b, "\\%c", c);
	}
	ptc_buf_append(b, from, (size_t)(s - from));
	ptc_buf_append(b, "\"", 1);
}
