/* SPDX-License-Identifier: Apache-2.0 */
/* The measurements of a job, in etcd beside its record (/ptc/jobs/UUID/measured): the step time of each configuration
 * that has run, and when the job has changed. Bounded; the oldest goes first. Plain data of the caller, no thread of
 * its own. */
#pragma once

#include "base/status.h"
#include "reshard/spec/config.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PTC_MEASURED_ROWS    64  /* a job has run under fewer */
#define PTC_MEASURED_CHANGES 16  /* the last so many; their mean is used */
#define PTC_MEASURED_LOSSES  16  /* likewise */
#define PTC_MEASURED_CONFIG  512 /* bytes of a configuration's text; a longer one is not kept */

struct ptc_measured_row {
	char config[PTC_MEASURED_CONFIG];
	double step_s;
	double peak_bytes; /* of a device; 0: not known */
	double host_bytes; /* the most that a rank's process had to itself; 0: not known */
	double noise;      /* of step_s, relative; 0: not known */
	uint64_t steps;    /* measured over so many */
	int64_t time_ms;
};
struct ptc_measured_change {
	int64_t time_ms;
	double pause_s;  /* training stood still; 0: not known */
	double moving_s; /* the part of pause_s in which bytes moved */
};
/* Devices of the cluster have gone, whether or not the job had to change for that. */
struct ptc_measured_loss {
	int64_t time_ms;
	uint32_t devices;
};
struct ptc_measured_doc {
	struct ptc_measured_row rows[PTC_MEASURED_ROWS];
	size_t nrows;
	struct ptc_measured_change changes[PTC_MEASURED_CHANGES];
	size_t nchanges;
	struct ptc_measured_loss losses[PTC_MEASURED_LOSSES];
	size_t nlosses;
	uint32_t devices; /* that were there when this was written; 0: not known */
};
char *ptc_measured_encode(const struct ptc_measured_doc *d); /* ptc_free it; NULL: out of memory */
int ptc_measured_decode(const char *json, size_t len, struct ptc_measured_doc *ret, struct ptc_error *err);
/* Replaces the row of that configuration. */
void ptc_measured_add(struct ptc_measured_doc *d, const struct ptc_measured_row *row);
void ptc_measured_change_add(struct ptc_measured_doc *d, const struct ptc_measured_change *change);
/* Notes how many devices there are now. True: some have gone since the last note. */
bool ptc_measured_devices(struct ptc_measured_doc *d, uint32_t devices, int64_t now_ms);
/* What n losses say until now: the mean time between them, seconds, and the mean number of devices. 0, 0: fewer than
 * two are known. */
void ptc_measured_losses_mean(const struct ptc_measured_loss *v, size_t n, int64_t now_ms, double *ret_every_s,
			      double *ret_devices);
/* Mean time between changes, seconds; 0: fewer than three are known. */
double ptc_measured_between_s(const struct ptc_measured_doc *d);
/* The mean time for which a switch stops the job, without moving bytes; absent if none was measured. */
double ptc_measured_pause_s(const struct ptc_measured_doc *d, double absent);
