/* SPDX-License-Identifier: Apache-2.0 */
/* The process ptcd: its parts, from the first to the last. It exists once, in main(), and belongs to the loop thread.
 */
#pragma once

#include "daemon/ptcd.h"

#include "base/buf.h"
#include "daemon/config/daemon_config.h"

#include <time.h>
#include <uv.h>

struct process {
	struct ptc_daemon d;
	struct ptc_memory memory;
	struct {
		unsigned ticks;
		clock_t cpu;
	} idle;
	struct ptc_buf memory_json;
	struct ptc_etcd_child *etcd;
	struct ptc_mount *mount;
	struct ptc_metrics *metrics;
	struct ptc_health_check *health;
	struct ptc_replaced *replaced;
	struct ptc_cut_off *cut_off;
	struct ptc_error ended; /* why the daemon ends by itself */
	struct ptc_planning *planning;
	char *etcd_endpoint;
	const char *etcd_endpoints[1]; /* the cluster's, where etcd is a child */
	struct ptc_rpc_tls etcd_tls;
	struct ptc_rpc_server *control, *peers;
	struct ptc_direct_reads *direct_reads;
	uv_loop_t *uv;
	uv_signal_t term, interrupt, hangup;
	struct ptc_reload *reload;
	uv_timer_t tick;
	bool synced;
	unsigned ticks;
};

/* ptcd_start.c. Configuration, uv and reload exist. Starts all parts and the loop's timer; the caller runs the loop,
 * and calls ptc_process_stop, whatever this returns. May wait for an etcd that this node may start with. */
int ptc_process_start(struct process *p, struct ptc_error *err);
/* Ends everything in reverse order; works on all that start managed to make. */
void ptc_process_stop(struct process *p);
