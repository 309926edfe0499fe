/* SPDX-License-Identifier: Apache-2.0 */
/* A cache of values that are expensive to make. Each has a text as its key. All callers share a value by reference, and
 * it stays in the cache for a while after its last user released it.
 *
 * The value embeds a struct ptc_cached as its first member. Its maker allocates it, and the cache's `drop` frees it. A
 * value in use is never dropped. Of the unused values, the cache keeps the `unused_max` most recently used.
 *
 * Threads: any; the cache calls `drop` without its lock. There are no failure modes: nothing is allocated here. */
#pragma once

#include <pthread.h>

#define PTC_CACHE_KEY 120

struct ptc_cached { /* private */
	struct ptc_cached *next;
	struct ptc_cache *cache;
	unsigned refs;
	char key[PTC_CACHE_KEY];
};
struct ptc_cache { /* private */
	pthread_mutex_t lock;
	struct ptc_cached *list; /* most recently used first */
	unsigned unused_max;
	void (*drop)(struct ptc_cached *value);
};

void ptc_cache_init(struct ptc_cache *c, unsigned unused_max, void (*drop)(struct ptc_cached *value));
/* Drops all values; none is in use any more. A cache of all zeros, never initialized, is fine. */
void ptc_cache_done(struct ptc_cache *c);
/* Returns a reference; NULL: the cache has no such value. */
struct ptc_cached *ptc_cache_find(struct ptc_cache *c, const char *key);
/* Adds `fresh`, which becomes the cache's, and returns a reference to it. If somebody else has added a value with this
 * key meanwhile, the cache drops `fresh` and returns a reference to that value. */
struct ptc_cached *ptc_cache_add(struct ptc_cache *c, const char *key, struct ptc_cached *fresh);
void ptc_cached_ref(struct ptc_cached *value);
void ptc_cached_unref(struct ptc_cached *value); /* NULL ok */
