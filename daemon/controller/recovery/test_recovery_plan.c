/* SPDX-License-Identifier: Apache-2.0 */
/* On which nodes a job may go on. The cluster, the job's documents and the planner's answer are decided here; what the
 * planner is asked is looked at. */
#include "daemon/controller/internal.h"
#include "daemon/controller/leaving/leaving.h"
#include "daemon/controller/test_nodes.h"
#include "daemon/documents/probed/probed.h"

#include "base/alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct {
	const char *leaves; /* a node's name; NULL: none */
	bool device_bad;    /* on the job's own nodes not enough are well */
	const char *slow;   /* a node whose devices the job has left; NULL: none */
	int quarantined;    /* the number of a node; -1: none */
	bool no_config;     /* the planner has none, of however many devices */
	bool no_room;       /* on fewer than four nodes the state does not fit */
	bool busy;          /* a switch is under way */
	bool resized;       /* the job is, while its documents are read; then never again */
	int missing;        /* so many times a document is missing; if `snapshots`, because of a snapshot meanwhile */
	bool snapshots;
	struct ptc_job_desc desc;
	char asked[256]; /* the nodes that the planner may use; "any" */
	bool goes_soon;  /* a node leaves, on which the job has ranks */
	uint64_t node_changes, device_writes;
	unsigned answers, looks; /* looks: the documents were read */
	int status;
	int down;         /* the number of a node; -1: none */
	bool lost;        /* .. and it is lost */
	bool record_lost; /* the record's snapshot is not on live nodes, ... */
	uint64_t whole;   /* ... and of the older ones only this one is; 0: none */
	uint64_t source;  /* to which the job is to go back */
	char said[64];
	int unreadable; /* what reading an older snapshot's documents comes to */
	char tried[64]; /* older ones that were looked at */
} t = { .quarantined = -1, .down = -1 };

#define RECORD 9

static struct ptc_controller job;
static enum ptc_task_kind runs_as; /* the step under way */

/* ---- the rooms below ---- */

bool ptc_cluster_device_free(struct ptc_cluster *c, const char *node, uint32_t device, const char *uuid, bool shares,
			     const struct ptc_job_view **ret_by)
{
	(void)c, (void)device, (void)uuid, (void)shares, (void)ret_by;
	return !t.slow || strcmp(node, t.slow) != 0;
}

bool ptc_node_device_well(const struct ptc_node *n, uint32_t device, char ret_health[PTC_HEALTH_BYTES])
{
	(void)n;
	(void)device;
	(void)ret_health;
	return true;
}

int ptc_cluster_steps(struct ptc_cluster *c, const char *lane, const struct ptc_task_step *steps,
		      void (*done)(void *arg), void *arg)
{
	(void)c;
	for (; steps->run; steps++) {
		runs_as = steps->kind;
		/* what one job asks holds up none of its other tasks; all jobs' plans leave threads of the pool free */
		if (runs_as == PTC_TASK_COMPUTE)
			assert_true(strcmp(lane, "plan-0") == 0 || strcmp(lane, "plan-1") == 0);
		else
			assert_string_equal(lane, "r-");
		steps->run(arg, NULL);
	}
	done(arg);
	return 0;
}

int ptc_loop_call(struct ptc_loop *loop, void (*fn)(void *arg), void *arg)
{
	(void)loop;
	fn(arg);
	return 0;
}

bool ptc_controller_idle(const struct ptc_controller *ctl)
{
	(void)ctl;
	return !t.busy;
}

bool ptc_controller_ranks_on(const struct ptc_controller *ctl, const char *node)
{
	(void)ctl;
	return strcmp(node, "n0") == 0 || strcmp(node, "n1") == 0;
}

bool ptc_leaving_any(const struct ptc_controller *ctl)
{
	(void)ctl;
	return t.leaves != NULL;
}

bool ptc_leaving_has(const struct ptc_controller *ctl, const char *node)
{
	(void)ctl;
	return t.leaves && strcmp(t.leaves, node) == 0;
}

bool ptc_leaving_puts_off(const struct ptc_controller *ctl)
{
	(void)ctl;
	return t.goes_soon;
}

uint64_t ptc_cluster_epoch(const struct ptc_cluster *c)
{
	(void)c;
	return t.node_changes;
}

uint64_t ptc_cluster_device_writes(const struct ptc_cluster *c)
{
	(void)c;
	return t.device_writes;
}

struct ptc_controller *ptc_controller_ref(struct ptc_controller *ctl)
{
	return ctl;
}

void ptc_controller_unref(struct ptc_controller *ctl)
{
	(void)ctl;
}

int ptc_specs_get(struct ptc_specs *s, const char *uuid, const char *hash, const struct ptc_job_desc **ret_desc,
		  void **ret_ref, struct ptc_error *err)
{
	(void)s, (void)uuid, (void)hash, (void)err;
	*ret_desc = &t.desc;
	*ret_ref = NULL;
	return 0;
}

void ptc_specs_release(void *ref)
{
	(void)ref;
}

int ptc_view_load(struct ptc_kept *k, const struct ptc_meta_doc *meta, const struct ptc_record_doc *record,
		  const struct ptc_intent_doc *intent, struct ptc_view *ret_view, struct ptc_error *err)
{
	static char config[] = "dp=2", n0[] = "n0", n1[] = "n1";
	static char *nodes[] = { n0, n1 };

	(void)k, (void)meta, (void)record, (void)intent, (void)err;
	t.looks++;
	job.record.generation += t.resized;
	t.resized = false;
	if (t.missing) {
		t.missing--;
		job.record.snapshot += t.snapshots;
		return PTC_ENOTFOUND;
	}
	*ret_view = (struct ptc_view){ .from.world = 2, .from.config = config, .from.nodes = nodes, .from.nnodes = 2 };
	ret_view->from_snapshot = t.record_lost ? RECORD : 0;
	ret_view->nodes = nodes;
	ret_view->nnodes = 2;
	return 0;
}

int ptc_view_older(struct ptc_kept *k, const struct ptc_meta_doc *meta, const struct ptc_older_doc *doc,
		   uint64_t snapshot, struct ptc_view *ret_view, struct ptc_error *err)
{
	snprintf(t.tried + strlen(t.tried), sizeof t.tried - strlen(t.tried), "%llu ", (unsigned long long)snapshot);
	if (t.unreadable)
		return t.unreadable;
	if (ptc_view_load(k, meta, NULL, NULL, ret_view, err) != 0)
		return PTC_ENOTFOUND;
	ret_view->from_snapshot = snapshot;
	assert_non_null(ptc_older_find(doc, snapshot));
	return 0;
}

int ptc_older_target(const struct ptc_view *v, const bool *usable, struct ptc_generation_doc *ret,
		     struct ptc_error *err)
{
	(void)usable, (void)err;
	*ret = (struct ptc_generation_doc){ .world = (uint32_t)v->from_snapshot };
	return 0;
}

bool ptc_cluster_find_node(struct ptc_cluster *c, const char *name, uint32_t *ret_index)
{
	(void)c;
	for (uint32_t i = 0; i < NODES; i++)
		if (strcmp(test_nodes[i].doc.name, name) == 0) {
			*ret_index = i;
			return true;
		}
	return false;
}

void ptc_view_done(struct ptc_view *v)
{
	(void)v;
}

int ptc_view_find_copies(struct ptc_view *v, struct ptc_cluster *c)
{
	(void)v, (void)c;
	return 0;
}

int ptc_view_locate(struct ptc_view *v, struct ptc_cluster *c)
{
	(void)v, (void)c;
	return 0;
}

void ptc_probed_join(const struct ptc_documents *docs, struct ptc_view *v)
{
	(void)docs, (void)v;
}

void ptc_lost_ask(struct ptc_controllers *all, const struct ptc_view *v, bool *usable)
{
	(void)all, (void)v, (void)usable;
	assert_int_equal(runs_as, PTC_TASK_ETCD); /* it waits for other nodes */
}

int ptc_lost_covered(struct ptc_controllers *all, const struct ptc_view *v, const bool *usable, struct ptc_error *err)
{
	(void)all, (void)usable;
	if (v->from_snapshot == t.whole || !v->from_snapshot)
		return 0;
	return ptc_error_set(err, PTC_ELOST, "%llu is lost", (unsigned long long)v->from_snapshot);
}

int ptc_plan_switch(struct ptc_controllers *all, const struct ptc_view *v, const struct ptc_plan_request *req,
		    struct ptc_planned *ret_planned, struct ptc_error *err)
{
	(void)all, (void)v, (void)err;
	assert_int_equal(runs_as, PTC_TASK_COMPUTE); /* it may take seconds */
	assert_true(req->unattended);
	assert_int_equal(req->has != NULL, req->at_rest && v->from_snapshot != 0);
	snprintf(t.asked, sizeof t.asked, "%u on", req->gpus);
	for (size_t i = 0; i < req->nnodes; i++)
		snprintf(t.asked + strlen(t.asked), sizeof t.asked - strlen(t.asked), " %s", req->nodes[i]);
	if (!req->nnodes)
		snprintf(t.asked + strlen(t.asked), sizeof t.asked - strlen(t.asked), " any");
	*ret_planned = (struct ptc_planned){ 0 };
	if (t.no_room && req->nnodes && req->nnodes < NODES)
		return PTC_ENOSPC;
	return (t.device_bad && req->nnodes == 2) || t.no_config ? PTC_ENODEVICES : 0;
}

void ptc_planned_done(struct ptc_planned *p)
{
	(void)p;
}

/* ---- the test ---- */

static void planned(struct ptc_controller *ctl, struct ptc_recovery_plan *p)
{
	(void)ctl;
	t.answers++;
	t.status = p->status;
	t.source = p->source;
	snprintf(t.said, sizeof t.said, "%.60s", p->err.text);
	assert_int_equal(p->back_to.world, p->source);
	assert_int_equal(p->source_view.from_snapshot, p->source);
}

static const char *asked(enum ptc_recovery_for what, const char *leaves)
{
	static struct ptc_controllers all;

	job.all = &all;
	for (int i = 0; i < NODES; i++) {
		test_nodes[i] = (struct ptc_node){ .up = true, .doc.devices = 1 };
		snprintf(test_nodes[i].doc.name, sizeof test_nodes[i].doc.name, "n%d", i);
		test_nodes[i].up = i != t.down;
		test_nodes[i].lost = i == t.down && t.lost;
		if (i == t.quarantined)
			test_nodes[i].quarantine.until_ns = INT64_MAX;
	}
	t.leaves = leaves;
	t.answers = t.looks = 0;
	ptc_recovery_plan(&job, what, planned);
	assert_int_equal(t.answers, !t.busy || what == PTC_RECOVERY_READ);
	return t.asked;
}

/* Whatever it is planned for, a node that will be taken away is none of those that are used. */
static void test_leaving(void **state)
{
	(void)state;
	assert_string_equal(asked(PTC_RECOVERY_GROW, NULL), "4 on any");
	assert_string_equal(asked(PTC_RECOVERY_GROW, "n2"), "3 on n0 n1 n3");
	assert_string_equal(asked(PTC_RECOVERY_AGAIN, "n1"), "2 on n0 n2 n3");
	assert_string_equal(asked(PTC_RECOVERY_ANY, "n0"), "0 on n1 n2 n3");
	assert_string_equal(asked(PTC_RECOVERY_ELSEWHERE, "n3"), "0 on n0 n1 n2");
	assert_int_equal(t.status, 0);
}

/* After an error of the program the job is started again where it was. If a device there is not well any more, it goes
 * elsewhere, unless it is to wait. */
static void test_device_not_well(void **state)
{
	(void)state;
	assert_string_equal(asked(PTC_RECOVERY_SAME, NULL), "0 on n0 n1");
	assert_int_equal(t.status, 0);
	t.device_bad = true;
	assert_string_equal(asked(PTC_RECOVERY_SAME, NULL), "0 on any");
	assert_int_equal(t.status, 0);
	t.desc.elastic.on_failure = PTC_JOB_WAIT;
	assert_string_equal(asked(PTC_RECOVERY_SAME, NULL), "0 on n0 n1");
	assert_int_equal(t.status, PTC_ENODEVICES);
}

/* Devices that the job leaves are not counted. Where there are others the configuration stays; where there are not it
 * is the next that is possible, and never less than min_gpus. The job trains: whether its state is covered is not
 * asked, and it goes on as it is where nothing is possible. */
static void test_slow(void **state)
{
	(void)state;
	t.desc = (struct ptc_job_desc){ 0 };
	t.device_bad = false;
	t.slow = "n1";
	assert_string_equal(asked(PTC_RECOVERY_LEAVE, NULL), "0 on any"); /* n0, n2 and n3 are there */
	assert_string_equal(asked(PTC_RECOVERY_LEAVE, "n2"), "0 on n0 n1 n3");
	t.no_config = true;
	assert_string_equal(asked(PTC_RECOVERY_LEAVE, NULL), "1 on any");
	assert_int_equal(t.status, PTC_ENODEVICES);
	t.desc.elastic.min_gpus = 2;
	assert_string_equal(asked(PTC_RECOVERY_LEAVE, NULL), "0 on any");
	assert_int_equal(t.status, PTC_ENODEVICES);
	t.no_config = false;
	assert_string_equal(asked(PTC_RECOVERY_GROW, NULL), "3 on any");
}

/* A job does not grow to a quarantined node, and is not started again there, unless it could not go on otherwise. Where
 * it has ranks they stay. */
static void test_quarantined(void **state)
{
	(void)state;
	t.desc = (struct ptc_job_desc){ 0 };
	t.device_bad = t.no_config = false;
	t.slow = NULL;
	t.quarantined = 3;
	assert_string_equal(asked(PTC_RECOVERY_GROW, NULL), "3 on n0 n1 n2");
	assert_string_equal(asked(PTC_RECOVERY_AGAIN, "n2"), "2 on n0 n1");
	assert_string_equal(asked(PTC_RECOVERY_ANY, NULL), "0 on n0 n1 n2");
	assert_int_equal(t.status, 0);
	t.no_config = true;
	assert_string_equal(asked(PTC_RECOVERY_ANY, NULL), "1 on any"); /* the last that was tried */
	assert_int_equal(t.status, PTC_ENODEVICES);
	assert_string_equal(asked(PTC_RECOVERY_GROW, NULL), "3 on n0 n1 n2"); /* it trains, and can stay as it is */
	t.no_config = false;
	t.device_bad = true; /* of the job's own two nodes: only a third one helps */
	assert_string_equal(asked(PTC_RECOVERY_SAME, "n2"), "0 on n0 n1 n3");
	assert_int_equal(t.status, 0);
	t.device_bad = false;
	t.no_room = true;
	assert_string_equal(asked(PTC_RECOVERY_ANY, NULL), "0 on any");
	assert_int_equal(t.status, 0);
	t.no_room = false;
	t.quarantined = 1;
	assert_string_equal(asked(PTC_RECOVERY_GROW, NULL), "4 on any");
	t.quarantined = -1;
	assert_string_equal(asked(PTC_RECOVERY_ANY, NULL), "0 on any");
}

/* A plan that comes while a snapshot is made is not forgotten: it waits for the snapshot's end. Another switch ends
 * what was planned. */
static void test_waits_for_snapshot(void **state)
{
	(void)state;
	t.desc = (struct ptc_job_desc){ 0 };
	t.busy = true;
	job.intent = (struct ptc_intent_doc){ .kind = PTC_SWITCH_SNAPSHOT, .run_to = true };
	assert_string_equal(asked(PTC_RECOVERY_GROW, NULL), "4 on any");
	assert_true(job.turn && !job.recovery.planning);
	ptc_recovery_answer(&job);
	assert_int_equal(t.answers, 0);
	t.busy = false;
	ptc_recovery_answer(&job);
	assert_int_equal(t.answers, 1);
	assert_int_equal(t.status, 0);
	ptc_recovery_answer(&job);
	assert_int_equal(t.answers, 1);

	t.busy = true;
	(void)asked(PTC_RECOVERY_READ, NULL); /* that changes nothing of the switch */
	(void)asked(PTC_RECOVERY_LEAVE, NULL);
	assert_string_equal(asked(PTC_RECOVERY_AGAIN, NULL), "2 on any"); /* in place of the other */
	t.busy = false;
	ptc_recovery_answer(&job);
	assert_int_equal(t.answers, 1);

	t.busy = true;
	(void)asked(PTC_RECOVERY_GROW, NULL);
	job.gone = true;
	ptc_recovery_answer(&job);
	job.gone = t.busy = false;
	ptc_recovery_answer(&job);
	assert_int_equal(t.answers, 0);

	t.busy = true;
	job.intent.kind = PTC_SWITCH_RESIZE;
	t.answers = 0;
	ptc_recovery_plan(&job, PTC_RECOVERY_GROW, planned);
	assert_int_equal(t.answers, 1); /* whoever asked decides */
	t.busy = false;
}

/* What was kept is planned anew if nodes or devices have changed since, and is dropped for a node that leaves. */
static void test_waits_and_is_planned_anew(void **state)
{
	(void)state;
	t.desc = (struct ptc_job_desc){ 0 };
	job.intent = (struct ptc_intent_doc){ .kind = PTC_SWITCH_SNAPSHOT, .run_to = true };
	for (int what = 0; what < 3; what++) {
		t.busy = true;
		(void)asked(PTC_RECOVERY_GROW, NULL);
		t.busy = false;
		t.node_changes += what == 1;
		t.device_writes += what == 2;
		ptc_recovery_answer(&job);
		assert_int_equal(t.looks, what ? 2 : 1);
		assert_int_equal(t.answers, 1);
	}
	for (int what = 0; what < 2; what++) {
		t.busy = true;
		(void)asked(what ? PTC_RECOVERY_AGAIN : PTC_RECOVERY_LEAVE, NULL);
		t.busy = false;
		t.goes_soon = true;
		ptc_recovery_answer(&job);
		assert_null(job.recovery.answer);
		assert_int_equal(t.answers, 0);
		assert_int_equal(job.recovery.replan, what); /* for links: nobody else asks for that again */
		t.goes_soon = false;
	}
	job.recovery.replan = false;
}

/* While it was planned the job has come to other ranks, or to a later snapshot, whose commit has dropped the documents
 * of the one before: it is planned for what the job is now. */
static void test_planned_for_now(void **state)
{
	(void)state;
	t.desc = (struct ptc_job_desc){ 0 };
	assert_string_equal(asked(PTC_RECOVERY_GROW, NULL), "4 on any");
	assert_int_equal(t.looks, 1);
	t.resized = true;
	(void)asked(PTC_RECOVERY_GROW, NULL);
	assert_int_equal(t.looks, 2);
	assert_int_equal(t.status, 0);
	t.missing = 2;
	t.snapshots = true;
	(void)asked(PTC_RECOVERY_LEAVE, NULL);
	assert_int_equal(t.looks, 3);
	assert_int_equal(t.status, 0);
	t.missing = 1;
	t.snapshots = false;
	(void)asked(PTC_RECOVERY_LEAVE, NULL); /* it is missing for another reason */
	assert_int_equal(t.looks, 1);
	assert_int_equal(t.status, PTC_ENOTFOUND);
}

static void add_older(uint64_t snapshot, bool left)
{
	struct ptc_older o = { .generation = 1, .snapshot = snapshot, .left = left };

	ptc_older_add(&job.older.doc, &o);
}

static const char *goes_back(enum ptc_recovery_for what)
{
	t.tried[0] = '\0';
	(void)asked(what, NULL);
	return t.tried;
}

/* The record's snapshot is lost: the newest older one that live nodes have is taken, the bridge among them, and none
 * that the job has left. Neither is one if a node may still be back, or the job is to wait for it. */
static void test_goes_back(void **state)
{
	(void)state;
	t.desc = (struct ptc_job_desc){ 0 };
	t.record_lost = true;
	assert_string_equal(goes_back(PTC_RECOVERY_ANY), "");
	assert_true(t.status == PTC_ELOST && !t.source);
	add_older(2, false);
	add_older(4, false);
	add_older(6, true);
	job.older.doc.bridge = (struct ptc_older){ .generation = 1, .snapshot = 5 };
	assert_string_equal(goes_back(PTC_RECOVERY_ANY), ""); /* without copies the job waits for the node */
	t.desc.copies.count = 2;
	assert_string_equal(goes_back(PTC_RECOVERY_ANY), "5 4 2 ");
	assert_true(t.status == PTC_ELOST && !t.source);
	assert_string_equal(t.said, "9 is lost");
	t.unreadable = PTC_ECOORD; /* that says nothing about the snapshot */
	assert_string_equal(goes_back(PTC_RECOVERY_ANY), "5 ");
	assert_true(t.status == PTC_ECOORD && !t.source);
	t.unreadable = 0;
	t.whole = 5;
	assert_string_equal(goes_back(PTC_RECOVERY_ANY), "5 ");
	assert_true(!t.status && t.source == 5);
	assert_string_equal(t.said, "9 is lost");
	t.whole = 2;
	assert_string_equal(goes_back(PTC_RECOVERY_SAME), "5 4 2 ");
	assert_true(!t.status && t.source == 2);
	t.whole = 6;
	assert_string_equal(goes_back(PTC_RECOVERY_ANY), "5 4 2 ");
	assert_int_equal(t.status, PTC_ELOST);
	t.whole = 5;
	t.no_config = true;
	assert_string_equal(goes_back(PTC_RECOVERY_ANY), "5 ");
	assert_true(t.status == PTC_ENODEVICES && !t.source);
	t.no_config = false;
	t.desc.elastic.on_failure = PTC_JOB_WAIT;
	assert_string_equal(goes_back(PTC_RECOVERY_SAME), "");
	assert_int_equal(t.status, PTC_ELOST);
	t.desc.elastic.on_failure = PTC_JOB_SHRINK;
	t.down = 1;
	assert_string_equal(goes_back(PTC_RECOVERY_ANY), "");
	assert_int_equal(t.status, PTC_ELOST);
	t.lost = true;
	assert_string_equal(goes_back(PTC_RECOVERY_ANY), "5 ");
	assert_true(!t.status && t.source == 5);
	t.whole = RECORD;
	assert_string_equal(goes_back(PTC_RECOVERY_ANY), "");
	assert_true(!t.status && !t.source);
	t.record_lost = t.lost = false;
	t.down = -1;
	job.older.doc = (struct ptc_older_doc){ 0 };
}

/* On which nodes the job would go on, were this one lost that is up; "": on none. */
static const char *without(const char *node, int down, int quarantined)
{
	static bool is_down[2];
	struct ptc_view v;

	t.down = down;
	t.quarantined = quarantined;
	asked(PTC_RECOVERY_READ, NULL);
	assert_int_equal(0, ptc_view_load(NULL, NULL, NULL, NULL, &v, NULL));
	memset(is_down, 0, sizeof is_down);
	v.down = is_down;
	t.asked[0] = '\0';
	t.status = ptc_recovery_without(&job, &t.desc, &v, node, NULL);
	assert_true(is_down[strcmp(node, "n1") == 0]); /* its bytes are no source */
	return t.asked;
}

/* Nothing is lost yet, but what remains is what a recovery would have. */
static void test_without(void **state)
{
	(void)state;
	t.desc = (struct ptc_job_desc){ 0 };
	assert_string_equal(without("n1", -1, -1), "0 on n0 n2 n3");
	assert_string_equal(without("n0", 3, -1), "0 on n1 n2");
	assert_string_equal(without("n0", -1, 2),
			    "0 on n1 n3"); /* a quarantined node only where there is no other way */
	assert_int_equal(0, t.status);
	t.no_room = true; /* on fewer than four nodes */
	without("n1", -1, 2);
	assert_int_equal(PTC_ENOSPC, t.status);
	t.no_room = false;
	t.desc.elastic.min_gpus = 4;
	assert_string_equal(without("n1", -1, -1), "0 on n0 n2 n3");
	t.no_config = true;
	without("n1", -1, -1);
	assert_int_equal(PTC_ENODEVICES, t.status);
	t.no_config = false;
	t.quarantined = -1;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_leaving),
		cmocka_unit_test(test_device_not_well),
		cmocka_unit_test(test_slow),
		cmocka_unit_test(test_quarantined),
		cmocka_unit_test(test_waits_for_snapshot),
		cmocka_unit_test(test_waits_and_is_planned_anew),
		cmocka_unit_test(test_planned_for_now),
		cmocka_unit_test(test_goes_back),
		cmocka_unit_test(test_without),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
