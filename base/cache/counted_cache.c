/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: counted_cache.h. The list is short: the values that are in use, and a few more. */
#include "base/cache/counted_cache.h"

#include "base/check.h"

#include <stdio.h>
#include <string.h>

void ptc_cache_init(struct ptc_cache *c, unsigned unused_max, void (*drop)(struct ptc_cached *value))
{
	*c = (struct ptc_cache){ .unused_max = unused_max, .drop = drop };
	ptc_require(!pthread_mutex_init(&c->lock, NULL));
}

static void drop_list(struct ptc_cache *c, struct ptc_cached *list)
{
	for (struct ptc_cached *v = list, *next; v; v = next) {
		next = v->next;
		c->drop(v);
	}
}

void ptc_cache_done(struct ptc_cache *c)
{
	if (!c->drop)
		return;
	drop_list(c, c->list);
	pthread_mutex_destroy(&c->lock);
	*c = (struct ptc_cache){ .unused_max = 0 };
}

/* Takes a reference, and moves it to the front. */
static struct ptc_cached *find_locked(struct ptc_cache *c, const char *key)
{
	struct ptc_cached **at = &c->list, *v;

	while (*at && strcmp((*at)->key, key) != 0)
		at = &(*at)->next;
	v = *at;
	if (v) {
		*at = v->next;
		v->next = c->list;
		c->list = v;
		v->refs++;
	}
	return v;
}

/* Takes those out of the list that nobody uses and that are too many. */
static struct ptc_cached *trim_locked(struct ptc_cache *c)
{
	struct ptc_cached **at = &c->list, *out = NULL;
	unsigned unused = 0;

	while (*at) {
		struct ptc_cached *v = *at;

		if (v->refs || unused++ < c->unused_max) {
			at = &v->next;
			continue;
		}
		*at = v->next;
		v->next = out;
		out = v;
	}
	return out;
}

struct ptc_cached *ptc_cache_find(struct ptc_cache *c, const char *key)
{
	struct ptc_cached *v;

	pthread_mutex_lock(&c->lock);
	v = find_locked(c, key);
	pthread_mutex_unlock(&c->lock);
	return v;
}

struct ptc_cached *ptc_cache_add(struct ptc_cache *c, const char *key, struct ptc_cached *fresh)
{
	struct ptc_cached *v;

	ptc_require(strlen(key) < sizeof fresh->key);
	pthread_mutex_lock(&c->lock);
	v = find_locked(c, key);
	if (!v) {
		snprintf(fresh->key, sizeof fresh->key, "%s", key);
		fresh->cache = c;
		fresh->refs = 1;
		fresh->next = c->list;
		c->list = v = fresh;
	}
	pthread_mutex_unlock(&c->lock);
	if (v != fresh)
		c->drop(fresh);
	return v;
}

void ptc_cached_ref(struct ptc_cached *value)
{
	pthread_mutex_lock(&value->cache->lock);
	value->refs++;
	pthread_mutex_unlock(&value->cache->lock);
}

void ptc_cached_unref(struct ptc_cached *value)
{
	struct ptc_cache *c = value ? value->cache : NULL;
	struct ptc_cached *out;

	if (!value)
		return;
	pthread_mutex_lock(&c->lock);
	value->refs--;
	out = trim_locked(c);
	pthread_mutex_unlock(&c->lock);
	drop_list(c, out);
}
