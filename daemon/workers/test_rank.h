/* SPDX-License-Identifier: Apache-2.0 */
/* Programs of ranks that do what they should not. Each prints what went wrong and returns 3, or returns 0. */
#pragma once

/* Frames by hand, with the token of this process. */
int test_rank_raw(void);
/* Each call of ptc.h in a way it forbids. */
int test_rank_misuse(void);
