/* SPDX-License-Identifier: Apache-2.0 */
/* The verb that keeps a job's archive. */
#pragma once

#include "client/ctl/line/ctl.h"

extern const struct ctl_verb ctl_archive_verb;
