/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz entry point: bytes as a file with model:, space:, a profile, a config.json or Galvatron's bandwidths. What is
 * accepted is searched on as many as 16 devices, which must end without a NaN. */
#include "base/alloc.h"
#include "base/check.h"
#include "planner/io/plan_doc.h"

#include <math.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void try_search(struct ptc_work *w, const struct ptc_space *s)
{
	static struct ptc_choice v[4];
	uint32_t have = ptc_cluster_profile_devices(w->cluster);
	struct ptc_search_limits limits = { .devices = PTC_MIN(16, have), .keep = 4 };
	size_t n = 0;

	if (ptc_search(w, s, &limits, NULL, v, &n, NULL))
		return;
	for (size_t i = 0; i < n; i++) {
		struct ptc_estimate e;

		ptc_require(ptc_estimate(w, &v[i].cand, &e, NULL) == 0);
		ptc_require(!isnan(e.step_s) && (w->cluster->nkinds > 1 || e.step_s == v[i].est.step_s));
		ptc_require(!isnan(e.memory_bytes) && ptc_cand_devices(&v[i].cand) <= 16);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	static struct ptc_model model, other;
	static struct ptc_plan_devices devices;
	struct ptc_plan_profile p = { 0 };
	struct ptc_space space = { 0 };
	struct ptc_work w = { .model = &model, .cluster = &p.cluster };
	const struct ptc_doc_node *m, *s;
	struct ptc_doc doc = { 0 };

	if (len > 1 << 16 || ptc_doc_from_yaml("fuzz", data, len, &doc, NULL))
		return 0;
	m = ptc_doc_get(doc.root, "model");
	s = ptc_doc_get(doc.root, "space");
	ptc_coefs_default(&w.coefs);
	ptc_plan_hf_read(&doc, doc.root, 0, &other, NULL);
	if (m && s && !ptc_plan_model_read(&doc, m, &model, NULL) && !ptc_plan_space_read(&doc, s, &space, &w, NULL)) {
		p.cluster = (struct ptc_cluster_profile){
			.per_node = 4, .nkinds = 1, .intra_bytes_s = 1e11, .node_bytes_s = 1e10
		};
		ptc_device_kind_known("A100-80GB", &p.cluster.kinds[0]);
		p.cluster.kinds[0].nodes = 4;
		try_search(&w, &space);
		p.cluster.nkinds = 2;
		ptc_device_kind_known("V100-32GB", &p.cluster.kinds[1]);
		p.cluster.kinds[1].nodes = 2;
		try_search(&w, &space);
		p.cluster.nkinds = 1;
		ptc_plan_galvatron_read(&doc, &p.cluster, NULL);
	}
	if (!ptc_plan_devices_read(&doc, &devices, NULL))
		for (size_t i = 0; i < devices.n; i++) {
			struct ptc_device_kind k;

			ptc_require(ptc_plan_device_find(&devices, devices.v[i].name, PTC_MATH_16BIT, &k, NULL) !=
				    PTC_ENOTFOUND);
		}
	if (!ptc_plan_profile_read_with(&doc, &devices, PTC_MATH_16BIT, &p, NULL)) {
		ptc_require(ptc_cluster_profile_check(&p.cluster, NULL) == 0);
		ptc_plan_profile_done(&p);
	}
	ptc_doc_done(&doc);
	return 0;
}
