/* SPDX-License-Identifier: Apache-2.0 */
/* A job's bytes through the control API: read views, which are kept ready; generations that readers pin; import,
 * export, verify. References to a view are counted. Handlers run on server threads. */
#pragma once

#include "base/cache/counted_cache.h"
#include "daemon/api/caller/caller.h"

/* ---- readview.c: committed generations of recent reads ---- */

struct ptc_read_views *ptc_read_views_new(void); /* NULL: out of memory */
struct ptc_read_views *ptc_read_views_free(struct ptc_read_views *r);
/* A committed generation that is ready for reads, and kept for the next one. */
struct ptc_read_view {
	struct ptc_cached cached;
	struct ptc_view view;
	struct ptc_geometry geometry;
};
int ptc_read_view_get(struct ptc_daemon *d, struct ptc_target *t, struct ptc_read_view **ret_view,
		      struct ptc_error *err);
void ptc_read_view_ref(struct ptc_read_view *v);
void ptc_read_view_put(struct ptc_read_view *v);
/* pins.c: gives the committed generation of the caller's job, or one that a reader has pinned. uuid "": any.
 * PTC_ESTATE: the job has moved on. */
int ptc_api_read_view(struct ptc_daemon *d, struct ptc_rpc_call *call, const char *job, const char *uuid,
		      uint64_t generation, uint64_t snapshot, struct ptc_read_view **ret_view, struct ptc_error *err);

/* ---- pins.c: generations that readers pin through this daemon ---- */

struct ptc_pins *ptc_pins_new(void);                /* NULL: out of memory */
struct ptc_pins *ptc_pins_free(struct ptc_pins *h); /* free it before the read views and the agent */
void ptc_pins_expire(struct ptc_pins *h);           /* any thread; does not block */
/* Has every node of the view pin its table for the reader for ttl_ms; 0: end the pin. *ret_pinned: how many nodes did.
 */
int ptc_pins_nodes(struct ptc_daemon *d, const struct ptc_read_view *view, const char *reader, uint32_t ttl_ms,
		   unsigned *ret_pinned, struct ptc_error *err);

/* api_import.c: finds the job of an import that has begun, and waits until the mirror shows it. PTC_ESTATE: it is not
 * open. */
int ptc_api_import_find(struct ptc_daemon *d, struct ptc_rpc_call *call, const char *job, uint64_t id,
			struct ptc_target *ret_target, struct ptc_error *err);

/* Of an import that is open, and that this daemon controls: the layout document of its tensors; "": the job's
 * description has them. PTC_ESTATE: it is not open here any more. */
int ptc_api_import_layout(struct ptc_daemon *d, const char *uuid, uint64_t id, char ret_hash[PTC_HASH_HEX],
			  struct ptc_error *err);
/* api_export.c: the job's description, or, with a layout document that says which tensors ranks have, one with these.
 * ptc_free *ret_json. */
int ptc_api_spec_of(struct ptc_daemon *d, const struct ptc_meta_doc *meta, const char *layout_hash, char **ret_json,
		    size_t *ret_len, struct ptc_error *err);

struct ptc_item_range;
/* api_read.c: the ranges that a request asks for by three lists, of which each has an entry for each range. */
struct ptc_asked_ranges {
	const uint32_t *items; /* in the order of the file's data */
	const uint64_t *offsets, *lengths;
	size_t nitems, noffsets, nlengths;
};
#define PTC_ASKED_RANGES(req)                                                                                          \
	((struct ptc_asked_ranges){ (req)->items, (req)->offsets, (req)->lengths, (req)->n_items, (req)->n_offsets,    \
				    (req)->n_lengths })
/* PTC_EINVAL: the lists differ in length; PTC_ELIMIT: too many ranges. The caller frees *ret. */
int ptc_api_ranges(const struct ptc_asked_ranges *asked, struct ptc_item_range **ret, struct ptc_error *err);

/* ---- handlers: api_import.c, api_import_commit.c, api_export.c, api_read.c, near_nodes.c, pins.c, api_verify.c ----
 */

#define PTC_IMPORT_HEADERS_MAX_BYTES (16u << 20) /* of imported files; more are not kept for exports */

PTC_API_HANDLER(ptc_api_import_begin);
PTC_API_HANDLER(ptc_api_import_data);
PTC_API_HANDLER(ptc_api_import_commit);
PTC_API_HANDLER(ptc_api_export_info);
PTC_API_HANDLER(ptc_api_read);
PTC_API_HANDLER(ptc_api_read_many);
PTC_API_HANDLER(ptc_api_read_into);
PTC_API_HANDLER(ptc_api_read_rank);
PTC_API_HANDLER(ptc_api_near_nodes);
PTC_API_HANDLER(ptc_api_pin);
PTC_API_HANDLER(ptc_api_verify);
