/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs that look: nodes, status, top, events, report. Verbs that tell the cluster what only a person knows: node lost,
 * node forget, device bad, cluster recover, cluster rejoin. */
#pragma once

#include "client/ctl/line/ctl.h"

extern const struct ctl_verb ctl_nodes, ctl_node_lost, ctl_node_forget, ctl_device_bad, ctl_cluster_recover,
	ctl_cluster_rejoin, ctl_status, ctl_top, ctl_events, ctl_report;
