/* SPDX-License-Identifier: Apache-2.0 */
/* libptcadmin's handle, and its two kinds of call: with one reply, and with a stream of replies. Happy path: pack,
 * send, unpack, check the version. Failure: what the daemon or the transport said, unchanged; PTC_EPEER for a reply
 * that does not decode, PTC_EVERSION for one of another protocol. Channels connect lazily, so open only fails on bad
 * arguments, and where too few descriptors are free. */
#include "client/admin/internal.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "proto/direct_read.h"

#include <errno.h>
#include <ptc/admin_plan.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define DEFAULT_TIMEOUT_MS 60000
#define MEASURE_TIMEOUT_MS 600000 /* of 31 rounds, each with a node that does not answer for 10 s, and more */
#define DESCRIPTORS_MIN    16

static void *seam_alloc(void *arg, size_t size)
{
	(void)arg;
	return ptc_malloc(size);
}

static void seam_free(void *arg, void *p)
{
	(void)arg;
	ptc_free(p);
}

static ProtobufCAllocator seam = { seam_alloc, seam_free, NULL };

/* A struct never becomes smaller. */
_Static_assert(sizeof(struct ptc_admin_opts) >= PTC_ADMIN_OLDEST_opts, "a member is gone");
_Static_assert(sizeof(struct ptc_admin_target) >= PTC_ADMIN_OLDEST_target, "a member is gone");
_Static_assert(sizeof(struct ptc_admin_advice) >= PTC_ADMIN_OLDEST_advice, "a member is gone");
_Static_assert(sizeof(struct ptc_admin_logs) >= PTC_ADMIN_OLDEST_logs, "a member is gone");
_Static_assert(sizeof(struct ptc_admin_samples) >= PTC_ADMIN_OLDEST_samples, "a member is gone");
_Static_assert(sizeof(struct ptc_admin_ranges_fn) >= PTC_ADMIN_OLDEST_ranges_fn, "a member is gone");
_Static_assert(sizeof(struct ptc_admin_spec_opts) >= PTC_ADMIN_OLDEST_spec_opts, "a member is gone");
_Static_assert(sizeof(struct ptc_admin_cluster) >= PTC_ADMIN_OLDEST_cluster, "a member is gone");
_Static_assert(sizeof(struct ptc_admin_item) >= PTC_ADMIN_OLDEST_item, "a member is gone");
_Static_assert(sizeof(struct ptc_admin_move) >= PTC_ADMIN_OLDEST_move, "a member is gone");
_Static_assert(sizeof(struct ptc_admin_totals) >= PTC_ADMIN_OLDEST_totals, "a member is gone");

static int size_of(const char *name, const void *given, size_t oldest, size_t size, size_t *ret_has,
		   struct ptc_error *err)
{
	size_t has;

	if (!given)
		return ptc_error_set(err, PTC_EINVAL, "%s is missing", name);
	memcpy(&has, given, sizeof has);
	if (has < oldest)
		return ptc_error_set(err, PTC_EINVAL, "%s has the size %zu: set its member size to sizeof, here %zu",
				     name, has, size);
	*ret_has = has;
	return 0;
}

int ptc_admin_take(const char *name, const void *given, size_t oldest, void *ret, size_t size, struct ptc_error *err)
{
	const unsigned char *bytes = given;
	size_t has = 0;
	int rc = size_of(name, given, oldest, size, &has, err);

	if (rc)
		return rc;
	for (size_t i = size; i < has; i++)
		if (bytes[i])
			return ptc_error_set(err, PTC_EVERSION,
					     "%s sets a member that libptcadmin %s does not know: install a newer one",
					     name, PTC_VERSION);
	memset(ret, 0, size);
	memcpy(ret, given, has < size ? has : size);
	return 0;
}

int ptc_admin_give(const char *name, void *ret, size_t oldest, const void *mine, size_t size, struct ptc_error *err)
{
	unsigned char *bytes = ret;
	size_t has = 0;
	int rc = size_of(name, ret, oldest, size, &has, err);

	if (rc)
		return rc;
	memset(bytes + sizeof has, 0, has - sizeof has);
	memcpy(bytes + sizeof has, (const unsigned char *)mine + sizeof has, (has < size ? has : size) - sizeof has);
	return 0;
}

/* Without descriptors the gRPC core ends the process, in words of its own; so they are counted before it is asked for
 * anything. */
static int check_descriptors(struct ptc_error *err)
{
	int fds[DESCRIPTORS_MIN], n = 0, number;

	while (n < DESCRIPTORS_MIN && (fds[n] = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) >= 0)
		n++;
	number = errno;
	for (int i = 0; i < n; i++)
		close(fds[i]);
	if (n == DESCRIPTORS_MIN)
		return 0;
	return ptc_error_errno(
		err, number,
		"a connection to a daemon needs %d descriptors and %d are free; raise the limit of open files "
		"(ulimit -n)",
		DESCRIPTORS_MIN, n);
}

static int check_socket(const char *path, struct ptc_error *err)
{
	size_t most = sizeof(((struct sockaddr_un *)NULL)->sun_path) - 1;

	if (path[0] != '/')
		return ptc_error_set(err, PTC_EINVAL, "the socket \"%.200s\" is not an absolute path%s", path,
				     path[0] ? "" : "; unset PTC_SOCKET for " PTC_ADMIN_DEFAULT_SOCKET);
	if (strlen(path) > most)
		return ptc_error_set(err, PTC_ELIMIT,
				     "the socket's path %.60s... has %zu bytes, at most %zu can be used", path,
				     strlen(path), most);
	return 0;
}

static bool listens(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	ptc_auto_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	memcpy(address.sun_path, path, strlen(path) + 1);
	return fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof address) == 0;
}

/* Root has a socket of its own beside the one for everybody, unless the daemon is an older one. It must be of the same
 * owner: the directory may be one where others make files. */
static void choose_socket(const char *path, char ret[sizeof(((struct sockaddr_un *)NULL)->sun_path)])
{
	const size_t size = sizeof(((struct sockaddr_un *)NULL)->sun_path);
	struct stat all, root;

	if (geteuid() == 0 && (size_t)snprintf(ret, size, "%s" PTC_CONTROL_ROOT_SUFFIX, path) < size &&
	    lstat(ret, &root) == 0 && S_ISSOCK(root.st_mode) && stat(path, &all) == 0 && root.st_uid == all.st_uid &&
	    listens(ret))
		return;
	snprintf(ret, size, "%s", path);
}

static int open_channels(const struct ptc_admin_opts *opts, struct ptc_admin *a, struct ptc_error *err)
{
	struct ptc_rpc_tls tls = { .ca_path = opts->ca_path,
				   .cert_path = opts->cert_path,
				   .key_path = opts->key_path,
				   .member = opts->member };
	char path[sizeof(((struct sockaddr_un *)NULL)->sun_path)] = "";
	ptc_auto_free char *unix_target = NULL;
	struct ptc_rpc_channel_opts channel = { 0 };
	const char *which;
	int rc;

	if (opts->server && (!tls.ca_path || !tls.cert_path || !tls.key_path))
		return ptc_error_set(err, PTC_EINVAL, "a server over TCP needs a CA, a certificate and a key");
	if (opts->server)
		rc = ptc_rpc_tls_check(&tls, NULL, &which, err);
	else
		rc = opts->socket ? check_socket(opts->socket, err) : 0;
	if (rc)
		return rc;
	if (!opts->server)
		choose_socket(opts->socket ? opts->socket : PTC_ADMIN_DEFAULT_SOCKET, path);
	unix_target = ptc_asprintf("unix:%s", path);
	if (!unix_target)
		return ptc_nomem(err);
	channel.target = opts->server ? opts->server : unix_target;
	channel.tls = opts->server ? &tls : NULL;
	rc = ptc_rpc_channel_new(&channel, &a->control, err);
	channel.bulk = true;
	return rc ? rc : ptc_rpc_channel_new(&channel, &a->bulk, err);
}

int ptc_admin_open(const struct ptc_admin_opts *given, struct ptc_admin **ret_admin, struct ptc_error *err)
{
	struct ptc_admin_opts mine = { .size = sizeof mine };
	const struct ptc_admin_opts *opts = &mine;
	struct ptc_admin *a;
	int rc = given ? PTC_ADMIN_TAKE(opts, given, &mine, err) : 0;

	if (rc == 0)
		rc = check_descriptors(err);
	if (rc)
		return rc;
	a = ptc_calloc(1, sizeof *a);
	if (!a)
		return ptc_nomem(err);
	ptc_rpc_init();
	a->timeout_ms = opts->timeout_ms > 0 ? opts->timeout_ms : DEFAULT_TIMEOUT_MS;
	a->measure_timeout_ms = opts->timeout_ms > 0 ? opts->timeout_ms : MEASURE_TIMEOUT_MS;
	a->stream_timeout_ms = opts->stream_timeout_ms;
	a->direct_read.fd = -1;
	pthread_mutex_init(&a->direct_read.lock, NULL);
	rc = open_channels(opts, a, err);
	if (!rc && !opts->server) {
		a->direct_read.control = ptc_strdup(opts->socket ? opts->socket : PTC_ADMIN_DEFAULT_SOCKET);
		rc = a->direct_read.control ? 0 : ptc_nomem(err);
	}
	if (rc) {
		ptc_admin_close(a);
		return rc;
	}
	*ret_admin = a;
	return 0;
}

struct ptc_admin *ptc_admin_close(struct ptc_admin *a)
{
	if (!a)
		return NULL;
	ptc_rpc_channel_free(a->control);
	ptc_rpc_channel_free(a->bulk);
	ptc_close(&a->direct_read.fd);
	pthread_mutex_destroy(&a->direct_read.lock);
	ptc_free(a->direct_read.control);
	ptc_free(a);
	ptc_rpc_shutdown();
	return NULL;
}

const char *ptc_admin_version(void)
{
	return PTC_VERSION;
}

void ptc_admin_free(void *p)
{
	ptc_free(p);
}

char *ptc_admin_borrow(const char *s)
{
	return (char *)(uintptr_t)(s ? s : "");
}

void ptc_admin_reply_free(ProtobufCMessage *reply)
{
	if (reply)
		protobuf_c_message_free_unpacked(reply, &seam);
}

/* Every message of ptc.v1 has its version as field 1. */
static uint32_t version_of(const ProtobufCMessage *m)
{
	uint32_t version;

	memcpy(&version, (const char *)m + m->descriptor->fields[0].offset, sizeof(version));
	return version;
}

int ptc_admin_unpack(const void *data, size_t len, const ProtobufCMessageDescriptor *type,
		     ProtobufCMessage **ret_message, struct ptc_error *err)
{
	ProtobufCMessage *m = protobuf_c_message_unpack(type, &seam, len, data);
	uint32_t version;

	if (!m)
		return ptc_error_set(err, PTC_EPEER, "the daemon's reply does not decode (%s)", type->short_name);
	version = version_of(m);
	if (!ptc_version_reads(version, PTC_WIRE_OLDEST, PTC_ADMIN_VERSION)) {
		ptc_admin_reply_free(m);
		return ptc_error_set(
			err, PTC_EVERSION,
			"the daemon speaks protocol version %u, this program %d to %d: use the ptcctl of the "
			"daemon's package",
			version, PTC_WIRE_OLDEST, PTC_ADMIN_VERSION + 1);
	}
	*ret_message = m;
	return 0;
}

int ptc_admin_call_within(struct ptc_admin *a, int timeout_ms, const char *method, const ProtobufCMessage *request,
			  const ProtobufCMessageDescriptor *type, ProtobufCMessage **ret_reply, struct ptc_error *err)
{
	ptc_auto_free void *data = NULL, *reply = NULL;
	size_t len = 0, reply_len = 0;
	int rc = ptc_pb_encode(request, &data, &len, err);

	if (!rc)
		rc = ptc_rpc_unary(a->control, method, data, len, timeout_ms, NULL, 0, &reply, &reply_len, err);
	return rc ? rc : ptc_admin_unpack(reply, reply_len, type, ret_reply, err);
}

int ptc_admin_call(struct ptc_admin *a, const char *method, const ProtobufCMessage *request,
		   const ProtobufCMessageDescriptor *type, ProtobufCMessage **ret_reply, struct ptc_error *err)
{
	return ptc_admin_call_within(a, a->timeout_ms, method, request, type, ret_reply, err);
}

int ptc_admin_call_ack(struct ptc_admin *a, const char *method, const ProtobufCMessage *request, struct ptc_error *err)
{
	ProtobufCMessage *reply = NULL;
	int rc = ptc_admin_call(a, method, request, &ptc__v1__ack__descriptor, &reply, err);

	ptc_admin_reply_free(reply);
	return rc;
}

int ptc_admin_open_stream(struct ptc_admin *a, struct ptc_rpc_channel *channel, const char *method,
			  const ProtobufCMessage *request, struct ptc_rpc_stream **ret_stream, struct ptc_error *err)
{
	struct ptc_rpc_stream *s = NULL;
	struct ptc_rpc_part part = { 0 };
	ptc_auto_free void *data = NULL;
	size_t len = 0;
	int rc = ptc_pb_encode(request, &data, &len, err);

	if (!rc)
		rc = ptc_rpc_stream_open(channel, method, a->stream_timeout_ms, NULL, 0, &s, err);
	if (rc)
		return rc;
	part.data = data;
	part.len = len;
	rc = ptc_rpc_stream_send(s, &part, 1, err);
	if (!rc)
		rc = ptc_rpc_stream_half_close(s, err);
	if (rc) {
		/* the daemon's own reason is better than "broken stream" */
		int status = ptc_rpc_stream_finish(s, err);

		ptc_rpc_stream_free(s);
		return status ? status : rc;
	}
	*ret_stream = s;
	return 0;
}

int ptc_admin_gather(struct ptc_rpc_message *msg, void **ret_data, size_t *ret_len, struct ptc_error *err)
{
	size_t len = ptc_rpc_message_len(msg);
	void *data = ptc_malloc(len ? len : 1);

	if (data)
		len = ptc_rpc_message_read(msg, data, len);
	ptc_rpc_message_done(msg);
	if (!data)
		return ptc_nomem(err);
	*ret_data = data;
	*ret_len = len;
	return 0;
}

static int handle_reply(struct ptc_rpc_message *msg, const ProtobufCMessageDescriptor *type, ptc_admin_reply_fn fn,
			void *arg, struct ptc_error *err)
{
	ptc_auto_free void *data = NULL;
	ProtobufCMessage *reply = NULL;
	size_t len = 0;
	int rc = ptc_admin_gather(msg, &data, &len, err);

	if (!rc)
		rc = ptc_admin_unpack(data, len, type, &reply, err);
	if (!rc)
		rc = fn(arg, reply, err);
	ptc_admin_reply_free(reply);
	return rc;
}

int ptc_admin_call_stream(struct ptc_admin *a, const char *method, const ProtobufCMessage *request,
			  const ProtobufCMessageDescriptor *type, ptc_admin_reply_fn fn, void *arg,
			  struct ptc_error *err)
{
	struct ptc_rpc_stream *s = NULL;
	struct ptc_rpc_message *msg = NULL;
	int rc = ptc_admin_open_stream(a, a->control, method, request, &s, err);

	while (!rc) {
		rc = ptc_rpc_stream_recv(s, &msg, err);
		if (rc || !msg)
			break;
		rc = handle_reply(msg, type, fn, arg, err);
	}
	if (s && !rc)
		rc = ptc_rpc_stream_finish(s, err);
	ptc_rpc_stream_free(s);
	return rc;
}
