/* SPDX-License-Identifier: Apache-2.0 */
/* As much of HTTP/1.1 as a scraper needs: GET of one path, one request a connection. Loop thread only.
 *
 * Happy path: accept, read a head, `asked` is called, ptc_http_answer sends the text to all who wait, close.
 *
 * Failure modes: another path (404), another method (405), a malformed head (400) or one longer than PTC_HTTP_HEAD_MAX
 * (431); no end within PTC_HTTP_TIME_MS: closed without a word. More than PTC_HTTP_CONNECTIONS at once wait in the
 * kernel's queue. */
#pragma once

#include "base/status.h"

#include <stddef.h>

#define PTC_HTTP_CONNECTIONS 16
#define PTC_HTTP_HEAD_MAX    4096
#define PTC_HTTP_TIME_MS     10000

struct ptc_http;
struct uv_loop_s;

/* address: HOST:PORT, HOST a number or localhost. asked: somebody waits for an answer now. */
int ptc_http_new(struct uv_loop_s *uv, const char *address, void (*asked)(void *arg), void *arg,
		 struct ptc_http **ret_http, struct ptc_error *err);
/* To everybody who waits. text NULL: 503. It is copied. */
void ptc_http_answer(struct ptc_http *h, const char *text, size_t len);
/* Runs the loop until every connection is closed; this waits for no caller. The last memory is freed in the loop's next
 * turn. NULL ok. */
struct ptc_http *ptc_http_free(struct ptc_http *h);
