/* SPDX-License-Identifier: Apache-2.0 */
/* The document /ptc/nodes-devices in etcd, which says for all jobs which devices their ranks have. A transaction that
 * changes it compares its mod_revision, so two jobs never get the same device at the same moment. Plain data of the
 * caller; no thread of its own. Failure modes: PTC_ENOMEM; a document that is malformed or too long. */
#pragma once

#include "base/limits.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PTC_DEVICES_KEY       "/ptc/nodes-devices"
#define PTC_DEVICES_MAX_BYTES PTC_ETCD_VALUE_MAX
#define PTC_DEVICES_UUID      37

/* Why a job lacks devices. TAKEN: other jobs have them. LEAVING: one of these jobs has no ranks any more, so it gives
 * its devices back as soon as its last process has ended. */
enum ptc_devices_lack { PTC_DEVICES_ENOUGH, PTC_DEVICES_TAKEN, PTC_DEVICES_LEAVING };

struct ptc_device_given {
	char node[PTC_NAME_MAX + 1];
	uint32_t device;
	char uuid[PTC_DEVICES_UUID]; /* the job's */
	bool shares;                 /* the job says `share_devices: true` */
};
/* All zeros: no job has any. */
struct ptc_devices_doc {
	struct ptc_device_given *v; /* by node, device, uuid */
	size_t n;
};
void ptc_devices_doc_done(struct ptc_devices_doc *d);
/* JSON for ptc_free; NULL: out of memory. */
char *ptc_devices_doc_encode(const struct ptc_devices_doc *d);
int ptc_devices_doc_decode(const char *json, size_t len, struct ptc_devices_doc *ret, struct ptc_error *err);

/* Adds entries, each of another device or job. An entry that is there already stays as it is. 0 or PTC_ENOMEM. */
int ptc_devices_add(struct ptc_devices_doc *d, const struct ptc_device_given *more, size_t n);
bool ptc_devices_has(const struct ptc_devices_doc *d, const char *node, uint32_t device, const char *uuid);
/* The entries of one node, *ret_n of them. Borrowed until the document changes. */
const struct ptc_device_given *ptc_devices_of_node(const struct ptc_devices_doc *d, const char *node, size_t *ret_n);
/* Takes from the job each device for which keep(arg, its entry) is false (keep NULL: all). True: there were any. */
bool ptc_devices_take(struct ptc_devices_doc *d, const char *uuid,
		      bool (*keep)(void *arg, const struct ptc_device_given *g), void *arg);
/* The entry of another job that keeps this job from having the device; NULL: it may have it. Two jobs may have a device
 * together only if both share. Borrowed until the document changes. */
const struct ptc_device_given *ptc_devices_taken(const struct ptc_devices_doc *d, const char *node, uint32_t device,
						 const char *uuid, bool shares);
