/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over a few ranks, by TCP. The members of a group connect to its first one, which adds up in the order of
 * members, so the same group always gives the same bits. Happy path: group_join, group_sum.., group_leave. Failure
 * modes: a member that is gone: -1, and `errno`; the program exits then, and ptcd starts the ranks anew. Threads: one.
 */
#ifndef C_TRAINER_NET_H
#define C_TRAINER_NET_H

#include <ptc/ptc.h>

#include <stddef.h>

#define GROUP_MAX 64

struct group {
	unsigned index, size;
	int fd[GROUP_MAX]; /* of the first: to each other member; of the others: fd[0], to the first */
	double waited_s;   /* in group_sum, since group_join: for others, and while bytes moved */
};

/* `name`: the same for all members and for nobody else in this generation; the first one's address is met under it. */
int group_join(struct group *g, ptc_client *c, const char *name, unsigned index, unsigned size);
/* Each of n numbers becomes its sum over the group. Adds to waited_s. */
int group_sum(struct group *g, double *v, size_t n);
void group_leave(struct group *g);
/* Seconds since any moment. */
double seconds_now(void);

#endif
