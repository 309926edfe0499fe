/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: Near answers the identity of its machine, which is compared with ours, and a path. The socket at that
 * path belongs to our own user, and gives the file by a question without ranges (proto/direct_read.h).
 *
 * Failure modes: no answer in time, a malformed one, a descriptor of something else than a file on tmpfs that can only
 * be read (PTC_EPEER); a socket of another user (PTC_EPERM), which is asked nothing. */
#include "daemon/agent/near/near_ask.h"

#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/fault.h"
#include "daemon/store/store_key.h"
#include "proto/direct_read.h"
#include "proto/pb.h"
#include "proto/ptc.pb-c.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/vfs.h>
#include <unistd.h>

int ptc_near_machine(char machine[NEAR_MACHINE_MAX], struct ptc_error *err)
{
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, machine, NEAR_MACHINE_MAX - 1);
	int rc = n < 0 ? ptc_error_errno(err, errno, "cannot read this machine's boot_id") : 0;

	ptc_close(&fd);
	if (rc)
		return rc;
	machine[n] = '\0';
	machine[strcspn(machine, "\n")] = '\0';
	return *machine ? 0 : ptc_error_set(err, PTC_EINVAL, "this machine has no boot_id");
}

int ptc_near_ask_machine(struct ptc_rpc_channel *channel, const char *machine, char ret_socket[NEAR_SOCKET_BYTES],
			 struct ptc_error *err)
{
	Ptc__V1__NearRequest req = PTC__V1__NEAR_REQUEST__INIT;
	ptc_auto_free void *out = NULL, *in = NULL;
	ProtobufCMessage *msg = NULL;
	const Ptc__V1__NearReply *reply;
	size_t out_len, in_len;
	int rc;

	req.version = PTC_WIRE_VERSION;
	rc = ptc_pb_encode(&req.base, &out, &out_len, err);
	if (rc == 0)
		rc = ptc_rpc_unary(channel, "/ptc.v1.Peer/Near", out, out_len, NEAR_ASK_MS, NULL, 0, &in, &in_len, err);
	if (rc == 0)
		rc = ptc_pb_decode(&ptc__v1__near_reply__descriptor, in, in_len, &msg, err);
	if (rc)
		return rc;
	reply = (const Ptc__V1__NearReply *)msg;
	rc = ptc_pb_version(reply->version, err);
	*ret_socket = '\0';
	if (!rc && !strcmp(reply->machine, machine) && strlen(reply->socket) < NEAR_SOCKET_BYTES)
		strcpy(ret_socket, reply->socket);
	ptc_pb_free(msg);
	return rc;
}

static int near_connect(const char *path, int *ret_fd, struct ptc_error *err)
{
	const struct timeval limit = { .tv_sec = NEAR_ASK_MS / 1000 };
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct ucred cred;
	socklen_t len = sizeof cred;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), rc = 0;

	snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) ||
	    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) || /* of connect, too */
	    connect(fd, (const struct sockaddr *)&address, sizeof address) ||
	    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len))
		rc = ptc_error_errno(err, errno, "cannot connect to %s", path);
	else if (cred.uid != geteuid() || ptc_fault("agent.near.user"))
		rc = ptc_error_set(err, PTC_EPERM, "%s belongs to another user", path);
	if (rc)
		ptc_close(&fd);
	else
		*ret_fd = fd;
	return rc;
}

/* The answer to a question without ranges; its descriptor in any case, -1: none. */
static bool near_receive(int conn, struct ptc_direct_read_reply *reply, int *ret_fd)
{
	union {
		struct cmsghdr align;
		uint8_t bytes[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct iovec iov = { reply, sizeof *reply };
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = control.bytes,
			      /* not CMSG_SPACE: its padding is room for a second descriptor */
			      .msg_controllen = CMSG_LEN(sizeof(int)) };
	ssize_t n = recvmsg(conn, &msg, MSG_CMSG_CLOEXEC);
	const struct cmsghdr *c = n < 0 ? NULL : CMSG_FIRSTHDR(&msg);

	*ret_fd = -1;
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(ret_fd, CMSG_DATA(c), sizeof(int));
	return n == (ssize_t)sizeof *reply && !(msg.msg_flags & MSG_CTRUNC) && reply->magic == PTC_DIRECT_READ_MAGIC &&
	       !reply->nspans && !reply->nchunks && reply->status <= 0;
}

/* A file from which a read never waits, and which nobody can make us write to. */
static bool is_chunk_file(int fd, const struct ptc_direct_read_reply *reply)
{
	struct statfs fs;
	struct stat st;

	return fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_dev == reply->dev &&
	       st.st_ino == reply->ino && !fstatfs(fd, &fs) && (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC) &&
	       (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY;
}

int ptc_near_ask_file(const char *socket, const struct ptc_table_key *table, struct ptc_near_file *ret_file,
		      struct ptc_error *err)
{
	struct ptc_direct_read_request q = { .magic = PTC_DIRECT_READ_MAGIC,
					     .generation = table->generation,
					     .snapshot = table->snapshot };
	struct ptc_direct_read_reply reply;
	int conn = -1, fd = -1, rc = near_connect(socket, &conn, err);

	if (rc)
		return rc;
	memcpy(q.uuid, table->uuid, sizeof table->uuid);
	if (send(conn, &q, sizeof q, MSG_NOSIGNAL) != (ssize_t)sizeof q || !near_receive(conn, &reply, &fd))
		rc = ptc_error_set(err, PTC_EPEER, "%s does not answer as a ptcd does", socket);
	else if (reply.status)
		rc = ptc_error_set(err, reply.status, "%s gives no file of job %s", socket, table->uuid);
	else if (!is_chunk_file(fd, &reply))
		rc = ptc_error_set(err, PTC_EPEER, "%s gives something else than a file of chunks in memory", socket);
	ptc_close(&conn);
	if (rc)
		ptc_close(&fd);
	else
		*ret_file = (struct ptc_near_file){ fd, reply.dev, reply.ino };
	return rc;
}
