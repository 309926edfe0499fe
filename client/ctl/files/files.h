/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs that bring a job's state in and out as files, and read all of it. */
#pragma once

#include "client/ctl/line/ctl.h"

extern const struct ctl_verb ctl_import, ctl_export, ctl_verify, ctl_mount, ctl_umount;
