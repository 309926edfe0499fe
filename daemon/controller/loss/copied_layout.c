/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path and failure modes: copied_layout.h. */
#include "daemon/controller/loss/copied_layout.h"

void ptc_copied_layout_done(struct ptc_copied_layout *h)
{
	ptc_view_copied_done(&h->with);
	ptc_layout_free(h->own);
	if (h->ref)
		ptc_layouts_release(h->ref);
	*h = (struct ptc_copied_layout){ 0 };
}

int ptc_copied_layout_init(struct ptc_copied_layout *h, struct ptc_controllers *all, const struct ptc_view *v,
			   const struct ptc_spec *spec, const struct ptc_declared **ret_declared, struct ptc_error *err)
{
	const struct ptc_layout *layout = NULL;
	struct ptc_config config;
	int rc = ptc_config_parse(v->from.config, &config, err);

	*h = (struct ptc_copied_layout){ 0 };
	*ret_declared = NULL;
	if (!rc && v->from.layout_hash[0])
		rc = ptc_layouts_get(all->docs.layouts, v->meta.uuid, v->from.layout_hash, ret_declared, &layout,
				     &h->ref, err);
	else if (!rc)
		rc = ptc_layout_new(spec, &config, &h->own, err);
	if (h->own)
		layout = h->own;
	h->base = layout;
	return rc ? rc : ptc_view_copied(v, layout, &h->with, err);
}
