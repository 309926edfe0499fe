/* SPDX-License-Identifier: Apache-2.0 */
/* Of planner/io's own: single values of a map, with a default where the key is absent. */
#pragma once

#include "formats/doc.h"

/* A decimal number, with a point or exponent where wanted, in min..max. */
int ptc_plan_number(const struct ptc_doc *doc, const struct ptc_doc_node *map, const char *key, double min, double max,
		    double absent, double *ret, struct ptc_error *err);
int ptc_plan_count(const struct ptc_doc *doc, const struct ptc_doc_node *map, const char *key, uint32_t min,
		   uint32_t max, uint32_t absent, uint32_t *ret, struct ptc_error *err);
int ptc_plan_flag(const struct ptc_doc *doc, const struct ptc_doc_node *map, const char *key, bool absent, bool *ret,
		  struct ptc_error *err);
