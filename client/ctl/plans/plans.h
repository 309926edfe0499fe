/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs that compute from a job's description: layouts, plans, rules. */
#pragma once

#include "client/ctl/line/ctl.h"

extern const struct ctl_verb ctl_layout, ctl_plan, ctl_rules_lint, ctl_rules_show, ctl_advise, ctl_profile;
