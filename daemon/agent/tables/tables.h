/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of this node's store, for calls of other nodes: finding them, also those that only a reader still pins;
 * dropping them by name or by age; checking for memory. Any thread. */
#pragma once

#include "daemon/agent/calls/agent_env.h"
#include "daemon/store/store_key.h"
#include "rpc/server/server.h"

struct Ptc__V1__TableKey;

/* ---- pinned_tables.c: tables that readers pin ---- */
/* Opens a table as ptc_table_open does, and also a table that was dropped while a reader pins it. */
int ptc_agent_table_open(struct ptc_agent *agent, const struct ptc_table_key *key, struct ptc_table **ret_table,
			 struct ptc_error *err);
void ptc_agent_pins_done(struct ptc_agent *agent);
/* Keeps this node's table with that key readable for ttl_ms more, even if a switch drops it meanwhile. ttl_ms 0: the
 * reader gives the pin up. The store counts pinned bytes as used. PTC_ENOTFOUND: this node does not have the table.
 * PTC_ELIMIT: too many tables are pinned. */
int ptc_agent_pin(struct ptc_agent *agent, const struct ptc_table_key *key, const char *reader, uint32_t ttl_ms,
		  struct ptc_error *err);
/* Ends the pins that no reader has renewed in time. Any thread; does not block. */
void ptc_agent_pins_expire(struct ptc_agent *agent);
int ptc_agent_on_pin(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);

/* ---- drop_tables.c ---- */
/* PTC_ENOSPC: new_bytes more do not fit; the line says how many are missing. */
int ptc_agent_memory_check(struct ptc_agent *agent, int64_t new_bytes, struct ptc_error *err);
/* Whether there is such a table, begun or sealed. */
int ptc_agent_table_there(struct ptc_agent *agent, const struct ptc_table_key *key, bool *ret_there,
			  struct ptc_error *err);
/* Drops one table, begun or sealed. A missing table is no error. */
int ptc_agent_table_drop(struct ptc_agent *agent, const struct ptc_table_key *key, struct ptc_error *err);
int ptc_agent_on_drop(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
/* Drops the job's exposed tables (PTC_PARTS_SNAPSHOT). */
int ptc_agent_parts_drop(struct ptc_agent *agent, const char *uuid, struct ptc_error *err);
/* Drops the job's exposed tables, and those tables that are older than the newest of `keep` and not in `keep`. */
int ptc_agent_tables_drop_old(struct ptc_agent *agent, const char *uuid, struct Ptc__V1__TableKey *const *keep,
			      size_t nkeep, struct ptc_error *err);
/* Marks the snapshot of an exposed table (transfer/max_reduce.h). No record names such a table. Finish drops it. So
 * does the first End with `keep`, which the controller sends after all nodes have answered. */
#define PTC_PARTS_SNAPSHOT (1ull << 63)
