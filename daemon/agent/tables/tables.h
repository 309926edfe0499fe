/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of this node's store as calls of other nodes meet them: found also when only a reader
 * still holds them, dropped by name or by age, and whether there is memory for more. Any thread. */
#pragma once

#include "daemon/agent/calls/agent_env.h"
#include "daemon/store/store_key.h"
#include "rpc/server/server.h"

struct Ptc__V1__TableKey;

/* ---- pinned_tables.c: tables that readers pin ---- */
/* As ptc_table_open, and where the table was dropped while somebody holds it, that one. */
int ptc_agent_table_open(struct ptc_agent *agent, const struct ptc_table_key *key, struct ptc_table **ret_table,
			 struct ptc_error *err);
void ptc_agent_pins_done(struct ptc_agent *agent);
/* This node's table with that key stays readable for ttl_ms more, even where a switch drops it meanwhile; 0: the reader gives
 * it up. PTC_ENOTFOUND: it is not here (any more); PTC_ELIMIT: too many are held. What is held counts as used in the store. */
int ptc_agent_pin(struct ptc_agent *agent, const struct ptc_table_key *key, const char *reader, uint32_t ttl_ms,
		  struct ptc_error *err);
/* Gives up what nobody has asked for again in time. Any thread; does not block. */
void ptc_agent_pins_expire(struct ptc_agent *agent);
int ptc_agent_on_pin(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);

/* ---- drop_tables.c ---- */
/* PTC_ENOSPC saying how much is missing, where so many more bytes do not fit. */
int ptc_agent_memory_check(struct ptc_agent *agent, int64_t new_bytes, struct ptc_error *err);
/* Whether there is such a table, however far it is. */
int ptc_agent_table_there(struct ptc_agent *agent, const struct ptc_table_key *key, bool *ret_there,
			  struct ptc_error *err);
/* Drops one table, however far it is; missing is fine. */
int ptc_agent_table_drop(struct ptc_agent *agent, const struct ptc_table_key *key, struct ptc_error *err);
/* Drops the job's tables of parts (PTC_PARTS_SNAPSHOT). */
int ptc_agent_parts_drop(struct ptc_agent *agent, const char *uuid, struct ptc_error *err);
/* Drops the job's tables that are older than the newest of keep and not in it, and those of parts. */
int ptc_agent_tables_drop_old(struct ptc_agent *agent, const char *uuid, struct Ptc__V1__TableKey *const *keep,
			      size_t nkeep, struct ptc_error *err);
/* Of a table of parts (transfer/max_reduce.h). No record names it: Finish drops it, as does what
 * comes after all nodes have answered. */
#define PTC_PARTS_SNAPSHOT (1ull << 63)
