/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the steps of jobs that this daemon controls and that have a `model:`, keeps them in the job's measured
 * document, and reports predicted and measured values after each switch. One thread of its own, which asks the node of
 * each job's first rank for its step: every second until a configuration is measured, then every ten.
 *
 * Failure modes: etcd or a node unreachable: it is tried again; a job that changes controllers: the next one measures
 * anew. */
#pragma once

#include "daemon/documents/documents.h"
#include "daemon/planning/planning.h"

/* A job whose ranks run, and where its first rank is. */
struct ptc_measuring_run {
	char uuid[PTC_UUID_TEXT], spec_hash[PTC_HASH_HEX];
	int64_t fence; /* of its lock, which we hold */
	uint64_t generation, incarnation;
	char layout_hash[PTC_HASH_HEX]; /* of what its ranks have declared; "": nothing yet */
	char *config;                   /* ptc_free it */
	char node[PTC_NAME_MAX + 1], address[256];
};
struct ptc_measuring_opts { /* services are borrowed and outlive it */
	struct ptc_planning *planning;
	const struct ptc_documents *docs;
	struct ptc_loop *loop;
	struct ptc_channels *channels;
	/* [loop] The runs of idle jobs, at most max into ret; returns how many. */
	size_t (*runs)(void *arg, struct ptc_measuring_run *ret, size_t max);
	/* [loop] Links have changed: that job wants a new plan (on_link_change). */
	void (*replan)(void *arg, const char *uuid);
	void *arg;
};
struct ptc_measuring;
int ptc_measuring_new(const struct ptc_measuring_opts *opts, struct ptc_measuring **ret, struct ptc_error *err);
/* Joins the thread; after the loop has been stopped. NULL ok. */
struct ptc_measuring *ptc_measuring_free(struct ptc_measuring *m);
/* Any thread: a job has been made; what will be asked of the planner is computed ahead. NULL ok. */
void ptc_measuring_created(struct ptc_measuring *m, const char *uuid, const char *spec_hash);
/* [loop] A switch has been committed; what its n links have given is compared with what was measured. uses: copied. m
 * NULL ok. */
void ptc_measuring_links(struct ptc_measuring *m, const struct ptc_link_use *uses, size_t n);
/* How long the ranks of a switch stood still. */
struct ptc_measured_pause {
	bool resize;              /* ranks ran before it, too: it counts as a change */
	double pause_s, moving_s; /* of the pause, the time in which bytes moved */
	bool predicted;           /* the planner has said predicted_s before */
	double predicted_s;
};
/* [loop] A switch to a generation whose ranks run has been committed. pause: copied. m NULL ok. */
void ptc_measuring_switched(struct ptc_measuring *m, const char *uuid, uint64_t generation,
			    const struct ptc_measured_pause *pause);
