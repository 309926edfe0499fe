// SPDX-License-Identifier: Apache-2.0
/* Fuzz entry point: bytes as job.yaml and as canonical JSON. What either
 * decoder accepts must survive a trip through the canonical JSON unchanged. */
#include "base/alloc.h"
#include "base/check.h"
#include "formats/job.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void check_round_trip(struct ptc_job_desc *job)
{
	struct ptc_job_desc again = { 0 };
	char *json = NULL, *json2 = NULL;
	size_t n = 0, n2 = 0;

	ptc_require(ptc_job_to_json(job, &json, &n, NULL) == 0);
	ptc_require(ptc_job_from_json(json, n, &again, NULL) == 0);
	ptc_require(ptc_job_to_json(&again, &json2, &n2, NULL) == 0);
	ptc_require(n == n2 && !memcmp(json, json2, n));
	ptc_job_desc_done(&again);
	ptc_job_desc_done(job);
	ptc_free(json);
	ptc_free(json2);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct ptc_job_desc job = { 0 };

	if (!ptc_job_from_yaml("fuzz.yaml", data, len, NULL, NULL, &job, NULL))
		check_round_trip(&job);
	if (!ptc_job_from_json(data, len, &job, NULL))
		check_round_trip(&job);
	return 0;
}
