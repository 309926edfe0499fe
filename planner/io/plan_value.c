// SPDX-License-Identifier: Apache-2.0
/* Numbers (quoted ones, too, as a job's canonical form has them), counts and flags. An absent key is its default; a wrong value is an error with file and line. */
#include "planner/io/plan_value.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int ptc_plan_number(const struct ptc_doc *doc, const struct ptc_doc_node *map, const char *key, double min, double max,
		    double absent, double *ret, struct ptc_error *err)
{
	const struct ptc_doc_node *node = ptc_doc_get(map, key);
	const char *text = node && node->kind == PTC_DOC_TEXT ? node->text : "";
	char *end;
	double v = strtod(text, &end);

	if (!node) {
		*ret = absent;
		return 0;
	}
	if (end == text || *end || strspn(text, "0123456789+-.eE") != strlen(text) || !isfinite(v))
		return ptc_doc_error(doc, node, err, PTC_EINVAL, "%s must be a number", key);
	if (v < min || v > max)
		return ptc_doc_error(doc, node, err, PTC_EINVAL, "%s must be in %g..%g, not %s", key, min, max, text);
	*ret = v;
	return 0;
}

int ptc_plan_count(const struct ptc_doc *doc, const struct ptc_doc_node *map, const char *key, uint32_t min,
		   uint32_t max, uint32_t absent, uint32_t *ret, struct ptc_error *err)
{
	const struct ptc_doc_node *node = ptc_doc_get(map, key);
	int64_t v = absent;
	int rc = node ? ptc_doc_int(doc, node, key, min, max, &v, err) : 0;

	if (!rc)
		*ret = (uint32_t)v;
	return rc;
}

int ptc_plan_flag(const struct ptc_doc *doc, const struct ptc_doc_node *map, const char *key, bool absent, bool *ret,
		  struct ptc_error *err)
{
	const struct ptc_doc_node *node = ptc_doc_get(map, key);
	const char *text = node && node->kind == PTC_DOC_TEXT ? node->text : "";

	if (node && strcmp(text, "true") && strcmp(text, "false"))
		return ptc_doc_error(doc, node, err, PTC_EINVAL, "%s must be true or false", key);
	*ret = node ? text[0] == 't' : absent;
	return 0;
}
