/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path and failure modes: metrics_http.h. A connection's memory is one of a fixed number of slots, so what
 * strangers can make us hold is bounded whatever they do; only the answer is allocated, once for all who wait. */
#include "daemon/metrics/metrics_http.h"

#include "base/alloc.h"
#include "base/check.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#define ANSWER_HEAD 256

enum state { FREE, READING, WAITING, WRITING, CLOSING };

struct connection {
	struct ptc_http *http;
	uv_tcp_t tcp;
	uv_timer_t timer;
	uv_write_t write;
	enum state state;
	int open; /* handles not closed yet */
	size_t len;
	char head[PTC_HTTP_HEAD_MAX + 1];
	char answer[ANSWER_HEAD];
	struct body *body;
};

/* Shared by the connections that it is sent to. */
struct body {
	int refs;
	size_t len;
	char text[];
};

struct ptc_http {
	uv_loop_t *uv;
	uv_tcp_t listener;
	void (*asked)(void *arg);
	void *arg;
	bool waiting, closing;
	struct connection connections[PTC_HTTP_CONNECTIONS];
};

/* ---- the end of a connection ---------------------------------------------------- */

static void body_unref(struct body *b)
{
	if (b && --b->refs == 0)
		ptc_free(b);
}

static void connected(uv_stream_t *listener, int status);

static void closed(uv_handle_t *h)
{
	struct connection *c = h->data;

	if (--c->open > 0)
		return;
	body_unref(c->body);
	c->body = NULL;
	c->state = FREE;
	if (c->http->waiting && !c->http->closing)
		connected((uv_stream_t *)&c->http->listener, 0);
}

static void end(struct connection *c)
{
	if (c->state == CLOSING || c->state == FREE)
		return;
	c->state = CLOSING;
	uv_close((uv_handle_t *)&c->tcp, closed);
	uv_close((uv_handle_t *)&c->timer, closed);
}

static void too_slow(uv_timer_t *timer)
{
	end(timer->data);
}

/* ---- the answer -------------------------------------------------------------------- */

static void drained(uv_shutdown_t *req, int status)
{
	end(req->handle->data);
	ptc_free(req);
}

static void written(uv_write_t *req, int status)
{
	struct connection *c = req->data;
	uv_shutdown_t *shutdown = status == 0 && c->state == WRITING ? ptc_malloc(sizeof *shutdown) : NULL;

	/* what the peer sent beyond its head must not turn our close into a reset before it has read the answer */
	if (!shutdown || uv_shutdown(shutdown, (uv_stream_t *)&c->tcp, drained) != 0) {
		ptc_free(shutdown);
		end(c);
	}
}

/* status: "200 OK"; body NULL: the status is the body. */
static void answer(struct connection *c, const char *status, struct body *body)
{
	uv_buf_t bufs[2];
	size_t len = body ? body->len : strlen(status) + 1;
	int n = snprintf(c->answer, sizeof c->answer,
			 "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n%sConnection: close\r\n\r\n%s%s",
			 status, body ? "text/plain; version=0.0.4; charset=utf-8" : "text/plain", len,
			 status[0] == '4' && status[2] == '5' ? "Allow: GET\r\n" : "", body ? "" : status,
			 body ? "" : "\n");

	c->state = WRITING;
	c->body = body;
	if (body)
		body->refs++;
	c->write.data = c;
	bufs[0] = uv_buf_init(c->answer, (unsigned)n);
	bufs[1] = uv_buf_init(body ? body->text : NULL, body ? (unsigned)body->len : 0);
	if (uv_write(&c->write, (uv_stream_t *)&c->tcp, bufs, body ? 2 : 1, written) != 0)
		end(c);
}

void ptc_http_answer(struct ptc_http *h, const char *text, size_t len)
{
	struct body *b = text ? ptc_malloc(sizeof *b + len) : NULL;

	if (b) {
		*b = (struct body){ .refs = 1, .len = len };
		memcpy(b->text, text, len);
	}
	for (size_t i = 0; i < PTC_HTTP_CONNECTIONS; i++)
		if (h->connections[i].state == WAITING)
			answer(&h->connections[i], b ? "200 OK" : "503 Service Unavailable", b);
	body_unref(b);
}

/* ---- the request --------------------------------------------------------------------- */

/* NULL: it is ours; else the status that says why not. */
static const char *refusal(char *head)
{
	char *path = strchr(head, ' '), *version = path ? strchr(path + 1, ' ') : NULL;
	size_t len;

	if (!version || strncmp(version + 1, "HTTP/1.", 7) != 0)
		return "400 Bad Request";
	*path++ = *version = '\0';
	if (strcmp(head, "GET") != 0)
		return "405 Method Not Allowed";
	len = strcspn(path, "?");
	return len == strlen("/metrics") && strncmp(path, "/metrics", len) == 0 ? NULL : "404 Not Found";
}

static void head_read(struct connection *c)
{
	const char *no;

	c->head[strcspn(c->head, "\r\n")] = '\0';
	no = refusal(c->head);
	if (no) {
		answer(c, no, NULL);
		return;
	}
	c->state = WAITING;
	c->http->asked(c->http->arg);
}

static void room(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
	struct connection *c = h->data;

	if (c->state != READING) /* what comes after the head is read, so that the peer can go on, and dropped */
		c->len = 0;
	*buf = uv_buf_init(c->head + c->len, (unsigned)(PTC_HTTP_HEAD_MAX - c->len));
}

static void got(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
	struct connection *c = stream->data;

	if (n < 0 && (n != UV_EOF || c->state == READING)) {
		end(c);
		return;
	}
	if (n <= 0 || c->state != READING)
		return;
	c->len += (size_t)n;
	c->head[c->len] = '\0';
	if (memchr(c->head, '\0', c->len))
		answer(c, "400 Bad Request", NULL);
	else if (strstr(c->head, "\r\n\r\n") || strstr(c->head, "\n\n"))
		head_read(c);
	else if (c->len == PTC_HTTP_HEAD_MAX)
		answer(c, "431 Request Header Fields Too Large", NULL);
}

static void connected(uv_stream_t *listener, int status)
{
	struct ptc_http *h = listener->data;
	struct connection *c = NULL;

	for (size_t i = 0; status == 0 && !c && i < PTC_HTTP_CONNECTIONS; i++)
		if (h->connections[i].state == FREE)
			c = &h->connections[i];
	h->waiting =
		status == 0 &&
		!c; /* libuv takes no further one until we have: the rest queues in the kernel, or is refused there */
	if (!c)
		return;
	c->http = h;
	c->len = 0;
	c->state = READING;
	c->open = 2;
	uv_tcp_init(h->uv, &c->tcp);
	uv_timer_init(h->uv, &c->timer);
	c->tcp.data = c->timer.data = c;
	if (uv_accept(listener, (uv_stream_t *)&c->tcp) != 0 || uv_read_start((uv_stream_t *)&c->tcp, room, got) != 0 ||
	    uv_timer_start(&c->timer, too_slow, PTC_HTTP_TIME_MS, 0) != 0)
		end(c);
}

/* ---- life ------------------------------------------------------------------------------- */

/* HOST:PORT as daemon_config_check.c lets it through. */
static bool parse(const char *address, struct sockaddr_storage *ret_at)
{
	const char *colon = strrchr(address, ':');
	char host[64];
	int port = colon ? atoi(colon + 1) : 0, skip = address[0] == '[';
	size_t len = colon ? (size_t)(colon - address) - 2 * (size_t)skip : sizeof host;

	if (len >= sizeof host)
		return false;
	memcpy(host, address + skip, len);
	host[len] = '\0';
	if (skip)
		return uv_ip6_addr(host, port, (struct sockaddr_in6 *)ret_at) == 0;
	return uv_ip4_addr(strcmp(host, "localhost") == 0 ? "127.0.0.1" : host, port, (struct sockaddr_in *)ret_at) ==
	       0;
}

static void listener_closed(uv_handle_t *h)
{
	ptc_free(h->data);
}

int ptc_http_new(struct uv_loop_s *uv, const char *address, void (*asked)(void *arg), void *arg,
		 struct ptc_http **ret_http, struct ptc_error *err)
{
	struct ptc_http *h = ptc_calloc(1, sizeof *h);
	struct sockaddr_storage at;
	int e;

	if (!h)
		return ptc_nomem(err);
	h->uv = uv;
	h->asked = asked;
	h->arg = arg;
	uv_tcp_init(uv, &h->listener);
	h->listener.data = h;
	e = parse(address, &at) ? uv_tcp_bind(&h->listener, (const struct sockaddr *)&at, 0) : UV_EINVAL;
	if (e == 0)
		e = uv_listen((uv_stream_t *)&h->listener, PTC_HTTP_CONNECTIONS, connected);
	if (e) {
		uv_close((uv_handle_t *)&h->listener, listener_closed);
		return ptc_error_set(err, PTC_EIO, "metrics: cannot listen on %s: %s", address, uv_strerror(e));
	}
	*ret_http = h;
	return 0;
}

struct ptc_http *ptc_http_free(struct ptc_http *h)
{
	bool open = true;

	if (!h)
		return NULL;
	h->closing = true;
	for (size_t i = 0; i < PTC_HTTP_CONNECTIONS; i++)
		end(&h->connections[i]);
	while (open) {
		open = false;
		for (size_t i = 0; i < PTC_HTTP_CONNECTIONS; i++)
			open = open || h->connections[i].state != FREE;
		if (open)
			uv_run(h->uv, UV_RUN_ONCE);
	}
	uv_close((uv_handle_t *)&h->listener, listener_closed); /* which frees */
	return NULL;
}
