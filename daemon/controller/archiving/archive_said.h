/* SPDX-License-Identifier: Apache-2.0 */
/* The line of JSON in which ptc-archive (client/ctl/archive/archive_main.c) says how its round has ended, and what
 * status shows of an archive. Plain data, any thread. Failure modes: PTC_EINVAL (it is malformed, or names neither an
 * archive nor an error), PTC_ENOMEM. */
#pragma once

#include "formats/json.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ptc_archive_said {
	char error[PTC_ERROR_MAX]; /* "": the round succeeded, and the next ones are known */
	char archive[256];         /* the newest verified checkpoint, its step, and when it was written */
	uint64_t step;
	int64_t time_ms;
	uint64_t generation, snapshot; /* whose state the round was for */
	uint64_t wait_ms;              /* not 0: too soon for another checkpoint; none was written */
	bool fresh;                    /* this round has written it */
};
int ptc_archive_said_decode(const char *json, size_t len, struct ptc_archive_said *ret, struct ptc_error *err);

/* `archive` in docs/control.md. */
struct ptc_archive_state {
	char *dir;
	bool running;
	struct ptc_archive_said said; /* of the last round that succeeded; all zeros: none has */
	char failed[PTC_ERROR_MAX];   /* what the last round failed with; "": it did not */
};
json_t *ptc_archive_state_json(const struct ptc_archive_state *s); /* NULL: out of memory */
