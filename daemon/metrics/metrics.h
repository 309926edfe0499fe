/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of this daemon for Prometheus: GET /metrics at the configured address (text format 0.0.4). One table in
 * metrics.c is what is served, what `ptcd --list-metrics` prints and what docs/metrics.md lists.
 *
 * Happy path: a request comes on the loop. Numbers whose reading may block (store, processes, /proc) are read on a
 * thread of libuv's pool, the others from the mirror. All requests that wait are answered with the same text.
 *
 * Failure modes: the address is taken (start fails); out of memory (503); too many connections, too long or too slow a
 * request (metrics_http.h). Nothing here can hold up the loop or change anything. */
#pragma once

#include "daemon/config/daemon_config.h"
#include "daemon/controller/controller.h"

#include <stdio.h>

struct ptc_metrics;
struct ptc_scrubber;
struct uv_loop_s;

struct ptc_metrics_opts {
	const struct ptc_daemon_config *config; /* all of these are borrowed */
	struct ptc_cluster *cluster;
	struct ptc_store *store;
	struct ptc_workers *workers;
	const struct ptc_controllers *controllers;
	struct uv_loop_s *uv;
	const struct ptc_memory *memory;
	const struct ptc_rpc_server *control, *peers;
	struct ptc_scrubber *scrubber;
};
/* [loop] Listens where the configuration says; *ret_metrics NULL where it says nothing. */
int ptc_metrics_start(const struct ptc_metrics_opts *opts, struct ptc_metrics **ret_metrics, struct ptc_error *err);
/* [loop] Before anything that it reads from is freed. NULL ok. */
struct ptc_metrics *ptc_metrics_stop(struct ptc_metrics *m);

/* The table as the rows of a Markdown table: name, type, labels, meaning. */
void ptc_metrics_list(FILE *out);
