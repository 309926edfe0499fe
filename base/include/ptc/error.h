/* SPDX-License-Identifier: Apache-2.0 */
/* The codes that functions of libptcadmin return, and the error that they fill. Installed with libptcadmin.
 *
 * A function returns 0 or a negative code. Codes are grouped by where the fault lies. Daemons send them to each other,
 * and ptcctl makes its exit status from them: so a number keeps its meaning for ever, and new codes are added at the
 * end of a group. A program treats a code that it does not know as PTC_EINTERNAL. */
#ifndef PTC_ERROR_H
#define PTC_ERROR_H

#ifdef __cplusplus
extern "C" {
#endif

#define PTC_ADMIN_API __attribute__((visibility("default")))

enum ptc_status {
	PTC_OK = 0,
	/* input: the request cannot be carried out as it is; nothing changed */
	PTC_EINVAL = -101,    /* malformed or contradictory input */
	PTC_ENOTFOUND = -102, /* the named thing does not exist */
	PTC_EEXIST = -103,    /* the name is taken */
	PTC_ELIMIT = -104,    /* a named maximum was exceeded */
	PTC_EVERSION = -105,  /* a message or record of a version that this program cannot read */
	PTC_EPERM = -106,     /* the caller may not do this */
	PTC_ESTATE = -107,    /* not possible in the current state (job busy, no data) */
	PTC_EFINISHED = -108, /* too late: a rank has finished before the step where it was to stop */
	/* tensor: layouts and plans */
	PTC_ELAYOUT = -201, /* a rule does not fit a shape or a configuration */
	PTC_EDIGEST = -202, /* bytes differ from what was committed */
	/* store */
	PTC_ENOSPC = -301,   /* memory ceiling, map or disk full */
	PTC_ECORRUPT = -302, /* a checksum or a record does not verify */
	PTC_ELOST = -303,    /* bytes of a committed state are gone */
	PTC_EIO = -304,      /* a call to the operating system failed */
	/* peer */
	PTC_EPEER = -401,     /* a peer is unreachable or broke the protocol */
	PTC_ETIMEOUT = -402,  /* a deadline passed */
	PTC_ECANCELED = -403, /* cancelled by the caller */
	PTC_EFENCED = -404,   /* a newer controller exists */
	/* cluster */
	PTC_ECOORD = -501,     /* etcd is unreachable or refused */
	PTC_ECONFLICT = -502,  /* another daemon committed first */
	PTC_ENODEVICES = -503, /* more devices asked for than are known */
	/* process */
	PTC_ENOMEM = -601,    /* out of memory */
	PTC_EINTERNAL = -602, /* a bug: an invariant did not hold, so the call stopped */
};

/* Upper bound of one error line, terminating NUL included. */
#define PTC_ERROR_MAX 1024

/* An error in the caller's memory, filled on failure only. Every function accepts NULL for it. This struct never grows.
 */
struct ptc_error {
	int code;                 /* enum ptc_status, 0 while unset */
	char text[PTC_ERROR_MAX]; /* one line: what, where, what to do */
};

#define PTC_ERROR_INIT                                                                                                 \
	{                                                                                                              \
		0,                                                                                                     \
		{                                                                                                      \
			0                                                                                              \
		}                                                                                                      \
	}

/* The short stable name of a code, e.g. "not-found"; "unknown" for a number that the library does not know.
 * Static memory; any thread. */
PTC_ADMIN_API const char *ptc_status_name(int code);

#ifdef __cplusplus
}
#endif
#endif
