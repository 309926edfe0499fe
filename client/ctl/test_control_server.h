/* SPDX-License-Identifier: Apache-2.0 */
/* For the tests of ptcctl: runs the binary, and speaks ptc.v1.Control as a
 * server in the test would. Everything here aborts the test when it fails. */
#pragma once

#include "base/alloc.h"
#include "base/check.h"
#include "ptc.pb-c.h"
#include "rpc/client/client.h"
#include "rpc/server/server.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define OUTPUT_MAX 65536

/* Between us and a handler lie another process and gRPC, whose order ThreadSanitizer does not see. */
static inline void take_turn(void)
{
	static atomic_uint turn;

	atomic_fetch_add(&turn, 1);
}

/* What the last run wrote. */
static char out[OUTPUT_MAX], errors[OUTPUT_MAX];

static inline void slurp(FILE *f, char *buf)
{
	size_t n;

	rewind(f);
	n = fread(buf, 1, OUTPUT_MAX - 1, f);
	buf[n] = '\0';
	fclose(f);
}

static inline pid_t start(const char *const *args, int fd_out, int fd_err)
{
	const char *argv[24] = { TEST_PTCCTL };
	pid_t pid;

	for (int i = 0; args[i]; i++)
		argv[i + 1] = args[i];
	take_turn();
	pid = fork();
	if (pid)
		return pid;
	dup2(fd_out, 1);
	dup2(fd_err, 2);
	execv(TEST_PTCCTL, (char *const *)(uintptr_t)argv);
	_exit(127);
}

static inline int status_of(pid_t pid)
{
	int status = 0;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	take_turn();
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* Runs ptcctl with the NULL-terminated arguments; fills out and errors; returns the exit status. */
static inline int ctl(const char *const *args)
{
	FILE *fo = tmpfile(), *fe = tmpfile();
	int status = status_of(start(args, fileno(fo), fileno(fe)));

	slurp(fo, out);
	slurp(fe, errors);
	return status;
}

#define RUN(...) ctl((const char *const[]){ __VA_ARGS__, NULL })

/* The same on a terminal: all of it in out. */
static inline int ctl_terminal(const char *const *args)
{
	int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), slave;
	size_t len = 0;
	ssize_t n;
	pid_t pid;

	assert_true(master >= 0 && !grantpt(master) && !unlockpt(master));
	slave = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
	assert_true(slave >= 0);
	pid = start(args, slave, slave);
	close(slave);
	while ((n = read(master, out + len, OUTPUT_MAX - 1 - len)) > 0)
		len += (size_t)n;
	out[len] = '\0';
	close(master);
	return status_of(pid);
}

#define RUN_TERMINAL(...) ctl_terminal((const char *const[]){ __VA_ARGS__, NULL })

/* Exactly one line on stderr, beginning with prefix and containing part, nothing on stdout. */
static inline void one_line(const char *prefix, const char *part)
{
	if (strncmp(errors, prefix, strlen(prefix)) || !strstr(errors, part))
		fail_msg("\"%s\" does not begin with \"%s\" or contain \"%s\"", errors, prefix, part);
	assert_ptr_equal(strchr(errors, '\n'), errors + strlen(errors) - 1);
	assert_string_equal(out, "");
}

static inline void expect(const char *text, const char *part)
{
	if (!strstr(text, part))
		fail_msg("no \"%s\" in \"%s\"", part, text);
}

/* ---- server ---- */

static inline int send_message(struct ptc_rpc_call *call, const ProtobufCMessage *m, struct ptc_error *err)
{
	size_t n = protobuf_c_message_get_packed_size(m);
	uint8_t *data = ptc_malloc(n + 1);
	struct ptc_rpc_part part = { .data = data, .len = protobuf_c_message_pack(m, data) };
	int rc;

	take_turn();
	rc = ptc_rpc_call_send(call, &part, 1, err);
	ptc_free(data);
	return rc;
}

/* Next message of the client; NULL at the end. */
static inline void *receive(struct ptc_rpc_call *call, const ProtobufCMessageDescriptor *type)
{
	struct ptc_rpc_message *msg = NULL;
	ProtobufCMessage *m = NULL;
	uint8_t *data;
	size_t n;

	if (ptc_rpc_call_recv(call, &msg, NULL) || !msg)
		return NULL;
	take_turn();
	n = ptc_rpc_message_len(msg);
	data = ptc_malloc(n + 1);
	n = ptc_rpc_message_read(msg, data, n);
	ptc_rpc_message_done(msg);
	m = protobuf_c_message_unpack(type, NULL, n, data);
	ptc_free(data);
	return m;
}

/* The one message of a call that has one. */
static inline void *request(struct ptc_rpc_call *call, const ProtobufCMessageDescriptor *type)
{
	void *m = receive(call, type);

	if (!m)
		abort();
	return m;
}

static inline void release(void *m)
{
	protobuf_c_message_free_unpacked(m, NULL);
}

static inline int send_document(struct ptc_rpc_call *call, const char *json, struct ptc_error *err)
{
	Ptc__V1__Document d;

	ptc__v1__document__init(&d);
	d.version = 1;
	d.json = (char *)(uintptr_t)json;
	return send_message(call, &d.base, err);
}

static inline int send_progress(struct ptc_rpc_call *call, const char *phase, uint64_t done, const char *summary,
				struct ptc_error *err)
{
	Ptc__V1__Progress p;

	ptc__v1__progress__init(&p);
	p.version = 1;
	p.phase = (char *)(uintptr_t)phase;
	p.bytes_done = done;
	p.bytes_total = done ? 1000 : 0;
	p.finished = summary != NULL;
	if (summary)
		p.summary = (char *)(uintptr_t)summary;
	return send_message(call, &p.base, err);
}

struct method {
	const char *name;
	ptc_rpc_handler_fn fn;
};

/* A server at socket, which ptcctl then finds by itself. */
static inline struct ptc_rpc_server *serve(const char *socket, const struct ptc_rpc_server_opts *opts,
					   const struct method *methods, size_t n)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_rpc_server *server;

	setenv("PTC_SOCKET", socket, 1);
	assert_int_equal(ptc_rpc_server_new(opts, &server, &err), 0);
	for (size_t i = 0; i < n; i++) {
		char name[64];

		snprintf(name, sizeof(name), "/ptc.v1.Control/%s", methods[i].name);
		assert_int_equal(ptc_rpc_server_method(server, name, 1u << PTC_ROLE_USER, methods[i].fn, NULL, &err),
				 0);
	}
	if (ptc_rpc_server_listen_unix(server, socket, 0600, false, &err) || ptc_rpc_server_start(server, &err))
		fail_msg("%s", err.text);
	return server;
}
