/* SPDX-License-Identifier: Apache-2.0 */
/* The table of verbs, and what is made from it: parsing, help, the manual. */
#pragma once

#include "client/ctl/line/ctl.h"

extern const struct ctl_verb ctl_version, ctl_completion, ctl_help;

extern const struct ctl_verb *const ctl_verbs[];
extern const size_t ctl_nverbs;
extern const struct ctl_option ctl_globals[];
extern const size_t ctl_nglobals;
void ctl_help_all(FILE *out);
void ctl_help_verb(const struct ctl_verb *verb, FILE *out);

/* man.c: ptcctl(1). */
void ctl_man(FILE *out);

/* parse.c */
/* Finds the verb and takes the rest apart. *ret_help: --help was given. CTL_USAGE with err filled. */
int ctl_parse(struct ctl *c, int argc, char **argv, bool *ret_help, struct ptc_error *err);
