/* SPDX-License-Identifier: Apache-2.0 */
/* grpc.health.v1.Health, Check and Watch. Its two messages have one field
 * each and are coded by hand: request {string service = 1}, reply {enum
 * status = 1}.
 *
 * Happy path: Check answers at once; Watch sends the status now and at every
 * change until the caller goes.
 *
 * Failure modes: a malformed request (PTC_EINVAL), an unknown service
 * (PTC_ENOTFOUND for Check; Watch reports SERVICE_UNKNOWN, as the protocol
 * says). */
#include "rpc/server/internal.h"

#include "base/alloc.h"
#include "base/sys/sys.h"

#include <string.h>

#define REQUEST_MAX     512 /* bytes of a request */
#define WATCH_PERIOD_MS 200 /* a change is reported within this */

#define HEALTH_ROLES ((1u << PTC_ROLE_USER) | (1u << PTC_ROLE_NODE) | (1u << PTC_ROLE_ADMIN))

enum health { HEALTH_SERVING = 1, HEALTH_NOT_SERVING = 2, HEALTH_SERVICE_UNKNOWN = 3 };

/* One varint; false: truncated or longer than we ever need. */
static bool varint(const uint8_t **p, const uint8_t *end, uint64_t *ret)
{
	uint64_t v = 0;

	for (int shift = 0; shift < 63 && *p < end; shift += 7) {
		uint8_t b = *(*p)++;

		v |= (uint64_t)(b & 0x7f) << shift;
		if (!(b & 0x80)) {
			*ret = v;
			return true;
		}
	}
	return false;
}

static bool skip_field(const uint8_t **p, const uint8_t *end, unsigned wire)
{
	uint64_t n = wire == 1 ? 8 : wire == 5 ? 4 : 0;

	if (wire == 0)
		return varint(p, end, &n);
	if (wire == 2 && !varint(p, end, &n))
		return false;
	if ((wire != 1 && wire != 2 && wire != 5) || n > (uint64_t)(end - *p))
		return false;
	*p += n;
	return true;
}

/* The last "service" wins, as in any protobuf decoder. */
static bool parse(const uint8_t *p, size_t len, char *service, size_t cap)
{
	const uint8_t *end = p + len;
	uint64_t key, n;

	service[0] = '\0';
	while (p < end) {
		if (!varint(&p, end, &key))
			return false;
		if (key != (1 << 3 | 2)) {
			if (!skip_field(&p, end, (unsigned)(key & 7)))
				return false;
			continue;
		}
		if (!varint(&p, end, &n) || n > (uint64_t)(end - p) || n >= cap || memchr(p, 0, (size_t)n))
			return false;
		memcpy(service, p, (size_t)n);
		service[n] = '\0';
		p += n;
	}
	return true;
}

static bool known(const struct ptc_rpc_server *srv, const char *service)
{
	size_t n = strlen(service);

	if (n == 0)
		return true;
	for (size_t i = 0; i < srv->nmethods; i++) {
		const char *name = srv->methods[i].name + 1;

		if (strncmp(name, service, n) == 0 && name[n] == '/')
			return true;
	}
	return false;
}

static int request(struct ptc_rpc_call *call, char service[REQUEST_MAX], struct ptc_error *err)
{
	struct ptc_rpc_message *m;
	uint8_t bytes[REQUEST_MAX];
	size_t len;
	int rc = ptc_rpc_call_recv(call, &m, err);

	if (rc)
		return rc;
	if (!m || ptc_rpc_message_len(m) > sizeof bytes)
		return ptc_error_set(err, PTC_EINVAL, "health: a request of at most %d bytes is needed", REQUEST_MAX);
	len = ptc_rpc_message_read(m, bytes, sizeof bytes);
	if (!parse(bytes, len, service, REQUEST_MAX))
		return ptc_error_set(err, PTC_EINVAL, "health: malformed request");
	return 0;
}

static enum health health_of(const struct ptc_rpc_server *srv, const char *service)
{
	if (!known(srv, service))
		return HEALTH_SERVICE_UNKNOWN;
	return atomic_load(&srv->serving) ? HEALTH_SERVING : HEALTH_NOT_SERVING;
}

static int reply(struct ptc_rpc_call *call, enum health health, struct ptc_error *err)
{
	uint8_t bytes[2] = { 1 << 3, (uint8_t)health };
	struct ptc_rpc_part part = { .data = bytes, .len = sizeof bytes };

	return ptc_rpc_call_send(call, &part, 1, err);
}

static int check(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_rpc_server *srv = arg;
	char service[REQUEST_MAX];
	enum health health;
	int rc = request(call, service, err);

	if (rc)
		return rc;
	health = health_of(srv, service);
	if (health == HEALTH_SERVICE_UNKNOWN)
		return ptc_error_set(err, PTC_ENOTFOUND, "health: service \"%s\" is not known here", service);
	return reply(call, health, err);
}

struct watcher {
	struct ptc_rpc_server *srv;
	char service[REQUEST_MAX];
	enum health last;
};

static int watch_step(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct watcher *w = arg;
	enum health now = health_of(w->srv, w->service);
	int rc = 0;

	if (now != w->last)
		rc = reply(call, now, err);
	w->last = now;
	ptc_rpc_call_again(call, WATCH_PERIOD_MS);
	return rc;
}

static int watch(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct watcher *w = ptc_calloc(1, sizeof *w);
	int rc;

	if (!w)
		return ptc_nomem(err);
	w->srv = arg;
	rc = request(call, w->service, err);
	if (rc) {
		ptc_free(w);
		return rc;
	}
	ptc_rpc_call_follow(call, 0, watch_step, w, ptc_free);
	return 0;
}

int ptc_rpc_health_register(struct ptc_rpc_server *srv, struct ptc_error *err)
{
	static const char one[] = "/grpc.health.v1.Health/Check", all[] = "/grpc.health.v1.Health/Watch";
	int rc = ptc_rpc_server_method(srv, one, HEALTH_ROLES, check, srv, err);

	if (rc == 0)
		rc = ptc_rpc_server_method(srv, all, HEALTH_ROLES, watch, srv, err);
	if (rc)
		return rc;
	ptc_rpc_server_method_kind(srv, one, PTC_RPC_BRIEF);
	ptc_rpc_server_method_kind(srv, all, PTC_RPC_BRIEF);
	return 0;
}
