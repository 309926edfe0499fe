/* SPDX-License-Identifier: Apache-2.0 */
/* libptc: puts and gets the keys by which ranks find each other (the rendezvous). Happy path: a question to ptcd and
 * its answer. Failure modes: nobody puts the key in time (TIMEOUT); the generation ends meanwhile (STALE); a key put
 * with two values (REFUSED). */
#include "client/lib/internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int check(ptc_client *c, const char *call, const char *key)
{
	int rc = ptc_client_enter(c);
	const char *wrong = key ? ptc_local_short_error(key) : "the key is NULL";

	if (rc)
		return rc;
	return wrong ? ptc_client_fail(c, PTC_R_INVALID, "%s: %s", call, wrong) : 0;
}

static int check_generation_locked(ptc_client *c, const char *call)
{
	int rc = ptc_client_fatal_locked(c);

	if (!rc && c->ended)
		rc = ptc_client_fail(c, PTC_R_STALE, "%s: the generation has ended; call ptc_next", call);
	else if (!rc && (c->phase < PHASE_BUILDING || c->phase > PHASE_RUNNING))
		rc = ptc_client_fail(c, PTC_R_INVALID, "%s: there is no generation; call ptc_next first", call);
	return rc;
}

static struct put *add_put_locked(ptc_client *c, const char *key, void *value, size_t len)
{
	struct put *p;

	if (c->nputs == c->puts_cap) {
		size_t cap = c->puts_cap ? c->puts_cap * 2 : 8;

		p = realloc(c->puts, cap * sizeof *p);
		if (!p)
			return NULL;
		c->puts = p;
		c->puts_cap = cap;
	}
	p = &c->puts[c->nputs++];
	*p = (struct put){ .value = value, .len = len, .id = ++c->last_id };
	snprintf(p->key, sizeof p->key, "%s", key);
	return p;
}

int ptc_rendezvous_put(ptc_client *c, const char *key, const void *value, size_t len)
{
	int rc = check(c, "ptc_rendezvous_put", key);
	struct put *p = NULL;
	void *copy;

	if (rc)
		return rc;
	if (len && !value)
		return ptc_client_fail(c, PTC_R_INVALID, "ptc_rendezvous_put \"%s\": value is NULL", key);
	if (len > PTC_LOCAL_RENDEZVOUS_MAX)
		return ptc_client_fail(c, PTC_R_LIMIT, "ptc_rendezvous_put \"%s\": %zu bytes, at most %d are allowed",
				       key, len, PTC_LOCAL_RENDEZVOUS_MAX);
	copy = malloc(len ? len : 1);
	if (!copy)
		return ptc_client_fail(c, PTC_R_MEMORY, "out of memory");
	if (len)
		memcpy(copy, value, len);
	pthread_mutex_lock(&c->lock);
	rc = check_generation_locked(c, "ptc_rendezvous_put");
	if (!rc && c->nputs == PTC_LOCAL_RENDEZVOUS_KEYS_MAX)
		rc = ptc_client_fail(c, PTC_R_LIMIT, "ptc_rendezvous_put \"%s\": more than %d keys", key,
				     PTC_LOCAL_RENDEZVOUS_KEYS_MAX);
	if (!rc)
		p = add_put_locked(c, key, copy, len);
	if (!rc && !p)
		rc = ptc_client_fail(c, PTC_R_MEMORY, "out of memory");
	if (rc)
		free(copy);
	if (!rc) {
		size_t at = c->nputs - 1; /* p may move; puts go only with the generation */

		ptc_client_wake_locked(c);
		while (!c->puts[at].answered && !c->ended && !c->fatal)
			pthread_cond_wait(&c->changed, &c->lock);
		if (!c->puts[at].answered)
			rc = check_generation_locked(c, "ptc_rendezvous_put");
		else if (c->puts[at].code)
			rc = ptc_client_fail(c, c->puts[at].code, "ptc_rendezvous_put \"%s\": %s", key, c->link_text);
	}
	pthread_mutex_unlock(&c->lock);
	return rc;
}

static struct timespec deadline(uint32_t timeout_ms)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	t.tv_sec += timeout_ms / 1000;
	t.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
	if (t.tv_nsec >= 1000000000) {
		t.tv_sec++;
		t.tv_nsec -= 1000000000;
	}
	return t;
}

static int wait_get_locked(ptc_client *c, const char *key, void *buffer, size_t capacity, size_t *ret_len,
			   uint32_t timeout_ms)
{
	struct timespec until = deadline(timeout_ms);
	int e = 0, rc;

	while (!c->get.answered && !c->ended && !c->fatal && e != ETIMEDOUT)
		e = pthread_cond_timedwait(&c->changed, &c->lock, &until);
	c->get.active = false;
	if (!c->get.answered) {
		rc = check_generation_locked(c, "ptc_rendezvous_get");
		return rc ? rc
			  : ptc_client_fail(c, PTC_R_TIMEOUT, "no rank has put \"%s\" within %u ms", key, timeout_ms);
	}
	if (c->get.code)
		return ptc_client_fail(c, c->get.code, "ptc_rendezvous_get \"%s\": %s", key, c->link_text);
	*ret_len = c->get.len;
	if (c->get.len > capacity)
		return ptc_client_fail(c, PTC_R_LIMIT, "ptc_rendezvous_get \"%s\": %zu bytes, the buffer has %zu", key,
				       c->get.len, capacity);
	if (c->get.len)
		memcpy(buffer, c->get.value, c->get.len);
	return 0;
}

int ptc_rendezvous_get(ptc_client *c, const char *key, void *buffer, size_t capacity, size_t *ret_len,
		       uint32_t timeout_ms)
{
	int rc = check(c, "ptc_rendezvous_get", key);

	if (rc)
		return rc;
	if (!ret_len || (capacity && !buffer))
		return ptc_client_fail(c, PTC_R_INVALID, "ptc_rendezvous_get \"%s\": ret_len or buffer is NULL", key);
	pthread_mutex_lock(&c->lock);
	rc = check_generation_locked(c, "ptc_rendezvous_get");
	if (!rc) {
		c->get.active = true;
		c->get.answered = false;
		c->get.id = ++c->last_id;
		c->get.timeout_ms = timeout_ms;
		snprintf(c->get.key, sizeof c->get.key, "%s", key);
		c->sent.get = false;
		ptc_client_wake_locked(c);
		rc = wait_get_locked(c, key, buffer, capacity, ret_len, timeout_ms);
	}
	pthread_mutex_unlock(&c->lock);
	return rc;
}
