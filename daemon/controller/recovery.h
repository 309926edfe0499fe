/* SPDX-License-Identifier: Apache-2.0 */
/* A live job goes on after the loss of a node, or a failure of its program, with no operator. Ranks that are left are
 * ended (HALT, whose record says why), and the job is started again from the record's snapshot (RESIZE, which leaves
 * lost nodes out). "elastic" of its description says what the job wants. A controller has one of these; all of it
 * belongs to the loop. What has to outlive a controller is in the record. */
#pragma once

#include "daemon/controller/switch_plan.h" /* and the records */
#include "formats/job/job.h"

#include <stdbool.h>
#include <stdint.h>

struct ptc_controller;
struct ptc_switch_request;
struct ptc_worker_view;

/* Devices that join or become free, and what becomes of them: "on_join" of a job's elastic (growth.c). */
struct ptc_growth {
	/* Numbers for each node, by its cluster number. A device is weighed once it was considered for growth. */
	uint32_t *seen, *planned; /* weighed devices, as in etcd; those of the plan or switch that have not left */
	uint32_t *offers;         /* devices that the job has or may have, by the last count */
	uint32_t *quarantined;    /* how often it had been lost when an event last said that it is quarantined */
	size_t nseen;
	uint64_t changes;            /* how often nodes and devices had changed at the last count */
	int64_t counted_ns, etcd_ns; /* 0: never; what etcd has of `seen` is not tried again before */
	enum { PTC_GROWTH_UNREAD, PTC_GROWTH_READING, PTC_GROWTH_READ } state;
	bool leaves, outdated;       /* leaves: ranks were moving then; outdated: a planned device has left since */
	bool writing, unkept, noted; /* unkept: etcd has an older `seen`; noted: `seen` is set (ptc_growth_note) */
	bool anew;                   /* the job has not run yet; devices that are there at its start count as weighed */
	uint64_t there, failed_at;   /* a fingerprint of `offers`; how often nodes had changed at failed_ns */
	int64_t failed_ns;           /* when switches to the weighed devices had failed too often; 0: they have not */
	int64_t first_ns, since_ns;  /* when the first device joined, and when devices last changed; 0: none joined */
	uint64_t switch_id;          /* of ours, from when its ranks build; 0: none is under way */
	uint32_t tries, fails;       /* in a row: switches that came to nothing; reads and writes in etcd that failed */
	char joined[200], stays[400]; /* nodes, for the event; why the job does not grow, for status; "": nothing */
};

struct ptc_recovery {
	struct ptc_growth growth;
	struct ptc_stragglers *stragglers; /* recovery/stragglers.h; NULL: slow ranks are not looked for */
	struct ptc_straggler_drain *drain; /* in the memory of `stragglers`; NULL if that is NULL */
	struct ptc_recovery_task *answer;  /* a plan that came while a snapshot was made; NULL: none */
	bool replan, writes_slow, has_elastic, planning, shares; /* replan: links have changed; shares: share_devices */
	struct ptc_job_elastic elastic;
	int64_t first_step_ms; /* what a rank's first step may take: the job's `build_timeout` */
	/* what ranks of the record's incarnation say, asked in rounds */
	struct ptc_rank_rounds {
		uint64_t incarnation;
		uint32_t awaited; /* answers of the round under way */
		bool silent;      /* a node has not answered in this round */
		bool patient;     /* a late answer alone makes no node suspect */
		bool partial;     /* a node was not asked that is up: its lease is about to end, and it is silent */
		uint32_t n;       /* rounds in which all nodes that are up have answered */
		int64_t asked_ns; /* the last round began */
		int64_t done_ns;  /* the last one of those n began */
		int64_t still_ns; /* since when the least step is `least` */
		uint64_t least;   /* UINT64_MAX: no rank was seen */
		uint64_t now;     /* least, of the round under way */
		double now_s;     /* step_s, of the round under way */
		double step_s;    /* how long the slowest rank takes for a step; 0: not known */
		uint64_t reached; /* the greatest that was ever seen; 0: none */
		/* the same of those ranks that no boundary holds, and that have not finished: they should go on */
		struct ptc_rank_stand {
			uint64_t least, now; /* UINT64_MAX: there is no such rank */
			int64_t still_ns;
			uint32_t rank, n;            /* the first one that is at `least`, and how many are */
			char node[PTC_NAME_MAX + 1]; /* of that one */
			bool fresh;                  /* one of these has not ended a step yet */
			double step_s, now_s;        /* as above, but the median of a rank's last steps */
		} stand;
	} rounds;
	/* recovery_hang.c: ranks that have stood for as long as the job allows */
	struct ptc_hang {
		uint64_t incarnation, step; /* of the ranks that an event last called hanging; 0: none */
		uint64_t ends;              /* the ranks of this incarnation are to be held and then ended; 0: none */
		int64_t since_ns;
		char who[128], text[256];  /* which ranks; what they do, for status */
		struct ptc_hang_evidence { /* hang_evidence.c */
			enum { PTC_HANG_NOT_ASKED, PTC_HANG_ASKED, PTC_HANG_KEPT } state;
			uint32_t awaited, ranks; /* answers; ranks of which something is kept */
			uint64_t number;
			char lacks[256]; /* nodes that keep nothing, and why */
		} evidence;
	} hang;
	/* a rank has failed, and it is to be seen whether a node has */
	struct {
		uint64_t incarnation;
		int64_t since_ns;
		uint32_t from; /* number of the first round that counts */
	} judging;
	/* whether the ranks that are left have all of the state (recovery_hold.c) */
	struct ptc_hold {
		enum ptc_hold_state {
			PTC_HOLD_IDLE,
			PTC_HOLD_ASKED,
			PTC_HOLD_CHOOSES,
			PTC_HOLD_FOUND, /* they have it at `step` */
			PTC_HOLD_NONE,  /* they have not: why */
		} state;
		uint32_t awaited, nheld;   /* answers; ranks */
		struct ptc_hold_ask *asks; /* those that are awaited */
		int64_t since_ns;
		struct ptc_held_rank *ranks;             /* of each rank of the generation */
		uint64_t incarnation, step, reached, to; /* reached: a rank's greatest; to: others were let on to it */
		char why[192];
		bool promised; /* some rank there has called ptc_survive */
	} hold;
	bool held, over; /* the switch under way may make the ranks wait; it is not over yet, but the recovery is */
	int64_t ended_ns, retry_ns;     /* when the last such switch ended; nothing is tried before */
	uint32_t by_time, tries, fails; /* lost nodes; starts in a row that came to nothing; by no node's fault */
	uint32_t owed;   /* new value for the record's `restarts`, because a start came to nothing; 0: none */
	char waits[768]; /* why the job waits, as events have said; "": it does not */
	/* what the record is to say after the HALT of that id */
	uint64_t mark_id;
	struct ptc_record_doc mark; /* recovery and what goes with it */
	int64_t marked_ns;          /* when ranks were given up; by another controller: when this one began */
	struct ptc_told { /* kind, text, gone: the event to write when that HALT begins; others: the one before */
		const char *kind, *last; /* NULL: there is none */
		char text[768];
		uint64_t incarnation;
		enum ptc_recovery_kind of;
		bool gone; /* its text says that a node is back without its ranks, so no rank has failed */
	} told;
};

void ptc_recovery_tick(struct ptc_controller *ctl); /* recovery.c: each 200 ms. May submit a switch, or abort one. */
/* A rank that trains has failed: r becomes a HALT. False: whether a node is lost is not known yet; ask again. */
bool ptc_recovery_judges(struct ptc_controller *ctl, const struct ptc_worker_view *w, struct ptc_switch_request *r);
/* That HALT has begun: events say why. failed: the rank that was judged; NULL: none was. */
void ptc_recovery_begun(struct ptc_controller *ctl, const struct ptc_worker_view *failed);
/* Whether no due snapshot may begin: a node that it would wait for is down, or ranks are about to leave devices. */
bool ptc_recovery_holds(const struct ptc_controller *ctl);
/* Change a record: the first for a HALT or a snapshot of held ranks, the second for a switch that starts ranks. */
void ptc_recovery_halts(const struct ptc_controller *ctl, struct ptc_record_doc *r);
void ptc_recovery_starts(struct ptc_record_doc *r);
void ptc_recovery_saw(struct ptc_controller *ctl, const struct ptc_record_doc *next); /* the record becomes next */
/* The event for the transaction that makes the record `next`. NULL: it starts no ranks again, or no memory. */
struct ptc_event_line *ptc_recovery_event(const struct ptc_controller *ctl, const struct ptc_record_doc *next);
void ptc_recovery_committed(struct ptc_controller *ctl); /* call it when a switch is committed and current */
/* A switch that was to start ranks again has come to nothing. */
void ptc_recovery_aborted(struct ptc_controller *ctl, int status, const char *why);

void ptc_growth_tick(struct ptc_controller *ctl); /* growth.c: each 200 ms, of a job whose nodes are all up */
/* Each 200 ms until lost ranks are started again: devices that are absent now will count as joined later. */
void ptc_growth_forget_absent(struct ptc_controller *ctl);
void ptc_growth_replan(struct ptc_controller *ctl);       /* links have changed: plans anew, for as many devices */
void ptc_controllers_replan(void *arg, const char *uuid); /* ptc_measuring_opts.replan; arg: struct ptc_controllers */
bool ptc_growth_rests(const struct ptc_controller *ctl);  /* nothing is under way, no ranks build for a switch */
const char *ptc_growth_stays(const struct ptc_controller *ctl); /* why it does not grow, although devices are free */
void ptc_growth_note(struct ptc_controller *ctl); /* counts all devices as weighed, before the description is read */

/* recovery_ask.c: one round, unless one is under way. Silent nodes are suspected; patient: late ones are not. */
void ptc_recovery_ask(struct ptc_controller *ctl, bool patient);
/* recovery_hang.c: each 200 ms, of a job that trains: asks nodes as often as its `on_hang` needs, and tells of ranks
 * that hang, or go on again. */
void ptc_hang_tick(struct ptc_controller *ctl);
/* Whether ranks hang now: hang.who says which, and hang.step where. */
bool ptc_hang_hangs(const struct ptc_controller *ctl);
/* hang_evidence.c: has nodes keep what the ranks do. It has ended when hang.evidence.state is KEPT. */
void ptc_hang_keep(struct ptc_controller *ctl);
/* recovery_hold.c: has nodes hold the record's ranks, if not done yet; call it until the state is FOUND or NONE. */
enum ptc_hold_state ptc_recovery_hold(struct ptc_controller *ctl);
/* Whether the node has a rank that is held at the step that was found. */
bool ptc_recovery_gives(const struct ptc_controller *ctl, uint32_t node);
/* Ranks that are held go on. */
void ptc_recovery_let_go(struct ptc_controller *ctl);
/* recovery_plan.c: where the job can go on now. */
struct ptc_recovery_plan {
	/* PTC_ELOST: bytes are missing (err names a tensor, and where it was last). PTC_ENODEVICES: no configuration
	 * for the devices that are there. */
	int status;
	struct ptc_error err;
	struct ptc_job_elastic elastic;
	bool shares; /* the job's `share_devices` */
	int64_t first_step_ms;
	bool read; /* these three are set */
	struct ptc_planned planned;
	uint64_t source; /* the record's snapshot is lost, says err, and this older one is not; 0: it is not */
	struct ptc_view source_view;
	struct ptc_generation_doc back_to; /* where the source's state goes first */
};
void ptc_recovery_keep(struct ptc_controller *ctl, const struct ptc_recovery_plan *p); /* what the description says */
/* Begins it, unless one is under way; then planned is called on the loop, unless the controller has gone. It may take
 * what is in p. If a snapshot is being made by then, planned is called after it (ptc_recovery_answer). READ: only what
 * the description says. SAME: the configuration and the nodes that the job has, and no others. For a job that trains:
 * GROW on more devices than it has, AGAIN on as many, LEAVE on at most as many. For a job without ranks: ELSEWHERE with
 * its configuration, ANY with any; both without nodes that leave. */
enum ptc_recovery_for {
	PTC_RECOVERY_READ,
	PTC_RECOVERY_SAME,
	PTC_RECOVERY_ANY,
	PTC_RECOVERY_GROW,
	PTC_RECOVERY_AGAIN,
	PTC_RECOVERY_LEAVE,
	PTC_RECOVERY_ELSEWHERE,
};
void ptc_recovery_plan(struct ptc_controller *ctl, enum ptc_recovery_for what,
		       void (*planned)(struct ptc_controller *ctl, struct ptc_recovery_plan *p));
void ptc_recovery_answer(struct ptc_controller *ctl); /* calls it for a plan put off, if no switch is under way */
