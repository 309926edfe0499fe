/* SPDX-License-Identifier: Apache-2.0 */
/* A configuration: degrees, rank order, batch. Text form is what ptcctl takes
 * and etcd shows: "tp=2,pp=2,dp=2,zero=1,order=tp-cp-ep-dp-pp". Unset degrees are 1. Pure. */
#pragma once

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

#define PTC_MAX_STAGES 1024
struct ptc_config {
	uint32_t tp, pp, dp, cp, ep, etp; /* world = tp*cp*dp*pp; etp*ep*edp = tp*cp*dp */
	uint32_t zero;    /* 0 none, 1 optimizer fields as flattened ranges over dp*cp; 2, 3 come later: refused */
	char order[5][3]; /* permutation of tp cp ep dp pp, first fastest; dense ranks skip ep */
	uint32_t stages[PTC_MAX_STAGES];
	uint32_t nstages; /* layers per stage ("stages=4:3:3:2"); nstages 0: even, first ones get the extra layer */
	uint32_t micro_batch, global_batch; /* 0: unset */
};
struct ptc_coords {
	uint32_t tp, pp, dp, cp;
};

#define PTC_CONFIG_TEXT_MAX 8192
int ptc_config_parse(const char *text, struct ptc_config *ret_config, struct ptc_error *err);
/* Canonical form: every non-default key, fixed key order; parse(format(c)) == c. */
int ptc_config_format(const struct ptc_config *c, char *buf, size_t size);
int ptc_config_world(const struct ptc_config *c, uint32_t *ret_world, struct ptc_error *err); /* checks too */
struct ptc_coords ptc_config_coords(const struct ptc_config *c, uint32_t rank);
uint32_t ptc_config_rank(const struct ptc_config *c, const struct ptc_coords *coords);
