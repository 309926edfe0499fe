/* SPDX-License-Identifier: Apache-2.0 */
/* Moves a job off devices on which its ranks are slow (`on_straggler: drain`).
 *
 * Happy path: ranks are slow, and the rule (daemon/core/slow/slow_leave.h) says that they leave their devices. etcd
 * gets a note that the job has left these devices. From then on no plan of the job gives them to its ranks. Then a
 * switch of the training ranks is planned, as after the loss of a node: to other devices, or to fewer. When the time
 * for which a device is left is over, the device is offered to the job again, as one that joins.
 *
 * Failure modes: no configuration fits (min_gpus), or a switch aborts, and so do TRIES_MAX more: the devices are the
 * job's again, an event says why, and nothing is tried for as long as they would have been left. The controller dies:
 * its successor finds ranks on devices that are written down as left, and plans the same. etcd does not answer: it is
 * written later. Loop thread. */
#include "daemon/controller/recovery/straggler_drain.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"
#include "daemon/controller/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MS        INT64_C(1000000)
#define SEEN_NS   (500 * MS) /* within that the mirror shows what was written */
#define RETRY_NS  (5000 * MS)
#define TRIES_MAX 4

static int64_t backoff_ms(const struct ptc_controller *ctl)
{
	uint64_t ms = ctl->recovery.elastic.straggler_backoff_ms;

	return ms ? (int64_t)ms : PTC_SLOW_BACKOFF_MS;
}

static uint32_t most_drains(const struct ptc_controller *ctl)
{
	uint32_t n = ctl->recovery.elastic.straggler_drains;

	return n ? n : PTC_SLOW_DRAINS;
}

static const struct ptc_slow_devices *left_of(const struct ptc_controller *ctl)
{
	static const struct ptc_slow_devices none;
	const struct ptc_job_view *j = ptc_cluster_find_uuid(ctl->all->cluster, ctl->uuid);

	return j ? &j->slow : &none;
}

/* ---- in etcd ------------------------------------------------------------------------------- */

static void was_written(struct ptc_controller *ctl, bool ok)
{
	(void)ok; /* the keys tell */
	ctl->recovery.writes_slow = false;
	if (ctl->recovery.drain)
		ctl->recovery.drain->seen_ns = ptc_sys_now_ns() + SEEN_NS;
}

/* Takes v. */
static void write_down(struct ptc_controller *ctl, struct ptc_slow_device *v, size_t n, bool left)
{
	if (!n) {
		ptc_free(v);
		return;
	}
	ctl->recovery.writes_slow = true;
	ptc_devices_left_write(ctl, v, n, left, was_written);
}

/* Removes those that `which` names. Their names go into text, if that is not NULL. */
static size_t give_back(struct ptc_controller *ctl,
			bool (*which)(const struct ptc_controller *ctl, const struct ptc_slow_device *s),
			struct ptc_buf *text)
{
	const struct ptc_slow_devices *left = left_of(ctl);
	struct ptc_slow_device *v = left->n ? ptc_calloc(left->n, sizeof *v) : NULL;
	size_t n = 0;

	for (size_t i = 0; v && i < left->n; i++) {
		if (!which(ctl, &left->v[i]))
			continue;
		if (text)
			ptc_buf_printf(text, "%s%s:%" PRIu32, n ? ", " : "", left->v[i].node, left->v[i].device);
		v[n++] = left->v[i];
	}
	write_down(ctl, v, n, false);
	return n;
}

/* ---- the ranks on devices that are written down as left ----------------------------------------- */

static bool has_rank(const struct ptc_controller *ctl, const struct ptc_slow_device *s)
{
	return !s->differs && ptc_generation_doc_gives(ptc_controller_current(ctl), s->node, s->device);
}

static bool over(const struct ptc_controller *ctl, const struct ptc_slow_device *s)
{
	(void)ctl;
	return !s->differs && s->until_ms <= ptc_sys_realtime_ms();
}

/* Names devices that ranks have, and that are written down. "": there are none. */
static void name_left(const struct ptc_controller *ctl, char *text, size_t size)
{
	const struct ptc_slow_devices *left = left_of(ctl);
	size_t len = 0;

	text[0] = '\0';
	for (size_t i = 0; i < left->n && len + PTC_NAME_MAX + 16 < size; i++)
		if (!over(ctl, &left->v[i]) && has_rank(ctl, &left->v[i]))
			len += (size_t)snprintf(text + len, size - len, "%s%s:%" PRIu32, len ? ", " : "",
						left->v[i].node, left->v[i].device);
}

static void try_later(struct ptc_straggler_drain *d)
{
	d->again_ns = ptc_sys_now_ns() + (RETRY_NS << PTC_MIN(d->tries, (uint32_t)TRIES_MAX));
	d->tries++;
}

static void stays(struct ptc_controller *ctl, struct ptc_straggler_drain *d, const char *on, const char *why)
{
	ptc_event(ctl->all->cluster, ctl->uuid, "drained", "the job stays on %s, where its ranks are slow: %s", on,
		  why);
	d->tries = 0;
	d->again_ns = ptc_sys_now_ns() + backoff_ms(ctl) * MS;
	(void)give_back(ctl, has_rank, NULL);
}

static void planned(struct ptc_controller *ctl, struct ptc_recovery_plan *p)
{
	struct ptc_straggler_drain *d = ctl->recovery.drain;
	char on[sizeof d->left], to[200];

	ptc_recovery_keep(ctl, p);
	name_left(ctl, on, sizeof on);
	if (!d || !on[0] || !ptc_growth_rests(ctl) || ctl->record.run != PTC_RUN_LIVE)
		return; /* it is looked at again */
	if (ptc_growth_passes(p->status) && d->tries < TRIES_MAX) {
		try_later(d);
		return;
	}
	if (p->status || p->planned.stays) {
		stays(ctl, d, on, p->status ? p->err.text : p->planned.plan->chosen.why);
		return;
	}
	snprintf(to, sizeof to, "%s", p->planned.to.config);
	if (!ptc_growth_submit(ctl, p, &d->switch_id)) {
		d->switch_id = 0;
		try_later(d);
		return;
	}
	snprintf(d->left, sizeof d->left, "%s", on);
	ptc_event(
		ctl->all->cluster, ctl->uuid, "drain",
		"ranks are slow on %s: the job leaves it, from %s to %s, and does not get it again for %.0f s, unless "
		"`ptcctl device bad NODE:INDEX --undo` gives it back",
		on, ctl->view.from.config, to, (double)backoff_ms(ctl) / 1e3);
}

/* The switch of ours has ended: the ranks say how. */
static void ended(struct ptc_controller *ctl, struct ptc_straggler_drain *d)
{
	bool left = ctl->record.incarnation == d->switch_id; /* a recovery meanwhile is another's */

	d->switch_id = 0;
	if (left) {
		ptc_event(ctl->all->cluster, ctl->uuid, "drained", "the job has left %s, where its ranks were slow",
			  d->left);
		d->tries = 0;
	} else if (d->tries >= TRIES_MAX) {
		stays(ctl, d, d->left, "the switch has failed too often");
	} else {
		try_later(d);
	}
}

/* ---- ranks are slow --------------------------------------------------------------------------- */

/* Once for the ranks of an incarnation, and the reason. */
static void tell_stays(struct ptc_controller *ctl, struct ptc_straggler_drain *d, enum ptc_slow_verdict why)
{
	if (d->stays != ctl->record.incarnation)
		d->whys = 0;
	d->stays = ctl->record.incarnation;
	if (d->whys & (1u << why))
		return;
	d->whys |= 1u << why;
	if (why == PTC_SLOW_STAY_MANY)
		ptc_event(
			ctl->all->cluster, ctl->uuid, "drained",
			"the job stays on all of its devices: half of its ranks or more are slow, so that is no matter "
			"of some devices");
	else
		ptc_event(ctl->all->cluster, ctl->uuid, "drained",
			  "the job stays on all of its devices, though ranks are slow: it has left slow devices %u "
			  "times within %.0f s, and may do so no more often (`straggler_drains`)",
			  most_drains(ctl), (double)backoff_ms(ctl) / 1e3);
}

static void leave(struct ptc_controller *ctl, const bool *leaves, uint32_t n)
{
	const struct ptc_generation_doc *g = ptc_controller_current(ctl);
	struct ptc_slow_device *v = ptc_calloc(n, sizeof *v);
	int64_t now = ptc_sys_realtime_ms();
	size_t k = 0;

	for (uint32_t r = 0; v && r < n && r < g->world && k < PTC_SLOW_DEVICES_MAX; r++) {
		if (!leaves[r])
			continue;
		v[k] = (struct ptc_slow_device){ .device = g->rank_device[r],
						 .since_ms = now,
						 .until_ms = now + backoff_ms(ctl) };
		snprintf(v[k++].node, sizeof v->node, "%s", g->nodes[g->rank_node[r]]);
	}
	write_down(ctl, v, k, true);
}

/* True: it is being written which ones leave. */
static bool decide(struct ptc_controller *ctl, struct ptc_straggler_drain *d, const struct ptc_slow_rank *ranks,
		   uint32_t n)
{
	const struct ptc_slow_devices *left = left_of(ctl);
	ptc_auto_free int64_t *left_ms = NULL;
	ptc_auto_free bool *leaves = NULL;
	enum ptc_slow_verdict v;
	bool any = false;
	size_t k = 0;

	for (uint32_t r = 0; r < n; r++)
		any |= ranks[r].slow;
	if (!any)
		return false;
	left_ms = ptc_calloc(left->n + 1, sizeof *left_ms);
	leaves = ptc_calloc(n, sizeof *leaves);
	if (!left_ms || !leaves)
		return false; /* at the next tick */
	for (size_t i = 0; i < left->n; i++)
		if (!left->v[i].differs && !over(ctl, &left->v[i]))
			left_ms[k++] = left->v[i].since_ms;
	v = ptc_slow_leave(ranks, n, left_ms, k, most_drains(ctl), leaves);
	if (v == PTC_SLOW_LEAVE)
		leave(ctl, leaves, n);
	else if (v != PTC_SLOW_STAY)
		tell_stays(ctl, d, v);
	return v == PTC_SLOW_LEAVE;
}

bool ptc_straggler_drain_tick(struct ptc_controller *ctl, struct ptc_straggler_drain *d,
			      const struct ptc_slow_rank *ranks, uint32_t n)
{
	struct ptc_buf again = PTC_BUF_INIT;
	char on[sizeof d->left];

	if (ctl->recovery.writes_slow)
		return true;
	if (!ptc_growth_rests(ctl))
		return false;
	if (d->switch_id)
		ended(ctl, d);
	if (ctl->recovery.writes_slow || ptc_sys_now_ns() < d->seen_ns)
		return ctl->recovery.writes_slow;
	if (give_back(ctl, over, &again)) {
		if (!ptc_buf_failed(&again))
			ptc_event(ctl->all->cluster, ctl->uuid, "straggler_over",
				  "the job may have %s again, which it has left as slow: its time is over", again.data);
		ptc_buf_done(&again);
		return true;
	}
	if (ptc_sys_now_ns() < d->again_ns)
		return false;
	name_left(ctl, on, sizeof on);
	if (!on[0])
		return decide(ctl, d, ranks, n);
	ptc_recovery_plan(ctl, PTC_RECOVERY_LEAVE, planned);
	return true;
}

static bool could_help(const struct ptc_controller *ctl, const struct ptc_slow_device *s)
{
	const struct ptc_node *n;
	uint32_t at;

	if (s->differs || over(ctl, s) || !ptc_cluster_find_node(ctl->all->cluster, s->node, &at))
		return false;
	n = ptc_cluster_node(ctl->all->cluster, at);
	return n->up && !n->drained && s->device < n->doc.devices && ptc_node_device_well(n, s->device, NULL);
}

bool ptc_straggler_drain_yields(struct ptc_controller *ctl)
{
	struct ptc_buf back = PTC_BUF_INIT;
	bool any;

	if (ctl->recovery.writes_slow)
		return true; /* these, perhaps */
	any = give_back(ctl, could_help, &back) > 0;
	if (any && !ptc_buf_failed(&back))
		ptc_event(ctl->all->cluster, ctl->uuid, "straggler_over",
			  "the job may have %s again, which it has left as slow: it cannot go on without", back.data);
	ptc_buf_done(&back);
	return any;
}
