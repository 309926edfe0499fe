/* SPDX-License-Identifier: Apache-2.0 */
/* Decides how long a node that was lost again and again is quarantined: no job grows onto it, and a job is started
 * again there by itself only if it cannot go on otherwise.
 *
 * Each loss of a job's node costs a recovery, and its return another switch, where the job grows. So a node that comes
 * and goes would cost a job most of its time. When a node comes back after its second loss it is quarantined for
 * `first_ns`, and twice as long after each further loss, at most PTC_QUARANTINE_MAX_NS. Earlier losses are forgotten if
 * the node is lost again more than PTC_QUARANTINE_FORGET_NS after its last loss and the end of its quarantine.
 *
 * Each daemon counts what it has seen, and etcd has the most that any daemon has counted (quarantine_doc.h), for those
 * that have not seen it. A loss is named by the revision at which the node's key had been made: so it counts once, and
 * what is known of a later loss replaces what is known of an earlier one.
 *
 * One thread owns and calls this. Times are of one monotonic clock, in nanoseconds. Nothing here fails. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define PTC_QUARANTINE_MAX_NS    (3600 * INT64_C(1000000000))
#define PTC_QUARANTINE_FORGET_NS (3600 * INT64_C(1000000000))

struct ptc_quarantine {   /* all zeros: the node was never lost */
	uint32_t losses;  /* that are not forgotten */
	int64_t life;     /* create_revision of the node's key before the last of them */
	int64_t lost_ns;  /* when that was */
	int64_t until_ns; /* 0: it has not been quarantined */
	struct {          /* the mirror's: what etcd has of it */
		uint32_t losses;
		int64_t life, until_ns;
		int64_t revision; /* mod_revision of the key; 0: there is none */
		int64_t ahead_ns; /* since when etcd has less; 0: it has not */
		bool seen, writing;
	} kept;
};
/* The node counts as lost, and its key was made at `life`. A loss counts once, also if this is called again for it:
 * while etcd does not answer, a node that is down is not called lost, and afterwards it is again. */
void ptc_quarantine_lost(struct ptc_quarantine *q, int64_t life, int64_t now_ns);
/* It is back, and its key before was made at `life`: it is quarantined if that has counted as a loss. first_ns 0: no
 * node is. */
void ptc_quarantine_back(struct ptc_quarantine *q, int64_t life, int64_t first_ns, int64_t now_ns);
/* For how long it is still quarantined; 0: it is not. */
int64_t ptc_quarantine_left(const struct ptc_quarantine *q, int64_t now_ns);
/* etcd has that now: it counts if it says more. */
void ptc_quarantine_take(struct ptc_quarantine *q, const struct ptc_quarantine *now);
/* Whether etcd has less than this daemon knows. */
bool ptc_quarantine_ahead(const struct ptc_quarantine *q);
