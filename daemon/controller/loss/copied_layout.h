/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of a view's committed generation, and the nodes that have its bytes: its ranks' nodes, and those with
 * copies. Owned by whoever made it. Blocking, not on the loop. Failure modes: those of the documents, memory. */
#pragma once

#include "daemon/controller/controller.h"

struct ptc_copied_layout {
	struct ptc_layout *own;
	const struct ptc_layout *base; /* without copies */
	void *ref;
	struct ptc_view_copied with;
};
/* spec: makes the layout if ranks have declared none; it must outlive the layout. */
int ptc_copied_layout_init(struct ptc_copied_layout *h, struct ptc_controllers *all, const struct ptc_view *v,
			   const struct ptc_spec *spec, const struct ptc_declared **ret_declared,
			   struct ptc_error *err);
void ptc_copied_layout_done(struct ptc_copied_layout *h); /* one of zeros is fine */
