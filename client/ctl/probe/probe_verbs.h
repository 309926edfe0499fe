/* SPDX-License-Identifier: Apache-2.0 */
/* Declares the verb ptcctl probe. */
#pragma once

#include "client/ctl/line/ctl.h"

extern const struct ctl_verb ctl_probe;
