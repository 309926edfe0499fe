/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out whether another etcd has taken the place of this node's. The old etcd itself cannot tell: a node that
 * starts again with it finds all keys as they were. Other nodes know, so they are asked for their coordination epoch.
 *
 * Happy path: the file `peers` in the state directory has the names and addresses of the nodes that this one has seen.
 * Before this node takes a lease, some of them are asked, for 2 s at most. While it runs, a thread asks those that
 * etcd lists as down, a few every 5 s: a node that uses this etcd need not be asked. A node that is asked by one of a
 * lower epoch says so in its log, and in the event logs of jobs.
 *
 * Failure modes: a node that does not answer is asked again. Once this node has been told of a later epoch, it keeps
 * that durably (cluster/identity): PTC_ESTATE now, and at each start with this etcd.
 *
 * Thread: ask blocks, and is called before the daemon begins; start and stop are main's. `found` is called once, on the
 * loop. */
#pragma once

#include "daemon/api/caller/caller.h"

struct ptc_replaced;

int ptc_replaced_ask(struct ptc_daemon *d, struct ptc_error *err);
int ptc_replaced_start(struct ptc_daemon *d, void (*found)(void *arg, const char *text), void *arg,
		       struct ptc_replaced **ret_replaced, struct ptc_error *err);
struct ptc_replaced *ptc_replaced_stop(struct ptc_replaced *r); /* after the loop's stop. NULL ok */
