/* SPDX-License-Identifier: Apache-2.0 */
/* All parts of a running ptcd, for the control API and main. Threads:
 *   loop thread     cluster mirror, controllers, everything marked [loop]
 *   any thread      documents and channels (with locks of their own), store, agent
 * Server threads reach [loop] state through ptc_loop_call. */
#pragma once

#include "daemon/config/daemon_config.h"
#include "daemon/controller/controller.h"
#include "rpc/server/server.h"

struct ptc_read_views;
struct ptc_pins;
struct ptc_samples;
struct ptc_import_windows;
struct ptc_fill_files;
struct ptc_scrubber;
struct ptc_event_feed;
struct event;

#define PTC_CONTROL_METHODS 42

struct ptc_api_method {
	struct ptc_daemon *d;
	ptc_rpc_handler_fn fn;
};

struct ptc_daemon {
	struct ptc_daemon_config config;
	bool insecure;
	struct ptc_rpc_tls tls;
	const struct ptc_rpc_tls *tls_or_null; /* NULL: neither listener nor peers use TLS */
	struct ptc_loop *loop;
	struct ptc_store *store;
	struct ptc_agent *agent;
	struct ptc_cluster *cluster;
	struct ptc_rpc_client *client;
	struct ptc_documents docs;
	struct ptc_workers *workers;
	uint64_t unwell;      /* loop: a bit for each device of the node that is not well */
	struct event *events; /* loop: of ranks here, not written yet (daemon/local_ranks.c) */
	struct ptc_channels *channels;
	struct ptc_controllers controllers;
	struct ptc_read_views *read_views;
	struct ptc_pins *pins;
	struct ptc_samples *samples;
	struct ptc_import_windows *import_windows;
	struct ptc_scrubber *_Atomic scrubber; /* NULL until the servers answer */
	atomic_bool stopping;
	/* Why this node has not begun yet, and waits for a person (daemon/api/recover); "": it has begun, or will. Set
	 * while no server runs. */
	char waits[512];
	struct ptc_api_method control[PTC_CONTROL_METHODS];
	struct ptc_fill_files *fill_files;
	struct ptc_event_feed *event_feed;
};
