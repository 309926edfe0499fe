/* SPDX-License-Identifier: Apache-2.0 */
/* A counted cache: values that are dear to make, by a key of text, shared by all who ask and kept for a while after the
 * last of them has let go.
 *
 * The value embeds a struct ptc_cached as its first member; its maker allocates it, the cache's `drop` frees it. A
 * value that is in use is never dropped. Of those that nobody uses, the `unused_max` that were asked for last are kept.
 * Any thread; `drop` is called without the lock. No failure modes: nothing is allocated here. */
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
	struct ptc_cached *list; /* asked for last first */
	unsigned unused_max;
	void (*drop)(struct ptc_cached *value);
};

void ptc_cache_init(struct ptc_cache *c, unsigned unused_max, void (*drop)(struct ptc_cached *value));
/* Drops all; nobody uses any. One that was not initialized (all zero) is fine. */
void ptc_cache_done(struct ptc_cache *c);
/* A reference; NULL: it is not there. */
struct ptc_cached *ptc_cache_find(struct ptc_cache *c, const char *key);
/* Takes `fresh` over and gives a reference to it; or to the value that somebody else has added meanwhile: then `fresh`
 * is dropped. */
struct ptc_cached *ptc_cache_add(struct ptc_cache *c, const char *key, struct ptc_cached *fresh);
void ptc_cached_ref(struct ptc_cached *value);
void ptc_cached_unref(struct ptc_cached *value); /* NULL ok */
