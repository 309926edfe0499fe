/* SPDX-License-Identifier: Apache-2.0 */
/* Datasets by name: registering, listing, reading their samples. Handlers run on server
 * threads. */
#pragma once

#include "daemon/api/caller/caller.h"
#include "formats/dataset/dataset_doc.h"

/* api_dataset.c */
PTC_API_HANDLER(ptc_api_dataset_add);
PTC_API_HANDLER(ptc_api_dataset_remove);
PTC_API_HANDLER(ptc_api_dataset_list);
PTC_API_HANDLER(ptc_api_data);
/* Reads a dataset's document from etcd. PTC_ENOTFOUND: uid has, or may see, no dataset of that name. */
int ptc_api_dataset(struct ptc_daemon *d, const char *name, uid_t uid, struct ptc_dataset_doc *ret_doc,
		    struct ptc_error *err);
/* api_samples.c */
PTC_API_HANDLER(ptc_api_dataset_read);
