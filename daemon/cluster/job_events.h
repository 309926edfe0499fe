/* SPDX-License-Identifier: Apache-2.0 */
/* The event log of a job: one line for each decision, kept in etcd. */
#pragma once

#include "daemon/cluster/cluster.h"
#include "daemon/cluster/events/event_doc.h"

/* Appends a line to the job's event log, as a task of the job's lane. Any thread. */
void ptc_event(struct ptc_cluster *c, const char *uuid, const char *kind, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
/* Does the same with a member `switch`, which says how a switch ended; NULL: without. */
void ptc_event_with(struct ptc_cluster *c, const char *uuid, const char *kind, const struct ptc_switch_end *end,
		    const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* An event that is part of a transaction of the caller's, in the job's lane: it is there exactly if that has happened.
 * NULL: out of memory; the transaction is made without it. Any thread, one at a time. */
struct ptc_event_line;
struct ptc_event_line *ptc_event_line_new(struct ptc_cluster *c, const char *uuid, const char *kind, const char *fmt,
					  ...) __attribute__((format(printf, 4, 5)));
struct ptc_etcd_op ptc_event_line_op(const struct ptc_event_line *l); /* borrows from l */
/* happened: whether the transaction was made. Returns NULL; NULL ok. */
struct ptc_event_line *ptc_event_line_free(struct ptc_event_line *l, bool happened);

/* Reads the job's events from etcd, and adds them, in the order of their numbers. Blocks. */
int ptc_events_read(struct ptc_etcd *etcd, const char *uuid, struct ptc_read_events *to, struct ptc_error *err);

/* A daemon remembers the events that it wrote and that ptc_events_remember read, for times when etcd is unreachable.
 * Any thread; ptc_events_remember blocks. */
void ptc_events_remember(struct ptc_etcd *etcd, const char *uuid);       /* reads the job's events from etcd */
int ptc_events_remembered(const char *uuid, struct ptc_read_events *to); /* adds them, in no order; 0 or PTC_ENOMEM */
void ptc_events_free(void);
