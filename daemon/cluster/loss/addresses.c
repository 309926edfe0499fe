/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: a name is wanted, the thread looks it up, and looks again a minute later. Failure modes: no name server
 * answers: the thread hangs in the resolver, and nobody waits for it; what is known stays known. */
#include "daemon/cluster/loss/addresses.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/log.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"

#include <pthread.h>
#include <string.h>

#define S         INT64_C(1000000000)
#define AGAIN_NS  (60 * S)  /* after a name was looked up */
#define RETRY_NS  (5 * S)   /* after it could not be */
#define WANTED_NS (180 * S) /* names that nobody has wanted for so long are not looked up again */
#define SPARED_NS (60 * S)  /* ... and for so long: no other name takes its place */

struct entry {
	char address[PTC_MACHINE_NAME_BYTES];
	struct ptc_machine_at at;
	int64_t wanted_ns, due_ns;
};

struct ptc_addresses {
	pthread_mutex_t lock;
	pthread_cond_t wake;
	pthread_t thread;
	bool runs, looking, ends;
	struct entry **v; /* sorted by address */
	size_t n;
};

struct ptc_addresses *ptc_addresses_new(void)
{
	struct ptc_addresses *b = ptc_calloc(1, sizeof *b);

	if (!b)
		return NULL;
	pthread_mutex_init(&b->lock, NULL);
	ptc_cond_init(&b->wake);
	return b;
}

static void release(struct ptc_addresses *b)
{
	for (size_t i = 0; i < b->n; i++)
		ptc_free(b->v[i]);
	ptc_free(b->v);
	pthread_cond_destroy(&b->wake);
	pthread_mutex_destroy(&b->lock);
	ptc_free(b);
}

/* Where the name is, or belongs. */
static bool find_locked(const struct ptc_addresses *b, const char *address, size_t *ret_at)
{
	size_t low = 0, high = b->n;

	while (low < high) {
		size_t mid = low + (high - low) / 2;
		int c = strcmp(address, b->v[mid]->address);

		if (c == 0) {
			*ret_at = mid;
			return true;
		}
		if (c < 0)
			high = mid;
		else
			low = mid + 1;
	}
	*ret_at = low;
	return false;
}

/* ---- the thread ---- */

/* NULL: none is due before *ret_until_ns. */
static struct entry *due_locked(const struct ptc_addresses *b, int64_t now_ns, int64_t *ret_until_ns)
{
	struct entry *first = NULL;

	for (size_t i = 0; i < b->n; i++)
		if (now_ns - b->v[i]->wanted_ns < WANTED_NS && (!first || b->v[i]->due_ns < first->due_ns))
			first = b->v[i];
	*ret_until_ns = first ? first->due_ns : now_ns + WANTED_NS;
	return first && first->due_ns <= now_ns ? first : NULL;
}

static void keep_locked(struct ptc_addresses *b, const char *address, const struct ptc_machine_at *at)
{
	size_t i;

	if (!find_locked(b, address, &i)) /* another name has taken its place */
		return;
	if (at->n)
		b->v[i]->at = *at;
	else
		ptc_debug("node", "the name of %s is not known%s", address,
			  b->v[i]->at.n ? " now: its last addresses count" : "");
	b->v[i]->due_ns = ptc_sys_now_ns() + (at->n ? AGAIN_NS : RETRY_NS);
}

static void *look_up_all(void *arg)
{
	struct ptc_addresses *b = arg;
	char address[PTC_MACHINE_NAME_BYTES];
	struct ptc_machine_at at;
	int64_t until_ns;

	pthread_mutex_lock(&b->lock);
	while (!b->ends) {
		const struct entry *e = due_locked(b, ptc_sys_now_ns(), &until_ns);

		if (!e) {
			ptc_cond_wait_until(&b->wake, &b->lock, until_ns);
			continue;
		}
		memcpy(address, e->address, sizeof address);
		b->looking = true;
		pthread_mutex_unlock(&b->lock);
		ptc_machine_look_up(address, &at);
		pthread_mutex_lock(&b->lock);
		if (b->ends) { /* nobody has waited for us */
			pthread_mutex_unlock(&b->lock);
			release(b);
			return NULL;
		}
		b->looking = false;
		keep_locked(b, address, &at);
	}
	pthread_mutex_unlock(&b->lock);
	return NULL;
}

struct ptc_addresses *ptc_addresses_free(struct ptc_addresses *b)
{
	bool runs, looking;

	if (!b)
		return NULL;
	pthread_mutex_lock(&b->lock);
	b->ends = true;
	runs = b->runs;
	looking = b->looking;
	if (looking)
		pthread_detach(b->thread);
	pthread_cond_signal(&b->wake);
	pthread_mutex_unlock(&b->lock);
	if (looking)
		return NULL;
	if (runs)
		pthread_join(b->thread, NULL);
	release(b);
	return NULL;
}

/* ---- those who ask ---- */

/* The place of the name that nobody has wanted for the longest time. */
static bool make_room_locked(struct ptc_addresses *b, int64_t now_ns)
{
	size_t last = 0;

	for (size_t i = 1; i < b->n; i++)
		if (b->v[i]->wanted_ns < b->v[last]->wanted_ns)
			last = i;
	if (now_ns - b->v[last]->wanted_ns < SPARED_NS)
		return false;
	ptc_free(b->v[last]);
	memmove(b->v + last, b->v + last + 1, (--b->n - last) * sizeof *b->v);
	return true;
}

static struct entry *add_locked(struct ptc_addresses *b, const char *address, int64_t now_ns)
{
	struct entry *e;
	size_t at;

	if (b->n == PTC_ADDRESSES_MAX && !make_room_locked(b, now_ns))
		return NULL;
	if (!PTC_MORE(b->v, b->n))
		return NULL;
	e = ptc_calloc(1, sizeof *e);
	if (!e)
		return NULL;
	memcpy(e->address, address, strlen(address) + 1);
	(void)find_locked(b, address, &at);
	memmove(b->v + at + 1, b->v + at, (b->n++ - at) * sizeof *b->v);
	b->v[at] = e;
	return e;
}

/* A socket file is on this machine. */
static bool is_name(const char *address)
{
	return strncmp(address, "unix:", 5) != 0 && strchr(address, ':') && strlen(address) < PTC_MACHINE_NAME_BYTES;
}

void ptc_addresses_want(struct ptc_addresses *b, const char *address)
{
	int64_t now_ns = ptc_sys_now_ns();
	struct ptc_machine_at digits;
	struct entry *e;
	size_t at;

	if (!is_name(address) || ptc_machine_digits(address, &digits))
		return;
	pthread_mutex_lock(&b->lock);
	e = find_locked(b, address, &at) ? b->v[at] : add_locked(b, address, now_ns);
	if (e) {
		e->wanted_ns = now_ns;
		if (e->due_ns <= now_ns)
			pthread_cond_signal(&b->wake);
	}
	if (e && !b->runs) /* a later call tries again */
		b->runs = ptc_thread_start(&b->thread, "ptc-names", look_up_all, b, NULL) == 0;
	pthread_mutex_unlock(&b->lock);
}

bool ptc_addresses_know(struct ptc_addresses *b, const char *address, struct ptc_machine_at *ret_at)
{
	size_t at;

	if (ptc_machine_digits(address, ret_at))
		return true;
	pthread_mutex_lock(&b->lock);
	if (find_locked(b, address, &at))
		*ret_at = b->v[at]->at;
	pthread_mutex_unlock(&b->lock);
	return ret_at->n > 0;
}
