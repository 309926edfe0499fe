/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of rpc/door. */
#pragma once

#include "rpc/door/door.h"

#include <poll.h>
#include <stddef.h>

#define PTC_DOOR_WAITING_MAX 256 /* of a kind of caller, in one door */

struct ptc_door_waiter {
	struct ptc_door_caller caller;
	int listener;
	bool ready; /* he has sent all that the door waits for (ptc_door_hello) */
	int64_t since_ns;
};

/* Callers of one kind that wait: strangers, or those from members' hosts. The thread's. */
struct ptc_door_pool {
	struct ptc_door_waiter of[PTC_DOOR_WAITING_MAX];
	struct pollfd *polled; /* polled[i] is the descriptor of of[i] */
	size_t count, max, ready;
	unsigned dice;
	/* room: how many callers may enter now, in thousandths, as of filled_ns; rate: callers a second */
	int64_t rate, room, filled_ns;
};

/* hello.c: looks at what fd has to say. 0: all of it is there. Above 0: so many bytes must be there before the next
 * look is worth while. -1: the connection has ended, or the bytes are no ClientHello. */
int ptc_door_hello(int fd, bool tls);
#define PTC_DOOR_HELLO_LEAST 5 /* bytes, to see how long a ClientHello is */

/* waiting.c */
void ptc_door_pool_init(struct ptc_door_pool *p, struct pollfd *polled, size_t max, int rate);
/* Takes fd. true: another one had to go. */
bool ptc_door_pool_add(struct ptc_door_pool *p, const struct ptc_door_waiter *w, int fd);
/* Closes one waiting connection; the pool must have one. */
void ptc_door_pool_drop(struct ptc_door_pool *p);
void ptc_door_pool_remove(struct ptc_door_pool *p, size_t i); /* the last one takes its place; fd stays open */
/* Whose turn it is, of the ready ones. false: nobody's, yet. */
bool ptc_door_pool_next(struct ptc_door_pool *p, int64_t now_ns, size_t *ret_i);
void ptc_door_pool_free(struct ptc_door_pool *p);
