/* SPDX-License-Identifier: Apache-2.0 */
/* Names of files and directories: of tensors, snapshots, ranks. Pure; any
 * thread. A name that is none of ours is answered false. */
#pragma once

#include "reshard/spec/spec.h"

#define FS_NAME_MAX 255 /* bytes of a file name, without its NUL */

/* The file name of a tensor, of at most FS_NAME_MAX bytes with suffix; ret has room for one more. */
void fs_tensor_name(const char *tensor, const char *suffix, char *ret);
/* "snap-<n>-step-<s>" */
bool fs_snap_parse(const char *name, uint64_t *ret_number, uint64_t *ret_step);
/* The number behind the prefix, written as we write it. */
bool fs_number_parse(const char *name, const char *prefix, uint64_t *ret);
void fs_snap_name(uint64_t number, uint64_t step, char ret[64]);
/* Which items are the model and which the optimizer. */
bool fs_is_optimizer(const struct ptc_spec *spec, uint32_t item);
/* The item whose .npy has that name; false: none. */
bool fs_tensor_find(const struct ptc_spec *spec, const char *name, uint32_t *ret_item);
bool fs_rank_parse(const char *name, uint32_t world, uint32_t *ret_rank);
