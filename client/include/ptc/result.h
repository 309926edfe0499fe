/* SPDX-License-Identifier: Apache-2.0 */
/* What all headers of libptc share: the version of the API, and what its functions return. */
#ifndef PTC_RESULT_H
#define PTC_RESULT_H

#define PTC_API_VERSION 1
#define PTC_API         __attribute__((visibility("default")))

enum ptc_result {
	PTC_R_INVALID = -1, /* an argument or a call out of order; nothing changed */
	PTC_R_REFUSED = -2, /* ptcd refused, e.g. declarations of two ranks that contradict each other */
	PTC_R_LOST = -3,    /* no ptcd answers, or the connection broke and could not be made again */
	PTC_R_MEMORY = -4,  /* out of memory */
	PTC_R_LIMIT = -5,   /* a stated maximum was exceeded */
	PTC_R_TIMEOUT = -6, /* the given time has passed */
	PTC_R_SYSTEM = -7,  /* a call to the operating system failed */
	PTC_R_VERSION = -8, /* library and daemon do not speak a common version */
	PTC_R_STALE = -9,   /* this process belongs to a generation or incarnation that has ended */
};

#endif
