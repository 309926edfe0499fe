/* SPDX-License-Identifier: Apache-2.0 */
/* The event log of a job: one line for each decision, kept in etcd. */
#pragma once

#include "daemon/cluster/cluster.h"
#include "formats/json.h"

/* Any thread: appends one line to the job's event log (on the coordination thread). */
void ptc_event(struct ptc_cluster *c, const char *uuid, const char *kind, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
/* The same with a member `switch`, which is taken over; NULL: without. */
void ptc_event_with(struct ptc_cluster *c, const char *uuid, const char *kind, json_t *of_switch, const char *fmt, ...)
	__attribute__((format(printf, 5, 6)));

/* What this daemon remembers of a job's events, for when etcd is unreachable: what it wrote, and what it was told to remember. Any thread;
 * the first blocks. */
void ptc_events_remember(struct ptc_etcd *etcd, const char *uuid); /* what etcd has of it */
int ptc_events_remembered(const char *uuid, json_t *to); /* objects with their `number`, in no order; 0 or PTC_ENOMEM */
int ptc_events_add(json_t *to, uint64_t number, const char *json, size_t len); /* nothing where it cannot be read */
void ptc_events_free(void);
