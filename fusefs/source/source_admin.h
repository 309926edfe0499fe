/* SPDX-License-Identifier: Apache-2.0 */
/* A source that asks a daemon over its control socket. Functions block; any thread. */
#pragma once

#include "client/admin/admin_locate.h"

#include <ptc/admin.h>
#include "fusefs/source/fs_source.h"

struct ptc_fs_admin;
/* The time limits of `opts` bound each call. */
int ptc_fs_admin_new(const struct ptc_admin_opts *opts, struct ptc_fs_admin **ret_admin, struct ptc_error *err);
struct ptc_fs_admin *ptc_fs_admin_free(struct ptc_fs_admin *a); /* NULL ok */
struct ptc_fs_source ptc_fs_admin_source(struct ptc_fs_admin *a);

/* Where pieces of a state's items lie on the daemon's node (ptc_admin_locate), ready to be read. *ret: the caller
 * unrefs it. */
struct ptc_fs_spans;
int ptc_fs_admin_spans(struct ptc_admin *admin, const struct ptc_admin_export *e, const struct ptc_admin_piece *pieces,
		       size_t n, struct ptc_fs_spans **ret, struct ptc_error *err);
