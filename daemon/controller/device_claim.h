/* SPDX-License-Identifier: Apache-2.0 */
/* Which job has which devices, for a job's controller: what a switch claims, what is given back, and the document in
 * etcd. The caller owns a claim until it gives it to its transaction, which owns it from then on. Functions that block
 * are not for the loop thread. Failure modes: another job has a device; etcd does not answer; the document cannot be
 * read, or is too long; memory. */
#pragma once

#include "daemon/cluster/cluster.h"
#include "daemon/core/switch_terms.h"

struct ptc_odd_rank;

#define PTC_DEVICE_TRIES 32 /* of a write: other jobs wrote the document at the same moment */

/* Bytes that a switch has restored to devices, by where they came from. */
struct ptc_restored_devices {
	uint64_t kept_bytes, peer_bytes, host_bytes;
	bool unfinished; /* some node has answered before its restore had ended */
};

struct ptc_controller;
struct ptc_controllers;

/* Of one controller. claims: how often its switches have claimed devices. busy: a look at the job's devices is under
 * way. The rest is about the last look: its time, the record (revision) and the document (writes) that it saw. right:
 * the job had just the devices that its ranks need. */
struct ptc_device_looks {
	uint64_t claims;
	bool busy, right;
	int64_t looked_ns, revision;
	uint64_t writes;
	struct ptc_odd_devices *odd; /* below */
};

/* device_claim.c: the devices of the ranks that a switch is to start. All of zeros: it starts none. */
struct ptc_device_claim {
	struct ptc_controllers *all;
	struct ptc_meta_doc meta; /* the job's */
	struct ptc_device_given *want;
	size_t n;
	/* the document with the wanted devices added, and the mod_revision of the document that was read for it */
	char *json;
	int64_t revision;
	int status; /* PTC_ENODEVICES: another job has some; text says so */
	char text[PTC_JOB_TEXT_MAX];
};
/* Of the switch under way. 0 or PTC_ENOMEM. Loop thread. */
int ptc_device_claim_make(struct ptc_controller *ctl, struct ptc_device_claim *ret);
void ptc_device_claim_done(struct ptc_device_claim *c);
/* Reads the document, and adds what is wanted; may be called again. Blocks. */
int ptc_device_claim_read(struct ptc_device_claim *c, struct ptc_etcd *e, struct ptc_error *err);
/* Whether the document has been written since. Blocks. */
bool ptc_device_claim_moved(const struct ptc_device_claim *c, struct ptc_etcd *e);
/* Claims the devices of g's ranks before their switch has an intent, in the job's lane; then done, on the loop. status
 * PTC_ENODEVICES: another job has some. Claimed devices are given back like all others, once no process of the job has
 * them. */
void ptc_device_claim_early(struct ptc_controller *ctl, const struct ptc_generation_doc *g,
			    void (*done)(void *arg, int status, const char *why), void *arg);
/* "job NAME" where the job is of that user, else "a job of user UID": names are each user's own. In buf. */
const char *ptc_device_owner(const struct ptc_meta_doc *job, uint64_t uid, char *buf, size_t size);

/* device_keeper.c: every 200 ms; gives back the devices that the job's ranks have no more. Loop thread. */
void ptc_device_keeper_tick(struct ptc_controller *ctl);

/* odd_devices.c: devices whose ranks had wrong replicas (`on_difference`). Loop thread. */
struct ptc_odd_devices; /* of one controller, for ptc_free; NULL: there are none */
/* A capture has found odd ranks; why says it in a line. */
void ptc_odd_devices_found(struct ptc_controller *ctl, const struct ptc_odd_rank *ranks, size_t n, const char *why);
/* Each 200 ms, of a job that trains and all of whose nodes are up. True: it is taking ranks off such devices, and
 * nothing else is to be begun. why is not "": the caller ends the ranks now, and starts the job again for that. */
bool ptc_odd_devices_tick(struct ptc_controller *ctl, char *why, size_t size);
bool ptc_odd_devices_hold(const struct ptc_controller *ctl); /* the same, for due snapshots */

/* device_left.c: writes down that the job has left these devices (left), or that it may have them again; takes v.
 * done(ok), which may be NULL: ok is false if etcd did not answer, or if the job's lock is another's. What is given
 * back is written again until etcd answers. Loop thread. */
typedef void (*ptc_devices_left_fn)(struct ptc_controller *ctl, bool ok);
void ptc_devices_left_write(struct ptc_controller *ctl, struct ptc_slow_device *v, size_t n, bool left,
			    ptc_devices_left_fn done);

/* device_document.c. All of it blocks. */
/* Reads the document, without the devices of deleted jobs. *ret_revision: the mod_revision to compare when it is
 * written; 0: there is no document yet. */
int ptc_devices_read(struct ptc_controllers *all, struct ptc_etcd *e, struct ptc_devices_doc *ret,
		     int64_t *ret_revision, struct ptc_error *err);
/* Whether somebody has written the document since that revision. False also if etcd does not answer. */
bool ptc_devices_moved(struct ptc_etcd *e, int64_t revision);
/* The document's JSON (ptc_free it). If it is too long, removes the devices of nodes that are not up from d.
 * PTC_ELIMIT: it is still too long. */
int ptc_devices_text(struct ptc_controllers *all, struct ptc_devices_doc *d, char **ret_json, struct ptc_error *err);
/* Reads a job's meta. *ret_there false: the job is deleted. */
int ptc_devices_job(struct ptc_etcd *e, const char *uuid, bool *ret_there, struct ptc_meta_doc *ret_meta,
		    struct ptc_error *err);
