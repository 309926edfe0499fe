/* SPDX-License-Identifier: Apache-2.0 */
/* A probe's end of the local protocol (proto/local.h). It plays ptcd for a rank, until the rank waits to be restored.
 * There is one link for each program, from its HELLO on.
 *
 * Happy path: accept, then read whenever the descriptor is readable; each turn tells what the program wants. It is
 * given a generation when it asks for one, and its declaration is in `declared` when CTL_LINK_DECLARED is told.
 *
 * Failure modes: bytes that are no message, or none that belongs here (PTC_EINVAL); what is declared is wrong
 * (PTC_ELAYOUT); the program asks for what another rank says (PTC_ESTATE); the connection ends (CTL_LINK_GONE).
 * One thread. */
#pragma once

#include "client/ctl/probe/declaration.h"
#include "proto/local_messages.h"

enum ctl_link_turn {
	CTL_LINK_NOTHING,
	CTL_LINK_WANTS,    /* a generation */
	CTL_LINK_DECLARED, /* all that the rank has */
	CTL_LINK_GONE
};
struct ctl_link_key { /* what this rank has put: it may ask for it */
	char *key, *value;
	size_t len;
};
struct ctl_link {
	struct ptc_local_conn conn;
	int fd;                          /* -1: none */
	char token[PTC_LOCAL_TOKEN + 1]; /* "": no HELLO yet */
	uint64_t generation;             /* the last one that was given; 0: none */
	struct ctl_link_key *keys;
	size_t nkeys, keys_cap;
};
/* A socket in `dir`, which only the caller can enter. *ret_path: ptc_free it. */
int ctl_link_listen(const char *dir, int *ret_fd, char **ret_path, struct ptc_error *err);
/* false: nobody is there. */
bool ctl_link_accept(int listening, struct ctl_link *ret);
/* Takes one message if there is one. d: of the rank that builds now; cleared when a rank is given. */
int ctl_link_read(struct ctl_link *l, struct ctl_declaration *d, enum ctl_link_turn *ret_turn, struct ptc_error *err);
/* g->generation is set here. */
int ctl_link_give(struct ctl_link *l, struct ptc_local_generation *g, struct ptc_error *err);
/* The generation comes to nothing, so that the program asks for another one. */
int ctl_link_end(struct ctl_link *l, struct ptc_error *err);
void ctl_link_close(struct ctl_link *l);
