/* SPDX-License-Identifier: Apache-2.0 */
/* Datasets by name: registering, listing, reading their samples. Handlers run on server
 * threads. */
#pragma once

#include "daemon/api/caller/caller.h"
#include "formats/dataset/dataset_doc.h"

/* control_dataset.c */
PTC_CONTROL_HANDLER(ptc_control_dataset_add);
PTC_CONTROL_HANDLER(ptc_control_dataset_remove);
PTC_CONTROL_HANDLER(ptc_control_dataset_list);
PTC_CONTROL_HANDLER(ptc_control_data);
/* Reads a dataset's document from etcd. PTC_ENOTFOUND: uid has, or may see, no dataset of that name. */
int ptc_control_dataset(struct ptc_daemon *d, const char *name, uid_t uid, struct ptc_dataset_doc *ret_doc,
			struct ptc_error *err);
/* control_samples.c */
PTC_CONTROL_HANDLER(ptc_control_dataset_read);
