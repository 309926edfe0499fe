/* SPDX-License-Identifier: Apache-2.0 */
/* Decides whether nodes that are down are lost, so that a switch of state goes on without them.
 *
 * A node is lost if an operator says so, or if it has been down for `after_ns` while this daemon could see that. In
 * four cases time alone makes no node lost:
 * - etcd does not answer, or has answered again for less than after_ns. An outage of etcd says nothing about nodes.
 * - This daemon has paused (no tick for PTC_LOSS_PAUSE_NS), because its view may then be old.
 * - etcd has answered this daemon for less than PTC_LOSS_RETURN times after_ns since its start. All nodes may have lost
 *   power with it, and it cannot know since when the others are down.
 * - More than half of the nodes have ended within after_ns, and the last of these ended less than PTC_LOSS_RETURN times
 *   after_ns ago. They probably have a common cause, and come back.
 *
 * One thread owns and calls this. Times are of one monotonic clock, in nanoseconds, and never 0. Nothing here fails. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define PTC_LOSS_PAUSE_NS   INT64_C(2000000000)
#define PTC_LOSS_RETURN     3
#define PTC_LOSS_SETTLES_NS INT64_C(10000000000)
#define PTC_LOSS_STEPS      3 /* what so many steps take says nothing: one of them may take longer */

struct ptc_loss {
	int64_t after_ns; /* set by the owner; the rest begins as zeros */
	int64_t tick_ns;  /* the last tick; 0: none yet */
	int64_t since_ns; /* since when etcd answers without a break; 0: it does not answer */
	bool begun;       /* etcd has answered this daemon */
	int64_t hold_ns;  /* until then time alone makes no node lost */
	int64_t first_ns; /* when the first of the nodes ended that are counted together */
	uint32_t members; /* number of nodes that were up before that */
	uint32_t ended;
	int64_t most_ns; /* as hold_ns, but only because most nodes have ended */
};
/* Call this once a tick, before ptc_loss_is. heard: etcd answers now. */
void ptc_loss_tick(struct ptc_loss *l, bool heard, int64_t now_ns);
/* Notes that a node went down. up: the number of nodes that are still up. */
void ptc_loss_node_ended(struct ptc_loss *l, uint32_t up, int64_t now_ns);
/* Whether a node is lost that is down since down_ns. declared: an operator declared it lost. */
bool ptc_loss_is(const struct ptc_loss *l, int64_t down_ns, bool declared, int64_t now_ns);
/* Whether a node that has ended may be passed by before it is lost, if its machine answers nothing. Not if most nodes
 * have ended; nor until etcd has answered without a break for after_ns, or for PTC_LOSS_SETTLES_NS if that is less, in
 * which every node that lives gets its lease back. */
bool ptc_loss_early(const struct ptc_loss *l, int64_t now_ns);
/* The same, were `ending` of the nodes that are up to end now: most may have gone together, and their leases end one
 * after the other. up: the number of nodes that are up. */
bool ptc_loss_early_if(const struct ptc_loss *l, uint32_t up, uint32_t ending, int64_t now_ns);
/* What looks have found at the address of a node that is down: its machine is there, and its ptcd does not listen. All
 * zero: nobody has looked. A ptcd that a crash has ended listens again before PTC_REFUSED_NS are over, for systemd
 * starts it after half a second (deploy/systemd/ptcd.service.in). */
#define PTC_REFUSALS         4 /* looks, at least */
#define PTC_REFUSED_NS       INT64_C(1500000000)
#define PTC_REFUSALS_LATE_NS INT64_C(5000000000)
struct ptc_refusals {
	int64_t first_ns, last_ns; /* last_ns: of the last look, whatever it found */
	uint32_t n;                /* looks in a row that were refused */
};
/* One more look, which ended at now_ns. refused: the machine has refused the connection; not if it took it, if it said
 * nothing, or if nothing can be told. True: it has refused each look for PTC_REFUSED_NS. If the look before was
 * PTC_REFUSALS_LATE_NS ago, the count begins anew. */
bool ptc_refusals_saw(struct ptc_refusals *r, bool refused, int64_t now_ns);
/* How long the steps of a job's other ranks have to stand until it goes on without nodes that are down. declared: an
 * operator says that they are lost; unreachable: one is passed by because its machine answers nothing. step_s: how long
 * a step takes; 0: no step has been seen, so that one which takes long does not differ from one that does not end. */
int64_t ptc_loss_stand_ns(int64_t after_ns, bool declared, bool unreachable, double step_s);
