/* SPDX-License-Identifier: Apache-2.0 */
/* A source that asks a daemon over its control socket. Functions block; any thread. */
#pragma once

#include <ptc/admin.h>
#include "fusefs/source/fs_source.h"

struct ptc_fs_admin;
/* The time limits of `opts` bound each call. */
int ptc_fs_admin_new(const struct ptc_admin_opts *opts, struct ptc_fs_admin **ret_admin, struct ptc_error *err);
struct ptc_fs_admin *ptc_fs_admin_free(struct ptc_fs_admin *a); /* NULL ok */
struct ptc_fs_source ptc_fs_admin_source(struct ptc_fs_admin *a);
