/* SPDX-License-Identifier: Apache-2.0 */
/* Reading and writing a job's bytes through the control API: committed generations
 * that are kept ready, generations that readers hold, import, export, verify.
 * Views are counted; handlers run on server threads. */
#pragma once

#include "daemon/api/caller/caller.h"

/* ---- readview.c: committed generations that were read lately ---- */

struct ptc_read_views *ptc_read_views_new(void); /* NULL: out of memory */
struct ptc_read_views *ptc_read_views_free(struct ptc_read_views *r);
/* The committed generation of a target, ready to be read and kept for the next read. */
struct ptc_read_view {
	struct ptc_view view;
	struct ptc_geometry geometry;
	/* private */
	struct ptc_read_views *owner;
	char manifest_hash[PTC_HASH_HEX];
	uint64_t epoch, used;
	unsigned refs;
	bool kept;
};
int ptc_read_view_get(struct ptc_daemon *d, struct ptc_target *t, struct ptc_read_view **ret_view,
		      struct ptc_error *err);
void ptc_read_view_ref(struct ptc_read_view *v);
void ptc_read_view_put(struct ptc_read_view *v);
/* pins.c: the committed generation of the caller's job, or one that a reader holds. uuid "": not compared. PTC_ESTATE: the
 * job has moved on. */
int ptc_control_read_view(struct ptc_daemon *d, struct ptc_rpc_call *call, const char *job, const char *uuid,
			  uint64_t generation, uint64_t snapshot, struct ptc_read_view **ret_view,
			  struct ptc_error *err);

/* ---- pins.c: generations that readers hold through this daemon ---- */

struct ptc_pins *ptc_pins_new(void);                /* NULL: out of memory */
struct ptc_pins *ptc_pins_free(struct ptc_pins *h); /* before the read views and the agent */
void ptc_pins_expire(struct ptc_pins *h);           /* any thread; does not block */
/* Every node of the view pins its table for the reader, for so long; 0: gives it up. *ret_pinned: how many do. */
int ptc_pins_nodes(struct ptc_daemon *d, const struct ptc_read_view *view, const char *reader, uint32_t ttl_ms,
		   unsigned *ret_pinned, struct ptc_error *err);
/* A reference to what a reader holds through this daemon. False: nothing such is held. */
bool ptc_pins_view(struct ptc_pins *h, const char *uuid, uint64_t generation, uint64_t snapshot,
		   struct ptc_read_view **ret_view);

/* ---- handlers: control_data.c, pins.c, control_verify.c ---- */

PTC_CONTROL_HANDLER(ptc_control_import_begin);
PTC_CONTROL_HANDLER(ptc_control_import_data);
PTC_CONTROL_HANDLER(ptc_control_import_commit);
PTC_CONTROL_HANDLER(ptc_control_export_info);
PTC_CONTROL_HANDLER(ptc_control_read);
PTC_CONTROL_HANDLER(ptc_control_read_many);
PTC_CONTROL_HANDLER(ptc_control_read_rank);
PTC_CONTROL_HANDLER(ptc_control_pin);
PTC_CONTROL_HANDLER(ptc_control_verify);
