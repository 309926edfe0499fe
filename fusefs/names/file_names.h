/* SPDX-License-Identifier: Apache-2.0 */
/* Names of files and directories for tensors, snapshots and ranks. Pure; any thread. A parser returns false for a name
 * that is not ours. */
#pragma once

#include "reshard/spec/spec.h"

#define FS_NAME_MAX 255 /* bytes of a file name, without its NUL */

/* Makes the file name of a tensor, of at most FS_NAME_MAX bytes with the suffix; ret has room for one more. */
void fs_tensor_name(const char *tensor, const char *suffix, char *ret);
/* Parses "snap-<n>-step-<s>". */
bool fs_snap_parse(const char *name, uint64_t *ret_number, uint64_t *ret_step);
/* Parses the number behind the prefix; only our own spelling is accepted. */
bool fs_number_parse(const char *name, const char *prefix, uint64_t *ret);
void fs_snap_name(uint64_t number, uint64_t step, char ret[64]);
/* Whether the item belongs to the optimizer; otherwise to the model. */
bool fs_is_optimizer(const struct ptc_spec *spec, uint32_t item);
/* Finds the item whose .npy file has that name; false: none. */
bool fs_tensor_find(const struct ptc_spec *spec, const char *name, uint32_t *ret_item);
bool fs_rank_parse(const char *name, uint32_t world, uint32_t *ret_rank);
