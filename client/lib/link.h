/* SPDX-License-Identifier: Apache-2.0 */
/* The thread of a client. It owns the connection, fills declared memory as ptcd says, and asks the kernel for huge
 * pages. Inside libptc. */
#pragma once

#include "client/lib/internal.h"

void *ptc_client_link(void *client); /* our thread */
/* fill.c; our thread. Does what a FILL says; false: it is none. */
bool ptc_client_fill(ptc_client *c, const struct ptc_local_message *m);
void ptc_client_fill_done(ptc_client *c);
uint8_t *ptc_client_map(int fd, uint64_t bytes, int prot);
bool ptc_client_filled(ptc_client *c); /* true: `out` has the answer to a FILL, to be sent */
/* huge.c; our thread. true: there may be more to do. */
void ptc_client_huge_init(ptc_client *c);
bool ptc_client_huge_step(ptc_client *c);
