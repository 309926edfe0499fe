/* SPDX-License-Identifier: Apache-2.0 */
/* Frames between ptcd and ptc-source over a socket pair: a status and some bytes. If the status is 0, the bytes are the
 * content; otherwise they are the text of the error. Happy path: one frame each way. Failure modes: the other end is
 * gone (PTC_EPEER), the time is over (PTC_ETIMEOUT; the socket is of no use any more), more bytes than are taken
 * (PTC_EPEER). One thread at each end. */
#pragma once

#include "base/status.h"

#include <stdint.h>

#define PTC_FRAME_FOREVER INT64_MAX
#define PTC_SOURCE_FD     3 /* ptc-source's end */

/* deadline_ns: on ptc_sys_now_ns's clock. */
int ptc_frame_send(int fd, int status, const void *data, size_t len, int64_t deadline_ns, struct ptc_error *err);
/* *ret_data: ptc_free it, NUL-terminated; NULL where len is 0. */
int ptc_frame_recv(int fd, size_t max, int64_t deadline_ns, int *ret_status, void **ret_data, size_t *ret_len,
		   struct ptc_error *err);
