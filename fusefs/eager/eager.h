/* SPDX-License-Identifier: Apache-2.0 */
/* When a thread that waits for requests stays awake. A program that opens many small files sends its next request some
 * microseconds after each answer. To go to sleep in between, and to be woken by a processor that is not the own one,
 * can take longer than the request itself. So after a row of short requests that came quickly, the thread looks for
 * the next one for a while before it sleeps.
 *
 * It must not take the processor from others. So it yields after each look. If another thread ran in its place for
 * long, somebody else wants this processor, and the thread sleeps instead for some time.
 *
 * Owner: whoever waits; one thread at a time uses a struct fs_eager. All zero is a valid start. Nothing fails. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define FS_EAGER_ROW     8         /* quick requests in a row before the thread stays awake */
#define FS_EAGER_NS      50000     /* and for so long; a request within twice that time is quick */
#define FS_EAGER_LONG    128       /* after a row shorter than this that ended in vain: quick requests more */
#define FS_EAGER_AWAY_NS 1000000   /* the processor was somebody else's for so long: it is wanted */
#define FS_EAGER_CALM_NS 100000000 /* then the thread sleeps as usual for so long */

struct fs_eager {
	int row; /* quick requests so far; negative: as many are missing before a row begins */
	int64_t asleep_until_ns;
};

/* Waits awake, if that is worth it, until the descriptor is readable. When it returns, the caller reads, and may sleep
 * there. now_ns: ptc_sys_now_ns(). */
void fs_eager_wait(struct fs_eager *e, int fd, int64_t now_ns);
/* A request came after the thread had waited for so long. brief: it is answered at once. */
void fs_eager_came(struct fs_eager *e, int64_t waited_ns, bool brief);

/* The decisions, for fs_eager_wait and its test. */
bool fs_eager_begins(const struct fs_eager *e, int64_t now_ns);
/* There was no request at looked_ns, and it is now_ns once the thread runs again: whether it looks once more. */
bool fs_eager_again(struct fs_eager *e, int64_t began_ns, int64_t looked_ns, int64_t now_ns);
