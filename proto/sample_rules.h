/* SPDX-License-Identifier: Apache-2.0 */
/* Rules for SamplesRequest and SamplesReply (ptc.proto). Each receiver checks them: a daemon, its helper that has the
 * source open, and the reader. Happy path: 0. Failure modes: a request beyond the limits (PTC_EINVAL, PTC_ELIMIT), an
 * answer that does not fit what was asked for (PTC_EPEER). Any thread. */
#pragma once

#include "base/status.h"

#include "ptc.pb-c.h"

#define PTC_SAMPLES_MAX   8192       /* of one request; their sizes take 80 KiB at most */
#define PTC_SAMPLES_BYTES (1u << 20) /* of one answer: the largest read of a file system's client */
#define PTC_SAMPLES_NAME  4095       /* of a file, relative to its dataset: PATH_MAX less its NUL */
#define PTC_SAMPLES_NAMES 1024       /* of one request for names */
#define PTC_SAMPLES_AHEAD 1024       /* that are wanted next */
#define PTC_SAMPLES_FRAME (8u << 20) /* an encoded answer is shorter */

int ptc_samples_check(const Ptc__V1__SamplesRequest *q, struct ptc_error *err);
/* How many bytes of sample i, which has size, are in the answer. i < n_samples. */
size_t ptc_samples_part(const Ptc__V1__SamplesRequest *q, size_t i, uint64_t size);
int ptc_samples_fits(const Ptc__V1__SamplesRequest *q, const Ptc__V1__SamplesReply *r, struct ptc_error *err);
