/* SPDX-License-Identifier: Apache-2.0 */
/* Callers who wait to be let in at a door: whose turn is next, and who is dropped if there is no room for another. The
 * door's thread. */
#include "rpc/door/internal.h"

#include "base/check.h"
#include "base/sys/sys.h"

#include <string.h>
#include <unistd.h>

#define DRAWN 8                   /* at random, of a full pool */
#define ONE   INT64_C(1000000000) /* one caller's worth of room */
#define BURST (32 * ONE)          /* so many enter at once after a quiet time */

void ptc_door_pool_init(struct ptc_door_pool *p, struct pollfd *polled, size_t max, int rate)
{
	p->polled = polled;
	p->max = max;
	p->rate = rate;
	p->room = BURST;
	p->filled_ns = ptc_sys_now_ns();
	(void)ptc_sys_random(&p->dice, sizeof p->dice, NULL);
	for (size_t i = 0; i < max; i++)
		polled[i].fd = -1;
}

void ptc_door_pool_free(struct ptc_door_pool *p)
{
	for (size_t i = 0; i < p->count; i++)
		close(p->polled[i].fd);
	p->count = 0;
}

/* Below n. Seeded at start; the low bits are the poor ones. */
static size_t draw(struct ptc_door_pool *p, size_t n)
{
	p->dice = p->dice * 1664525u + 1013904223u;
	return (p->dice >> 12) % n;
}

static bool same_share(const struct ptc_door_pool *p, size_t i, size_t k)
{
	return memcmp(&p->of[i].caller.share, &p->of[k].caller.share, sizeof p->of[i].caller.share) == 0;
}

void ptc_door_pool_remove(struct ptc_door_pool *p, size_t i)
{
	p->ready -= p->of[i].ready;
	p->count--;
	p->of[i] = p->of[p->count];
	p->polled[i] = p->polled[p->count];
	p->polled[p->count].fd = -1;
}

/* Of some at random, one of the share that is there most often. */
void ptc_door_pool_drop(struct ptc_door_pool *p)
{
	size_t drawn[DRAWN], victim = 0;
	int most = 0;

	for (size_t i = 0; i < DRAWN; i++)
		drawn[i] = draw(p, p->count);
	for (size_t i = 0; i < DRAWN; i++) {
		int same = 0;

		for (size_t k = 0; k < DRAWN; k++)
			same += same_share(p, drawn[i], drawn[k]);
		if (same > most) {
			most = same;
			victim = drawn[i];
		}
	}
	close(p->polled[victim].fd);
	ptc_door_pool_remove(p, victim);
}

bool ptc_door_pool_add(struct ptc_door_pool *p, const struct ptc_door_waiter *w, int fd)
{
	bool full = p->count >= p->max;

	if (full)
		ptc_door_pool_drop(p);
	p->polled[p->count] = (struct pollfd){ .fd = fd, .events = w->ready ? POLLRDHUP : POLLIN };
	p->of[p->count++] = *w;
	p->ready += w->ready;
	return full;
}

/* A ready one at random: each share is as likely as another, and so is each caller of one share. */
static size_t pick(struct ptc_door_pool *p)
{
	double weight[PTC_DOOR_WAITING_MAX], all = 0, at;
	size_t last = 0;

	for (size_t i = 0; i < p->count; i++) {
		int same = 0;

		weight[i] = 0;
		for (size_t k = 0; p->of[i].ready && k < p->count; k++)
			same += p->of[k].ready && same_share(p, i, k);
		if (same)
			weight[i] = 1.0 / same;
		all += weight[i];
	}
	at = all * (double)draw(p, 1 << 20) / (1 << 20);
	for (size_t i = 0; i < p->count; i++) {
		if (!p->of[i].ready)
			continue;
		last = i;
		at -= weight[i];
		if (at < 0)
			break;
	}
	return last;
}

bool ptc_door_pool_next(struct ptc_door_pool *p, int64_t now_ns, size_t *ret_i)
{
	int64_t passed = PTC_MIN(now_ns - p->filled_ns, ONE);

	p->room = PTC_MIN(p->room + passed * p->rate, BURST);
	p->filled_ns = now_ns;
	if (!p->ready || p->room < ONE)
		return false;
	p->room -= ONE;
	*ret_i = pick(p);
	return true;
}
