/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that survives (ptc_survive) publishes its blobs and cursors in the shared page. There are two copies, so one
 * of them is always whole. The caller's thread only. Inside libptc. */
#pragma once

#include "client/lib/promise/memory_samples.h"
#include "proto/local_messages.h"
#include "proto/local_page.h"
#include "ptc/ptc.h"

#define CLIENT_HELD_MAX_MS 300000 /* for which a rank that is not frozen waits for its ptcd */

struct blob {
	char name[PTC_LOCAL_SHORT_MAX + 1];
	enum ptc_blob_scope scope;
	void *data;
	size_t len;
	uint64_t set_at; /* promise.set_at after its last change */
	bool dirty;      /* ptcd has not got it on this connection */
};

struct cursor {
	char name[PTC_LOCAL_SHORT_MAX + 1], tag[PTC_LOCAL_SHORT_MAX + 1];
	uint64_t position, set_at;
	bool dirty;
};

struct rank_state {
	struct blob blobs[PTC_LOCAL_BLOBS_MAX];
	struct cursor cursors[PTC_LOCAL_CURSORS_MAX];
	size_t nblobs, ncursors;
};

struct said {
	struct ptc_local_out out;
	uint64_t at; /* `set_at` when it was written; 0: never */
};
struct promise {
	bool made, tried;         /* tried: to make memory that outlives the process */
	uint64_t set_at, said_at; /* number of changes of blobs and cursors; its value at the last publication */
	uint64_t shaped_at;       /* set_at after the last change that was more than a new value of equal length */
	struct said said[2];      /* what the page's `published` name */
	unsigned next;            /* of `said`, the older one */
	bool broken;              /* until ptc_next */
	char why[PTC_LOCAL_BROKEN_WHY];
	struct samples samples; /* of declared memory, once a promise was made in this generation */
};
/* If possible, moves `said` to memory that ptcd gets, too, so that it outlives us (PTC_LOCAL_KEEPS). Returns true once:
 * the memory was made just now, and the caller wakes the thread of the connection (ptc_client_wake_locked). */
bool ptc_client_keep(ptc_client *c);
/* Before a boundary at `step`, if something has changed. */
void ptc_client_publish(ptc_client *c, uint64_t step);

/* ---- promise.c; the page is NULL if there is none ---- */

/* Takes the promise back, and what was published. */
void ptc_promise_unpublish(struct promise *p, struct ptc_local_page *page);
/* The generation is over, too: another one may promise again. */
void ptc_promise_over(struct promise *p, struct ptc_local_page *page);
/* A promise that is broken is kept no more in this generation; the first reason stays. */
void ptc_promise_break(struct promise *p, struct ptc_local_page *page, const char *why);
/* Where an update begins, and where the rank gives up: breaks the promise if a sample of memory has changed. */
void ptc_promise_compare(struct promise *p, struct ptc_local_page *page, uint64_t next_step);

/* Sleeps a millisecond, and adds to *waited_ms how long that took. If it took much longer, the process was frozen:
 * ptcd, which does that, was there, and may hold ranks for hours while etcd is unreachable. So that time does not
 * count. */
void ptc_client_nap(int64_t *waited_ms);
