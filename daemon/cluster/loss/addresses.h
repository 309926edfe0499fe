/* SPDX-License-Identifier: Apache-2.0 */
/* Remembers the addresses that machines' names have, so that a look at a machine does not wait for a name server. A
 * node that is cut off cannot reach its name server either; and one that has gone takes the name server on it along.
 *
 * A thread of its own looks names up while somebody wants them, one after the other, and again each minute. If a name
 * cannot be looked up, the addresses that it had last stay. An address in digits needs no name server, and is known at
 * once. There are at most PTC_ADDRESSES_MAX names; the one that nobody has wanted for the longest time goes first.
 *
 * Its owner frees it; any thread may call the rest. Failure modes: no memory, no thread, too many names: the addresses
 * are not known. */
#pragma once

#include "base/limits.h"
#include "daemon/cluster/loss/machines.h"

#define PTC_ADDRESSES_MAX PTC_MAX_NODES

struct ptc_addresses;
struct ptc_addresses *ptc_addresses_new(void); /* NULL: out of memory */
/* Does not wait for a name server: if the thread does, it frees the rest when it has an answer. NULL ok. */
struct ptc_addresses *ptc_addresses_free(struct ptc_addresses *b);
/* The addresses of HOST:PORT will be needed. Call it now and then, for as long as that is so. */
void ptc_addresses_want(struct ptc_addresses *b, const char *address);
/* False: none is known, and *ret_at has none. Never blocks. */
bool ptc_addresses_know(struct ptc_addresses *b, const char *address, struct ptc_machine_at *ret_at);
