/* SPDX-License-Identifier: Apache-2.0 */
/* When the keeper of copies looks again. The test plays the functions that the keeper calls: a look or a push is under
 * way until the test answers it. */
#include "daemon/controller/copies/copy_keeper.h"
#include "daemon/controller/copies/counting.h"

#include "base/sys/sys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct {
	unsigned looks, pushes, cancels, bridged, told, named, reads;
	bool idle, builds, yields;        /* yields: there is a bridge */
	char yielded[64];                 /* the nodes without room */
	unsigned soon;                    /* so often the keeper has asked to be called again */
	uint64_t soon_ms;                 /* by then */
	unsigned short_told, failed_told; /* so many events copies_short, and copies_failed */
} seen;

/* ---- the rooms below ---- */

void ptc_event(struct ptc_cluster *c, const char *uuid, const char *kind, const char *fmt, ...)
{
	(void)c, (void)uuid, (void)fmt;
	seen.short_told += strcmp(kind, "copies_short") == 0;
	seen.failed_told += strcmp(kind, "copies_failed") == 0;
}

uint64_t ptc_cluster_epoch(const struct ptc_cluster *c)
{
	(void)c;
	return 1;
}

bool ptc_controller_idle(const struct ptc_controller *ctl)
{
	(void)ctl;
	return seen.idle;
}

bool ptc_ahead_builds(const struct ptc_controller *ctl, uint64_t *ret_id)
{
	(void)ctl, (void)ret_id;
	return seen.builds;
}

const struct ptc_generation_doc *ptc_controller_current(const struct ptc_controller *ctl)
{
	return &ctl->view.from;
}

void ptc_older_tell_ranks(struct ptc_controller *ctl)
{
	(void)ctl;
	seen.told++;
}

void ptc_older_bridge_gone(struct ptc_controller *ctl, const struct ptc_older *bridge, const char *node)
{
	(void)ctl, (void)bridge, (void)node;
}

void ptc_older_check_names(struct ptc_controller *ctl)
{
	(void)ctl;
	seen.named++;
}

void ptc_older_bridged(struct ptc_controller *ctl)
{
	(void)ctl;
	seen.bridged++;
}

bool ptc_older_bridge_yields(struct ptc_controller *ctl, const char *node)
{
	(void)ctl;
	snprintf(seen.yielded + strlen(seen.yielded), sizeof seen.yielded - strlen(seen.yielded), "%s ", node);
	return seen.yields;
}

void ptc_copy_keeper_look(struct ptc_copy_keeper *c)
{
	c->urgent = ptc_leaving_urgent(c->ctl); /* as looking.c has it */
	seen.looks++;
}

void ptc_copy_keeper_push(struct ptc_copy_keeper *c, char *const *targets, size_t n)
{
	(void)c, (void)targets, (void)n;
	seen.pushes++;
}

void ptc_copy_keeper_cancel(struct ptc_copy_keeper *c)
{
	(void)c;
	seen.cancels++;
}

void ptc_copy_keeper_cancel_push(struct ptc_copy_keeper_push *p)
{
	p->rpc = NULL;
	p->status = PTC_ECANCELED;
	p->c->pushed(p->c);
}

void ptc_copy_keeper_check(struct ptc_copy_keeper *c)
{
	(void)c;
}

void ptc_copy_keeper_name(struct ptc_copy_keeper *c)
{
	(void)c;
}

void ptc_copy_keeper_read(struct ptc_copy_keeper *c)
{
	(void)c;
	seen.reads++;
}

int ptc_copy_keeper_nodes(struct ptc_controllers *all, const struct ptc_view *v, bool up,
			  struct ptc_copy_keeper_nodes *ret)
{
	(void)all, (void)v, (void)up, (void)ret;
	return PTC_ENOMEM;
}

void ptc_copy_keeper_nodes_done(struct ptc_copy_keeper_nodes *nodes)
{
	(void)nodes;
}

int ptc_copy_keeper_find(struct ptc_controllers *all, const struct ptc_view *v,
			 const struct ptc_copy_keeper_nodes *nodes, struct ptc_leaving_left *left,
			 struct ptc_job_copies *ret_config, struct ptc_copies_found *ret, struct ptc_error *err)
{
	(void)all, (void)v, (void)nodes, (void)left, (void)ret_config, (void)ret, (void)err;
	return PTC_ENOMEM;
}

void ptc_copy_keeper_pushes_done(struct ptc_copy_keeper *c)
{
	(void)c;
}

static void soon(struct ptc_controller *ctl, uint64_t ms)
{
	(void)ctl;
	seen.soon++;
	seen.soon_ms = ms;
}

/* ---- the test ---- */

static struct world {
	struct ptc_controllers all;
	struct ptc_controller ctl;
	struct ptc_leaving leaving;
} * w;

static int setup(void **state)
{
	(void)state;
	w = calloc(1, sizeof *w);
	assert_non_null(w);
	w->ctl.all = &w->all;
	w->ctl.soon = soon;
	w->ctl.has_record = true;
	w->ctl.record.snapshot = 1;
	w->ctl.record_revision = 7;
	memset(&seen, 0, sizeof seen);
	seen.idle = true;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	if (w->ctl.keeper)
		w->ctl.keeper_free(w->ctl.keeper);
	free(w);
	return 0;
}

/* Until so many looks have begun: after a look that was ended the keeper waits for a moment. */
static void looks(unsigned n)
{
	for (int i = 0; i < 6000 && seen.looks < n; i++) {
		ptc_copy_keeper_tick(&w->ctl);
		if (seen.looks < n)
			usleep(10000);
	}
	assert_int_equal(seen.looks, n);
}

static void leaves(const char *node)
{
	snprintf(w->leaving.nodes[w->leaving.n++].name, PTC_NAME_MAX + 1, "%s", node);
	w->leaving.left = (struct ptc_leaving_left){ 0 };
	w->ctl.leaving = &w->leaving;
	ptc_copy_keeper_now(&w->ctl);
}

/* The look under way has found that nothing is on leaving nodes alone, or that something is, for which a node pulls. */
static void answer(bool out)
{
	struct ptc_copy_keeper *c = w->ctl.keeper;
	char node[] = "n9", *targets[] = { node };
	struct ptc_copy_keeper_seen s = { .urgent = c->urgent, .config.count = 2 };

	s.left = (struct ptc_leaving_left){ .record_revision = w->ctl.record_revision, .out = out, .bytes = !out };
	s.targets = targets;
	s.ntargets = !out;
	s.found.bytes = !out;
	c->looked(c, &s);
	ptc_copies_doc_done(&s.next);
}

/* A node leaves while it is looked what others that leave have: that answer says nothing of this one. */
static void test_look_of_before(void **state)
{
	(void)state;
	looks(1);
	assert_false(w->ctl.keeper->urgent);
	leaves("n0");
	assert_int_equal(seen.cancels, 1);
	answer(true);
	looks(2);
	assert_true(w->ctl.keeper->urgent);
	leaves("n1");
	answer(true);
	assert_true(ptc_leaving_urgent(&w->ctl)); /* nobody has looked at n1 */
	looks(3);
	answer(true);
	assert_false(ptc_leaving_urgent(&w->ctl));
}

/* What is brought off a leaving node goes on when another one leaves; what is brought at the rate of copies does not.
 */
static void test_push(void **state)
{
	(void)state;
	leaves("n0");
	looks(1);
	answer(false);
	assert_int_equal(seen.pushes, 1);
	leaves("n1");
	assert_int_equal(seen.cancels, 0);
	w->ctl.keeper->urgent = false;
	ptc_copy_keeper_now(&w->ctl);
	assert_int_equal(seen.cancels, 1);
	w->ctl.keeper->pushed(w->ctl.keeper);
	assert_int_equal(w->ctl.keeper->phase, PTC_KEEPER_REST);
	looks(2);
}

/* Nobody can give or take what is left: whoever waits is told so at once, and the job is not kept from going on. */
static void test_stuck(void **state)
{
	struct ptc_leaving *l = &w->leaving;

	(void)state;
	leaves("n0");
	l->until_ns = INT64_MAX;
	l->starts = true;
	l->phase = PTC_LEAVING_COPIES;
	assert_true(ptc_leaving_urgent(&w->ctl) && !ptc_leaving_stuck(&w->ctl) && ptc_leaving_holds(&w->ctl));
	l->left = (struct ptc_leaving_left){ .record_revision = w->ctl.record_revision, .bytes = 100, .nowhere = 99 };
	assert_true(ptc_leaving_urgent(&w->ctl) && !ptc_leaving_stuck(&w->ctl) && ptc_leaving_holds(&w->ctl));
	l->left.nowhere = 100; /* another node may join */
	assert_true(ptc_leaving_urgent(&w->ctl) && ptc_leaving_stuck(&w->ctl) && !ptc_leaving_holds(&w->ctl));
	l->left = (struct ptc_leaving_left){ .record_revision = w->ctl.record_revision, .gone = 100 };
	assert_true(ptc_leaving_urgent(&w->ctl) && !ptc_leaving_stuck(&w->ctl)); /* a node is back, perhaps with it */
	l->left.epoch = ptc_cluster_epoch(NULL);
	assert_true(!ptc_leaving_urgent(&w->ctl) && ptc_leaving_stuck(&w->ctl) && !ptc_leaving_holds(&w->ctl));
	l->left = (struct ptc_leaving_left){ .record_revision = w->ctl.record_revision, .out = true };
	assert_true(!ptc_leaving_urgent(&w->ctl) && !ptc_leaving_stuck(&w->ctl));
}

/* A look that nobody leaves for has found so many copies of everything. */
static void answer_count(uint32_t fewest, int64_t nobody, bool down)
{
	struct ptc_copy_keeper *c = w->ctl.keeper;
	struct ptc_copy_keeper_seen s = { .config.count = 2, .down = down };

	s.found.fewest = fewest;
	s.found.nobody = nobody;
	c->looked(c, &s);
	ptc_copy_keeper_tick(&w->ctl);
	w->ctl.record_revision++; /* it looks again */
}

/* The bridge goes when all copies are there that there can be, on nodes that are up, and not when a part is nowhere. */
static void test_bridge(void **state)
{
	(void)state;
	w->ctl.record.generation = 3;
	looks(1);
	answer_count(2, 0, true);
	looks(2);
	answer_count(0, 5, false);
	looks(3);
	answer_count(1, 5, false);
	assert_true(!seen.bridged && !w->ctl.older.copied && !w->ctl.older.bare);
	assert_true(seen.named); /* `asked` is known */
	looks(4);
	answer_count(2, 0, false);
	assert_int_equal(seen.bridged, 1);
	assert_true(w->ctl.older.copied == w->ctl.record_revision - 1 && w->ctl.older.bare == 3);
	ptc_copy_keeper_tick(&w->ctl); /* of the next record nobody knows yet */
	assert_int_equal(seen.bridged, 1);
	w->ctl.copies_revision = 5; /* copies are needed */
	w->ctl.keeper->copies_revision = 5;
	answer_count(2, 0, false);
	assert_true(seen.bridged == 2 && !w->ctl.older.bare);
}

/* While copies are on their way, snapshots that are due are left out, and no longer: not where no bridge waits for the
 * copies, and not where nobody can take them now. */
static void test_leaves_out(void **state)
{
	struct ptc_copy_keeper *c;

	(void)state;
	assert_int_equal(ptc_copy_keeper_leaves_out(&w->ctl), 0);
	w->ctl.older.doc.bridge.snapshot = 1;
	looks(1);
	assert_int_equal(ptc_copy_keeper_leaves_out(&w->ctl), 0); /* whether it asks for copies is not known */
	c = w->ctl.keeper;
	c->config.count = 2;
	assert_int_equal(ptc_copy_keeper_leaves_out(&w->ctl), 8);
	c->failures = 1;
	assert_int_equal(ptc_copy_keeper_leaves_out(&w->ctl), 0);
	c->failures = 0;
	c->nfull = 1;
	assert_int_equal(ptc_copy_keeper_leaves_out(&w->ctl), 0);
	c->nfull = 0;
	w->ctl.older.dropping = true;
	assert_int_equal(ptc_copy_keeper_leaves_out(&w->ctl), 0);
	w->ctl.older.dropping = false;
	w->ctl.older.copied = w->ctl.record_revision;
	assert_int_equal(ptc_copy_keeper_leaves_out(&w->ctl), 0);
	w->ctl.record_revision++;
	assert_int_equal(ptc_copy_keeper_leaves_out(&w->ctl), 8);
	c->record_revision = w->ctl.record_revision;
	c->rested = true; /* nodes are down */
	assert_int_equal(ptc_copy_keeper_leaves_out(&w->ctl), 0);
	c->rested = false;
	w->ctl.older.doc.bridge.snapshot = 0;
	assert_int_equal(ptc_copy_keeper_leaves_out(&w->ctl), 0);
	w->ctl.record.generation = 3;
	assert_int_equal(ptc_copy_keeper_will_leave_out(&w->ctl), 8); /* the commit makes one */
	w->ctl.older.bare = 3;
	assert_int_equal(ptc_copy_keeper_will_leave_out(&w->ctl), 0);
	/* what Finish has said is taken back */
	w->ctl.older.left_out = true;
	ptc_copy_keeper_tick(&w->ctl);
	assert_true(seen.told == 1 && !w->ctl.older.left_out);
}

/* A node has no room for its copies: the bridge goes, and then it is looked again. */
static void test_bridge_yields(void **state)
{
	struct ptc_copy_keeper_push full = { .node = "n9", .status = PTC_ENOSPC }, fine = { .node = "n8" };
	struct ptc_copy_keeper_push *pushes[] = { &fine, &full };
	struct ptc_copy_keeper *c;

	(void)state;
	seen.yields = true;
	looks(1);
	c = w->ctl.keeper;
	c->phase = PTC_KEEPER_PUSHING;
	c->pushes = pushes;
	c->npushes = 2;
	c->pushed(c);
	assert_string_equal(seen.yielded, "n9 ");
	assert_true(c->phase == PTC_KEEPER_REST && !c->nfull);
	c->pushes = NULL;
	c->npushes = 0;
	looks(2);
}

/* A snapshot at that step has been committed, whose ranks stood still from then on, for so long. */
static void commit_at(uint64_t step, int64_t began, int64_t stopped_ms)
{
	const struct ptc_job_copies unknown = { 0 };
	struct ptc_controller *ctl = &w->ctl;

	ctl->intent = (struct ptc_intent_doc){ .kind = PTC_SWITCH_SNAPSHOT, .run_from = true, .run_to = true };
	ctl->phases[0].phase = PTC_JOB_CHECKING;
	ctl->phases[0].at_ns = began;
	ctl->phases[1].phase = PTC_JOB_SEALING;
	ctl->phases[1].at_ns = began;
	ctl->phases[2].phase = PTC_JOB_AGREEING;
	ctl->phases[2].at_ns = began + stopped_ms * 1000000;
	ctl->nphases = 3;
	ctl->record.step = step;
	ctl->record_revision++;
	ptc_copy_keeper_saw_commit(ctl, &unknown);
	ctl->older.left_out = true; /* so its Finish has said */
}

static void commit(uint64_t step, int64_t stopped_ms)
{
	commit_at(step, ptc_sys_now_ns() - stopped_ms * 1000000, stopped_ms);
}

/* The look under way finds that all copies are there. */
static void answer_steps(uint8_t budget)
{
	struct ptc_copy_keeper *c = w->ctl.keeper;
	struct ptc_copy_keeper_seen s = { .config = { .count = 2, .steps = true, .budget = budget } };

	s.found.fewest = 2;
	c->looked(c, &s);
	ptc_copy_keeper_tick(&w->ctl);
}

/* A job that wants a snapshot at each step: until the copies of one are complete, and its share of the time is over,
 * steps are left out, and no longer. No tick is waited for. */
static void test_steps(void **state)
{
	struct ptc_copy_keeper *c;

	(void)state;
	looks(1);
	c = w->ctl.keeper;
	assert_int_equal(seen.soon, 0);
	answer_steps(100);
	assert_true(seen.soon > 0 && seen.soon_ms == 0);
	commit(10, 1);
	assert_int_equal(ptc_copy_keeper_will_leave_out(&w->ctl), 8);
	assert_int_equal(ptc_copy_keeper_leaves_out(&w->ctl), 8); /* it has not looked yet */
	looks(2);
	assert_int_equal(ptc_copy_keeper_leaves_out(&w->ctl), 8);
	assert_int_equal(seen.told, 0);
	answer_steps(100);
	assert_int_equal(ptc_copy_keeper_leaves_out(&w->ctl), 0);
	assert_int_equal(seen.told, 1);
	commit(30, 1); /* it took 20 steps: 80 are time enough */
	looks(3);
	assert_int_equal(ptc_copy_keeper_leaves_out(&w->ctl), 80);
	commit(111, 1); /* they were not */
	assert_int_equal(seen.told, 1);
	ptc_copy_keeper_stop(&w->ctl);
	answer_steps(100);
	looks(4);
	assert_int_equal(ptc_copy_keeper_leaves_out(&w->ctl), 160);
	answer_steps(100);
	assert_int_equal(seen.told, 2);
	commit(5, 1); /* the job has gone back meanwhile */
	looks(5);
	assert_int_equal(ptc_copy_keeper_leaves_out(&w->ctl), 8);
	c->failures = 1; /* nobody takes copies now: snapshots go on without */
	assert_int_equal(ptc_copy_keeper_leaves_out(&w->ctl), 0);
	c->failures = 0;
	answer_steps(50);
	assert_int_equal(seen.told, 3);
}

/* A snapshot that stops ranks for 10 s, where they may stand still for half of the time. */
static void test_budget(void **state)
{
	struct ptc_copy_keeper *c;

	(void)state;
	looks(1);
	c = w->ctl.keeper;
	answer_steps(50);
	commit(10, 10000);
	looks(2);
	answer_steps(50);
	assert_true(ptc_copy_keeper_leaves_out(&w->ctl) > 0);
	assert_int_equal(seen.told, 0);
	assert_in_range(seen.soon_ms, 5000, 10001);
	c->held_ns = ptc_sys_now_ns();
	ptc_copy_keeper_tick(&w->ctl);
	assert_int_equal(seen.told, 1);
	commit(11, 10000);
	looks(3); /* what they cost is known from the second one on */
	assert_true(c->passed_ns > 0 && c->stopped_ns >= 1e10 && c->stopped_ns < 1.1e10);
}

/* Steps are so short that a snapshot ends each look: what the job asks for is known from the first of them. After a
 * takeover it is known from the first commit, before anybody has looked. */
static void test_short_steps(void **state)
{
	const struct ptc_job_copies asked = { .count = 2, .steps = true, .budget = 10 };

	(void)state;
	looks(1);
	commit(1, 1);
	answer_steps(100);
	assert_true(ptc_copy_keeper_leaves_out(&w->ctl) >= 8 && ptc_copy_keeper_will_leave_out(&w->ctl) >= 8);
	w->ctl.keeper = w->ctl.keeper_free(w->ctl.keeper);
	assert_int_equal(ptc_copy_keeper_leaves_out(&w->ctl), 0);
	ptc_copy_keeper_saw_commit(&w->ctl, &asked);
	assert_true(w->ctl.keeper->held_ns > 0);
	assert_int_equal(ptc_copy_keeper_leaves_out(&w->ctl), 8);
}

/* A look has found so many copies of everything, of two; a node gets more, or none can. */
static void answer_round(uint32_t fewest, bool pushes, bool down)
{
	struct ptc_copy_keeper *c = w->ctl.keeper;
	char node[] = "n8", *targets[] = { node };
	struct ptc_copy_keeper_seen s = { .config = { .count = 2, .steps = true, .budget = 100 },
					  .targets = targets,
					  .ntargets = pushes,
					  .down = down };

	s.found.fewest = fewest;
	s.found.bytes = fewest < 2 && pushes;
	s.found.nowhere = fewest < 2 && !pushes;
	c->looked(c, &s);
	ptc_copies_doc_done(&s.next);
	ptc_copy_keeper_tick(&w->ctl);
}

/* One node has no room: steps are left out while others take the copies, and no longer. */
static void test_one_full(void **state)
{
	(void)state;
	looks(1);
	answer_steps(100);
	commit(10, 1);
	looks(2);
	w->ctl.keeper->nfull = 1;
	w->ctl.keeper->full_until_ns = INT64_MAX;
	answer_round(1, true, false);
	assert_true(w->ctl.keeper->phase == PTC_KEEPER_PUSHING && seen.told == 0);
	assert_int_equal(ptc_copy_keeper_leaves_out(&w->ctl), 8);
	w->ctl.keeper->named(w->ctl.keeper, true, NULL);
	looks(3);
	answer_round(1, false, false); /* the others have no room either */
	assert_int_equal(ptc_copy_keeper_leaves_out(&w->ctl), 0);
	assert_int_equal(seen.told, 1);
}

/* The node that is to get copies has no chunks. */
static void answer_gone(void)
{
	struct ptc_copy_keeper *c = w->ctl.keeper;
	struct ptc_copy_keeper_push push = { .c = c, .node = "n8", .status = PTC_ELOST };

	answer_round(1, true, false);
	assert_int_equal(c->phase, PTC_KEEPER_PUSHING);
	c->pushes = (struct ptc_copy_keeper_push *[]){ &push };
	c->npushes = 1;
	c->pushed(c);
	c->pushes = NULL;
	c->npushes = 0;
}

/* Only the push shows that a node's chunks are gone, where it has copies of earlier states: it may make new ones, once.
 * A node that keeps older snapshots may not. */
static void test_no_chunks(void **state)
{
	struct ptc_older_doc *older = &w->ctl.older.doc;

	(void)state;
	looks(1);
	answer_gone();
	assert_true(w->ctl.keeper->nemptied == 1 && !w->ctl.keeper->nfull && !seen.failed_told);
	looks(2);
	answer_gone();
	assert_true(w->ctl.keeper->nemptied == 1 && w->ctl.keeper->nfull == 1 && seen.failed_told == 1);
	w->ctl.record_revision++;
	w->ctl.keeper->nfull = 0;
	older->n = 1;
	assert_int_equal(ptc_older_node_add(&older->v[0], "n8"), 0);
	looks(3);
	assert_int_equal(w->ctl.keeper->nemptied, 0);
	answer_gone();
	assert_true(!w->ctl.keeper->nemptied && w->ctl.keeper->nfull == 1);
}

/* The step that status names; -1: none. */
static json_int_t copied_step(void)
{
	json_t *copied = ptc_copied_json(&w->ctl), *step = json_object_get(copied, "step");
	const json_int_t at = step ? json_integer_value(step) : -1;

	json_decref(copied);
	return at;
}

/* Status names a step only if there are as many copies as are asked for, and not where only no more can be made. */
static void test_copied_step(void **state)
{
	struct ptc_older *bridge = &w->ctl.older.doc.bridge;

	(void)state;
	w->ctl.record.step = 5;
	looks(1);
	answer_round(1, false, false);
	assert_true(w->ctl.older.copied == w->ctl.record_revision && copied_step() == -1);
	*bridge = (struct ptc_older){ .snapshot = 1, .step = 5 };
	w->ctl.record.snapshot = 2;
	commit(6, 1);
	assert_int_equal(copied_step(), -1);
	looks(2);
	answer_round(2, false, true);
	assert_int_equal(copied_step(), -1);
	w->ctl.keeper->rested = false;
	looks(3);
	answer_round(2, false, false);
	assert_int_equal(copied_step(), 6);
	*bridge = (struct ptc_older){ .snapshot = 2, .step = 6 };
	w->ctl.record.snapshot = 3;
	commit(7, 1);
	assert_int_equal(copied_step(), 6);
	looks(4);
	answer_round(1, true, false);
	assert_int_equal(copied_step(), 6);
}

/* What is left out lasts as long as the budget asks for, also if a snapshot stops ranks for longer than those before.
 */
static void test_budget_in_steps(void **state)
{
	const int64_t ms = 1000000, now = ptc_sys_now_ns();

	(void)state;
	looks(1);
	answer_steps(1);
	commit_at(10, now - 1121 * ms, 1);
	looks(2);
	answer_steps(1);
	commit_at(22, now - 1000 * ms, 1000); /* in 120 ms of training: 99 s are to pass without a stop */
	assert_in_range(ptc_copy_keeper_leaves_out(&w->ctl), 9500, 9902);
	assert_in_range(ptc_copy_keeper_will_leave_out(&w->ctl), 9500, 9902);
}

/* Each round is cut off by the next snapshot: for ten minutes at most no snapshot is due. */
static void test_leave_bounded(void **state)
{
	const int64_t now = ptc_sys_now_ns(), s = 1000000000;

	(void)state;
	looks(1);
	answer_steps(100);
	for (uint64_t step = 0; step < 3200; step += 100) /* steps of 1 s */
		commit_at(step + 1, now - (4000 - (int64_t)step) * s, 1);
	assert_in_range(ptc_copy_keeper_leaves_out(&w->ctl), 500, 601);
}

/* While new ranks build ahead there are no copies, and what is left out does not grow. */
static void test_builds_ahead(void **state)
{
	(void)state;
	looks(1);
	answer_steps(100);
	seen.builds = true;
	for (unsigned step = 1; step < 9; step++)
		commit(step, 1);
	assert_int_equal(ptc_copy_keeper_leaves_out(&w->ctl), 8);
}

/* The time in which the job did not run counts neither for the share of the time nor for the pace. */
static void test_halt(void **state)
{
	const int64_t now = ptc_sys_now_ns(), s = 1000000000;
	const struct ptc_copy_keeper *c;

	(void)state;
	looks(1);
	answer_steps(100);
	c = w->ctl.keeper;
	w->ctl.record.incarnation = 1;
	commit_at(1, now - 1010 * s, 1000);
	commit_at(2, now - 1000 * s, 1000);
	w->ctl.record.incarnation = 2;
	commit_at(3, now - 20 * s, 1000);
	commit_at(4, now - 10 * s, 1000);
	assert_true(c->passed_ns > 18e9 && c->passed_ns < 21e9);
	assert_true(c->stopped_ns > 1.8e9 && c->stopped_ns < 2.1e9);
	assert_true(c->step_ns > 8e9 && c->step_ns < 10e9);
}

/* That there are too few nodes is told once, and not with each step. */
static void test_short_told_once(void **state)
{
	(void)state;
	for (unsigned i = 1; i < 5; i++) {
		looks(i);
		answer_round(1, false, false);
		commit(i, 1);
	}
	assert_int_equal(seen.short_told, 1);
	w->ctl.keeper->epoch = 0; /* nodes have come or gone */
	looks(5);
	answer_round(1, false, false);
	assert_int_equal(seen.short_told, 2);
}

/* A node takes its copies, and gets no further: after a while others are tried, and snapshots are due again if there
 * are none. One that gets further is left to it. */
static void test_stuck_push(void **state)
{
	static int rpc;
	struct ptc_copy_keeper_push push = { .node = "n8", .rpc = (struct ptc_rpc_async *)&rpc };
	struct ptc_copy_keeper_push *pushes[] = { &push };
	const int64_t long_ago = ptc_sys_now_ns() - INT64_C(31000000000);
	struct ptc_copy_keeper *c;

	(void)state;
	looks(1);
	answer_steps(100);
	commit(10, 1);
	looks(2);
	c = push.c = w->ctl.keeper;
	push.moved_ns = long_ago;
	push.moved = 1;
	c->pushes = pushes;
	c->npushes = 1;
	answer_round(1, true, false);
	assert_true(c->phase == PTC_KEEPER_PUSHING && !push.stuck);
	assert_int_equal(ptc_copy_keeper_leaves_out(&w->ctl), 8);
	push.moved_ns = long_ago;
	ptc_copy_keeper_tick(&w->ctl);
	assert_true(push.stuck && c->nfull == 1 && seen.failed_told == 1);
	c->pushes = NULL;
	c->npushes = 0;
	looks(3);
	answer_round(1, false, false);
	assert_int_equal(ptc_copy_keeper_leaves_out(&w->ctl), 0);
	assert_int_equal(seen.told, 1);
}

/* With each snapshot the document cannot be written: an event says so, once, until a round has succeeded. */
static void test_never_named(void **state)
{
	unsigned round = 0;

	(void)state;
	for (unsigned told = 0; told < 2; told++) {
		for (unsigned i = 0; i < 20; i++) {
			looks(++round);
			answer_round(1, true, false);
			w->ctl.keeper->named(w->ctl.keeper, false, "a test wants it");
			w->ctl.keeper->next_ns = 0;
			commit(round, 1);
		}
		assert_int_equal(seen.failed_told, told + 1);
		looks(++round);
		answer_round(1, true, false);
		w->ctl.keeper->named(w->ctl.keeper, true, NULL);
		commit(round, 1);
	}
}

/* A write of the document has no known outcome: a round begins with reading it, and is over if it cannot be read. */
static void test_reads_first(void **state)
{
	struct ptc_copy_keeper *c;

	(void)state;
	looks(1);
	answer_round(1, true, false);
	c = w->ctl.keeper;
	w->ctl.maybe_record = w->ctl.record_revision;
	c->named(c, false, "a test wants it");
	for (unsigned i = 1; i < 4; i++) {
		c->next_ns = 0;
		ptc_copy_keeper_tick(&w->ctl);
		assert_true(seen.reads == i && seen.looks == 1 && c->phase == PTC_KEEPER_NAMING);
		c->read(c, i == 3, "a test wants it");
	}
	assert_true(seen.looks == 2 && c->phase == PTC_KEEPER_LOOKING);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_look_of_before, setup, teardown),
		cmocka_unit_test_setup_teardown(test_push, setup, teardown),
		cmocka_unit_test_setup_teardown(test_stuck, setup, teardown),
		cmocka_unit_test_setup_teardown(test_bridge, setup, teardown),
		cmocka_unit_test_setup_teardown(test_leaves_out, setup, teardown),
		cmocka_unit_test_setup_teardown(test_bridge_yields, setup, teardown),
		cmocka_unit_test_setup_teardown(test_steps, setup, teardown),
		cmocka_unit_test_setup_teardown(test_budget, setup, teardown),
		cmocka_unit_test_setup_teardown(test_short_steps, setup, teardown),
		cmocka_unit_test_setup_teardown(test_one_full, setup, teardown),
		cmocka_unit_test_setup_teardown(test_no_chunks, setup, teardown),
		cmocka_unit_test_setup_teardown(test_copied_step, setup, teardown),
		cmocka_unit_test_setup_teardown(test_budget_in_steps, setup, teardown),
		cmocka_unit_test_setup_teardown(test_leave_bounded, setup, teardown),
		cmocka_unit_test_setup_teardown(test_halt, setup, teardown),
		cmocka_unit_test_setup_teardown(test_builds_ahead, setup, teardown),
		cmocka_unit_test_setup_teardown(test_short_told_once, setup, teardown),
		cmocka_unit_test_setup_teardown(test_stuck_push, setup, teardown),
		cmocka_unit_test_setup_teardown(test_never_named, setup, teardown),
		cmocka_unit_test_setup_teardown(test_reads_first, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
