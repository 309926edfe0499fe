/* SPDX-License-Identifier: Apache-2.0 */
/* Prints what a switch of a job would move, with libptcadmin and without a daemon.
 *
 *   print-moves JOB.YAML FROM TO NODES DEVICES-PER-NODE
 *
 * One line for each rank of the new configuration, one for each move, one with the sums. A device is NODE/DEVICE; a box
 * has FIRST:END for each dim, in elements. */
#include <inttypes.h>
#include <ptc/admin.h>
#include <ptc/admin_plan.h>
#include <stdio.h>
#include <stdlib.h>

static int fail(const struct ptc_error *err)
{
	fprintf(stderr, "print-moves: %s (%s)\n", err->text, ptc_status_name(err->code));
	return 1;
}

static void print_move(const struct ptc_admin_item *item, const struct ptc_admin_move *m)
{
	static const char *const kinds[] = { "?", "between", "within", "forward" };

	printf("move %s %s %s %u/%u %u/%u %" PRIu64, item->tensor, item->field, kinds[m->kind], m->from.node,
	       m->from.device, m->to.node, m->to.device, m->bytes);
	for (uint32_t d = 0; d < m->ndim; d++)
		printf(" %" PRId64 ":%" PRId64, m->offset[d], m->offset[d] + m->extent[d]);
	putchar('\n');
}

static int print_plan(const struct ptc_admin_spec *spec, uint32_t world, struct ptc_admin_moves *moves,
		      struct ptc_error *err)
{
	struct ptc_admin_totals totals = { .size = sizeof totals };
	struct ptc_admin_move move = { .size = sizeof move };
	struct ptc_admin_item item = { .size = sizeof item };
	struct ptc_admin_place place;
	int rc = 0;

	for (uint32_t rank = 0; !rc && rank < world; rank++) {
		rc = ptc_admin_moves_place(moves, rank, &place, err);
		if (!rc)
			printf("rank %u %u/%u\n", rank, place.node, place.device);
	}
	while (!rc && (rc = ptc_admin_moves_next(moves, &move, err)) == 1) {
		rc = ptc_admin_spec_item(spec, move.item, &item, err);
		if (!rc)
			print_move(&item, &move);
	}
	if (!rc)
		rc = ptc_admin_moves_totals(moves, &totals, err);
	if (!rc)
		printf("totals moves=%" PRIu64 " between=%" PRIu64 " within=%" PRIu64 " kept=%" PRIu64 " bound=%" PRIu64
		       "\n",
		       totals.moves, totals.between_nodes, totals.within_node, totals.kept, totals.bound);
	return rc;
}

int main(int argc, char **argv)
{
	struct ptc_admin_cluster cluster = { .size = sizeof cluster };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_admin_spec *spec = NULL;
	struct ptc_admin_layout *from = NULL, *to = NULL;
	struct ptc_admin_moves *moves = NULL;
	int rc;

	if (argc != 6) {
		fprintf(stderr, "usage: print-moves JOB.YAML FROM TO NODES DEVICES-PER-NODE\n");
		return 2;
	}
	cluster.nodes = (uint32_t)strtoul(argv[4], NULL, 10);
	cluster.devices_per_node = (uint32_t)strtoul(argv[5], NULL, 10);
	rc = ptc_admin_spec_read(argv[1], NULL, &spec, &err);
	if (!rc)
		rc = ptc_admin_layout_new(spec, argv[2], &from, &err);
	if (!rc)
		rc = ptc_admin_layout_new(spec, argv[3], &to, &err);
	if (!rc)
		rc = ptc_admin_moves_plan(from, to, &cluster, &moves, &err);
	if (!rc)
		rc = print_plan(spec, ptc_admin_layout_world(to), moves, &err);
	ptc_admin_moves_free(moves);
	ptc_admin_layout_free(to);
	ptc_admin_layout_free(from);
	ptc_admin_spec_free(spec);
	return rc ? fail(&err) : 0;
}
