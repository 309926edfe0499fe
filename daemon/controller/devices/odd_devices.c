/* SPDX-License-Identifier: Apache-2.0 */
/* Takes a job's ranks off devices where replicas were wrong (`on_difference`, docs/decisions/0068-odd-replicas.md).
 *
 * Happy path: a capture has found odd ranks, and its switch is aborted. The devices of these ranks are written down as
 * left by the job. Then it is planned whether the job can go on without them. If so, all ranks are ended, and the job
 * is started again from its snapshot, in which all replicas were equal.
 *
 * Failure modes: the job cannot go on without these devices, or does not shrink (`on_failure`): an event says so, the
 * devices are its own again, and ranks of this incarnation are not looked at any more. The controller dies after the
 * devices were written down: its successor finds ranks on such devices, and goes on from there. etcd does not answer:
 * it is written later. Loop thread. */
#include "daemon/controller/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"
#include "daemon/agent/geometry/replica_votes.h"

#include <stdio.h>
#include <string.h>

#define RETRY_NS INT64_C(1000000000)
#define SEEN_NS  INT64_C(10000000000) /* within that the mirror shows what was written */

struct ptc_odd_devices {
	uint64_t incarnation; /* whose ranks are odd */
	enum { ODD_FOUND, ODD_WRITING, ODD_WRITTEN, ODD_PLANNING, ODD_LEAVES, ODD_STAYS } state;
	int64_t retry_ns, written_ns;
	char why[400];
	size_t n;
	struct ptc_slow_device v[]; /* freed with it */
};

static struct ptc_odd_devices *add(struct ptc_controller *ctl, size_t n, const char *why)
{
	struct ptc_odd_devices *o = ptc_calloc(1, sizeof *o + n * sizeof *o->v);

	ptc_require(o);
	o->incarnation = ctl->record.incarnation;
	snprintf(o->why, sizeof o->why, "%s", why);
	ptc_free(ctl->devices.odd);
	ctl->devices.odd = o;
	return o;
}

void ptc_odd_devices_found(struct ptc_controller *ctl, const struct ptc_odd_rank *ranks, size_t n, const char *why)
{
	const struct ptc_generation_doc *g = ptc_controller_current(ctl);
	struct ptc_odd_devices *o = ctl->devices.odd;
	int64_t now = ptc_sys_realtime_ms();

	if (o && o->incarnation == ctl->record.incarnation)
		return;
	ptc_event(ctl->all->cluster, ctl->uuid, "rank_differs", "%s", why);
	o = add(ctl, n, why);
	for (size_t i = 0; i < n && ranks[i].rank < g->world && o->n < PTC_SLOW_DEVICES_MAX; i++) {
		struct ptc_slow_device *s = &o->v[o->n++];

		*s = (struct ptc_slow_device){ .device = g->rank_device[ranks[i].rank],
					       .since_ms = now,
					       .until_ms = now + PTC_SLOW_FOR_GOOD_MS,
					       .differs = true };
		snprintf(s->node, sizeof s->node, "%s", g->nodes[g->rank_node[ranks[i].rank]]);
	}
}

/* ---- in etcd ---- */

static void was_left(struct ptc_controller *ctl, bool ok)
{
	struct ptc_odd_devices *o = ctl->devices.odd;

	if (ctl->gone || !o || o->state != ODD_WRITING)
		return;
	o->state = ok ? ODD_WRITTEN : ODD_FOUND;
	o->retry_ns = ptc_sys_now_ns() + RETRY_NS;
	o->written_ns = ptc_sys_now_ns();
}

static void write_down(struct ptc_controller *ctl, const struct ptc_odd_devices *o, bool left)
{
	struct ptc_slow_device *v = ptc_calloc(o->n, sizeof *v);

	ptc_require(v);
	memcpy(v, o->v, o->n * sizeof *v);
	ptc_devices_left_write(ctl, v, o->n, left, left ? was_left : NULL);
}

/* Of the record's ranks on devices that were written down before, by this controller or another: how many. */
static size_t written_down(struct ptc_controller *ctl, struct ptc_slow_device *v, size_t room)
{
	const struct ptc_job_view *j = ptc_cluster_find_uuid(ctl->all->cluster, ctl->uuid);
	size_t n = 0;

	for (size_t i = 0; j && i < j->slow.n && n < room; i++) {
		const struct ptc_slow_device *s = &j->slow.v[i];

		if (s->differs && ptc_generation_doc_gives(ptc_controller_current(ctl), s->node, s->device))
			v[n++] = *s;
	}
	return n;
}

/* ---- ranks leave ---- */

static void stays(struct ptc_controller *ctl, struct ptc_odd_devices *o, const char *why)
{
	bool wrote = o->state == ODD_PLANNING;

	o->state = ODD_STAYS;
	ptc_event(ctl->all->cluster, ctl->uuid, "rank_differs", "the job stays on its devices: %s", why);
	if (wrote)
		write_down(ctl, o, false);
}

static void planned(struct ptc_controller *ctl, struct ptc_recovery_plan *p)
{
	struct ptc_odd_devices *o = ctl->devices.odd;

	ptc_recovery_keep(ctl, p);
	if (!o || o->state != ODD_PLANNING)
		return;
	o->retry_ns = ptc_sys_now_ns() + RETRY_NS;
	if (o->incarnation != ctl->record.incarnation || !ptc_controller_idle(ctl)) {
		o->state = ODD_WRITTEN;
		return;
	}
	if (p->status)
		stays(ctl, o, p->err.text);
	else
		o->state = ODD_LEAVES;
}

static void go_on(struct ptc_controller *ctl, struct ptc_odd_devices *o)
{
	struct ptc_slow_device seen;

	if (o->state == ODD_FOUND && ctl->recovery.elastic.on_failure != PTC_JOB_SHRINK) {
		stays(ctl, o, "its `on_failure` is not shrink");
	} else if (o->state == ODD_FOUND) {
		o->state = ODD_WRITING;
		write_down(ctl, o, true);
	} else if (o->state == ODD_WRITTEN && written_down(ctl, &seen, 1)) { /* so plans know of it */
		o->state = ODD_PLANNING;
		ptc_recovery_plan(ctl, PTC_RECOVERY_ANY, planned);
	} else if (o->state == ODD_WRITTEN && ptc_sys_now_ns() - o->written_ns > SEEN_NS) {
		stays(ctl, o, "somebody has given them back to it");
	}
}

bool ptc_odd_devices_hold(const struct ptc_controller *ctl)
{
	const struct ptc_odd_devices *o = ctl->devices.odd;

	return o && o->incarnation == ctl->record.incarnation && o->state != ODD_STAYS;
}

bool ptc_odd_devices_tick(struct ptc_controller *ctl, char *why, size_t size)
{
	struct ptc_odd_devices *o = ctl->devices.odd;
	struct ptc_slow_device one;
	size_t n;

	if (o && o->incarnation != ctl->record.incarnation) {
		ptc_free(o);
		o = ctl->devices.odd = NULL;
	}
	if (!o && written_down(ctl, &one, 1)) { /* by a controller that has gone */
		n = ptc_cluster_find_uuid(ctl->all->cluster, ctl->uuid)->slow.n;
		o = add(ctl, n, "replicas were wrong on devices that ranks of the job still have");
		o->n = written_down(ctl, o->v, n);
		o->state = ODD_WRITTEN;
		o->written_ns = ptc_sys_now_ns();
	}
	why[0] = '\0';
	if (!o || o->state == ODD_STAYS || !ctl->recovery.has_elastic) /* which others read */
		return false;
	if (!ptc_controller_idle(ctl) || ctl->recovery.planning || ptc_sys_now_ns() < o->retry_ns)
		return true;
	o->retry_ns = ptc_sys_now_ns() + RETRY_NS / 10;
	if (o->state == ODD_LEAVES)
		snprintf(why, size, "%s; the job leaves these devices, and is started again from its last snapshot",
			 o->why);
	else
		go_on(ctl, o);
	return true;
}
