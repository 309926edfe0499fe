/* SPDX-License-Identifier: Apache-2.0 */
/* FUSE passthrough: the kernel reads an open file from another file, its backing file, and asks nobody. Linux has it
 * from 6.9 on, for processes with CAP_SYS_ADMIN. libfuse 3.14 does not know it, so these functions change the messages
 * that libfuse reads and writes, and make those that it cannot make.
 *
 * Happy path: fs_pass_request sees the kernel's INIT, fs_pass_reply adds passthrough to the answer, fs_pass_attach
 * gives a backing file a number, and fs_pass_open_reply makes an answer to OPEN that names the number. Failure modes:
 * the kernel does not offer it (offered stays false); fs_pass_attach returns -EPERM without the capability, -ELOOP for
 * a file on overlayfs. Threads: INIT is the first request, and no other one comes before it is answered. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

struct fs_pass {
	_Atomic uint64_t init; /* the number of the INIT that is being answered; 0: none */
	bool offered;          /* the kernel has it */
	bool on;               /* the kernel was told that we use it */
};

/* Looks at a request that was read. */
void fs_pass_request(struct fs_pass *p, const void *request, ssize_t len);
/* Changes a reply that is about to be written, if it is that to INIT. */
void fs_pass_reply(struct fs_pass *p, const struct iovec *iov, int count);

/* Gives the kernel a file for reading; the kernel keeps it until detached. Returns its number, from 1 on, or -errno. */
int fs_pass_attach(int device, int fd);
void fs_pass_detach(int device, int number);

/* The answer to an OPEN whose file is read from a backing file. The bytes are the body of the reply. */
#define FS_PASS_OPEN_BYTES 16
void fs_pass_open_reply(uint64_t handle, int number, uint8_t ret[FS_PASS_OPEN_BYTES]);
